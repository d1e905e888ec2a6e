//! What one pass saw, as data: an unreachable node is a value here, never an error. Types and
//! pure readings of them; the reading of the world is in `observe`.

use std::collections::{BTreeMap, BTreeSet};

use flower_api::{
    ids::{ClusterId, GroupId, MemberId},
    report::{Configuration, FollowerLag, Lifecycle, Report, Role},
};
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{PersistentVolumeClaim, Pod},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
    jiff::Timestamp,
};

use serde_json::Value;

use super::build::{CONTAINER, Kind};
use crate::{
    crd::FlowerClusterStatus,
    labels,
    names::{ClusterName, Ordinal},
};

/// Entries behind the leader at which a member still counts as caught up: a busy follower is
/// always a little behind. The node itself checks exactly before it promotes.
pub const CAUGHT_UP_ENTRIES: u64 = 1_024;
/// Milliseconds without an answer after which the leader's word counts a member as away.
pub const CONTACT_MS: u64 = 3_000;

/// Everything that one pass saw.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// The group's StatefulSet.
    pub statefulset: Option<StatefulSet>,
    /// Objects of our names that belong to somebody else.
    pub foreign: Vec<String>,
    /// Pods by ordinal.
    pub pods: BTreeMap<Ordinal, PodView>,
    /// Volume claims by ordinal.
    pub claims: BTreeMap<Ordinal, ClaimView>,
    /// What nodes said, by ordinal of their pods.
    pub nodes: BTreeMap<Ordinal, NodeView>,
    /// The Secret with the tokens.
    pub auth: AuthView,
    /// The application's bundle.
    pub app: AppView,
    /// Its source, when it is there.
    pub bundle: Option<String>,
    /// The StatefulSet and all other objects of our names, as they stand.
    pub live: BTreeMap<(Kind, String), Value>,
    /// The PodMonitor's CRD exists.
    pub pod_monitors: bool,
    /// Status as it was read, `default` when there is none.
    pub status: FlowerClusterStatus,
}

/// A pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodView {
    /// uid.
    pub uid: String,
    /// Address, once it has one.
    pub ip: Option<String>,
    /// Its container has run at some time.
    pub started: bool,
    /// Its container runs now.
    pub running: bool,
    /// Ready, by the kubelet's probes.
    pub ready: bool,
    /// On its way out.
    pub terminating: bool,
    /// Why its container waits, such as ImagePullBackOff.
    pub waiting: Option<String>,
    /// Template that it was made from.
    pub template_hash: Option<String>,
    /// `kubectl rollout restart` that it was made after.
    pub restarted_at: Option<String>,
    /// Role label.
    pub role: Option<String>,
}

/// A volume claim.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClaimView {
    /// uid.
    pub uid: String,
    /// Bound to a volume.
    pub bound: bool,
    /// On its way out.
    pub terminating: bool,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// Owners.
    pub owners: Vec<OwnerReference>,
}

/// A node, as far as it can be known.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeView {
    /// What it said.
    Reported(Box<Report>),
    /// It did not answer.
    Unreachable {
        /// Why.
        why: String,
    },
}

/// The Secret with the tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AuthView {
    /// It does not exist.
    #[default]
    Missing,
    /// A key is missing or empty.
    Invalid(String),
    /// It has all keys; the tokens of administrators, newest first.
    Present(Vec<String>),
}

/// The application's bundle.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AppView {
    /// The spec names none.
    #[default]
    Unmanaged,
    /// The ConfigMap or its key is not there, or the bundle cannot be used.
    Unusable {
        /// Reason of the condition.
        reason: crate::conditions::Reason,
        /// For people.
        message: String,
    },
    /// It is there.
    Bundle {
        /// SHA-256, hex.
        hash: String,
        /// The group refused this very bundle a while ago, and why.
        refused: Option<String>,
    },
}

impl PodView {
    /// From the API's object.
    pub fn of(pod: &Pod) -> Self {
        let status = pod.status.as_ref();
        let container = status
            .and_then(|status| status.container_statuses.as_ref())
            .and_then(|all| all.iter().find(|one| one.name == CONTAINER));
        let state = container.and_then(|one| one.state.as_ref());
        let annotation = |key: &str| pod.metadata.annotations.as_ref()?.get(key).cloned();
        Self {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            ip: status
                .and_then(|status| status.pod_ip.clone())
                .filter(|ip| !ip.is_empty()),
            started: container.is_some_and(|one| {
                one.restart_count > 0
                    || one
                        .state
                        .as_ref()
                        .is_some_and(|s| s.running.is_some() || s.terminated.is_some())
            }),
            running: state.is_some_and(|state| state.running.is_some()),
            ready: container.is_some_and(|one| one.ready),
            terminating: pod.metadata.deletion_timestamp.is_some(),
            waiting: state
                .and_then(|state| state.waiting.as_ref())
                .and_then(|waiting| waiting.reason.clone()),
            template_hash: annotation(labels::TEMPLATE_HASH),
            restarted_at: annotation(labels::RESTARTED_AT),
            role: pod
                .metadata
                .labels
                .as_ref()
                .and_then(|all| all.get(labels::ROLE).cloned()),
        }
    }
}

impl ClaimView {
    /// From the API's object.
    pub fn of(claim: &PersistentVolumeClaim) -> Self {
        Self {
            uid: claim.metadata.uid.clone().unwrap_or_default(),
            bound: claim
                .status
                .as_ref()
                .and_then(|status| status.phase.as_deref())
                == Some("Bound"),
            terminating: claim.metadata.deletion_timestamp.is_some(),
            created: claim
                .metadata
                .creation_timestamp
                .as_ref()
                .map(|time| time.0),
            owners: claim.metadata.owner_references.clone().unwrap_or_default(),
        }
    }
}

impl Observed {
    /// The report of the node with this ordinal, when it answered.
    pub fn report(&self, ordinal: Ordinal) -> Option<&Report> {
        match self.nodes.get(&ordinal) {
            Some(NodeView::Reported(report)) => Some(report),
            _ => None,
        }
    }
    /// All reports.
    pub fn reports(&self) -> impl Iterator<Item = (Ordinal, &Report)> {
        self.nodes.iter().filter_map(|(ordinal, node)| match node {
            NodeView::Reported(report) => Some((*ordinal, report.as_ref())),
            NodeView::Unreachable { .. } => None,
        })
    }
    /// The member that a node is now; `None` when it did not say.
    pub fn member(&self, ordinal: Ordinal) -> Option<MemberId> {
        self.report(ordinal)?.identity.member
    }
    /// Cluster ids found on volumes.
    pub fn clusters_on_volumes(&self) -> BTreeSet<&ClusterId> {
        self.reports()
            .filter_map(|(_, report)| report.identity.cluster.as_ref())
            .collect()
    }
    /// Replicas of the StatefulSet as it stands.
    pub fn statefulset_replicas(&self) -> Option<u32> {
        let spec = self.statefulset.as_ref()?.spec.as_ref()?;
        u32::try_from(spec.replicas.unwrap_or(1)).ok()
    }
    /// `kubectl rollout restart`'s mark on the live template.
    pub fn restarted_at(&self) -> Option<&str> {
        self.statefulset
            .as_ref()?
            .spec
            .as_ref()?
            .template
            .metadata
            .as_ref()?
            .annotations
            .as_ref()?
            .get(labels::RESTARTED_AT)
            .map(String::as_str)
    }
}

/// The group as its one leader tells it.
#[derive(Debug, Clone, PartialEq)]
pub struct RaftView {
    /// The leader.
    pub leader: MemberId,
    /// Its pod.
    pub leader_ordinal: Ordinal,
    /// Its term.
    pub term: u64,
    /// The configuration.
    pub configuration: Configuration,
    /// Ordinal of each member, from its address.
    pub ordinals: BTreeMap<MemberId, Ordinal>,
    /// Other members, as the leader knows them.
    pub followers: BTreeMap<MemberId, FollowerLag>,
    /// Members that are in touch with this leader in this term.
    pub alive: BTreeSet<MemberId>,
    /// Last entry known to be committed.
    pub committed: u64,
    /// Last entry purged from the leader's log: with none, a newcomer needs no image.
    pub purged: u64,
    /// The group has reached its size once.
    pub formed: bool,
    /// Hash of the active application.
    pub deployment: Option<String>,
}

/// Why there is no `RaftView`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoLeader {
    /// Nobody claims to lead with a quorum behind it.
    None,
    /// Two claim it in one term.
    Two {
        /// The pods' ordinals.
        ordinals: Vec<Ordinal>,
        /// The term.
        term: u64,
    },
}

impl RaftView {
    /// Finds the leader at the highest term that has a quorum's lease. A node of another
    /// cluster than the one in the status is not heard.
    ///
    /// # Errors
    /// When there is none, or two in one term.
    pub fn of(name: &ClusterName, group: GroupId, observed: &Observed) -> Result<Self, NoLeader> {
        let ours = observed.status.cluster_id.as_ref();
        let mut leaders: Vec<(Ordinal, &Report)> = observed
            .reports()
            .filter(|(_, report)| {
                (ours.is_none() || report.identity.cluster.as_ref() == ours)
                    && report.role == Role::Leader
                    && report.quorum_lease
                    && report.identity.member.is_some()
                    && report.configuration.is_some()
            })
            .collect();
        leaders.sort_by_key(|(_, report)| report.term);
        let Some((leader_ordinal, report)) = leaders.last().copied() else {
            return Err(NoLeader::None);
        };
        let same_term: Vec<Ordinal> = leaders
            .iter()
            .filter(|(_, other)| other.term == report.term)
            .map(|(ordinal, _)| *ordinal)
            .collect();
        if same_term.len() > 1 {
            return Err(NoLeader::Two {
                ordinals: same_term,
                term: report.term,
            });
        }
        let (Some(leader), Some(configuration)) =
            (report.identity.member, report.configuration.clone())
        else {
            return Err(NoLeader::None);
        };
        let ordinals = configuration
            .members
            .iter()
            .filter_map(|(id, address)| Some((*id, name.ordinal_of_address(group, address)?)))
            .collect();
        let followers: BTreeMap<_, _> = report
            .followers
            .iter()
            .map(|one| (one.member, one.clone()))
            .collect();
        let alive = alive(leader, report.term, &followers, observed);
        Ok(Self {
            leader,
            leader_ordinal,
            term: report.term,
            configuration,
            ordinals,
            followers,
            alive,
            committed: report.positions.committed,
            purged: report.positions.purged,
            formed: report.formed,
            deployment: report.deployment.as_ref().map(|one| one.hash.clone()),
        })
    }

    /// Ids of voters. During a joint change, of both sets.
    pub fn voters(&self) -> BTreeSet<MemberId> {
        self.configuration
            .voters
            .iter()
            .flatten()
            .copied()
            .collect()
    }
    /// Members that do not vote.
    pub fn learners(&self) -> BTreeSet<MemberId> {
        let voters = self.voters();
        self.configuration
            .members
            .keys()
            .copied()
            .filter(|id| !voters.contains(id))
            .collect()
    }
    /// The member of the configuration at this ordinal. While a lost member is being
    /// replaced there can be two with one address; `prefer` is named first then.
    pub fn member_at(&self, ordinal: Ordinal, prefer: Option<MemberId>) -> Option<MemberId> {
        if let Some(id) = prefer
            && self.ordinals.get(&id) == Some(&ordinal)
        {
            return Some(id);
        }
        self.ordinals
            .iter()
            .find(|(_, at)| **at == ordinal)
            .map(|(id, _)| *id)
    }
    /// In touch with the leader and holding about everything that is committed.
    pub fn caught_up(&self, id: MemberId) -> bool {
        if id == self.leader {
            return true;
        }
        self.alive.contains(&id)
            && self.followers.get(&id).is_some_and(|lag| {
                lag.image.is_none()
                    && lag.matched.is_some_and(|matched| {
                        matched.saturating_add(CAUGHT_UP_ENTRIES) >= self.committed
                    })
            })
    }
    /// Entries that a member is behind; the largest number when nothing is known.
    pub fn lag(&self, id: MemberId) -> u64 {
        if id == self.leader {
            return 0;
        }
        self.followers
            .get(&id)
            .filter(|lag| lag.matched.is_some())
            .map_or(u64::MAX, |lag| lag.lag_entries)
    }
    /// Whether, with `without` gone from the voters, those left that are caught up are a
    /// majority of those left.
    pub fn carries_without(&self, without: MemberId) -> bool {
        let left: Vec<MemberId> = self
            .voters()
            .into_iter()
            .filter(|id| *id != without)
            .collect();
        let good = left.iter().filter(|id| self.caught_up(**id)).count();
        !left.is_empty() && good > left.len() / 2
    }
    /// Whether a majority of the voters is caught up.
    pub fn quorum(&self) -> bool {
        let voters = self.voters();
        voters.iter().filter(|id| self.caught_up(**id)).count() > voters.len() / 2
    }
    /// Whether the quorum of the present voters holds while `paused` is away.
    pub fn quorum_while_away(&self, paused: MemberId) -> bool {
        let voters = self.voters();
        let good = voters
            .iter()
            .filter(|id| **id != paused && self.caught_up(**id))
            .count();
        good > voters.len() / 2
    }
}

/// Members that follow this leader: by its own word, or by theirs.
fn alive(
    leader: MemberId,
    term: u64,
    followers: &BTreeMap<MemberId, FollowerLag>,
    observed: &Observed,
) -> BTreeSet<MemberId> {
    let by_contact = followers
        .values()
        .filter(|lag| lag.contact_ms.is_some_and(|ms| ms <= CONTACT_MS))
        .map(|lag| lag.member);
    let by_report = observed.reports().filter_map(|(_, report)| {
        let follows = report.leader == Some(leader) && report.term == term;
        let whole = report.identity.lifecycle != Lifecycle::Broken;
        report.identity.member.filter(|_| follows && whole)
    });
    by_contact.chain(by_report).chain([leader]).collect()
}
