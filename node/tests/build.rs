//! A deployment whose derived values and index are built over rows that exist: the application
//! that runs goes on writing, the leadership moves in the middle and the old leader stops.

mod support;

use flower_api::admin::path;
use serde_json::{Value, json};
use support::{
    group::{group, member, of, step},
    quick, until,
};

/// Rows written by one call, and calls.
const ROWS: (u64, u64) = (250, 48);

const APP: &str = r#"
import { derived, mutation, query, t, table } from "@flower/sdk";
const parts = table("parts", { kind: t.int(), cents: t.int() }, { indexes: { byKind: ["kind"] } });
export const fill = mutation({ args: { from: t.int(), rows: t.int() } }, (tx, { from, rows }) => {
  for (let n = from; n < from + rows; n++) tx.parts.insert({ kind: n % 100, cents: n });
});
export const count = query({ args: {} }, (db) => db.parts.byKind.range().count());
"#;

/// Prices of parts, and of their kinds, with an index over rows and one over values.
fn priced() -> String {
    format!(
        "{}\n{}",
        APP.replace(
            r#"byKind: ["kind"] }"#,
            r#"byKind: ["kind"], byCents: ["cents"] }"#
        ),
        r#"
const price = derived("price", { part: t.id("parts") }, t.int(),
  (db, { part }) => db.parts.get(part).cents + 1, { materialize: { each: parts }, index: "byValue" });
export const rows = query({ args: {} }, (db) => ({
  count: db.parts.byCents.range().count(),
  last: db.parts.byCents.range().desc().first().cents,
}));
export const prices = query({ args: {} }, (db) => ({
  count: db.price.byValue.range().count(),
  last: db.price.byValue.range().desc().first().value,
}));
"#
    )
}

async fn fill(http: &support::Http, from: u64, rows: u64) {
    let args = json!({ "from": from, "rows": rows });
    let key = format!("fill-{from}");
    http.mutate("fill", &key, args).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_build_outlives_its_leader_and_refuses_no_write() {
    let mut nodes = group(APP, quick()).await;
    for call in 0..ROWS.1 {
        fill(&nodes[0].http, call * ROWS.0, ROWS.0).await;
    }
    let before = nodes[0].http.report().await.deployment.unwrap();
    let deploying = nodes[0].http.clone();
    let deploying = tokio::spawn(async move { deploying.deploy(&priced()).await });
    until("the build is seen", async || {
        let deployment = nodes[0].http.report().await.deployment.unwrap();
        deployment.build.is_some_and(|build| build.done > 0)
    })
    .await;
    step(&nodes[0], path::TRANSFER, &of(member(&nodes[1]))).await;
    let mut rows = ROWS.0 * ROWS.1;
    let mut seen = 0;
    let hash = loop {
        // No call fails, whoever leads.
        fill(&nodes[1].http, rows, 1).await;
        rows += 1;
        let deployment = nodes[1].http.report().await.deployment.unwrap();
        assert_eq!(deployment.failed_build, None);
        match deployment.build {
            Some(build) => {
                assert_eq!(deployment.hash, before.hash, "the old one serves");
                assert!(build.done >= seen, "it goes on where it was");
                seen = build.done;
            }
            None => break deployment.hash,
        }
    };
    assert_ne!(hash, before.hash);
    // Whoever waited got an answer: that it is active, or how far it was.
    let answer = deploying.await.unwrap();
    assert!(
        [200, 503, 504].contains(&answer.status.as_u16()),
        "{answer:?}"
    );
    nodes.remove(0).running.stop().await.unwrap();
    for node in &nodes {
        for (query, last) in [("rows", rows - 1), ("prices", rows)] {
            let got: Value = node.http.query(query, "fresh", json!({})).await.ok();
            assert_eq!(got, json!({ "count": rows, "last": last }), "{query}");
        }
    }
    // The same again is there already.
    until("somebody leads", async || {
        let again = nodes[0].http.deploy(&priced()).await;
        again.status == 200 && again.json()["changed"] == json!(false)
    })
    .await;
}
