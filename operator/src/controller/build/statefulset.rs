//! The StatefulSet of a group and its pod template. Pure.
//! `OnDelete` and `Retain`: only the operator deletes pods and claims, so that a hand that
//! scales or deletes the StatefulSet loses nothing.

use flower_api::{limits::MIB, ports, sizing::CachePolicy};
use serde_json::{Map, Value, json};

use super::{CONTAINER, Kind, Manifest, hash, manifest};
use crate::{controller::validate::ValidatedCluster, labels, names::CLAIM_TEMPLATE};

/// User and group of the image.
const USER: u32 = 65_532;
/// Seconds that a pod may take to hand over, finish its calls and checkpoint.
const GRACE_SECONDS: u32 = 60;
/// Milliseconds that a stopping node goes on serving, until nobody routes to it any more.
const STOP_GRACE_MS: u32 = 5_000;

const DATA_DIR: &str = "/var/lib/flower";
const AUTH_DIR: &str = "/etc/flower/auth";

/// The StatefulSet.
pub fn statefulset(cluster: &ValidatedCluster, replicas: u32) -> Manifest {
    manifest(
        cluster,
        Kind::StatefulSet,
        cluster.name.group(cluster.group),
        json!({ "labels": labels::group_object(&cluster.name, cluster.group) }),
        json!({
            "spec": {
                "replicas": replicas,
                "serviceName": cluster.name.peers(cluster.group),
                "podManagementPolicy": "Parallel",
                "updateStrategy": { "type": "OnDelete" },
                "revisionHistoryLimit": 10,
                "persistentVolumeClaimRetentionPolicy": {
                    "whenDeleted": "Retain",
                    "whenScaled": "Retain",
                },
                "selector": {
                    "matchLabels": labels::group_selector(&cluster.name, cluster.group),
                },
                "template": template(cluster),
                "volumeClaimTemplates": [claim_template(cluster)],
            },
        }),
    )
}

/// Hash of the template that pods should have.
pub fn template_hash(cluster: &ValidatedCluster) -> String {
    hash(&bare_template(cluster))
}

/// The template with its hash noted, by which a pod's age is told.
fn template(cluster: &ValidatedCluster) -> Value {
    let mut template = bare_template(cluster);
    let hash = hash(&template);
    template["metadata"]["annotations"][labels::TEMPLATE_HASH] = json!(hash);
    template
}

fn bare_template(cluster: &ValidatedCluster) -> Value {
    let mut all = cluster.pod.labels.clone();
    all.extend(labels::group_object(&cluster.name, cluster.group));
    let mut metadata = json!({ "labels": all });
    if !cluster.pod.annotations.is_empty() {
        metadata["annotations"] = json!(cluster.pod.annotations);
    }
    json!({ "metadata": metadata, "spec": pod_spec(cluster) })
}

fn claim_template(cluster: &ValidatedCluster) -> Value {
    let mut spec = json!({
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": "Filesystem",
        "resources": { "requests": { "storage": cluster.storage_size } },
    });
    if let Some(class) = &cluster.storage_class {
        spec["storageClassName"] = json!(class);
    }
    json!({
        "metadata": {
            "name": CLAIM_TEMPLATE,
            "labels": labels::group_object(&cluster.name, cluster.group),
        },
        "spec": spec,
    })
}

fn pod_spec(cluster: &ValidatedCluster) -> Value {
    let pod = &cluster.pod;
    let mut spec = json!({
        "serviceAccountName": cluster.name.service(),
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": { "type": "RuntimeDefault" },
        },
        "affinity": pod.affinity.as_ref().map_or_else(|| spread(cluster), |given| json!(given)),
        "containers": [container(cluster)],
        "volumes": [
            { "name": "auth", "secret": { "secretName": cluster.auth_secret } },
            { "name": "tmp", "emptyDir": {} },
        ],
    });
    let mut optional = Map::new();
    if !cluster.pull_secrets.is_empty() {
        let names: Vec<Value> = cluster
            .pull_secrets
            .iter()
            .map(|name| json!({ "name": name }))
            .collect();
        optional.insert("imagePullSecrets".to_owned(), json!(names));
    }
    if !pod.tolerations.is_empty() {
        optional.insert("tolerations".to_owned(), json!(pod.tolerations));
    }
    if !pod.node_selector.is_empty() {
        optional.insert("nodeSelector".to_owned(), json!(pod.node_selector));
    }
    if !pod.topology_spread_constraints.is_empty() {
        optional.insert(
            "topologySpreadConstraints".to_owned(),
            json!(pod.topology_spread_constraints),
        );
    }
    if let Some(class) = &pod.priority_class_name {
        optional.insert("priorityClassName".to_owned(), json!(class));
    }
    if let Value::Object(spec) = &mut spec {
        spec.extend(optional);
    }
    spec
}

/// Different nodes are preferred, not required: a small cluster must come up too.
fn spread(cluster: &ValidatedCluster) -> Value {
    json!({
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{
                "weight": 100,
                "podAffinityTerm": {
                    "topologyKey": "kubernetes.io/hostname",
                    "labelSelector": {
                        "matchLabels": labels::group_selector(&cluster.name, cluster.group),
                    },
                },
            }],
        },
    })
}

fn container(cluster: &ValidatedCluster) -> Value {
    let port = |name: &str, number: u16| json!({ "name": name, "containerPort": number, "protocol": "TCP" });
    let probe = |path: &str| json!({ "path": path, "port": "admin", "scheme": "HTTP" });
    json!({
        "name": CONTAINER,
        "image": cluster.image,
        "imagePullPolicy": cluster.pull_policy,
        "args": ["serve"],
        "env": env(cluster),
        "ports": [
            port("client", ports::CLIENT),
            port("peer", ports::PEER),
            port("admin", ports::ADMIN),
        ],
        "resources": cluster.resources,
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
        },
        // Recovery, repair and an image's installation may take long; /livez answers
        // meanwhile, so this bounds only a program that does not start at all.
        "startupProbe": {
            "httpGet": probe("/livez"), "periodSeconds": 1, "timeoutSeconds": 2, "failureThreshold": 300,
        },
        "livenessProbe": {
            "httpGet": probe("/livez"), "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6,
        },
        "readinessProbe": {
            "httpGet": probe("/readyz"), "periodSeconds": 2, "timeoutSeconds": 2, "failureThreshold": 2,
        },
        "lifecycle": { "preStop": { "exec": { "command": ["/usr/bin/flower", "prepare-stop"] } } },
        "volumeMounts": [
            { "name": CLAIM_TEMPLATE, "mountPath": DATA_DIR },
            { "name": "auth", "mountPath": AUTH_DIR, "readOnly": true },
            { "name": "tmp", "mountPath": "/tmp" },
        ],
    })
}

fn env(cluster: &ValidatedCluster) -> Vec<Value> {
    let var = |name: &str, value: String| json!({ "name": name, "value": value });
    let advertise = format!(
        "$(POD_NAME).{}.{}.svc:{}",
        cluster.name.peers(cluster.group),
        cluster.namespace,
        ports::PEER
    );
    let mut all = vec![
        json!({ "name": "POD_NAME", "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.name" } } }),
        var("FLOWER_DATA", DATA_DIR.to_owned()),
        var("FLOWER_NAME", "$(POD_NAME)".to_owned()),
        var("FLOWER_GROUP", cluster.group.to_string()),
        var("FLOWER_ADVERTISE", advertise),
        var("FLOWER_AUTH_DIR", AUTH_DIR.to_owned()),
    ];
    let (mode, headroom) = match cluster.cache {
        CachePolicy::Auto { headroom_percent } => ("auto", headroom_percent),
        CachePolicy::Fixed {
            headroom_percent, ..
        } => ("fixed", headroom_percent),
    };
    all.push(var("FLOWER_CACHE_MODE", mode.to_owned()));
    if let CachePolicy::Fixed {
        page_cache_bytes,
        value_cache_bytes,
        ..
    } = cluster.cache
    {
        all.push(var("FLOWER_PAGE_CACHE_BYTES", page_cache_bytes.to_string()));
        all.push(var(
            "FLOWER_VALUE_CACHE_BYTES",
            value_cache_bytes.to_string(),
        ));
    }
    all.extend([
        var("FLOWER_HEADROOM_PERCENT", headroom.to_string()),
        var(
            "FLOWER_SNAPSHOT_AFTER_LOG_BYTES",
            cluster.snapshot_after_log_bytes.max(MIB).to_string(),
        ),
        var(
            "FLOWER_RECEIPT_RETENTION_MS",
            cluster.receipt_retention_ms.to_string(),
        ),
        var("FLOWER_LOG_FORMAT", "json".to_owned()),
        var("FLOWER_STOP_GRACE_MS", STOP_GRACE_MS.to_string()),
    ]);
    all.extend(cluster.pod.env.iter().map(|one| json!(one)));
    all
}
