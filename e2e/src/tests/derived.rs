//! Derived values on the cluster: a follower is replaced while they propagate, and two
//! leaders killed while a changed one is built. Afterwards all replicas have the same state, and an
//! evaluator that shares no code with the engine agrees with every stored cell.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use flower_api::{ports, report::BuildInfo};
use serde_json::{Value, json};
use tokio::process::Command;

use super::Test;
use super::volume_lost::purged;
use crate::cluster::{Scene, ensure_condition};
use crate::flower::{BOARD, Flower};
use crate::paths::{root, target};
use crate::progress::{Ended, wait_for};
use crate::run::output;
use crate::workload::{Caller, Workload};

/// See the file's head.
pub const REPLACED: Test = Test {
    name: "derived-replaced",
    in_ci: true,
    what: "a follower replaced while derived values propagate: equal checksums, every cell as recomputed",
    run: |scene| Box::pin(replaced(scene)),
};

/// See the file's head.
pub const BUILT: Test = Test {
    name: "derived-built",
    in_ci: false,
    what: "two leaders killed while a changed derived value is built: built, and every cell as recomputed",
    run: |scene| Box::pin(built(scene)),
};

async fn replaced(scene: Scene) -> Result<String> {
    let flower = Flower::new(&scene, "db");
    let (work, _) = purged(&flower, BOARD).await?;
    let (leader, _) = flower.leader().await?;
    let mut pods = (0..3).map(|ordinal| flower.pod(ordinal));
    let victim = pods.find(|pod| *pod != leader).context("no follower")?;
    let lost = flower.lose_volume(&victim).await?;
    let newcomer = flower
        .replaced(&victim, lost, Duration::from_secs(240))
        .await?;
    flower.ready(Duration::from_secs(60)).await?;
    ensure!(
        newcomer.images_received == 1,
        "{} images were received",
        newcomer.images_received
    );
    let history = work.finish().await?;
    let agreed = agreed(&flower).await?;
    Ok(format!(
        "{victim} replaced by one image under {} mutations, none lost; {agreed}",
        history.acknowledged()
    ))
}

/// Clients that are there before the build, and entries of each: enough to be built for the best
/// part of a minute, and few enough of one client for a page.
const CLIENTS: std::ops::Range<u64> = 10..42;
const ROWS: u64 = 500;
/// What each entry's worth costs to compute, so that the build can be met under way.
const STEPS: u64 = 40_000;

async fn built(scene: Scene) -> Result<String> {
    let flower = Flower::new(&scene, "db");
    flower.apply_app(BOARD, json!({"replicas": 3})).await?;
    flower.ready(Duration::from_secs(180)).await?;
    let caller = Caller::of(&flower).await?;
    for from in (1..=ROWS).step_by(250) {
        for client in CLIENTS {
            let args = json!({"client": client, "from": from, "count": 250});
            let key = format!("fill-{client}-{from}");
            wait_for("rows to build over", Duration::from_secs(60), || async {
                let answer = caller.mutate("fill", &key, &args).await?;
                ensure!(answer.status == 200, "{}: {}", answer.status, answer.body);
                Ok(())
            })
            .await?;
        }
    }
    let work = Workload::start(&flower, 3, Duration::from_millis(20)).await?;
    work.flows(Duration::from_secs(30)).await?;
    flower
        .bundle(
            &BOARD
                .replace("const FACTOR = 1;", "const FACTOR = 2;")
                .replace("const STEPS = 0;", &format!("const STEPS = {STEPS};")),
        )
        .await?;
    let first = building(&flower, None).await?;
    let (leader, _) = flower.leader().await?;
    flower.kill(&leader).await?;
    // Its successor too, once three answer again and the build has moved on.
    let second = building(&flower, Some(first.done)).await?;
    let (successor, _) = flower.wait_leader().await?;
    flower.kill(&successor).await?;
    wait_for(
        "the new code is active",
        Duration::from_secs(240),
        || async {
            let object = flower.object().await?;
            ensure_condition(&object, "AppDeployed")?;
            let board = caller.query("board", "fresh", &json!({})).await?;
            doubled(&board)
        },
    )
    .await?;
    flower.ready(Duration::from_secs(120)).await?;
    let history = work.finish().await?;
    let agreed = agreed(&flower).await?;
    Ok(format!(
        "{leader} killed at '{first}', {successor} at '{second}', the build went on; {} mutations \
         meanwhile, none lost; {agreed}",
        history.acknowledged()
    ))
}

/// Waits until all three replicas answer and the leader tells of a build that is past `done`.
async fn building(flower: &Flower, done: Option<u64>) -> Result<BuildInfo> {
    wait_for("a build under way", Duration::from_secs(120), || async {
        let reports = flower.reports().await?;
        ensure!(reports.len() == 3, "{} pods answer", reports.len());
        let (_, report) = flower.leader().await?;
        let deployment = report.deployment.context("no deployment")?;
        if done.is_some() && deployment.build.is_none() {
            let why = "the build ended before its next leader was killed";
            return Err(Ended(why.into()).into());
        }
        let build = deployment.build.context("no build yet")?;
        ensure!(build.done > done.unwrap_or(0), "{build}");
        Ok(build)
    })
    .await
}

/// Each sum is twice that of the entries' numbers.
fn doubled(board: &Value) -> Result<()> {
    for row in board.as_array().context("the board is no list")? {
        let count = row["count"].as_i64().context("no count")?;
        ensure!(row["sum"] == count * (count + 1), "not yet: {row}");
    }
    Ok(())
}

/// Equal checksums on all replicas, and the reference agrees with an export.
async fn agreed(flower: &Flower) -> Result<String> {
    let checksum = wait_for("equal states", Duration::from_secs(60), || async {
        let reports = flower.reports().await?;
        ensure!(reports.len() == 3, "{} pods answer", reports.len());
        let states: BTreeSet<_> = reports
            .values()
            .map(|report| (report.positions.applied, report.state_checksum.clone()))
            .collect();
        ensure!(states.len() == 1, "{states:?}");
        Ok(states)
    })
    .await?;
    ensure!(!checksum.is_empty(), "no checksum");
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("export.ndjson");
    export(flower, &file).await?;
    let mut check = Command::new("node");
    check
        .arg(root().join("node/sdk/reference/check.mjs"))
        .arg(&file);
    let said = output(check, None).await?;
    let said = said.trim();
    ensure!(!said.starts_with("0 cells"), "nothing was compared: {said}");
    Ok(format!("equal states; the reference: {said}"))
}

async fn export(flower: &Flower, file: &Path) -> Result<()> {
    let url = format!("http://{}:{}", leader_address(flower).await?, ports::ADMIN);
    let mut command = Command::new(target().join("debug/flower"));
    command
        .args(["export", "--cells", "--admin-url", &url])
        .arg(file)
        .env("FLOWER_ADMIN_TOKEN", flower.token("admin").await?);
    output(command, None).await.map(drop)
}

async fn leader_address(flower: &Flower) -> Result<String> {
    let (leader, _) = flower.leader().await?;
    let pod = flower.scene.get("Pod", &leader).await?;
    let address = pod["status"]["podIP"].as_str();
    Ok(address.context("the leader has no address")?.to_owned())
}
