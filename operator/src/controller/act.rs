//! Carries out the plan's one step. A refusal by a node, or no answer, is not a failure: the
//! next pass sees what became of it and plans anew. Decides nothing.

use std::{sync::Arc, time::Instant};

use flower_api::{
    admin::{AddLearner, AdminApi, AdminError, Bootstrap, Deploy, Endpoint, Fence, OfMember, code},
    ids::{ClusterId, MemberId, Revision},
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    Api,
    api::{DeleteParams, EvictParams, Preconditions},
};

use super::{
    observe::endpoint,
    observed::{AuthView, Observed},
    plan::{Hold, Plan, Step},
    raft_view::RaftView,
    status,
    validate::ValidatedCluster,
};
use crate::{
    conditions::Reason,
    context::{Ctx, RefusedBundle},
    crd::FlowerCluster,
    error::Error,
    failpoint,
    names::Ordinal,
};

/// What became of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Acted {
    /// There was none.
    Nothing,
    /// It was carried out.
    Done,
    /// It was not, and why. Planned anew.
    Held(Hold),
    /// The group has seen a newer FlowerCluster.
    Stale(String),
    /// It changed the FlowerCluster's status; this is the object now.
    Saved(Box<FlowerCluster>),
}

/// One pass's view, as an act needs it.
pub struct Stage<'a> {
    /// Process.
    pub ctx: &'a Ctx,
    /// Object as it was read.
    pub object: &'a FlowerCluster,
    /// Spec.
    pub cluster: &'a ValidatedCluster,
    /// World.
    pub observed: &'a Observed,
    /// Leader's word.
    pub view: Option<&'a RaftView>,
}

/// Carries out `plan.step`.
///
/// # Errors
/// When the API server refuses or does not answer, or a node answers nonsense.
pub async fn act(stage: &Stage<'_>, plan: &Plan) -> Result<Acted, Error> {
    let acted = match &plan.step {
        Step::None => return Ok(Acted::Nothing),
        Step::SaveIdentity { first } => {
            let cluster = ClusterId(uuid::Uuid::new_v4().to_string());
            save_identity(stage, cluster, Some(*first)).await?
        }
        Step::SaveRecovery { number, claims } => save_recovery(stage, *number, claims).await?,
        Step::Adopt { cluster } => save_identity(stage, cluster.clone(), None).await?,
        Step::DeleteClaim { ordinal, uid, .. } => delete_claim(stage, *ordinal, uid).await?,
        Step::RestartPod {
            ordinal,
            uid,
            evict,
            ..
        } => restart(stage, *ordinal, uid, *evict).await?,
        _ => call(stage, plan).await?,
    };
    if matches!(acted, Acted::Done | Acted::Saved(_)) {
        tell(stage, &plan.step).await;
    }
    Ok(acted)
}

/// Saves cluster id and first member before the bootstrap, by an update that fails when
/// anybody wrote in between: two operators cannot mint two ids.
async fn save_identity(
    stage: &Stage<'_>,
    id: ClusterId,
    first: Option<MemberId>,
) -> Result<Acted, Error> {
    let mut object = stage.object.clone();
    let status = object.status.get_or_insert_default();
    status.cluster_id = Some(id);
    status
        .image
        .get_or_insert_with(|| stage.cluster.image.clone());
    let group = status.group_mut(stage.cluster.group);
    group.first_member = first;
    group.bootstrapped |= first.is_none();
    let saved = status::write(stage.ctx, &object).await?;
    Ok(Acted::Saved(Box::new(saved)))
}

/// Saves which volumes a recovery gave up, before the first of them goes.
async fn save_recovery(stage: &Stage<'_>, number: u32, claims: &[String]) -> Result<Acted, Error> {
    let mut object = stage.object.clone();
    let status = object.status.get_or_insert_default();
    let group = status.group_mut(stage.cluster.group);
    group.recoveries = i32::try_from(number).unwrap_or(i32::MAX);
    group.given_up_claims = claims.to_vec();
    let saved = status::write(stage.ctx, &object).await?;
    Ok(Acted::Saved(Box::new(saved)))
}

async fn delete_claim(stage: &Stage<'_>, ordinal: Ordinal, uid: &str) -> Result<Acted, Error> {
    let cluster = stage.cluster;
    let name = cluster.name.claim(cluster.group, ordinal);
    let claims: Api<PersistentVolumeClaim> =
        Api::namespaced(stage.ctx.client.clone(), &cluster.namespace);
    match claims.delete(&name, &only(uid)).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {
            return Ok(Acted::Nothing);
        }
        Err(error) => return Err(Error::kube("deleting", format!("claim {name}"))(error)),
    }
    failpoint::reach("claim");
    Ok(Acted::Done)
}

/// With the uid as precondition: another object of this name is left alone.
fn only(uid: &str) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    }
}

async fn restart(
    stage: &Stage<'_>,
    ordinal: Ordinal,
    uid: &str,
    evict: bool,
) -> Result<Acted, Error> {
    let cluster = stage.cluster;
    let name = cluster.name.pod(cluster.group, ordinal);
    let pods: Api<Pod> = Api::namespaced(stage.ctx.client.clone(), &cluster.namespace);
    let result = if evict {
        let params = EvictParams {
            delete_options: Some(only(uid)),
            ..EvictParams::default()
        };
        pods.evict(&name, &params).await.map(|_| ())
    } else {
        pods.delete(&name, &only(uid)).await.map(|_| ())
    };
    match result {
        Ok(()) => {}
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {
            return Ok(Acted::Nothing);
        }
        // The budget says no: a drain took another pod at this moment.
        Err(kube::Error::Api(status)) if status.code == 429 => {
            return Ok(Acted::Held(Hold::new(
                Reason::EvictionRefused,
                format!("the disruption budget does not allow restarting pod {name} now"),
            )));
        }
        Err(error) => return Err(Error::kube("restarting", format!("Pod {name}"))(error)),
    }
    failpoint::reach("restart");
    Ok(Acted::Done)
}

/// The steps that are calls of the admin API.
async fn call(stage: &Stage<'_>, plan: &Plan) -> Result<Acted, Error> {
    let AuthView::Present(tokens) = &stage.observed.auth else {
        return Ok(Acted::Nothing);
    };
    if let Some(held) = failed_unseen(stage, &plan.step) {
        return Ok(held);
    }
    let admin = stage.ctx.connect.connect(tokens);
    let leader = stage.view.map_or(0, |view| view.leader_ordinal);
    let Some(at) = stage
        .observed
        .pods
        .get(&leader)
        .and_then(|pod| pod.ip.as_deref())
        .map(endpoint)
    else {
        return Ok(Acted::Nothing);
    };
    // This object was just read live, so a group of another uid is that of a FlowerCluster of
    // this name that was deleted while its volumes stayed.
    let owner = stage.view.and_then(|view| view.owner.as_ref());
    let fence = |configuration| Fence {
        configuration,
        uid: stage.cluster.uid.clone(),
        generation: stage.cluster.generation,
        adopt: owner.is_some_and(|owner| owner.uid != stage.cluster.uid),
    };
    let answer = send(stage, &plan.step, &admin, &at, fence(plan.configuration)).await;
    match answer {
        Ok(point) => {
            failpoint::reach(point);
            Ok(Acted::Done)
        }
        Err(error) => refused(stage, &plan.step, error),
    }
}

/// Sends the step's call; answers the name of the failpoint behind it.
async fn send(
    stage: &Stage<'_>,
    step: &Step,
    admin: &Arc<dyn AdminApi>,
    at: &Endpoint,
    fence: Fence,
) -> Result<&'static str, AdminError> {
    let of = |member: &MemberId| OfMember {
        fence: fence.clone(),
        member: *member,
    };
    let point = match step {
        Step::Bootstrap { cluster, member } => {
            let call = bootstrap(stage, cluster, *member, loose(fence));
            admin.bootstrap(at, &call).await?;
            "bootstrap"
        }
        Step::AddLearner { ordinal, member } => {
            let call = AddLearner {
                fence,
                member: *member,
                address: address(stage.cluster, *ordinal),
            };
            admin.add_learner(at, &call).await?;
            "add"
        }
        Step::Promote { member, .. } => {
            admin.promote(at, &of(member)).await?;
            "promote"
        }
        Step::Transfer { member, .. } => {
            admin.transfer(at, &of(member)).await?;
            "transfer"
        }
        Step::Remove { member, .. } => {
            admin.remove(at, &of(member)).await?;
            "remove"
        }
        Step::MarkFormed => {
            admin.formed(at, &fence).await?;
            "formed"
        }
        Step::Deploy { .. } => {
            admin.deploy(at, &deploy(stage, loose(fence))).await?;
            "deploy"
        }
        // The other steps are calls of the API server; `act` has taken them.
        _ => "status-save",
    };
    Ok(point)
}

/// For calls that do not depend on the configuration: they would be refused for nothing while
/// members come and go.
fn loose(fence: Fence) -> Fence {
    Fence {
        configuration: None,
        ..fence
    }
}

fn address(cluster: &ValidatedCluster, ordinal: Ordinal) -> String {
    cluster
        .name
        .peer_address(&cluster.namespace, cluster.group, ordinal)
}

fn bootstrap(stage: &Stage<'_>, id: &ClusterId, member: MemberId, fence: Fence) -> Bootstrap {
    Bootstrap {
        fence,
        cluster: id.clone(),
        group: stage.cluster.group,
        member,
        address: address(stage.cluster, 0),
        size: stage.cluster.replicas,
    }
}

fn deploy(stage: &Stage<'_>, fence: Fence) -> Deploy {
    let cluster = stage.cluster;
    Deploy {
        fence,
        source: stage.observed.bundle.clone().unwrap_or_default(),
        managed_by: cluster.app.as_ref().map(|app| {
            format!(
                "{}/{}",
                cluster.namespace, app.bundle.config_map_key_ref.name
            )
        }),
    }
}

/// The bundle of a deployment that is due, when its build failed while nobody waited for it.
/// After a while it is tried again, as any bundle that was refused.
fn failed_unseen(stage: &Stage<'_>, step: &Step) -> Option<Acted> {
    let Step::Deploy { hash } = step else {
        return None;
    };
    let failed = stage.view.and_then(|view| view.failed_build.as_ref())?;
    if failed.hash != *hash || stage.ctx.knows_failure(&stage.cluster.uid, failed) {
        return None;
    }
    let why = failed.why.clone();
    Some(refuse_bundle(stage, hash, Some(failed.revision), why))
}

fn refuse_bundle(stage: &Stage<'_>, hash: &str, failed_at: Option<Revision>, why: String) -> Acted {
    let refused = RefusedBundle {
        hash: hash.to_owned(),
        why: why.clone(),
        failed_at,
        at: Instant::now(),
    };
    let uid = stage.cluster.uid.clone();
    stage.ctx.refused.lock().insert(uid, refused);
    Acted::Held(Hold::new(Reason::BundleRefused, why))
}

fn refused(stage: &Stage<'_>, step: &Step, error: AdminError) -> Result<Acted, Error> {
    let problem = match error {
        AdminError::Refused(problem) => problem,
        // What it did is unknown; the next pass looks.
        AdminError::Unreachable { .. } => {
            return Ok(Acted::Held(Hold::new(
                Reason::NodeRefused,
                format!("{step}: {error}"),
            )));
        }
        AdminError::Garbled { .. } => {
            return Err(Error::Admin {
                action: step.to_string(),
                source: error,
            });
        }
    };
    if problem.code == code::STALE_SPEC {
        return Ok(Acted::Stale(problem.detail));
    }
    if let Step::Deploy { hash } = step {
        if problem.code == code::BUILDING {
            return Ok(Acted::Held(Hold::new(Reason::Building, problem.detail)));
        }
        if !problem.retryable {
            return Ok(refuse_bundle(stage, hash, None, problem.to_string()));
        }
    }
    Ok(Acted::Held(Hold::new(
        Reason::NodeRefused,
        format!("{step}: {problem}"),
    )))
}

/// An event for a step that was made.
async fn tell(stage: &Stage<'_>, step: &Step) {
    let reason = match step {
        Step::None => return,
        Step::SaveIdentity { .. } => Reason::IdentitySaved,
        Step::Adopt { .. } => Reason::IdentityAdopted,
        Step::SaveRecovery { .. } => Reason::GroupRecovered,
        Step::Bootstrap { .. } => Reason::Bootstrapped,
        Step::AddLearner { .. } => Reason::LearnerAdded,
        Step::Promote { .. } => Reason::MemberPromoted,
        Step::Transfer { .. } => Reason::LeadershipTransferred,
        Step::Remove { .. } => Reason::MemberRemoved,
        Step::MarkFormed => Reason::GroupFormed,
        Step::Deploy { .. } => Reason::AppDeployed,
        Step::DeleteClaim { .. } => Reason::ClaimDeleted,
        Step::RestartPod { .. } => Reason::PodRestarted,
    };
    tracing::info!(step = step.name(), "{step}");
    stage
        .ctx
        .events
        .normal(stage.object, reason, &step.to_string())
        .await;
}
