//! The reference and the example keep up with the CRD and with the example application.

use std::{fs, path::Path};

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read_to_string(root.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn documents(path: &str) -> Vec<serde_json::Value> {
    use serde::Deserialize;
    serde_yaml_ng::Deserializer::from_str(&read(path))
        .map(|d| serde_json::Value::deserialize(d).unwrap())
        .collect()
}

/// Fields whose insides are Kubernetes' own types.
const FOREIGN: [&str; 8] = [
    "affinity",
    "env",
    "tolerations",
    "topologySpreadConstraints",
    "imagePullSecrets",
    "labels",
    "limits",
    "requests",
];

fn fields(schema: &serde_json::Value, path: &str, out: &mut Vec<String>) {
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        out.push(format!("{path}{name}"));
        if !FOREIGN.contains(&name.as_str()) {
            fields(inner, &format!("{path}{name}."), out);
        }
    }
}

#[test]
fn every_field_of_the_spec_is_in_the_reference() {
    let crd = &documents("crds/flowerclusters.yaml")[0];
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let mut all = Vec::new();
    fields(schema, "", &mut all);
    assert!(all.len() > 30, "{all:?}");
    let reference = read("docs/reference/flowercluster.md");
    for field in all {
        assert!(
            reference.contains(&format!("| `{field}` |")),
            "{field} is not in the reference"
        );
    }
}

#[test]
fn the_example_holds_the_example_application() {
    let example = documents("docs/examples/orders.yaml");
    let bundle = example[0]["data"]["app.js"].as_str().unwrap();
    assert_eq!(bundle, read("docs/examples/orders.js"));
    assert_eq!(example[1]["kind"], "FlowerCluster");
}
