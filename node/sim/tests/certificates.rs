//! Mutations that are evaluated side by side over one state, of which only a range that both
//! have read tells that the later one must be evaluated again.

use flower_sim::{
    cluster::Cluster,
    entropy,
    node::NodeLimits,
    world::{Shape, World},
};
use flower_store::sabotage::{self, Break};
use serde_json::{Value, json};

/// Appends that are sent at once.
const APPENDS: u64 = 24;

fn hosts() -> Vec<String> {
    ["a", "b", "c"].map(Into::into).to_vec()
}

/// The places in one list that writers were told who all began at once.
fn places(seed: u64, broken: Option<Break>) -> Vec<u64> {
    entropy::with_seed(seed, || {
        sabotage::set(broken);
        let mut world = World::new(&Shape {
            seed,
            hosts: hosts(),
            limits: NodeLimits::default(),
            latency_ms: 5,
            disk_bytes: 1 << 30,
        });
        world.script(|name, audit| async move { Cluster::new(&name, &audit).form(&hosts()).await });
        let told = world.script(|name, audit| async move {
            let cluster = Cluster::new(&name, &audit);
            let appends = (1..=APPENDS).map(|serial| {
                let cluster = &cluster;
                async move {
                    // A list that nothing but its rows is kept of.
                    let args = json!({ "name": "l1", "serial": serial });
                    let key = format!("key-{serial}");
                    cluster.write(&hosts(), "append", &key, &args).await.0
                }
            });
            futures::future::join_all(appends).await
        });
        sabotage::set(None);
        let mut places: Vec<u64> = told.iter().filter_map(Value::as_u64).collect();
        places.sort_unstable();
        places
    })
}

#[test]
fn a_range_that_two_have_read_keeps_them_apart() {
    let all: Vec<u64> = (1..=APPENDS).collect();
    for seed in 1..=3 {
        assert_eq!(places(seed, None), all, "seed {seed}: each has its own");
    }
    // And it is the range that does it.
    let forgets = Some(Break::CertificateForgetsRange);
    let caught = (1..=3).any(|seed| places(seed, forgets) != all);
    assert!(caught, "a certificate without ranges is not noticed");
}
