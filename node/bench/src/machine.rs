//! What the numbers were taken on; no names of hosts.

use std::process::Command;

use crate::run::Machine;

/// This machine.
pub(crate) fn machine() -> Machine {
    let cores = std::thread::available_parallelism().map_or(0, |n| n.get() as u64);
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find(|line| line.starts_with("MemTotal:"));
    let kib = total.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    Machine {
        cores,
        memory_gib: kib.unwrap_or(0).div_ceil(1 << 20),
        system: std::env::consts::OS.to_owned(),
        architecture: std::env::consts::ARCH.to_owned(),
    }
}

/// The commit of the working tree; changes in it are told.
pub(crate) fn commit() -> String {
    let git = |args: &[&str]| {
        let done = Command::new("git").args(args).output().ok()?;
        let text = String::from_utf8(done.stdout).ok()?;
        done.status.success().then(|| text.trim().to_owned())
    };
    git(&[
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
        "--exclude=*",
    ])
    .unwrap_or_else(|| "unknown".to_owned())
}

/// How the program was built, as far as it knows.
pub(crate) fn build() -> String {
    let checks = match cfg!(debug_assertions) {
        true => "debug assertions on",
        false => "debug assertions off",
    };
    format!("opt-level {}, {checks}", env!("FLOWER_OPT_LEVEL"))
}
