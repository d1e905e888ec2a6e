//! The operator's chart goes and comes back, a FlowerCluster is deleted and applied again:
//! both find what they left.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use super::Test;
use super::refusals::lives;
use super::scales::claims;
use crate::cluster::Scene;
use crate::deploy::{self, OPERATOR, OPERATOR_NAMESPACE, helm};
use crate::flower::Flower;
use crate::progress::wait_for;
use crate::workload::Workload;

/// See the file's head.
pub const TEST: Test = Test {
    name: "adoption",
    in_ci: true,
    what: "the operator's chart uninstalled and installed: no restart; a FlowerCluster deleted and applied: its volumes",
    run: |scene| Box::pin(run(scene)),
};

async fn run(scene: Scene) -> Result<String> {
    let flower = Flower::new(&scene, "db");
    let spec = json!({"replicas": 3, "volumeClaims": {"whenDeleted": "Retain"}});
    flower.apply(spec.clone()).await?;
    flower.ready(Duration::from_secs(180)).await?;
    let work = Workload::start(&flower, 2, Duration::from_millis(20)).await?;
    work.flows(Duration::from_secs(30)).await?;
    let before = lives(&flower).await?;

    helm(
        &scene.cluster.paths,
        &[
            "uninstall",
            OPERATOR,
            "--namespace",
            OPERATOR_NAMESPACE,
            "--wait",
        ],
    )
    .await?;
    flower.object().await?;
    work.flows(Duration::from_secs(30)).await?;
    deploy::charts(&scene.cluster.paths).await?;
    flower.ready(Duration::from_secs(120)).await?;
    let after = lives(&flower).await?;
    ensure!(
        before == after,
        "the pods were {before:?} and are {after:?}"
    );
    let history = work.finish().await?;

    let members = member_ids(&flower).await?;
    let volumes = claims(&scene).await?;
    scene.delete("FlowerCluster", &flower.name).await?;
    wait_for("the pods are gone", Duration::from_secs(120), || async {
        let left = flower.pods().await?.len();
        ensure!(left == 0, "{left} are left");
        Ok(())
    })
    .await?;
    ensure!(claims(&scene).await? == volumes, "the claims did not stay");
    flower.apply(spec).await?;
    flower.ready(Duration::from_secs(180)).await?;
    ensure!(claims(&scene).await? == volumes, "the claims are others");
    let again = member_ids(&flower).await?;
    ensure!(
        members == again,
        "the members were {members:?} and are {again:?}"
    );
    // Reading everything back once more, now from the adopted volumes.
    let rows = crate::workload::Caller::of(&flower).await?;
    let page = rows
        .query_patiently("page", "fresh", &json!({"client": 0, "after": 0}))
        .await?;
    ensure!(
        page.as_array().is_some_and(|rows| !rows.is_empty()),
        "the rows are not there: {page}"
    );
    Ok(format!(
        "no restart by the operator's absence, {} mutations meanwhile; the same members {again:?}",
        history.acknowledged()
    ))
}

async fn member_ids(flower: &Flower) -> Result<Vec<String>> {
    wait_for("three members answer", Duration::from_secs(60), || async {
        let reports = flower.reports().await?;
        let ids: Vec<_> = reports
            .values()
            .filter_map(|report| report.identity.member.map(|id| id.to_string()))
            .collect();
        ensure!(ids.len() == 3, "{ids:?}");
        Ok(ids)
    })
    .await
}
