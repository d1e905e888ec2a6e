//! Writes objects that differ from what they should be, in a fixed order, and nothing else: a
//! pass that finds everything in place sends no write. Decides nothing.

use k8s_openapi::{
    ByteString,
    api::core::v1::{PersistentVolumeClaim, Pod, Secret},
};
use kube::{
    Api,
    api::{
        DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions,
        ValidationDirective,
    },
};
use rand::{Rng, distr::Alphanumeric};
use serde_json::{Value, json};

use super::{
    build::{Kind, Manifest},
    observe::live,
    observed::{AuthView, Observed},
    raft_view::RaftView,
    validate::ValidatedCluster,
};
use crate::{
    amount, context::Ctx, crd::WhenDeleted, error::Error, failpoint, labels, names::Ordinal,
};

/// Applies every manifest that differs from its live object.
///
/// # Errors
/// When the API server refuses or does not answer; what was written before stays.
pub async fn apply(
    ctx: &Ctx,
    cluster: &ValidatedCluster,
    observed: &Observed,
    manifests: &[Manifest],
) -> Result<u32, Error> {
    let mut writes = 0;
    if cluster.generate_auth && observed.auth == AuthView::Missing {
        generate_auth(ctx, cluster).await?;
        writes += 1;
    }
    for manifest in manifests {
        let before = live(observed, manifest);
        if before.is_some_and(|before| in_place(&manifest.object, before)) {
            continue;
        }
        let api: Api<DynamicObject> = Api::namespaced_with(
            ctx.client.clone(),
            &cluster.namespace,
            &manifest.kind.resource(),
        );
        let mut params = PatchParams::apply(labels::MANAGER).force();
        // A field that the server does not know would otherwise be dropped in silence.
        params.field_validation = Some(ValidationDirective::Strict);
        let object = format!("{:?} {}", manifest.kind, manifest.name);
        tracing::info!(%object, new = before.is_none(), "applying");
        api.patch(&manifest.name, &params, &Patch::Apply(&manifest.object))
            .await
            .map_err(Error::kube("applying", object))?;
        writes += 1;
        if manifest.kind == Kind::StatefulSet
            && replicas(Some(&manifest.object)) != replicas(before)
        {
            failpoint::reach("scale");
        }
    }
    Ok(writes)
}

fn replicas(object: Option<&Value>) -> Option<i64> {
    object?.pointer("/spec/replicas")?.as_i64()
}

/// Deletes the PodMonitor that `monitoring.podMonitor: false` no longer wants. Other kinds are
/// always wanted.
///
/// # Errors
/// When the API server refuses or does not answer.
pub async fn prune(
    ctx: &Ctx,
    cluster: &ValidatedCluster,
    observed: &Observed,
    manifests: &[Manifest],
) -> Result<u32, Error> {
    let unwanted = observed.live.iter().find(|((kind, name), _)| {
        *kind == Kind::PodMonitor
            && !manifests
                .iter()
                .any(|one| one.kind == *kind && one.name == *name)
    });
    let Some(((kind, name), live)) = unwanted else {
        return Ok(0);
    };
    let api: Api<DynamicObject> =
        Api::namespaced_with(ctx.client.clone(), &cluster.namespace, &kind.resource());
    let uid = live.pointer("/metadata/uid").and_then(Value::as_str);
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: uid.map(str::to_owned),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match api.delete(name, &params).await {
        Ok(_) => Ok(1),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(0),
        Err(error) => Err(Error::kube("deleting", format!("{kind:?} {name}"))(error)),
    }
}

/// Random tokens, made once. With `volumeClaims.whenDeleted: Delete` the Secret goes with the
/// FlowerCluster; otherwise it stays as the volumes do, whose members know its peer token.
async fn generate_auth(ctx: &Ctx, cluster: &ValidatedCluster) -> Result<(), Error> {
    let data = ["client", "admin", "peer"].map(|key| {
        let token: String = rand::rng()
            .sample_iter(Alphanumeric)
            .take(40)
            .map(char::from)
            .collect();
        (key.to_owned(), ByteString(token.into_bytes()))
    });
    let mut secret = Secret {
        data: Some(data.into_iter().collect()),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    };
    secret.metadata.name = Some(cluster.auth_secret.clone());
    secret.metadata.labels = Some(labels::object(&cluster.name));
    if cluster.when_deleted == WhenDeleted::Delete {
        secret.metadata.owner_references = Some(vec![cluster.owner()]);
    }
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &cluster.namespace);
    match api.create(&PostParams::default(), &secret).await {
        Ok(_) => Ok(()),
        // Somebody made it in between; the next pass reads it.
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(Error::kube(
            "creating",
            format!("Secret {}", cluster.auth_secret),
        )(error)),
    }
}

/// Keeps the role label of pods, by which the leader's Service selects.
///
/// # Errors
/// When the API server refuses or does not answer.
pub async fn roles(
    ctx: &Ctx,
    cluster: &ValidatedCluster,
    observed: &Observed,
    view: &RaftView,
) -> Result<u32, Error> {
    let pods: Api<Pod> = Api::namespaced(ctx.client.clone(), &cluster.namespace);
    let mut writes = 0;
    for (ordinal, pod) in &observed.pods {
        let role = role(observed, view, *ordinal);
        if pod.terminating || pod.role.as_deref() == Some(role) {
            continue;
        }
        let name = cluster.name.pod(cluster.group, *ordinal);
        // With the uid: another pod of this name must not get the label.
        let patch = json!({ "metadata": { "uid": pod.uid, "labels": { labels::ROLE: role } } });
        let params = PatchParams {
            field_manager: Some(labels::MANAGER.to_owned()),
            ..PatchParams::default()
        };
        match pods.patch(&name, &params, &Patch::Merge(&patch)).await {
            Ok(_) => writes += 1,
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            Err(error) => return Err(Error::kube("labelling", format!("Pod {name}"))(error)),
        }
    }
    Ok(writes)
}

fn role(observed: &Observed, view: &RaftView, ordinal: Ordinal) -> &'static str {
    match observed.member(ordinal) {
        Some(id) if id == view.leader => "leader",
        Some(id) if view.voters().contains(&id) => "follower",
        Some(id) if view.configuration.members.contains_key(&id) => "learner",
        // A pod that does not answer is where it was, but it leads no longer.
        None if observed
            .pods
            .get(&ordinal)
            .and_then(|pod| pod.role.as_deref())
            == Some("follower") =>
        {
            "follower"
        }
        _ => "none",
    }
}

/// Makes the FlowerCluster the owner of its claims, or takes that back, as
/// `volumeClaims.whenDeleted` says.
///
/// # Errors
/// When the API server refuses or does not answer.
pub async fn claim_owners(
    ctx: &Ctx,
    cluster: &ValidatedCluster,
    observed: &Observed,
) -> Result<u32, Error> {
    let claims: Api<PersistentVolumeClaim> =
        Api::namespaced(ctx.client.clone(), &cluster.namespace);
    let mut writes = 0;
    for (ordinal, claim) in &observed.claims {
        let owned = claim.owners.iter().any(|owner| owner.uid == cluster.uid);
        let wanted = cluster.when_deleted == WhenDeleted::Delete;
        if claim.terminating || owned == wanted {
            continue;
        }
        let mut owners = claim.owners.clone();
        owners.retain(|owner| owner.uid != cluster.uid);
        if wanted {
            let mut owner = cluster.owner();
            owner.controller = None;
            owners.push(owner);
        }
        let name = cluster.name.claim(cluster.group, *ordinal);
        let patch = json!({ "metadata": { "uid": claim.uid, "ownerReferences": owners } });
        let params = PatchParams {
            field_manager: Some(labels::MANAGER.to_owned()),
            ..PatchParams::default()
        };
        claims
            .patch(&name, &params, &Patch::Merge(&patch))
            .await
            .map_err(Error::kube("setting the owner of", format!("claim {name}")))?;
        writes += 1;
    }
    Ok(writes)
}

/// Whether the live object was applied from this very manifest and still has all its fields.
pub fn in_place(wanted: &Value, live: &Value) -> bool {
    let hash = |object: &Value| {
        object
            .get("metadata")
            .and_then(|metadata| metadata.get("annotations"))
            .and_then(|annotations| annotations.get(labels::APPLIED_HASH))
            .cloned()
    };
    hash(wanted) == hash(live) && within(wanted, live)
}

/// Whether `live` has everything that `wanted` has. More fields are the server's defaults or
/// somebody else's. Quantities may be written differently.
fn within(wanted: &Value, live: &Value) -> bool {
    match (wanted, live) {
        (Value::Object(wanted), Value::Object(live)) => wanted.iter().all(|(key, value)| {
            live.get(key)
                .map_or_else(|| is_nothing(value), |found| within(value, found))
        }),
        (Value::Array(wanted), Value::Array(live)) => {
            let named = wanted.iter().all(|one| one.get("name").is_some());
            if named && !wanted.is_empty() {
                return wanted.iter().all(|one| {
                    let mut found = live
                        .iter()
                        .filter(|other| other.get("name") == one.get("name"));
                    found.any(|other| within(one, other))
                });
            }
            wanted.len() == live.len() && wanted.iter().zip(live).all(|(a, b)| within(a, b))
        }
        (Value::String(wanted), Value::String(live)) => amount::same(wanted, live),
        _ => wanted == live,
    }
}

/// What the server does not keep when it is empty.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_object_is_in_place_when_it_has_all_that_is_wanted() {
        let wanted = json!({
            "metadata": { "annotations": { labels::APPLIED_HASH: "1" } },
            "spec": { "memory": "1024Mi", "list": [{ "name": "a", "v": 1 }], "plain": [1, 2] },
        });
        let with = |edit: fn(&mut Value)| {
            let mut live = wanted.clone();
            live["metadata"]["uid"] = json!("x");
            live["spec"]["memory"] = json!("1Gi");
            live["spec"]["list"] =
                json!([{ "name": "b" }, { "name": "a", "v": 1, "default": true }]);
            edit(&mut live);
            live
        };
        for (case, edit, expected) in [
            ("more fields", (|_: &mut Value| {}) as fn(&mut Value), true),
            (
                "another manifest",
                |live| live["metadata"]["annotations"][labels::APPLIED_HASH] = json!("2"),
                false,
            ),
            (
                "a changed field",
                |live| live["spec"]["memory"] = json!("2Gi"),
                false,
            ),
            (
                "a changed item",
                |live| live["spec"]["list"][1]["v"] = json!(2),
                false,
            ),
            (
                "a longer plain list",
                |live| live["spec"]["plain"] = json!([1, 2, 3]),
                false,
            ),
            ("a lost field", |live| live["spec"] = json!({}), false),
        ] {
            assert_eq!(in_place(&wanted, &with(edit)), expected, "{case}");
        }
    }
}
