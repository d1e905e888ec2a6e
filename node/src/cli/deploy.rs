//! `flower deploy` and `flower prepare-stop`.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use flower_api::{
    admin::{AdminApi, AdminError, Deploy, Deployed, Endpoint, code},
    report::BuildInfo,
};

use super::{AdminTarget, Failure, Output, bundle, print, progress::showing, status::admin_url};
use crate::admin_client::AdminClient;

/// Between two looks at a build.
const LOOK_EVERY: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(super) struct DeployArgs {
    /// The application: one JavaScript module.
    app: PathBuf,
    #[command(flatten)]
    at: AdminTarget,
}

pub(super) async fn deploy(args: DeployArgs, output: Output) -> Result<(), Failure> {
    let source = bundle::read(&args.app).map_err(Failure::here)?;
    let (client, at) = args.at.client()?;
    let call = Deploy {
        fence: bundle::by_hand(),
        source,
        managed_by: None,
    };
    let what = format!("deploying {}", args.app.display());
    let deployed = match showing(&what, deploy_at_leader(&client, &at, &call)).await {
        Ok(deployed) => deployed,
        Err(error) => match begun(&error) {
            None => return Err(error.into()),
            Some(deployed) => {
                let ended = built(&client, &at, &deployed.hash, |b| print::complain(b)).await?;
                ended.map_err(Failure::here)?;
                deployed
            }
        },
    };
    match output {
        Output::Json => print::json(&deployed),
        Output::Text => {
            print::line(bundle::describe(&deployed));
            Ok(())
        }
    }
}

/// The deployment that a node has begun and answered for with the progress of its build.
pub(crate) fn begun(error: &AdminError) -> Option<Deployed> {
    match error {
        AdminError::Refused(problem) if problem.code == code::BUILDING => {
            serde_json::from_value(problem.data.clone()?).ok()
        }
        _ => None,
    }
}

/// Follows the build of the bundle with this hash until that is active, and tells how far it
/// is. The inner error is for people: there is no build of it any more.
pub(crate) async fn built(
    client: &AdminClient,
    at: &Endpoint,
    hash: &str,
    mut tell: impl FnMut(&BuildInfo),
) -> Result<Result<(), String>, AdminError> {
    loop {
        let Some(found) = client.deployment(at).await? else {
            return Ok(Err("nothing is deployed any more".to_owned()));
        };
        match (found.build, found.failed_build) {
            (Some(build), _) if build.hash == hash => tell(&build),
            _ if found.hash == hash => return Ok(Ok(())),
            (None, Some(failed)) if failed.hash == hash => {
                return Ok(Err(format!(
                    "the build failed, and what ran before still runs: {}",
                    failed.why
                )));
            }
            _ => return Ok(Err("another deployment took its place".to_owned())),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Deploys at the node that is asked; when it does not lead, at the leader that it names.
async fn deploy_at_leader(
    client: &AdminClient,
    at: &Endpoint,
    call: &Deploy,
) -> Result<Deployed, AdminError> {
    let refused = match client.deploy(at, call).await {
        Err(error) if error.code() == Some(code::NOT_LEADER) => error,
        other => return other,
    };
    let report = client.report(at).await?;
    let leader = report.leader.zip(report.configuration);
    let address = leader.and_then(|(id, configuration)| configuration.members.get(&id).cloned());
    match address.as_deref().and_then(admin_url) {
        Some(leader) => client.deploy(&leader, call).await,
        None => Err(refused),
    }
}

pub(super) async fn prepare_stop(at: AdminTarget, output: Output) -> Result<(), Failure> {
    let (client, at) = at.client()?;
    showing("handing leadership over", client.prepare_stop(&at)).await?;
    match output {
        Output::Json => print::json(&serde_json::json!({ "safeToStop": true })),
        Output::Text => {
            print::line(format_args!(
                "{} does not lead and is unready: it may be stopped",
                at.0
            ));
            Ok(())
        }
    }
}
