//! The FlowerCluster resource: its spec, with the rules that the API server enforces.
//! Types only; what a rule cannot say is checked again in `controller::validate`.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub mod generate;
pub mod pod;
pub mod settings;
pub mod status;

pub use pod::{EnvVar, Pod, Resources};
pub use settings::{
    App, Auth, Bundle, Cache, CacheMode, ConfigMapKey, Monitoring, Receipts, Service, ServiceType,
    Snapshot, Storage, VolumeClaims, WhenDeleted,
};
pub use status::FlowerClusterStatus;

/// API group.
pub const GROUP: &str = "flowerdb.dev";
/// Group and version, as in manifests.
pub const API_VERSION: &str = "flowerdb.dev/v1alpha1";

/// A replicated Flower database.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[kube(
    group = "flowerdb.dev",
    version = "v1alpha1",
    kind = "FlowerCluster",
    plural = "flowerclusters",
    singular = "flowercluster",
    shortname = "flower",
    category = "all",
    namespaced,
    cel,
    status = "FlowerClusterStatus",
    derive = "PartialEq",
    doc = "A replicated Flower database: its size, its resources and the application that it runs.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Groups", type_ = "integer", json_path = ".status.groupCount"),
    printcolumn(name = "Leader", type_ = "string", json_path = ".status.leaders"),
    printcolumn(
        name = "App",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"AppDeployed\")].reason"
    ),
    printcolumn(name = "Footprint", type_ = "string", json_path = ".status.footprint.summary"),
    printcolumn(name = "Storage", type_ = "string", json_path = ".spec.storage.size"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Waits",
        type_ = "string",
        json_path = ".status.plan.hold",
        priority = "1"
    ),
    validation = Rule::new("size(self.metadata.name) <= 40")
        .message("metadata.name may have at most 40 characters: pods and Services are named after it"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("metadata.name must be a DNS label that begins with a letter: Services are named after it")
)]
#[serde(rename_all = "camelCase")]
pub struct FlowerClusterSpec {
    /// Voters of the Raft group: 1, 3, 5 or 7.
    #[serde(default = "defaults::replicas")]
    #[schemars(range(min = 1, max = 7))]
    #[x_kube(validation = Rule::new("self in [1, 3, 5, 7]")
        .message("replicas must be 1, 3, 5 or 7: an even number of voters survives no more failures than one less"))]
    pub replicas: i32,

    /// Image of the node. By default that of the operator's version when the cluster was
    /// made, recorded in the status: upgrading the operator restarts no cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,

    /// When the image is pulled.
    #[serde(default)]
    pub image_pull_policy: PullPolicy,

    /// Secrets to pull the image with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub image_pull_secrets: Vec<pod::LocalReference>,

    /// Resources of the node's container. `limits.memory` is what the caches are sized
    /// from; request and limit default to 512Mi.
    #[serde(default)]
    pub resources: Resources,

    /// The volume of each replica.
    #[serde(default)]
    pub storage: Storage,

    /// Sizes of the caches.
    #[serde(default)]
    pub cache: Cache,

    /// Snapshots and the log.
    #[serde(default)]
    pub snapshot: Snapshot,

    /// Stored outcomes of mutations.
    #[serde(default)]
    pub receipts: Receipts,

    /// The application to run. Without it, `flower deploy` decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<App>,

    /// Tokens of clients, administrators and peers.
    #[serde(default)]
    pub auth: Auth,

    /// The client Service.
    #[serde(default)]
    pub service: Service,

    /// Monitoring objects.
    #[serde(default)]
    pub monitoring: Monitoring,

    /// Additions to the pods.
    #[serde(default)]
    pub pod: Pod,

    /// What becomes of the volumes.
    #[serde(default)]
    pub volume_claims: VolumeClaims,

    /// Stop acting: objects and members stay as they are until this is false again.
    #[serde(default)]
    pub paused: bool,
}

/// When an image is pulled.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq, JsonSchema)]
pub enum PullPolicy {
    /// At every start of a container.
    Always,
    /// When the node does not have it.
    #[default]
    IfNotPresent,
    /// Never; the node must have it.
    Never,
}

impl PullPolicy {
    /// As in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

mod defaults {
    pub(super) fn replicas() -> i32 {
        3
    }
}

impl Default for FlowerClusterSpec {
    fn default() -> Self {
        // One source of defaults: those that the API server fills in.
        serde_json::from_str("{}").expect("every field has a default")
    }
}
