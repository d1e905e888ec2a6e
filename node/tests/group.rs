//! Three nodes over loopback: followers send mutations on, keys survive the leader, and reads
//! are what their class says on every node.

mod support;

use std::time::Duration;

use flower_api::{admin::path, report::Role};
use flower_node::service::ServeSettings;
use serde_json::{Value, json};
use support::{
    group::{group, member, of, step},
    no_fence, quick,
};

const APP: &str = r#"
import { mutation, query, t, table } from "@flower/sdk";
const counters = table("counters", { name: t.text(64), value: t.int() }, { indexes: { byName: ["name"] } });
export const bump = mutation({ args: { name: t.text(64), by: t.int(1, 1000) } }, (tx, { name, by }) => {
  const row = tx.counters.byName.range({ name }).first();
  const value = (row ? row.value : 0) + by;
  if (row) tx.counters.patch(row.id, { value });
  else tx.counters.insert({ name, value });
  return value;
});
export const read = query({ args: { name: t.text(64) } },
  (db, { name }) => { const row = db.counters.byName.range({ name }).first(); return row ? row.value : 0; });
"#;

fn bump(by: u64) -> Value {
    json!({ "name": "a", "by": by })
}

/// A client of one node that accepts no failed call.
async fn forty_bumps(http: support::Http, client: usize) {
    for i in 0..40 {
        let key = format!("c{client}-{i}");
        http.mutate("bump", &key, bump(1)).await.ok();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What a follower is asked that only a leader does, while the leader cannot be reached.
async fn followers_refuse(nodes: &[support::TestNode]) {
    // What a follower does not lead it does not do.
    let refused = nodes[1].http.admin_post(path::FORMED, &no_fence()).await;
    assert_eq!(refused.problem(), (409, "not-leader".into()));
    // A bundle it sends on, and says so when the leader cannot be reached.
    let refused = nodes[1].http.deploy(APP).await;
    assert_eq!(refused.problem(), (503, "not-leader".into()));
    let leader = member(&nodes[0]).to_string();
    assert!(
        refused.json()["detail"].to_string().contains(&leader),
        "{refused:?}"
    );
    // A call that was sent on goes no further.
    let call = json!({ "fence": {}, "source": APP }).to_string();
    let (to, sent_on) = (&nodes[1].http, [("flower-forwarded-by", "1")]);
    let refused = to
        .send(to.admin, http::Method::POST, path::DEPLOY, &sent_on, call)
        .await;
    assert_eq!(refused.problem(), (409, "not-leader".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_node_takes_calls_and_keys_survive_the_leader() {
    let serve = ServeSettings {
        // No port: whom a follower looks for is not there.
        admin_above_peer: -70_000,
        ..quick()
    };
    let mut nodes = group(APP, serve).await;
    for (i, node) in nodes.iter().enumerate() {
        let key = format!("k{i}");
        let got = node.http.mutate("bump", &key, bump(1)).await;
        assert_eq!(got.ok(), json!(i + 1), "node {i}");
        assert_eq!(got.header("idempotency-key"), key);
        // Read your writes on another node, and the newest state on any.
        let min = got.header("flower-revision");
        let other = &nodes[(i + 1) % 3].http;
        let class = format!("session; min={min}");
        let args = json!({ "name": "a" });
        assert_eq!(
            other.query("read", &class, args.clone()).await.ok(),
            json!(i + 1)
        );
        assert_eq!(other.query("read", "fresh", args).await.ok(), json!(i + 1));
        let receipt = other.get(&format!("/v1/p/_/receipts/{key}")).await.ok();
        assert_eq!(receipt["result"], json!(i + 1));
    }
    followers_refuse(&nodes).await;

    // Clients of the followers see no failed call while leadership moves and the old leader
    // stops.
    let clients: Vec<_> = (0..4)
        .map(|c| tokio::spawn(forty_bumps(nodes[1 + c % 2].http.clone(), c)))
        .collect();
    let next = member(&nodes[1]);
    step(&nodes[0], path::TRANSFER, &of(next)).await;
    let old = nodes.remove(0);
    old.running.stop().await.unwrap();
    for client in clients {
        client.await.unwrap();
    }
    let http = &nodes[1].http;
    assert_eq!(
        http.query("read", "fresh", json!({ "name": "a" }))
            .await
            .ok(),
        json!(163)
    );
    let again = http.mutate("bump", "k0", bump(1)).await;
    assert_eq!(
        (again.ok(), again.header("flower-replayed")),
        (json!(1), "true")
    );

    // Without a majority nothing is acknowledged, and the reason is told.
    let report = nodes[1].http.report().await;
    assert_eq!(report.role, Role::Follower);
    nodes.remove(0).running.stop().await.unwrap();
    let alone = [("flower-deadline-ms", "1500")];
    let alone = nodes[0]
        .http
        .send(
            nodes[0].http.calls,
            http::Method::POST,
            "/v1/p/_/m/bump",
            &alone,
            bump(1).to_string(),
        )
        .await;
    // It may have been given the leadership of a majority that is gone: then its entry waits.
    let told = alone.problem();
    let expected = [(503, "no-quorum"), (504, "timeout")].map(|(s, c)| (s, c.to_owned()));
    assert!(expected.contains(&told), "{told:?}");
    let stale = nodes[0]
        .http
        .query("read", "local", json!({ "name": "a" }))
        .await;
    assert_eq!(stale.ok(), json!(163), "local reads go on");
}
