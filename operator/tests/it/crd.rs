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

/// One case of `tests/cel.yaml`, which is tried against a real API server too.
#[derive(Debug, serde::Deserialize)]
struct Case {
    /// What it is about.
    case: String,
    #[serde(default = "orders")]
    name: String,
    /// Spec before, for an update.
    old: Option<Value>,
    spec: Value,
    accepted: bool,
}

fn orders() -> String {
    "orders".to_owned()
}

#[test]
fn rules_accept_and_refuse() {
    let cases: Vec<Case> =
        serde_yaml_ng::from_str(include_str!("../cel.yaml")).expect("a list of cases");
    assert!(cases.len() > 20);
    for case in cases {
        let object = defaulted(&case.name, case.spec.clone());
        let by_rule = match &case.old {
            None => object.validate_cel(),
            Some(old) => object.validate_cel_update(&defaulted(&case.name, old.clone())),
        };
        let about = &case.case;
        assert_eq!(by_rule.is_ok(), case.accepted, "CEL, {about}: {by_rule:?}");
        if case.old.is_none() {
            // An object may be older than a rule: `validate` says the same.
            let by_code = flower_operator::controller::validate::validate(&object, IMAGE);
            assert_eq!(
                by_code.is_ok(),
                case.accepted,
                "validate: {case:?}: {by_code:?}"
            );
        }
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
