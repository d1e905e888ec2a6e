//! The StatefulSet is scaled to 1 and then deleted by hand: it is healed and nothing is lost.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use super::Test;
use super::scales::claims;
use crate::cluster::Scene;
use crate::flower::Flower;
use crate::progress::wait_for;
use crate::workload::Workload;

/// See the file's head.
pub const TEST: Test = Test {
    name: "set-deleted",
    in_ci: false,
    what: "the StatefulSet scaled to 1, then deleted, by hand: healed, nothing lost",
    run: |scene| Box::pin(run(scene)),
};

async fn run(scene: Scene) -> Result<String> {
    let flower = Flower::new(&scene, "db");
    flower.apply(json!({"replicas": 3})).await?;
    flower.ready(Duration::from_secs(180)).await?;
    let before = claims(&scene).await?;
    let work = Workload::start(&flower, 4, Duration::from_millis(20)).await?;
    work.flows(Duration::from_secs(30)).await?;

    scene
        .merge(
            "StatefulSet",
            &flower.set(),
            &json!({"spec": {"replicas": 1}}),
        )
        .await?;
    healed(&flower).await?;
    work.flows(Duration::from_secs(60)).await?;

    let uid = scene.get("StatefulSet", &flower.set()).await?["metadata"]["uid"].clone();
    scene.delete("StatefulSet", &flower.set()).await?;
    wait_for(
        "there is another StatefulSet",
        Duration::from_secs(120),
        || async {
            let now = scene.get("StatefulSet", &flower.set()).await?["metadata"]["uid"].clone();
            ensure!(now != uid, "it is still the old one");
            Ok(())
        },
    )
    .await?;
    healed(&flower).await?;
    work.flows(Duration::from_secs(60)).await?;
    let history = work.finish().await?;
    let after = claims(&scene).await?;
    ensure!(
        before == after,
        "the claims were {before:?} and are {after:?}"
    );
    Ok(format!(
        "healed twice with the same claims; {} mutations, none lost",
        history.acknowledged()
    ))
}

/// Three ready pods again, and the FlowerCluster Ready.
async fn healed(flower: &Flower) -> Result<()> {
    wait_for(
        "three pods are ready again",
        Duration::from_secs(180),
        || async {
            let set = flower.scene.get("StatefulSet", &flower.set()).await?;
            ensure!(
                set["spec"]["replicas"] == 3,
                "the StatefulSet asks for {}",
                set["spec"]["replicas"]
            );
            ensure!(
                set["status"]["readyReplicas"] == 3,
                "{} are ready",
                set["status"]["readyReplicas"]
            );
            Ok(())
        },
    )
    .await?;
    flower.ready(Duration::from_secs(120)).await.map(drop)
}
