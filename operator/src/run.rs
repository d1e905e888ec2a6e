//! The process: client, health server, CRD, Lease, controller; and its end. Everything that
//! is spawned is joined, and any task that ends ends the process: a replica that looks alive
//! and does nothing is worse than none.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, bail};
use clap::Args;
use futures::future::join_all;
use k8s_controller::LeaderElection;
use kube::{Api, Client, api::ListParams};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    admin::HttpConnect,
    backoff::Backoff,
    context::{Ctx, Settings},
    controller,
    crd::FlowerCluster,
    events::Events,
    failpoint,
    metrics::Metrics,
    web::{self, Health},
};

/// Name of the Lease.
const LEASE: &str = "flower-operator";
/// Passes that are running may finish for so long after SIGTERM.
const DRAIN: Duration = Duration::from_secs(15);
/// Pause between two looks whether the API server answers.
const PROBE: Duration = Duration::from_secs(30);

/// Settings of `flower-operator run`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Namespaces to watch, separated by commas; all when empty.
    #[arg(long, env = "FLOWER_OPERATOR_WATCH_NAMESPACES", value_delimiter = ',')]
    pub watch_namespaces: Vec<String>,
    /// Namespace of the Lease: the operator's own.
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    pub namespace: String,
    /// Who holds the Lease: unique for each replica.
    #[arg(long, env = "POD_NAME", default_value = "flower-operator")]
    pub identity: String,
    /// Image of clusters that name none.
    #[arg(long, env = "FLOWER_OPERATOR_NODE_IMAGE", default_value_t = Settings::default().default_image)]
    pub node_image: String,
    /// Address of health and metrics.
    #[arg(long, env = "FLOWER_OPERATOR_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: String,
}

/// Runs until SIGTERM, or until the Lease is lost.
///
/// # Errors
/// When the process cannot start, or ends for another reason than SIGTERM.
pub async fn run(args: RunArgs) -> anyhow::Result<()> {
    failpoint::check().map_err(anyhow::Error::msg)?;
    let client = Client::try_default().await.context(
        "finding the API server: in a pod the service account tells it, elsewhere KUBECONFIG",
    )?;
    let ctx = Arc::new(context(&args, client.clone())?);
    let health = Arc::new(Health::default());
    let stop = CancellationToken::new();
    let listener = TcpListener::bind(&args.listen)
        .await
        .with_context(|| format!("listening at {} (setting --listen)", args.listen))?;
    let web = tokio::spawn(web::serve(
        listener,
        Arc::clone(&ctx),
        Arc::clone(&health),
        CancellationToken::new(),
    ));
    let election = LeaderElection::new(client.clone(), &args.namespace, LEASE, &args.identity);
    let work = lead(&args, &ctx, &health, &stop, &election);
    let ended = tokio::select! {
        ended = work => ended,
        ended = web => match ended {
            Ok(Ok(())) => Err(anyhow::anyhow!("the health server ended")),
            Ok(Err(error)) => Err(error).context("the health server"),
            Err(error) => Err(error).context("the health server"),
        },
        () = terminated(stop.clone()) => {
            // Passes that were running had `DRAIN` to finish.
            election.release().await;
            Ok(())
        }
    };
    ctx.metrics.leader(false);
    ended
}

fn context(args: &RunArgs, client: Client) -> anyhow::Result<Ctx> {
    Ok(Ctx {
        events: Events::new(client.clone(), Some(args.identity.clone())),
        connect: Arc::new(HttpConnect::default()),
        metrics: Metrics::new()?,
        settings: Settings {
            default_image: args.node_image.clone(),
            ..Settings::default()
        },
        backoff: Backoff::default(),
        refused: Mutex::default(),
        pod_monitors: Mutex::default(),
        now: k8s_openapi::jiff::Timestamp::now,
        client,
    })
}

/// Waits for the CRD and the Lease, then runs the controllers; ends when the Lease is lost.
async fn lead(
    args: &RunArgs,
    ctx: &Arc<Ctx>,
    health: &Arc<Health>,
    stop: &CancellationToken,
    election: &LeaderElection,
) -> anyhow::Result<()> {
    let namespaces = namespaces(args);
    wait_for_crd(&ctx.client, &namespaces, health).await;
    health.standby();
    let work = async {
        ctx.metrics.leader(true);
        health.alive();
        tracing::info!(identity = %args.identity, "holding the lease");
        let controllers = join_all(namespaces.iter().map(|namespace| {
            controller::run(
                Arc::clone(ctx),
                namespace.clone(),
                Arc::clone(health),
                stop.clone(),
            )
        }));
        tokio::select! {
            _ = controllers => {}
            () = probe(&ctx.client, &namespaces, health) => {}
        }
    };
    match election.with_lease(work).await {
        // The controllers drained after SIGTERM.
        Some(()) if stop.is_cancelled() => Ok(()),
        Some(()) => bail!("the controllers ended by themselves"),
        // Another replica leads; nothing of this process may act any longer.
        None => bail!("the lease was lost"),
    }
}

fn namespaces(args: &RunArgs) -> Vec<Option<String>> {
    let named: Vec<Option<String>> = args
        .watch_namespaces
        .iter()
        .map(|one| one.trim())
        .filter(|one| !one.is_empty())
        .map(|one| Some(one.to_owned()))
        .collect();
    if named.is_empty() { vec![None] } else { named }
}

fn clusters(client: &Client, namespace: Option<&str>) -> Api<FlowerCluster> {
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// Lists one FlowerCluster until that works: it needs the CRD, and the right to read.
async fn wait_for_crd(client: &Client, namespaces: &[Option<String>], health: &Health) {
    let first = namespaces.first().cloned().flatten();
    let api = clusters(client, first.as_deref());
    while let Err(error) = api.list(&ListParams::default().limit(1)).await {
        let why = match &error {
            kube::Error::Api(status) if status.is_not_found() => {
                "the FlowerCluster CRD is not installed: install the chart flower-crds".to_owned()
            }
            other => format!("FlowerClusters cannot be listed: {other}"),
        };
        tracing::warn!("{why}");
        health.no_crd(why);
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// Asks the API server now and then, so that `/readyz` tells a silent one even when there is
/// no FlowerCluster whose passes would.
async fn probe(client: &Client, namespaces: &[Option<String>], health: &Health) {
    let first = namespaces.first().cloned().flatten();
    let api = clusters(client, first.as_deref());
    loop {
        tokio::time::sleep(PROBE).await;
        let params = ListParams::default().limit(1);
        let asked = api.list_metadata(&params);
        match tokio::time::timeout(PROBE, asked).await {
            Ok(Ok(_)) => health.alive(),
            Ok(Err(error)) => tracing::warn!(%error, "the API server does not answer"),
            Err(_) => tracing::warn!("the API server does not answer in time"),
        }
    }
}

/// Ends `DRAIN` after SIGTERM or SIGINT, having told everybody to stop.
async fn terminated(stop: CancellationToken) {
    let mut term = match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        Ok(term) => term,
        Err(error) => {
            tracing::error!(%error, "SIGTERM cannot be received");
            return std::future::pending().await;
        }
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    tracing::info!("stopping");
    stop.cancel();
    tokio::time::sleep(DRAIN).await;
}
