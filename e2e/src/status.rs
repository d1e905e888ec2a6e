//! What runs, and how it is.

use anyhow::Result;

use crate::kube::kubectl;
use crate::net::Node;
use crate::paths::Paths;
use crate::process::running;

/// Every program that `up` starts.
pub fn programs() -> Vec<String> {
    let mut names: Vec<_> = [
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
    ]
    .map(str::to_owned)
    .into();
    for node in Node::ALL {
        names.push(format!("containerd-{}", node.name()));
        names.push(format!("kubelet-{}", node.name()));
    }
    names.extend(["kube-proxy", "coredns", "agent", "prometheus"].map(str::to_owned));
    names
}

/// Whether the Kubernetes part is there: all programs but Prometheus run.
pub fn is_up(paths: &Paths) -> bool {
    programs()
        .iter()
        .filter(|name| *name != "prometheus")
        .all(|name| running(paths, name).is_some())
}

/// Prints it.
pub async fn show(paths: &Paths) -> Result<()> {
    if !paths.state().exists() {
        println!("nothing is up; `cargo e2e up` brings it up");
        return Ok(());
    }
    println!("{:<26}{:>8}{:>12}  log", "program", "pid", "memory");
    for name in programs() {
        let log = paths.log(&name);
        match running(paths, &name) {
            Some(process) => println!(
                "{name:<26}{:>8}{:>8} MiB  {}",
                process.pid,
                resident(process.pid),
                log.display()
            ),
            None => println!(
                "{name:<26}{:>8}{:>12}  {}",
                "-",
                "not running",
                log.display()
            ),
        }
    }
    for (title, args) in [
        ("nodes", &["get", "nodes"] as &[&str]),
        ("clusters", &["get", "flowerclusters", "--all-namespaces"]),
        ("pods", &["get", "pods", "--all-namespaces", "-o", "wide"]),
        ("volumes", &["get", "persistentvolumes"]),
    ] {
        let args = [args, &["--request-timeout=5s"]].concat();
        let text = kubectl(paths, &args)
            .await
            .unwrap_or_else(|error| format!("not to be had: {error:#}"));
        let text = if text.trim().is_empty() {
            "none"
        } else {
            text.trim_end()
        };
        println!("\n{title}\n{text}");
    }
    println!(
        "\nexport KUBECONFIG={}",
        paths.kubeconfig("admin").display()
    );
    Ok(())
}

/// The memory of a process in MiB.
fn resident(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib = status.lines().find_map(|line| {
        line.strip_prefix("VmRSS:")?
            .split_whitespace()
            .next()?
            .parse::<u64>()
            .ok()
    });
    kib.unwrap_or(0) >> 10
}
