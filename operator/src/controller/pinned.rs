//! Volumes that can be used on one node only, and whether that node exists any more. A node
//! that does not answer exists; only one whose object was deleted is gone for good.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, NodeSelectorTerm, PersistentVolume};
use kube::{Api, api::ListParams};

use super::observed::Observed;
use crate::{context::Ctx, error::Error};

/// The label that local volumes name their node by.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// Notes on each claim whose pod does not run whether its volume's node is gone.
///
/// # Errors
/// When the API server does not answer. An operator that may not read volumes and nodes knows
/// nothing of them: nothing is taken for gone then.
pub async fn note_gone(ctx: &Ctx, observed: &mut Observed) -> Result<(), Error> {
    let (claims, pods) = (&mut observed.claims, &observed.pods);
    for (ordinal, claim) in claims {
        let runs = pods.get(ordinal).is_some_and(|pod| pod.ip.is_some());
        if let Some(volume) = claim.volume.as_deref().filter(|_| !runs) {
            claim.gone_with = match gone_node(ctx, volume).await {
                Err(Error::Kube { source, .. }) if is_forbidden(&source) => None,
                other => other?,
            };
        }
    }
    Ok(())
}

fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

/// The nodes that a volume is pinned to, when none of them exists.
async fn gone_node(ctx: &Ctx, volume: &str) -> Result<Option<String>, Error> {
    let volumes: Api<PersistentVolume> = Api::all(ctx.client.clone());
    let found = volumes
        .get_opt(volume)
        .await
        .map_err(Error::kube("reading", format!("PersistentVolume {volume}")))?;
    let Some(names) = found.as_ref().and_then(pinned_to) else {
        return Ok(None);
    };
    let names: Vec<String> = names.into_iter().collect();
    let any = format!("{HOSTNAME} in ({})", names.join(","));
    let nodes: Api<Node> = Api::all(ctx.client.clone());
    let there = nodes
        .list_metadata(&ListParams::default().labels(&any).limit(1))
        .await
        .map_err(Error::kube("listing", "nodes"))?;
    Ok(there.items.is_empty().then(|| names.join(" or ")))
}

/// The host names that a volume can be used on; absent when it can be used elsewhere too, or
/// says so in another way: it is not known to be lost then.
pub fn pinned_to(volume: &PersistentVolume) -> Option<BTreeSet<String>> {
    let affinity = volume.spec.as_ref()?.node_affinity.as_ref()?;
    let terms = &affinity.required.as_ref()?.node_selector_terms;
    let names: Option<Vec<BTreeSet<String>>> = terms.iter().map(hosts).collect();
    names
        .filter(|names| !names.is_empty())
        .map(|names| names.into_iter().flatten().collect())
}

fn hosts(term: &NodeSelectorTerm) -> Option<BTreeSet<String>> {
    let expressions = term.match_expressions.as_ref()?;
    let host = expressions
        .iter()
        .find(|one| one.key == HOSTNAME && one.operator == "In")?;
    let values = host.values.clone()?;
    (!values.is_empty()).then(|| values.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_volumes_whose_every_place_is_a_host_are_pinned() {
        let on = |terms: serde_json::Value| {
            let volume = json!({
                "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}
            });
            let volume = serde_json::from_value(volume).expect("a volume");
            pinned_to(&volume).map(|all| all.into_iter().collect::<Vec<_>>().join(" "))
        };
        let host = |name: &str| {
            json!({"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}
            ]})
        };
        let zone = json!({"matchExpressions": [
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z"]}
        ]});
        assert_eq!(on(json!([host("a")])).as_deref(), Some("a"));
        assert_eq!(on(json!([host("b"), host("a")])).as_deref(), Some("a b"));
        // The terms are alternatives: it can be used in the zone too.
        assert_eq!(on(json!([host("a"), zone])), None);
        assert_eq!(on(json!([zone])), None);
        assert_eq!(on(json!([])), None);
        assert_eq!(pinned_to(&PersistentVolume::default()), None);
    }
}
