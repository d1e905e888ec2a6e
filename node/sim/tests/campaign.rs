//! The campaign's share of every test run: seeds that once failed stay good, a seed gives the
//! same world again, and things broken on purpose are noticed by the seeds that notice them
//! fastest, which are good otherwise.

use std::path::Path;

use flower_sim::{campaign::Settings, process, seeds};
use flower_store::sabotage::Break;

fn settings(seed: u64, broken: Option<Break>) -> Settings {
    Settings {
        seed,
        seconds: seeds::SECONDS,
        broken,
        log: false,
        trace: false,
    }
}

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_flower-sim"))
}

fn good(seed: u64) {
    let verdict = process::run(program(), &settings(seed, None)).unwrap();
    let story = verdict.story.join("\n");
    assert_eq!(verdict.failure, None, "seed {seed}\n{story}");
    assert!(
        verdict.written > 0 && verdict.read > 0,
        "seed {seed} does something"
    );
}

#[test]
fn past_failures_stay_mended() {
    for (seed, _) in seeds::PAST {
        good(*seed);
    }
}

#[test]
fn a_seed_gives_the_same_world_again() {
    for seed in seeds::TWICE {
        let verdict = process::run_twice(program(), &settings(*seed, None)).unwrap();
        assert_eq!(verdict.failure, None, "{}", verdict.story.join("\n"));
    }
}

#[test]
fn breaks_are_caught() {
    for (broken, seed) in seeds::CATCHES {
        let verdict = process::run(program(), &settings(*seed, Some(*broken))).unwrap();
        assert!(
            verdict.failure.is_some(),
            "{} is not caught by seed {seed}",
            broken.name()
        );
        good(*seed);
    }
}
