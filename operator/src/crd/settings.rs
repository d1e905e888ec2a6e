//! Spec fields about data, caches, the application and access. Types and rules only.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::pod::{OBJECT_NAME_MESSAGE, OBJECT_NAME_RULE};
use crate::amount::Amount;

/// The volume of each replica.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.size == oldSelf.size")
        .message("storage.size cannot be changed yet: volumes do not grow in this version; make a new cluster of the size and move the data"),
    validation = Rule::new("has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)")
        .message("storage.storageClassName cannot be changed: it is fixed when the volumes are made")
)]
pub struct Storage {
    /// Size of each volume. Immutable until volumes can grow.
    #[serde(default = "Storage::default_size")]
    pub size: Amount,
    /// StorageClass; the cluster's default when absent. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub storage_class_name: Option<String>,
}

impl Storage {
    fn default_size() -> Amount {
        "10Gi".into()
    }
}

impl Default for Storage {
    fn default() -> Self {
        Self {
            size: Self::default_size(),
            storage_class_name: None,
        }
    }
}

/// How caches are sized.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq, JsonSchema)]
pub enum CacheMode {
    /// From the memory limit.
    #[default]
    Auto,
    /// As given.
    Fixed,
}

/// Sizes of the caches.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.mode != 'Fixed' || (has(self.pageCacheBytes) && has(self.valueCacheBytes))")
        .message("cache.mode Fixed needs cache.pageCacheBytes and cache.valueCacheBytes"),
    validation = Rule::new("self.mode != 'Auto' || (!has(self.pageCacheBytes) && !has(self.valueCacheBytes))")
        .message("cache.mode Auto sizes the caches from resources.limits.memory: set cache.mode to Fixed to give sizes")
)]
pub struct Cache {
    /// Auto: from the memory limit, after fixed parts and headroom. Fixed: as given.
    #[serde(default)]
    pub mode: CacheMode,
    /// Page cache of the state's file, with mode Fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_cache_bytes: Option<Amount>,
    /// Cache of parsed values, with mode Fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_cache_bytes: Option<Amount>,
    /// Part of the limit left to the kernel's file cache and to peaks, in percent.
    #[serde(default = "Cache::default_headroom")]
    #[schemars(range(min = 0, max = 80))]
    pub headroom_percent: i32,
}

impl Cache {
    fn default_headroom() -> i32 {
        i32::from(flower_api::sizing::HEADROOM_PERCENT)
    }
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            mode: CacheMode::Auto,
            page_cache_bytes: None,
            value_cache_bytes: None,
            headroom_percent: Self::default_headroom(),
        }
    }
}

/// Snapshots and the log.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// A snapshot is announced and the log purged after so many bytes of log.
    #[serde(default = "Snapshot::default_after_log_bytes")]
    pub after_log_bytes: Amount,
}

impl Snapshot {
    fn default_after_log_bytes() -> Amount {
        "16Mi".into()
    }
}

impl Default for Snapshot {
    fn default() -> Self {
        Self {
            after_log_bytes: Self::default_after_log_bytes(),
        }
    }
}

/// Stored outcomes of mutations.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Receipts {
    /// How long a mutation's outcome is kept under its idempotency key: hours, minutes and
    /// seconds, as in 24h or 1h30m.
    #[serde(default = "Receipts::default_retention")]
    #[schemars(length(max = 16), regex(pattern = "^([0-9]+[hms])+$"))]
    pub retention: String,
}

impl Receipts {
    fn default_retention() -> String {
        "24h".to_owned()
    }
}

impl Default for Receipts {
    fn default() -> Self {
        Self {
            retention: Self::default_retention(),
        }
    }
}

/// The application to run.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct App {
    /// Where its bundle is. Each change of it is deployed; `flower deploy` is refused
    /// while this is set.
    pub bundle: Bundle,
}

/// Where a bundle is.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Bundle {
    /// A key of a ConfigMap in the same namespace.
    pub config_map_key_ref: ConfigMapKey,
}

/// A key of a ConfigMap in the same namespace.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapKey {
    /// Name of the ConfigMap.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new(OBJECT_NAME_RULE).message(OBJECT_NAME_MESSAGE))]
    pub name: String,
    /// Key in its data.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// Tokens of clients, administrators and peers.
#[derive(Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Auth {
    /// A Secret in the same namespace with the keys `client`, `admin` and `peer`, one token
    /// a line (several for rotation). When absent, `NAME-auth` is generated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new(OBJECT_NAME_RULE).message(OBJECT_NAME_MESSAGE))]
    pub secret_name: Option<String>,
}

/// Type of the client Service.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq, JsonSchema)]
pub enum ServiceType {
    /// Within the cluster.
    #[default]
    ClusterIP,
    /// A port on every node.
    NodePort,
    /// A load balancer of the cloud.
    LoadBalancer,
}

impl ServiceType {
    /// As in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIP => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}

/// The client Service.
#[derive(Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// Its type.
    #[serde(default, rename = "type")]
    pub type_: ServiceType,
    /// Its annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// Monitoring objects.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Monitoring {
    /// Make a PodMonitor where its CRD exists.
    #[serde(default = "Monitoring::default_pod_monitor")]
    pub pod_monitor: bool,
    /// Labels of the PodMonitor, for a Prometheus that selects by label.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl Monitoring {
    fn default_pod_monitor() -> bool {
        true
    }
}

impl Default for Monitoring {
    fn default() -> Self {
        Self {
            pod_monitor: Self::default_pod_monitor(),
            labels: BTreeMap::new(),
        }
    }
}

/// What becomes of volumes when the FlowerCluster is deleted.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq, JsonSchema)]
pub enum WhenDeleted {
    /// They stay, and a FlowerCluster of the same name adopts them.
    #[default]
    Retain,
    /// They are deleted with it.
    Delete,
}

/// What becomes of the volumes.
#[derive(Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeClaims {
    /// When the FlowerCluster is deleted. A generated Secret goes the way that stood here
    /// when it was generated.
    #[serde(default)]
    pub when_deleted: WhenDeleted,
}
