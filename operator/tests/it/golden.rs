//! Every manifest that is made from a spec, as files: a change of what is applied shows in a
//! review. `UPDATE_GOLDEN=1` rewrites them.

use std::{fs, path::PathBuf};

use flower_operator::controller::build::{self, Kind, Manifest, statefulset};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Service, ServiceAccount},
    policy::v1::PodDisruptionBudget,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::support::validated;

fn specs() -> Vec<(&'static str, Value)> {
    vec![
        ("default", json!({})),
        (
            "single",
            json!({ "replicas": 1, "storage": { "size": "1Gi", "storageClassName": "fast" } }),
        ),
        (
            "fixed-cache",
            json!({
                "resources": { "requests": { "cpu": "500m" }, "limits": { "memory": "1Gi", "cpu": 2 } },
                "cache": { "mode": "Fixed", "pageCacheBytes": "128Mi", "valueCacheBytes": "64Mi", "headroomPercent": 30 },
                "snapshot": { "afterLogBytes": "64Mi" },
                "receipts": { "retention": "1h30m" },
            }),
        ),
        (
            "pod",
            json!({
                "image": "registry.example/flower:9",
                "imagePullPolicy": "Always",
                "imagePullSecrets": [{ "name": "pull" }],
                "auth": { "secretName": "tokens" },
                "pod": {
                    "labels": { "team": "shop" },
                    "annotations": { "note": "x" },
                    "nodeSelector": { "disk": "ssd" },
                    "priorityClassName": "high",
                    "tolerations": [{ "key": "dedicated", "operator": "Exists" }],
                    "topologySpreadConstraints": [{
                        "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway",
                    }],
                    "env": [
                        { "name": "FLOWER_LOG", "value": "debug" },
                        { "name": "NODE", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } },
                    ],
                },
            }),
        ),
        (
            "service",
            json!({
                "service": { "type": "LoadBalancer", "annotations": { "example.com/internal": "true" } },
                "monitoring": { "podMonitor": true, "labels": { "release": "prometheus" } },
            }),
        ),
    ]
}

fn text(manifests: &[Manifest]) -> String {
    manifests
        .iter()
        .map(|manifest| {
            let yaml = serde_yaml_ng::to_string(&manifest.object).expect("YAML");
            format!("---\n{yaml}")
        })
        .collect()
}

#[test]
fn manifests_are_as_committed() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for (name, spec) in specs() {
        let cluster = validated("orders", spec);
        let made = text(&build::build(&cluster, cluster.replicas, true));
        let path = folder.join(format!("{name}.yaml"));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::create_dir_all(&folder).expect("the folder");
            fs::write(&path, &made).expect("the file");
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == made,
            "{} differs: run with UPDATE_GOLDEN=1 and look at the difference",
            path.display()
        );
    }
}

/// Parsing drops what a type does not know: nothing may be lost on the way.
fn whole<T: Serialize + DeserializeOwned>(object: &Value) {
    let typed: T = serde_json::from_value(object.clone()).expect("the type");
    let mut back = serde_json::to_value(typed).expect("JSON");
    if let Some(Value::Object(template)) = back.pointer_mut("/spec/volumeClaimTemplates/0") {
        // The type writes these; the server does not need them.
        template.remove("apiVersion");
        template.remove("kind");
    }
    let (back, object) = (sorted(&back), sorted(object));
    assert!(back == object, "{back:#}\nis not\n{object:#}");
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut pairs: Vec<_> = map.iter().map(|(k, v)| (k.clone(), sorted(v))).collect();
            pairs.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(pairs.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

#[test]
fn manifests_have_only_fields_that_the_api_has() {
    for (_, spec) in specs() {
        let cluster = validated("orders", spec);
        for manifest in build::build(&cluster, 3, false) {
            match manifest.kind {
                Kind::StatefulSet => whole::<StatefulSet>(&manifest.object),
                Kind::Service => whole::<Service>(&manifest.object),
                Kind::ServiceAccount => whole::<ServiceAccount>(&manifest.object),
                Kind::PodDisruptionBudget => whole::<PodDisruptionBudget>(&manifest.object),
                Kind::PodMonitor => {}
            }
        }
    }
}

#[test]
fn only_what_needs_a_restart_changes_the_template() {
    let hash = |spec| statefulset::template_hash(&validated("orders", spec));
    let base = hash(json!({}));
    for spec in [
        json!({ "replicas": 5 }),
        json!({ "service": { "type": "NodePort" } }),
        json!({ "volumeClaims": { "whenDeleted": "Delete" } }),
        json!({ "app": { "bundle": { "configMapKeyRef": { "name": "a", "key": "b" } } } }),
        json!({ "monitoring": { "podMonitor": false } }),
    ] {
        assert_eq!(hash(spec.clone()), base, "{spec}");
    }
    for spec in [
        json!({ "image": "x:2" }),
        json!({ "resources": { "limits": { "memory": "1Gi" } } }),
        json!({ "receipts": { "retention": "1h" } }),
    ] {
        assert_ne!(hash(spec.clone()), base, "{spec}");
    }
}

#[test]
fn every_kind_that_is_built_is_read_first_and_in_order() {
    let cluster = validated("orders", json!({}));
    let read = build::names(&cluster);
    let built = build::build(&cluster, 3, true);
    for manifest in &built {
        assert!(
            read.contains(&(manifest.kind, manifest.name.clone())),
            "{manifest:?}"
        );
    }
    let order: Vec<Kind> = built.iter().map(|manifest| manifest.kind).collect();
    let mut sorted = order.clone();
    sorted.sort();
    assert_eq!(order, sorted, "pods come last");
}
