//! What the tests share: a fake admin API with real membership rules, an API server in
//! memory, and the two put together as a small world.

pub mod admin;
pub mod apiserver;
pub mod case;
pub mod fake;
pub mod world;

use flower_operator::{
    controller::validate::{ValidatedCluster, validate},
    crd::FlowerCluster,
};
use serde_json::{Value, json};

/// Image used where a test does not care.
pub const IMAGE: &str = "registry.example/flower:test";

/// A FlowerCluster as the API server would hand it out. Names differ from the product's on
/// purpose: swapped labels show.
pub fn flower_cluster(name: &str, spec: Value) -> FlowerCluster {
    serde_json::from_value(json!({
        "apiVersion": "flowerdb.dev/v1alpha1",
        "kind": "FlowerCluster",
        "metadata": {
            "name": name,
            "namespace": "shop",
            "uid": "5f6e7d8c-uid",
            "generation": 1,
            "creationTimestamp": "2026-01-02T03:04:05Z",
        },
        "spec": spec,
    }))
    .expect("a FlowerCluster")
}

/// The same, validated.
pub fn validated(name: &str, spec: Value) -> ValidatedCluster {
    let object = flower_cluster(name, spec);
    validate(&object, IMAGE).unwrap_or_else(|refusal| panic!("refused: {}", refusal.message))
}
