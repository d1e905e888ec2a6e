//! The harness's own program in the background: it makes volumes for claims and keeps
//! Prometheus's configuration equal to the PodMonitors and PrometheusRules in the API.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::kube::client;
use crate::paths::{Paths, write_whole};
use crate::process::{Daemon, start};

pub mod monitors;
pub mod volumes;

/// This program, also after a later build has put another one in its place.
pub fn own_program() -> &'static Path {
    Path::new("/proc/self/exe")
}

/// Starts it, from a copy of this program that later builds leave alone.
pub async fn up(paths: &Paths) -> Result<()> {
    let own = own_program();
    let copy = paths.at("bin/flower-e2e-agent")?;
    if !same(own, &copy) {
        write_whole(&copy, &std::fs::read(own)?)?;
        std::fs::set_permissions(&copy, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    }
    let daemon = Daemon {
        name: "agent".to_owned(),
        exe: copy,
        args: vec!["agent".to_owned()],
        files: Vec::new(),
        env: vec![(
            "FLOWER_E2E_STATE".to_owned(),
            paths.state().display().to_string(),
        )],
    };
    start(paths, &daemon).await
}

fn same(one: &Path, other: &Path) -> bool {
    match (std::fs::read(one), std::fs::read(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// Looks at the cluster again and again until it is ended.
pub async fn run(paths: &Paths) -> Result<()> {
    let client = client(paths).await?;
    let mut volumes = volumes::Volumes::new(client.clone(), paths.clone());
    let mut monitors = monitors::Monitors::new(client, paths.clone());
    loop {
        for (what, result) in [
            ("volumes", volumes.pass().await),
            ("monitors", monitors.pass().await),
        ] {
            if let Err(error) = result {
                eprintln!("{} {what}: {error:#}", jiff::Timestamp::now());
            }
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}
