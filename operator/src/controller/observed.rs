//! What one pass saw, as data: an unreachable node is a value here, never an error. Types and
//! pure readings of them; the reading of the world is in `observe`.

use std::collections::{BTreeMap, BTreeSet};

use flower_api::{
    ids::{ClusterId, GroupId, MemberId},
    report::Report,
};
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{ContainerStatus, PersistentVolumeClaim, Pod},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
    jiff::Timestamp,
};
use serde_json::Value;

use super::build::{CONTAINER, Kind};
use crate::{
    crd::{FlowerClusterStatus, status::GroupStatus},
    labels,
    names::Ordinal,
};

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
    /// The volume that it is bound to.
    pub volume: Option<String>,
    /// Its volume can be used on one node only, and no such node exists any more: the node's
    /// name. A node that is only away is no reason for this.
    pub gone_with: Option<String>,
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
#[derive(Clone, Default, PartialEq, Eq)]
pub enum AuthView {
    /// It does not exist.
    #[default]
    Missing,
    /// A key is missing or empty.
    Invalid(String),
    /// It has all keys; the tokens of administrators, newest first.
    Present(Vec<String>),
}

/// How many tokens there are; never what they are.
impl std::fmt::Debug for AuthView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing => f.write_str("Missing"),
            Self::Invalid(why) => f.debug_tuple("Invalid").field(why).finish(),
            Self::Present(tokens) => write!(f, "Present({} tokens)", tokens.len()),
        }
    }
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
            waiting: waiting(pod, container),
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

/// Why a pod does not run: what the kubelet says of its container, with how the last one ended,
/// or what the scheduler says of the pod.
fn waiting(pod: &Pod, container: Option<&ContainerStatus>) -> Option<String> {
    let said = |reason: Option<&String>, message: Option<&String>| {
        let reason = reason.filter(|text| !text.is_empty())?;
        let message: String = message.map_or(String::new(), |text| {
            format!(": {}", text.chars().take(300).collect::<String>())
        });
        Some(format!("{reason}{message}"))
    };
    let state = container.and_then(|one| one.state.as_ref());
    if let Some(waits) = state.and_then(|state| state.waiting.as_ref()) {
        let why = said(waits.reason.as_ref(), waits.message.as_ref())?;
        let last = container.and_then(|one| one.last_state.as_ref()?.terminated.as_ref());
        return Some(match last {
            Some(last) => format!("{why} (it ended with exit code {})", last.exit_code),
            None => why,
        });
    }
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let scheduled = conditions.iter().find(|one| one.type_ == "PodScheduled")?;
    if scheduled.status == "True" {
        return None;
    }
    said(scheduled.reason.as_ref(), scheduled.message.as_ref())
}

impl ClaimView {
    /// From the API's object.
    pub fn of(claim: &PersistentVolumeClaim) -> Self {
        Self {
            uid: claim.metadata.uid.clone().unwrap_or_default(),
            volume: claim
                .status
                .as_ref()
                .filter(|status| status.phase.as_deref() == Some("Bound"))
                .and(claim.spec.as_ref())
                .and_then(|spec| spec.volume_name.clone()),
            gone_with: None,
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
    /// What the status says of a group.
    pub fn group(&self, group: GroupId) -> Option<&GroupStatus> {
        self.status.group(group)
    }
    /// How often a group has been recovered, as far as the status knows.
    pub fn recoveries(&self, group: GroupId) -> u32 {
        let known = self.group(group).map_or(0, |one| one.recoveries);
        u32::try_from(known).unwrap_or(0)
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
