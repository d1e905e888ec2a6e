//! `cargo e2e test`: everything that must hold, in order, with a table at the end.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tokio::process::Command;

use crate::cluster::{Cluster, Scene};
use crate::paths::{Paths, root, target};
use crate::progress::{heading, note, step};
use crate::report::{self, Outcome, Row};
use crate::run::{last_lines, output};
use crate::tests;
use crate::{collect, deploy, host, image, programs, status};

/// What to run.
pub struct Options {
    /// Also the cluster tests that CI leaves out.
    pub all: bool,
    /// Only steps and tests whose name contains one of these; all when empty.
    pub filter: Vec<String>,
}

impl Options {
    fn wants(&self, name: &str) -> bool {
        self.filter.is_empty() || self.filter.iter().any(|part| name.contains(part.as_str()))
    }
}

/// A check of the source tree: the command that must succeed.
struct Check {
    name: &'static str,
    command: &'static [&'static str],
}

/// The row of the check that `down` leaves nothing behind.
const LEFTOVERS: &str = "down-leaves-nothing";

/// The Debian packages: unit tests too ask promtool what it thinks of the metrics' names.
const PACKAGES: &str = "packages";
const UNIT_TESTS: &str = "unit-tests";

/// What unit tests do more of with `--all`: calls over which the engine and the reference
/// evaluator are compared, and power cuts.
const MORE: [(&str, &str); 2] = [
    ("FLOWER_DIFFERENTIAL_STEPS", "100000"),
    ("FLOWER_POWER_CUTS", "12000"),
];

/// How long fresh seeds are simulated, seconds.
const SIMULATED: u32 = 60;
/// … with `--all`.
const SIMULATED_ALL: u32 = 1_800;

const CHECKS: &[Check] = &[
    Check {
        name: "format",
        command: &["cargo", "fmt", "--all", "--check"],
    },
    Check {
        name: "lints",
        command: &[
            "cargo",
            "clippy",
            "--quiet",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ],
    },
    Check {
        name: UNIT_TESTS,
        command: &["cargo", "test", "--quiet", "--workspace", "--no-fail-fast"],
    },
];

/// Fresh seeds; past failures and the breaks are among the unit tests.
const SIMULATION: Check = Check {
    name: "simulation",
    command: &[
        "cargo",
        "run",
        "--quiet",
        "--bin",
        "flower-sim",
        "--",
        "--budget",
    ],
};

/// Runs what is wanted; true when nothing failed.
pub async fn run(paths: &Paths, options: &Options) -> Result<bool> {
    let mut rows = Vec::new();
    if options.wants(PACKAGES) || options.wants(UNIT_TESTS) {
        rows.push(timed(PACKAGES, packages()).await);
    }
    for check in CHECKS.iter().filter(|check| options.wants(check.name)) {
        let work = async {
            command(check, options.all, None)
                .await
                .map(|_| String::new())
        };
        rows.push(timed(check.name, work).await);
    }
    if options.wants(SIMULATION.name) {
        rows.push(timed(SIMULATION.name, simulation(options.all)).await);
    }
    for (name, work) in crate::charts::checks(paths) {
        if options.wants(name) {
            rows.push(timed(name, work).await);
        }
    }
    let chosen: Vec<_> = tests::ALL
        .iter()
        .filter(|test| options.wants(test.name))
        .collect();
    if !chosen.is_empty() || options.wants(LEFTOVERS) {
        cluster_tests(paths, options, &chosen, &mut rows).await;
    }
    ensure!(
        !rows.is_empty(),
        "nothing is named like {:?}",
        options.filter
    );
    let file = report::write(&rows, options.all, &options.filter).await?;
    println!("\nThis as a file: {}", file.display());
    Ok(report::table(&rows))
}

/// Brings the cluster up to date and runs tests on it.
async fn cluster_tests(
    paths: &Paths,
    options: &Options,
    chosen: &[&tests::Test],
    rows: &mut Vec<Row>,
) {
    if options.wants(LEFTOVERS) {
        if paths.state().exists() {
            rows.push(skipped(
                LEFTOVERS,
                "a cluster is up; it runs after `cargo e2e down`",
            ));
        } else {
            rows.push(timed(LEFTOVERS, leftovers(paths)).await);
        }
    }
    if chosen.is_empty() {
        return;
    }
    let ready = timed("cluster", bring_up(paths)).await;
    let up = matches!(ready.outcome, Outcome::Passed);
    rows.push(ready);
    let named = !options.filter.is_empty();
    for test in chosen {
        if !test.in_ci && !options.all && !named {
            rows.push(skipped(test.name, "runs with --all"));
        } else if up {
            heading(&format!("{}: {}", test.name, test.what));
            rows.push(timed(test.name, one(paths, test)).await);
        } else {
            rows.push(skipped(test.name, "there is no cluster"));
        }
    }
}

/// Checks that `down` leaves nothing behind.
async fn leftovers(paths: &Paths) -> Result<String> {
    host::check(paths)?;
    host::packages().await?;
    programs::build_missing().await?;
    crate::leftovers::check(paths).await
}

async fn packages() -> Result<String> {
    host::packages().await.map(|()| String::new())
}

async fn bring_up(paths: &Paths) -> Result<String> {
    let begun = if status::is_up(paths) {
        "was up"
    } else {
        "brought up"
    };
    crate::up(paths, false).await?;
    image::built().context("there are no images")?;
    deploy::installed(paths).await?;
    Ok(begun.to_owned())
}

/// Runs one test in a namespace of its own; one that fails leaves a folder.
async fn one(paths: &Paths, test: &tests::Test) -> Result<String> {
    let cluster = Cluster::connect(paths).await?;
    let scene = Scene::open(&cluster, &format!("e2e-{}", test.name)).await?;
    let result =
        match tokio::time::timeout(Duration::from_secs(900), (test.run)(scene.clone())).await {
            Ok(result) => result,
            Err(_) => Err(anyhow::anyhow!("not finished within 15 minutes")),
        };
    if let Err(error) = &result {
        match collect::collect(&scene, test.name, error).await {
            Ok(folder) => note(&format!(
                "everything that is known about it: {}",
                folder.display()
            )),
            Err(why) => note(&format!(
                "the failure's folder could not be written: {why:#}"
            )),
        }
    }
    let closed = scene.close().await;
    let saw = result?;
    closed.context("cleaning up after the test")?;
    Ok(saw)
}

/// Runs a check's command; what it printed.
async fn command(check: &Check, all: bool, more: Option<String>) -> Result<String> {
    let words = check.command;
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).args(more).current_dir(root());
    // Where a test failed says enough; backtraces would hide it.
    command.env("RUST_BACKTRACE", "0");
    if all {
        command.envs(MORE);
    }
    output(command, None).await
}

/// Simulates fresh seeds; the campaign's figures.
async fn simulation(all: bool) -> Result<String> {
    let seconds = if all { SIMULATED_ALL } else { SIMULATED };
    let printed = command(&SIMULATION, all, Some(seconds.to_string())).await?;
    let figures = printed
        .lines()
        .rfind(|line| line.contains(" worlds from seed "));
    Ok(figures.unwrap_or_default().to_owned())
}

/// Runs one row of the table.
async fn timed(name: &str, work: impl Future<Output = Result<String>>) -> Row {
    let begun = Instant::now();
    let result = step(name, work).await;
    let seconds = begun.elapsed().as_secs_f64();
    let (outcome, saw) = match result {
        Ok(saw) => (Outcome::Passed, saw),
        Err(error) => (Outcome::Failed, format!("{error:#}")),
    };
    if !saw.is_empty() {
        note(&saw);
    }
    Row {
        name: name.to_owned(),
        outcome,
        seconds,
        saw,
    }
}

fn skipped(name: &str, why: &str) -> Row {
    Row {
        name: name.to_owned(),
        outcome: Outcome::Skipped,
        seconds: 0.0,
        saw: why.to_owned(),
    }
}

/// An error with the difference when a file is not what it should be; `FLOWER_E2E_BLESS=1` writes it.
pub fn golden(file: &Path, now: &str) -> Result<()> {
    let before = std::fs::read_to_string(file).unwrap_or_default();
    if before == now {
        return Ok(());
    }
    if std::env::var_os("FLOWER_E2E_BLESS").is_some() {
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        return Ok(std::fs::write(file, now)?);
    }
    let other = target().join("golden-now");
    std::fs::write(&other, now)?;
    let diff = std::process::Command::new("diff")
        .args(["-u", "--label", "committed", "--label", "now"])
        .arg(file)
        .arg(&other)
        .output()?;
    bail!(
        "{} is not what it should be; FLOWER_E2E_BLESS=1 accepts what is there now\n{}",
        file.display(),
        last_lines(&String::from_utf8_lossy(&diff.stdout), 40)
    );
}
