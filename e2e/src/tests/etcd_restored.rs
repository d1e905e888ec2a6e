//! The cluster's etcd is restored from an older copy: the API shows the past, and the operator
//! must not act on it. Everything on this cluster goes back in time with it, so that this test
//! comes last.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::Test;
use crate::cluster::{Scene, ensure_condition};
use crate::flower::Flower;
use crate::kube::{apiserver, controllers, coredns, etcd, proxy};
use crate::paths::Paths;
use crate::process::stop;
use crate::progress::wait_for;
use crate::run::run as command;
use crate::workload::{Caller, Workload};

/// See the file's head.
pub const TEST: Test = Test {
    name: "etcd-restored",
    in_ci: false,
    what: "etcd restored from a copy made before a cluster grew: StaleSpec, no member is removed, and a newer spec goes on",
    run: |scene| Box::pin(run(scene)),
};

/// Long enough for an operator that would act.
const WATCHED: Duration = Duration::from_secs(60);

async fn run(scene: Scene) -> Result<String> {
    let paths = &scene.cluster.paths;
    let flower = Flower::new(&scene, "db");
    flower.apply(json!({"replicas": 3})).await?;
    flower.ready(Duration::from_secs(180)).await?;
    copied(paths).await?;
    flower.change(json!({"replicas": 5})).await?;
    flower.ready(Duration::from_secs(300)).await?;
    let (_, grown) = flower.wait_leader().await?;
    let grown = grown.configuration.context("no configuration")?.members;
    ensure!(grown.len() == 5, "{} members", grown.len());
    let work = Workload::start(&flower, 2, Duration::from_millis(20)).await?;
    work.flows(Duration::from_secs(30)).await?;
    let history = work.finish().await?;

    restored(paths).await?;
    wait_for("StaleSpec", Duration::from_secs(180), || async {
        ensure_condition(&flower.object().await?, "StaleSpec")
    })
    .await?;
    // The kubelets end the pods that this API has never heard of; the group carries that.
    tokio::time::sleep(WATCHED).await;
    let (_, report) = flower.wait_leader().await?;
    let now = report.configuration.context("no configuration")?.members;
    ensure!(now == grown, "the members were {grown:?} and are {now:?}");
    ensure_condition(&flower.object().await?, "StaleSpec")?;
    let caller = Caller::of(&flower).await?;
    let args = json!({"client": 0, "after": 0});
    caller.query_patiently("page", "fresh", &args).await?;

    // The way out that the condition names: the current spec, until its generation is no lower.
    for round in 0..2 {
        let annotations = json!({"e2e.flowerdb.dev/restored": round.to_string()});
        let change = json!({"pod": {"annotations": annotations}, "replicas": 5});
        flower.change(change).await?;
    }
    flower.ready(Duration::from_secs(420)).await?;
    let (_, report) = flower.wait_leader().await?;
    let voters = report
        .configuration
        .map_or(0, |known| known.voters.concat().len());
    ensure!(voters == 5, "{voters} voters");
    Ok(format!(
        "StaleSpec, the same {} members after {}; five voters again by a newer spec; {} mutations before",
        grown.len(),
        crate::progress::seconds(WATCHED),
        history.acknowledged()
    ))
}

const COPY: &str = "etcd-copy";

/// Copies etcd's data while nothing writes to it.
async fn copied(paths: &Paths) -> Result<()> {
    down(paths).await?;
    let result = replace(&paths.dir("etcd")?, &paths.state().join(COPY)).await;
    up(paths).await?;
    result
}

/// Puts the copy in the place of etcd's data.
async fn restored(paths: &Paths) -> Result<()> {
    down(paths).await?;
    let result = replace(&paths.state().join(COPY), &paths.dir("etcd")?).await;
    up(paths).await?;
    result
}

async fn replace(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        std::fs::remove_dir_all(to)?;
    }
    command(
        "cp",
        &["-a", &from.display().to_string(), &to.display().to_string()],
    )
    .await
    .map(drop)
}

/// Whoever keeps what it has seen of the API in memory ends with it.
async fn down(paths: &Paths) -> Result<()> {
    for program in [
        "coredns",
        "kube-proxy",
        "kube-controller-manager",
        "kube-scheduler",
        "kube-apiserver",
        "etcd",
    ] {
        stop(paths, program).await?;
    }
    Ok(())
}

async fn up(paths: &Paths) -> Result<()> {
    etcd::up(paths).await?;
    apiserver::up(paths).await?;
    apiserver::ready(paths).await?;
    controllers::up(paths).await?;
    // It would go on waiting for changes behind a revision that the copy has not reached, and
    // Services would lead nowhere: to the API server, for one.
    proxy::up(paths).await?;
    coredns::up(paths).await?;
    coredns::ready(paths).await
}
