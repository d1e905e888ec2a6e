//! Long-running programs: started in sessions of their own, remembered in pid files,
//! marked in their environment so that `down` finds them even when a pid file is missing.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::paths::Paths;
use crate::progress::{Ended, wait_for};
use crate::run::last_lines;

/// Every program of the harness carries this variable; its value is the state folder.
const MARK: &str = "FLOWER_E2E_OWNER";

/// A program to be kept running.
pub struct Daemon {
    /// The name of its pid file and log.
    pub name: String,
    /// The program.
    pub exe: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its configuration files, as paths in the state folder and contents.
    pub files: Vec<(String, String)>,
    /// Additions to its environment.
    pub env: Vec<(String, String)>,
}

/// One life of a process: its number and when it started, so that a recycled number is told apart.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Running {
    /// The process number.
    pub pid: i32,
    /// Field 22 of `/proc/PID/stat`.
    start: u64,
    /// What it was started with.
    made_from: String,
}

impl Running {
    /// Whether this very process still runs.
    pub fn alive(&self) -> bool {
        // A child of this process stays a zombie until it is waited for.
        let _ = waitpid(Pid::from_raw(self.pid), Some(WaitPidFlag::WNOHANG));
        start_time(self.pid) == Some(self.start)
    }
}

/// When a process started, unless it is gone or a zombie.
pub fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.get(stat.rfind(')')? + 2..)?.split(' ');
    let state = fields.next()?;
    if state == "Z" || state == "X" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The process that a pid file names, if it still runs.
pub fn running(paths: &Paths, name: &str) -> Option<Running> {
    let text = std::fs::read_to_string(paths.state().join("pids").join(name)).ok()?;
    let running: Running = serde_json::from_str(&text).ok()?;
    running.alive().then_some(running)
}

/// Starts a program unless it already runs just so; one that runs otherwise is stopped first.
pub async fn start(paths: &Paths, daemon: &Daemon) -> Result<()> {
    let made_from = made_from(daemon)?;
    if let Some(old) = running(paths, &daemon.name) {
        if old.made_from == made_from {
            return Ok(());
        }
        stop(paths, &daemon.name).await?;
    }
    for (path, content) in &daemon.files {
        paths.write(path, content)?;
    }
    let log_path = paths.at(format!("logs/{}.log", daemon.name))?;
    let log = File::options().create(true).append(true).open(&log_path)?;
    let mut command = Command::new(&daemon.exe);
    command
        .args(&daemon.args)
        .current_dir(paths.state())
        .env(MARK, paths.state())
        .envs(daemon.env.iter().cloned())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    // SAFETY: setsid is async-signal-safe and touches no memory of the parent.
    unsafe {
        command.pre_exec(|| nix::unistd::setsid().map(drop).map_err(Into::into));
    }
    let child = command
        .spawn()
        .with_context(|| format!("starting {}", daemon.exe.display()))?;
    let pid = i32::try_from(child.id())?;
    let Some(start) = start_time(pid) else {
        bail!(
            "{} ended at once; {}",
            daemon.name,
            tail(paths, &daemon.name)
        )
    };
    let record = serde_json::to_string(&Running {
        pid,
        start,
        made_from,
    })?;
    paths.write(format!("pids/{}", daemon.name), &record)?;
    Ok(())
}

/// A hash of everything that a program is started with.
fn made_from(daemon: &Daemon) -> Result<String> {
    let mut hash = Sha256::new();
    let meta = std::fs::metadata(&daemon.exe)
        .with_context(|| format!("{} is not there", daemon.exe.display()))?;
    hash.update(format!(
        "{:?} {} {:?}",
        daemon.exe,
        meta.len(),
        meta.modified()?
    ));
    hash.update(format!(
        "{:?} {:?} {:?}",
        daemon.args, daemon.files, daemon.env
    ));
    Ok(crate::hex(&hash.finalize()))
}

/// The end of a program's log, for an error message.
pub fn tail(paths: &Paths, name: &str) -> String {
    let log = paths.log(name);
    let text = std::fs::read(&log).unwrap_or_default();
    format!(
        "the end of {}:\n{}",
        log.display(),
        last_lines(&String::from_utf8_lossy(&text), 15)
    )
}

/// An error if a program that should run has ended, with the end of its log.
pub fn check(paths: &Paths, name: &str) -> Result<()> {
    if running(paths, name).is_none() {
        return Err(Ended(format!("{name} has ended; {}", tail(paths, name))).into());
    }
    Ok(())
}

/// Stops a program, politely at first, and returns when it is gone.
pub async fn stop(paths: &Paths, name: &str) -> Result<()> {
    if let Some(running) = running(paths, name) {
        end(running, name).await?;
    }
    let _ = std::fs::remove_file(paths.state().join("pids").join(name));
    Ok(())
}

/// Ends one process: SIGTERM, five seconds, SIGKILL.
async fn end(running: Running, name: &str) -> Result<()> {
    let pid = Pid::from_raw(running.pid);
    let gone = || {
        let running = running.clone();
        async move {
            if running.alive() {
                bail!("it still runs")
            } else {
                Ok(())
            }
        }
    };
    let _ = kill(pid, Signal::SIGTERM);
    if wait_for(name, Duration::from_secs(5), gone).await.is_err() {
        let _ = kill(pid, Signal::SIGKILL);
        wait_for(
            &format!("ending {name} (pid {pid})"),
            Duration::from_secs(10),
            gone,
        )
        .await?;
    }
    Ok(())
}

/// Kills every process in the list at once and waits until they are gone.
pub async fn kill_all(pids: &[i32], what: &str) -> Result<()> {
    let alive: Vec<_> = pids
        .iter()
        .filter_map(|pid| {
            Some(Running {
                pid: *pid,
                start: start_time(*pid)?,
                made_from: String::new(),
            })
        })
        .collect();
    for one in &alive {
        let _ = kill(Pid::from_raw(one.pid), Signal::SIGKILL);
    }
    wait_for(&format!("ending {what}"), Duration::from_secs(20), || {
        let left: Vec<_> = alive
            .iter()
            .filter(|one| one.alive())
            .map(|one| one.pid)
            .collect();
        async move {
            if left.is_empty() {
                Ok(())
            } else {
                bail!("{left:?} still run")
            }
        }
    })
    .await
}

/// Every process that carries the harness's mark for this state folder, but never this one.
pub fn marked(paths: &Paths) -> Vec<i32> {
    let mark = format!("{MARK}={}", paths.state().display());
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    all_pids()
        .into_iter()
        .filter(|pid| *pid != own && start_time(*pid).is_some())
        .filter(|pid| {
            std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|env| {
                env.split(|byte| *byte == 0)
                    .any(|pair| pair == mark.as_bytes())
            })
        })
        .collect()
}

/// Every process number of the machine.
pub fn all_pids() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}
