//! One kubelet a node; all on the bridge's address with ports of their own.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::net::{GATEWAY, Node};
use crate::paths::Paths;
use crate::process::{Daemon, check, start};
use crate::programs;
use crate::progress::wait_for;
use crate::run::run;

/// Starts it.
pub async fn up(paths: &Paths, node: Node) -> Result<()> {
    cgroup(node)?;
    let name = node.name();
    let folder = paths.dir(format!("nodes/{name}/kubelet"))?;
    // Pods get names from the cluster's DNS alone; the machine's own resolver is not theirs.
    let resolv = paths.write(format!("nodes/{name}/resolv.conf"), "")?;
    let pki = |file: &str| paths.pki(file).display().to_string();
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": GATEWAY,
        "port": node.kubelet_port(),
        "readOnlyPort": 0,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": node.health_port(),
        "tlsCertFile": pki(&format!("{name}.crt")),
        "tlsPrivateKeyFile": pki(&format!("{name}.key")),
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": pki("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDomain": "cluster.local",
        "clusterDNS": [GATEWAY],
        "resolvConf": resolv,
        "containerRuntimeEndpoint": format!("unix://{}", super::containerd::socket(paths, node).display()),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": node.cgroup(),
        "failCgroupV1": false,
        "failSwapOn": false,
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": false,
        "podLogsDir": paths.dir(format!("nodes/{name}/pod-logs"))?,
        "nodeStatusUpdateFrequency": "5s",
        "syncFrequency": "20s",
        // Our images come in by hand, once: they must never be collected, nor pods evicted for a full build disk.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "memory.available": "64Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
            "imagefs.inodesFree": "1%",
        },
        "maxPods": 100,
        "logging": {"verbosity": 1},
    });
    let daemon = Daemon {
        name: format!("kubelet-{name}"),
        exe: programs::path("kubelet")?,
        args: vec![
            format!("--config={}", folder.with_extension("json").display()),
            format!("--kubeconfig={}", paths.kubeconfig(&name).display()),
            format!("--root-dir={}", folder.display()),
            format!("--cert-dir={}", folder.join("pki").display()),
            format!("--hostname-override={name}"),
            format!("--node-ip={GATEWAY}"),
        ],
        files: vec![(
            format!("nodes/{name}/kubelet.json"),
            serde_json::to_string_pretty(&config)?,
        )],
        env: Vec::new(),
    };
    start(paths, &daemon).await
}

/// Makes the node's cgroup in every controller.
fn cgroup(node: Node) -> Result<()> {
    for root in crate::host::cgroup_roots()? {
        let parent = root.join("flower-e2e");
        let folder = root.join(node.cgroup().trim_start_matches('/'));
        std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        // A new cpuset is empty, and nothing may run in an empty one.
        for (above, below) in [(&root, &parent), (&parent, &folder)] {
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let ours =
                    std::fs::read_to_string(below.join(file)).unwrap_or_else(|_| "-".to_owned());
                if ours.trim().is_empty() {
                    std::fs::write(below.join(file), std::fs::read_to_string(above.join(file))?)?;
                }
            }
            // In the unified hierarchy a controller is there once the group above hands it down.
            if let Ok(controllers) = std::fs::read_to_string(above.join("cgroup.controllers")) {
                let all: Vec<_> = controllers
                    .split_whitespace()
                    .map(|name| format!("+{name}"))
                    .collect();
                std::fs::write(above.join("cgroup.subtree_control"), all.join(" "))?;
            }
        }
    }
    Ok(())
}

/// Waits until all nodes are Ready.
pub async fn ready(paths: &Paths) -> Result<()> {
    let kubectl = programs::path("kubectl")?;
    let config = format!("--kubeconfig={}", paths.kubeconfig("admin").display());
    let path = r#"jsonpath={range .items[*]}{.metadata.name}={.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}"#;
    wait_for("three nodes Ready", Duration::from_secs(120), || async {
        for node in Node::ALL {
            check(paths, &format!("kubelet-{}", node.name()))?;
        }
        let seen = run(
            &kubectl,
            &[&config, "get", "nodes", "-o", path, "--request-timeout=5s"],
        )
        .await?;
        let ready = Node::ALL
            .iter()
            .filter(|node| seen.contains(&format!("{}=True", node.name())))
            .count();
        ensure!(
            ready == Node::ALL.len(),
            "{ready} of {} are: {}",
            Node::ALL.len(),
            seen.trim().replace('\n', ", ")
        );
        Ok(())
    })
    .await
}
