//! A FlowerCluster is applied and grows to three voters on three nodes.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Test;
use crate::cluster::{Scene, condition};
use crate::flower::Flower;
use crate::progress::seconds;
use crate::workload::Caller;

/// See the file's head.
pub const TEST: Test = Test {
    name: "grows",
    in_ci: true,
    what: "apply → Ready: three voters on three nodes, one leader, a query through the Service",
    run: |scene| Box::pin(run(scene)),
};

async fn run(scene: Scene) -> Result<String> {
    let flower = Flower::new(&scene, "db");
    let begun = Instant::now();
    flower.apply(json!({"replicas": 3})).await?;
    let object = flower.ready(Duration::from_secs(180)).await?;
    let took = begun.elapsed();

    let members = object["status"]["groups"][0]["members"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let role = |wanted: &str| {
        members
            .iter()
            .filter(|member| {
                member["role"]
                    .as_str()
                    .is_some_and(|role| role.eq_ignore_ascii_case(wanted))
            })
            .count()
    };
    ensure!(
        members.len() == 3,
        "the status has {} members: {members:?}",
        members.len()
    );
    ensure!(
        role("leader") == 1,
        "the status has {} leaders: {members:?}",
        role("leader")
    );

    let (leader, report) = flower.leader().await?;
    let voters = report
        .configuration
        .map(|configuration| configuration.voters)
        .unwrap_or_default();
    ensure!(
        voters.len() == 1 && voters[0].len() == 3,
        "the leader's configuration has voters {voters:?}"
    );
    let pods = flower.pods().await?;
    let nodes: BTreeSet<_> = pods
        .iter()
        .filter_map(|pod| pod["spec"]["nodeName"].as_str())
        .collect();
    ensure!(nodes.len() == 3, "the pods are on {nodes:?}");

    let caller = Caller::of(&flower).await?;
    let answer = caller.query("ping", "fresh", &json!({})).await?;
    ensure!(answer == "pong", "the query answered {answer}");
    Ok(format!(
        "Ready after {}, the slowest pod's own start took {}; leader {leader}, one voter on each of {nodes:?}",
        seconds(took),
        slowest_start(&pods)?
    ))
}

/// The longest time from a pod's creation to its readiness.
fn slowest_start(pods: &[Value]) -> Result<String> {
    let mut slowest = Duration::ZERO;
    for pod in pods {
        let made: Timestamp = pod["metadata"]["creationTimestamp"]
            .as_str()
            .unwrap_or_default()
            .parse()?;
        let ready =
            condition(pod, "Ready").and_then(|condition| condition["lastTransitionTime"].as_str());
        let ready: Timestamp = ready.unwrap_or_default().parse()?;
        slowest = slowest.max(Duration::try_from(ready.duration_since(made)).unwrap_or_default());
    }
    Ok(seconds(slowest))
}
