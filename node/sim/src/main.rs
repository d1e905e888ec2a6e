//! `flower-sim`: runs worlds by seed, alone or by the hundred, whole or with one thing broken.

use std::{
    collections::BTreeMap,
    io::Write,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::{Parser, ValueEnum};
use flower_sim::{
    campaign::{self, Settings, Verdict},
    process, seeds,
};
use flower_store::sabotage::Break;
use serde::Serialize;

/// Runs Flower's nodes in simulated worlds. One number makes a world: its cluster, clients,
/// faults, and every choice of chance in it.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// The first seed; without it one is made from the hash of the committed tree, so that each
    /// commit has seeds of its own, and the same ones however often it is tried.
    #[arg(long)]
    seed: Option<u64>,
    /// How many seeds.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Seeds are run until so many seconds have passed; instead of --seeds.
    #[arg(long)]
    budget: Option<u64>,
    /// How long clients work under faults, seconds of the world's time.
    #[arg(long, default_value_t = seeds::SECONDS)]
    seconds: u64,
    /// Breaks one thing on purpose: the first seed that fails ends the run, which is a
    /// success then.
    #[arg(long = "break", value_name = "NAME")]
    broken: Option<String>,
    /// Breaks each thing in turn; each must be caught within --seeds.
    #[arg(long)]
    breaks: bool,
    /// Runs each seed twice; both must give the same hash.
    #[arg(long)]
    twice: bool,
    /// Nodes' logs to standard error.
    #[arg(long)]
    log: bool,
    /// Writes all that goes into the hash to a file.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Runs the one seed in this process; otherwise each has a process of its own.
    #[arg(long)]
    alone: bool,
    /// How results are printed.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// A campaign's figures.
#[derive(Debug, Default, Serialize)]
struct Total {
    commit: String,
    first_seed: u64,
    worlds: u64,
    failed: Vec<u64>,
    world_hours: f64,
    calls: usize,
    written: usize,
    unknown: usize,
    read: usize,
    reached: BTreeMap<String, u64>,
    missed: Vec<&'static str>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let broken = match args.broken.as_deref().map(named) {
        Some(Err(why)) => {
            eprintln!("flower-sim: {why}");
            return ExitCode::FAILURE;
        }
        Some(Ok(broken)) => Some(broken),
        None => None,
    };
    if args.alone {
        return alone(&args, broken);
    }
    let good = match (args.breaks, broken) {
        (true, _) => Break::ALL.into_iter().fold(true, |all, broken| {
            let caught = hunt(&args, broken);
            all && caught
        }),
        (false, Some(broken)) => hunt(&args, broken),
        (false, None) => campaign(&args),
    };
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// One world in this process.
fn alone(args: &Args, broken: Option<Break>) -> ExitCode {
    let seed = first_seed(args);
    let verdict = campaign::run(Settings {
        trace: args.trace.is_some(),
        ..settings(args, seed, broken)
    });
    if let Some(path) = &args.trace {
        let steps = verdict.trace.iter();
        let lines: Vec<_> = steps
            .map(|(hash, step)| format!("{hash:016x} {step}"))
            .collect();
        if let Err(error) = std::fs::write(path, lines.join("\n")) {
            eprintln!("flower-sim: {} cannot be written: {error}", path.display());
        }
    }
    report(args, &commit(), &verdict, Duration::ZERO);
    ExitCode::from(u8::from(verdict.failure.is_some()))
}

fn named(name: &str) -> Result<Break, String> {
    let known = Break::ALL.into_iter().find(|one| one.name() == name);
    known.ok_or_else(|| {
        let names: Vec<_> = Break::ALL.into_iter().map(Break::name).collect();
        format!("'{name}' is no break; there are {}", names.join(", "))
    })
}

fn first_seed(args: &Args) -> u64 {
    args.seed.unwrap_or_else(|| {
        let tree = git(&["rev-parse", "--short=12", "HEAD^{tree}"]);
        let number = tree.and_then(|hash| u64::from_str_radix(hash.get(..12)?, 16).ok());
        number.unwrap_or(1)
    })
}

fn commit() -> String {
    git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".into())
}

fn git(args: &[&str]) -> Option<String> {
    let asked = std::process::Command::new("git").args(args).output();
    let told = asked.ok().filter(|asked| asked.status.success())?;
    let text = String::from_utf8(told.stdout).ok()?;
    Some(text.trim().to_owned())
}

/// Seeds with one thing broken, until one fails.
fn hunt(args: &Args, broken: Break) -> bool {
    let first = args.seed.unwrap_or(1);
    for seed in first..first + args.seeds.max(1) {
        let verdict = once(args, seed, Some(broken));
        if let Some(failure) = verdict.failure {
            println!("{}: caught by seed {seed}: {failure}", broken.name());
            return true;
        }
    }
    println!(
        "{}: NOT CAUGHT by seeds {first} to {}",
        broken.name(),
        first + args.seeds.max(1) - 1
    );
    false
}

fn campaign(args: &Args) -> bool {
    let first = first_seed(args);
    let mut total = Total {
        commit: commit(),
        first_seed: first,
        ..Total::default()
    };
    let begun = Instant::now();
    let mut seed = first;
    loop {
        let enough = match args.budget {
            Some(seconds) => begun.elapsed() >= Duration::from_secs(seconds),
            None => total.worlds >= args.seeds,
        };
        if enough {
            break;
        }
        let verdict = once(args, seed, None);
        report(args, &total.commit, &verdict, begun.elapsed());
        total.add(&verdict);
        seed += 1;
    }
    if total.worlds >= seeds::ENOUGH_TO_REACH_ALL {
        let reached = |state: &&&str| !total.reached.contains_key(**state);
        total.missed = seeds::MUST_REACH.iter().filter(reached).copied().collect();
    }
    let good = total.failed.is_empty() && total.missed.is_empty();
    match args.output {
        Output::Json => println!("{}", serde_json::to_string(&total).unwrap_or_default()),
        Output::Text => {
            println!(
                "{} worlds from seed {first} at commit {}: {:.2} hours of their time, {} calls, \
                 {} writes acknowledged, {} unknown, {} reads; failed: {:?}",
                total.worlds,
                total.commit,
                total.world_hours,
                total.calls,
                total.written,
                total.unknown,
                total.read,
                total.failed
            );
            println!("reached: {:?}", total.reached);
            if !total.missed.is_empty() {
                println!("MISSED: {:?}", total.missed);
            }
        }
    }
    good
}

fn once(args: &Args, seed: u64, broken: Option<Break>) -> Verdict {
    let settings = settings(args, seed, broken);
    let ran = std::env::current_exe().and_then(|program| {
        if args.twice {
            process::run_twice(&program, &settings)
        } else {
            process::run(&program, &settings)
        }
    });
    ran.unwrap_or_else(|error| Verdict {
        seed,
        failure: Some(error.to_string()),
        ..Verdict::default()
    })
}

fn settings(args: &Args, seed: u64, broken: Option<Break>) -> Settings {
    Settings {
        seed,
        seconds: args.seconds,
        broken,
        log: args.log,
        trace: false,
    }
}

fn report(args: &Args, commit: &str, verdict: &Verdict, elapsed: Duration) {
    if args.output == Output::Json {
        println!("{}", serde_json::to_string(verdict).unwrap_or_default());
    } else {
        println!(
            "seed {}: {} ({:.0} s of its time, {} calls, {} written, {} unknown, {} read, hash {}) at {:.0} s",
            verdict.seed,
            verdict.failure.as_deref().unwrap_or("good"),
            verdict.world_ms as f64 / 1_000.0,
            verdict.calls,
            verdict.written,
            verdict.unknown,
            verdict.read,
            verdict.hash,
            elapsed.as_secs_f64(),
        );
    }
    if verdict.failure.is_some() {
        let mut out = std::io::stderr().lock();
        for line in &verdict.story {
            let _ = writeln!(out, "{line}");
        }
        let _ = writeln!(
            out,
            "commit {commit}; again with: cargo run -p flower-sim -- --seed {} --seconds {}",
            verdict.seed, args.seconds
        );
    }
}

impl Total {
    fn add(&mut self, verdict: &Verdict) {
        self.worlds += 1;
        if verdict.failure.is_some() {
            self.failed.push(verdict.seed);
        }
        self.world_hours += verdict.world_ms as f64 / 3_600_000.0;
        self.calls += verdict.calls;
        self.written += verdict.written;
        self.unknown += verdict.unknown;
        self.read += verdict.read;
        for (state, count) in &verdict.reached {
            *self.reached.entry(state.clone()).or_default() += count;
        }
    }
}
