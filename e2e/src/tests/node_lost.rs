//! A node is lost: for a while, and nothing is removed; for good, and its member is replaced on
//! another node, unattended.

use std::time::Duration;

use anyhow::{Result, ensure};
use flower_api::ids::MemberId;
use serde_json::json;

use super::Test;
use super::drained::node_of;
use crate::cluster::{Scene, ensure_condition};
use crate::flower::Flower;
use crate::kube::failure;
use crate::net::Node;
use crate::progress::wait_for;
use crate::workload::Workload;

/// It comes back.
pub const A_WHILE: Test = Test {
    name: "node-lost-a-while",
    in_ci: false,
    what: "a node fails and comes back: writes go on, Degraded, nothing removed, the same id",
    run: |scene| Box::pin(run(scene, false)),
};

/// Its object is deleted.
pub const FOR_GOOD: Test = Test {
    name: "node-lost-for-good",
    in_ci: false,
    what: "a node fails and its object is deleted: claim and pod replaced by a new member on another node",
    run: |scene| Box::pin(run(scene, true)),
};

async fn run(scene: Scene, for_good: bool) -> Result<String> {
    let flower = Flower::new(&scene, "db");
    flower.apply(json!({"replicas": 3})).await?;
    flower.ready(Duration::from_secs(180)).await?;
    let work = Workload::start(&flower, 4, Duration::from_millis(20)).await?;
    let (leader, _) = flower.wait_leader().await?;
    let mut pods = (0..3).map(|ordinal| flower.pod(ordinal));
    let victim = pods.find(|pod| *pod != leader).unwrap_or(leader);
    let member = flower.member(&victim).await?;
    let node = failure::named(&node_of(&scene, &victim).await?)?;

    let paths = &scene.cluster.paths;
    failure::fail(paths, node).await?;
    let result = if for_good {
        replaced(&scene, &flower, &work, &victim, member, node).await
    } else {
        waited_for(&scene, &flower, &work, member, node).await
    };
    failure::back(paths, node).await?;
    let said = result?;
    flower.ready(Duration::from_secs(180)).await?;
    if !for_good {
        let back = flower.member(&victim).await?;
        ensure!(back == member, "{victim} was {member} and is {back}");
    }
    let history = work.finish().await?;
    Ok(format!(
        "{victim} on {}: {said}; {} mutations, none lost",
        node.name(),
        history.acknowledged()
    ))
}

async fn waited_for(
    scene: &Scene,
    flower: &Flower,
    work: &Workload,
    member: MemberId,
    node: Node,
) -> Result<String> {
    work.flows(Duration::from_secs(30)).await?;
    degraded(flower).await?;
    failure::noticed(&scene.cluster.paths, node).await?;
    // Long enough for anybody who would act on silence.
    tokio::time::sleep(Duration::from_secs(60)).await;
    work.flows(Duration::from_secs(30)).await?;
    let (_, report) = flower.leader().await?;
    let voters = report.configuration.map(|known| known.is_voter(member));
    ensure!(voters == Some(true), "{member} was removed");
    degraded(flower).await?;
    Ok(format!("{member} was waited for and is back"))
}

async fn degraded(flower: &Flower) -> Result<()> {
    wait_for("Degraded", Duration::from_secs(60), || async {
        ensure_condition(&flower.object().await?, "Degraded")
    })
    .await
}

async fn replaced(
    scene: &Scene,
    flower: &Flower,
    work: &Workload,
    victim: &str,
    member: MemberId,
    node: Node,
) -> Result<String> {
    failure::noticed(&scene.cluster.paths, node).await?;
    scene
        .cluster
        .kubectl(&["delete", "node", &node.name()])
        .await?;
    let newcomer = flower
        .replaced(victim, member, Duration::from_secs(300))
        .await?;
    let on = node_of(scene, victim).await?;
    ensure!(on != node.name(), "{victim} is on {on}");
    flower.ready(Duration::from_secs(120)).await?;
    work.flows(Duration::from_secs(30)).await?;
    Ok(format!(
        "{member} is gone with it, {} votes on {on}",
        newcomer
            .identity
            .member
            .map(|id| id.to_string())
            .unwrap_or_default()
    ))
}
