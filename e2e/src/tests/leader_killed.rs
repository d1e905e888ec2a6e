//! The leader is killed twice while 16 clients write; every acknowledged mutation is there exactly once.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use super::Test;
use crate::cluster::Scene;
use crate::flower::Flower;
use crate::progress::{seconds, wait_for};
use crate::workload::Workload;

/// See the file's head.
pub const TEST: Test = Test {
    name: "leader-killed",
    in_ci: true,
    what: "two SIGKILLs of the leader under 16 writers: every acknowledged mutation exactly once, retries are replays",
    run: |scene| Box::pin(run(scene)),
};

/// How many mutations there must be at least, and how many replays among them.
const MUTATIONS: usize = 2_000;
const REPLAYS: usize = 50;

async fn run(scene: Scene) -> Result<String> {
    let flower = Flower::new(&scene, "db");
    flower.apply(json!({"replicas": 3})).await?;
    flower.ready(Duration::from_secs(180)).await?;

    let work = Workload::start(&flower, 16, Duration::from_millis(5)).await?;
    work.flows(Duration::from_secs(30)).await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let mut in_flight = Vec::new();
    for _ in 0..2 {
        let (leader, before) = flower.wait_leader().await?;
        // A kill between two batches would show nothing.
        wait_for("calls are in flight", Duration::from_secs(10), || async {
            ensure!(work.in_flight() > 0, "none is");
            Ok(())
        })
        .await?;
        flower.kill(&leader).await?;
        in_flight.push(work.in_flight());
        wait_for(
            "another term has a leader",
            Duration::from_secs(60),
            || async {
                let (_, now) = flower.leader().await?;
                ensure!(now.term > before.term, "the term is still {}", now.term);
                Ok(())
            },
        )
        .await?;
        work.flows(Duration::from_secs(60)).await?;
        flower.ready(Duration::from_secs(120)).await?;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    wait_for("enough mutations", Duration::from_secs(120), || async {
        let so_far = work.acknowledged().await;
        ensure!(so_far >= MUTATIONS, "{so_far} of {MUTATIONS}");
        Ok(())
    })
    .await?;
    let history = work.finish().await?;
    ensure!(
        in_flight.iter().all(|calls| *calls > 0),
        "calls in flight at the kills: {in_flight:?}"
    );
    ensure!(
        history.replays >= REPLAYS,
        "only {} replays",
        history.replays
    );
    Ok(format!(
        "{} acknowledged, all there once; {} replays, {} calls needed more than one try; {in_flight:?} in flight at the kills; longest gap {}",
        history.acknowledged(),
        history.replays,
        history.retried(),
        seconds(history.longest_gap())
    ))
}
