//! Volumes fill up: mutations are refused with the reason, reads go on, and with room again
//! everything goes on. First the leader's volume, then those of both followers.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use super::Test;
use crate::cluster::Scene;
use crate::flower::Flower;
use crate::progress::{note, wait_for};
use crate::workload::Caller;

/// See the file's head.
pub const TEST: Test = Test {
    name: "storage-full",
    in_ci: true,
    what: "the leader's volume full, then those of a majority: mutations refused, reads go on, mended by room",
    run: |scene| Box::pin(run(scene)),
};

/// What is left free of a volume that is filled: less than the reserve of 64 MiB, more than half.
const LEFT: u64 = 48 << 20;

async fn run(scene: Scene) -> Result<String> {
    let flower = Flower::new(&scene, "db");
    flower.apply(json!({"replicas": 3})).await?;
    flower.ready(Duration::from_secs(180)).await?;
    let caller = Caller::of(&flower).await?;
    let (leader, _) = flower.leader().await?;
    let (ours, others): (Vec<_>, Vec<_>) = (0..3)
        .map(|ordinal| flower.pod(ordinal))
        .partition(|name| *name == leader);
    for (who, pods) in [("the leader", ours), ("both followers", others)] {
        let mut ballast = Vec::new();
        for pod in &pods {
            ballast.push(fill(&flower, pod).await?);
        }
        let filled = full(&caller).await;
        for file in ballast {
            std::fs::remove_file(file)?;
        }
        filled?;
        wait_for("mutations go on", Duration::from_secs(30), || async {
            let status = add(&caller).await?;
            ensure!(status.0 == 200, "{status:?}");
            Ok(())
        })
        .await?;
        note(&format!("{who}: refused, mended"));
    }
    Ok("storage-full by the leader and by a majority; reads went on; mended by room".to_owned())
}

/// Fills a pod's volume from outside; returns the file that does.
async fn fill(flower: &Flower, pod: &str) -> Result<PathBuf> {
    let folder = flower.volume_folder(pod).await?;
    let space = nix::sys::statvfs::statvfs(&folder)?;
    let free = space.blocks_available() * space.fragment_size();
    ensure!(free > LEFT, "{pod} has only {free} bytes free");
    let file = folder.join("ballast");
    let made = std::fs::File::create(&file)?;
    nix::fcntl::fallocate(
        &made,
        nix::fcntl::FallocateFlags::empty(),
        0,
        i64::try_from(free - LEFT)?,
    )?;
    Ok(file)
}

/// Mutations are refused for want of space, and a fresh read is answered.
async fn full(caller: &Caller) -> Result<()> {
    wait_for("storage-full", Duration::from_secs(30), || async {
        let (status, code) = add(caller).await?;
        ensure!(
            status == 503 && code == "storage-full",
            "a mutation answered {status} {code}"
        );
        Ok(())
    })
    .await?;
    let answer = caller.query("ping", "fresh", &json!({})).await?;
    ensure!(answer == "pong", "a query answered {answer}");
    Ok(())
}

async fn add(caller: &Caller) -> Result<(u16, String)> {
    let key = uuid::Uuid::now_v7().to_string();
    let args = json!({"client": 99, "seq": 1, "note": ""});
    let answer = caller
        .send("/v1/p/_/m/add", &[("idempotency-key", &key)], &args)
        .await?;
    let code = answer.body["code"].as_str().unwrap_or_default().to_owned();
    Ok((answer.status, code))
}
