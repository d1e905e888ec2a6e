//! Faults that a cluster must come through by itself, each under writes whose history is
//! checked: processes killed together or stopped, a slow disk, operators killed in turn, the
//! API server gone.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use kube::api::ListParams;
use nix::sys::signal::Signal;
use serde_json::json;

use super::Test;
use super::operator_killed::rolled_out;
use super::refusals::lives;
use crate::cluster::{Cluster, Scene};
use crate::deploy::{OPERATOR, OPERATOR_NAMESPACE};
use crate::flower::Flower;
use crate::kube::{apiserver, controllers};
use crate::process::stop;
use crate::progress::{note, wait_for};
use crate::run::run as command;
use crate::workload::Workload;

/// A majority at once.
pub const TWO_KILLED: Test = Test {
    name: "two-killed",
    in_ci: false,
    what: "two of three pods killed at once, three times: nothing acknowledged is lost, the members stay the same",
    run: |scene| Box::pin(killed(scene, 2)),
};

/// Everybody at once.
pub const ALL_KILLED: Test = Test {
    name: "all-killed",
    in_ci: false,
    what: "all pods killed at once, three times: nothing acknowledged is lost, the members stay the same",
    run: |scene| Box::pin(killed(scene, 3)),
};

/// A leader that does not know how much time has passed.
pub const LEADER_STOPPED: Test = Test {
    name: "leader-stopped",
    in_ci: false,
    what: "the leader's process stopped for longer than a lease, then continued: others lead, nothing is lost or stale",
    run: |scene| Box::pin(leader_stopped(scene)),
};

/// Disks that stall.
pub const SLOW_DISK: Test = Test {
    name: "slow-disk",
    in_ci: false,
    what: "a follower's volume, then the leader's, frozen for most of every half second: writes go on, nobody is removed",
    run: |scene| Box::pin(slow_disk(scene)),
};

/// No operator is needed for long.
pub const OPERATORS: Test = Test {
    name: "operators-killed",
    in_ci: false,
    what: "three operators, each killed in turn while a cluster grows and shrinks: it becomes what was asked for",
    run: |scene| Box::pin(operators(scene)),
};

/// Clusters do not need the API.
pub const API_GONE: Test = Test {
    name: "api-server-gone",
    in_ci: false,
    what: "the API server gone: writes and failovers go on, no pod is touched when it is back",
    run: |scene| Box::pin(api_gone(scene)),
};

/// Longer than a leader is believed without a word, shorter than the kubelet's patience.
const STOPPED: Duration = Duration::from_secs(8);
/// How long the API server is away. Clusters need it for nothing, so that ten minutes would show
/// no more than two do.
const AWAY: Duration = Duration::from_secs(120);
/// How a volume stalls: frozen, then thawed, again and again.
const FROZEN: Duration = Duration::from_millis(400);
const THAWED: Duration = Duration::from_millis(100);
const STALLS: usize = 60;

async fn started(scene: &Scene, clients: usize) -> Result<(Flower, Workload)> {
    let flower = Flower::new(scene, "db");
    flower.apply(json!({"replicas": 3})).await?;
    flower.ready(Duration::from_secs(180)).await?;
    let work = Workload::start(&flower, clients, Duration::from_millis(10)).await?;
    work.flows(Duration::from_secs(30)).await?;
    Ok((flower, work))
}

async fn members(flower: &Flower) -> Result<Vec<String>> {
    let mut members = Vec::new();
    for ordinal in 0..3 {
        members.push(flower.member(&flower.pod(ordinal)).await?.to_string());
    }
    Ok(members)
}

async fn same_members(flower: &Flower, before: &[String]) -> Result<()> {
    let after = members(flower).await?;
    ensure!(
        before == after,
        "the members were {before:?} and are {after:?}"
    );
    Ok(())
}

async fn killed(scene: Scene, how_many: usize) -> Result<String> {
    let (flower, work) = started(&scene, 8).await?;
    let before = members(&flower).await?;
    for round in 0..3 {
        // The status may still be that of before the last kills.
        wait_for("all answer", Duration::from_secs(120), || async {
            let answer = flower.reports().await?.len();
            ensure!(answer == 3, "{answer} pods do");
            Ok(())
        })
        .await?;
        let (leader, _) = flower.wait_leader().await?;
        // The leader is always among them.
        let mut pods: Vec<String> = (0..3).map(|ordinal| flower.pod(ordinal)).collect();
        pods.sort_by_key(|pod| *pod != leader);
        let victims = &pods[..how_many];
        let kills = victims.iter().map(|pod| flower.kill(pod));
        for killed in futures::future::join_all(kills).await {
            killed?;
        }
        work.flows(Duration::from_secs(120)).await?;
        flower.ready(Duration::from_secs(180)).await?;
        note(&format!("round {round}: {victims:?} killed, and back"));
    }
    same_members(&flower, &before).await?;
    let history = work.finish().await?;
    Ok(format!(
        "{how_many} killed at once, three times; the same members; {} mutations, none lost",
        history.acknowledged()
    ))
}

async fn leader_stopped(scene: Scene) -> Result<String> {
    let (flower, work) = started(&scene, 8).await?;
    let before = members(&flower).await?;
    let (leader, led) = flower.wait_leader().await?;
    flower.signal(&leader, Signal::SIGSTOP).await?;
    let others = async {
        wait_for("another leads", Duration::from_secs(60), || async {
            let (now, report) = flower.leader().await?;
            ensure!(now != leader && report.term > led.term, "{now} leads");
            Ok(())
        })
        .await?;
        tokio::time::sleep(STOPPED).await;
        work.flows(Duration::from_secs(60)).await
    };
    let others = others.await;
    // Whatever happened: it must not stay stopped.
    let continued = flower.signal(&leader, Signal::SIGCONT).await;
    others?;
    continued?;
    work.flows(Duration::from_secs(60)).await?;
    flower.ready(Duration::from_secs(180)).await?;
    same_members(&flower, &before).await?;
    let history = work.finish().await?;
    Ok(format!(
        "{leader} stopped and continued; {} mutations, none lost, the longest gap {}",
        history.acknowledged(),
        crate::progress::seconds(history.longest_gap())
    ))
}

async fn slow_disk(scene: Scene) -> Result<String> {
    let (flower, work) = started(&scene, 4).await?;
    let before = members(&flower).await?;
    let (leader, _) = flower.wait_leader().await?;
    let follower = (0..3)
        .map(|ordinal| flower.pod(ordinal))
        .find(|pod| *pod != leader)
        .context("no follower")?;
    for pod in [&follower, &leader] {
        let folder = flower.volume_folder(pod).await?;
        let acknowledged = work.acknowledged().await;
        for _ in 0..STALLS {
            stall(&folder).await?;
        }
        let now = work.acknowledged().await;
        ensure!(
            now > acknowledged,
            "no write while the volume of {pod} stalled"
        );
        note(&format!(
            "{pod} stalled: {} writes meanwhile",
            now - acknowledged
        ));
    }
    flower.ready(Duration::from_secs(120)).await?;
    same_members(&flower, &before).await?;
    let history = work.finish().await?;
    Ok(format!(
        "{} mutations, none lost; the longest gap {}",
        history.acknowledged(),
        crate::progress::seconds(history.longest_gap())
    ))
}

/// Freezes a file system for a moment: what is written waits.
async fn stall(folder: &Path) -> Result<()> {
    let folder = folder.display().to_string();
    command("fsfreeze", &["--freeze", &folder]).await?;
    tokio::time::sleep(FROZEN).await;
    command("fsfreeze", &["--unfreeze", &folder]).await?;
    tokio::time::sleep(THAWED).await;
    Ok(())
}

async fn operators(scene: Scene) -> Result<String> {
    let cluster = &scene.cluster;
    let before = scaled(cluster, "3").await;
    let result = match before {
        Ok(()) => killed_in_turn(&scene).await,
        Err(error) => Err(error),
    };
    scaled(cluster, "2").await?;
    result
}

async fn killed_in_turn(scene: &Scene) -> Result<String> {
    let (flower, work) = started(scene, 2).await?;
    let mut killed = 0;
    for replicas in [5, 3] {
        flower.change(json!({"replicas": replicas})).await?;
        for name in operator_pods(&scene.cluster).await? {
            tokio::time::sleep(Duration::from_secs(3)).await;
            let (namespace, now) = (OPERATOR_NAMESPACE, ["--force", "--grace-period=0"]);
            let args = ["-n", namespace, "delete", "pod", &name, now[0], now[1]];
            scene.cluster.kubectl(&args).await?;
            killed += 1;
        }
        flower.ready(Duration::from_secs(300)).await?;
        let (_, report) = flower.wait_leader().await?;
        let voters = report
            .configuration
            .map_or(0, |known| known.voters.concat().len());
        ensure!(voters == replicas, "{voters} voters of {replicas}");
    }
    let history = work.finish().await?;
    Ok(format!(
        "{killed} operators killed in turn; 3, 5, 3 voters; {} mutations, none lost",
        history.acknowledged()
    ))
}

async fn scaled(cluster: &Cluster, replicas: &str) -> Result<()> {
    let deployment = format!("deployment/{OPERATOR}");
    let count = format!("--replicas={replicas}");
    let scale = ["-n", OPERATOR_NAMESPACE, "scale", &deployment, &count];
    cluster.kubectl(&scale).await?;
    rolled_out(cluster).await
}

async fn operator_pods(cluster: &Cluster) -> Result<Vec<String>> {
    let pods = cluster.api(OPERATOR_NAMESPACE, "Pod");
    let pods = pods.list(&ListParams::default()).await?;
    let ours = pods.iter().map(ResourceExt::name_any);
    Ok(ours.filter(|name| name.starts_with(OPERATOR)).collect())
}

async fn api_gone(scene: Scene) -> Result<String> {
    let (flower, work) = started(&scene, 4).await?;
    let paths = &scene.cluster.paths;
    let before = lives(&flower).await?;
    stop(paths, "kube-apiserver").await?;
    let without = async {
        let mut seen = work.acknowledged().await;
        for _ in 0..AWAY.as_secs() / 20 {
            tokio::time::sleep(Duration::from_secs(20)).await;
            work.flows(Duration::from_secs(30)).await?;
            let now = work.acknowledged().await;
            ensure!(now > seen, "no write in 20 seconds");
            seen = now;
        }
        Ok(seen)
    };
    let without = without.await;
    apiserver::up(paths).await?;
    apiserver::ready(paths).await?;
    // They may have given up meanwhile.
    controllers::up(paths).await?;
    let seen: usize = without?;
    flower.ready(Duration::from_secs(180)).await?;
    work.flows(Duration::from_secs(30)).await?;
    let after = lives(&flower).await?;
    ensure!(
        before == after,
        "the pods were {before:?} and are {after:?}"
    );
    let history = work.finish().await?;
    Ok(format!(
        "{} without the API server: {seen} writes by its end, {} in all, none lost; no pod was touched",
        crate::progress::seconds(AWAY),
        history.acknowledged()
    ))
}
