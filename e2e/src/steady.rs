//! Steady calls of both kinds over both protocols, by a client that retries only what was
//! certainly not processed: a refused connection, a refused stream.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use flower_api::wire::header;
use serde_json::json;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::flower::Flower;
use crate::http::{h2c, http1};
use crate::workload::Caller;

/// Calls of each kind wanted in every second, and how many clients share them.
const LEAST: usize = 20;
const CLIENTS: usize = 4;
const PAUSE: Duration = Duration::from_millis(50);

/// The running calls.
pub struct Steady {
    begun: Instant,
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
    tasks: JoinSet<()>,
}

#[derive(Default)]
struct Seen {
    /// Calls begun, by kind and second.
    calls: BTreeMap<&'static str, BTreeMap<u64, usize>>,
    retries: usize,
    slowest: Duration,
    failures: Vec<String>,
}

impl Steady {
    /// Starts queries and mutations over HTTP/1.1 and h2c.
    pub async fn start(flower: &Flower) -> Result<Self> {
        let mut steady = Self {
            begun: Instant::now(),
            stop: Arc::default(),
            seen: Arc::default(),
            tasks: JoinSet::new(),
        };
        for (kind, mutation, two) in [
            ("query over HTTP/1.1", false, false),
            ("query over h2c", false, true),
            ("mutation over HTTP/1.1", true, false),
            ("mutation over h2c", true, true),
        ] {
            for client in 0..CLIENTS {
                let caller = Caller::with(flower, if two { h2c() } else { http1() }).await?;
                let (stop, seen, begun) = (steady.stop.clone(), steady.seen.clone(), steady.begun);
                steady.tasks.spawn(async move {
                    // Clients of one kind take turns.
                    tokio::time::sleep(PAUSE * u32::try_from(client).unwrap_or(0) / 4).await;
                    while !stop.load(Ordering::Relaxed) {
                        let at = Instant::now();
                        let (result, retries) = call(&caller, mutation, client).await;
                        let mut seen = seen.lock().await;
                        let second = at.duration_since(begun).as_secs();
                        *seen
                            .calls
                            .entry(kind)
                            .or_default()
                            .entry(second)
                            .or_default() += 1;
                        seen.retries += retries;
                        seen.slowest = seen.slowest.max(at.elapsed());
                        if let Err(error) = result {
                            seen.failures
                                .push(format!("{kind}, second {second}: {error:#}"));
                        }
                        drop(seen);
                        tokio::time::sleep(PAUSE.saturating_sub(at.elapsed())).await;
                    }
                });
            }
        }
        Ok(steady)
    }

    /// Stops, and fails when a call failed or a second had too few calls of a kind.
    pub async fn finish(mut self) -> Result<String> {
        let seconds = self.begun.elapsed().as_secs();
        self.stop.store(true, Ordering::Relaxed);
        while let Some(done) = self.tasks.join_next().await {
            done?;
        }
        let seen = std::mem::take(&mut *self.seen.lock().await);
        ensure!(
            seen.failures.is_empty(),
            "{} calls failed, the first: {}",
            seen.failures.len(),
            seen.failures[0]
        );
        let mut fewest = usize::MAX;
        for (kind, by_second) in &seen.calls {
            for second in 1..seconds.saturating_sub(1) {
                let count = by_second.get(&second).copied().unwrap_or(0);
                ensure!(
                    count >= LEAST,
                    "only {count} calls ({kind}) in second {second} of {seconds}"
                );
                fewest = fewest.min(count);
            }
        }
        let calls: usize = seen.calls.values().flat_map(BTreeMap::values).sum();
        Ok(format!(
            "{calls} calls in {seconds} s, at least {fewest} of each kind in every second, none failed, {} retried, the slowest {}",
            seen.retries,
            crate::progress::seconds(seen.slowest)
        ))
    }
}

/// One call; only what was certainly not processed is tried again.
async fn call(caller: &Caller, mutation: bool, client: usize) -> (Result<()>, usize) {
    let key = uuid::Uuid::now_v7().to_string();
    let mut retries = 0;
    loop {
        let sent = if mutation {
            let args = json!({"client": 1_000 + client, "seq": 0, "note": "steady"});
            caller
                .send("/v1/p/_/m/add", &[(header::IDEMPOTENCY_KEY, &key)], &args)
                .await
        } else {
            caller
                .send("/v1/p/_/q/ping", &[(header::READ, "local")], &json!({}))
                .await
        };
        match sent {
            Ok(answer) if answer.status == 200 => return (Ok(()), retries),
            Ok(answer) => {
                return (
                    Err(anyhow::anyhow!("{}: {}", answer.status, answer.body)),
                    retries,
                );
            }
            Err(error) if retries < 100 && not_processed(&error) => retries += 1,
            Err(error) => return (Err(error), retries),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether an error says that the server never took the call: no connection, or a stream refused.
fn not_processed(error: &anyhow::Error) -> bool {
    let connect = error
        .downcast_ref::<hyper_util::client::legacy::Error>()
        .is_some_and(|error| error.is_connect());
    let said = format!("{error:?}");
    // After GOAWAY without an error, streams that the server took are finished; the others fail so.
    let gone = said.contains("GoAway") && said.contains("NO_ERROR, Remote");
    connect || gone || said.contains("REFUSED_STREAM") || said.contains("Canceled")
}
