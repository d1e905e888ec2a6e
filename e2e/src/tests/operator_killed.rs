//! The operator, all replicas of it, ends at a failpoint right after an effect; what comes next
//! resumes from what it observes.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::api::ListParams;
use serde_json::{Value, json};

use super::Test;
use crate::cluster::{Cluster, Scene};
use crate::deploy::{OPERATOR, OPERATOR_NAMESPACE};
use crate::flower::Flower;
use crate::progress::{note, wait_for};
use crate::workload::Workload;

/// One failpoint, while a cluster grows.
pub const ONE: Test = Test {
    name: "operator-killed",
    in_ci: true,
    what: "the operator ends right after a promotion: the next one finishes the cluster",
    run: |scene| Box::pin(growing(scene, &["promote"])),
};

/// Every failpoint of growth.
pub const GROWING: Test = Test {
    name: "operator-killed-growing",
    in_ci: false,
    what: "the operator ends after each effect of growth: status save, bootstrap, add, promote, deploy",
    run: |scene| {
        Box::pin(growing(
            scene,
            &["status-save", "bootstrap", "add", "promote", "deploy"],
        ))
    },
};

/// Every failpoint of a cluster that is changed under writes.
pub const CHANGING: Test = Test {
    name: "operator-killed-changing",
    in_ci: false,
    what: "the operator ends after each effect of a change under writes: restart, transfer, remove, scale, claim",
    run: |scene| Box::pin(changing(scene)),
};

/// The environment variable that chooses a failpoint, and the exit code of an end there.
const VARIABLE: &str = "FLOWER_OPERATOR_FAILPOINT";
const EXIT_CODE: i64 = 86;

async fn growing(scene: Scene, points: &[&str]) -> Result<String> {
    for point in points {
        let flower = Flower::new(&scene, &format!("db-{point}"));
        choose(&scene.cluster, Some(point)).await?;
        let result = async {
            flower.apply(json!({"replicas": 3})).await?;
            ended(&scene.cluster, point).await
        };
        let result = result.await;
        choose(&scene.cluster, None).await?;
        result?;
        flower.ready(Duration::from_secs(240)).await?;
        let (_, report) = flower.wait_leader().await?;
        let members = report
            .configuration
            .map_or(0, |configuration| configuration.members.len());
        ensure!(members == 3, "after {point}: {members} members");
        scene.delete("FlowerCluster", &flower.name).await?;
        note(&format!("{point}: resumed"));
    }
    Ok(format!("ended after each of {points:?}, and resumed"))
}

async fn changing(scene: Scene) -> Result<String> {
    let flower = Flower::new(&scene, "db");
    flower.apply(json!({"replicas": 3})).await?;
    flower.ready(Duration::from_secs(180)).await?;
    let work = Workload::start(&flower, 2, Duration::from_millis(50)).await?;
    for (round, point) in ["restart", "transfer"].into_iter().enumerate() {
        let change = json!({"pod": {"annotations": {"e2e.flowerdb.dev/round": round.to_string()}}});
        through(&flower, point, change).await?;
    }
    for point in ["remove", "scale", "claim"] {
        flower.change(json!({"replicas": 5})).await?;
        flower.ready(Duration::from_secs(300)).await?;
        through(&flower, point, json!({"replicas": 3})).await?;
    }
    let history = work.finish().await?;
    Ok(format!(
        "ended after each of five effects, and resumed; {} mutations, none lost",
        history.acknowledged()
    ))
}

/// Makes a change with a failpoint chosen, until the operator has ended there; then without.
async fn through(flower: &Flower, point: &str, change: Value) -> Result<()> {
    let cluster = &flower.scene.cluster;
    choose(cluster, Some(point)).await?;
    let result = async {
        flower.change(change).await?;
        ended(cluster, point).await
    };
    let result = result.await;
    choose(cluster, None).await?;
    result?;
    flower.ready(Duration::from_secs(300)).await?;
    note(&format!("{point}: resumed"));
    Ok(())
}

/// Starts the operator's replicas anew, with a failpoint or without.
async fn choose(cluster: &Cluster, point: Option<&str>) -> Result<()> {
    let variable = point.map_or(format!("{VARIABLE}-"), |point| {
        format!("{VARIABLE}={point}")
    });
    let deployment = format!("deployment/{OPERATOR}");
    cluster
        .kubectl(&[
            "-n",
            OPERATOR_NAMESPACE,
            "set",
            "env",
            &deployment,
            &variable,
        ])
        .await?;
    rolled_out(cluster).await
}

/// Waits until the operator's replicas are what its Deployment asks for.
pub async fn rolled_out(cluster: &Cluster) -> Result<()> {
    let deployment = format!("deployment/{OPERATOR}");
    cluster
        .kubectl(&[
            "-n",
            OPERATOR_NAMESPACE,
            "rollout",
            "status",
            &deployment,
            "--timeout=180s",
        ])
        .await
        .map(drop)
}

/// Waits until a replica of the operator has ended at the failpoint.
async fn ended(cluster: &Cluster, point: &str) -> Result<()> {
    wait_for(
        &format!("the operator ends after {point}"),
        Duration::from_secs(240),
        || async {
            let pods = cluster
                .api(OPERATOR_NAMESPACE, "Pod")
                .list(&ListParams::default())
                .await?;
            let code = |pod: &kube::api::DynamicObject| {
                let status = &pod.data["status"]["containerStatuses"][0];
                ["state", "lastState"]
                    .iter()
                    .any(|state| status[*state]["terminated"]["exitCode"] == EXIT_CODE)
            };
            ensure!(pods.iter().any(code), "none of {} has", pods.items.len());
            Ok(())
        },
    )
    .await
}
