//! Spec fields that end up in the pods. Types and rules only; the larger ones are the API's.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::amount::Amount;

/// What the API server takes as an object's name. The operator asks for objects by these names,
/// so that anything else (a slash, say) would ask for something else.
pub const OBJECT_NAME_RULE: &str = "self.matches('^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$')";
/// What the rule says of another.
pub const OBJECT_NAME_MESSAGE: &str =
    "this is no object's name: use lower-case letters, digits, '-' and '.'";

/// Whether the rule above holds.
pub fn is_object_name(name: &str) -> bool {
    let end = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=253).contains(&name.len())
        && name.starts_with(end)
        && name.ends_with(end)
        && name.chars().all(|c| end(c) || c == '-' || c == '.')
}

/// A name of an object in the same namespace.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, KubeSchema)]
pub struct LocalReference {
    /// The name.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new(OBJECT_NAME_RULE).message(OBJECT_NAME_MESSAGE))]
    pub name: String,
}

/// Resources of the node's container.
#[derive(Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// What is reserved.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Amount>,
    /// What may be used. `memory` is split into the caches.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, Amount>,
}

/// An environment variable of the node's container.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvVar {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32768))]
    pub value: Option<String>,
    /// A source of its value instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<core::EnvVarSource>,
}

/// Additions to the pods.
#[derive(Serialize, Deserialize, Debug, Clone, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pod {
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    #[x_kube(validation = Rule::new("self.all(key, !key.startsWith('flowerdb.dev/') && !key.startsWith('app.kubernetes.io/'))")
        .message("labels under flowerdb.dev/ and app.kubernetes.io/ are the operator's"))]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    #[x_kube(validation = Rule::new("self.all(key, !key.startsWith('flowerdb.dev/'))")
        .message("annotations under flowerdb.dev/ are the operator's"))]
    pub annotations: BTreeMap<String, String>,
    /// Affinity. By default, pods of a group prefer different nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<core::Affinity>,
    /// Tolerations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<core::Toleration>,
    /// Labels of the nodes that may run the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// How pods are spread over zones and nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology_spread_constraints: Vec<core::TopologySpreadConstraint>,
    /// Priority class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// Environment variables of the node, such as `FLOWER_LOG`. Those that the operator
    /// sets itself cannot be given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("self.all(one, !(one.name in ['POD_NAME', 'FLOWER_DATA', 'FLOWER_NAME', 'FLOWER_GROUP', 'FLOWER_ADVERTISE', 'FLOWER_AUTH_DIR', 'FLOWER_CACHE_MODE', 'FLOWER_PAGE_CACHE_BYTES', 'FLOWER_VALUE_CACHE_BYTES', 'FLOWER_HEADROOM_PERCENT', 'FLOWER_SNAPSHOT_AFTER_LOG_BYTES', 'FLOWER_RECEIPT_RETENTION_MS', 'FLOWER_LOG_FORMAT', 'FLOWER_STOP_GRACE_MS', 'FLOWER_LISTEN', 'FLOWER_CLIENT_PORT', 'FLOWER_PEER_PORT', 'FLOWER_ADMIN_PORT', 'FLOWER_MEMORY_LIMIT_BYTES']))")
        .message("this variable is the operator's, which sets it from another field of the spec or relies on its default; see the reference of FlowerCluster"))]
    pub env: Vec<EnvVar>,
}

/// Variables that the operator sets, or whose defaults its Services, probes and sizes rely on;
/// the CEL rule above names the same.
pub const OPERATOR_ENV: [&str; 19] = [
    "POD_NAME",
    "FLOWER_DATA",
    "FLOWER_NAME",
    "FLOWER_GROUP",
    "FLOWER_ADVERTISE",
    "FLOWER_AUTH_DIR",
    "FLOWER_CACHE_MODE",
    "FLOWER_PAGE_CACHE_BYTES",
    "FLOWER_VALUE_CACHE_BYTES",
    "FLOWER_HEADROOM_PERCENT",
    "FLOWER_SNAPSHOT_AFTER_LOG_BYTES",
    "FLOWER_RECEIPT_RETENTION_MS",
    "FLOWER_LOG_FORMAT",
    "FLOWER_STOP_GRACE_MS",
    "FLOWER_LISTEN",
    "FLOWER_CLIENT_PORT",
    "FLOWER_PEER_PORT",
    "FLOWER_ADMIN_PORT",
    "FLOWER_MEMORY_LIMIT_BYTES",
];
