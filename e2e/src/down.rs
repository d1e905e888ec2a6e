//! Removing everything that `up` made, also after containerd or the harness itself was killed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::mount::{MntFlags, umount2};

use crate::kube::network;
use crate::net::Node;
use crate::paths::Paths;
use crate::process::{all_pids, kill_all, marked, start_time, stop};
use crate::progress::{note, step, wait_for};
use crate::run::run;

/// Ends and removes everything.
pub async fn down(paths: &Paths) -> Result<()> {
    let each = |kind: &str| Node::ALL.map(|node| format!("{kind}-{}", node.name()));
    let front = ["agent", "prometheus", "coredns", "kube-proxy"].map(str::to_owned);
    let kubelets = [front.to_vec(), each("kubelet").to_vec()].concat();
    step(
        "agent, Prometheus, DNS, Services, kubelets",
        stop_all(paths, &kubelets),
    )
    .await?;
    step("containers", containers(paths, &each("containerd"))).await?;
    let back = [
        "kube-scheduler",
        "kube-controller-manager",
        "kube-apiserver",
        "etcd",
    ]
    .map(str::to_owned);
    step(
        "scheduler, controllers, API server, etcd",
        stop_all(paths, &back),
    )
    .await?;
    let left = marked(paths);
    if !left.is_empty() {
        note(&format!(
            "{} processes without a pid file: {left:?}",
            left.len()
        ));
        kill_all(&left, "what else was started").await?;
    }
    step("mounts and loop devices", async {
        unmount(paths).await?;
        detach_loops(paths).await
    })
    .await?;
    step("network", network::down(paths)).await?;
    step("cgroups", remove_cgroups()).await?;
    step("state folder", remove_state(paths)).await
}

async fn stop_all(paths: &Paths, names: &[String]) -> Result<()> {
    for name in names {
        stop(paths, name).await?;
    }
    Ok(())
}

/// Ends the pods' processes, the containerds, and the shims between them.
async fn containers(paths: &Paths, containerds: &[String]) -> Result<()> {
    let sockets = shim_sockets(paths);
    kill_all(&in_cgroups("/flower-e2e"), "the containers").await?;
    stop_all(paths, containerds).await?;
    kill_all(&shims(&paths.state().join("nodes")), "containerd's shims").await?;
    // What a shim was just starting.
    kill_all(&in_cgroups("/flower-e2e"), "the containers").await?;
    for socket in sockets {
        let _ = std::fs::remove_file(socket);
    }
    forget_networks(paths)
}

async fn remove_state(paths: &Paths) -> Result<()> {
    let mounted = mounts_under(paths.state())?;
    if !mounted.is_empty() {
        bail!("still mounted, so nothing is deleted: {mounted:?}");
    }
    match std::fs::remove_dir_all(paths.state()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", paths.state().display()))
        }
        _ => Ok(()),
    }
}

/// Every process in a cgroup of ours and below it: the containers' processes.
pub fn in_cgroups(cgroup: &str) -> Vec<i32> {
    let mut pids = BTreeSet::new();
    for folder in cgroup_folders(cgroup) {
        for group in walk(&folder) {
            let text = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
        }
    }
    pids.into_iter().collect()
}

/// The shims of our containerds, told by the socket on their command line, which is below a
/// folder.
pub fn shims(folder: &Path) -> Vec<i32> {
    let ours = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<_> = line
            .split(|byte| *byte == 0)
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect();
        let shim = words
            .first()
            .is_some_and(|program| program.contains("containerd-shim"));
        shim && words.iter().any(|word| Path::new(word).starts_with(folder))
            && start_time(*pid).is_some()
    };
    all_pids().into_iter().filter(ours).collect()
}

/// The sockets of the shims, which lie outside the state folder.
fn shim_sockets(paths: &Paths) -> Vec<PathBuf> {
    let mut sockets = Vec::new();
    for node in std::fs::read_dir(paths.state().join("nodes"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let tasks = node.path().join("run/io.containerd.runtime.v2.task/k8s.io");
        for task in std::fs::read_dir(tasks).into_iter().flatten().flatten() {
            let address = std::fs::read_to_string(task.path().join("address")).unwrap_or_default();
            sockets.extend(address.trim().strip_prefix("unix://").map(PathBuf::from));
        }
    }
    sockets
}

/// Removes what the CNI remembers of our pods outside the state folder.
fn forget_networks(paths: &Paths) -> Result<()> {
    let ours = format!("{}/nodes/", paths.state().display());
    let entries = std::fs::read_dir("/var/lib/cni/results");
    for entry in entries.into_iter().flatten().flatten() {
        if std::fs::read_to_string(entry.path()).is_ok_and(|text| text.contains(&ours)) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// What is mounted at or below a folder, innermost last.
fn mounts_under(folder: &Path) -> Result<Vec<PathBuf>> {
    let info = std::fs::read_to_string("/proc/self/mountinfo")?;
    let points = info
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(PathBuf::from);
    Ok(points.filter(|point| point.starts_with(folder)).collect())
}

/// Unmounts everything under the state folder.
async fn unmount(paths: &Paths) -> Result<()> {
    wait_for("unmounting", Duration::from_secs(30), || async {
        let mut why = None;
        for point in mounts_under(paths.state())?.iter().rev() {
            if let Err(error) = umount2(point, MntFlags::empty()) {
                why = Some(format!("{}: {error}", point.display()));
            }
        }
        match why {
            Some(why) => bail!("{why}"),
            None => Ok(()),
        }
    })
    .await
}

/// Takes away the loop devices whose files lie in the state folder.
async fn detach_loops(paths: &Paths) -> Result<()> {
    let ours = || async {
        let listed = run(
            "losetup",
            &["--list", "--noheadings", "--output", "NAME,BACK-FILE"],
        )
        .await?;
        let ours = listed.lines().filter_map(|line| {
            let (device, file) = line.trim().split_once(char::is_whitespace)?;
            Path::new(file.trim())
                .starts_with(paths.state())
                .then(|| device.to_owned())
        });
        anyhow::Ok(ours.collect::<Vec<_>>())
    };
    for device in ours().await? {
        run("losetup", &["-d", &device]).await?;
    }
    wait_for("loop devices go", Duration::from_secs(15), || async {
        let left = ours().await?;
        if left.is_empty() {
            Ok(())
        } else {
            bail!("{left:?} are still there")
        }
    })
    .await
}

/// A cgroup of ours in every tree; runc makes it in the trees without a controller too.
fn cgroup_folders(cgroup: &str) -> Vec<PathBuf> {
    let base = Path::new("/sys/fs/cgroup");
    let trees = std::fs::read_dir(base)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let trees = trees.filter(|path| path.is_dir() && !path.is_symlink());
    let folders = trees
        .chain([base.to_owned()])
        .map(|tree| tree.join(cgroup.trim_start_matches('/')));
    folders.filter(|folder| folder.is_dir()).collect()
}

/// A folder and all folders below it, parents first.
fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut all = vec![folder.to_owned()];
    let mut next = 0;
    while next < all.len() {
        let entries = std::fs::read_dir(&all[next])
            .into_iter()
            .flatten()
            .flatten();
        all.extend(
            entries
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(|entry| entry.path()),
        );
        next += 1;
    }
    all
}

/// Removes our cgroups, which must be empty by now.
async fn remove_cgroups() -> Result<()> {
    wait_for("removing the cgroups", Duration::from_secs(20), || async {
        let mut why = None;
        for folder in cgroup_folders("/flower-e2e") {
            for group in walk(&folder).iter().rev() {
                if let Err(error) = std::fs::remove_dir(group) {
                    why = Some(format!("{}: {error}", group.display()));
                }
            }
        }
        match why {
            Some(why) => bail!("{why}"),
            None => Ok(()),
        }
    })
    .await
}
