//! kube-controller-manager and kube-scheduler, without leader election: there is one of each.

use anyhow::Result;

use crate::net::{CONTROLLERS_PORT, SCHEDULER_PORT};
use crate::paths::Paths;
use crate::process::{Daemon, start};
use crate::programs;

/// Starts both.
pub async fn up(paths: &Paths) -> Result<()> {
    let pki = |file: &str| paths.pki(file).display().to_string();
    let config = paths.kubeconfig("controllers").display().to_string();
    let controllers = vec![
        format!("--kubeconfig={config}"),
        format!("--authentication-kubeconfig={config}"),
        format!("--authorization-kubeconfig={config}"),
        "--leader-elect=false".to_owned(),
        "--use-service-account-credentials=true".to_owned(),
        format!("--root-ca-file={}", pki("ca.crt")),
        format!(
            "--service-account-private-key-file={}",
            pki("service-accounts.key")
        ),
        format!("--cluster-signing-cert-file={}", pki("ca.crt")),
        format!("--cluster-signing-key-file={}", pki("ca.key")),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={CONTROLLERS_PORT}"),
        format!("--cert-dir={}", paths.dir("controllers")?.display()),
    ];
    start(paths, &daemon("kube-controller-manager", controllers)?).await?;

    let config = paths.kubeconfig("scheduler").display().to_string();
    let scheduler = vec![
        format!("--kubeconfig={config}"),
        format!("--authentication-kubeconfig={config}"),
        format!("--authorization-kubeconfig={config}"),
        "--leader-elect=false".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={SCHEDULER_PORT}"),
        format!("--cert-dir={}", paths.dir("scheduler")?.display()),
    ];
    start(paths, &daemon("kube-scheduler", scheduler)?).await
}

fn daemon(name: &str, args: Vec<String>) -> Result<Daemon> {
    Ok(Daemon {
        name: name.to_owned(),
        exe: programs::path(name)?,
        args,
        files: Vec::new(),
        env: Vec::new(),
    })
}
