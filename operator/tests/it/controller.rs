//! The whole controller over the API server in memory: watches trigger passes, a stop drains
//! them, and nothing is written afterwards.

use std::{sync::Arc, time::Duration};

use flower_operator::{controller, web::Health};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::support::world::World;

/// The world goes on until something is true.
async fn until(world: &mut World, what: &str, mut done: impl FnMut(&World) -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done(world) {
        assert!(
            Instant::now() < end,
            "{what} did not come: {:#?}",
            world.status()
        );
        world.turn();
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn events_drive_a_cluster_from_birth_to_a_repaired_child_and_a_stop_ends_all() {
    let mut world = World::new(json!({}));
    let (stop, health) = (CancellationToken::new(), Arc::new(Health::default()));
    let running = tokio::spawn(controller::run(
        Arc::clone(&world.ctx),
        None,
        Arc::clone(&health),
        stop.clone(),
    ));
    until(&mut world, "a ready cluster", |world| world.is("Ready")).await;
    assert_eq!(world.voters(), [0, 1, 2]);
    assert_eq!(health.not_ready(), None);

    // A child that is deleted comes back, long before the next look at all.
    let service = "v1/namespaces/shop/services/orders";
    world.delete(service);
    until(&mut world, "the Service", |world| {
        world.api.get(service).is_some()
    })
    .await;

    // So does a new bundle reach the group.
    world.edit(|spec| {
        spec["app"] =
            json!({ "bundle": { "configMapKeyRef": { "name": "app", "key": "app.js" } } });
    });
    until(&mut world, "the missing ConfigMap", |world| {
        let status = world.status();
        status
            .conditions
            .iter()
            .any(|one| one.reason == "ConfigMapMissing")
    })
    .await;
    world.api.put(
        "v1/namespaces/shop/configmaps/app",
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "app", "namespace": "shop" },
            "data": { "app.js": "export const a = 1;" },
        }),
    );
    until(&mut world, "the application", |world| {
        world.is("AppDeployed")
    })
    .await;

    stop.cancel();
    timeout(Duration::from_secs(20), running)
        .await
        .expect("the controller drains")
        .expect("without a panic");
    world.api.take_log();
    world.delete(service);
    sleep(Duration::from_millis(500)).await;
    assert!(world.api.take_log().is_empty());
}
