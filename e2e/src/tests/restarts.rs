//! A template change and a `kubectl rollout restart` go through the pods one at a time, followers
//! first and the leader last, and no call fails.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Test;
use crate::cluster::{Scene, condition};
use crate::flower::Flower;
use crate::progress::wait_for;
use crate::steady::Steady;

/// See the file's head.
pub const TEST: Test = Test {
    name: "restarts",
    in_ci: true,
    what: "a template change and a rollout restart: one at a time, the leader last, no failed call",
    run: |scene| Box::pin(run(scene)),
};

async fn run(scene: Scene) -> Result<String> {
    let flower = Flower::new(&scene, "db");
    flower.apply(json!({"replicas": 3})).await?;
    flower.ready(Duration::from_secs(180)).await?;
    let steady = Steady::start(&flower).await?;
    let mut orders = Vec::new();
    for by_hand in [false, true] {
        let (leader, _) = flower.wait_leader().await?;
        let before = uids(&flower).await?;
        if by_hand {
            let set = format!("statefulset/{}", flower.set());
            scene
                .cluster
                .kubectl(&["-n", &scene.namespace, "rollout", "restart", &set])
                .await?;
        } else {
            flower
                .change(json!({"pod": {"annotations": {"e2e.flowerdb.dev/round": "1"}}}))
                .await?;
        }
        let order = watch_restarts(&flower, &before).await?;
        ensure!(
            order.last() == Some(&leader),
            "{leader} led and the order was {order:?}"
        );
        flower.ready(Duration::from_secs(120)).await?;
        orders.push(order.join(" → "));
    }
    let report = steady.finish().await?;
    Ok(format!("{}; {report}", orders.join("; then ")))
}

/// Waits until every pod is another one and ready; returns the order. Never may two be down.
pub(super) async fn watch_restarts(
    flower: &Flower,
    before: &BTreeMap<String, Value>,
) -> Result<Vec<String>> {
    let mut order: Vec<String> = Vec::new();
    let begun = std::time::Instant::now();
    loop {
        let pods = flower.pods().await?;
        let mut down = before.len() - pods.len().min(before.len());
        let mut renewed = 0;
        for pod in &pods {
            let name = pod["metadata"]["name"]
                .as_str()
                .context("a pod without name")?;
            let ready =
                condition(pod, "Ready").is_some_and(|condition| condition["status"] == "True");
            let going = !pod["metadata"]["deletionTimestamp"].is_null();
            down += usize::from(!ready || going);
            let other = before.get(name) != Some(&pod["metadata"]["uid"]);
            if (other || going) && !order.iter().any(|known| known == name) {
                order.push(name.to_owned());
            }
            renewed += usize::from(other && ready && !going);
        }
        ensure!(down <= 1, "{down} pods are down at once, after {order:?}");
        if renewed == before.len() {
            return Ok(order);
        }
        ensure!(
            begun.elapsed() < Duration::from_secs(300),
            "not within 5 minutes; so far {order:?}"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The uid of each pod, once there are three.
pub(super) async fn uids(flower: &Flower) -> Result<BTreeMap<String, Value>> {
    wait_for("three pods", Duration::from_secs(30), || async {
        let pods = flower.pods().await?;
        ensure!(pods.len() == 3, "there are {}", pods.len());
        let uid = |pod: &Value| {
            (
                pod["metadata"]["name"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
                pod["metadata"]["uid"].clone(),
            )
        };
        Ok(pods.iter().map(uid).collect())
    })
    .await
}
