//! A quorum lost for good, and brought back from one survivor by `flower recover`: once with the
//! other volumes deleted, once with nodes that fail and come back with the old data.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use flower_api::ids::MemberId;
use serde_json::json;

use super::Test;
use super::drained::node_of;
use crate::cluster::Scene;
use crate::flower::Flower;
use crate::kube::failure;
use crate::progress::{note, wait_for};
use crate::workload::{Caller, Workload};

/// The volumes of two are deleted.
pub const VOLUMES: Test = Test {
    name: "recover-volumes",
    in_ci: false,
    what: "two of three volumes deleted: held, then recovered from the survivor and grown again; everything it had is there",
    run: |scene| Box::pin(volumes(scene)),
};

/// The nodes of two fail, and come back after the recovery.
pub const NODES: Test = Test {
    name: "recover-nodes",
    in_ci: false,
    what: "two of three nodes fail, the third is recovered, they come back: the old members take no part, new ones replace them",
    run: |scene| Box::pin(nodes(scene)),
};

/// A cluster with a history, and how many rows the first client has.
async fn written(scene: &Scene) -> Result<(Flower, usize)> {
    let flower = Flower::new(scene, "db");
    flower.apply(json!({"replicas": 3})).await?;
    flower.ready(Duration::from_secs(180)).await?;
    let work = Workload::start(&flower, 2, Duration::from_millis(20)).await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    work.flows(Duration::from_secs(30)).await?;
    work.finish().await?;
    // Everybody has everything: what the survivor has is all that was acknowledged.
    wait_for("the members are even", Duration::from_secs(30), || async {
        let reports = flower.reports().await?;
        let applied: Vec<u64> = reports.values().map(|one| one.positions.applied).collect();
        ensure!(
            applied.len() == 3 && applied.iter().all(|at| *at == applied[0]),
            "{applied:?}"
        );
        Ok(())
    })
    .await?;
    let rows = rows(&flower).await?;
    Ok((flower, rows))
}

async fn rows(flower: &Flower) -> Result<usize> {
    let caller = Caller::of(flower).await?;
    let (mut rows, mut after) = (0, 0);
    loop {
        let args = json!({"client": 0, "after": after});
        let page = caller.query_patiently("page", "fresh", &args).await?;
        let page = page.as_array().context("page returned no list")?;
        let Some(last) = page.last() else {
            return Ok(rows);
        };
        after = last["seq"].as_u64().context("a row without seq")?;
        rows += page.len();
    }
}

/// `flower` in a pod; what it says, whether it succeeds or not.
async fn flower_in(flower: &Flower, pod: &str, args: &[&str]) -> Result<String> {
    let namespace = flower.scene.namespace.as_str();
    let exec = ["-n", namespace, "exec", pod, "--", "/usr/bin/flower"];
    flower.scene.cluster.kubectl(&[&exec, args].concat()).await
}

/// Recovers the group from a pod, as the runbook says.
async fn recover(flower: &Flower, pod: &str) -> Result<MemberId> {
    let survivor = flower.member(pod).await?;
    let index = wait_for(
        "a recovery is offered",
        Duration::from_secs(120),
        || async {
            let told = flower_in(flower, pod, &["recover"]).await?;
            let flag = "--accept-loss-after ";
            let (_, index) = told.rsplit_once(flag).with_context(|| told.clone())?;
            Ok(index.trim().to_owned())
        },
    )
    .await?;
    note(&format!("{pod}: recovered behind entry {index}"));
    let accepted = flower_in(flower, pod, &["recover", "--accept-loss-after", &index]).await?;
    ensure!(accepted.contains("accepted"), "{accepted}");
    wait_for("the survivor leads", Duration::from_secs(120), || async {
        let (now, report) = flower.leader().await?;
        let number = report.recovery.map_or(0, |recovery| recovery.number);
        ensure!(
            now == pod && number == 1,
            "{now} leads after {number} recoveries"
        );
        Ok(())
    })
    .await?;
    Ok(survivor)
}

/// The group is whole again, with one member of before.
async fn whole(flower: &Flower, survivor: MemberId, lost: &[MemberId]) -> Result<()> {
    flower.ready(Duration::from_secs(420)).await?;
    wait_for("three voters", Duration::from_secs(300), || async {
        let (_, report) = flower.leader().await?;
        let known = report.configuration.context("no configuration")?;
        let voters = known.voters.concat();
        ensure!(voters.len() == 3, "{voters:?}");
        ensure!(
            voters.contains(&survivor),
            "{survivor} is not among {voters:?}"
        );
        ensure!(
            !lost.iter().any(|id| voters.contains(id)),
            "{lost:?} vote again"
        );
        Ok(())
    })
    .await
}

async fn volumes(scene: Scene) -> Result<String> {
    let (flower, before) = written(&scene).await?;
    let mut lost = Vec::new();
    for ordinal in [0, 1] {
        lost.push(flower.member(&flower.pod(ordinal)).await?);
    }
    for ordinal in [0, 1] {
        let pod = flower.pod(ordinal);
        let claim = flower.claim_of(&pod).await?;
        scene.delete("PersistentVolumeClaim", &claim).await?;
        let args = [
            "-n",
            &scene.namespace,
            "delete",
            "pod",
            &pod,
            "--force",
            "--grace-period=0",
        ];
        scene.cluster.kubectl(&args).await?;
    }
    let survivor = flower.pod(2);
    // Nothing is done about it unasked.
    wait_for("the operator holds", Duration::from_secs(120), || async {
        let object = flower.object().await?;
        let hold = &object["status"]["plan"]["hold"];
        ensure!(hold == "NoLeader", "it says {hold}");
        Ok(())
    })
    .await?;
    let stays = recover(&flower, &survivor).await?;
    whole(&flower, stays, &lost).await?;
    let after = rows(&flower).await?;
    ensure!(before == after, "{before} rows before, {after} after");
    let work = Workload::start(&flower, 2, Duration::from_millis(20)).await?;
    work.flows(Duration::from_secs(30)).await?;
    Ok(format!(
        "{lost:?} lost, {stays} recovered, {after} rows all there, three voters again"
    ))
}

async fn nodes(scene: Scene) -> Result<String> {
    let (flower, before) = written(&scene).await?;
    let paths = &scene.cluster.paths;
    let (mut lost, mut failed) = (Vec::new(), Vec::new());
    for ordinal in [0, 1] {
        let pod = flower.pod(ordinal);
        lost.push(flower.member(&pod).await?);
        failed.push(failure::named(&node_of(&scene, &pod).await?)?);
    }
    let survivor = flower.pod(2);
    let on = node_of(&scene, &survivor).await?;
    ensure!(
        failed.iter().all(|node| node.name() != on),
        "the pods share {on}"
    );
    for node in &failed {
        failure::fail(paths, *node).await?;
    }
    let recovered = recover(&flower, &survivor).await;
    // Whatever came of it: the next test needs the nodes.
    for node in &failed {
        failure::back(paths, *node).await?;
    }
    let stays = recovered?;
    whole(&flower, stays, &lost).await?;
    let after = rows(&flower).await?;
    ensure!(before == after, "{before} rows before, {after} after");
    Ok(format!(
        "{lost:?} came back and take no part; {stays} recovered, {after} rows all there, three voters again"
    ))
}
