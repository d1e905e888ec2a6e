//! A node that fails as machines do: everything on it ends at once, and comes back when told.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{containerd, kubectl, kubelet};
use crate::down::{in_cgroups, shims};
use crate::net::Node;
use crate::paths::Paths;
use crate::process::{kill_all, running};
use crate::progress::wait_for;

/// The node of this name.
pub fn named(name: &str) -> Result<Node> {
    let mut all = Node::ALL.into_iter();
    all.find(|node| node.name() == name)
        .with_context(|| format!("there is no node {name}"))
}

/// Kills the node's kubelet, containerd, shims and containers, the kubelet first, so that it
/// tells nobody.
pub async fn fail(paths: &Paths, node: Node) -> Result<()> {
    let name = node.name();
    for program in [format!("kubelet-{name}"), format!("containerd-{name}")] {
        let process = running(paths, &program).with_context(|| format!("{program} is gone"))?;
        kill_all(&[process.pid], &program).await?;
    }
    let folder = paths.state().join("nodes").join(&name);
    kill_all(&shims(&folder), "the shims").await?;
    kill_all(&in_cgroups(&node.cgroup()), "the containers").await
}

/// Starts it again, and waits until Kubernetes calls it ready.
pub async fn back(paths: &Paths, node: Node) -> Result<()> {
    containerd::up(paths, node).await?;
    containerd::ready(paths, node).await?;
    kubelet::up(paths, node).await?;
    is_ready(paths, node, "True").await
}

/// Waits until the node controller has noticed that the node does not answer.
pub async fn noticed(paths: &Paths, node: Node) -> Result<()> {
    is_ready(paths, node, "Unknown").await
}

async fn is_ready(paths: &Paths, node: Node, wanted: &str) -> Result<()> {
    let name = node.name();
    let path = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
    wait_for(
        &format!("{name} is {wanted} ready"),
        Duration::from_secs(120),
        || async {
            let seen = kubectl(paths, &["get", "node", &name, "-o", path]).await?;
            ensure!(seen.trim() == wanted, "it is {}", seen.trim());
            Ok(())
        },
    )
    .await
}
