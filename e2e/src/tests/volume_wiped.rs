//! A volume is wiped under a living member: the new process must not pass for the old member,
//! and is replaced by a new one. The same when only the data is gone and the identity is left.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Test;
use super::volume_lost::purged;
use crate::cluster::Scene;
use crate::flower::{Flower, LEDGER};
use crate::progress::{note, wait_for};

/// See the file's head.
pub const TEST: Test = Test {
    name: "volume-wiped",
    in_ci: true,
    what: "a follower's volume wiped under its member id: refused, then replaced; the same when only the data is gone",
    run: |scene| Box::pin(run(scene)),
};

/// What is left of the data directory.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Left {
    Nothing,
    Identity,
}

async fn run(scene: Scene) -> Result<String> {
    let flower = Flower::new(&scene, "db");
    let (work, _) = purged(&flower, LEDGER).await?;
    let mut saw = Vec::new();
    for left in [Left::Nothing, Left::Identity] {
        saw.push(round(&flower, left).await?);
    }
    let history = work.finish().await?;
    Ok(format!(
        "{}; {} mutations, none lost",
        saw.join("; "),
        history.acknowledged()
    ))
}

async fn round(flower: &Flower, left: Left) -> Result<String> {
    let (leader, before) = flower.leader().await?;
    let mut names = (0..3).map(|ordinal| flower.pod(ordinal));
    let victim = names.find(|name| *name != leader).context("no follower")?;
    let lost = flower.member(&victim).await?;
    wipe(&flower.volume_folder(&victim).await?, left)?;
    flower.kill(&victim).await?;
    if left == Left::Nothing {
        refused(flower, &victim).await?;
    }
    let newcomer = flower
        .replaced(&victim, lost, Duration::from_secs(240))
        .await?;
    flower.ready(Duration::from_secs(60)).await?;
    let images = newcomer.images_received;
    ensure!(images == 1, "{images} images were received");
    let (_, after) = flower.leader().await?;
    ensure!(
        after.term == before.term,
        "the term moved from {} to {}",
        before.term,
        after.term
    );
    let said = format!("{left:?} left of {lost} in {victim}: replaced by one image, term unmoved");
    note(&said);
    Ok(said)
}

/// Removes the files under the running process.
fn wipe(volume: &Path, left: Left) -> Result<()> {
    let mut removed = 0;
    let mut folders = vec![volume.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)?.flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if left == Left::Nothing || path.extension().is_some_and(|ext| ext == "redb") {
                std::fs::remove_file(&path)?;
                removed += 1;
            }
        }
    }
    ensure!(removed >= 2, "only {removed} files in {}", volume.display());
    Ok(())
}

/// The new process says that it was taken for the old member, and refused.
async fn refused(flower: &Flower, pod: &str) -> Result<()> {
    let namespace = flower.scene.namespace.clone();
    let cluster = flower.scene.cluster.clone();
    wait_for(
        "the wiped node refuses what is for the old member",
        Duration::from_secs(60),
        || async {
            let log = cluster.kubectl(&["-n", &namespace, "logs", pod]).await?;
            let complaint = log
                .lines()
                .find(|line| line.contains("the one that was meant is gone"));
            complaint.context("its log does not say so").map(drop)
        },
    )
    .await
}
