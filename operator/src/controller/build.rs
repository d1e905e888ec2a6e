//! ValidatedCluster → every manifest. Pure: no clock, nothing observed but which optional
//! kinds exist, so that the same spec always gives the same objects.

use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::validate::ValidatedCluster;
use crate::labels;

pub mod access;
pub mod monitoring;
pub mod services;
pub mod statefulset;

/// Name of the node's container.
pub const CONTAINER: &str = "flower";

/// A kind that the operator applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Identity of the pods, without a token.
    ServiceAccount,
    /// Client, leader and peer Services.
    Service,
    /// Voluntary disruptions.
    PodDisruptionBudget,
    /// Scraping, when its CRD exists.
    PodMonitor,
    /// The pods.
    StatefulSet,
}

impl Kind {
    /// All kinds in the order in which they are applied: what pods need comes first.
    pub const ALL: [Self; 5] = [
        Self::ServiceAccount,
        Self::Service,
        Self::PodDisruptionBudget,
        Self::PodMonitor,
        Self::StatefulSet,
    ];
    /// Group, version and kind.
    pub fn gvk(self) -> GroupVersionKind {
        let (group, version, kind) = match self {
            Self::ServiceAccount => ("", "v1", "ServiceAccount"),
            Self::Service => ("", "v1", "Service"),
            Self::PodDisruptionBudget => ("policy", "v1", "PodDisruptionBudget"),
            Self::PodMonitor => ("monitoring.coreos.com", "v1", "PodMonitor"),
            Self::StatefulSet => ("apps", "v1", "StatefulSet"),
        };
        GroupVersionKind::gvk(group, version, kind)
    }
    /// As the client needs it.
    pub fn resource(self) -> ApiResource {
        ApiResource::from_gvk(&self.gvk())
    }
}

/// One object as it should be.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// Kind.
    pub kind: Kind,
    /// Name.
    pub name: String,
    /// The whole object.
    pub object: Value,
}

/// Names of every object that `build` may make, for reading them first.
pub fn names(cluster: &ValidatedCluster) -> Vec<(Kind, String)> {
    let group = cluster.group;
    let name = &cluster.name;
    vec![
        (Kind::ServiceAccount, name.service()),
        (Kind::Service, name.peers(group)),
        (Kind::Service, name.service()),
        (Kind::Service, name.leader_service()),
        (Kind::PodDisruptionBudget, name.group(group)),
        (Kind::PodMonitor, name.service()),
        (Kind::StatefulSet, name.group(group)),
    ]
}

/// Builds every object, in the order in which they are applied.
pub fn build(cluster: &ValidatedCluster, replicas: u32, pod_monitors: bool) -> Vec<Manifest> {
    let mut all = vec![
        access::service_account(cluster),
        services::peers(cluster),
        services::client(cluster),
        services::leader(cluster),
        access::disruption_budget(cluster),
    ];
    if pod_monitors && cluster.monitoring.pod_monitor {
        all.push(monitoring::pod_monitor(cluster));
    }
    all.push(statefulset::statefulset(cluster, replicas));
    all.into_iter().map(seal).collect()
}

/// An object with the metadata that all have.
fn manifest(
    cluster: &ValidatedCluster,
    kind: Kind,
    name: String,
    mut metadata: Value,
    body: Value,
) -> Manifest {
    let gvk = kind.gvk();
    metadata["name"] = json!(name);
    metadata["namespace"] = json!(cluster.namespace);
    metadata["ownerReferences"] = json!([cluster.owner()]);
    let mut object = json!({
        "apiVersion": gvk.api_version(),
        "kind": gvk.kind,
        "metadata": metadata,
    });
    if let (Value::Object(object), Value::Object(body)) = (&mut object, body) {
        object.extend(body);
    }
    Manifest { kind, name, object }
}

/// Notes the manifest's own hash on it: a field that is no longer wanted is found by it, as
/// the live object still has the field and would look right otherwise.
fn seal(mut manifest: Manifest) -> Manifest {
    let hash = hash(&manifest.object);
    manifest.object["metadata"]["annotations"][labels::APPLIED_HASH] = json!(hash);
    manifest
}

/// SHA-256 over the object's canonical form (keys sorted), 16 hex digits of it.
pub fn hash(value: &Value) -> String {
    let mut text = String::new();
    canonical(value, &mut text);
    hex::encode(&Sha256::digest(text.as_bytes())[..8])
}

fn canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            out.push('{');
            for key in keys {
                out.push_str(&Value::String(key.clone()).to_string());
                out.push(':');
                canonical(&map[key], out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for item in items {
                canonical(item, out);
                out.push(',');
            }
            out.push(']');
        }
        other => out.push_str(&other.to_string()),
    }
}
