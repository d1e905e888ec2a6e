//! (spec, what was observed) → what to do next: at most one step, and why nothing more. Pure:
//! no clock, no client, no randomness. Speaks of groups, ordinals and member ids, so that
//! several groups and other workloads than StatefulSets can come later.

use flower_api::{ids::GroupId, report::ConfigVersion};

use super::{
    observed::{AppView, AuthView, Observed},
    raft_view::{NoLeader, RaftView},
    validate::ValidatedCluster,
};
use crate::{conditions::Reason, names::Ordinal};

pub mod bootstrap;
pub mod membership;
pub mod recovery;
pub mod rollout;
pub mod scale;
pub mod step;
pub mod volumes;

pub use step::Step;

/// What to do in this pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The group that it speaks of.
    pub group: GroupId,
    /// Replicas of the StatefulSet, which is not always `spec.replicas`: a member leaves
    /// the configuration before its pod goes.
    pub statefulset_replicas: u32,
    /// The one step.
    pub step: Step,
    /// Why nothing more is done; shown even when there is a step.
    pub hold: Option<Hold>,
    /// Objects may be applied.
    pub apply: bool,
    /// Configuration that the step was planned against.
    pub configuration: Option<ConfigVersion>,
    /// When to look again.
    pub requeue: Requeue,
}

/// Why nothing (more) is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// For conditions and events.
    pub reason: Reason,
    /// For people.
    pub message: String,
}

impl Hold {
    /// A hold.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
    /// The desired state is not reached yet, as opposed to: reached, but something is odd.
    pub fn is_progress(&self) -> bool {
        !matches!(self.reason, Reason::Paused | Reason::NewerSpecSeen)
    }
}

/// When to look again. Children's events wake a pass too; Raft's state has no watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requeue {
    /// A step was made: the next one may follow.
    Now,
    /// Something is waited for.
    Soon,
    /// As desired.
    Later,
}

/// What one concern of the planner says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing from here.
    Pass,
    /// This is the step.
    Do(Step),
    /// Wait, but later concerns may act.
    Wait(Hold),
    /// Wait, and nothing else may be done.
    Block(Hold),
}

/// Everything that the concerns look at.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The spec.
    pub cluster: &'a ValidatedCluster,
    /// The world.
    pub observed: &'a Observed,
    /// Hash of the pod template that pods should have.
    pub template_hash: &'a str,
}

impl Facts<'_> {
    /// A pod's name.
    pub fn pod(&self, ordinal: Ordinal) -> String {
        self.cluster.name.pod(self.cluster.group, ordinal)
    }
    /// A claim's name.
    pub fn claim(&self, ordinal: Ordinal) -> String {
        self.cluster.name.claim(self.cluster.group, ordinal)
    }
}

/// Plans one pass.
pub fn plan(facts: Facts<'_>) -> Plan {
    let Facts {
        cluster, observed, ..
    } = facts;
    let view = RaftView::of(&cluster.name, cluster.group, observed);
    let mut plan = Plan {
        group: cluster.group,
        statefulset_replicas: scale::replicas(facts, view.as_ref().ok()),
        step: Step::None,
        hold: None,
        apply: true,
        configuration: view.as_ref().ok().map(|view| view.configuration.version),
        requeue: Requeue::Later,
    };
    if let Some(hold) = standstill(facts, view.as_ref().ok()) {
        plan.apply = false;
        plan.hold = Some(hold);
        plan.requeue = Requeue::Soon;
        return plan;
    }
    for verdict in concerns(facts, view.as_ref()) {
        match verdict() {
            Verdict::Pass => {}
            Verdict::Do(step) => {
                plan.step = step;
                break;
            }
            Verdict::Wait(hold) => {
                plan.hold.get_or_insert(hold);
            }
            Verdict::Block(hold) => {
                plan.hold = Some(hold);
                break;
            }
        }
    }
    plan.requeue = match (&plan.step, &plan.hold) {
        (Step::None, None) => Requeue::Later,
        (Step::None, Some(_)) => Requeue::Soon,
        _ => Requeue::Now,
    };
    plan
}

/// The concerns in the order in which they may act.
fn concerns<'a>(
    facts: Facts<'a>,
    view: Result<&'a RaftView, &'a NoLeader>,
) -> Vec<Box<dyn FnOnce() -> Verdict + 'a>> {
    let mut all: Vec<Box<dyn FnOnce() -> Verdict + 'a>> = vec![
        Box::new(move || auth(facts)),
        Box::new(move || bootstrap::identity(facts)),
    ];
    match view {
        Err(none) => {
            // A pod that cannot start on an old template is in nobody's way; a mended
            // template must reach it, leader or not.
            all.push(Box::new(move || rollout::stuck(facts)));
            all.push(Box::new(move || bootstrap::bootstrap(facts, none)));
        }
        Ok(view) => {
            all.push(Box::new(move || membership::settled(view)));
            all.push(Box::new(move || recovery::note(facts, view)));
            all.push(Box::new(move || membership::replace(facts, view)));
            all.push(Box::new(move || membership::drop_learners(facts, view)));
            all.push(Box::new(move || volumes::wipe(facts, view)));
            all.push(Box::new(move || rollout::stuck(facts)));
            all.push(Box::new(move || membership::join(facts, view)));
            all.push(Box::new(move || membership::promote(facts, view)));
            all.push(Box::new(move || membership::form(facts, view)));
            all.push(Box::new(move || deploy(facts, view)));
            all.push(Box::new(move || scale::shrink(facts, view)));
            all.push(Box::new(move || volumes::leftovers(facts, view)));
            all.push(Box::new(move || rollout::next(facts, view)));
            all.push(Box::new(move || membership::missing(facts, view)));
        }
    }
    all
}

/// Reasons to touch nothing at all.
fn standstill(facts: Facts<'_>, view: Option<&RaftView>) -> Option<Hold> {
    let cluster = facts.cluster;
    // By any member's word: without a leader, the past must not be acted on either.
    let told = facts
        .observed
        .reports()
        .filter_map(|(_, report)| report.owner.as_ref())
        .chain(view.and_then(|view| view.owner.as_ref()))
        .filter(|owner| owner.uid == cluster.uid)
        .max_by_key(|owner| owner.generation);
    if let Some(owner) = told.filter(|owner| owner.generation > cluster.generation) {
        return Some(Hold::new(
            Reason::NewerSpecSeen,
            format!(
                "the group has seen generation {} of this FlowerCluster, and this is generation {}: the cluster's API was restored from an older copy; apply the current spec until its generation is higher",
                owner.generation, cluster.generation
            ),
        ));
    }
    if facts.cluster.paused {
        return Some(Hold::new(
            Reason::Paused,
            "spec.paused is true: nothing is changed until it is false",
        ));
    }
    let foreign = &facts.observed.foreign;
    (!foreign.is_empty()).then(|| {
        Hold::new(
            Reason::ForeignObject,
            format!(
                "{} exists and is not owned by this FlowerCluster (uid {}): it is not taken over; delete or rename it, or wait if it belonged to a deleted FlowerCluster of this name",
                foreign.join(", "),
                facts.cluster.uid
            ),
        )
    })
}

fn auth(facts: Facts<'_>) -> Verdict {
    let secret = &facts.cluster.auth_secret;
    match &facts.observed.auth {
        AuthView::Present(_) => Verdict::Pass,
        // Made by this pass's apply.
        AuthView::Missing if facts.cluster.generate_auth => Verdict::Pass,
        AuthView::Missing => Verdict::Block(Hold::new(
            Reason::AuthSecretMissing,
            format!(
                "the Secret {secret} named in spec.auth.secretName does not exist: create it with the keys client, admin and peer, each one token a line"
            ),
        )),
        AuthView::Invalid(why) => Verdict::Block(Hold::new(
            Reason::AuthSecretInvalid,
            format!(
                "the Secret {secret} cannot be used: {why}; give it the keys client, admin and peer, each one token a line"
            ),
        )),
    }
}

fn deploy(facts: Facts<'_>, view: &RaftView) -> Verdict {
    let AppView::Bundle {
        hash,
        refused: None,
    } = &facts.observed.app
    else {
        return Verdict::Pass;
    };
    if !view.formed || view.deployment.as_ref() == Some(hash) {
        return Verdict::Pass;
    }
    match view.build.as_ref().filter(|build| build.hash == *hash) {
        // It becomes active by itself.
        Some(build) => Verdict::Wait(Hold::new(Reason::Building, build.to_string())),
        None => Verdict::Do(Step::Deploy { hash: hash.clone() }),
    }
}
