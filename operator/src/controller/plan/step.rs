//! The steps that a plan can hold, and how they are told to people and metrics. Types only.

use std::fmt;

use flower_api::ids::{ClusterId, MemberId};

use crate::names::Ordinal;

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
    /// The group was recovered from one survivor: save that, with the claims of the volumes
    /// that this gave up.
    SaveRecovery {
        /// How many recoveries there were.
        number: u32,
        /// uids.
        claims: Vec<String>,
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
            Self::SaveRecovery { .. } => "save-recovery",
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
    pub const NAMES: [&'static str; 12] = [
        "save-identity",
        "adopt",
        "save-recovery",
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
            Self::SaveRecovery { number, claims } => write!(
                f,
                "note recovery {number} of the group, and that {} volumes are given up",
                claims.len()
            ),
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
