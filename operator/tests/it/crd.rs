//! The CRD: files that hold it do not drift, and its rules accept and refuse what they should.

use std::{fs, path::PathBuf};

use flower_operator::crd::{FlowerCluster, generate};
use serde_json::{Value, json};

use super::support::{IMAGE, flower_cluster};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Compares a file with what it should hold, or writes it with `UPDATE_GOLDEN=1`.
fn same(path: &PathBuf, expected: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(path.parent().expect("a folder")).expect("the folder");
        fs::write(path, expected).expect("the file");
        return;
    }
    let found = fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == expected,
        "{} is out of date: run `UPDATE_GOLDEN=1 cargo test -p flower-operator` and commit the difference",
        path.display()
    );
}

#[test]
fn the_files_hold_the_generated_crd() {
    let yaml = generate::yaml().expect("YAML");
    same(&root().join("crds/flowerclusters.yaml"), &yaml);
    let chart = generate::chart().expect("YAML");
    assert!(!chart.contains("{{"), "Helm would take it for a template");
    same(
        &root().join("charts/flower-crds/templates/flowerclusters.yaml"),
        &chart,
    );
}

#[test]
fn the_crd_is_small_and_has_no_format_that_kubernetes_does_not_know() {
    let yaml = generate::yaml().expect("YAML");
    assert!(yaml.len() < 200_000, "{} bytes", yaml.len());
    assert!(!yaml.contains("format: uint"), "an unsigned format");
    let crd = generate::flower_clusters();
    let version = &crd["spec"]["versions"][0];
    assert!(version["subresources"]["scale"].is_object());
    assert!(version["subresources"]["status"].is_object());
}

/// The object with the server's defaults filled in, as rules see it.
fn defaulted(name: &str, spec: Value) -> FlowerCluster {
    let object = flower_cluster(name, spec);
    let value = serde_json::to_value(object).expect("JSON");
    serde_json::from_value(value).expect("the same")
}

#[test]
fn rules_accept_and_refuse_on_create() {
    let long = "a".repeat(41);
    let cases: Vec<(&str, Value, bool)> = vec![
        ("orders", json!({}), true),
        ("orders", json!({ "replicas": 1 }), true),
        ("orders", json!({ "replicas": 7 }), true),
        ("orders", json!({ "replicas": 2 }), false),
        ("orders", json!({ "replicas": 4 }), false),
        (&long, json!({}), false),
        ("1orders", json!({}), false),
        ("or.ders", json!({}), false),
        (
            "orders",
            json!({ "cache": { "mode": "Fixed", "pageCacheBytes": "64Mi", "valueCacheBytes": "32Mi" } }),
            true,
        ),
        (
            "orders",
            json!({ "cache": { "mode": "Fixed", "pageCacheBytes": "64Mi" } }),
            false,
        ),
        (
            "orders",
            json!({ "cache": { "pageCacheBytes": "64Mi" } }),
            false,
        ),
        (
            "orders",
            json!({ "pod": { "labels": { "team": "a" } } }),
            true,
        ),
        (
            "orders",
            json!({ "pod": { "labels": { "flowerdb.dev/role": "leader" } } }),
            false,
        ),
        (
            "orders",
            json!({ "pod": { "labels": { "app.kubernetes.io/name": "x" } } }),
            false,
        ),
        (
            "orders",
            json!({ "pod": { "annotations": { "flowerdb.dev/x": "1" } } }),
            false,
        ),
        (
            "orders",
            json!({ "pod": { "env": [{ "name": "FLOWER_LOG", "value": "debug" }] } }),
            true,
        ),
        (
            "orders",
            json!({ "pod": { "env": [{ "name": "FLOWER_DATA", "value": "/x" }] } }),
            false,
        ),
    ];
    for (name, spec, accepted) in cases {
        let object = defaulted(name, spec.clone());
        let by_rule = object.validate_cel();
        assert_eq!(by_rule.is_ok(), accepted, "CEL, {name} {spec}: {by_rule:?}");
        // An object may be older than a rule: `validate` says the same.
        let by_code = flower_operator::controller::validate::validate(&object, IMAGE);
        assert_eq!(
            by_code.is_ok(),
            accepted,
            "validate, {name} {spec}: {by_code:?}"
        );
    }
}

#[test]
fn rules_accept_and_refuse_on_update() {
    let cases: Vec<(Value, Value, bool)> = vec![
        (json!({}), json!({ "replicas": 5 }), true),
        (json!({}), json!({ "storage": { "size": "20Gi" } }), false),
        (
            json!({ "storage": { "size": "1Gi" } }),
            json!({ "storage": { "size": "1Gi" } }),
            true,
        ),
        (
            json!({}),
            json!({ "storage": { "storageClassName": "fast" } }),
            false,
        ),
        (
            json!({ "storage": { "storageClassName": "fast" } }),
            json!({}),
            false,
        ),
        (
            json!({ "storage": { "storageClassName": "fast" } }),
            json!({ "storage": { "storageClassName": "slow" } }),
            false,
        ),
        (json!({}), json!({ "paused": true, "image": "x:1" }), true),
    ];
    for (old, new, accepted) in cases {
        let result =
            defaulted("orders", new.clone()).validate_cel_update(&defaulted("orders", old.clone()));
        assert_eq!(result.is_ok(), accepted, "{old} -> {new}: {result:?}");
    }
}

#[test]
fn specs_that_cel_cannot_judge_are_refused_with_a_reason() {
    for (spec, reason, says) in [
        (
            json!({ "resources": { "limits": { "memory": "64Mi" } } }),
            "MemoryTooSmall",
            "resources.limits.memory",
        ),
        (
            json!({ "resources": { "limits": { "memory": "lots" } } }),
            "QuantityInvalid",
            "512Mi",
        ),
        (
            json!({ "resources": { "requests": { "memory": "2Gi" }, "limits": { "memory": "1Gi" } } }),
            "QuantityInvalid",
            "above its limit",
        ),
        (
            json!({ "storage": { "size": "1Mi" } }),
            "QuantityInvalid",
            "spec.storage.size",
        ),
        (
            json!({ "snapshot": { "afterLogBytes": "1Ki" } }),
            "QuantityInvalid",
            "afterLogBytes",
        ),
        (
            json!({ "receipts": { "retention": "1d" } }),
            "RetentionInvalid",
            "24h",
        ),
        (
            json!({ "cache": { "mode": "Fixed", "pageCacheBytes": "1Gi", "valueCacheBytes": "1Gi" } }),
            "MemoryTooSmall",
            "lower cache.pageCacheBytes",
        ),
    ] {
        let object = flower_cluster("orders", spec.clone());
        let refusal = flower_operator::controller::validate::validate(&object, IMAGE)
            .expect_err("it cannot be carried out");
        assert_eq!(refusal.reason.name(), reason, "{spec}");
        assert!(
            refusal.message.contains(says),
            "{spec}: {}",
            refusal.message
        );
    }
}
