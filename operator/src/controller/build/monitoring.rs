//! The PodMonitor, applied where its CRD exists. Pure.

use serde_json::{Value, json};

use super::{Kind, Manifest, manifest};
use crate::{controller::validate::ValidatedCluster, labels};

/// Scrapes every pod's admin port, which serves metrics without a token.
pub fn pod_monitor(cluster: &ValidatedCluster) -> Manifest {
    let mut all = cluster.monitoring.labels.clone();
    all.extend(labels::object(&cluster.name));
    manifest(
        cluster,
        Kind::PodMonitor,
        cluster.name.service(),
        json!({ "labels": all }),
        json!({
            "spec": {
                "selector": { "matchLabels": labels::selector(&cluster.name) },
                "podMetricsEndpoints": [{
                    "port": "admin",
                    "path": "/metrics",
                    "relabelings": [
                        relabel(labels::CLUSTER, "flower_cluster"),
                        relabel(labels::GROUP, "flower_group"),
                    ],
                }],
            },
        }),
    )
}

/// A pod's label as a label of its metrics. Not `cluster`, which many give to the Kubernetes
/// cluster itself.
fn relabel(label: &str, to: &str) -> Value {
    let source = format!(
        "__meta_kubernetes_pod_label_{}",
        label.replace(['.', '/', '-'], "_")
    );
    json!({ "sourceLabels": [source], "targetLabel": to })
}
