//! Labels and annotations that the operator writes. The selector's labels are kept apart:
//! a selector cannot be changed later. Pure.

use std::collections::BTreeMap;

use flower_api::ids::GroupId;

use crate::names::ClusterName;

/// Who makes the objects; children are watched and listed by it.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of `MANAGED_BY`, and field manager of every apply.
pub const MANAGER: &str = "flower-operator";
/// The FlowerCluster's name.
pub const CLUSTER: &str = "flowerdb.dev/cluster";
/// The group's number.
pub const GROUP: &str = "flowerdb.dev/group";
/// The pod's role in the group, kept by the operator: `leader`, `follower`, `learner`.
pub const ROLE: &str = "flowerdb.dev/role";
/// Hash of the pod template that a pod was made from.
pub const TEMPLATE_HASH: &str = "flowerdb.dev/template-hash";
/// Hash of the manifest that was last applied; finds fields that are no longer wanted.
pub const APPLIED_HASH: &str = "flowerdb.dev/applied-hash";
/// Written by `kubectl rollout restart`; honoured in our order.
pub const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";

/// Labels in selectors: never to be changed.
pub fn selector(cluster: &ClusterName) -> BTreeMap<String, String> {
    [
        ("app.kubernetes.io/name", "flower"),
        ("app.kubernetes.io/instance", cluster.as_str()),
        (CLUSTER, cluster.as_str()),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

/// Selector of one group's pods.
pub fn group_selector(cluster: &ClusterName, group: GroupId) -> BTreeMap<String, String> {
    let mut labels = selector(cluster);
    labels.insert(GROUP.to_owned(), group.to_string());
    labels
}

/// Labels of every object of a cluster.
pub fn object(cluster: &ClusterName) -> BTreeMap<String, String> {
    let mut labels = selector(cluster);
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    labels.insert(
        "app.kubernetes.io/component".to_owned(),
        "database".to_owned(),
    );
    labels
}

/// Labels of a group's objects and pods.
pub fn group_object(cluster: &ClusterName, group: GroupId) -> BTreeMap<String, String> {
    let mut labels = object(cluster);
    labels.insert(GROUP.to_owned(), group.to_string());
    labels
}

/// A label selector as text.
pub fn text(labels: &BTreeMap<String, String>) -> String {
    labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect::<Vec<_>>()
        .join(",")
}
