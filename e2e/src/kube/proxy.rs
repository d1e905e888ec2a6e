//! kube-proxy: the Services' addresses, by iptables.

use anyhow::Result;
use serde_json::json;

use crate::net::{Node, PODS, PROXY_HEALTH_PORT, PROXY_METRICS_PORT};
use crate::paths::Paths;
use crate::process::{Daemon, start};
use crate::programs;

/// Starts it.
pub async fn up(paths: &Paths) -> Result<()> {
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "bindAddress": "0.0.0.0",
        "healthzBindAddress": format!("127.0.0.1:{PROXY_HEALTH_PORT}"),
        "metricsBindAddress": format!("127.0.0.1:{PROXY_METRICS_PORT}"),
        "clientConnection": {"kubeconfig": paths.kubeconfig("proxy")},
        "clusterCIDR": PODS,
        // It must be a node that exists, or Services are not programmed for most of a minute.
        "hostnameOverride": Node::ALL[0].name(),
        "oomScoreAdj": 0,
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "iptables": {"localhostNodePorts": false, "minSyncPeriod": "100ms", "syncPeriod": "30s"},
        "nodePortAddresses": ["127.0.0.0/8"],
    });
    let daemon = Daemon {
        name: "kube-proxy".to_owned(),
        exe: programs::path("kube-proxy")?,
        args: vec![format!(
            "--config={}",
            paths.at("kube-proxy.json")?.display()
        )],
        files: vec![(
            "kube-proxy.json".to_owned(),
            serde_json::to_string_pretty(&config)?,
        )],
        env: Vec::new(),
    };
    start(paths, &daemon).await
}
