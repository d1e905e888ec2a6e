//! The engine against the reference evaluator of `node/sdk/reference`, which recomputes
//! every derived value from the rows after each mutation and shares no code with the engine.
//!
//! `FLOWER_DIFFERENTIAL_STEPS` sets how many calls are played (20,000), and
//! `FLOWER_DIFFERENTIAL_SEED` plays the one case of a seed.

mod app;
mod body;
mod case;
mod deployments;
mod reference;
mod rng;
mod shrink;
mod steps;
mod stored;
mod world;

use std::{
    fmt::Write,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use case::{Case, Tally};
use flower_engine::deploy::Planted;

/// Bytes of stack of a thread that evaluates: the reference recurses where the engine does.
const STACK: usize = 64 << 20;
/// How often each shape is met at least, in a run of so many calls.
const AT_LEAST: u64 = 200;
const STEPS: u64 = 20_000;
/// Deployments of a run of [`STEPS`].
const DEPLOYMENTS: u64 = 600;
/// Calls in which a planted fault is found.
const PLANTED_STEPS: u64 = 2_000;

/// Runs `act` on `count` threads with much stack.
fn with_stack<T: Send>(count: usize, act: impl Fn() -> T + Send + Sync) -> Vec<T> {
    let act = &act;
    std::thread::scope(|scope| {
        let start = |_| {
            let thread = std::thread::Builder::new().stack_size(STACK);
            thread.spawn_scoped(scope, act).expect("a thread starts")
        };
        let running: Vec<_> = (0..count).map(start).collect();
        running
            .into_iter()
            .map(|thread| match thread.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            })
            .collect()
    })
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number, not {text}")),
    )
}

/// A failure, made small, for people.
fn told(seed: u64, case: Case, why: String) -> String {
    let (case, why) = shrink::shrink(case, why);
    let mut out = format!(
        "FLOWER_DIFFERENTIAL_SEED={seed} fails {why}\n\n{}\n",
        case.app.definitions()
    );
    for step in &case.steps {
        let kind = if step.query { "query" } else { "mutation" };
        let _ = writeln!(out, "revision {}: {kind} {}", step.revision, step.args());
    }
    out
}

/// Plays cases from the first seed until so many calls were played or one fails.
fn play(steps: u64, planted: Option<Planted>) -> Result<Tally, String> {
    let (next, played, failed) = (AtomicU64::new(1), AtomicU64::new(0), Mutex::new(None));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let tallies = with_stack(threads, || {
        let mut tally = Tally::default();
        while played.load(Ordering::Relaxed) < steps {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let case = Case::random(seed, planted);
            match case.play() {
                Ok(one) => {
                    played.fetch_add(one.steps, Ordering::Relaxed);
                    tally += one;
                }
                Err(why) => {
                    played.store(u64::MAX / 2, Ordering::Relaxed);
                    let mut first = failed.lock().expect("no thread panics with it");
                    if first.is_none() {
                        *first = Some(match planted {
                            Some(_) => format!("seed {seed} {why}"),
                            None => told(seed, case, why),
                        });
                    }
                }
            }
        }
        tally
    });
    match failed.into_inner().expect("no thread panics with it") {
        Some(failure) => Err(failure),
        None => Ok(tallies.into_iter().fold(Tally::default(), |mut all, one| {
            all += one;
            all
        })),
    }
}

#[test]
fn the_reference_meets_what_was_written_by_hand() {
    let (met, failed) = with_stack(1, reference::expectations).remove(0);
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(met >= 60, "only {met} expectations");
}

#[test]
fn the_engine_agrees_with_the_reference() {
    if let Some(seed) = number("FLOWER_DIFFERENTIAL_SEED") {
        let case = Case::random(seed, None);
        let played = with_stack(1, || case.play()).remove(0);
        if let Err(why) = played {
            panic!(
                "{}",
                with_stack(1, || told(seed, case.clone(), why.clone())).remove(0)
            );
        }
        return;
    }
    let steps = number("FLOWER_DIFFERENTIAL_STEPS").unwrap_or(STEPS);
    let tally = play(steps, None).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{tally:?}");
    for (shape, times) in tally.shapes() {
        assert!(
            times >= AT_LEAST || steps < STEPS,
            "'{shape}' was met {times} times in {steps} calls; at least {AT_LEAST}"
        );
    }
}

/// Deployments begun in the middle of calls.
#[test]
fn a_build_under_calls_comes_to_what_the_reference_has() {
    let told = |seed: u64, why: String| panic!("FLOWER_DIFFERENTIAL_SEED={seed} fails {why}");
    if let Some(seed) = number("FLOWER_DIFFERENTIAL_SEED") {
        let played = with_stack(1, || deployments::play(seed)).remove(0);
        played.unwrap_or_else(|why| told(seed, why));
        return;
    }
    let steps = number("FLOWER_DIFFERENTIAL_STEPS").unwrap_or(STEPS);
    let (next, cases) = (AtomicU64::new(1), DEPLOYMENTS * steps / STEPS);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let tallies = with_stack(threads, || {
        let mut tally = deployments::Tally::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed > cases {
                return tally;
            }
            let played = deployments::play(seed);
            tally += played.unwrap_or_else(|why| told(seed, why));
        }
    });
    let tally = tallies
        .into_iter()
        .fold(Default::default(), |mut all: deployments::Tally, one| {
            all += one;
            all
        });
    println!("{tally:?}");
    for (shape, times) in tally.shapes() {
        assert!(
            times >= AT_LEAST || steps < STEPS,
            "'{shape}' was met {times} times in {cases} deployments; at least {AT_LEAST}"
        );
    }
}

/// Whoever watches must be seen to see: each fault in the engine is found, and soon.
#[test]
fn each_planted_fault_is_found() {
    for planted in [
        Planted::UnwrittenReader,
        Planted::StaleHeight,
        Planted::IgnoredWindow,
        Planted::KeptCell,
        Planted::StaleCertificate,
    ] {
        let found = play(PLANTED_STEPS, Some(planted));
        let why = found.expect_err(&format!(
            "{planted:?} is not found in {PLANTED_STEPS} calls"
        ));
        println!("{planted:?}: {}", why.lines().next().unwrap_or_default());
    }
}
