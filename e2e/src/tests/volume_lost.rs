//! A member's claim and pod are deleted after the log was purged: a new member takes its place,
//! by one image, unattended. The same for the leader.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use flower_api::report::Report;
use serde_json::json;

use super::Test;
use crate::cluster::Scene;
use crate::flower::{Flower, LEDGER};
use crate::progress::wait_for;
use crate::workload::Workload;

/// A follower loses its volume.
pub const FOLLOWER: Test = Test {
    name: "follower-volume-lost",
    in_ci: true,
    what: "a follower's claim and pod deleted past the purge: new member id, one image, voter, the term unmoved",
    run: |scene| Box::pin(run(scene, false)),
};

/// The leader loses its volume.
pub const LEADER: Test = Test {
    name: "leader-volume-lost",
    in_ci: true,
    what: "the leader's claim and pod deleted past the purge: the same, and the term moves once",
    run: |scene| Box::pin(run(scene, true)),
};

/// Applies a cluster with a short log and writes to it until its log is purged: nothing but an
/// image brings a new member up to date then. Answers the writers and the leader's report.
pub(super) async fn purged(flower: &Flower, source: &str) -> Result<(Workload, Report)> {
    let spec = json!({"replicas": 3, "snapshot": {"afterLogBytes": "1Mi"}});
    flower.apply_app(source, spec).await?;
    flower.ready(Duration::from_secs(180)).await?;
    let work = Workload::start(flower, 4, Duration::from_millis(2)).await?;
    let report = wait_for("the log is purged", Duration::from_secs(180), || async {
        let (_, report) = flower.leader().await?;
        ensure!(
            report.positions.purged > 0,
            "it reaches from 0 to {}",
            report.positions.last_log
        );
        Ok(report)
    })
    .await?;
    Ok((work, report))
}

async fn run(scene: Scene, of_leader: bool) -> Result<String> {
    let flower = Flower::new(&scene, "db");
    let (work, before) = purged(&flower, LEDGER).await?;
    let (leader, _) = flower.leader().await?;
    let names: Vec<_> = (0..3).map(|ordinal| flower.pod(ordinal)).collect();
    let victim = names
        .iter()
        .find(|name| (**name == leader) == of_leader)
        .context("no such pod")?
        .clone();
    let lost = flower.lose_volume(&victim).await?;
    let newcomer = flower
        .replaced(&victim, lost, Duration::from_secs(240))
        .await?;
    flower.ready(Duration::from_secs(60)).await?;
    let history = work.finish().await?;
    let (_, after) = flower.leader().await?;
    ensure!(
        newcomer.images_received == 1,
        "{} images were received",
        newcomer.images_received
    );
    let moved = after.term - before.term;
    ensure!(
        moved == u64::from(of_leader),
        "the term moved {moved} times"
    );
    Ok(format!(
        "{victim}: {lost} is gone, {} votes after one image; the term moved {moved} times; {} mutations, none lost",
        newcomer
            .identity
            .member
            .map(|id| id.to_string())
            .unwrap_or_default(),
        history.acknowledged()
    ))
}
