//! Three nodes as processes on loopback: formed by the admin API, called through every node,
//! their leader killed and stopped, a member restarted; nothing acknowledged is lost and
//! nothing happens twice.

mod common;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use common::{
    COUNTER, fence,
    group::{form, leader, leads, start, wait, write_until},
    json,
};
use flower_api::admin::{AdminApi, Deploy};
use flower_node::admin_client::AdminClient;

#[test]
fn three_nodes_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = start(dir.path());
    form(&nodes, COUNTER);

    // Every node takes mutations, and every node answers a fresh read with all of them.
    for (n, node) in nodes.iter().enumerate() {
        let call = json(&["call", "bump", r#"{"key":"k"}"#, "--url", &node.client()]);
        assert_eq!(call["result"], n + 1, "{call}");
        for other in &nodes {
            let read = json(&["query", "read", r#"{"key":"k"}"#, "--url", &other.client()]);
            assert_eq!(read["result"], n + 1, "{read}");
        }
    }

    // A bundle is taken by any node: one that does not lead sends it to the leader.
    let led = leader(&nodes, &[0, 1, 2]);
    let follower = &nodes[(led + 1) % 3];
    let call = Deploy {
        fence: fence(&leads(&nodes[led])),
        source: format!("{COUNTER}\n// sent through a follower\n"),
        managed_by: None,
    };
    let deployed = wait(AdminClient::default().deploy(&follower.admin(), &call)).unwrap();
    assert!(deployed.changed, "{deployed:?}");

    // Writers go on at each node while the leader is killed and started again.
    let done = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = nodes
        .iter()
        .map(|node| (node.client(), done.clone()))
        .map(|(url, done)| {
            std::thread::spawn(move || write_until(&url, "bump", r#"{"key":"w"}"#, &done))
        })
        .collect();
    let killed = leader(&nodes, &[0, 1, 2]);
    nodes[killed].kill();
    let others: Vec<usize> = (0..3).filter(|n| *n != killed).collect();
    let next = leader(&nodes, &others);
    nodes[killed].restart(&[]);
    nodes[killed].report("it is back", |r| r.ready);
    // Asked to stop, the next leader hands over and loses no call of its own.
    assert_eq!(nodes[next].stop(), Some(0), "{}", nodes[next].log());
    nodes[next].restart(&[]);
    nodes[next].report("it is back", |r| r.ready && r.full_repairs == 0);
    done.store(true, Ordering::Relaxed);
    let acknowledged: u64 = writers.into_iter().map(|w| w.join().unwrap()).sum();
    assert!(acknowledged > 0);

    for node in &nodes {
        let read = json(&["query", "read", r#"{"key":"w"}"#, "--url", &node.client()]);
        assert_eq!(read["result"], acknowledged, "{read}");
    }
    let head = nodes[0].report("it answers", |_| true).positions.applied;
    let sums: Vec<(u64, String)> = nodes
        .iter()
        .map(|node| {
            let report = node.report("it has all", |r| r.positions.applied >= head);
            (report.positions.applied, report.state_checksum)
        })
        .collect();
    for (applied, sum) in &sums {
        let same = sums.iter().filter(|(other, _)| other == applied);
        assert!(same.into_iter().all(|(_, other)| other == sum), "{sums:?}");
    }
    for node in &mut nodes {
        assert_eq!(node.stop(), Some(0), "{}", node.log());
    }
}
