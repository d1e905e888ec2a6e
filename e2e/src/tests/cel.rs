//! The rules of the CRD, tried against the real API server.

use anyhow::{Context, Result, ensure};
use kube::api::{Patch, PatchParams, PostParams, ValidationDirective};
use serde_json::{Value, json};

use super::Test;
use crate::cluster::Scene;
use crate::paths::root;

/// See the file's head.
pub const TEST: Test = Test {
    name: "cel",
    in_ci: true,
    what: "each spec that the CRD's rules accept or refuse, at the real API server",
    run: |scene| Box::pin(run(scene)),
};

async fn run(scene: Scene) -> Result<String> {
    let file = root().join("operator/tests/cel.yaml");
    let text =
        std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let cases: Vec<Value> = serde_yaml_ng::from_str(&text)?;
    ensure!(!cases.is_empty(), "no cases in {}", file.display());
    let (mut accepted, mut refused) = (0, 0);
    for case in &cases {
        let what = case["case"].as_str().context("a case without a name")?;
        let expected = case["accepted"]
            .as_bool()
            .with_context(|| format!("{what}: accepted or not?"))?;
        let got = tried(&scene, case).await.with_context(|| what.to_owned())?;
        ensure!(
            got.is_none() == expected,
            "{what}: {}",
            got.unwrap_or_else(|| "accepted".to_owned())
        );
        *(if expected {
            &mut accepted
        } else {
            &mut refused
        }) += 1;
    }
    Ok(format!("{accepted} accepted, {refused} refused"))
}

/// Why the API server refuses a case; nothing when it accepts it. Nothing is stored of a new
/// object; an update needs one, which is paused, so that nobody acts on it.
async fn tried(scene: &Scene, case: &Value) -> Result<Option<String>> {
    let name = case["name"].as_str().unwrap_or("orders");
    let api = scene.api("FlowerCluster");
    let object = |spec: &Value| {
        json!({
            "apiVersion": "flowerdb.dev/v1alpha1",
            "kind": "FlowerCluster",
            "metadata": {"name": name},
            "spec": spec,
        })
    };
    let old = &case["old"];
    let answer = if old.is_null() {
        let mut params = PatchParams::apply("flower-e2e-test").force().dry_run();
        params.field_validation = Some(ValidationDirective::Strict);
        api.patch(name, &params, &Patch::Apply(object(&case["spec"])))
            .await
    } else {
        let mut first = old.clone();
        first["paused"] = json!(true);
        let first = serde_json::from_value(object(&first))?;
        let made = api.create(&PostParams::default(), &first).await?;
        let mut next = object(&case["spec"]);
        next["spec"]["paused"] = json!(true);
        next["metadata"]["resourceVersion"] = json!(made.metadata.resource_version);
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let updated = api
            .replace(name, &params, &serde_json::from_value(next)?)
            .await;
        scene.delete("FlowerCluster", name).await?;
        gone(scene, name).await?;
        updated
    };
    match answer {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) if status.code == 422 => Ok(Some(status.message.clone())),
        Err(error) => Err(error.into()),
    }
}

/// The operator's finalizer, if there is one, is taken off by the operator.
async fn gone(scene: &Scene, name: &str) -> Result<()> {
    crate::progress::wait_for(
        "the object is gone",
        std::time::Duration::from_secs(60),
        || async {
            let left = scene.find("FlowerCluster", name).await?;
            ensure!(left.is_none(), "it is still there");
            Ok(())
        },
    )
    .await
}
