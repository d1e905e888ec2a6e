//! A build goes on whoever is killed: three processes, the leader ended without warning at
//! several points of a build, and its successor after it. No write is refused meanwhile, and an
//! evaluator that shares no code with the engine agrees with every cell in the end.

mod common;

use std::{
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use common::{
    Node, eventually,
    group::{form, leader, leads, start, wait, write_until},
    json,
};
use flower_api::{
    admin::{AdminApi, Deploy},
    report::{BuildInfo, Report},
};
use flower_node::admin_client::AdminClient;

/// Rows of each of the calls that fill the table, and how many calls.
const ROWS: (u64, u64) = (250, 16);

const APP: &str = r#"
import { derived, mutation, query, t, table } from "@flower/sdk";
const parts = table("parts", { kind: t.int(), cents: t.int() }, { indexes: { byKind: ["kind"] } });
export const fill = mutation({ args: { from: t.int(), rows: t.int() } }, (tx, { from, rows }) => {
  for (let n = from; n < from + rows; n++) tx.parts.insert({ kind: n % 100, cents: n });
});
export const add = mutation({ args: {} }, (tx) => { tx.parts.insert({ kind: 1000, cents: 1 }); });
export const added = query({ args: {} }, (db) => db.parts.byKind.range({ kind: 1000 }).count());
"#;

/// A value of each part that takes its time, and one of each kind over them.
fn priced(factor: u64) -> String {
    format!(
        "{APP}
const price = derived('price', {{ part: t.id('parts') }}, t.int(), (db, {{ part }}) => {{
  let sum = 0;
  for (let n = 0; n < 50000; n++) sum = (sum * 31 + n) % 1000003;
  return db.parts.get(part).cents * {factor} + sum;
}}, {{ materialize: {{ each: parts }}, index: 'byValue' }});
export const prices = query({{ args: {{}} }}, (db) => db.price.byValue.range().count());
"
    )
}

fn deploy(node: &Node, source: String) {
    let call = Deploy {
        fence: serde_json::from_value(serde_json::json!({})).unwrap(),
        source,
        managed_by: None,
    };
    // Whoever waits may be told of progress, or lose the node that it waits for.
    let _ = wait(AdminClient::default().deploy(&node.admin(), &call));
}

/// The build, once it is past a share of its rows, as a node that runs sees it.
fn past(node: &Node, percent: u64) -> BuildInfo {
    let build = |report: &Report| report.deployment.as_ref().and_then(|d| d.build.clone());
    let is_past = |b: &BuildInfo| b.done > 0 && b.done * 100 >= b.total * percent;
    let report = node.report("the build is seen", |r| {
        build(r).is_some_and(|b| is_past(&b))
    });
    build(&report).unwrap()
}

#[test]
fn a_build_outlives_two_leaders_killed_at_any_point() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = start(dir.path());
    form(&nodes, APP);
    for call in 0..ROWS.1 {
        let args = format!(r#"{{"from":{},"rows":{}}}"#, call * ROWS.0, ROWS.0);
        json(&["call", "fill", &args, "--url", &nodes[0].client()]);
    }
    let done = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = nodes
        .iter()
        .map(|node| (node.client(), done.clone()))
        .map(|(url, done)| std::thread::spawn(move || write_until(&url, "add", "{}", &done)))
        .collect();
    for (round, points) in [[0, 40], [15, 70]].into_iter().enumerate() {
        let source = priced(round as u64 + 1);
        let at = leader(&nodes, &[0, 1, 2]);
        let before = leads(&nodes[at]).deployment.unwrap().hash;
        std::thread::scope(|threads| {
            let leading = &nodes[at];
            threads.spawn(|| deploy(leading, source));
            past(&nodes[(at + 1) % 3], 0);
        });
        for point in points {
            let killed = leader(&nodes, &[0, 1, 2]);
            let others: Vec<usize> = (0..3).filter(|n| *n != killed).collect();
            let seen = past(&nodes[others[0]], point);
            nodes[killed].kill();
            let next = leader(&nodes, &others);
            // From where it was, if it has not ended by now.
            let report = nodes[next].report("it knows", |r| r.deployment.is_some());
            if let Some(build) = report.deployment.and_then(|d| d.build) {
                assert!(build.done >= seen.done, "{seen} and then {build}");
            }
            nodes[killed].restart(&[]);
            nodes[killed].report("it is back", |r| r.ready);
        }
        for node in &nodes {
            let report = node.report("the build ends", |r| {
                r.deployment.as_ref().is_some_and(|d| d.build.is_none())
            });
            let deployment = report.deployment.unwrap();
            assert_eq!(deployment.failed_build, None);
            assert_ne!(deployment.hash, before);
        }
    }
    done.store(true, Ordering::Relaxed);
    let added: u64 = writers.into_iter().map(|w| w.join().unwrap()).sum();
    assert!(added > 0);
    for node in &nodes {
        for (query, count) in [("added", added), ("prices", ROWS.0 * ROWS.1 + added)] {
            let read = json(&["query", query, "{}", "--url", &node.client()]);
            assert_eq!(read["result"], count, "{query}: {read}");
        }
    }
    agreed(&nodes, dir.path());
}

/// Equal states on all nodes, and the reference agrees with an export.
fn agreed(nodes: &[Node], dir: &Path) {
    eventually("equal states", || {
        let reports = nodes.iter().map(|node| node.report("it answers", |_| true));
        let states: Vec<_> = reports
            .map(|r| (r.positions.applied, r.state_checksum))
            .collect();
        states.iter().all(|s| *s == states[0]).then_some(())
    });
    let file = dir.join("export.ndjson");
    let file = file.to_str().unwrap();
    let admin = nodes[leader(nodes, &[0, 1, 2])].admin().0;
    json(&["export", "--cells", file, "--admin-url", &admin]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk/reference/check.mjs");
    let checked = Command::new("node").arg(script).arg(file).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(
        checked.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&checked.stderr)
    );
    assert!(!said.starts_with("0 cells"), "nothing was compared: {said}");
}
