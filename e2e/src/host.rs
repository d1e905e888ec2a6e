//! What the machine must have: refused with the reason where it cannot serve,
//! and Debian packages installed where they are missing.

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::net::{BRIDGE, PODS, SERVICES};
use crate::paths::{Paths, program_cache, target};
use crate::progress::{note, step};
use crate::run::run;

/// Debian packages, and a program of each that shows that it is there.
const PACKAGES: &[(&str, &[&str])] = &[
    (
        "containerd",
        &[
            "/usr/bin/containerd",
            "/usr/bin/ctr",
            "/usr/bin/containerd-shim-runc-v2",
        ],
    ),
    ("runc", &["/usr/sbin/runc"]),
    (
        "containernetworking-plugins",
        &[
            "/usr/lib/cni/bridge",
            "/usr/lib/cni/host-local",
            "/usr/lib/cni/portmap",
        ],
    ),
    ("iptables", &["/usr/sbin/iptables", "/usr/sbin/ip6tables"]),
    ("ipset", &["/usr/sbin/ipset"]),
    ("conntrack", &["/usr/sbin/conntrack"]),
    ("iproute2", &["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"]),
    ("xfsprogs", &["/usr/sbin/mkfs.xfs", "/sbin/mkfs.xfs"]),
    ("binutils", &["/usr/bin/strip"]),
    ("prometheus", &["/usr/bin/prometheus", "/usr/bin/promtool"]),
];

/// The cgroup controllers that pods need, where each has a tree of its own.
const CONTROLLERS: &[&str] = &["cpu", "cpuset", "memory", "pids", "devices", "freezer"];

/// Checks everything that cannot be mended, and says all of what is wrong at once.
pub fn check(paths: &Paths) -> Result<()> {
    let mut wrong = Vec::new();
    if !nix::unistd::geteuid().is_root() {
        wrong.push("this needs root: it makes a bridge, mounts and cgroups".to_owned());
    }
    if std::env::consts::ARCH != "x86_64" {
        wrong.push(format!(
            "only x86-64 is tried, this is {}",
            std::env::consts::ARCH
        ));
    }
    for (program, needed_for) in [
        ("go", "building the Kubernetes programs"),
        ("cargo", "building the images"),
    ] {
        if !on_path(program) {
            wrong.push(format!(
                "{program} is not on the PATH; it is needed for {needed_for}"
            ));
        }
    }
    let filesystems = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    for filesystem in ["overlay", "xfs"] {
        let known = filesystems
            .split_whitespace()
            .any(|word| word == filesystem);
        if !known
            && !std::process::Command::new("modprobe")
                .arg(filesystem)
                .status()
                .is_ok_and(|s| s.success())
        {
            wrong.push(format!("the kernel has no {filesystem} file system"));
        }
    }
    if !Path::new("/dev/loop-control").exists() {
        wrong.push("there are no loop devices (/dev/loop-control); volumes need them".to_owned());
    }
    if let Err(error) = cgroup_roots() {
        wrong.push(error.to_string());
    }
    let memory = memory_total();
    if memory < 6 << 30 {
        wrong.push(format!(
            "{} MiB of memory, at least 6144 are needed",
            memory >> 20
        ));
    }
    for (folder, least) in [
        (paths.state().to_owned(), 6),
        (program_cache(), 10),
        (target(), 4),
    ] {
        let free = free_gib(&folder);
        if free < least && !(folder == program_cache() && folder.exists()) {
            wrong.push(format!(
                "{free} GiB free for {}, {least} are needed",
                folder.display()
            ));
        }
    }
    if wrong.is_empty() {
        wrong = conflicts(paths);
    }
    if !wrong.is_empty() {
        bail!("this machine cannot serve:\n  - {}", wrong.join("\n  - "));
    }
    Ok(())
}

/// What others have that would clash; asked only before the first start.
fn conflicts(paths: &Paths) -> Vec<String> {
    let mut wrong = Vec::new();
    if paths.state().join("pids").exists() {
        return wrong;
    }
    for (address, port) in crate::net::ports() {
        // The bridge is not there yet: whoever listens everywhere would be in the way of its address too.
        let address = if address == "127.0.0.1" {
            address
        } else {
            "0.0.0.0"
        };
        if let Err(error) = TcpListener::bind((address, port)) {
            wrong.push(format!("port {port} is taken ({error})"));
        }
    }
    let output = |program: &str, args: &[&str]| {
        let output = std::process::Command::new(program).args(args).output();
        output
            .map(|o| String::from_utf8_lossy(&o.stdout).into_owned())
            .unwrap_or_default()
    };
    if output("iptables-save", &[]).contains(":KUBE-") {
        wrong.push("iptables has chains of another Kubernetes (KUBE-…)".to_owned());
    }
    for line in output("ip", &["route"]).lines() {
        if [PODS, SERVICES]
            .iter()
            .any(|range| line.starts_with(&range[..6]))
            && !line.contains(BRIDGE)
        {
            wrong.push(format!(
                "the route `{line}` overlaps the cluster's addresses {PODS} and {SERVICES}"
            ));
        }
    }
    wrong
}

/// Installs the Debian packages that are missing, saying so first.
pub async fn packages() -> Result<()> {
    let there = |files: &[&str], any: bool| {
        if any {
            files.iter().any(|f| Path::new(f).exists())
        } else {
            files.iter().all(|f| Path::new(f).exists())
        }
    };
    let missing: Vec<_> = PACKAGES
        .iter()
        .filter(|(name, files)| !there(files, matches!(*name, "iproute2" | "xfsprogs")))
        .map(|(name, _)| *name)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !on_path("apt-get") {
        bail!(
            "missing programs of these Debian packages, and there is no apt-get: {}",
            missing.join(", ")
        );
    }
    note(&format!(
        "installing Debian packages: {}",
        missing.join(", ")
    ));
    step("apt-get install", async {
        run("apt-get", &["update", "-q"]).await?;
        let mut args = vec![
            "DEBIAN_FRONTEND=noninteractive",
            "apt-get",
            "install",
            "-y",
            "-q",
            "--no-install-recommends",
        ];
        args.extend(&missing);
        run("env", &args).await
    })
    .await?;
    Ok(())
}

/// Where the cgroup controllers are mounted: many trees (version 1) or one (version 2).
pub fn cgroup_roots() -> Result<Vec<PathBuf>> {
    let base = Path::new("/sys/fs/cgroup");
    if base.join("cgroup.controllers").exists() {
        return Ok(vec![base.to_owned()]);
    }
    let missing: Vec<_> = CONTROLLERS
        .iter()
        .filter(|name| !base.join(name).is_dir())
        .copied()
        .collect();
    if !missing.is_empty() {
        bail!(
            "these cgroup controllers are not mounted under {}: {}",
            base.display(),
            missing.join(", ")
        );
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let roots = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (_, folder, kind) = (fields.next()?, fields.next()?, fields.next()?);
        let controller = kind == "cgroup" && folder.starts_with("/sys/fs/cgroup/");
        controller.then(|| PathBuf::from(folder))
    });
    Ok(roots.collect())
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn memory_total() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = info.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?
            .split_whitespace()
            .next()?
            .parse::<u64>()
            .ok()
    });
    kib.unwrap_or(0) << 10
}

/// The free space where a folder is or will be.
fn free_gib(folder: &Path) -> u64 {
    let there = folder
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or_else(|| Path::new("/"));
    nix::sys::statvfs::statvfs(there).map_or(0, |stat| {
        (stat.blocks_available() * stat.fragment_size()) >> 30
    })
}
