//! Prometheus, Debian's program, on loopback; the agent keeps its configuration.

use std::time::Duration;

use anyhow::Result;

use crate::net::PROMETHEUS_PORT;
use crate::paths::Paths;
use crate::process::{Daemon, check, start};
use crate::progress::wait_for;

/// Starts it with nothing to scrape; the agent then fills the configuration in.
pub async fn up(paths: &Paths) -> Result<()> {
    let config = paths.at("prometheus/config.yaml")?;
    if !config.exists() {
        paths.write(
            "prometheus/config.yaml",
            &crate::agent::monitors::config(paths, &[]),
        )?;
    }
    let daemon = Daemon {
        name: "prometheus".to_owned(),
        exe: "/usr/bin/prometheus".into(),
        args: vec![
            format!("--config.file={}", config.display()),
            format!(
                "--storage.tsdb.path={}",
                paths.dir("prometheus/data")?.display()
            ),
            "--storage.tsdb.retention.time=1d".to_owned(),
            format!("--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}"),
            "--web.enable-lifecycle".to_owned(),
            "--log.level=warn".to_owned(),
        ],
        files: Vec::new(),
        env: Vec::new(),
    };
    start(paths, &daemon).await?;
    wait_for("Prometheus answers", Duration::from_secs(30), || async {
        check(paths, "prometheus")?;
        crate::http::get(&format!("http://127.0.0.1:{PROMETHEUS_PORT}/-/ready"))
            .await
            .map(drop)
    })
    .await
}
