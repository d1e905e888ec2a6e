//! A spec that cannot be served is refused or shown, and leaves the running cluster alone.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kube::api::ListParams;
use serde_json::{Value, json};

use super::Test;
use crate::cluster::Scene;
use crate::flower::{Flower, LEDGER};
use crate::progress::wait_for;
use crate::workload::Caller;

/// See the file's head.
pub const TEST: Test = Test {
    name: "refusals",
    in_ci: true,
    what: "too little memory, a bad bundle, another storage size: refused or shown, the running cluster untouched",
    run: |scene| Box::pin(run(scene)),
};

async fn run(scene: Scene) -> Result<String> {
    let flower = Flower::new(&scene, "db");
    flower.apply(json!({"replicas": 3})).await?;
    flower.ready(Duration::from_secs(180)).await?;
    let caller = Caller::of(&flower).await?;
    let before = lives(&flower).await?;
    let mut saw = Vec::new();

    let small = json!({"requests": {"memory": "24Mi"}, "limits": {"memory": "24Mi"}});
    saw.push(format!(
        "memory: {}",
        refused(&flower, json!({"resources": small}), &["memory", "MiB"]).await?
    ));
    untouched(&flower, &caller, &before).await?;
    flower
        .change(json!({"resources": {"requests": null, "limits": null}}))
        .await?;
    flower.ready(Duration::from_secs(60)).await?;

    flower.bundle("export const add = ;").await?;
    saw.push(format!(
        "bundle: {}",
        shown(&flower, &["bundle", "app.js"]).await?
    ));
    untouched(&flower, &caller, &before).await?;
    flower.bundle(LEDGER).await?;
    flower.ready(Duration::from_secs(60)).await?;

    saw.push(format!(
        "storage: {}",
        refused(
            &flower,
            json!({"storage": {"size": "800Mi"}}),
            &["storage", "size"]
        )
        .await?
    ));
    untouched(&flower, &caller, &before).await?;
    flower.change(json!({"storage": {"size": "400Mi"}})).await?;
    flower.ready(Duration::from_secs(60)).await?;

    let unknown = scene
        .apply(&json!({
            "apiVersion": "flowerdb.dev/v1alpha1",
            "kind": "FlowerCluster",
            "metadata": {"name": "other"},
            "spec": {"replica": 3},
        }))
        .await;
    let Err(error) = unknown else {
        bail!("an unknown field was accepted")
    };
    ensure!(
        format!("{error:#}").contains("replica"),
        "the refusal of an unknown field says {error:#}"
    );
    untouched(&flower, &caller, &before).await?;
    Ok(saw.join("; "))
}

/// A change that the API refuses, or that a condition and an event then refuse. Returns what was said.
async fn refused(flower: &Flower, change: Value, words: &[&str]) -> Result<String> {
    match flower.change(change).await {
        Err(error) => {
            let said = format!("{error:#}");
            ensure!(
                words.iter().any(|word| said.contains(word)),
                "the refusal does not say why: {said}"
            );
            Ok("refused by the API server".to_owned())
        }
        Ok(()) => shown(flower, words).await,
    }
}

/// Waits for a condition and a warning event that name the reason.
async fn shown(flower: &Flower, words: &[&str]) -> Result<String> {
    let tells = |text: &str| words.iter().any(|word| text.contains(word));
    wait_for(
        &format!("a condition and an event that say {words:?}"),
        Duration::from_secs(60),
        || async {
            let object = flower.object().await?;
            let conditions = object["status"]["conditions"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let condition = conditions
                .iter()
                .find(|condition| {
                    condition["status"] == "False"
                        && condition["message"].as_str().is_some_and(tells)
                })
                .with_context(|| format!("the conditions say {conditions:?}"))?;
            let of = ListParams::default()
                .fields(&format!("involvedObject.name={},type=Warning", flower.name));
            let events = flower.scene.api("Event").list(&of).await?.items;
            let event = events
                .iter()
                .find(|event| event.data["message"].as_str().is_some_and(tells));
            event.with_context(|| format!("none of {} warning events", events.len()))?;
            Ok(format!(
                "{}={} {}",
                condition["type"], condition["status"], condition["reason"]
            )
            .replace('"', ""))
        },
    )
    .await
}

/// Each pod's uid and restarts.
pub async fn lives(flower: &Flower) -> Result<Vec<(String, Value, Value)>> {
    let pods = flower.pods().await?;
    let life = |pod: &Value| {
        let name = pod["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        (
            name,
            pod["metadata"]["uid"].clone(),
            pod["status"]["containerStatuses"][0]["restartCount"].clone(),
        )
    };
    Ok(pods.iter().map(life).collect())
}

/// The same pods run, unrestarted, and answer.
async fn untouched(
    flower: &Flower,
    caller: &Caller,
    before: &[(String, Value, Value)],
) -> Result<()> {
    let now = lives(flower).await?;
    ensure!(now == before, "the pods were {before:?} and are {now:?}");
    let answer = caller.query("ping", "fresh", &json!({})).await?;
    ensure!(answer == "pong", "the query answered {answer}");
    Ok(())
}
