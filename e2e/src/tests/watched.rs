//! A watch is followed through a rolling restart, by the program that users have: every state
//! that it shows is one that the cluster had, in order, and the last is the newest.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use flower_api::wire::code;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::Test;
use super::restarts::{uids, watch_restarts};
use crate::cluster::Scene;
use crate::flower::{BOARD, Flower};
use crate::paths::target;
use crate::progress::seconds;
use crate::workload::{Caller, Workload};

/// See the file's head.
pub const TEST: Test = Test {
    name: "watched",
    in_ci: true,
    what: "`flower watch` through a rolling restart: every state real, in order, the last the newest",
    run: |scene| Box::pin(run(scene)),
};

/// What a line of `flower watch` showed, and when.
type Shown = (Instant, Value);

async fn run(scene: Scene) -> Result<String> {
    let flower = Flower::new(&scene, "db");
    flower.apply_app(BOARD, json!({"replicas": 3})).await?;
    flower.ready(Duration::from_secs(180)).await?;
    let work = Workload::start(&flower, 3, Duration::from_millis(5)).await?;
    work.flows(Duration::from_secs(30)).await?;
    let (mut child, mut lines) = follow(&flower).await?;
    let before = uids(&flower).await?;
    let set = format!("statefulset/{}", flower.set());
    scene
        .cluster
        .kubectl(&["-n", &scene.namespace, "rollout", "restart", &set])
        .await?;
    watch_restarts(&flower, &before).await?;
    flower.ready(Duration::from_secs(120)).await?;
    let history = work.finish().await?;
    let newest = Caller::of(&flower)
        .await?
        .query_patiently("board", "fresh", &json!({}))
        .await?;
    let shown = until(&mut lines, &newest).await?;
    child.kill().await?;
    let longest = judge(&shown)?;
    Ok(format!(
        "{} states of {} mutations were shown, the longest time between two {}, the last is the newest",
        shown.len(),
        history.acknowledged(),
        seconds(longest)
    ))
}

/// Starts `flower watch board`, through the Service.
async fn follow(flower: &Flower) -> Result<(Child, mpsc::UnboundedReceiver<Shown>)> {
    let url = format!(
        "http://{}:{}",
        flower.service().await?,
        flower_api::ports::CLIENT
    );
    let mut child = Command::new(target().join("debug/flower"))
        .args(["watch", "board", "--output", "json", "--url", &url])
        .env("FLOWER_TOKEN", flower.token("client").await?)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("starting `flower watch`")?;
    let out = child.stdout.take().context("no output to read")?;
    let (send, lines) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut out = BufReader::new(out).lines();
        while let Ok(Some(line)) = out.next_line().await {
            let value = serde_json::from_str(&line).unwrap_or(Value::String(line));
            if send.send((Instant::now(), value)).is_err() {
                return;
            }
        }
    });
    Ok((child, lines))
}

/// All that was shown until `newest` came.
async fn until(lines: &mut mpsc::UnboundedReceiver<Shown>, newest: &Value) -> Result<Vec<Shown>> {
    let mut shown = Vec::new();
    loop {
        let next = tokio::time::timeout(Duration::from_secs(60), lines.recv()).await;
        let next = next
            .ok()
            .flatten()
            .with_context(|| format!("the watch never showed {newest}; {} states", shown.len()))?;
        let last = next.1["value"] == *newest;
        shown.push(next);
        if last {
            return Ok(shown);
        }
    }
}

/// Each client enters 1, 2, 3…: a state is real when every count has the sum that belongs to
/// it, and no count goes back. Answers the longest time between two states.
fn judge(shown: &[Shown]) -> Result<Duration> {
    let (mut revision, mut longest) = (0, Duration::ZERO);
    let mut counts: BTreeMap<i64, i64> = BTreeMap::new();
    let mut last: Option<&Shown> = None;
    for now in shown {
        let (at, state) = now;
        // Out of time on a busy machine: it has no result for the moment, and says so.
        if state["problem"]["code"] == code::BUDGET {
            continue;
        }
        let to = state["revision"]
            .as_u64()
            .with_context(|| format!("not a state: {state}"))?;
        ensure!(to >= revision, "from revision {revision} back to {to}");
        revision = to;
        for row in state["value"].as_array().context("the board is no list")? {
            let number = |name: &str| row[name].as_i64().context("not a number");
            let (count, sum) = (number("count")?, number("sum")?);
            ensure!(
                sum == count * (count + 1) / 2 && sum == number("value")?,
                "this never was: {row}"
            );
            let was = counts.insert(number("client")?, count).unwrap_or(0);
            ensure!(count >= was, "from {was} entries back to {count}");
        }
        if let Some((before, old)) = last {
            ensure!(old["value"] != state["value"], "told again: {state}");
            longest = longest.max(at.duration_since(*before));
        }
        last = Some(now);
    }
    ensure!(shown.len() > 50, "only {} states were shown", shown.len());
    Ok(longest)
}
