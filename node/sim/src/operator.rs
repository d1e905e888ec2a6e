//! The operator in the world: the real planner over what it observes through the network,
//! one step a pass. It can be killed between any two calls, for it keeps nothing.

use std::{collections::BTreeMap, time::Duration};

use flower_api::{
    ClusterId, GroupId,
    admin::{AddLearner, AdminApi, AdminError, Bootstrap, Deploy, Fence, OfMember},
};
use flower_operator::{
    controller::{
        observed::{AppView, AuthView, ClaimView, NodeView, Observed, PodView},
        plan::{Facts, Plan, Step, plan},
        raft_view::RaftView,
        validate::{ValidatedCluster, validate},
    },
    crd::status::GroupStatus,
    names::{ClusterName, Ordinal},
};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{
    admin::SimAdmin,
    audit::Audit,
    cluster::{endpoint, peer},
    http::Http,
    kube::Kube,
    world::ADMIN_TOKEN,
};

/// Between two passes.
const PASS_EVERY: Duration = Duration::from_millis(400);
/// The one group.
pub const GROUP: GroupId = GroupId(0);
const UID: &str = "the-flower-cluster";

/// The FlowerCluster's name.
pub fn name() -> ClusterName {
    ClusterName::new("db").expect("a short name")
}

/// The host of a pod.
pub fn host(ordinal: Ordinal) -> String {
    format!("{}.w", name().pod(GROUP, ordinal))
}

/// Runs passes until it is killed.
pub async fn run(at: String, kube: Kube, audit: Audit) {
    let admin = SimAdmin(Http::new(&at, &audit, ADMIN_TOKEN, true));
    loop {
        pass(&admin, &kube, &audit).await;
        tokio::time::sleep(PASS_EVERY).await;
    }
}

async fn pass(admin: &SimAdmin, kube: &Kube, audit: &Audit) {
    let observed = observe(admin, kube).await;
    let (cluster, template) = {
        let objects = kube.objects();
        (spec(&objects), objects.template.to_string())
    };
    let facts = Facts {
        cluster: &cluster,
        observed: &observed,
        template_hash: &template,
    };
    let planned = plan(facts);
    let view = RaftView::of(&cluster.name, GROUP, &observed).ok();
    save_status(kube, view.as_ref());
    if planned.apply {
        kube.objects().set_replicas = Some(planned.statefulset_replicas);
    }
    if planned.step != Step::None {
        let said = planned.step.to_string();
        let ended = act(admin, kube, &observed, &planned, view.as_ref()).await;
        audit.say(format!("operator: {said}: {ended}"));
    }
}

/// The object as the operator reads it.
fn spec(objects: &crate::kube::Objects) -> ValidatedCluster {
    let object = json!({
        "apiVersion": "flowerdb.dev/v1alpha1", "kind": "FlowerCluster",
        "metadata": { "name": "db", "namespace": "w", "uid": UID, "generation": objects.generation },
        "spec": { "replicas": objects.replicas },
    });
    let object = serde_json::from_value(object).expect("a FlowerCluster");
    match validate(&object, "image") {
        Ok(cluster) => cluster,
        Err(refusal) => panic!("the world's spec is refused: {refusal:?}"),
    }
}

async fn observe(admin: &SimAdmin, kube: &Kube) -> Observed {
    let ordinals: Vec<Ordinal> = kube.objects().pods.keys().copied().collect();
    let mut asked = tokio::task::JoinSet::new();
    for ordinal in ordinals {
        let admin = admin.clone();
        asked.spawn(async move { (ordinal, admin.report(&endpoint(&host(ordinal))).await) });
    }
    let mut nodes = BTreeMap::new();
    while let Some(Ok((ordinal, told))) = asked.join_next().await {
        let node = match told {
            Ok(report) if report.identity.name != host(ordinal) => NodeView::Unreachable {
                why: format!("it calls itself {}", report.identity.name),
            },
            Ok(report) => NodeView::Reported(Box::new(report)),
            Err(error) => NodeView::Unreachable {
                why: error.to_string(),
            },
        };
        nodes.insert(ordinal, node);
    }
    let objects = kube.objects();
    let pods = objects.pods.iter().map(|(ordinal, pod)| {
        let reported = nodes.get(ordinal).and_then(|node| match node {
            NodeView::Reported(report) => Some(report.ready),
            NodeView::Unreachable { .. } => None,
        });
        let view = PodView {
            uid: pod.uid.clone(),
            ip: Some(host(*ordinal)),
            started: true,
            running: reported.is_some(),
            ready: reported == Some(true),
            terminating: pod.terminating,
            template_hash: Some(pod.template.to_string()),
            ..PodView::default()
        };
        (*ordinal, view)
    });
    let claims = objects.claims.iter().map(|(ordinal, claim)| {
        let view = ClaimView {
            uid: claim.uid.clone(),
            volume: Some("volume".into()),
            terminating: claim.terminating,
            ..ClaimView::default()
        };
        (*ordinal, view)
    });
    let set = objects.set_replicas.map(|replicas| {
        let set = json!({ "metadata": {}, "spec": { "replicas": replicas } });
        serde_json::from_value(set).expect("a StatefulSet")
    });
    Observed {
        statefulset: set,
        pods: pods.collect(),
        claims: claims.collect(),
        nodes: nodes.clone(),
        auth: AuthView::Present(vec![ADMIN_TOKEN.into()]),
        app: AppView::Bundle {
            hash: hex(&Sha256::digest(objects.bundle.as_bytes())),
            refused: None,
        },
        bundle: Some(objects.bundle.clone()),
        status: objects.status.clone(),
        ..Observed::default()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// What the group's leader says is remembered, as the operator's status does.
fn save_status(kube: &Kube, view: Option<&RaftView>) {
    let Some(view) = view else { return };
    let mut objects = kube.objects();
    for group in &mut objects.status.groups {
        group.bootstrapped = true;
        group.formed |= view.formed;
    }
}

async fn act(
    admin: &SimAdmin,
    kube: &Kube,
    observed: &Observed,
    planned: &Plan,
    view: Option<&RaftView>,
) -> String {
    match &planned.step {
        Step::SaveIdentity { first } => {
            let mut objects = kube.objects();
            let id = ClusterId(objects.uid());
            objects.status.cluster_id = Some(id);
            objects.status.groups = vec![GroupStatus {
                group: GROUP,
                first_member: Some(*first),
                ..GroupStatus::default()
            }];
            "saved".into()
        }
        Step::Adopt { cluster } => {
            kube.objects().status.cluster_id = Some(cluster.clone());
            "saved".into()
        }
        Step::SaveRecovery { number, claims } => {
            for group in &mut kube.objects().status.groups {
                group.recoveries = i32::try_from(*number).unwrap_or(i32::MAX);
                group.given_up_claims = claims.clone();
            }
            "saved".into()
        }
        Step::DeleteClaim { ordinal, uid, .. } => {
            let mut objects = kube.objects();
            match objects.claims.get_mut(ordinal) {
                Some(claim) if claim.uid == *uid => claim.terminating = true,
                _ => return "another one".into(),
            }
            "deleted".into()
        }
        Step::RestartPod { ordinal, uid, .. } => {
            let mut objects = kube.objects();
            match objects.pods.get_mut(ordinal) {
                Some(pod) if pod.uid == *uid => pod.terminating = true,
                _ => return "another one".into(),
            }
            "deleted".into()
        }
        step => {
            let generation = kube.objects().generation;
            let fence = Fence {
                configuration: planned.configuration,
                uid: UID.into(),
                generation,
                adopt: false,
            };
            let leader = view.map_or(0, |view| view.leader_ordinal);
            kube.objects().sent.push((step.clone(), fence.clone()));
            let bundle = observed.bundle.clone().unwrap_or_default();
            match send(admin, leader, step, fence, bundle).await {
                Ok(()) => "done".into(),
                Err(error) => error.to_string(),
            }
        }
    }
}

/// Sends one step to the node of an ordinal.
///
/// # Errors
/// As the node refuses.
pub async fn send(
    admin: &SimAdmin,
    to: Ordinal,
    step: &Step,
    fence: Fence,
    bundle: String,
) -> Result<(), AdminError> {
    let at = endpoint(&host(to));
    let loose = Fence {
        configuration: None,
        ..fence.clone()
    };
    let of = |member: &flower_api::MemberId| OfMember {
        fence: fence.clone(),
        member: *member,
    };
    match step {
        Step::Bootstrap { cluster, member } => {
            let call = Bootstrap {
                fence: loose,
                cluster: cluster.clone(),
                group: GROUP,
                member: *member,
                address: peer(&host(to)),
                // The group is formed by the mark alone.
                size: 3,
            };
            admin.bootstrap(&at, &call).await.map(drop)
        }
        Step::AddLearner { ordinal, member } => {
            let call = AddLearner {
                fence: fence.clone(),
                member: *member,
                address: peer(&host(*ordinal)),
            };
            admin.add_learner(&at, &call).await.map(drop)
        }
        Step::Promote { member, .. } => admin.promote(&at, &of(member)).await.map(drop),
        Step::Transfer { member, .. } => admin.transfer(&at, &of(member)).await.map(drop),
        Step::Remove { member, .. } => admin.remove(&at, &of(member)).await.map(drop),
        Step::MarkFormed => admin.formed(&at, &fence).await.map(drop),
        Step::Deploy { .. } => {
            let call = Deploy {
                fence: loose,
                source: bundle,
                managed_by: Some("w/app".into()),
            };
            admin.deploy(&at, &call).await.map(drop)
        }
        _ => Ok(()),
    }
}
