//! Worlds in processes of their own: whatever a library keeps for the life of a process is the
//! same at the beginning of each, so that a seed gives the same world wherever it stands in a
//! campaign.

use std::{
    io,
    path::Path,
    process::{Command, Stdio},
};

use flower_store::sabotage::Break;

use crate::campaign::{Settings, Verdict};

/// Runs one world in a process of its own: `program` is flower-sim.
///
/// # Errors
/// When the process cannot be started or ends without a verdict.
pub fn run(program: &Path, settings: &Settings) -> io::Result<Verdict> {
    ask(program, settings, None)
}

/// Runs a world twice; what differs first, if anything does, is the failure.
///
/// # Errors
/// As [`run`].
pub fn run_twice(program: &Path, settings: &Settings) -> io::Result<Verdict> {
    let dir = tempfile::tempdir()?;
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    let mut first = ask(program, settings, Some(&one))?;
    let second = ask(program, settings, Some(&two))?;
    let same = (&first.hash, first.hashed) == (&second.hash, second.hashed);
    if first.failure.is_none() && !same {
        let (a, b) = (std::fs::read_to_string(one)?, std::fs::read_to_string(two)?);
        let mut steps = a.lines().zip(b.lines()).enumerate();
        let told = match steps.find(|(_, (a, b))| a != b) {
            Some((at, (a, b))) => format!("step {at}:\n  {a}\n  {b}"),
            None => format!("{} steps, then {}", first.hashed, second.hashed),
        };
        first.failure = Some(format!("not replayed: {told}"));
    }
    Ok(first)
}

fn ask(program: &Path, settings: &Settings, trace: Option<&Path>) -> io::Result<Verdict> {
    let mut command = Command::new(program);
    command
        .args(["--alone", "--output", "json"])
        .args(["--seed", &settings.seed.to_string()])
        .args(["--seconds", &settings.seconds.to_string()])
        .stdin(Stdio::null());
    if let Some(broken) = settings.broken {
        command.args(["--break", Break::name(broken)]);
    }
    if settings.log {
        command.arg("--log").stderr(Stdio::inherit());
    }
    if let Some(trace) = trace {
        command.arg("--trace").arg(trace);
    }
    let ended = command.output()?;
    let last = ended.stdout.split(|byte| *byte == b'\n');
    let verdict = last
        .filter(|line| !line.is_empty())
        .find_map(|line| serde_json::from_slice(line).ok());
    verdict.ok_or_else(|| {
        let said = String::from_utf8_lossy(&ended.stderr);
        io::Error::other(format!(
            "the world of seed {} ended without a verdict ({}): {said}",
            settings.seed, ended.status
        ))
    })
}
