//! Incompressible rows of four times the memory limit, read uniformly: the node stays below its
//! limit, restarts, and sends and receives an image.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::Test;
use crate::cluster::Scene;
use crate::flower::Flower;
use crate::progress::{note, wait_for};
use crate::workload::Caller;

/// See the file's head.
pub const TEST: Test = Test {
    name: "larger-than-memory",
    in_ci: false,
    what: "rows of four times the memory limit: serves, restarts, sends and receives an image below its limit",
    run: |scene| Box::pin(run(scene)),
};

const LIMIT_MIB: u64 = 288;
/// Bytes of one row's text.
const ROW: usize = 64 << 10;
const WRITERS: usize = 8;

async fn run(scene: Scene) -> Result<String> {
    let flower = Flower::new(&scene, "db");
    let memory = json!({"memory": format!("{LIMIT_MIB}Mi")});
    let spec = json!({
        "replicas": 3,
        "resources": {"requests": memory, "limits": memory},
        "storage": {"size": "4Gi"},
    });
    flower.apply(spec).await?;
    flower.ready(Duration::from_secs(180)).await?;
    let rows = usize::try_from((4 * LIMIT_MIB) << 20)? / ROW;
    fill(&flower, rows).await?;
    note(&format!("{rows} rows of {ROW} bytes are written"));

    read_all_over(&flower, rows).await?;
    let after_reads = most_resident(&flower).await?;

    let victim = follower(&flower).await?;
    let restarts = restarts(&flower, &victim).await?;
    flower.kill(&victim).await?;
    wait_for(
        "the pod answers again",
        Duration::from_secs(240),
        || async {
            let now = self::restarts(&flower, &victim).await?;
            ensure!(now > restarts, "it was restarted {now} times");
            flower.member(&victim).await.map(drop)
        },
    )
    .await?;
    flower.ready(Duration::from_secs(240)).await?;
    let lost = flower.lose_volume(&victim).await?;
    flower
        .replaced(&victim, lost, Duration::from_secs(420))
        .await?;
    flower.ready(Duration::from_secs(120)).await?;
    let after_image = most_resident(&flower).await?;
    for pod in flower.pods().await? {
        let last = &pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["reason"];
        ensure!(
            last != "OOMKilled",
            "{} was killed for its memory",
            pod["metadata"]["name"]
        );
    }
    Ok(format!(
        "{} MiB of rows under a limit of {LIMIT_MIB} MiB; resident set at most {after_reads} MiB after reads, {after_image} MiB after an image",
        (rows * ROW) >> 20
    ))
}

/// Reads rows in an order that visits the file all over.
async fn read_all_over(flower: &Flower, rows: usize) -> Result<()> {
    let caller = Caller::of(flower).await?;
    for step in 0..2_000_usize {
        // A stride without common divisor.
        let seq = 1 + step * 7_919 % (rows / WRITERS);
        let client = step % WRITERS;
        let args = json!({"client": client, "after": seq - 1, "limit": 1});
        let read = caller.query_patiently("page", "local", &args).await?;
        ensure!(
            read[0]["seq"] == seq,
            "row {client}/{seq} reads as {}",
            read[0]["seq"]
        );
    }
    Ok(())
}

/// Writes rows that no compression makes smaller.
async fn fill(flower: &Flower, rows: usize) -> Result<()> {
    let mut tasks = tokio::task::JoinSet::new();
    for client in 0..WRITERS {
        let caller = Caller::of(flower).await?;
        tasks.spawn(async move {
            for seq in 1..=rows / WRITERS {
                let args = json!({"client": client, "seq": seq, "note": noise(ROW)});
                let key = uuid::Uuid::now_v7().to_string();
                wait_for("a row is written", Duration::from_secs(120), || async {
                    let answer = caller.mutate("add", &key, &args).await?;
                    ensure!(answer.status == 200, "{}: {}", answer.status, answer.body);
                    Ok(())
                })
                .await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

/// Random text of a length.
fn noise(length: usize) -> String {
    let mut text = String::with_capacity(length + 32);
    while text.len() < length {
        text.push_str(&uuid::Uuid::new_v4().simple().to_string());
    }
    text
}

async fn restarts(flower: &Flower, pod: &str) -> Result<u64> {
    let pod = flower.scene.get("Pod", pod).await?;
    let count = &pod["status"]["containerStatuses"][0]["restartCount"];
    count.as_u64().context("no count of restarts")
}

async fn follower(flower: &Flower) -> Result<String> {
    let (leader, _) = flower.wait_leader().await?;
    (0..3)
        .map(|ordinal| flower.pod(ordinal))
        .find(|pod| *pod != leader)
        .context("no follower")
}

/// The largest resident set of the nodes in MiB; all must be below the limit.
async fn most_resident(flower: &Flower) -> Result<u64> {
    let reports = flower.reports().await?;
    ensure!(reports.len() == 3, "only {} answer", reports.len());
    let most = reports
        .values()
        .filter_map(|report| report.footprint.resident_bytes)
        .max()
        .context("no resident set")?
        >> 20;
    ensure!(most < LIMIT_MIB, "a resident set of {most} MiB");
    Ok(most)
}
