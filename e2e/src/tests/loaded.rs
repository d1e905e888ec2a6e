//! `flower-load` against a cluster: the clients and checkers of the simulation, over real sockets,
//! while leaders are killed and stopped.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use flower_api::ports;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::process::Command;

use super::Test;
use crate::cluster::Scene;
use crate::flower::Flower;
use crate::paths::target;
use crate::progress::{note, wait_for};
use crate::run::{output, run as command};

/// See the file's head.
pub const TEST: Test = Test {
    name: "loaded",
    in_ci: false,
    what: "flower-load with 32 clients over all calls; leaders killed twice and stopped once: the history is judged",
    run: |scene| Box::pin(run(scene)),
};

const CLIENTS: &str = "32";
const SECONDS: &str = "75";
/// How many writes must be acknowledged for the history to mean something.
const ENOUGH: u64 = 1_000;
/// Longer than a leader is believed without a word.
const STOPPED: Duration = Duration::from_secs(8);

async fn run(scene: Scene) -> Result<String> {
    let program = target().join("debug/flower-load");
    let app = command(&program, &["app"]).await?;
    let flower = Flower::new(&scene, "db");
    flower.apply_app(&app, json!({"replicas": 3})).await?;
    flower.ready(Duration::from_secs(180)).await?;
    let url = format!("http://{}:{}", flower.service().await?, ports::CLIENT);
    let mut load = Command::new(program);
    load.args(["run", "--json", "--clients", CLIENTS, "--seconds", SECONDS])
        .env("FLOWER_URL", url)
        .env("FLOWER_TOKEN", flower.token("client").await?);
    let (summary, faults) = tokio::join!(output(load, None), faults(&flower));
    faults?;
    let summary: Value = serde_json::from_str(&summary?).context("what flower-load printed")?;
    let number = |name: &str| summary[name].as_u64().unwrap_or(0);
    let acknowledged = number("acknowledged");
    ensure!(
        acknowledged >= ENOUGH,
        "only {acknowledged} writes were acknowledged"
    );
    ensure!(number("told") > 0, "no watcher was told anything");
    ensure!(
        number("replays") > 0,
        "no write was answered from a receipt"
    );
    flower.ready(Duration::from_secs(120)).await?;
    Ok(format!(
        "{} calls, {acknowledged} writes acknowledged, {} replays, {} steps of watches; nothing lost, nothing twice, every read as its class says",
        number("calls"),
        number("replays"),
        number("told"),
    ))
}

/// Two kills and a stop of whoever leads, each after the last has healed.
async fn faults(flower: &Flower) -> Result<()> {
    for signal in [Signal::SIGKILL, Signal::SIGSTOP, Signal::SIGKILL] {
        tokio::time::sleep(Duration::from_secs(8)).await;
        let (leader, led) = flower.wait_leader().await?;
        flower.signal(&leader, signal).await?;
        let moved = wait_for("another leads", Duration::from_secs(60), || async {
            let (now, report) = flower.leader().await?;
            ensure!(report.term > led.term, "{now} leads in the same term");
            Ok(())
        })
        .await;
        if signal == Signal::SIGSTOP {
            tokio::time::sleep(STOPPED).await;
            // Whatever happened: it must not stay stopped.
            flower.signal(&leader, Signal::SIGCONT).await?;
        }
        moved?;
        flower.ready(Duration::from_secs(120)).await?;
        note(&format!("{leader}: {signal}, and back"));
    }
    Ok(())
}
