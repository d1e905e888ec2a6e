//! Clients that write through the Service and remember what was acknowledged, so that
//! "exactly once" can be checked afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use flower_api::wire::header;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::flower::Flower;
use crate::http::{HttpClient, http1};

/// How long one try may take, and how long a call is tried again with the same key.
const TRY: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(60);

/// One mutation and what became of it.
#[derive(Debug, Clone)]
pub struct Call {
    /// Who sent it.
    pub client: usize,
    /// The client's own number for it.
    pub seq: usize,
    /// When the acknowledgement came.
    pub acknowledged: Option<Instant>,
    /// The result that came with it.
    pub result: Value,
    /// How often it was sent before it was acknowledged.
    pub tries: usize,
    /// The last refusal, where it never was.
    pub refusal: String,
}

/// An answer of the client API.
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Whether it is a stored receipt.
    pub replayed: bool,
    /// The body.
    pub body: Value,
}

/// A client of one cluster.
#[derive(Clone)]
pub struct Caller {
    base: String,
    token: String,
    http: HttpClient,
}

impl Caller {
    /// A client that goes through the cluster's Service.
    pub async fn of(flower: &Flower) -> Result<Self> {
        Self::with(flower, http1()).await
    }

    /// The same over a given HTTP client.
    pub async fn with(flower: &Flower, http: HttpClient) -> Result<Self> {
        let base = format!(
            "http://{}:{}",
            flower.service().await?,
            flower_api::ports::CLIENT
        );
        Ok(Self {
            base,
            token: flower.token("client").await?,
            http,
        })
    }

    /// Sends one request once.
    pub async fn send(&self, path: &str, headers: &[(&str, &str)], args: &Value) -> Result<Answer> {
        let mut request = http::Request::post(format!("{}{path}", self.base))
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(args.to_string())))?;
        let response = self.http.request(request).await?;
        let text = |name: &str| {
            response
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
        };
        let replayed = text(header::REPLAYED) == "true";
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await?.to_bytes();
        let body = if bytes.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&bytes).context("the body is not JSON")?
        };
        Ok(Answer {
            status,
            replayed,
            body,
        })
    }

    /// Sends one mutation once, within the limit of a try.
    pub async fn mutate(&self, name: &str, key: &str, args: &Value) -> Result<Answer> {
        let path = format!("/v1/p/_/m/{name}");
        tokio::time::timeout(
            TRY,
            self.send(&path, &[(header::IDEMPOTENCY_KEY, key)], args),
        )
        .await
        .context("no answer")?
    }

    /// Runs one query; anything but success is an error.
    pub async fn query(&self, name: &str, class: &str, args: &Value) -> Result<Value> {
        let path = format!("/v1/p/_/q/{name}");
        let answer = tokio::time::timeout(TRY, self.send(&path, &[(header::READ, class)], args))
            .await
            .context("no answer")??;
        ensure!(
            answer.status == 200,
            "{name}: {}: {}",
            answer.status,
            answer.body
        );
        Ok(answer.body)
    }

    /// Runs one query again and again until it succeeds.
    pub async fn query_patiently(&self, name: &str, class: &str, args: &Value) -> Result<Value> {
        crate::progress::wait_for(name, PATIENCE, || self.query(name, class, args)).await
    }
}

/// Writers that go on until they are told to stop.
pub struct Workload {
    caller: Caller,
    clients: usize,
    stop: Arc<AtomicBool>,
    in_flight: Arc<AtomicUsize>,
    shared: Arc<Mutex<Shared>>,
    tasks: JoinSet<()>,
}

#[derive(Default)]
struct Shared {
    calls: Vec<Call>,
    replays: usize,
    wrong: Vec<String>,
}

impl Workload {
    /// Starts writers; every eighth acknowledged call is sent once more with its key.
    pub async fn start(flower: &Flower, clients: usize, pause: Duration) -> Result<Self> {
        let caller = Caller::of(flower).await?;
        let mut workload = Self {
            caller: caller.clone(),
            clients,
            stop: Arc::default(),
            in_flight: Arc::default(),
            shared: Arc::default(),
            tasks: JoinSet::new(),
        };
        for client in 0..clients {
            let (caller, stop) = (caller.clone(), workload.stop.clone());
            let (in_flight, shared) = (workload.in_flight.clone(), workload.shared.clone());
            workload.tasks.spawn(async move {
                let mut seq = 0;
                while !stop.load(Ordering::Relaxed) {
                    seq += 1;
                    in_flight.fetch_add(1, Ordering::Relaxed);
                    let (call, key) = write(&caller, client, seq).await;
                    in_flight.fetch_sub(1, Ordering::Relaxed);
                    let again = call.acknowledged.is_some() && seq % 8 == 0;
                    let replay = if again {
                        Some(replay(&caller, &call, &key).await)
                    } else {
                        None
                    };
                    let mut shared = shared.lock().await;
                    shared.calls.push(call);
                    match replay {
                        Some(Ok(())) => shared.replays += 1,
                        Some(Err(error)) => shared.wrong.push(format!("{error:#}")),
                        None => {}
                    }
                    drop(shared);
                    tokio::time::sleep(pause).await;
                }
            });
        }
        Ok(workload)
    }

    /// Calls that wait for an answer now.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Mutations acknowledged so far.
    pub async fn acknowledged(&self) -> usize {
        self.shared
            .lock()
            .await
            .calls
            .iter()
            .filter(|call| call.acknowledged.is_some())
            .count()
    }

    /// Waits until writes are acknowledged again after now.
    pub async fn flows(&self, limit: Duration) -> Result<()> {
        let now = Instant::now();
        crate::progress::wait_for("writes are acknowledged again", limit, || async {
            let shared = self.shared.lock().await;
            let since = shared
                .calls
                .iter()
                .rev()
                .take(self.clients * 4)
                .any(|call| call.acknowledged.is_some_and(|at| at > now));
            ensure!(since, "none yet");
            Ok(())
        })
        .await
    }

    /// Stops the writers, reads everything back, and checks that every acknowledged call is there exactly once.
    pub async fn finish(mut self) -> Result<History> {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(done) = self.tasks.join_next().await {
            done?;
        }
        let shared = std::mem::take(&mut *self.shared.lock().await);
        ensure!(
            shared.wrong.is_empty(),
            "{} wrong replays, the first: {}",
            shared.wrong.len(),
            shared.wrong[0]
        );
        let mut stored: BTreeMap<(usize, usize), Vec<Value>> = BTreeMap::new();
        for client in 0..self.clients {
            let mut after = 0;
            loop {
                let page = self
                    .caller
                    .query_patiently("page", "fresh", &json!({"client": client, "after": after}))
                    .await?;
                let rows = page.as_array().context("page returned no list")?;
                for row in rows {
                    after = row["seq"].as_u64().context("a row without seq")?;
                    stored
                        .entry((client, usize::try_from(after)?))
                        .or_default()
                        .push(row["id"].clone());
                }
                if rows.is_empty() {
                    break;
                }
            }
        }
        let history = History {
            calls: shared.calls,
            replays: shared.replays,
        };
        history.check(&stored)?;
        Ok(history)
    }
}

/// Sends one mutation until it is acknowledged, always with the same key.
async fn write(caller: &Caller, client: usize, seq: usize) -> (Call, String) {
    let key = uuid::Uuid::now_v7().to_string();
    let args = json!({"client": client, "seq": seq, "note": format!("{client}/{seq}")});
    let begun = Instant::now();
    let mut call = Call {
        client,
        seq,
        acknowledged: None,
        result: Value::Null,
        tries: 0,
        refusal: String::new(),
    };
    while begun.elapsed() < PATIENCE {
        call.tries += 1;
        match caller.mutate("add", &key, &args).await {
            Ok(answer) if answer.status == 200 => {
                call.acknowledged = Some(Instant::now());
                call.result = answer.body;
                break;
            }
            Ok(answer) => call.refusal = format!("{}: {}", answer.status, answer.body),
            Err(error) => call.refusal = format!("{error:#}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    (call, key)
}

/// Sends an acknowledged mutation again; the stored outcome must come back.
async fn replay(caller: &Caller, call: &Call, key: &str) -> Result<()> {
    let args = json!({"client": call.client, "seq": call.seq, "note": format!("{}/{}", call.client, call.seq)});
    let answer = crate::progress::wait_for("the replay", PATIENCE, || async {
        let answer = caller.mutate("add", key, &args).await?;
        ensure!(answer.status == 200, "{}: {}", answer.status, answer.body);
        Ok(answer)
    })
    .await?;
    ensure!(
        answer.replayed,
        "{}/{} with the same key was not a replay",
        call.client,
        call.seq
    );
    ensure!(
        answer.body == call.result,
        "{}/{}: the replay says {}, the first said {}",
        call.client,
        call.seq,
        answer.body,
        call.result
    );
    Ok(())
}

/// Everything that was written, after it was found exactly once.
pub struct History {
    /// The mutations.
    pub calls: Vec<Call>,
    /// How many were sent again and came back as replays.
    pub replays: usize,
}

impl History {
    /// How many were acknowledged.
    pub fn acknowledged(&self) -> usize {
        self.calls
            .iter()
            .filter(|call| call.acknowledged.is_some())
            .count()
    }

    /// How many needed more than one try.
    pub fn retried(&self) -> usize {
        self.calls.iter().filter(|call| call.tries > 1).count()
    }

    /// The longest time without any acknowledgement.
    pub fn longest_gap(&self) -> Duration {
        let mut times: Vec<_> = self
            .calls
            .iter()
            .filter_map(|call| call.acknowledged)
            .collect();
        times.sort_unstable();
        times
            .windows(2)
            .map(|pair| pair[1] - pair[0])
            .max()
            .unwrap_or_default()
    }

    /// Acknowledged: exactly once, with the id that was said. Otherwise: at most once.
    fn check(&self, stored: &BTreeMap<(usize, usize), Vec<Value>>) -> Result<()> {
        for call in &self.calls {
            let rows = stored
                .get(&(call.client, call.seq))
                .map_or(&[] as &[Value], Vec::as_slice);
            let name = format!("{}/{}", call.client, call.seq);
            match (call.acknowledged.is_some(), rows) {
                (true, [id]) if *id == call.result => {}
                (true, [id]) => bail!(
                    "{name} was acknowledged as {} and is stored as {id}",
                    call.result
                ),
                (true, []) => bail!("{name} was acknowledged and is lost"),
                (false, [] | [_]) => {}
                (_, many) => bail!("{name} is stored {} times", many.len()),
            }
        }
        if let Some(call) = self.calls.iter().find(|call| call.acknowledged.is_none()) {
            bail!(
                "{}/{} was never acknowledged: {}",
                call.client,
                call.seq,
                call.refusal
            );
        }
        Ok(())
    }
}
