//! (spec, what was observed) → what to do next: at most one step, and why nothing more. Pure:
//! no clock, no client, no randomness. Speaks of groups, ordinals and member ids, so that
//! several groups and other workloads than StatefulSets can come later.

use std::fmt;

use flower_api::{
    ids::{ClusterId, GroupId, MemberId},
    report::ConfigVersion,
};

use super::{
    observed::{AppView, AuthView, NoLeader, Observed, RaftView},
    validate::ValidatedCluster,
};
use crate::{conditions::Reason, names::Ordinal};

pub mod bootstrap;
pub mod membership;
pub mod rollout;
pub mod scale;
pub mod volumes;

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

/// One step. All but the identity's saving, learners, the deployment and the mark are
/// disruptive; there is never more than one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing to do.
    None,
    /// Mint a cluster id and save it with the first member, before the one bootstrap.
    SaveIdentity {
        /// Member of ordinal 0.
        first: MemberId,
    },
    /// The status was lost: take the cluster id from the volumes.
    Adopt {
        /// Found on a volume.
        cluster: ClusterId,
    },
    /// Make the saved first member.
    Bootstrap {
        /// Saved cluster id.
        cluster: ClusterId,
        /// Saved first member.
        member: MemberId,
    },
    /// Add a member that does not vote yet.
    AddLearner {
        /// Its pod.
        ordinal: Ordinal,
        /// Its id.
        member: MemberId,
    },
    /// Make a learner a voter.
    Promote {
        /// Its pod.
        ordinal: Ordinal,
        /// Its id.
        member: MemberId,
    },
    /// Hand leadership on.
    Transfer {
        /// Pod of the next leader.
        ordinal: Ordinal,
        /// Its id.
        member: MemberId,
        /// Why the leader is to change.
        why: &'static str,
    },
    /// Take a member out of the configuration.
    Remove {
        /// Pod at its address.
        ordinal: Ordinal,
        /// Its id.
        member: MemberId,
        /// Why.
        why: &'static str,
    },
    /// Store the mark that the group has reached its size.
    MarkFormed,
    /// Deploy the bundle of the ConfigMap.
    Deploy {
        /// Its hash.
        hash: String,
    },
    /// Delete a volume claim; its data is of no use to the group.
    DeleteClaim {
        /// Its ordinal.
        ordinal: Ordinal,
        /// Precondition.
        uid: String,
        /// Why.
        why: &'static str,
    },
    /// Delete or evict a pod, which its StatefulSet makes again.
    RestartPod {
        /// Its ordinal.
        ordinal: Ordinal,
        /// Precondition.
        uid: String,
        /// Ask the disruption budget first.
        evict: bool,
        /// Why.
        why: &'static str,
    },
}

impl Step {
    /// A word for metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::SaveIdentity { .. } => "save-identity",
            Self::Adopt { .. } => "adopt",
            Self::Bootstrap { .. } => "bootstrap",
            Self::AddLearner { .. } => "add-learner",
            Self::Promote { .. } => "promote",
            Self::Transfer { .. } => "transfer",
            Self::Remove { .. } => "remove",
            Self::MarkFormed => "mark-formed",
            Self::Deploy { .. } => "deploy",
            Self::DeleteClaim { .. } => "delete-claim",
            Self::RestartPod { .. } => "restart-pod",
        }
    }
    /// All words of `name`, for metrics that start at 0.
    pub const NAMES: [&'static str; 11] = [
        "save-identity",
        "adopt",
        "bootstrap",
        "add-learner",
        "promote",
        "transfer",
        "remove",
        "mark-formed",
        "deploy",
        "delete-claim",
        "restart-pod",
    ];
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("nothing to do"),
            Self::SaveIdentity { first } => {
                write!(f, "save a new cluster id with first member {first}")
            }
            Self::Adopt { cluster } => write!(f, "adopt cluster {cluster} from the volumes"),
            Self::Bootstrap { cluster, member } => {
                write!(f, "bootstrap cluster {cluster} from member {member}")
            }
            Self::AddLearner { ordinal, member } => {
                write!(f, "add member {member} (pod {ordinal}) as a learner")
            }
            Self::Promote { ordinal, member } => {
                write!(f, "make member {member} (pod {ordinal}) a voter")
            }
            Self::Transfer {
                ordinal,
                member,
                why,
            } => {
                write!(
                    f,
                    "hand leadership to member {member} (pod {ordinal}): {why}"
                )
            }
            Self::Remove {
                ordinal,
                member,
                why,
            } => {
                write!(f, "remove member {member} (pod {ordinal}): {why}")
            }
            Self::MarkFormed => f.write_str("mark the group as formed"),
            Self::Deploy { hash } => write!(f, "deploy bundle {}", hash.get(..12).unwrap_or(hash)),
            Self::DeleteClaim { ordinal, why, .. } => {
                write!(f, "delete the volume claim of pod {ordinal}: {why}")
            }
            Self::RestartPod { ordinal, why, .. } => write!(f, "restart pod {ordinal}: {why}"),
        }
    }
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
        !matches!(
            self.reason,
            Reason::ForeignObject | Reason::Paused | Reason::AuthSecretInvalid
        )
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
    if let Some(hold) = standstill(facts) {
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
fn standstill(facts: Facts<'_>) -> Option<Hold> {
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
        AuthView::Missing if facts.cluster.generate_auth => Verdict::Wait(Hold::new(
            Reason::AuthSecretMissing,
            format!("the Secret {secret} is being generated"),
        )),
        AuthView::Missing => Verdict::Block(Hold::new(
            Reason::AuthSecretMissing,
            format!(
                "the Secret {secret} named in spec.auth.secretName does not exist: create it with the keys client, admin and peer, each one token a line"
            ),
        )),
        AuthView::Invalid(key) => Verdict::Block(Hold::new(
            Reason::AuthSecretInvalid,
            format!(
                "the Secret {secret} has no token in its key '{key}': give it the keys client, admin and peer, each one token a line"
            ),
        )),
    }
}

fn deploy(facts: Facts<'_>, view: &RaftView) -> Verdict {
    match &facts.observed.app {
        AppView::Bundle {
            hash,
            refused: None,
        } if view.formed && view.deployment.as_ref() != Some(hash) => {
            Verdict::Do(Step::Deploy { hash: hash.clone() })
        }
        _ => Verdict::Pass,
    }
}
