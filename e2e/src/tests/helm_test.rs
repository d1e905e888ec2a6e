//! `helm test` of the operator's chart, as a user would run it.

use anyhow::{Result, ensure};

use super::Test;
use crate::cluster::Scene;
use crate::deploy::{OPERATOR, OPERATOR_NAMESPACE, helm};

/// See the file's head.
pub const TEST: Test = Test {
    name: "helm-test",
    in_ci: true,
    what: "`helm test` brings up a cluster of one replica, calls it, and leaves nothing",
    run: |scene| Box::pin(run(scene)),
};

async fn run(scene: Scene) -> Result<String> {
    let paths = &scene.cluster.paths;
    let said = helm(
        paths,
        &[
            "test",
            OPERATOR,
            "-n",
            OPERATOR_NAMESPACE,
            "--timeout",
            "5m",
        ],
    )
    .await?;
    ensure!(said.contains("Succeeded"), "helm test said: {said}");
    let left = scene
        .cluster
        .kubectl(&[
            "-n",
            OPERATOR_NAMESPACE,
            "get",
            "flowerclusters",
            "-o",
            "name",
        ])
        .await?;
    ensure!(left.trim().is_empty(), "it left {left}");
    Ok("succeeded, and left no FlowerCluster".to_owned())
}
