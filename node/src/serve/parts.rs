//! From settings to the parts of a node.

use std::{
    io,
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use flower_store::{DirSettings, RealDisk};

use super::Prepared;
use crate::{
    auth::Tokens,
    consensus::ConsensusSettings,
    env::{Env, Fatal},
    metrics::Metrics,
    node::NodeSettings,
    run::Parts,
    service::ServeSettings,
};

/// How often the files of the tokens are looked at.
const TOKENS_EVERY: Duration = Duration::from_secs(1);

/// How often a directory that another process holds is tried again.
const LOCK_EVERY: Duration = Duration::from_millis(200);

/// Opens the directory. While another process holds it, it waits so long for that one's end:
/// the containers of a pod that is started anew overlap.
async fn open_disk(data: &Path, patience: Duration) -> io::Result<RealDisk> {
    let start = Instant::now();
    let mut told = false;
    loop {
        match RealDisk::open(data) {
            Err(held) if held.kind() == io::ErrorKind::WouldBlock => {
                if start.elapsed() >= patience {
                    return Err(held);
                }
                if !told {
                    let (seconds, data) = (patience.as_secs(), data.display());
                    tracing::warn!(%data, seconds, "another process holds the data; waiting for its end");
                    told = true;
                }
                tokio::time::sleep(LOCK_EVERY).await;
            }
            opened => return opened,
        }
    }
}

/// Opens the directory, waiting up to `patience` for a process that holds it, and puts the
/// parts together; tokens are followed from now on.
///
/// # Errors
/// When the directory cannot be used, or the system gives no randomness.
pub(crate) async fn parts(prepared: Prepared, patience: Duration) -> Result<Parts, Fatal> {
    let Prepared {
        config,
        plan,
        meter,
        tokens,
        ..
    } = prepared;
    let disk = open_disk(&config.data, patience).await.map_err(|e| {
        Fatal::new(format!(
            "the directory {} cannot be used for the data: {e} [setting: FLOWER_DATA]",
            config.data.display()
        ))
    })?;
    let env = Env::real(Arc::new(disk))
        .map_err(|e| Fatal::new(format!("the system gives no randomness: {e}")))?;
    follow_tokens(&env, tokens.clone());
    let at = |port| SocketAddr::new(config.listen, port);
    let host = config
        .advertise
        .rsplit_once(':')
        .map_or(&*config.advertise, |(host, _)| host);
    let node = NodeSettings {
        name: config.name.clone(),
        client_address: format!("{host}:{}", config.ports.client),
        directory: DirSettings {
            log_cache_bytes: plan.log_page_cache_bytes,
            // Half of what the plan gives to the log; the rest is for messages to peers.
            log_tail_bytes: plan.log_bytes / 2,
            page_cache_bytes: plan.page_cache_bytes,
            value_cache_bytes: plan.value_cache_bytes,
            group: config.group,
        },
        consensus: ConsensusSettings {
            snapshot_after_log_bytes: config.snapshot_after_log_bytes,
            recent_bytes: plan.recent_bytes,
            ..ConsensusSettings::new(at(config.ports.peer), tokens.clone())
        },
    };
    Ok(Parts {
        env,
        node,
        serve: ServeSettings {
            query_cache_bytes: plan.query_cache_bytes,
            ..ServeSettings::from(&config)
        },
        client: at(config.ports.client),
        admin: at(config.ports.admin),
        tokens,
        metrics: Arc::new(Metrics::new()),
        meter,
        plan: Some(plan),
    })
}

/// Takes new tokens into force as their files change.
fn follow_tokens(env: &Env, tokens: Arc<Tokens>) {
    let world = env.clone();
    env.tasks.spawn("tokens", async move {
        let mut told = None;
        loop {
            tokio::select! {
                () = world.tasks.stopping() => return Ok(()),
                () = world.sleep(TOKENS_EVERY) => {}
            }
            match tokens.reload() {
                Ok(true) => {
                    tracing::info!("the tokens have changed");
                    told = None;
                }
                Ok(false) => told = None,
                // Once: it stays so until somebody mends the files.
                Err(why) if told.as_ref() != Some(&why) => {
                    tracing::warn!(%why, "the tokens in force stay as they were");
                    told = Some(why);
                }
                Err(_) => {}
            }
        }
    });
}
