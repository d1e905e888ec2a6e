//! What the harness could leave behind on the machine, listed before and after, and the check
//! that `down` leaves nothing, also after harness and containerd were killed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::kube::kubectl;
use crate::net::Node;
use crate::paths::{Paths, program_cache};
use crate::process::{all_pids, running, start_time};
use crate::run::run;

/// Pods with volumes, so that there is something to leave behind.
const PODS: &str = include_str!("../manifests/leftovers.yaml");

/// Lists by kind.
type Lists = BTreeMap<&'static str, BTreeSet<String>>;

/// Lists everything that a cluster adds to the machine.
async fn lists(paths: &Paths) -> Result<Lists> {
    let lines = |text: String| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let mut lists = Lists::new();
    lists.insert("processes", processes(paths));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    lists.insert(
        "mounts",
        mounts
            .lines()
            .filter_map(|line| line.split(' ').nth(4))
            .map(str::to_owned)
            .collect(),
    );
    let links = run("ip", &["-o", "link"]).await?;
    lists.insert(
        "links",
        links
            .lines()
            .filter_map(|line| line.split(": ").nth(1))
            .map(str::to_owned)
            .collect(),
    );
    lists.insert("routes", lines(run("ip", &["route"]).await?));
    let mut rules = BTreeSet::new();
    for family in ["iptables", "ip6tables"] {
        let saved = run(format!("{family}-save"), &[] as &[&str]).await?;
        // A table that was looked at once exists from then on; its empty chains say nothing.
        let own =
            |line: &&str| line.starts_with("-A") || (line.starts_with(':') && line.contains(" - "));
        let without_counters = |line: &str| line.split(" [").next().unwrap_or_default().to_owned();
        rules.extend(
            saved
                .lines()
                .filter(own)
                .map(|line| format!("{family} {}", without_counters(line))),
        );
    }
    lists.insert("iptables rules", rules);
    lists.insert("cgroups", cgroups(Path::new("/sys/fs/cgroup"), 2));
    lists.insert(
        "loop devices",
        lines(
            run(
                "losetup",
                &["--list", "--noheadings", "--output", "NAME,BACK-FILE"],
            )
            .await?,
        ),
    );
    let settings = [
        "net/ipv4/ip_forward",
        "net/bridge/bridge-nf-call-iptables",
        "fs/inotify/max_user_instances",
    ];
    let setting = |name: &str| {
        format!(
            "{name}={}",
            std::fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default()
        )
    };
    lists.insert("settings", settings.map(setting).into());
    Ok(lists)
}

/// Processes of the programs that the harness starts, directly or through containerd.
fn processes(paths: &Paths) -> BTreeSet<String> {
    let folders = [program_cache(), paths.state().to_owned()];
    let ours = |pid: i32| {
        let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        start_time(pid)?;
        let name = exe.file_name()?.to_string_lossy().into_owned();
        let known = [
            "containerd",
            "containerd-shim-runc-v2",
            "runc",
            "prometheus",
            "pause",
        ]
        .contains(&name.as_str());
        (known || folders.iter().any(|folder| exe.starts_with(folder)))
            .then(|| format!("{pid} {}", exe.display()))
    };
    all_pids().into_iter().filter_map(ours).collect()
}

/// The cgroups down to a depth.
fn cgroups(folder: &Path, depth: usize) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.insert(entry.path().display().to_string());
            if depth > 1 {
                found.extend(cgroups(&entry.path(), depth - 1));
            }
        }
    }
    found
}

/// An error that names what was added or is missing.
fn compare(before: &Lists, after: &Lists) -> Result<()> {
    let mut wrong = Vec::new();
    for (kind, before) in before {
        let after = &after[kind];
        wrong.extend(
            after
                .difference(before)
                .map(|one| format!("{kind}: left behind: {one}")),
        );
        wrong.extend(
            before
                .difference(after)
                .map(|one| format!("{kind}: gone: {one}")),
        );
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Up and down, twice; the second time after SIGKILLs.
pub async fn check(paths: &Paths) -> Result<String> {
    let before = lists(paths).await?;
    let mut added = 0;
    for killed in [false, true] {
        up(paths, None).await?;
        crate::kube::kubectl_apply(paths, PODS).await?;
        kubectl(
            paths,
            &[
                "-n",
                "leftovers",
                "rollout",
                "status",
                "statefulset/leftovers",
                "--timeout=90s",
            ],
        )
        .await?;
        let during = lists(paths).await?;
        added = during
            .iter()
            .map(|(kind, list)| list.difference(&before[kind]).count())
            .sum();
        if killed {
            kill_containerds(paths)?;
            up(paths, Some(Duration::from_millis(400))).await?;
            kill_containerds(paths)?;
        }
        crate::down::down(paths).await?;
        compare(&before, &lists(paths).await?).context(if killed {
            "after SIGKILLs"
        } else {
            "after a plain `down`"
        })?;
    }
    Ok(format!(
        "all {added} processes, mounts, links, rules, cgroups and devices are gone, also after SIGKILLs"
    ))
}

/// Runs `up` in a process of its own, and kills that after a while if asked to.
async fn up(paths: &Paths, kill_after: Option<Duration>) -> Result<()> {
    let mut command = tokio::process::Command::new(crate::agent::own_program());
    command
        .args(["up", "--only-kubernetes"])
        .env("FLOWER_E2E_STATE", paths.state())
        .stdin(Stdio::null());
    let Some(after) = kill_after else {
        return crate::run::output(command, None).await.map(drop);
    };
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    tokio::time::sleep(after).await;
    child.kill().await.context("killing the harness")
}

fn kill_containerds(paths: &Paths) -> Result<()> {
    for node in Node::ALL {
        if let Some(process) = running(paths, &format!("containerd-{}", node.name())) {
            kill(Pid::from_raw(process.pid), Signal::SIGKILL)?;
        }
    }
    Ok(())
}
