//! Three whole nodes in one process: they are formed through the admin API, written to and
//! read from over HTTP, lose one with its power cut first, take it back, and hold the same
//! state; every acknowledged write is there once, and its receipt is replayed.

use flower_sim::{
    cluster::Cluster,
    entropy,
    node::NodeLimits,
    world::{Shape, World},
};
use serde_json::json;

fn hosts() -> Vec<String> {
    ["a", "b", "c"].map(Into::into).to_vec()
}

fn shape(seed: u64) -> Shape {
    Shape {
        seed,
        hosts: hosts(),
        limits: NodeLimits {
            // So that logs are purged and a node comes back to less than it left.
            snapshot_after_log_bytes: 16 << 10,
            ..NodeLimits::default()
        },
        latency_ms: 5,
        disk_bytes: 1 << 30,
    }
}

/// Writes with serials as keys; every one is acknowledged.
fn write(world: &mut World, serials: std::ops::RangeInclusive<u64>) {
    world.script(|name, audit| async move {
        let cluster = Cluster::new(&name, &audit);
        for serial in serials {
            let mut hosts = hosts();
            hosts.rotate_left(serial as usize % 3);
            let args = json!({ "key": format!("k{}", serial % 7), "serial": serial });
            cluster
                .write(&hosts, "put", &format!("key-{serial}"), &args)
                .await;
        }
    });
}

/// Reads of every class at every node, and retries of every key.
fn audit(world: &mut World, last: u64) {
    world.script(|name, audit| async move {
        let cluster = Cluster::new(&name, &audit);
        let all: Vec<u64> = (1..=last).collect();
        assert_eq!(cluster.traces(&hosts()).await, all, "each exactly once");
        let key = json!({ "key": "k3" });
        let found = cluster.read(&hosts(), "get", "fresh", &key).await;
        for host in hosts() {
            let one = [host.clone()];
            for class in ["local", "session; min=1", "fresh"] {
                let told = cluster.read(&one, "get", class, &key).await;
                assert_eq!(told, found, "{host}, {class}");
            }
        }
        for serial in (1..=last).step_by(5) {
            let args = json!({ "key": format!("k{}", serial % 7), "serial": serial });
            let at = [hosts()[serial as usize % 3].clone()];
            let (version, replayed) = cluster
                .write(&at, "put", &format!("key-{serial}"), &args)
                .await;
            assert!(replayed, "{serial} is told from its receipt");
            assert_eq!(version, (serial - 1) / 7 + 1, "{serial}");
        }
        assert_eq!(cluster.traces(&hosts()).await, all, "retries write nothing");
    });
}

fn smoke(seed: u64) {
    let mut world = World::new(&shape(seed));
    world.script(|name, audit| async move { Cluster::new(&name, &audit).form(&hosts()).await });
    write(&mut world, 1..=40);
    // A follower, then whoever leads.
    let leader = world.until("one leads", |world| world.leader());
    let follower = hosts().into_iter().find(|name| *name != leader).unwrap();
    world.crash(&follower, true);
    write(&mut world, 41..=80);
    world.start(&follower);
    world.same_state(&hosts());
    let leader = world.until("one leads", |world| world.leader());
    world.crash(&leader, true);
    write(&mut world, 81..=120);
    world.start(&leader);
    world.same_state(&hosts());
    audit(&mut world, 120);
    world.same_state(&hosts());
    for name in hosts() {
        let consensus = world.node(&name).consensus.unwrap();
        let view = consensus.view();
        assert_eq!(view.recount().unwrap().checksum, view.checksum(), "{name}");
        assert_eq!(consensus.report().full_repairs, 0, "{name}");
        assert!(consensus.report().positions.purged > 0, "{name} purges");
    }
}

#[test]
fn three_whole_nodes_survive_power_cuts_with_the_same_state() {
    for seed in 1..=3 {
        entropy::with_seed(seed, || smoke(seed));
    }
}
