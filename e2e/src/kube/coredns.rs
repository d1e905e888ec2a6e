//! CoreDNS on the bridge's address: names of Services and pods, and no others.

use std::time::Duration;

use anyhow::Result;

use crate::net::{DNS_READY_PORT, GATEWAY};
use crate::paths::Paths;
use crate::process::{Daemon, check, start};
use crate::programs;
use crate::progress::wait_for;

/// Starts it.
pub async fn up(paths: &Paths) -> Result<()> {
    let corefile = format!(
        ".:53 {{\n    bind {GATEWAY}\n    errors\n    ready 127.0.0.1:{DNS_READY_PORT}\n    \
         kubernetes cluster.local in-addr.arpa {{\n        kubeconfig {}\n        ttl 1\n    }}\n}}\n",
        paths.kubeconfig("admin").display()
    );
    let daemon = Daemon {
        name: "coredns".to_owned(),
        exe: programs::path("coredns")?,
        args: vec![
            "-conf".to_owned(),
            paths.at("Corefile")?.display().to_string(),
        ],
        files: vec![("Corefile".to_owned(), corefile)],
        env: Vec::new(),
    };
    start(paths, &daemon).await
}

/// Waits until it has the Services and pods.
pub async fn ready(paths: &Paths) -> Result<()> {
    wait_for("DNS answers", Duration::from_secs(60), || async {
        check(paths, "coredns")?;
        crate::http::get(&format!("http://127.0.0.1:{DNS_READY_PORT}/ready"))
            .await
            .map(drop)
    })
    .await
}
