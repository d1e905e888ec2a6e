//! Computes the status from what was observed and done, and writes it when it differs. The
//! computation is pure; positions and lag stay out of it, or every write to the database
//! would wake the operator.

use flower_api::{
    ids::MemberId,
    report::{Lifecycle, Role},
};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, ResourceExt, api::PostParams};

use super::{
    act::Acted,
    footprint, health,
    observed::{AppView, NodeView, Observed},
    plan::{Hold, Plan, Step},
    raft_view::RaftView,
    validate::{Refusal, ValidatedCluster},
};
use crate::{
    conditions::{self, Reason, Type, Wanted},
    context::Ctx,
    crd::{
        FlowerCluster, FlowerClusterStatus,
        status::{AppStatus, GroupStatus, MemberState, MemberStatus, PlanStatus},
    },
    error::Error,
    failpoint, labels,
    names::Ordinal,
};

/// Everything that a status is computed from.
pub struct Inputs<'a> {
    /// Spec.
    pub cluster: &'a ValidatedCluster,
    /// World, before the step.
    pub observed: &'a Observed,
    /// Leader's word, before the step.
    pub view: Option<&'a RaftView>,
    /// Plan.
    pub plan: &'a Plan,
    /// What became of the step.
    pub acted: &'a Acted,
    /// The pods' template, for what is still to be restarted.
    pub template_hash: &'a str,
    /// Time of day.
    pub now: Timestamp,
}

/// The status after a pass.
pub fn compute(old: &FlowerClusterStatus, inputs: &Inputs<'_>) -> FlowerClusterStatus {
    let Inputs {
        cluster, observed, ..
    } = inputs;
    let mut status = old.clone();
    status.observed_generation = Some(cluster.generation);
    status.image.get_or_insert_with(|| cluster.image.clone());
    status.selector = Some(labels::text(&labels::selector(&cluster.name)));
    status.replicas = count(observed.pods.len());
    status.ready_replicas = count(observed.pods.values().filter(|pod| pod.ready).count());
    status.group_count = 1;
    status.groups = vec![group(old, inputs)];
    status.leaders = inputs
        .view
        .map(|view| cluster.name.pod(cluster.group, view.leader_ordinal));
    status.app = app(inputs);
    status.footprint = footprint::compute(old.footprint.as_ref(), observed, inputs.now);
    let hold = hold(inputs);
    status.plan = plan_status(inputs, hold.as_ref());
    let wanted = health::conditions(inputs, &status, hold.as_ref());
    for one in wanted {
        conditions::set(&mut status.conditions, one, cluster.generation, inputs.now);
    }
    if cluster.app.is_none() {
        conditions::unset(&mut status.conditions, Type::AppDeployed);
    }
    status
}

/// The status of a spec that cannot be carried out: what runs goes on running.
pub fn refused(
    old: &FlowerClusterStatus,
    generation: i64,
    refusal: &Refusal,
    now: Timestamp,
) -> FlowerClusterStatus {
    let mut status = old.clone();
    status.observed_generation = Some(generation);
    let wanted = |type_, reason| Wanted {
        type_,
        status: false,
        reason,
        message: refusal.message.clone(),
    };
    for one in [
        wanted(Type::Accepted, refusal.reason),
        wanted(Type::Ready, Reason::NotAccepted),
    ] {
        conditions::set(&mut status.conditions, one, generation, now);
    }
    status.plan = Some(PlanStatus {
        step: None,
        hold: Some(refusal.reason.as_str()),
        message: Some(refusal.message.clone()),
    });
    status
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// The hold to show: what the step ran into goes before what was planned.
fn hold(inputs: &Inputs<'_>) -> Option<Hold> {
    match inputs.acted {
        Acted::Held(hold) => Some(hold.clone()),
        Acted::Stale(why) => Some(Hold::new(Reason::NewerSpecSeen, why.clone())),
        Acted::Nothing | Acted::Done | Acted::Saved(_) => inputs.plan.hold.clone(),
    }
}

fn plan_status(inputs: &Inputs<'_>, hold: Option<&Hold>) -> Option<PlanStatus> {
    let step = (inputs.plan.step != Step::None).then(|| inputs.plan.step.to_string());
    if step.is_none() && hold.is_none() {
        return None;
    }
    Some(PlanStatus {
        message: hold.map(|hold| hold.message.clone()),
        hold: hold.map(|hold| hold.reason.as_str()),
        step,
    })
}

fn group(old: &FlowerClusterStatus, inputs: &Inputs<'_>) -> GroupStatus {
    let cluster = inputs.cluster;
    let mut group = old.group(cluster.group).cloned().unwrap_or_default();
    group.group = cluster.group;
    if let Some(view) = inputs.view {
        group.bootstrapped = true;
        group.formed |= view.formed;
        group.term = Some(view.term);
        group.voters = count(view.voters().len());
    }
    group.leader = inputs
        .view
        .map(|view| cluster.name.pod(cluster.group, view.leader_ordinal));
    group.members = members(inputs);
    group
}

fn members(inputs: &Inputs<'_>) -> Vec<MemberStatus> {
    let observed = inputs.observed;
    let mut ordinals: Vec<Ordinal> = observed.pods.keys().copied().collect();
    if let Some(view) = inputs.view {
        ordinals.extend(view.ordinals.values());
    }
    ordinals.sort_unstable();
    ordinals.dedup();
    ordinals
        .into_iter()
        .map(|ordinal| member(inputs, ordinal))
        .collect()
}

fn member(inputs: &Inputs<'_>, ordinal: Ordinal) -> MemberStatus {
    let report = inputs.observed.report(ordinal);
    let said = report.and_then(|report| report.identity.member);
    let configured = inputs.view.and_then(|view| view.member_at(ordinal, said));
    let id = said.or(configured);
    let state = match (inputs.observed.nodes.get(&ordinal), report) {
        (_, Some(report)) => match report.identity.lifecycle {
            Lifecycle::Uninitialized => MemberState::Uninitialized,
            Lifecycle::Joining => MemberState::Joining,
            Lifecycle::Member => MemberState::Member,
            Lifecycle::Removed => MemberState::Removed,
            Lifecycle::Broken => MemberState::Broken,
        },
        (Some(NodeView::Unreachable { .. }), _) => MemberState::Unreachable,
        _ => MemberState::Pending,
    };
    MemberStatus {
        pod: inputs.cluster.name.pod(inputs.cluster.group, ordinal),
        member: id,
        role: role(inputs, report.map(|report| report.role), id).to_owned(),
        state,
        caught_up: match (inputs.view, id) {
            (Some(view), Some(id)) => view.caught_up(id),
            _ => false,
        },
        version: report.map(|report| report.identity.version.clone()),
    }
}

fn role(inputs: &Inputs<'_>, said: Option<Role>, id: Option<MemberId>) -> &'static str {
    let Some(view) = inputs.view else {
        // Candidates come and go while there is no leader.
        return match said {
            Some(Role::Learner) => "Learner",
            Some(Role::Follower | Role::Candidate | Role::Leader) => "Follower",
            Some(Role::None) | None => "None",
        };
    };
    match id {
        Some(id) if id == view.leader => "Leader",
        Some(id) if view.voters().contains(&id) => "Follower",
        Some(id) if view.configuration.members.contains_key(&id) => "Learner",
        _ => "None",
    }
}

fn app(inputs: &Inputs<'_>) -> Option<AppStatus> {
    let runs = inputs.view.and_then(|view| view.deployment.clone());
    let before = inputs.observed.status.app.clone().unwrap_or_default();
    let wanted = match &inputs.observed.app {
        AppView::Bundle { hash, .. } => Some(hash.clone()),
        AppView::Unmanaged | AppView::Unusable { .. } => None,
    };
    let app = AppStatus {
        hash: runs.or(before.hash),
        wanted_hash: wanted,
    };
    (app != AppStatus::default()).then_some(app)
}

/// Writes the object's status under its resourceVersion.
///
/// # Errors
/// When somebody wrote in between (a conflict), or the API server refuses.
pub async fn write(ctx: &Ctx, object: &FlowerCluster) -> Result<FlowerCluster, Error> {
    let namespace = object.namespace().unwrap_or_default();
    let name = object.name_any();
    let api: Api<FlowerCluster> = Api::namespaced(ctx.client.clone(), &namespace);
    let params = PostParams {
        field_manager: Some(format!("{}-status", labels::MANAGER)),
        ..PostParams::default()
    };
    let saved = api
        .replace_status(&name, &params, object)
        .await
        .map_err(Error::kube(
            "writing the status of",
            format!("FlowerCluster {namespace}/{name}"),
        ))?;
    failpoint::reach("status-save");
    Ok(saved)
}
