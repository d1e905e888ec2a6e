//! Reads the world for one pass: live reads, never a cache, because a stale one must not
//! authorise the removal of a member. I/O only; decides nothing.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use flower_api::{
    admin::{AdminApi, Endpoint},
    limits::CONFIG_MAP_BUNDLE_BYTES,
    ports,
};
use futures::future::join_all;
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret},
    },
    apimachinery::pkg::apis::meta::v1::APIResourceList,
};
use kube::{
    Api, ResourceExt,
    api::{DynamicObject, ListParams},
};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    build::{self, Kind},
    observed::{AppView, AuthView, ClaimView, NodeView, Observed, PodView},
    pinned,
    validate::ValidatedCluster,
};
use crate::{
    conditions::Reason, context::Ctx, crd::FlowerClusterStatus, error::Error, labels,
    names::Ordinal,
};

/// How long the answer to "does the PodMonitor's CRD exist" is good for.
const DISCOVERY_SECONDS: u64 = 60;

/// Reads everything that one pass looks at.
///
/// # Errors
/// When the API server refuses or does not answer. Nodes that do not answer are data.
pub async fn observe(
    ctx: &Ctx,
    cluster: &ValidatedCluster,
    status: FlowerClusterStatus,
) -> Result<Observed, Error> {
    let mut observed = Observed {
        status,
        pod_monitors: pod_monitors(ctx).await?,
        ..Observed::default()
    };
    children(ctx, cluster, &mut observed).await?;
    pods_and_claims(ctx, cluster, &mut observed).await?;
    pinned::note_gone(ctx, &mut observed).await?;
    observed.auth = auth(ctx, cluster).await?;
    (observed.app, observed.bundle) = app(ctx, cluster).await?;
    if let AuthView::Present(tokens) = &observed.auth {
        let admin = ctx.connect.connect(tokens);
        observed.nodes = nodes(ctx, &admin, cluster, &observed.pods).await;
    }
    Ok(observed)
}

/// The objects of our names, and which of them are somebody else's.
async fn children(
    ctx: &Ctx,
    cluster: &ValidatedCluster,
    observed: &mut Observed,
) -> Result<(), Error> {
    for (kind, name) in build::names(cluster) {
        if kind == Kind::PodMonitor && !observed.pod_monitors {
            continue;
        }
        let api: Api<DynamicObject> =
            Api::namespaced_with(ctx.client.clone(), &cluster.namespace, &kind.resource());
        let object = format!("{kind:?} {name}");
        let Some(live) = api
            .get_opt(&name)
            .await
            .map_err(Error::kube("reading", object.as_str()))?
        else {
            continue;
        };
        let ours = live
            .owner_references()
            .iter()
            .any(|owner| owner.uid == cluster.uid);
        if !ours {
            // One that is not wanted is in nobody's way.
            if kind != Kind::PodMonitor || cluster.monitoring.pod_monitor {
                observed.foreign.push(object);
            }
            continue;
        }
        let live = serde_json::to_value(live)?;
        if kind == Kind::StatefulSet {
            observed.statefulset = Some(serde_json::from_value::<StatefulSet>(live.clone())?);
        }
        observed.live.insert((kind, name), live);
    }
    Ok(())
}

/// Pods first: a pod's claim is made before it, so a pod without one has lost it.
async fn pods_and_claims(
    ctx: &Ctx,
    cluster: &ValidatedCluster,
    observed: &mut Observed,
) -> Result<(), Error> {
    let group = cluster.group;
    let selector = labels::text(&labels::group_selector(&cluster.name, group));
    let params = ListParams::default().labels(&selector);
    let pods: Api<Pod> = Api::namespaced(ctx.client.clone(), &cluster.namespace);
    for pod in pods
        .list(&params)
        .await
        .map_err(Error::kube("listing", "pods"))?
    {
        if let Some(ordinal) = cluster.name.ordinal_of_pod(group, &pod.name_any()) {
            observed.pods.insert(ordinal, PodView::of(&pod));
        }
    }
    let claims: Api<PersistentVolumeClaim> =
        Api::namespaced(ctx.client.clone(), &cluster.namespace);
    for claim in claims
        .list(&params)
        .await
        .map_err(Error::kube("listing", "persistentvolumeclaims"))?
    {
        if let Some(ordinal) = cluster.name.ordinal_of_claim(group, &claim.name_any()) {
            observed.claims.insert(ordinal, ClaimView::of(&claim));
        }
    }
    Ok(())
}

async fn auth(ctx: &Ctx, cluster: &ValidatedCluster) -> Result<AuthView, Error> {
    let secrets: Api<Secret> = Api::namespaced(ctx.client.clone(), &cluster.namespace);
    let secret = secrets
        .get_opt(&cluster.auth_secret)
        .await
        .map_err(Error::kube(
            "reading",
            format!("Secret {}", cluster.auth_secret),
        ))?;
    let Some(secret) = secret else {
        return Ok(AuthView::Missing);
    };
    let tokens = |key: &str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key));
        let text = bytes.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned());
        flower_api::tokens::parse(&text.unwrap_or_default())
    };
    for key in ["client", "admin", "peer"] {
        if let Err(why) = tokens(key) {
            return Ok(AuthView::Invalid(format!("its key '{key}' {why}")));
        }
    }
    Ok(AuthView::Present(tokens("admin").unwrap_or_default()))
}

async fn app(ctx: &Ctx, cluster: &ValidatedCluster) -> Result<(AppView, Option<String>), Error> {
    let Some(app) = &cluster.app else {
        return Ok((AppView::Unmanaged, None));
    };
    let from = &app.bundle.config_map_key_ref;
    let maps: Api<ConfigMap> = Api::namespaced(ctx.client.clone(), &cluster.namespace);
    let map = maps
        .get_opt(&from.name)
        .await
        .map_err(Error::kube("reading", format!("ConfigMap {}", from.name)))?;
    let unusable = |reason, message: String| Ok((AppView::Unusable { reason, message }, None));
    let Some(map) = map else {
        return unusable(
            Reason::ConfigMapMissing,
            format!(
                "the ConfigMap {} named in spec.app.bundle does not exist: create it; what runs goes on running",
                from.name
            ),
        );
    };
    let Some(source) = map.data.as_ref().and_then(|data| data.get(&from.key)) else {
        return unusable(
            Reason::KeyMissing,
            format!(
                "the ConfigMap {} has no key '{}' with text: add it, or name another in spec.app.bundle.configMapKeyRef.key",
                from.name, from.key
            ),
        );
    };
    if source.len() as u64 > CONFIG_MAP_BUNDLE_BYTES {
        return unusable(
            Reason::BundleTooLarge,
            format!(
                "the bundle in ConfigMap {} has {} bytes, above {CONFIG_MAP_BUNDLE_BYTES}: make it smaller (minify it), or remove spec.app and use `flower deploy`",
                from.name,
                source.len()
            ),
        );
    }
    let hash = hex::encode(Sha256::digest(source.as_bytes()));
    let refused = ctx.refusal(&cluster.uid, &hash);
    Ok((AppView::Bundle { hash, refused }, Some(source.clone())))
}

/// Asks every pod that has an address, side by side, each with a limit of its own.
async fn nodes(
    ctx: &Ctx,
    admin: &Arc<dyn AdminApi>,
    cluster: &ValidatedCluster,
    pods: &BTreeMap<Ordinal, PodView>,
) -> BTreeMap<Ordinal, NodeView> {
    let asked = pods.iter().filter_map(|(ordinal, pod)| {
        let endpoint = endpoint(pod.ip.as_deref()?);
        let name = cluster.name.pod(cluster.group, *ordinal);
        Some(async move {
            let answer =
                tokio::time::timeout(ctx.settings.report_timeout, admin.report(&endpoint)).await;
            let view = match answer {
                // An address may have gone to another pod: its word counts for nothing here.
                Ok(Ok(report)) if report.identity.name != name => NodeView::Unreachable {
                    why: format!(
                        "the node at its address calls itself {}",
                        report.identity.name
                    ),
                },
                Ok(Ok(report)) => NodeView::Reported(Box::new(report)),
                Ok(Err(error)) => NodeView::Unreachable {
                    // What the kubelet says of the container says more than a refused
                    // connection.
                    why: pod.waiting.clone().unwrap_or_else(|| error.to_string()),
                },
                Err(_) => NodeView::Unreachable {
                    why: format!(
                        "no answer within {} ms",
                        ctx.settings.report_timeout.as_millis()
                    ),
                },
            };
            (*ordinal, view)
        })
    });
    join_all(asked).await.into_iter().collect()
}

/// A pod's admin API. By address: names of the headless Service may lag behind the pod.
pub fn endpoint(ip: &str) -> Endpoint {
    let host = if ip.contains(':') {
        format!("[{ip}]")
    } else {
        ip.to_owned()
    };
    Endpoint(format!("http://{host}:{}", ports::ADMIN))
}

async fn pod_monitors(ctx: &Ctx) -> Result<bool, Error> {
    if let Some((at, known)) = *ctx.pod_monitors.lock()
        && at.elapsed().as_secs() < DISCOVERY_SECONDS
    {
        return Ok(known);
    }
    let group = Kind::PodMonitor.gvk();
    let listed: Result<APIResourceList, kube::Error> = ctx
        .client
        .list_api_group_resources(&group.api_version())
        .await;
    let exists = match listed {
        Ok(list) => list.resources.iter().any(|one| one.kind == group.kind),
        // An unknown group is answered by text, not by a Status with a reason.
        Err(kube::Error::Api(status)) if status.code == 404 => false,
        Err(error) => {
            return Err(Error::kube("asking for", "the API group of PodMonitor")(
                error,
            ));
        }
    };
    *ctx.pod_monitors.lock() = Some((Instant::now(), exists));
    Ok(exists)
}

/// The live object of a manifest.
pub fn live<'a>(observed: &'a Observed, manifest: &build::Manifest) -> Option<&'a Value> {
    observed.live.get(&(manifest.kind, manifest.name.clone()))
}
