//! What a node says of itself: identity, role, positions, footprint. The same report serves
//! the admin API, the metrics, the operator and the benchmarks.
//! A value that cannot be known on this host is absent, never 0.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{ClusterId, GroupId, MemberId, Revision};

/// Life cycle of a data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lifecycle {
    /// A member id, but no cluster yet.
    Uninitialized,
    /// Addressed by a leader for the first time; catching up, not in a committed configuration as far as it knows.
    Joining,
    /// In the configuration that it knows, as voter or learner.
    Member,
    /// Removed from the configuration; it will never vote again.
    Removed,
    /// The data cannot be read; it takes no part.
    Broken,
}

/// Who this node is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// The cluster on the volume; absent while uninitialized.
    pub cluster: Option<ClusterId>,
    /// Group of the cluster.
    pub group: GroupId,
    /// The data directory's life. Absent only when the directory is unreadable.
    pub member: Option<MemberId>,
    /// Life cycle of the directory.
    pub lifecycle: Lifecycle,
    /// Why the directory is `broken`, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
    /// Version of the program.
    pub version: String,
    /// The name the node was started under (the pod's name in Kubernetes).
    pub name: String,
}

/// Role in the Raft group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Leads the group.
    Leader,
    /// A voter that follows.
    Follower,
    /// Asks for votes.
    Candidate,
    /// Receives the log, does not vote.
    Learner,
    /// Takes no part.
    None,
}

/// The log position at which a configuration was written; what admin calls are fenced by.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "camelCase")]
pub struct ConfigVersion {
    /// Term of the entry.
    pub term: u64,
    /// Index of the entry.
    pub index: u64,
}

/// The group's configuration as this node knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Configuration {
    /// Where it was written.
    pub version: ConfigVersion,
    /// Whether this node knows it to be committed.
    pub committed: bool,
    /// Voter sets: one, or two while a joint change is under way.
    pub voters: Vec<Vec<MemberId>>,
    /// Address (`host:port` of the peer port) of every member, learners included.
    pub members: BTreeMap<MemberId, String>,
}

impl Configuration {
    /// Whether a joint change is under way.
    pub fn is_joint(&self) -> bool {
        self.voters.len() > 1
    }
    /// Whether `id` votes in any of the sets.
    pub fn is_voter(&self, id: MemberId) -> bool {
        self.voters.iter().any(|set| set.contains(&id))
    }
}

/// Positions in the log (indexes) and the partition's revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Positions {
    /// Last entry in the log.
    pub last_log: u64,
    /// Last entry known to be committed.
    pub committed: u64,
    /// Last entry applied.
    pub applied: u64,
    /// Applied position of the last durable checkpoint.
    pub checkpoint: u64,
    /// Last entry purged from the log.
    pub purged: u64,
    /// Last applied revision.
    pub revision: Revision,
}

/// What the leader knows of one other member.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FollowerLag {
    /// The member.
    pub member: MemberId,
    /// Last entry known to be in its log; absent when it never answered.
    pub matched: Option<u64>,
    /// Entries behind the leader's last.
    pub lag_entries: u64,
    /// Milliseconds since it last answered; absent when it never did.
    pub contact_ms: Option<u64>,
    /// An image on its way to this member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageProgress>,
}

/// An image (streamed snapshot) on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageProgress {
    /// Bytes sent so far.
    pub sent_bytes: u64,
    /// Estimate of all bytes.
    pub total_bytes: u64,
}

/// Bytes in memory and on disk.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Footprint {
    /// Resident set of the process.
    pub resident_bytes: Option<u64>,
    /// The container's memory limit; absent when there is none.
    pub limit_bytes: Option<u64>,
    /// What the container uses, file cache included.
    pub cgroup_usage_bytes: Option<u64>,
    /// Page cache of `state.redb`.
    pub page_cache_bytes: u64,
    /// Page cache of `raft.redb`.
    pub log_page_cache_bytes: u64,
    /// Parsed values.
    pub value_cache_bytes: u64,
    /// JavaScript heaps of all workers.
    pub javascript_bytes: u64,
    /// Unpurged tail of the log kept in memory.
    pub log_tail_bytes: u64,
    /// Size of `state.redb`.
    pub state_file_bytes: u64,
    /// Keys and values stored in it.
    pub stored_bytes: u64,
    /// Size of `raft.redb`.
    pub log_file_bytes: u64,
    /// Receipts kept.
    pub receipts: u64,
    /// What each part of memory was planned to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<crate::sizing::MemoryPlan>,
}

/// Space of the file system that holds the data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Disk {
    /// Size.
    pub capacity_bytes: u64,
    /// Free for this user.
    pub free_bytes: u64,
    /// Below this, mutations are refused (`storage-full`).
    pub reserve_bytes: u64,
}

/// The application that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentInfo {
    /// SHA-256 of the bundle, hex.
    pub hash: String,
    /// Revision that made it active.
    pub revision: Revision,
    /// Functions that it exports.
    pub functions: Vec<String>,
    /// Another one that is being built, to become active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<BuildInfo>,
    /// The last one whose build failed, until another one is deployed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_build: Option<FailedBuildInfo>,
}

/// A deployment whose indexes and derived values are made over the rows that exist, before it
/// becomes active.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BuildInfo {
    /// SHA-256 of its bundle, hex.
    pub hash: String,
    /// Revision that began it.
    pub since: Revision,
    /// Rows and cells walked.
    pub done: u64,
    /// How many there are to walk, estimated when it began.
    pub total: u64,
}

impl std::fmt::Display for BuildInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hash = self.hash.get(..12).unwrap_or(&self.hash);
        // The estimate may have been too low.
        let total = self.total.max(self.done);
        write!(f, "{hash} is built: {} of {total} rows", self.done)
    }
}

/// A deployment whose build failed; what ran before goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailedBuildInfo {
    /// SHA-256 of its bundle, hex.
    pub hash: String,
    /// Revision at which it failed.
    pub revision: Revision,
    /// Why: which derived value for which key, or which row, and what to do.
    pub why: String,
}

/// The FlowerCluster object that last acted, as the group has stored it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredOwner {
    /// uid of the FlowerCluster object.
    pub uid: String,
    /// Highest generation seen.
    pub generation: i64,
}

/// A recovery of a group that had lost its quorum for good: what one survivor held became the
/// whole group. Members that know another recovery, or none, are of another life of the group.
/// A later recovery is a greater one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Recovery {
    /// How many there were.
    pub number: u32,
    /// The survivor.
    pub by: MemberId,
}

impl Recovery {
    /// Whether it was made after `other`, or after a time without any. Of two that were made
    /// side by side neither is later.
    pub fn is_later(&self, other: Option<Self>) -> bool {
        other.is_none_or(|other| self.number > other.number)
    }
}

impl std::fmt::Display for Recovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "recovery {} from member {}", self.number, self.by)
    }
}

/// A node's report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Who it is.
    pub identity: Identity,
    /// Its role.
    pub role: Role,
    /// Its term.
    pub term: u64,
    /// Whom it takes for the leader.
    pub leader: Option<MemberId>,
    /// For a leader: a quorum has answered it within the election timeout.
    pub quorum_lease: bool,
    /// The configuration that it knows; absent while uninitialized.
    pub configuration: Option<Configuration>,
    /// Positions.
    pub positions: Positions,
    /// For a leader: the other members.
    #[serde(default)]
    pub followers: Vec<FollowerLag>,
    /// The group has once reached its size, so mutations are accepted.
    pub formed: bool,
    /// The last recovery of the group, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
    /// The FlowerCluster object that last acted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<StoredOwner>,
    /// The application that runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<DeploymentInfo>,
    /// The node's own verdict of its readiness.
    pub ready: bool,
    /// Why it is not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_ready: Option<String>,
    /// Images received by this directory in its life.
    pub images_received: u64,
    /// Log entries replayed by the last start.
    pub replayed_entries: u64,
    /// Full repairs of a file by the last start.
    pub full_repairs: u64,
    /// Rolling checksum of the state at `positions.applied`, hex.
    pub state_checksum: String,
    /// Memory and file sizes.
    pub footprint: Footprint,
    /// Free space.
    pub disk: Disk,
}

impl Report {
    /// The report of a node that takes no part and knows nothing but who it is: one whose data
    /// cannot be read.
    pub fn bare(identity: Identity, not_ready: String) -> Self {
        Self {
            identity,
            role: Role::None,
            term: 0,
            leader: None,
            quorum_lease: false,
            configuration: None,
            positions: Positions::default(),
            followers: Vec::new(),
            formed: false,
            recovery: None,
            owner: None,
            deployment: None,
            ready: false,
            not_ready: Some(not_ready),
            images_received: 0,
            replayed_entries: 0,
            full_repairs: 0,
            state_checksum: String::new(),
            footprint: Footprint::default(),
            disk: Disk::default(),
        }
    }
}
