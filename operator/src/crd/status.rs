//! The status of a FlowerCluster. It holds what changes rarely: positions and lag are in the
//! metrics, or every write to the database would wake the operator. Types only.

use flower_api::ids::{ClusterId, GroupId, MemberId};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the operator saw and did.
#[derive(Serialize, Deserialize, Debug, Clone, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FlowerClusterStatus {
    /// Generation that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, Accepted, Available, Progressing, Degraded, QuorumAtRisk, StorageAtRisk,
    /// StaleSpec, AppDeployed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Identity of the database, minted before its one bootstrap and kept on every volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<ClusterId>,
    /// Image that was chosen when the cluster was made, used while the spec names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Pods that exist.
    #[serde(default)]
    pub replicas: i32,
    /// Pods that are ready.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Selector of the pods, for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Number of Raft groups.
    #[serde(default)]
    pub group_count: i32,
    /// Pods that lead, for the list of FlowerClusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaders: Option<String>,
    /// Each Raft group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["group".into()]))]
    pub groups: Vec<GroupStatus>,
    /// The application.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<AppStatus>,
    /// Memory and disk, rounded to 5 % and written at most once a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub footprint: Option<FootprintStatus>,
    /// What the operator does next and why it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanStatus>,
}

impl FlowerClusterStatus {
    /// What it says of a group.
    pub fn group(&self, group: GroupId) -> Option<&GroupStatus> {
        self.groups.iter().find(|one| one.group == group)
    }

    /// … to be changed, begun when it says nothing yet.
    pub fn group_mut(&mut self, group: GroupId) -> &mut GroupStatus {
        let known = self.groups.iter().position(|one| one.group == group);
        let at = known.unwrap_or_else(|| {
            self.groups.push(GroupStatus {
                group,
                ..GroupStatus::default()
            });
            self.groups.len() - 1
        });
        &mut self.groups[at]
    }
}

/// A Raft group.
#[derive(Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupStatus {
    /// Its number.
    #[schemars(with = "i32")]
    pub group: GroupId,
    /// The member that the group was bootstrapped from, saved before the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_member: Option<MemberId>,
    /// The group has been seen with a leader: it must never be bootstrapped again.
    #[serde(default)]
    pub bootstrapped: bool,
    /// The group has reached its size once, so it accepts mutations.
    #[serde(default)]
    pub formed: bool,
    /// How often the group was recovered from one survivor (`flower recover`).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub recoveries: i32,
    /// uids of the volume claims that the last recovery gave up: each is exchanged for an empty one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub given_up_claims: Vec<String>,
    /// Pod that leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// Its term.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>")]
    pub term: Option<u64>,
    /// Voters of the configuration.
    #[serde(default)]
    pub voters: i32,
    /// Pods and members.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<MemberStatus>,
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// State of a member, for people.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, JsonSchema)]
pub enum MemberState {
    /// The pod has not started.
    Pending,
    /// It does not answer the operator.
    Unreachable,
    /// It has no cluster yet.
    Uninitialized,
    /// It is being added.
    Joining,
    /// It is in the configuration.
    Member,
    /// It was removed.
    Removed,
    /// Its data cannot be read.
    Broken,
}

/// A pod and the member that it runs.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberStatus {
    /// The pod.
    pub pod: String,
    /// The life of its data directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<MemberId>,
    /// Leader, Follower, Learner or None.
    pub role: String,
    /// State.
    pub state: MemberState,
    /// Whether it holds about everything that is committed.
    pub caught_up: bool,
    /// Version of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// The application.
#[derive(Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppStatus {
    /// Hash (SHA-256) of the bundle that runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// Hash of the bundle in the ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted_hash: Option<String>,
}

/// Memory and disk of all replicas, rounded to 5 %.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FootprintStatus {
    /// When it was taken.
    pub at: Time,
    /// Resident and stored bytes in a few words.
    pub summary: String,
    /// Resident sets of all replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_bytes: Option<i64>,
    /// Key and value bytes stored by the replica that stores most.
    pub stored_bytes: i64,
    /// Files of all replicas.
    pub file_bytes: i64,
    /// File bytes per stored byte of one replica, in hundredths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_percent_of_stored: Option<i64>,
    /// Resident bytes per stored byte of one replica, in hundredths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_percent_of_stored: Option<i64>,
}

/// What the operator does next.
#[derive(Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanStatus {
    /// The next step; absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Reason to wait; absent when nothing is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<String>,
    /// The step, or why nothing is done, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
