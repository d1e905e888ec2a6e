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
    for (broken, first, count) in seeds::CATCHES {
        let caught = (*first..first + count).find(|seed| {
            let verdict = process::run(program(), &settings(*seed, Some(*broken))).unwrap();
            verdict.failure.is_some()
        });
        let seed = caught.unwrap_or_else(|| panic!("{} is not caught", broken.name()));
        // By the break, and not by what fails without it too.
        good(seed);
    }
}
