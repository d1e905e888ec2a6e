//! One containerd a node, with its own root, state, socket and pods' network.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::net::{BRIDGE, GATEWAY, Node, PODS};
use crate::paths::Paths;
use crate::process::{Daemon, check, start};
use crate::progress::wait_for;
use crate::run::run;

/// The image of every pod's sandbox; we make it ourselves.
pub const PAUSE_IMAGE: &str = "flowerdb.dev/e2e-pause:1";

/// Its socket.
pub fn socket(paths: &Paths, node: Node) -> PathBuf {
    paths
        .state()
        .join(format!("nodes/{}/containerd.sock", node.name()))
}

/// Starts it.
pub async fn up(paths: &Paths, node: Node) -> Result<()> {
    let name = node.name();
    let folder = paths.dir(format!("nodes/{name}"))?;
    let config = format!(
        r#"version = 2
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs"]

[grpc]
address = "{socket}"

[debug]
level = "warn"

[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
stream_server_address = "127.0.0.1"

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{folder}/cni"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
Root = "{folder}/runc"
"#,
        root = folder.join("containerd").display(),
        state = folder.join("run").display(),
        socket = socket(paths, node).display(),
        folder = folder.display(),
    );
    let daemon = Daemon {
        name: format!("containerd-{name}"),
        exe: "/usr/bin/containerd".into(),
        args: vec![
            "--config".to_owned(),
            folder.join("containerd.toml").display().to_string(),
        ],
        files: vec![
            (format!("nodes/{name}/containerd.toml"), config),
            (
                format!("nodes/{name}/cni/10-flower.conflist"),
                serde_json::to_string_pretty(&network(&folder, node))?,
            ),
        ],
        env: Vec::new(),
    };
    start(paths, &daemon).await
}

/// The pods' network: each node hands out addresses of its own from the one range.
fn network(folder: &Path, node: Node) -> serde_json::Value {
    let n = node.number;
    json!({
        "cniVersion": "1.0.0",
        "name": format!("flower-e2e-{}", node.name()),
        "plugins": [
            {
                "type": "bridge",
                "bridge": BRIDGE,
                "isGateway": true,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": folder.join("addresses"),
                    "ranges": [[{
                        "subnet": PODS,
                        "rangeStart": format!("10.97.{n}.1"),
                        "rangeEnd": format!("10.97.{n}.254"),
                        "gateway": GATEWAY,
                    }]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

/// Waits until it answers.
pub async fn ready(paths: &Paths, node: Node) -> Result<()> {
    wait_for(
        &format!("containerd of {} answers", node.name()),
        Duration::from_secs(30),
        || async {
            check(paths, &format!("containerd-{}", node.name()))?;
            ctr(paths, node, &["version"]).await.map(drop)
        },
    )
    .await
}

/// Runs `ctr` against a node's images and containers.
pub async fn ctr(paths: &Paths, node: Node, args: &[&str]) -> Result<String> {
    let socket = socket(paths, node).display().to_string();
    run(
        "ctr",
        &[
            &[
                "--address",
                &socket,
                "--namespace",
                "k8s.io",
                "--timeout",
                "60s",
            ],
            args,
        ]
        .concat(),
    )
    .await
}

/// Brings an image archive into a node; an unchanged one is skipped. Returns whether it was brought in.
pub async fn import(paths: &Paths, node: Node, archive: &Path) -> Result<bool> {
    let content =
        std::fs::read(archive).with_context(|| format!("reading {}", archive.display()))?;
    let digest = crate::hex(&Sha256::digest(&content));
    let name = archive.file_name().unwrap_or_default().to_string_lossy();
    let mark = paths.at(format!("nodes/{}/imported/{name}", node.name()))?;
    if std::fs::read_to_string(&mark).is_ok_and(|known| known == digest) {
        return Ok(false);
    }
    ctr(
        paths,
        node,
        &["images", "import", &archive.display().to_string()],
    )
    .await?;
    std::fs::write(&mark, digest)?;
    Ok(true)
}
