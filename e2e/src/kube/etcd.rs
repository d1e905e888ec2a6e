//! etcd: the API server's store, on loopback, without fsync (a test's cluster may be lost).

use anyhow::Result;

use crate::net::{ETCD_PEER_PORT, ETCD_PORT};
use crate::paths::Paths;
use crate::process::{Daemon, start};
use crate::programs;

/// Starts it.
pub async fn up(paths: &Paths) -> Result<()> {
    let client = format!("http://127.0.0.1:{ETCD_PORT}");
    let peer = format!("http://127.0.0.1:{ETCD_PEER_PORT}");
    let daemon = Daemon {
        name: "etcd".to_owned(),
        exe: programs::path("etcd")?,
        args: vec![
            "--name=flower-e2e".to_owned(),
            format!("--data-dir={}", paths.dir("etcd")?.display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=flower-e2e={peer}"),
            "--unsafe-no-fsync".to_owned(),
            "--log-level=warn".to_owned(),
        ],
        files: Vec::new(),
        env: Vec::new(),
    };
    start(paths, &daemon).await
}
