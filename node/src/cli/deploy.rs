//! `flower deploy` and `flower prepare-stop`.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use flower_api::admin::{AdminApi, AdminError, Deploy, Deployed, Endpoint, code};

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
        Err(error) if error.code() == Some(code::BUILDING) => built(&client, &at).await?,
        other => other?,
    };
    match output {
        Output::Json => print::json(&deployed),
        Output::Text => {
            print::line(bundle::describe(&deployed));
            Ok(())
        }
    }
}

/// Follows the build of the deployment that was begun, until it is active.
async fn built(client: &AdminClient, at: &Endpoint) -> Result<Deployed, Failure> {
    let mut wanted: Option<String> = None;
    loop {
        let found = client.deployment(at).await?;
        let found = found.ok_or_else(|| Failure::here("nothing is deployed any more"))?;
        let is_wanted = |hash: &str| wanted.as_ref().is_none_or(|wanted| wanted == hash);
        match (found.build, found.failed_build) {
            (Some(build), _) if is_wanted(&build.hash) => {
                print::complain(&build);
                wanted = Some(build.hash);
            }
            (None, Some(failed)) if is_wanted(&failed.hash) => {
                let why = format!(
                    "the build failed, and what ran before still runs: {}",
                    failed.why
                );
                return Err(Failure::here(why));
            }
            (None, _) if is_wanted(&found.hash) => {
                return Ok(Deployed {
                    hash: found.hash,
                    changed: true,
                    changes: Vec::new(),
                });
            }
            _ => return Err(Failure::here("another deployment took its place")),
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
