//! A quorum lost for good, in the simulated world: the survivor's power is cut while it makes the
//! recovery, at another moment in each world; then it is the whole group, those that were given
//! up come back and take no part, and from empty volumes it grows again.

use std::time::Duration;

use flower_api::{
    admin::{Recover, Survey, path},
    report::{Lifecycle, Report},
    transport::{AdminRequest, AdminTransport, Patience},
};
use flower_sim::{
    cluster::{Cluster, endpoint},
    entropy,
    node::{Exit, NodeLimits},
    world::{Shape, World},
};
use serde_json::json;

const HOSTS: [&str; 3] = ["a", "b", "c"];

fn hosts() -> Vec<String> {
    HOSTS.map(Into::into).to_vec()
}

fn world(seed: u64) -> World {
    World::new(&Shape {
        seed,
        hosts: hosts(),
        limits: NodeLimits {
            snapshot_after_log_bytes: 8 << 10,
            ..NodeLimits::default()
        },
        latency_ms: 5,
        disk_bytes: 1 << 30,
    })
}

fn write(world: &mut World, at: Vec<String>, serials: std::ops::RangeInclusive<u64>) {
    world.script(|name, audit| async move {
        let cluster = Cluster::new(&name, &audit);
        for serial in serials {
            let args = json!({ "key": format!("k{}", serial % 7), "serial": serial });
            let key = format!("key-{serial}");
            cluster.write(&at, "put", &key, &args).await;
        }
    });
}

fn traces(world: &mut World, at: &str) -> Vec<u64> {
    let at = vec![at.to_owned()];
    world.script(|name, audit| async move { Cluster::new(&name, &audit).traces(&at).await })
}

fn report(world: &mut World, host: &str) -> Report {
    let host = host.to_owned();
    world.script(
        |name, audit| async move { Cluster::new(&name, &audit).report(&host, |_| true).await },
    )
}

/// Asks until a recovery would be accepted, and accepts the loss that is shown.
fn recover(world: &mut World, host: &str) {
    let at = endpoint(host);
    world.script(|name, audit| async move {
        let cluster = Cluster::new(&name, &audit);
        let survey = loop {
            let mut ask = AdminRequest::get(path::RECOVERY);
            ask.patience = Patience::Change;
            let told = cluster.admin().exchange(&at, ask).await;
            let survey = told.and_then(|answer| answer.decoded::<Survey>(&at));
            match survey {
                Ok(survey) if survey.refused.is_none() => break survey,
                _ => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        };
        let call = Recover {
            member: survey.identity.member.unwrap(),
            accept_loss_after: survey.last_log.unwrap().index,
        };
        let call = AdminRequest::with(&at, path::RECOVER, Patience::Change, &call).unwrap();
        let answer = cluster.admin().exchange(&at, call).await.unwrap();
        answer.accepted(&at).unwrap();
    });
}

/// Waits until the process on a host ends by an error, and starts another.
fn ends_and_starts(world: &mut World, host: &str) {
    let exit = world.until("a process ends", |world| world.registry.take_exit(host));
    assert!(matches!(exit, Exit::Fatal(_)), "{host}: {exit:?}");
    world.crash(host, false);
    world.start(host);
}

fn scenario(seed: u64) {
    let mut world = world(seed);
    world.script(|name, audit| async move { Cluster::new(&name, &audit).form(&hosts()).await });
    write(&mut world, hosts(), 1..=40);
    world.same_state(&hosts());
    let survivor = HOSTS[seed as usize % 3];
    let others: Vec<&str> = HOSTS.into_iter().filter(|host| *host != survivor).collect();
    for host in &others {
        world.crash(host, true);
    }
    recover(&mut world, survivor);
    ends_and_starts(&mut world, survivor);
    // The power goes while it makes the recovery; what it has made is gone on with.
    for _ in 0..seed * 2 {
        world.step().unwrap();
    }
    world.crash(survivor, true);
    world.start(survivor);
    write(&mut world, vec![survivor.into()], 41..=60);
    let alone = report(&mut world, survivor);
    assert_eq!(alone.configuration.unwrap().voters.concat().len(), 1);
    assert_eq!(alone.recovery.map(|recovery| recovery.number), Some(1));

    for host in &others {
        world.start(host);
    }
    for host in &others {
        ends_and_starts(&mut world, host);
        let given_up = report(&mut world, host);
        assert_eq!(given_up.identity.lifecycle, Lifecycle::Broken, "{host}");
    }
    write(&mut world, vec![survivor.into()], 61..=80);

    for host in &others {
        world.crash(host, true);
        world.wipe(host);
        world.start(host);
        let member = world.node(host).member.unwrap();
        let host = (*host).to_owned();
        world.script(|name, audit| async move {
            let cluster = Cluster::new(&name, &audit);
            cluster.add(&hosts(), &host, member).await;
            cluster.promote(&hosts(), member).await;
        });
    }
    write(&mut world, hosts(), 81..=100);
    world.same_state(&hosts());
    world.crash(survivor, true);
    let all: Vec<u64> = (1..=100).collect();
    assert_eq!(traces(&mut world, others[0]), all, "each exactly once");
}

#[test]
fn a_survivor_is_recovered_whenever_its_power_is_cut() {
    for seed in 1..=8 {
        entropy::with_seed(seed, || scenario(seed));
    }
}
