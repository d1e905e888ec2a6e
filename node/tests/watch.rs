//! Watches and the query cache over loopback: what clients see, and that no client takes
//! anything from the others.

mod support;

use std::{sync::Arc, time::Duration};

use flower_api::limits::KIB;
use flower_node::{config::WatchLimits, service::ServeSettings};
use http::Method;
use serde_json::{Value, json};
use support::{Http, TestNode, Watch, quick, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const APP: &str = r#"
import { fault, mutation, query, t, table } from "@flower/sdk";

table("counters", { name: t.text(64), value: t.int() }, { indexes: { byName: ["name"] } });

export const bump = mutation(
  { args: { name: t.text(64), by: t.int() }, returns: t.int() },
  (tx, { name, by }) => {
    const row = tx.counters.byName.range({ name }).first();
    const value = (row ? row.value : 0) + by;
    if (row) tx.counters.patch(row.id, { value });
    else tx.counters.insert({ name, value });
    return value;
  },
);
export const read = query({ args: { name: t.text(64) } },
  (db, { name }) => { const row = db.counters.byName.range({ name }).first(); return row ? row.value : 0; });
export const must = query({ args: { name: t.text(64) }, errors: { gone: 404 } },
  (db, { name }) => { const row = db.counters.byName.range({ name }).first(); if (!row) throw fault("gone"); return row.value; });
export const large = query({ args: { name: t.text(64), size: t.int() } },
  (db, { name, size }) => { const row = db.counters.byName.range({ name }).first(); return (row ? row.value : 0) + "x".repeat(size); });
export const clock = query({ args: { name: t.text(64) } },
  (db, { name }) => [db.counters.byName.range({ name }).count(), db.now]);
"#;

async fn bump(http: &Http, name: &str) -> u64 {
    let got = http
        .mutate("bump", "", json!({ "name": name, "by": 1 }))
        .await;
    got.ok();
    got.header("flower-revision").parse().unwrap()
}

fn read(id: &str, name: &str) -> Value {
    json!({ "id": id, "name": "read", "args": { "name": name } })
}

fn with(limits: WatchLimits) -> ServeSettings {
    ServeSettings {
        watches: limits,
        ..quick()
    }
}

/// Changes of a step, by id.
fn changes(step: &support::Event) -> Vec<(String, Value)> {
    let list = step.data["changes"].as_array().unwrap();
    let one = |c: &Value| (c["q"].as_str().unwrap().to_owned(), c["value"].clone());
    list.iter().map(one).collect()
}

fn etags(step: &support::Event) -> Vec<String> {
    let list = step.data["changes"].as_array().unwrap();
    list.iter()
        .map(|c| c["etag"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_is_kept_until_something_that_it_read_is_written() {
    let node = TestNode::serving(APP, quick()).await;
    let http = &node.http;
    bump(http, "a").await;
    let evaluations = async || http.metric("flower_query_evaluations_total").await;
    let args = json!({ "name": "a" });
    let first = http.query("read", "local", args.clone()).await;
    assert_eq!(first.ok(), json!(1));
    let tag = first.header("etag").to_owned();
    assert!(tag.starts_with('"') && tag.len() == 34, "{tag}");
    assert_eq!(first.header("cache-control"), "private, no-cache");
    assert_eq!(first.header("vary"), "authorization, flower-read");
    let before = evaluations().await;
    // Another row, the same arguments otherwise written, every class: the result holds.
    let revision = bump(http, "b").await;
    for class in [
        "local",
        "fresh",
        "bounded; ms=60000",
        &format!("session; min={revision}"),
    ] {
        let got = http
            .send(
                http.calls,
                Method::POST,
                "/v1/p/_/q/read",
                &[("flower-read", class)],
                " {\"name\" : \"\\u0061\"}",
            )
            .await;
        assert_eq!((got.ok(), got.header("etag")), (json!(1), &*tag), "{class}");
        assert_eq!(got.header("flower-revision"), revision.to_string());
        assert_eq!(got.header("flower-read-served"), class);
    }
    assert_eq!(evaluations().await, before);
    assert!(http.metric("flower_query_cache_hits_total").await >= 4);
    assert!(http.metric("flower_query_cache_bytes").await > 0);

    // What the client has already is not sent again.
    let get = "/v1/p/_/q/read?args=%7B%22name%22%3A%22a%22%7D";
    let named = async |value: &str| {
        let headers = [("if-none-match", value)];
        http.send(http.calls, Method::GET, get, &headers, "").await
    };
    let same = named(&format!("\"x\", W/{tag}")).await;
    assert_eq!((same.status.as_u16(), same.body.len()), (304, 0));
    assert_eq!(same.header("etag"), tag);
    assert_eq!(same.header("flower-revision"), revision.to_string());
    for other in [
        "\"x\"",
        "garbage",
        "\"",
        "W/",
        ",,",
        &tag[1..],
        &"z".repeat(4_000),
    ] {
        assert_eq!(named(other).await.ok(), json!(1), "{other}");
    }
    bump(http, "a").await;
    let changed = named(&tag).await;
    assert_eq!(changed.ok(), json!(2));
    assert_ne!(changed.header("etag"), tag);
    assert_eq!(evaluations().await, before + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_time_went_into_holds_for_nobody_else() {
    let node = TestNode::serving(APP, quick()).await;
    let http = &node.http;
    let evaluations = async || http.metric("flower_query_evaluations_total").await;
    let before = evaluations().await;
    for _ in 0..3 {
        let got = http.query("clock", "local", json!({ "name": "a" })).await;
        got.ok();
    }
    assert_eq!(evaluations().await, before + 3);
    // Arguments that are refused, and those that cannot be.
    let wrong = http.query("read", "local", json!({ "name": 1 })).await;
    assert_eq!(wrong.problem(), (400, "invalid-args".into()));
    let deep = format!("{{\"name\":{}1{}}}", "[".repeat(300), "]".repeat(300));
    let deep = http
        .send(http.calls, Method::POST, "/v1/p/_/q/read", &[], deep)
        .await;
    assert_eq!(deep.problem(), (400, "malformed".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_tells_what_changed_and_nothing_else() {
    let node = TestNode::serving(APP, quick()).await;
    let http = &node.http;
    let first = bump(http, "a").await;
    let gone = json!({ "id": "gone", "name": "must", "args": { "name": "c" } });
    let mut watch = http
        .watch(json!([
            read("a", "a"),
            read("b", "b"),
            read("again", "a"),
            gone
        ]))
        .await;
    assert_eq!(watch.headers["content-type"], "text/event-stream");
    let open = watch.next().await.unwrap();
    assert_eq!((&*open.name, open.id), ("open", None));
    let id = open.data["watch"].as_str().unwrap().to_owned();
    let error = watch.next().await.unwrap();
    assert_eq!((&*error.name, &error.data["q"]), ("error", &json!("gone")));
    assert_eq!(error.data["problem"]["code"], "fault:gone");
    let step = watch.next().await.unwrap();
    assert_eq!((&*step.name, step.id), ("step", Some(first)));
    assert_eq!(step.data["from"], 0);
    let expected = [("a", 1), ("again", 1), ("b", 0)].map(|(q, v)| (q.to_owned(), json!(v)));
    let mut told = changes(&step);
    told.sort_by(|x, y| x.0.cmp(&y.0));
    assert_eq!(told, expected);

    let second = bump(http, "b").await;
    let step = watch.news().await;
    assert_eq!(changes(&step), [("b".to_owned(), json!(1))]);
    assert_eq!((step.id, &step.data["from"]), (Some(second), &json!(first)));
    // The query that had no result gets one, by what it had read.
    let third = bump(http, "c").await;
    let step = watch.news().await;
    assert_eq!(changes(&step), [("gone".to_owned(), json!(1))]);
    assert_eq!(step.id, Some(third));

    // Written, and read by nobody here; written back to what it was.
    bump(http, "z").await;
    http.mutate("bump", "", json!({ "name": "a", "by": 0 }))
        .await
        .ok();
    // Another query, one less, and one under an id that is free again.
    let change = json!({ "remove": ["again", "b"], "add": [read("b", "z"), read("new", "b")] });
    let patched = http.change_watch(&id, change).await.ok();
    assert_eq!(patched, json!({ "watch": id, "queries": 4 }));
    let step = watch.news().await;
    let mut told = changes(&step);
    told.sort_by(|x, y| x.0.cmp(&y.0));
    assert_eq!(
        told,
        [("b".to_owned(), json!(1)), ("new".to_owned(), json!(1))]
    );
    assert_eq!(http.metric("flower_watches").await, 1);
    assert_eq!(http.metric("flower_watched_queries").await, 4);
    assert!(http.metric("flower_watch_steps_total").await >= 4);
    assert!(http.metric("flower_watch_bytes").await > 0);
    drop(watch);
    until("the watch is closed", async || {
        http.metric("flower_watches").await == 0
    })
    .await;
    let late = http.change_watch(&id, json!({})).await;
    assert_eq!(late.problem(), (410, "watch-gone".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_begins_where_the_one_before_it_ended() {
    let node = TestNode::serving(APP, quick()).await;
    let http = &node.http;
    let mut told = bump(http, "a").await;
    let mut watch = http.watch(json!([read("a", "a")])).await;
    let step = watch.news().await;
    assert_eq!((&*step.name, step.id), ("open", None));
    assert_eq!(watch.news().await.id, Some(told));
    // Read, and written back to what it was: the watch moves on, and its client does not hear.
    let evaluations = async || http.metric("flower_query_evaluations_total").await;
    let before = evaluations().await;
    let nothing = json!({ "name": "a", "by": 0 });
    http.mutate("bump", "", nothing).await.ok();
    let evaluated = async || evaluations().await > before;
    until("it is evaluated again", evaluated).await;
    bump(http, "a").await;
    let step = loop {
        let event = watch.next().await.unwrap();
        if event.name == "step" {
            break event;
        }
        told = event.id.unwrap_or(told);
    };
    assert_eq!(step.data["from"], told);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resumed_watch_is_told_what_it_does_not_have() {
    let node = TestNode::serving(APP, quick()).await;
    let http = &node.http;
    let first = bump(http, "a").await;
    let mut watch = http.watch(json!([read("a", "a"), read("b", "b")])).await;
    let step = watch.find("step").await;
    let mut tags: Vec<(String, String)> = changes(&step)
        .into_iter()
        .map(|(q, _)| q)
        .zip(etags(&step))
        .collect();
    tags.sort();
    drop(watch);
    let resume = |last: u64, a: &str, b: &str| {
        let mut queries = [read("a", "a"), read("b", "b")];
        queries[0]["etag"] = json!(a);
        queries[1]["etag"] = json!(b);
        let body = json!({ "queries": queries }).to_string();
        let last = last.to_string();
        async move { http.try_watch(&[("last-event-id", &last)], &body).await }
    };
    // Nothing has changed: the first frame only says so.
    let mut same = resume(first, &tags[0].1, &tags[1].1)
        .await
        .unwrap_or_else(|_| panic!());
    assert_eq!(same.next().await.unwrap().data["revision"], json!(first));
    let frame = same.next().await.unwrap();
    assert_eq!((&*frame.name, frame.id), ("same", Some(first)));
    // One has.
    let second = bump(http, "b").await;
    let mut one = resume(first, &tags[0].1, &tags[1].1)
        .await
        .unwrap_or_else(|_| panic!());
    let step = one.find("step").await;
    assert_eq!(changes(&step), [("b".to_owned(), json!(1))]);
    assert_eq!((&step.data["from"], step.id), (&json!(first), Some(second)));
    // Etags that are none: everything is sent.
    for bad in ["", "\"", "W/\"\"", "\"zz\"", "null", &"x".repeat(10_000)] {
        let mut all = resume(first, bad, bad)
            .await
            .unwrap_or_else(|_| panic!("{bad}"));
        assert_eq!(changes(&all.find("step").await).len(), 2, "{bad}");
    }
    // A revision that is not there yet is waited for, and not for ever.
    let body = json!({ "queries": [read("a", "a")] }).to_string();
    let ahead = (second + 1).to_string();
    let headers = [("last-event-id", &*ahead), ("flower-deadline-ms", "300")];
    let refused = http.try_watch(&headers, &body).await.err().unwrap();
    assert_eq!(refused.problem(), (504, "timeout".into()));
    let headers = [("last-event-id", &*ahead)];
    let (opened, _) = tokio::join!(http.try_watch(&headers, &body), bump(http, "a"));
    let mut opened = opened.unwrap_or_else(|_| panic!());
    assert_eq!(
        changes(&opened.find("step").await),
        [("a".to_owned(), json!(2))]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_watch_can_be_is_refused_by_name() {
    let node = TestNode::serving(APP, quick()).await;
    let http = &node.http;
    let refused = async |headers: &[(&str, &str)], body: &str| {
        let got = http
            .try_watch(headers, body)
            .await
            .err()
            .expect("a refusal");
        (got.problem(), got.json())
    };
    let many: Vec<Value> = (0..1_001).map(|i| read(&i.to_string(), "a")).collect();
    let (problem, told) = refused(&[], &json!({ "queries": many }).to_string()).await;
    assert_eq!(problem, (413, "too-large".into()));
    assert_eq!(told["setting"], "FLOWER_LIMIT_WATCH_QUERIES");
    assert!(told["detail"].as_str().unwrap().contains("1000"), "{told}");
    let long = "x".repeat(129);
    for bad in [
        "",
        "{}",
        "[]",
        "{\"queries\":1}",
        "{\"queries\":[{}]}",
        "{\"queries\":[{\"name\":\"read\",\"etag\":7}]}",
        "{\"queries\":[{\"name\":\"read\",\"id\":\"\"}]}",
        "{\"queries\":[{\"name\":\"read\",\"id\":\"a\"},{\"name\":\"read\",\"id\":\"a\"}]}",
        "{\"queries\":[],\"x\":1}",
        &format!("{{\"queries\":[{{\"name\":\"read\",\"id\":\"{long}\"}}]}}"),
    ] {
        assert_eq!(
            refused(&[], bad).await.0,
            (400, "malformed".into()),
            "{bad}"
        );
    }
    let name = refused(&[], "{\"queries\":[{\"name\":\"a/b\"}]}").await.0;
    assert_eq!(name, (404, "unknown-function".into()));
    for bad in ["", "x", "-1", "1.5", "99999999999999999999"] {
        let (problem, _) = refused(&[("last-event-id", bad)], "{\"queries\":[]}").await;
        assert_eq!(problem, (400, "malformed".into()), "{bad}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_refused_by_name_and_the_watch_lives_on() {
    let node = TestNode::serving(APP, quick()).await;
    let http = &node.http;
    // A watch of nobody's, of another member's, and no id at all.
    let mut watch = http.watch(json!([])).await;
    let id = watch.next().await.unwrap().data["watch"]
        .as_str()
        .unwrap()
        .to_owned();
    let (member, number) = id.split_once('-').unwrap();
    let other = "0".repeat(32);
    for foreign in [
        &format!("{member}-{other}"),
        &format!("{:016x}-{number}", 7),
        "x",
        &"0".repeat(49),
        &format!("{id}0"),
    ] {
        let got = http.change_watch(foreign, json!({})).await;
        assert_eq!(got.problem(), (410, "watch-gone".into()), "{foreign}");
    }
    let change = json!({ "add": [{ "name": "read", "args": { "name": "a" } }] });
    assert_eq!(
        http.change_watch(&id, change).await.problem().1,
        "malformed"
    );
    let change = json!({ "remove": ["nope"] });
    assert_eq!(
        http.change_watch(&id, change).await.problem().1,
        "malformed"
    );
    let many: Vec<Value> = (0..1_001).map(|i| read(&i.to_string(), "a")).collect();
    let got = http.change_watch(&id, json!({ "add": many })).await;
    assert_eq!(got.problem(), (413, "too-large".into()));
    // It lives on, empty.
    assert_eq!(watch.next().await.unwrap().name, "same");
    // Functions and arguments that are not there end in an error of that query alone.
    let mut watch = http
        .watch(json!([{ "name": "nope" }, { "name": "read" }, read("a", "a")]))
        .await;
    let codes = [watch.find("error").await, watch.find("error").await];
    let codes: Vec<_> = codes
        .iter()
        .map(|e| e.data["problem"]["code"].clone())
        .collect();
    assert!(codes.contains(&json!("unknown-function")) && codes.contains(&json!("invalid-args")));
    assert_eq!(
        changes(&watch.find("step").await),
        [("a".to_owned(), json!(0))]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_query_is_evaluated_once_for_all_its_watchers() {
    let node = TestNode::serving(APP, quick()).await;
    let http = &node.http;
    let mut watches = Vec::new();
    for _ in 0..20 {
        let mut watch = http.watch(json!([read("a", "a"), read("b", "b")])).await;
        watch.find("step").await;
        watches.push(watch);
    }
    let before = http.metric("flower_query_evaluations_total").await;
    assert_eq!(http.metric("flower_watched_queries").await, 2);
    let revision = bump(http, "a").await;
    for watch in &mut watches {
        let step = watch.news().await;
        assert_eq!(
            (step.id, changes(&step)),
            (Some(revision), vec![("a".to_owned(), json!(1))])
        );
    }
    // Written, with the same result: evaluated, and told to nobody.
    http.mutate("bump", "", json!({ "name": "a", "by": 0 }))
        .await
        .ok();
    until("it is evaluated", async || {
        http.metric("flower_query_evaluations_total").await == before + 2
    })
    .await;
    let steps = http.metric("flower_watch_steps_total").await;
    bump(http, "nobody's").await;
    assert_eq!(
        http.query("read", "local", json!({ "name": "a" }))
            .await
            .ok(),
        json!(1)
    );
    assert_eq!(
        http.metric("flower_query_evaluations_total").await,
        before + 2
    );
    assert_eq!(http.metric("flower_watch_steps_total").await, steps);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_follows_the_deployment_and_says_that_it_lives() {
    let limits = WatchLimits {
        heartbeat_ms: 100,
        ..WatchLimits::default()
    };
    let node = TestNode::serving(APP, with(limits)).await;
    let http = &node.http;
    let mut watch = http
        .watch(json!([read("a", "a"), { "id": "must", "name": "must", "args": { "name": "a" } }]))
        .await;
    watch.find("step").await;
    let revision = bump(http, "z").await;
    loop {
        let same = watch.next().await.unwrap();
        assert_eq!(same.name, "same");
        if same.id == Some(revision) {
            break;
        }
    }
    bump(http, "a").await;
    assert_eq!(changes(&watch.news().await).len(), 2);
    let next = APP
        .replace("export const must", "export const other")
        .replace(
            "row ? row.value : 0; });\nexport",
            "row ? -row.value : 0; });\nexport",
        );
    http.deploy(&next).await.ok();
    let reload = watch.news().await;
    assert_eq!(reload.name, "reload");
    assert!(!reload.data["deployment"].as_str().unwrap().is_empty());
    let error = watch.news().await;
    assert_eq!(
        (&error.data["q"], &error.data["problem"]["code"]),
        (&json!("must"), &json!("unknown-function"))
    );
    assert_eq!(changes(&watch.news().await), [("a".to_owned(), json!(-1))]);
}

/// A client that asks and never reads.
async fn deaf(http: &Http, queries: &Value) -> tokio::net::TcpStream {
    let body = json!({ "queries": queries }).to_string();
    let mut stream = tokio::net::TcpStream::connect(http.calls).await.unwrap();
    let head = format!(
        "POST /v1/p/_/watch HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_never_reads_is_let_go_and_the_others_see_everything() {
    let limits = WatchLimits {
        stall_ms: 4_000,
        step: 2_048 * KIB,
        ..WatchLimits::default()
    };
    let node = TestNode::serving(APP, with(limits)).await;
    let http = &node.http;
    let size = 900 * 1024;
    let large = json!([
        { "id": "l", "name": "large", "args": { "name": "a", "size": size } },
        { "id": "m", "name": "large", "args": { "name": "a", "size": size + 1 } },
    ]);
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(deaf(http, &large).await);
    }
    until("they are there", async || {
        http.metric("flower_watches").await >= 1
    })
    .await;
    let mut good = http.watch(json!([read("a", "a")])).await;
    assert_eq!(
        changes(&good.find("step").await),
        [("a".to_owned(), json!(0))]
    );
    for value in 1..=20 {
        bump(http, "a").await;
        let step = good.news().await;
        let seen = changes(&step)[0].1.as_u64().unwrap();
        assert_eq!(seen, value, "no step waits for another client");
        // Two frames of two steps' size, and names: whatever the clients do.
        assert!(http.metric("flower_watch_bytes").await < 5 << 20);
    }
    until("only the good one is left", async || {
        http.metric("flower_watches").await == 1
    })
    .await;
    assert_eq!(http.metric("flower_watch_bytes").await >> 20, 0);
    // Their connections are ended too: what was on its way comes, and then the end.
    for mut client in clients {
        let mut rest = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(30), client.read_to_end(&mut rest));
        let _ = read.await.expect("the connection ends");
    }
    // A step over the limit ends its watch with the setting's name.
    let huge = json!([{ "id": "h", "name": "large", "args": { "name": "a", "size": 2_100_000 } }]);
    let mut watch = http.watch(huge).await;
    let error = watch.find("error").await;
    assert_eq!(error.data["problem"]["setting"], "FLOWER_LIMIT_WATCH_STEP");
    assert!(watch.next().await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_clients_is_spread_and_the_number_of_watches_is_bounded() {
    let limits = WatchLimits {
        watches: 8,
        opens: 5,
        ..WatchLimits::default()
    };
    let node = TestNode::serving(APP, with(limits)).await;
    let http = &node.http;
    let body = json!({ "queries": [read("a", "a")] }).to_string();
    let storm = (0..60).map(|_| http.try_watch(&[], &body));
    let answers = futures::future::join_all(storm).await;
    let mut waits = Vec::new();
    let mut open: Vec<Watch> = Vec::new();
    for answer in answers {
        match answer {
            Ok(watch) => open.push(watch),
            Err(got) => {
                assert_eq!(got.problem(), (429, "overloaded".into()));
                let setting = got.json()["setting"].clone();
                if setting == "FLOWER_LIMIT_WATCHES" {
                    continue;
                }
                assert_eq!(setting, "FLOWER_LIMIT_WATCH_OPENS");
                waits.push(got.header("retry-after").parse::<u64>().unwrap());
            }
        }
    }
    assert!((5..=8).contains(&open.len()), "{}", open.len());
    assert!(waits.len() > 30);
    let (first, last) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
    assert!(
        *first <= 2 && *last >= 6,
        "they come back one after the other: {waits:?}"
    );
    for watch in &mut open {
        watch.find("step").await;
    }
    // Calls go on, and so do watches once there is room.
    bump(http, "a").await;
    for watch in &mut open {
        assert_eq!(changes(&watch.news().await), [("a".to_owned(), json!(1))]);
    }
    drop(open);
    until("there is room again", async || {
        http.try_watch(&[], &body).await.is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stops_sends_its_watches_elsewhere() {
    let node = TestNode::serving(APP, quick()).await;
    let (http, dir) = (node.http.clone(), node.dir.clone());
    let mut watch = http.watch(json!([read("a", "a")])).await;
    watch.find("step").await;
    let stopping = tokio::spawn(node.running.stop());
    let moved = watch.find("moved").await;
    assert!(moved.data["retryMs"].as_u64().unwrap() <= 250);
    assert!(watch.next().await.is_none());
    tokio::time::timeout(Duration::from_secs(20), stopping)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    // Without an application there is nothing to watch.
    drop(dir);
    let empty = TestNode::fresh(quick()).await;
    empty.bootstrap(1).await.ok();
    let refused = empty
        .http
        .try_watch(&[], "{\"queries\":[]}")
        .await
        .err()
        .unwrap();
    assert_eq!(refused.problem(), (503, "no-application".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_listed_origins_may_call() {
    let serve = ServeSettings {
        cors: "https://app.example".parse().unwrap(),
        ..quick()
    };
    let node = TestNode::serving(APP, serve).await;
    let http = &node.http;
    let path = "/v1/p/_/watch";
    let preflight = [
        ("origin", "https://app.example"),
        ("access-control-request-method", "POST"),
    ];
    let got = http
        .send(http.calls, Method::OPTIONS, path, &preflight, "")
        .await;
    assert_eq!(got.status.as_u16(), 204);
    assert_eq!(
        got.header("access-control-allow-origin"),
        "https://app.example"
    );
    assert!(
        got.header("access-control-allow-headers")
            .contains("idempotency-key")
    );
    let own = [("origin", "https://app.example")];
    let got = http
        .send(
            http.calls,
            Method::POST,
            "/v1/p/_/q/read",
            &own,
            "{\"name\":\"a\"}",
        )
        .await;
    assert_eq!(got.ok(), json!(0));
    assert!(
        got.header("access-control-expose-headers")
            .contains("flower-revision")
    );
    for origin in ["https://other.example", "null", "https://app.example.evil"] {
        let headers = [
            ("origin", origin),
            ("access-control-request-method", "POST"),
        ];
        let got = http
            .send(http.calls, Method::OPTIONS, path, &headers, "")
            .await;
        assert_eq!(got.header("access-control-allow-origin"), "", "{origin}");
    }
    // Off: nothing is added.
    let plain = TestNode::serving(APP, quick()).await;
    let got = plain
        .http
        .send(plain.http.calls, Method::OPTIONS, path, &preflight, "")
        .await;
    assert_eq!(got.problem(), (405, "method-not-allowed".into()));
    let keep: Arc<tempfile::TempDir> = plain.dir.clone();
    drop(keep);
}
