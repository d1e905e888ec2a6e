//! kube-apiserver, with an audit log of what service accounts do.

use std::time::Duration;

use anyhow::Result;

use crate::net::{API_PORT, ETCD_PORT, GATEWAY, SERVICES};
use crate::paths::Paths;
use crate::process::{Daemon, check, start};
use crate::programs;
use crate::progress::wait_for;
use crate::run::run;

/// Service accounts at Metadata level, and who gives and takes roles. The RBAC test reads this.
const AUDIT_POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  userGroups: [\"system:serviceaccounts:kube-system\"]
- level: Metadata
  userGroups: [\"system:serviceaccounts\"]
- level: Metadata
  verbs: [create, delete, patch, update]
  resources: [{group: rbac.authorization.k8s.io}]
- level: None
";

/// Starts it.
pub async fn up(paths: &Paths) -> Result<()> {
    let pki = |file: &str| paths.pki(file).display().to_string();
    let audit = paths.dir("audit")?;
    let args = vec![
        format!("--advertise-address={GATEWAY}"),
        format!("--bind-address={GATEWAY}"),
        format!("--secure-port={API_PORT}"),
        format!("--etcd-servers=http://127.0.0.1:{ETCD_PORT}"),
        format!("--service-cluster-ip-range={SERVICES}"),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        "--allow-privileged=true".to_owned(),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        format!("--client-ca-file={}", pki("ca.crt")),
        format!("--tls-cert-file={}", pki("apiserver.crt")),
        format!("--tls-private-key-file={}", pki("apiserver.key")),
        format!("--kubelet-certificate-authority={}", pki("ca.crt")),
        format!("--kubelet-client-certificate={}", pki("kubelet-client.crt")),
        format!("--kubelet-client-key={}", pki("kubelet-client.key")),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
        format!("--service-account-key-file={}", pki("service-accounts.pub")),
        format!(
            "--service-account-signing-key-file={}",
            pki("service-accounts.key")
        ),
        format!(
            "--audit-policy-file={}",
            audit.join("policy.yaml").display()
        ),
        format!("--audit-log-path={}", audit.join("audit.log").display()),
        "--audit-log-maxsize=500".to_owned(),
        "--profiling=false".to_owned(),
    ];
    let daemon = Daemon {
        name: "kube-apiserver".to_owned(),
        exe: programs::path("kube-apiserver")?,
        args,
        files: vec![("audit/policy.yaml".to_owned(), AUDIT_POLICY.to_owned())],
        env: Vec::new(),
    };
    start(paths, &daemon).await
}

/// Waits until it answers.
pub async fn ready(paths: &Paths) -> Result<()> {
    let kubectl = programs::path("kubectl")?;
    let config = format!("--kubeconfig={}", paths.kubeconfig("admin").display());
    wait_for(
        "the API server answers",
        Duration::from_secs(90),
        || async {
            check(paths, "etcd")?;
            check(paths, "kube-apiserver")?;
            run(
                &kubectl,
                &[&config, "get", "--raw", "/readyz", "--request-timeout=2s"],
            )
            .await
            .map(drop)
        },
    )
    .await
}
