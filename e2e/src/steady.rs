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

/// Whether an error says that the server never took the call: no connection, a connection that
/// was closing before the call went out, or a stream refused or beyond the last that a GOAWAY
/// named (streams up to that one are finished, and would fail as broken pipes).
fn not_processed(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        if let Some(error) = cause.downcast_ref::<hyper_util::client::legacy::Error>() {
            return error.is_connect();
        }
        if let Some(error) = cause.downcast_ref::<hyper::Error>() {
            return error.is_canceled();
        }
        let Some(error) = cause.downcast_ref::<h2::Error>() else {
            return false;
        };
        let gone = error.is_go_away() && error.is_remote();
        (gone && error.reason() == Some(h2::Reason::NO_ERROR))
            || error.reason() == Some(h2::Reason::REFUSED_STREAM)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(error: h2::Error) -> anyhow::Error {
        anyhow::Error::new(error).context("http://10.0.0.1:7700/v1/p/_/m/add")
    }

    #[test]
    fn a_refused_stream_was_not_processed_and_a_broken_one_may_have_been() {
        assert!(not_processed(&wrapped(h2::Reason::REFUSED_STREAM.into())));
        assert!(!not_processed(&wrapped(h2::Reason::INTERNAL_ERROR.into())));
        assert!(!not_processed(&wrapped(h2::Reason::NO_ERROR.into())));
        let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert!(!not_processed(&anyhow::Error::new(broken).context("url")));
    }

    /// A server that takes a connection and a stream, and says that it took none.
    async fn says_go_away(listener: tokio::net::TcpListener) -> Result<()> {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let (mut socket, _) = listener.accept().await?;
        let mut preface = [0; 24];
        socket.read_exact(&mut preface).await?;
        socket.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await?;
        loop {
            let mut head = [0; 9];
            socket.read_exact(&mut head).await?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut rest = vec![0; usize::try_from(length)?];
            socket.read_exact(&mut rest).await?;
            if head[3] == 1 {
                break;
            }
        }
        // GOAWAY, last stream 0, NO_ERROR (RFC 9113, 6.8).
        let mut away = vec![0, 0, 8, 7, 0, 0, 0, 0, 0];
        away.extend([0; 8]);
        socket.write_all(&away).await?;
        let mut rest = Vec::new();
        socket.read_to_end(&mut rest).await?;
        Ok(())
    }

    #[tokio::test]
    async fn a_stream_beyond_the_last_of_a_goaway_was_not_processed() -> Result<()> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/v1/p/_/m/add", listener.local_addr()?);
        let server = tokio::spawn(says_go_away(listener));
        let request = http::Request::post(&url).body(http_body_util::Full::default())?;
        let error = crate::http::send(&h2c(), request, Duration::from_secs(5))
            .await
            .unwrap_err();
        let kinds = error.chain().any(|cause| cause.is::<h2::Error>());
        assert!(kinds && not_processed(&error), "{error:?}");
        server.await?
    }
}
