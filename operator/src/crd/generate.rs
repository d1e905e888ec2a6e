//! Prints the CRDs as YAML: what `crds/` and the chart hold. Pure.
//! Takes out what Kubernetes does not know (unsigned formats) and the long descriptions of
//! embedded API types, which `kubectl explain pod.spec` has anyway.

use kube::CustomResourceExt;
use serde_json::Value;

use super::FlowerCluster;

/// The CRD of FlowerCluster, cleaned.
pub fn flower_clusters() -> Value {
    let mut crd = serde_json::to_value(FlowerCluster::crd()).expect("a CRD is JSON");
    let properties =
        "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/pod/properties";
    if let Some(Value::Object(pod)) = crd.pointer_mut(properties) {
        for field in ["affinity", "tolerations", "topologySpreadConstraints"] {
            if let Some(schema) = pod.get_mut(field) {
                blank_below(schema, true);
            }
        }
        if let Some(source) = pod
            .get_mut("env")
            .and_then(|env| env.pointer_mut("/items/properties/valueFrom"))
        {
            blank_below(source, true);
        }
    }
    strip_formats(&mut crd);
    crd
}

/// The YAML of all CRDs.
///
/// # Errors
/// Never for what this module makes.
pub fn yaml() -> Result<String, serde_yaml_ng::Error> {
    let body = serde_yaml_ng::to_string(&flower_clusters())?;
    Ok(format!(
        "# Written by `flower-operator crds`; a test compares the two. Do not edit.\n{body}"
    ))
}

fn blank_below(schema: &mut Value, top: bool) {
    match schema {
        Value::Object(map) => {
            if !top && map.get("description").is_some_and(Value::is_string) {
                map.remove("description");
            }
            for (key, child) in map.iter_mut() {
                // A property may itself be called "description".
                if key == "properties" {
                    if let Value::Object(fields) = child {
                        fields
                            .values_mut()
                            .for_each(|field| blank_below(field, false));
                    }
                } else {
                    blank_below(child, false);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| blank_below(item, false)),
        _ => {}
    }
}

fn strip_formats(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if map
                .get("format")
                .and_then(Value::as_str)
                .is_some_and(|format| format.starts_with("uint"))
            {
                map.remove("format");
            }
            map.values_mut().for_each(strip_formats);
        }
        Value::Array(items) => items.iter_mut().for_each(strip_formats),
        _ => {}
    }
}

/// The same as a template of the chart: Helm keeps it when the release is uninstalled, or
/// every FlowerCluster would go with it.
///
/// # Errors
/// Never for what this module makes.
pub fn chart() -> Result<String, serde_yaml_ng::Error> {
    let mut crd = flower_clusters();
    crd["metadata"]["annotations"]["helm.sh/resource-policy"] = Value::String("keep".to_owned());
    let body = serde_yaml_ng::to_string(&crd)?;
    Ok(format!(
        "# Written by a test from the same source as crds/. Do not edit.\n{body}"
    ))
}
