//! `flower deploy` and `flower prepare-stop`.

use std::path::PathBuf;

use clap::Args;
use flower_api::admin::{AdminApi, AdminError, Deploy, Deployed, Endpoint, code};

use super::{AdminTarget, Failure, Output, bundle, print, progress::showing, status::admin_url};
use crate::admin_client::AdminClient;

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
    let deployed = showing(&what, deploy_at_leader(&client, &at, &call)).await?;
    match output {
        Output::Json => print::json(&deployed),
        Output::Text => {
            print::line(bundle::describe(&deployed));
            Ok(())
        }
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
