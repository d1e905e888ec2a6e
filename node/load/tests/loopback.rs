//! The clients against real nodes on loopback: a group of three, one of which stops and comes
//! back. What they were told is judged, and so is a history that was tampered with.

#[path = "../../tests/support/mod.rs"]
mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use flower_load::{
    APP,
    check::{Ending, judge},
    history::{History, Line, Op, Outcome},
    real::Real,
    target,
    watcher::{self, Watched},
    workload::{Clients, MONEY, Workload},
};
use rand::{SeedableRng, rngs::StdRng};
use support::{group::group, quick, until};

const CLIENTS: u32 = 16;
const WATCHERS: u32 = 3;
/// Acknowledged writes that there must be.
const WRITES: usize = 400;

fn written(ops: &[Op]) -> usize {
    let written = |op: &&Op| matches!(op.outcome, Outcome::Written { .. });
    ops.iter().filter(written).count()
}

fn clients(urls: &[String]) -> Clients {
    Clients {
        workload: Workload {
            clients: CLIENTS,
            watchers: WATCHERS,
            keys: 4,
            lists: 2,
            accounts: 4,
            think_ms: 5,
            tries: 400,
            writes: 50,
            append_until: 200,
        },
        hosts: urls.to_vec(),
        history: History::default(),
        serial: Arc::new(AtomicU64::new(0)),
        stop: Arc::new(AtomicBool::new(false)),
    }
}

fn verdict(ops: &[Op], traces: &[u64]) -> Option<String> {
    let each = MONEY;
    judge(&Ending { ops, traces, each })
}

fn is_the_same_as_a_file(ops: &[Op]) {
    let lines: Vec<String> = ops
        .iter()
        .map(|op| serde_json::to_string(&Line::Op(op.clone())).unwrap())
        .collect();
    let back: Vec<Op> = lines
        .iter()
        .map(|line| match serde_json::from_str(line).unwrap() {
            Line::Op(op) => op,
            Line::End { .. } => panic!("no end yet"),
        })
        .collect();
    assert_eq!(back, ops);
}

fn lies_are_noticed(ops: &[Op], traces: &[u64]) {
    // A trace that is gone is a lost write, and one that is there twice happened twice.
    assert!(verdict(ops, &traces[..traces.len() - 1]).is_some());
    let last = traces.last().copied().into_iter();
    let twice: Vec<u64> = traces.iter().copied().chain(last).collect();
    assert!(verdict(ops, &twice).is_some());
    // A register whose value was never written.
    let mut lied = ops.to_vec();
    let read = lied.iter_mut().find_map(|op| match &mut op.outcome {
        Outcome::Read { found, .. } if found.0 > 0 => Some(found),
        _ => None,
    });
    read.expect("somebody has read a register").0 = u64::MAX / 2;
    assert!(verdict(&lied, traces).is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_clients_are_told_the_truth_and_a_lie_is_noticed() {
    let mut nodes = group(APP, quick()).await;
    let urls: Vec<String> = nodes
        .iter()
        .map(|node| format!("http://{}", node.running.client()))
        .collect();
    let target = Real::new(&urls, None).unwrap();
    let clients = clients(&urls);
    clients.clone().open(&target).await;
    let running: Vec<_> = (1..=CLIENTS)
        .map(|number| {
            let rng = StdRng::seed_from_u64(u64::from(number));
            tokio::spawn(clients.clone().run(number, target.clone(), rng))
        })
        .collect();
    let watched = Watched::default();
    let watching: Vec<_> = (0..WATCHERS)
        .map(|number| {
            let rng = StdRng::seed_from_u64(1_000 + u64::from(number));
            let (clients, watched) = (clients.clone(), watched.clone());
            tokio::spawn(watcher::run(number, target.clone(), rng, clients, watched))
        })
        .collect();
    let some = WRITES / 4;
    until("some writes", async || {
        written(&clients.history.ops()) > some
    })
    .await;
    // The leader stops in order; its group goes on.
    nodes.remove(0).running.stop().await.unwrap();
    until("enough writes", async || {
        written(&clients.history.ops()) > WRITES
    })
    .await;
    until("watchers are told", async || watched.reached()[0].1 > 0).await;
    clients.stop.store(true, Ordering::Relaxed);
    for client in running {
        client.await.unwrap();
    }
    watching.iter().for_each(|watcher| watcher.abort());
    assert_eq!(watched.wrong(), None);
    let traces = target::traces(&target, &urls[1..]).await;
    let ops = clients.history.ops();
    assert_eq!(verdict(&ops, &traces), None);
    assert!(
        target
            .took()
            .iter()
            .any(|took| took.function == "put" && took.tries > 0)
    );

    is_the_same_as_a_file(&ops);
    lies_are_noticed(&ops, &traces);
    for node in nodes {
        let stopped = tokio::time::timeout(Duration::from_secs(60), node.running.stop());
        stopped.await.expect("it stops").unwrap();
    }
}
