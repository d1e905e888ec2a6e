//! An operator with nothing to do writes nothing but its Lease; under steady writes it writes a
//! status at most once a minute.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::Timestamp;
use serde_json::json;

use super::Test;
use super::rbac::{account, events};
use crate::cluster::Scene;
use crate::deploy::OPERATOR_NAMESPACE;
use crate::flower::Flower;
use crate::workload::Workload;

/// See the file's head.
pub const TEST: Test = Test {
    name: "operator-quiet",
    in_ci: false,
    what: "60 s of audit log without a write but the Lease; under writes at most one status write a minute",
    run: |scene| Box::pin(run(scene)),
};

/// How long it is watched in each state.
const WATCHED: Duration = Duration::from_secs(60);

async fn run(scene: Scene) -> Result<String> {
    let flower = Flower::new(&scene, "db");
    flower.apply(json!({"replicas": 3})).await?;
    flower.ready(Duration::from_secs(180)).await?;
    // The last events and the first footprint are written shortly after Ready.
    tokio::time::sleep(Duration::from_secs(65)).await;
    let from = Timestamp::now();
    tokio::time::sleep(WATCHED).await;
    let idle = writes(&scene, from).await?;
    ensure!(
        idle.is_empty(),
        "writes while nothing was to be done: {idle:?}"
    );

    let work = Workload::start(&flower, 4, Duration::from_millis(20)).await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let from = Timestamp::now();
    tokio::time::sleep(WATCHED).await;
    let busy = writes(&scene, from).await?;
    let history = work.finish().await?;
    let count: usize = busy.values().sum();
    ensure!(
        count <= 1,
        "writes in a minute of steady mutations: {busy:?}"
    );
    Ok(format!(
        "no write but the Lease in {} s; {count} status writes in a minute of {} mutations",
        WATCHED.as_secs(),
        history.acknowledged()
    ))
}

/// The operator's writes on this test's cluster since a time, without those of its Lease.
async fn writes(scene: &Scene, from: Timestamp) -> Result<BTreeMap<String, usize>> {
    let user = format!(
        "system:serviceaccount:{OPERATOR_NAMESPACE}:{}",
        account(&scene.cluster).await?
    );
    let mut found = BTreeMap::new();
    for event in events(&scene.cluster, &user)? {
        let at: Timestamp = event["requestReceivedTimestamp"]
            .as_str()
            .unwrap_or_default()
            .parse()?;
        let verb = event["verb"].as_str().unwrap_or_default();
        let object = &event["objectRef"];
        let here = object["namespace"] == scene.namespace.as_str();
        if at >= from && here && !["get", "list", "watch"].contains(&verb) {
            *found
                .entry(format!(
                    "{verb} {} {}",
                    object["resource"], object["subresource"]
                ))
                .or_default() += 1;
        }
    }
    Ok(found)
}
