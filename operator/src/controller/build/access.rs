//! ServiceAccount and disruption budget. Pure.

use serde_json::json;

use super::{Kind, Manifest, manifest};
use crate::{controller::validate::ValidatedCluster, labels};

/// The pods' identity. They call no Kubernetes API, so it has no token.
pub fn service_account(cluster: &ValidatedCluster) -> Manifest {
    manifest(
        cluster,
        Kind::ServiceAccount,
        cluster.name.service(),
        json!({ "labels": labels::object(&cluster.name) }),
        json!({ "automountServiceAccountToken": false }),
    )
}

/// At most one pod of the group is taken away by drains. The same at every size: a group of
/// one can be drained, and a pod that is not ready may only go while the others are.
pub fn disruption_budget(cluster: &ValidatedCluster) -> Manifest {
    manifest(
        cluster,
        Kind::PodDisruptionBudget,
        cluster.name.group(cluster.group),
        json!({ "labels": labels::group_object(&cluster.name, cluster.group) }),
        json!({
            "spec": {
                "maxUnavailable": 1,
                "unhealthyPodEvictionPolicy": "IfHealthyBudget",
                "selector": {
                    "matchLabels": labels::group_selector(&cluster.name, cluster.group),
                },
            },
        }),
    )
}
