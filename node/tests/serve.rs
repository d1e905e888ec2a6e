//! One node over loopback, from the outside: what the client and admin APIs answer, and that
//! neither bad input nor hostile code ends the node.

mod support;

use std::{sync::Arc, time::Duration};

use flower_api::admin::{Fence, path};
use flower_node::{auth::Tokens, host::Host, service::ServeSettings};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use support::{Http, TestNode, no_fence, quick, until};

const APP: &str = r#"
import { fault, mutation, query, t, table } from "@flower/sdk";

const counters = table("counters", { name: t.text(64), value: t.int() }, { indexes: { byName: ["name"] } });

export const bump = mutation(
  { args: { name: t.text(64), by: t.int(1, 1000) }, returns: t.int(), errors: { "too-far": 409 } },
  (tx, { name, by }) => {
    const row = tx.counters.byName.range({ name }).first();
    const value = (row ? row.value : 0) + by;
    if (value > 10000) throw fault("too-far", { data: { value } });
    if (row) tx.counters.patch(row.id, { value });
    else tx.counters.insert({ name, value });
    return value;
  },
);
export const big = mutation({ args: { size: t.int(0) } }, (tx, { size }) => "x".repeat(size));
export const broken = mutation({ args: {} }, () => { throw new Error("secret"); });
export const read = query({ args: { name: t.text(64) } },
  (db, { name }) => { const row = db.counters.byName.range({ name }).first(); return row ? row.value : 0; });
export const spin = query({ args: {} }, () => { for (;;); });
export const spinMutation = mutation({ args: {} }, () => { for (;;); });
"#;

fn bump(name: &str, by: u64) -> Value {
    json!({ "name": name, "by": by })
}

/// A UUIDv7 of this wall time.
fn uuid_at(ms: u64) -> String {
    uuid::Builder::from_unix_timestamp_millis(ms, &[7; 10])
        .into_uuid()
        .to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mutation_is_applied_once_and_replayed() {
    let node = TestNode::serving(APP, quick()).await;
    let http = &node.http;
    let first = http.mutate("bump", "k1", bump("a", 5)).await;
    assert_eq!(first.ok(), json!(5));
    assert_eq!(first.header("flower-replayed"), "false");
    assert_eq!(first.header("idempotency-key"), "k1");
    assert!(!first.header("flower-deployment").is_empty());
    assert!(first.header("flower-receipt-expires").ends_with('Z'));
    let again = http
        .mutate("bump", "k1", json!({ "by": 5, "name": "a" }))
        .await;
    assert_eq!(again.ok(), json!(5));
    assert_eq!(again.header("flower-replayed"), "true");
    assert_eq!(
        again.header("flower-revision"),
        first.header("flower-revision")
    );
    let other = http.mutate("bump", "k1", bump("a", 6)).await;
    assert_eq!(other.problem(), (422, "key-reused".into()));
    let minted = http.mutate("bump", "", bump("a", 1)).await;
    assert_eq!(minted.ok(), json!(6));
    let key = minted.header("idempotency-key").to_owned();
    assert_eq!(http.mutate("bump", &key, bump("a", 1)).await.ok(), json!(6));
    // Many at once under one key: one of them runs.
    let calls = (0..16).map(|_| http.mutate("bump", "k2", bump("a", 1)));
    for got in futures::future::join_all(calls).await {
        assert_eq!(got.ok(), json!(7));
    }
    assert_eq!(
        http.query("read", "fresh", json!({ "name": "a" }))
            .await
            .ok(),
        json!(7)
    );
}

/// Prepared side by side, certified in series: none overwrites what another one wrote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutations_of_one_row_at_once_lose_no_update() {
    let settings = ServeSettings {
        workers: 4,
        ..quick()
    };
    let node = TestNode::serving(APP, settings).await;
    let http = &node.http;
    let calls = (0..200).map(|i| {
        let (name, by) = if i % 4 == 0 { ("rare", 2) } else { ("hot", 1) };
        let http = http.clone();
        async move {
            http.mutate("bump", &format!("c{i}"), bump(name, by))
                .await
                .ok()
        }
    });
    let mut seen: Vec<u64> = futures::future::join_all(calls)
        .await
        .iter()
        .filter_map(Value::as_u64)
        .collect();
    assert_eq!(seen.len(), 200);
    for (name, total) in [("hot", 150), ("rare", 100)] {
        let read = http.query("read", "fresh", json!({ "name": name }));
        assert_eq!(read.await.ok(), json!(total));
    }
    // Each call saw another value: 1 to 150, and 2 to 100 by twos.
    seen.sort_unstable();
    let mut expected: Vec<u64> = (1..=150).chain((1..=50).map(|n| 2 * n)).collect();
    expected.sort_unstable();
    assert_eq!(seen, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_with_a_key_are_kept_and_other_failures_are_not() {
    let node = TestNode::serving(APP, quick()).await;
    let http = &node.http;
    http.mutate("bump", "full", bump("a", 1000)).await.ok();
    for i in 0..9 {
        http.mutate("bump", &format!("f{i}"), bump("a", 1000))
            .await
            .ok();
    }
    let fault = http.mutate("bump", "k", bump("a", 1)).await;
    assert_eq!(fault.problem(), (409, "fault:too-far".into()));
    assert_eq!(fault.json()["data"], json!({ "value": 10001 }));
    assert_eq!(fault.header("flower-replayed"), "false");
    let again = http.mutate("bump", "k", bump("a", 1)).await;
    assert_eq!(again.problem(), (409, "fault:too-far".into()));
    assert_eq!(again.header("flower-replayed"), "true");
    let known = http.get("/v1/p/_/receipts/k").await.ok();
    assert_eq!(
        (&known["status"], &known["problem"]["code"]),
        (&json!(409), &json!("fault:too-far"))
    );
    // Without a key of the client's, and for errors that are no declared fault: nothing.
    let unkeyed = http.mutate("bump", "", bump("a", 1)).await;
    assert_eq!(unkeyed.problem(), (409, "fault:too-far".into()));
    let key = unkeyed.header("idempotency-key").to_owned();
    let broken = http.mutate("broken", "b", json!({})).await;
    assert_eq!(broken.problem(), (500, "internal".into()));
    let wrong = http
        .mutate("bump", "w", json!({ "name": "a", "by": 0 }))
        .await;
    assert_eq!(wrong.problem(), (400, "invalid-args".into()));
    assert_eq!(wrong.json()["errors"][0]["pointer"], "/by");
    for key in [&key[..], "b", "w", "never"] {
        let receipt = http.get(&format!("/v1/p/_/receipts/{key}")).await;
        assert_eq!(receipt.problem(), (404, "unknown-receipt".into()), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receipts_tell_outcomes_and_large_results_are_not_kept() {
    let node = TestNode::serving(APP, quick()).await;
    let http = &node.http;
    http.mutate("bump", "a/b?c%", bump("a", 3)).await.ok();
    let receipt = http.get("/v1/p/_/receipts/a%2Fb%3Fc%25").await.ok();
    assert_eq!(
        (&receipt["mutation"], &receipt["result"]),
        (&json!("bump"), &json!(3))
    );
    let size = 70_000;
    let large = http.mutate("big", "large", json!({ "size": size })).await;
    assert_eq!(large.ok().as_str().unwrap().len(), size);
    let again = http.mutate("big", "large", json!({ "size": size })).await;
    assert_eq!(again.ok(), Value::Null);
    assert_eq!(
        (
            again.header("flower-replayed"),
            again.header("flower-result")
        ),
        ("true", "not-kept")
    );
    let receipt = http.get("/v1/p/_/receipts/large").await.ok();
    assert_eq!(receipt["resultKept"], json!(false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_keys_are_refused_and_trimmed_receipts_stay_refused() {
    let serve = ServeSettings {
        retention_ms: 2_000,
        ..quick()
    };
    let node = TestNode::serving(APP, serve).await;
    let http = &node.http;
    let now = node.env.clock.wall_ms();
    let old = http
        .mutate("bump", &uuid_at(now - 60_000), bump("a", 1))
        .await;
    assert_eq!(old.problem(), (410, "key-expired".into()));
    let key = uuid_at(now);
    http.mutate("bump", &key, bump("a", 1)).await.ok();
    until("the receipt is trimmed", async || {
        http.report().await.footprint.receipts == 0
    })
    .await;
    let late = http.mutate("bump", &key, bump("a", 1)).await;
    assert_eq!(late.problem(), (410, "key-expired".into()));
    assert_eq!(
        http.query("read", "fresh", json!({ "name": "a" }))
            .await
            .ok(),
        json!(1)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_classes_are_served_as_asked() {
    let node = TestNode::serving(APP, quick()).await;
    let http = &node.http;
    let done = http.mutate("bump", "k", bump("a", 2)).await;
    let min = done.header("flower-revision").to_owned();
    let args = json!({ "name": "a" });
    for class in ["local", "fresh", &format!("session; min={min}")] {
        let got = http.query("read", class, args.clone()).await;
        assert_eq!(got.ok(), json!(2));
        assert_eq!(got.header("flower-read-served"), class);
        assert!(got.header("flower-revision").parse::<u64>().unwrap() >= min.parse().unwrap());
    }
    for class in ["newest", "session; min=x", ""] {
        let got = http.query("read", class, args.clone()).await;
        assert_eq!(got.problem(), (400, "malformed".into()), "{class}");
    }
    let by_get = http
        .get("/v1/p/_/q/read?args=%7B%22name%22:%22a%22%7D")
        .await;
    assert_eq!(by_get.ok(), json!(2));
    let unknown = http.get("/v1/p/_/q/read?arg=1").await;
    assert_eq!(unknown.problem(), (400, "malformed".into()));
    let soon = [
        ("flower-read", "session; min=999999"),
        ("flower-deadline-ms", "50"),
    ];
    let path = "/v1/p/_/q/read";
    let late = http
        .send(http.calls, Method::POST, path, &soon, args.to_string())
        .await;
    assert_eq!(late.problem(), (504, "timeout".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_to_stop_says_which_answer_is_a_connections_last() {
    let node = TestNode::serving(APP, quick()).await;
    let closes = async |h2| {
        let http = Http::new(node.http.calls, node.http.admin, h2);
        let got = http.query("read", "local", json!({ "name": "a" })).await;
        got.ok();
        got.header("connection") == "close"
    };
    assert!(!closes(false).await && !closes(true).await);
    node.http.admin_post(path::PREPARE_STOP, &json!({})).await;
    assert!(closes(false).await, "HTTP/1.1 has no other way");
    assert!(!closes(true).await, "HTTP/2 has GOAWAY");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_requests_get_clear_refusals() {
    let node = TestNode::serving(APP, quick()).await;
    for h2 in [false, true] {
        let http = Http::new(node.http.calls, node.http.admin, h2);
        let post = async |path: &str, headers: &[(&str, &str)], body: Vec<u8>| {
            http.send(http.calls, Method::POST, path, headers, body)
                .await
                .problem()
        };
        let problem = |status, code: &str| (status, code.to_owned());
        let m = "/v1/p/_/m/bump";
        assert_eq!(
            post("/v1/p/x/m/bump", &[], b"{}".into()).await,
            problem(404, "unknown-partition")
        );
        assert_eq!(
            post("/v1/p/_/m/nope", &[], b"{}".into()).await,
            problem(404, "unknown-function")
        );
        assert_eq!(
            post("/v1/p/_/q/bump", &[], b"{}".into()).await,
            problem(404, "unknown-function")
        );
        assert_eq!(
            post("/v1/p/_/m/a%20b", &[], b"{}".into()).await,
            problem(404, "unknown-function")
        );
        assert_eq!(
            post("/v1/x", &[], b"{}".into()).await,
            problem(404, "not-found")
        );
        assert_eq!(post(m, &[], b"{".into()).await, problem(400, "malformed"));
        assert_eq!(
            post(m, &[], b"\xff\xfe".into()).await,
            problem(400, "malformed")
        );
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        assert_eq!(post(m, &[], deep.into()).await, problem(400, "malformed"));
        assert_eq!(
            post(m, &[("idempotency-key", "a b")], b"{}".into()).await,
            problem(400, "malformed")
        );
        for name in ["idempotency-key", "authorization"] {
            assert_eq!(
                post(m, &[(name, "a"), (name, "b")], b"{}".into()).await,
                problem(400, "malformed"),
                "{name}"
            );
        }
        let long = "k".repeat(256);
        assert_eq!(
            post(m, &[("idempotency-key", &long)], b"{}".into()).await,
            problem(400, "malformed")
        );
        let large = vec![b' '; (1 << 20) + 1];
        assert_eq!(post(m, &[], large).await, problem(413, "too-large"));
        let get = http.get(m).await;
        assert_eq!(get.problem(), problem(405, "method-not-allowed"));
        let unknown = post(m, &[], br#"{"name":"a","by":1,"x":1}"#.into()).await;
        assert_eq!(unknown, problem(400, "invalid-args"));
    }
    assert_eq!(
        node.http.mutate("bump", "k", bump("a", 1)).await.ok(),
        json!(1)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_code_ends_its_call_and_never_the_node() {
    let serve = ServeSettings {
        limits: flower_engine::Limits {
            wall_ms: 200,
            ..Default::default()
        },
        workers: 3,
        ..quick()
    };
    let hostile = APP.to_owned()
        + r#"
export const recurse = query({ args: {} }, () => { const f = () => f() + 1; return f(); });
export const eat = query({ args: {} }, () => { const a = []; for (;;) a.push(new Array(1000).fill(a.length)); });
export const regex = query({ args: {} }, () => /^(a+)+$/.test("a".repeat(40) + "b"));
export const proto = query({ args: {} }, () => { Object.prototype.get = () => 1; return 1; });
export const write = query({ args: {} }, (db) => db.counters.insert({ name: "x", value: 1 }));
"#;
    let node = TestNode::serving(&hostile, serve).await;
    let http = &node.http;
    for name in ["spin", "recurse", "eat", "regex", "write"] {
        let got = http.query(name, "local", json!({})).await;
        assert!(
            got.status.is_server_error() || got.status.is_client_error(),
            "{name}"
        );
        got.problem();
    }
    let spun = http.mutate("spinMutation", "s", json!({})).await;
    assert_eq!(spun.problem(), (500, "budget".into()));
    http.query("proto", "local", json!({})).await;
    // The node goes on, and nothing of it was kept.
    assert_eq!(http.mutate("bump", "k", bump("a", 1)).await.ok(), json!(1));
    assert_eq!(
        http.query("read", "fresh", json!({ "name": "x" }))
            .await
            .ok(),
        json!(0)
    );
    assert_eq!(http.admin_get("/livez").await.status, StatusCode::OK);
    assert_eq!(node.env.tasks.failure(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_takes_mutations_when_it_is_formed_and_has_an_application() {
    let node = TestNode::fresh(quick()).await;
    let http = &node.http;
    assert_eq!(
        http.admin_get("/readyz").await.status,
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert_eq!(http.admin_get("/livez").await.status, StatusCode::OK);
    let early = http.query("read", "local", json!({})).await;
    assert_eq!(early.problem().0, 503);
    node.bootstrap(3).await.ok();
    assert_eq!(
        node.bootstrap(3).await.problem(),
        (409, "already-initialized".into())
    );
    let got = http.mutate("bump", "k", bump("a", 1)).await;
    assert_eq!(got.problem(), (503, "not-formed".into()));
    assert!(!got.header("retry-after").is_empty());
    assert!(!http.report().await.formed);
    http.admin_post(path::FORMED, &no_fence()).await.ok();
    http.admin_post(path::FORMED, &no_fence()).await.ok();
    assert!(http.report().await.formed);
    let got = http.mutate("bump", "k", bump("a", 1)).await;
    assert_eq!(got.problem(), (503, "no-application".into()));
    let bad = http.deploy("export const x = ;").await;
    assert_eq!(bad.problem(), (422, "bad-bundle".into()));
    assert_eq!(http.deploy(APP).await.ok()["changed"], json!(true));
    assert_eq!(http.deploy(APP).await.ok()["changed"], json!(false));
    assert_eq!(http.mutate("bump", "k", bump("a", 1)).await.ok(), json!(1));
    until("ready", async || {
        http.admin_get("/readyz").await.status == StatusCode::OK
    })
    .await;
    let report = http.report().await;
    assert!(
        report.ready
            && report
                .deployment
                .unwrap()
                .functions
                .contains(&"bump".to_owned())
    );
    let metrics = http.admin_get("/metrics").await;
    let text = String::from_utf8_lossy(&metrics.body).into_owned();
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let value = line.map(|rest| rest.trim().parse::<f64>().unwrap());
        value.unwrap_or_else(|| panic!("no {name} in {text}"))
    };
    assert!(value("flower_log_flush_seconds_count ") >= 1.0);
    assert!(value("flower_leader_changes_total ") >= 1.0);
    assert!(value(r#"flower_calls_total{kind="mutation",outcome="ok"} "#) >= 1.0);
}

/// A directory with one token of each kind.
fn token_files() -> tempfile::TempDir {
    let tokens = tempfile::tempdir().unwrap();
    for kind in ["client", "admin", "peer"] {
        let token = format!("{kind}-token-of-the-tests\n");
        std::fs::write(tokens.path().join(kind), token).unwrap();
    }
    tokens
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admin_calls_are_fenced_by_owner_and_token() {
    let tokens = token_files();
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let auth = Tokens::open(Host::default(), tokens.path()).unwrap();
    let node = TestNode::start(dir, quick(), auth).await;
    let http = &node.http;
    let admin = [("authorization", "Bearer admin-token-of-the-tests")];
    let client = [("authorization", "Bearer client-token-of-the-tests")];
    let report = async |headers: &[(&str, &str)]| {
        http.send(http.admin, Method::GET, path::REPORT, headers, "")
            .await
    };
    assert_eq!(report(&[]).await.problem(), (401, "unauthenticated".into()));
    assert_eq!(
        report(&client).await.problem(),
        (401, "unauthenticated".into())
    );
    report(&admin).await.ok();
    assert_eq!(http.admin_get("/livez").await.status, StatusCode::OK);
    let call = http.query("read", "local", json!({})).await;
    assert_eq!(call.problem(), (401, "unauthenticated".into()));
    let post = async |path: &str, body: Value| {
        http.send(http.admin, Method::POST, path, &admin, body.to_string())
            .await
    };
    let identity = http
        .send(http.admin, Method::GET, path::IDENTITY, &admin, "")
        .await
        .ok();
    let address = node
        .running
        .service()
        .unwrap()
        .consensus
        .listening()
        .to_string();
    let fence = |uid: &str, generation: i64, adopt: bool| Fence {
        configuration: None,
        uid: uid.into(),
        generation,
        adopt,
    };
    let bootstrap = json!({ "fence": fence("a", 2, false), "cluster": "c", "group": 0,
        "member": identity["member"], "address": address, "size": 1 });
    post(path::BOOTSTRAP, bootstrap.clone()).await.ok();
    let mut unknown = bootstrap;
    unknown["extra"] = json!(1);
    assert_eq!(
        post(path::BOOTSTRAP, unknown).await.problem(),
        (400, "malformed".into())
    );
    let formed = async |fence: Fence| post(path::FORMED, json!(fence)).await;
    assert_eq!(
        formed(fence("a", 1, false)).await.problem(),
        (409, "stale-spec".into())
    );
    formed(fence("a", 2, false)).await.ok();
    assert_eq!(
        formed(fence("b", 9, false)).await.problem(),
        (409, "stale-spec".into())
    );
    formed(fence("b", 1, true)).await.ok();
    assert_eq!(
        formed(fence("a", 3, false)).await.problem(),
        (409, "stale-spec".into())
    );
    let stored = report(&admin).await.ok();
    assert_eq!(stored["owner"], json!({ "uid": "b", "generation": 1 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_keeps_everything_and_a_stop_finishes_calls() {
    let node = TestNode::serving(APP, quick()).await;
    let http = node.http.clone();
    http.mutate("bump", "k", bump("a", 4)).await.ok();
    let before = http.identity().await;
    let calls: Vec<_> = (0..32)
        .map(|i| {
            let http = Http::new(http.calls, http.admin, i % 2 == 0);
            tokio::spawn(async move { http.mutate("bump", &format!("s{i}"), bump("b", 1)).await })
        })
        .collect();
    let mut done = 0;
    for call in calls {
        call.await.unwrap().ok();
        done += 1;
    }
    let TestNode {
        running, dir, env, ..
    } = node;
    running.stop().await.unwrap();
    env.tasks.ended().await;
    drop(env);
    // The directory is locked until the last thread has let go.
    while flower_store::RealDisk::open(dir.path()).is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let node = TestNode::start(dir, quick(), Tokens::off()).await;
    let http = &node.http;
    let after = http.identity().await;
    assert_eq!(
        (after.member, after.cluster),
        (before.member, before.cluster)
    );
    assert_eq!(
        http.query("read", "fresh", json!({ "name": "a" }))
            .await
            .ok(),
        json!(4)
    );
    assert_eq!(
        http.query("read", "fresh", json!({ "name": "b" }))
            .await
            .ok(),
        json!(done)
    );
    let again = http.mutate("bump", "k", bump("a", 4)).await;
    assert_eq!(
        (again.ok(), again.header("flower-replayed")),
        (json!(4), "true")
    );
    let report = http.report().await;
    assert_eq!(report.full_repairs, 0);
}
