//! Services: peers (headless), clients, and the leader. Pure.

use flower_api::ports;
use serde_json::{Value, json};

use super::{Kind, Manifest, manifest};
use crate::{controller::validate::ValidatedCluster, labels};

fn port(name: &str, port: u16) -> Value {
    json!({ "name": name, "port": port, "targetPort": name, "protocol": "TCP" })
}

/// Names for members, ready or not: a member that is not ready must be reachable to become it.
pub fn peers(cluster: &ValidatedCluster) -> Manifest {
    manifest(
        cluster,
        Kind::Service,
        cluster.name.peers(cluster.group),
        json!({ "labels": labels::group_object(&cluster.name, cluster.group) }),
        json!({
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": true,
                "selector": labels::group_selector(&cluster.name, cluster.group),
                "ports": [
                    port("client", ports::CLIENT),
                    port("peer", ports::PEER),
                    port("admin", ports::ADMIN),
                ],
            },
        }),
    )
}

/// Where clients connect: every ready pod of every group.
pub fn client(cluster: &ValidatedCluster) -> Manifest {
    let mut metadata = json!({ "labels": labels::object(&cluster.name) });
    if !cluster.service.annotations.is_empty() {
        metadata["annotations"] = json!(cluster.service.annotations);
    }
    manifest(
        cluster,
        Kind::Service,
        cluster.name.service(),
        metadata,
        json!({
            "spec": {
                "type": cluster.service.type_.as_str(),
                "selector": labels::selector(&cluster.name),
                "ports": [port("client", ports::CLIENT)],
            },
        }),
    )
}

/// The leader's pod, by the role label that the operator keeps. Saves a hop; nothing relies
/// on it, as every node forwards to the leader.
pub fn leader(cluster: &ValidatedCluster) -> Manifest {
    let mut selector = labels::selector(&cluster.name);
    selector.insert(labels::ROLE.to_owned(), "leader".to_owned());
    manifest(
        cluster,
        Kind::Service,
        cluster.name.leader_service(),
        json!({ "labels": labels::object(&cluster.name) }),
        json!({
            "spec": {
                "type": "ClusterIP",
                "selector": selector,
                "ports": [port("client", ports::CLIENT)],
            },
        }),
    )
}
