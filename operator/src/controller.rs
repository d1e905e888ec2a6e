//! One pass over one FlowerCluster, and the loop that runs passes. The pass is a pipeline:
//! validate → observe → plan → build → apply → act → status; the middle phases are pure.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service, ServiceAccount},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    core::{NamespaceResourceScope, PartialObjectMeta},
    runtime::{
        Controller,
        controller::{Action, Config, Error as LoopError},
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use rand::Rng;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::{context::Ctx, crd::FlowerCluster, error::Error, labels, web::Health};

pub mod act;
pub mod apply;
pub mod build;
pub mod footprint;
pub mod health;
pub mod observe;
pub mod observed;
pub mod pass;
pub mod pinned;
pub mod plan;
pub mod raft_view;
pub mod status;
pub mod validate;

/// Passes at the same time, over different objects.
const CONCURRENCY: u16 = 8;
/// Events of one object that come together start one pass.
const DEBOUNCE: Duration = Duration::from_millis(200);

/// Runs passes in one namespace, or in all, until the token is cancelled.
pub async fn run(
    ctx: Arc<Ctx>,
    namespace: Option<String>,
    health: Arc<Health>,
    stop: CancellationToken,
) {
    let client = ctx.client.clone();
    let scope = namespace.as_deref();
    let children = || {
        watcher::Config::default().labels(&format!("{}={}", labels::MANAGED_BY, labels::MANAGER))
    };
    let controller = Controller::new(
        scoped::<FlowerCluster>(&client, scope),
        watcher::Config::default(),
    );
    let store = controller.store();
    let loops = controller
        .owns(scoped::<StatefulSet>(&client, scope), children())
        .owns(scoped::<Service>(&client, scope), children())
        .owns(scoped::<ServiceAccount>(&client, scope), children())
        .owns(scoped::<PodDisruptionBudget>(&client, scope), children())
        // Pods and claims belong to the StatefulSet; their label names the cluster.
        .watches(
            scoped::<PartialObjectMeta<Pod>>(&client, scope),
            children(),
            by_label,
        )
        .watches(
            scoped::<PartialObjectMeta<PersistentVolumeClaim>>(&client, scope),
            children(),
            by_label,
        )
        .watches(
            scoped::<PartialObjectMeta<ConfigMap>>(&client, scope),
            watcher::Config::default(),
            move |map| by_bundle(&store, &map.metadata),
        )
        .with_config(
            Config::default()
                .concurrency(CONCURRENCY)
                .debounce(DEBOUNCE),
        )
        .graceful_shutdown_on(async move { stop.cancelled().await })
        .run(reconcile, error_policy, Arc::clone(&ctx));
    loops
        .for_each(|result| {
            note(&ctx, &health, result);
            futures::future::ready(())
        })
        .await;
}

fn scoped<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope> + DeserializeOwned,
    K::DynamicType: Default,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

fn by_label<K>(object: PartialObjectMeta<K>) -> Option<ObjectRef<FlowerCluster>> {
    let metadata = object.metadata;
    let cluster = metadata.labels.as_ref()?.get(labels::CLUSTER)?;
    Some(ObjectRef::new(cluster).within(metadata.namespace.as_deref()?))
}

/// FlowerClusters whose bundle is in this ConfigMap.
fn by_bundle(store: &Store<FlowerCluster>, map: &ObjectMeta) -> Vec<ObjectRef<FlowerCluster>> {
    store
        .state()
        .iter()
        .filter(|cluster| {
            let from = cluster
                .spec
                .app
                .as_ref()
                .map(|app| &app.bundle.config_map_key_ref);
            cluster.namespace() == map.namespace && from.map(|one| &one.name) == map.name.as_ref()
        })
        .map(|cluster| ObjectRef::from_obj(cluster.as_ref()))
        .collect()
}

/// One pass, as the loop calls it.
async fn reconcile(object: Arc<FlowerCluster>, ctx: Arc<Ctx>) -> Result<Action, Error> {
    let span = tracing::info_span!(
        "pass",
        namespace = object.namespace().unwrap_or_default(),
        name = object.name_any(),
        generation = object.metadata.generation.unwrap_or_default(),
    );
    async move {
        let uid = object.uid().unwrap_or_default();
        let timer = ctx.metrics.start_pass();
        let result = pass::run(&ctx, &object).await;
        let outcome = match &result {
            Ok(end) => end.outcome(),
            Err(error) if error.is_conflict() => "conflict",
            Err(_) => "failed",
        };
        ctx.metrics.end_pass(timer, outcome);
        let end = result?;
        ctx.backoff.succeeded(&uid);
        ctx.metrics.backoff(ctx.backoff.len());
        Ok(action(&ctx, end))
    }
    .instrument(span)
    .await
}

fn action(ctx: &Ctx, end: pass::End) -> Action {
    match end {
        pass::End::Gone | pass::End::Refused => Action::await_change(),
        pass::End::Stepped => Action::requeue(Duration::from_millis(300)),
        pass::End::Waiting => Action::requeue(ctx.settings.poll),
        pass::End::Settled => {
            let jitter = rand::rng().random_range(0.8..1.2);
            Action::requeue(ctx.settings.resync.mul_f64(jitter))
        }
    }
}

fn error_policy(object: Arc<FlowerCluster>, error: &Error, ctx: Arc<Ctx>) -> Action {
    if error.is_conflict() {
        // Somebody wrote in between: nothing is wrong, look again.
        return Action::requeue(Duration::from_millis(500));
    }
    let delay = ctx.backoff.failed(&object.uid().unwrap_or_default());
    ctx.metrics.backoff(ctx.backoff.len());
    Action::requeue(delay)
}

fn note(
    ctx: &Ctx,
    health: &Health,
    result: Result<(ObjectRef<FlowerCluster>, Action), LoopError<Error, watcher::Error>>,
) {
    match result {
        Ok(_) => health.alive(),
        Err(LoopError::ObjectNotFound(object)) => {
            // Deleted between the event and the pass.
            tracing::debug!(%object, "the object is gone");
            let namespace = object.namespace.as_deref().unwrap_or_default();
            ctx.metrics.forget(namespace, &object.name);
        }
        Err(LoopError::ReconcilerFailed(error, object)) => {
            if error.is_conflict() {
                tracing::debug!(%object, %error, "somebody wrote in between");
            } else {
                tracing::warn!(%object, %error, category = error.category(), "a pass failed");
            }
            ctx.metrics.error(error.category());
        }
        Err(LoopError::QueueError(error)) => {
            // A missing right, or an API server that is away.
            tracing::warn!(%error, "a watch failed");
            ctx.metrics.watch_error();
        }
        Err(LoopError::RunnerError(error)) => {
            tracing::error!(%error, "the loop failed");
        }
    }
}
