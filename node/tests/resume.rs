//! The checker of watches: a client keeps a model of what it was told; its connection is cut
//! after every frame and the watch resumed on another node, while clients write, leadership
//! moves and a node goes away. Every state that it shows must be one that the group had, in
//! order, and the last one the newest.

mod support;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use flower_api::admin::path;
use parking_lot::Mutex;
use serde_json::{Value, json};
use support::{
    Http, Watch,
    group::{group, member, of, step},
    quick, until,
};

const APP: &str = r#"
import { mutation, query, t, table } from "@flower/sdk";
const purses = table("purses", { name: t.text(64), coins: t.int() }, { indexes: { byName: ["name"] } });
function purse(db, name) { return db.purses.byName.range({ name }).first(); }
export const open = mutation({ args: { name: t.text(64), coins: t.int() } },
  (tx, row) => { tx.purses.insert(row); });
export const move = mutation({ args: { from: t.text(64), to: t.text(64), coins: t.int() } }, (tx, { from, to, coins }) => {
  const [a, b] = [purse(tx, from), purse(tx, to)];
  tx.purses.patch(a.id, { coins: a.coins - coins });
  tx.purses.patch(b.id, { coins: b.coins + coins });
  return tx.purses.range().all().map((p) => p.coins);
});
export const coins = query({ args: { name: t.text(64) } }, (db, { name }) => purse(db, name).coins);
export const all = query({ args: {} }, (db) => db.purses.range().all().map((p) => p.coins));
"#;

const NAMES: [&str; 3] = ["a", "b", "c"];
const COINS: i64 = 100;

/// What the purses held after each mutation that was acknowledged.
type History = Arc<Mutex<BTreeMap<u64, Vec<i64>>>>;

/// Moves coins until told to stop, each move once, through whichever node answers.
async fn writer(nodes: Vec<Http>, number: usize, stop: Arc<AtomicBool>, history: History) {
    for i in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let (from, to) = (NAMES[i % 3], NAMES[(i + 1 + number) % 3]);
        if from == to {
            continue;
        }
        let args = json!({ "from": from, "to": to, "coins": 1 + i % 7 }).to_string();
        let key = format!("w{number}-{i}");
        let mut at = i;
        let got = loop {
            at += 1;
            let http = &nodes[at % nodes.len()];
            let headers = [("idempotency-key", &*key)];
            let sent = http
                .try_send(
                    http.calls,
                    http::Method::POST,
                    "/v1/p/_/m/move",
                    &headers,
                    args.clone(),
                )
                .await;
            match sent {
                Some(got) if got.status == 200 => break got,
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        let revision = got.header("flower-revision").parse().unwrap();
        let coins = serde_json::from_slice(&got.body).unwrap();
        history.lock().insert(revision, coins);
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

/// What a client shows: the result and its etag of each query, as of one revision.
#[derive(Default)]
struct Model {
    shown: BTreeMap<String, (String, Value)>,
    revision: u64,
    /// Every state shown, with its revision.
    states: Vec<(u64, Vec<i64>)>,
}

impl Model {
    fn body(&self) -> String {
        let mut queries: Vec<Value> = NAMES
            .iter()
            .map(|name| json!({ "id": name, "name": "coins", "args": { "name": name } }))
            .collect();
        queries.push(json!({ "id": "all", "name": "all" }));
        for query in &mut queries {
            if let Some((etag, _)) = self.shown.get(query["id"].as_str().unwrap()) {
                query["etag"] = json!(etag);
            }
        }
        json!({ "queries": queries }).to_string()
    }

    async fn resume(&self, http: &Http) -> Option<Watch> {
        let last = self.revision.to_string();
        let headers = [("last-event-id", &*last)];
        http.try_watch(&headers, &self.body()).await.ok()
    }

    /// Takes one frame, or notes that the stream is over.
    fn take(&mut self, event: &support::Event) {
        match &*event.name {
            "step" => {
                assert!(
                    event.data["from"].as_u64().unwrap() >= self.revision || self.states.is_empty()
                );
                for change in event.data["changes"].as_array().unwrap() {
                    let text = |field: &str| change[field].as_str().unwrap().to_owned();
                    let value = change["value"].clone();
                    let before = self.shown.insert(text("q"), (text("etag"), value.clone()));
                    assert_ne!(before.map(|b| b.1), Some(value), "told again");
                }
            }
            "same" => {}
            other => return assert!(["open", "moved"].contains(&other), "{event:?}"),
        }
        let to = event.id.unwrap();
        assert!(to >= self.revision, "back from {} to {to}", self.revision);
        self.revision = to;
        if self.shown.len() == 4 {
            let coins = NAMES.map(|name| self.shown[name].1.as_i64().unwrap());
            assert_eq!(json!(coins), self.shown["all"].1, "all of one revision");
            assert_eq!(coins.iter().sum::<i64>(), 3 * COINS);
            self.states.push((to, coins.to_vec()));
        }
    }
}

/// Reads `frames` frames of each stream, then goes to the next node.
async fn checker(
    nodes: Vec<Http>,
    frames: usize,
    stop: Arc<AtomicBool>,
    resumed: Arc<AtomicUsize>,
) -> Model {
    let mut model = Model::default();
    let mut at = frames;
    while !stop.load(Ordering::Relaxed) {
        at += 1;
        let Some(mut watch) = model.resume(&nodes[at % nodes.len()]).await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        resumed.fetch_add(1, Ordering::Relaxed);
        for _ in 0..frames {
            match watch.next().await {
                Some(event) => model.take(&event),
                None => break,
            }
        }
    }
    model
}

/// A running checker, and how often it has resumed.
fn start_checker(
    nodes: &[Http],
    frames: usize,
    stop: &Arc<AtomicBool>,
) -> (tokio::task::JoinHandle<Model>, Arc<AtomicUsize>) {
    let resumed = Arc::new(AtomicUsize::new(0));
    let checker = checker(nodes.to_vec(), frames, stop.clone(), resumed.clone());
    (tokio::spawn(checker), resumed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_state_seen_is_a_real_one_in_order_and_the_last_is_the_newest() {
    let mut serve = quick();
    serve.watches.opens = 100_000;
    serve.watches.heartbeat_ms = 200;
    let mut nodes = group(APP, serve).await;
    for name in NAMES {
        let args = json!({ "name": name, "coins": COINS });
        nodes[0].http.mutate("open", name, args).await.ok();
    }
    // A watch reads what its own node has: each has the purses before the first begins.
    for node in &nodes {
        node.http.query("all", "fresh", json!({})).await.ok();
    }
    let https: Vec<Http> = nodes.iter().map(|node| node.http.clone()).collect();
    let (history, stop) = (History::default(), Arc::new(AtomicBool::new(false)));
    let writers: Vec<_> = (0..2)
        .map(|n| tokio::spawn(writer(https.clone(), n, stop.clone(), history.clone())))
        .collect();
    // One cut after every frame (the first is `open`, without news), others later.
    let done = Arc::new(AtomicBool::new(false));
    let checkers = [1, 2, 3, 9].map(|frames| start_checker(&https, frames, &done));

    let grown = async |by: usize| {
        let before = history.lock().len();
        until("mutations go on", async || {
            history.lock().len() >= before + by
        })
        .await;
    };
    grown(40).await;
    step(&nodes[0], path::TRANSFER, &of(member(&nodes[1]))).await;
    grown(40).await;
    step(&nodes[1], path::TRANSFER, &of(member(&nodes[2]))).await;
    grown(40).await;
    // The leader goes away for good.
    nodes.pop().unwrap().running.stop().await.unwrap();
    grown(40).await;
    for (_, resumed) in &checkers {
        until("watches are resumed", async || {
            resumed.load(Ordering::Relaxed) > 20
        })
        .await;
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    let (newest, coins) = {
        let history = history.lock();
        let (revision, coins) = history.last_key_value().unwrap();
        (*revision, coins.clone())
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    done.store(true, Ordering::Relaxed);
    for (checker, _) in checkers {
        let mut model = checker.await.unwrap();
        // Whatever was missed comes with one more.
        let mut last = model.resume(&https[0]).await.expect("a node that is there");
        while model.revision < newest || model.shown.is_empty() {
            let event = last.next().await.unwrap();
            model.take(&event);
        }
        assert_eq!(model.states.last().unwrap().1, coins);
        // The purses at a revision are those after the last mutation up to it.
        let history = history.lock();
        let start = vec![COINS; 3];
        for (revision, state) in &model.states {
            let at = history.range(..=revision).next_back();
            let expected = at.map_or(&start, |(_, coins)| coins);
            assert_eq!(state, expected, "at revision {revision}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_node_takes_changes_of_a_watch() {
    let nodes = group(APP, quick()).await;
    for name in NAMES {
        let args = json!({ "name": name, "coins": COINS });
        nodes[0].http.mutate("open", name, args).await.ok();
    }
    let args = json!({ "name": "c" });
    nodes[1].http.query("coins", "fresh", args).await.ok();
    // The watch is on one node, its change comes through another.
    let mut watch = nodes[1].http.watch(json!([])).await;
    let id = watch.next().await.unwrap().data["watch"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(id.starts_with(&member(&nodes[1]).to_string()));
    for (i, node) in [&nodes[0], &nodes[2], &nodes[1]].into_iter().enumerate() {
        let query = json!({ "id": format!("q{i}"), "name": "coins", "args": { "name": NAMES[i] } });
        let got = node.http.change_watch(&id, json!({ "add": [query] })).await;
        assert_eq!(got.ok()["queries"], json!(i + 1));
        let step = watch.find("step").await;
        assert_eq!(step.data["changes"][0]["value"], json!(COINS));
    }
    drop(watch);
    until("it is gone", async || {
        let got = nodes[0].http.change_watch(&id, json!({})).await;
        got.status == 410 && got.problem().1 == "watch-gone"
    })
    .await;
    // A member that never was serves nothing.
    let nobody = format!("{:016x}-{}", 5, "0".repeat(32));
    assert_eq!(
        nodes[0]
            .http
            .change_watch(&nobody, json!({}))
            .await
            .problem()
            .0,
        410
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bounded_read_says_when_it_would_be_too_old() {
    let mut nodes = group(APP, quick()).await;
    let open = json!({ "name": "a", "coins": COINS });
    nodes[0].http.mutate("open", "a", open).await.ok();
    let args = json!({ "name": "a" });
    for node in &nodes {
        node.http.query("coins", "fresh", args.clone()).await.ok();
        let got = node
            .http
            .query("coins", "bounded; ms=2000", args.clone())
            .await;
        assert_eq!(got.ok(), json!(COINS));
        assert_eq!(got.header("flower-read-served"), "bounded; ms=2000");
    }
    // Alone, a node soon knows that it may be behind: it says so, and local reads go on.
    let alone = nodes.remove(0);
    for node in nodes {
        node.running.stop().await.unwrap();
    }
    let headers = [
        ("flower-read", "bounded; ms=400"),
        ("flower-deadline-ms", "1000"),
    ];
    until("it is too stale", async || {
        let http = &alone.http;
        let got = http
            .send(
                http.calls,
                http::Method::POST,
                "/v1/p/_/q/coins",
                &headers,
                args.to_string(),
            )
            .await;
        got.status == 503 && got.problem().1 == "too-stale"
    })
    .await;
    let long = alone
        .http
        .query("coins", "bounded; ms=600000", args.clone())
        .await;
    assert_eq!(long.ok(), json!(COINS), "its last contact is not that old");
    assert_eq!(
        alone.http.query("coins", "local", args).await.ok(),
        json!(COINS)
    );
}
