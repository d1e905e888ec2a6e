//! `flower-load`: runs the clients against nodes, writes the history as JSON lines, and judges
//! it. An edge of the program: it reads the environment and the clock.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::{
    fs::File,
    io::{BufRead as _, BufReader, BufWriter, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, Parser, Subcommand};
use flower_load::{
    APP,
    check::{self, Ending},
    history::{History, Line, Op, Outcome},
    real::{Real, Took},
    target::{self, Ended, Target as _},
    watcher::{self, Watched},
    workload::{Clients, MONEY, Workload},
};
use rand::{RngCore as _, SeedableRng as _, rngs::StdRng};
use serde::Serialize;
use serde_json::json;

/// A call that is under way when the time is over may still end within this.
const DRAIN: Duration = Duration::from_secs(60);
/// Appends end here: every reading of all lists is as long as the lists are.
const APPEND_UNTIL: u64 = 600;

/// Loads a Flower cluster and judges what its clients were told.
///
/// The clients call one application, that `flower-load app` prints: deploy it first, to a
/// database without rows. Nothing acknowledged may be lost, nothing may happen twice, and every
/// read must be what its class says; otherwise the exit code is 1.
#[derive(Debug, Parser)]
#[command(name = "flower-load", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs clients for a while, then judges their history.
    Run(RunArgs),
    /// Judges a history that was written before.
    Check {
        /// JSON lines, as `run --history` writes them.
        history: PathBuf,
    },
    /// Prints the application that the clients call.
    App,
}

#[derive(Debug, Args)]
struct RunArgs {
    /// A client API; several times for several nodes.
    #[arg(
        long,
        env = "FLOWER_URL",
        hide_env_values = true,
        value_name = "URL",
        default_value = "http://127.0.0.1:7700"
    )]
    url: Vec<String>,
    /// Token for it.
    #[arg(
        long,
        env = "FLOWER_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    token: Option<String>,
    /// Clients that call side by side.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    clients: u32,
    /// Clients that watch.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(0..=64))]
    watchers: u32,
    /// How long.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    seconds: u64,
    /// Longest pause of a client between two calls.
    #[arg(long, default_value_t = 10, value_name = "MILLISECONDS")]
    think: u64,
    /// Percent of the calls that write.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=100))]
    writes: u32,
    /// What the clients draw from: with the same seed they ask for the same. Drawn when not given.
    #[arg(long)]
    seed: Option<u64>,
    /// Where the history is written, as JSON lines.
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// Prints one JSON document.
    #[arg(long)]
    json: bool,
}

/// What a run came to.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    seed: u64,
    calls: usize,
    acknowledged: usize,
    unknown: usize,
    unanswered: usize,
    replays: u64,
    tries: u64,
    /// Steps that watchers were told.
    told: u64,
    functions: Vec<Took>,
    /// What was wrong, if anything was.
    wrong: Option<String>,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::App => {
            print!("{APP}");
            Ok(None)
        }
        Command::Check { history } => read(&history).map(|(ops, traces)| {
            println!("{} calls", ops.len());
            judge(&ops, &traces)
        }),
        Command::Run(args) => tokio::runtime::Runtime::new()
            .context("the runtime cannot start")
            .and_then(|runtime| runtime.block_on(run(&args))),
    };
    match done {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(wrong)) => {
            eprintln!("flower-load: {wrong}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("flower-load: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn judge(ops: &[Op], traces: &[u64]) -> Option<String> {
    let each = MONEY;
    check::judge(&Ending { ops, traces, each })
}

async fn run(args: &RunArgs) -> Result<Option<String>> {
    let target = Real::new(&args.url, args.token.as_deref())?;
    is_empty(&target, &args.url[0]).await?;
    let seed = args.seed.unwrap_or_else(|| rand::rng().next_u64());
    let clients = Clients {
        workload: Workload {
            clients: args.clients,
            watchers: args.watchers,
            keys: 8,
            lists: 3,
            accounts: 5,
            think_ms: args.think,
            tries: 200,
            writes: args.writes,
            append_until: APPEND_UNTIL,
        },
        hosts: args.url.clone(),
        history: History::default(),
        serial: Arc::new(AtomicU64::new(0)),
        stop: Arc::new(AtomicBool::new(false)),
    };
    clients.clone().open(&target).await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 1..=args.clients {
        let rng = StdRng::seed_from_u64(seed ^ u64::from(number).rotate_left(32));
        tasks.spawn(clients.clone().run(number, target.clone(), rng));
    }
    let watched = Watched::default();
    let mut watchers = tokio::task::JoinSet::new();
    for number in 0..args.watchers {
        let rng = StdRng::seed_from_u64(seed ^ u64::from(number).rotate_left(48) ^ 1);
        let (clients, watched) = (clients.clone(), watched.clone());
        watchers.spawn(watcher::run(number, target.clone(), rng, clients, watched));
    }
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    clients.stop.store(true, Ordering::Relaxed);
    let ended = tokio::time::timeout(DRAIN, async {
        while let Some(done) = tasks.join_next().await {
            done?;
        }
        Ok::<_, anyhow::Error>(())
    });
    // Calls that do not end stay open in the history, which is what they are.
    if let Ok(ended) = ended.await {
        ended?;
    }
    tasks.abort_all();
    watchers.abort_all();
    let traces = target::traces(&target, &args.url).await;
    let ops = clients.history.ops();
    if let Some(file) = &args.history {
        write(file, &ops, &traces)?;
    }
    let wrong = watched.wrong().or_else(|| judge(&ops, &traces));
    let [(_, told), _] = watched.reached();
    let summary = summary(seed, &ops, (target.took(), told), wrong);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&summary)?);
    } else {
        tell(&summary);
    }
    Ok(summary.wrong)
}

/// Whoever has written to the database before would be taken for a fault.
async fn is_empty(target: &Real, host: &str) -> Result<()> {
    let ended = target
        .query(host, "traces", "fresh", &json!({ "after": 0 }))
        .await;
    let (value, problem) = match ended {
        Ended::Result { value, .. } => (value, None),
        Ended::Problem(problem) => (json!(null), Some(problem)),
        Ended::None(_) => bail!("{host} does not answer"),
    };
    if let Some(problem) = problem {
        bail!("{problem}; the clients need the application that `flower-load app` prints");
    }
    ensure!(
        value.as_array().is_some_and(Vec::is_empty),
        "the database has rows of an earlier run: the clients need one without"
    );
    Ok(())
}

fn summary(
    seed: u64,
    ops: &[Op],
    (functions, told): (Vec<Took>, u64),
    wrong: Option<String>,
) -> Summary {
    let count = |fits: &dyn Fn(&Outcome) -> bool| ops.iter().filter(|op| fits(&op.outcome)).count();
    Summary {
        seed,
        calls: ops.len(),
        acknowledged: count(&|o| matches!(o, Outcome::Written { .. })),
        unknown: count(&|o| matches!(o, Outcome::Unknown)),
        unanswered: count(&|o| matches!(o, Outcome::None | Outcome::NotApplied)),
        replays: ops.iter().map(|op| u64::from(op.replays)).sum(),
        tries: ops.iter().map(|op| u64::from(op.tries)).sum(),
        told,
        functions,
        wrong,
    }
}

fn tell(summary: &Summary) {
    println!(
        "{} calls, {} writes acknowledged ({} tries, {} answered from receipts), {} unknown, {} \
         unanswered, {} steps of watches; seed {}",
        summary.calls,
        summary.acknowledged,
        summary.tries,
        summary.replays,
        summary.unknown,
        summary.unanswered,
        summary.told,
        summary.seed
    );
    for one in &summary.functions {
        println!(
            "{:>10}  {:>8} tries  p50 {:>5} ms  p99 {:>5} ms  longest {:>6} ms",
            one.function, one.tries, one.p50_ms, one.p99_ms, one.max_ms
        );
    }
    if summary.wrong.is_none() {
        println!("nothing lost, nothing twice, every read as its class says");
    }
}

fn write(file: &Path, ops: &[Op], traces: &[u64]) -> Result<()> {
    let told = || format!("writing {}", file.display());
    let mut out = BufWriter::new(File::create(file).with_context(told)?);
    let end = Line::End {
        traces: traces.to_vec(),
    };
    for line in ops.iter().cloned().map(Line::Op).chain([end]) {
        serde_json::to_writer(&mut out, &line)?;
        out.write_all(b"\n").with_context(told)?;
    }
    out.flush().with_context(told)
}

fn read(file: &Path) -> Result<(Vec<Op>, Vec<u64>)> {
    let told = || format!("reading {}", file.display());
    let mut ops = Vec::new();
    let mut end = None;
    for (number, line) in BufReader::new(File::open(file).with_context(told)?)
        .lines()
        .enumerate()
    {
        let line = line.with_context(told)?;
        let at = || format!("line {} of {}", number + 1, file.display());
        match serde_json::from_str(&line).with_context(at)? {
            Line::Op(op) => ops.push(op),
            Line::End { traces } => end = Some(traces),
        }
    }
    let traces =
        end.with_context(|| format!("{} has no end: what is stored was not read", file.display()))?;
    Ok((ops, traces))
}
