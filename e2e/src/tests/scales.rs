//! 3 → 5 → 3 replicas while writes go on: nothing is lost, removed claims go, the others stay.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::Test;
use crate::cluster::Scene;
use crate::flower::Flower;
use crate::progress::{seconds, wait_for};
use crate::workload::Workload;

/// See the file's head.
pub const TEST: Test = Test {
    name: "scales",
    in_ci: false,
    what: "3 → 5 → 3 under writes: nothing lost, removed claims gone, the survivors' the same",
    run: |scene| Box::pin(run(scene)),
};

async fn run(scene: Scene) -> Result<String> {
    let flower = Flower::new(&scene, "db");
    flower.apply(json!({"replicas": 3})).await?;
    flower.ready(Duration::from_secs(180)).await?;
    let before = claims(&scene).await?;
    let work = Workload::start(&flower, 4, Duration::from_millis(10)).await?;
    let mut took = Vec::new();
    for size in [5, 3] {
        let begun = Instant::now();
        flower.change(json!({"replicas": size})).await?;
        flower.ready(Duration::from_secs(300)).await?;
        wait_for(
            &format!("{size} voters"),
            Duration::from_secs(30),
            || async {
                let (_, report) = flower.leader().await?;
                let configuration = report.configuration.context("no configuration")?;
                let voters = configuration.voters.first().map_or(0, Vec::len);
                ensure!(
                    !configuration.is_joint() && voters == size,
                    "the configuration has {voters}"
                );
                ensure!(
                    configuration.members.len() == size,
                    "it has {} members",
                    configuration.members.len()
                );
                Ok(())
            },
        )
        .await?;
        took.push(seconds(begun.elapsed()));
        work.flows(Duration::from_secs(30)).await?;
    }
    let after = wait_for(
        "the removed claims are gone",
        Duration::from_secs(60),
        || async {
            let after = claims(&scene).await?;
            ensure!(after.len() == 3, "there are {:?}", after.keys());
            Ok(after)
        },
    )
    .await?;
    ensure!(
        before == after,
        "the claims were {before:?} and are {after:?}"
    );
    let history = work.finish().await?;
    Ok(format!(
        "up in {}, down in {}; {} mutations, none lost; longest gap {}",
        took[0],
        took[1],
        history.acknowledged(),
        seconds(history.longest_gap())
    ))
}

/// The claims of the namespace, with their uids.
pub async fn claims(scene: &Scene) -> Result<BTreeMap<String, String>> {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let list = scene.list("PersistentVolumeClaim", "").await?;
    Ok(list
        .iter()
        .map(|claim| {
            (
                text(&claim["metadata"]["name"]),
                text(&claim["metadata"]["uid"]),
            )
        })
        .collect())
}
