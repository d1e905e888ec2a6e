//! A node is drained while writes go on: its pod waits for it, a second drain is refused by the
//! budget, and uncordon brings the same member back.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::Test;
use crate::cluster::Scene;
use crate::flower::Flower;
use crate::progress::wait_for;
use crate::workload::Workload;

/// See the file's head.
pub const TEST: Test = Test {
    name: "drained",
    in_ci: false,
    what: "a node drained under writes: its pod waits, a second drain is refused, uncordon brings the same id back",
    run: |scene| Box::pin(run(scene)),
};

async fn run(scene: Scene) -> Result<String> {
    let flower = Flower::new(&scene, "db");
    flower.apply(json!({"replicas": 3})).await?;
    flower.ready(Duration::from_secs(180)).await?;
    let work = Workload::start(&flower, 4, Duration::from_millis(20)).await?;
    let victim = flower.pod(1);
    let member = flower.member(&victim).await?;
    let node = node_of(&scene, &victim).await?;
    let other = node_of(&scene, &flower.pod(2)).await?;

    let result = drains(&scene, &flower, &work, &victim, &node, &other).await;
    for node in [&node, &other] {
        scene.cluster.kubectl(&["uncordon", node]).await?;
    }
    result?;
    flower.ready(Duration::from_secs(180)).await?;
    let back = flower.member(&victim).await?;
    ensure!(back == member, "{victim} was {member} and is {back}");
    let history = work.finish().await?;
    Ok(format!(
        "{victim} waited for {node} and came back as {back}; {} mutations, none lost",
        history.acknowledged()
    ))
}

async fn drains(
    scene: &Scene,
    flower: &Flower,
    work: &Workload,
    victim: &str,
    node: &str,
    other: &str,
) -> Result<()> {
    // Only this test's pods: the example and the operator stay where they are.
    drain(scene, node, "60s").await?;
    wait_for(
        &format!("{victim} waits for its node"),
        Duration::from_secs(90),
        || async {
            let pod = scene.get("Pod", victim).await?;
            ensure!(
                pod["status"]["phase"] == "Pending" && pod["spec"]["nodeName"].is_null(),
                "it is {}",
                pod["status"]["phase"]
            );
            Ok(())
        },
    )
    .await?;
    work.flows(Duration::from_secs(30)).await?;
    let Err(error) = drain(scene, other, "10s").await else {
        bail!("a second drain went through")
    };
    let said = format!("{error:#}");
    ensure!(
        said.contains("disruption budget"),
        "the second drain failed otherwise: {said}"
    );
    work.flows(Duration::from_secs(30)).await?;
    let (_, report) = flower.leader().await?;
    let members = report
        .configuration
        .map_or(0, |configuration| configuration.members.len());
    ensure!(
        members == 3,
        "the configuration has {members} members while a node is drained"
    );
    Ok(())
}

async fn drain(scene: &Scene, node: &str, limit: &str) -> Result<()> {
    // kubectl's drain looks in all namespaces; the selector names what only our pods have.
    let set = format!(
        "--pod-selector=statefulset.kubernetes.io/pod-name in ({})",
        pods_of(scene).await?
    );
    let limit = format!("--timeout={limit}");
    scene
        .cluster
        .kubectl(&[
            "drain",
            node,
            &set,
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            &limit,
        ])
        .await
        .map(drop)
}

async fn pods_of(scene: &Scene) -> Result<String> {
    let names = scene.list("Pod", "").await?;
    let names: Vec<_> = names
        .iter()
        .filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned))
        .collect();
    Ok(names.join(","))
}

/// The node that a pod is on.
pub(super) async fn node_of(scene: &Scene, pod: &str) -> Result<String> {
    let pod = scene.get("Pod", pod).await?;
    Ok(pod["spec"]["nodeName"]
        .as_str()
        .context("the pod has no node")?
        .to_owned())
}
