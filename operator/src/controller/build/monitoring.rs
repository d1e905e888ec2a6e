//! The PodMonitor, applied where its CRD exists. Pure.

use serde_json::json;

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
                "podTargetLabels": [labels::CLUSTER, labels::GROUP],
                "podMetricsEndpoints": [{ "port": "admin", "path": "/metrics" }],
            },
        }),
    )
}
