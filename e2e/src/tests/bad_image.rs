//! An image that cannot be pulled stops a rollout at its first pod while the others serve, and a
//! mended spec mends it. Then the PodMonitor goes when the spec no longer wants it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Test;
use crate::cluster::Scene;
use crate::flower::Flower;
use crate::progress::wait_for;
use crate::workload::Workload;

/// See the file's head.
pub const TEST: Test = Test {
    name: "bad-image",
    in_ci: true,
    what: "an image that is not there stops the rollout at one pod; a mended spec mends it; nothing acknowledged is lost",
    run: |scene| Box::pin(run(scene)),
};

async fn run(scene: Scene) -> Result<String> {
    let flower = Flower::new(&scene, "db");
    flower.apply(json!({"replicas": 3})).await?;
    flower.ready(Duration::from_secs(180)).await?;
    let work = Workload::start(&flower, 2, Duration::from_millis(50)).await?;
    flower
        .change(json!({"image": "flowerdb.dev/flower:there-is-none"}))
        .await?;
    let limit = Duration::from_secs(90);
    let stuck = wait_for("a pod that waits for its image", limit, || async {
        let waiting = waiting(&flower).await?;
        waiting.first().cloned().context("none waits")
    })
    .await?;
    // Long enough for a second step, if the operator were to make one.
    tokio::time::sleep(Duration::from_secs(8)).await;
    let waiting = waiting(&flower).await?;
    ensure!(
        waiting == [stuck.clone()],
        "the rollout went on: {waiting:?} wait for their image"
    );
    flower.change(json!({"image": null})).await?;
    flower.ready(Duration::from_secs(120)).await?;
    let history = work.finish().await?;

    scene.get("PodMonitor", &flower.name).await?;
    flower
        .change(json!({"monitoring": {"podMonitor": false}}))
        .await?;
    wait_for("the PodMonitor to go", Duration::from_secs(60), || async {
        let there = scene.get("PodMonitor", &flower.name).await.is_ok();
        ensure!(!there, "it is still there");
        Ok(())
    })
    .await?;
    Ok(format!(
        "{stuck} waited alone; {} mutations meanwhile",
        history.acknowledged()
    ))
}

/// Pods whose container waits for its image.
async fn waiting(flower: &Flower) -> Result<Vec<String>> {
    let reason = |pod: &Value| {
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        waiting["reason"].as_str().map(str::to_owned)
    };
    let image = |pod: &&Value| reason(pod).is_some_and(|why| why.contains("Image"));
    let pods = flower.pods().await?;
    let name = |pod: &Value| pod["metadata"]["name"].as_str().map(str::to_owned);
    Ok(pods.iter().filter(image).filter_map(name).collect())
}
