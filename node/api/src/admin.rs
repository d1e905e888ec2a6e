//! The admin API: what the operator and the CLI ask of a node, and how it is fenced.
//! Only types and the trait; `transport` carries the calls out over what the operator, the
//! node's commands and the simulation send with.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{
    ids::{ClusterId, GroupId, MemberId, Revision},
    manifest::Manifest,
    report::{BuildInfo, ConfigVersion, FailedBuildInfo, Identity, Report},
    wire::Problem,
};

/// Paths of the admin API under port 7702. `GET` for identity and report, `POST` otherwise.
pub mod path {
    /// Who the node is.
    pub const IDENTITY: &str = "/v1/admin/identity";
    /// Everything it knows.
    pub const REPORT: &str = "/v1/admin/report";
    /// Makes the first member of a group.
    pub const BOOTSTRAP: &str = "/v1/admin/bootstrap";
    /// Adds a learner without waiting for it.
    pub const ADD_LEARNER: &str = "/v1/admin/add-learner";
    /// Makes a caught-up learner a voter.
    pub const PROMOTE: &str = "/v1/admin/promote";
    /// Removes a member.
    pub const REMOVE: &str = "/v1/admin/remove";
    /// Hands leadership to another voter.
    pub const TRANSFER: &str = "/v1/admin/transfer";
    /// Makes a bundle the active application.
    pub const DEPLOY: &str = "/v1/admin/deploy";
    /// The state as lines; `cells` and `read` in the query.
    pub const EXPORT: &str = "/v1/admin/export";
    /// Where a cell's value comes from.
    pub const EXPLAIN_CELL: &str = "/v1/admin/explain/cell";
    /// What a query costs.
    pub const EXPLAIN_QUERY: &str = "/v1/admin/explain/query";
    /// A step of an import.
    pub const IMPORT: &str = "/v1/admin/import";
    /// What is deployed, as this node has applied it; `null` while nothing is.
    pub const DEPLOYMENT: &str = "/v1/admin/deployment";
    /// Makes the state durable now.
    pub const CHECKPOINT: &str = "/v1/admin/checkpoint";
    /// Stores the replicated mark that the group has reached its size.
    pub const FORMED: &str = "/v1/admin/formed";
    /// What a recovery of a lost quorum on this node would keep and lose.
    pub const RECOVERY: &str = "/v1/admin/recovery";
    /// Makes this node's data the whole group.
    pub const RECOVER: &str = "/v1/admin/recover";
    /// preStop: hand over leadership, turn unready, say when it is safe to stop.
    pub const PREPARE_STOP: &str = "/v1/admin/prepare-stop";
}

/// What a mutating call was planned against. The node refuses a stale one: this fences an
/// operator that has lost its Lease, and a cluster API restored from an older copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fence {
    /// The configuration that the caller saw; absent for calls that do not depend on it
    /// (bootstrap, deploy).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<ConfigVersion>,
    /// uid of the FlowerCluster; empty for a person's call by the CLI.
    #[serde(default)]
    pub uid: String,
    /// Generation of the FlowerCluster.
    #[serde(default)]
    pub generation: i64,
    /// Takes the group over from a FlowerCluster with another uid: one that was deleted and
    /// applied again while the volumes stayed. Without it another uid is `stale-spec`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopt: bool,
}

/// Makes the first member. Refused where any identity exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bootstrap {
    /// What it was planned against.
    pub fence: Fence,
    /// The new cluster's identity, saved by the caller beforehand.
    pub cluster: ClusterId,
    /// Group.
    pub group: GroupId,
    /// The member that is addressed: another one refuses.
    pub member: MemberId,
    /// The member's own peer address, `host:port`.
    pub address: String,
    /// Size the group must reach before it accepts mutations; 1 accepts at once.
    pub size: u32,
}

/// Adds a learner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddLearner {
    /// What it was planned against.
    pub fence: Fence,
    /// The new member.
    pub member: MemberId,
    /// Its peer address, `host:port`.
    pub address: String,
}

/// Promote, remove or transfer to: a call about one member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OfMember {
    /// What it was planned against.
    pub fence: Fence,
    /// The member.
    pub member: MemberId,
}

/// Makes a bundle active.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Deploy {
    /// What it was planned against.
    pub fence: Fence,
    /// One ES module.
    pub source: String,
    /// The ConfigMap (`namespace/name`) that owns the application; while one does, a
    /// deployment by a person is refused with this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
}

/// A deployment was made, or was active already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Deployed {
    /// SHA-256 of the bundle, hex.
    pub hash: String,
    /// False when this bundle was active already.
    pub changed: bool,
    /// What changed in the manifest, for people.
    pub changes: Vec<String>,
}

/// The active deployment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ActiveDeployment {
    /// SHA-256 of the bundle, hex.
    pub hash: String,
    /// Revision that activated it.
    pub revision: Revision,
    /// The ConfigMap that owns the application, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
    /// What it declares.
    pub manifest: Manifest,
    /// Another one that is being built, to become active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<BuildInfo>,
    /// The last one whose build failed, until another one is deployed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_build: Option<FailedBuildInfo>,
}

/// Makes a survivor's data the whole group, because its quorum is lost for good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Recover {
    /// The survivor that is addressed: another member refuses.
    pub member: MemberId,
    /// The last entry of its log: whatever others acknowledged behind it is given up. Another
    /// number than the log's is refused.
    pub accept_loss_after: u64,
}

/// What a recovery on a node would keep and lose.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Survey {
    /// The node.
    pub identity: Identity,
    /// The last entry of its log, all of which would be kept; absent for an empty log.
    pub last_log: Option<ConfigVersion>,
    /// The last entry that it knows to be committed. What lies between is kept, although the
    /// clients may have been told that it failed.
    pub committed: u64,
    /// Its revision.
    pub revision: Revision,
    /// The other members of the configuration that it knows.
    pub others: Vec<SurveyedMember>,
    /// Why a recovery is refused now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// Another member, as the node that would be recovered sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SurveyedMember {
    /// The member.
    pub member: MemberId,
    /// Its peer address.
    pub address: String,
    /// Whether it votes.
    pub voter: bool,
    /// It answers, under this very id.
    pub answers: bool,
    /// The last entry of its log, when it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_log: Option<ConfigVersion>,
    /// Why it does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// The call was carried out; the configuration afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Done {
    /// Configuration after the call.
    pub configuration: Option<ConfigVersion>,
}

/// Codes of refusals, in `Problem::code`.
pub mod code {
    /// The fence's configuration is not the current one.
    pub const STALE_CONFIGURATION: &str = "stale-configuration";
    /// The group has seen a higher generation, or another FlowerCluster owns it.
    pub const STALE_SPEC: &str = "stale-spec";
    /// This node does not lead; `detail` names who does.
    pub const NOT_LEADER: &str = "not-leader";
    /// The step would be unsafe now.
    pub const UNSAFE: &str = "unsafe";
    /// An identity exists where none may.
    pub const ALREADY_INITIALIZED: &str = "already-initialized";
    /// The call is for another member than this one.
    pub const WRONG_MEMBER: &str = "wrong-member";
    /// The learner has not caught up.
    pub const NOT_CAUGHT_UP: &str = "not-caught-up";
    /// The bundle was refused.
    pub const BAD_BUNDLE: &str = "bad-bundle";
    /// The database has rows or receipts where an import needs none.
    pub const NOT_EMPTY: &str = "not-empty";
    /// The lines are not of an export, or do not fit its application.
    pub const BAD_EXPORT: &str = "bad-export";
    /// The step is not the next one.
    pub const IMPORT_POSITION: &str = "import-position";
    /// The deployment is accepted and is being built; deploy the same again to wait for it.
    pub const BUILDING: &str = "building";
    /// The application is owned by a ConfigMap.
    pub const APP_MANAGED: &str = "app-managed";
}

/// Why an admin call failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AdminError {
    /// No answer: refused, timed out, cut. Says nothing of what the node did.
    #[error("{endpoint} does not answer: {why}")]
    Unreachable {
        /// Whom we asked.
        endpoint: String,
        /// The cause.
        why: String,
    },
    /// The node refused.
    #[error("refused: {0}")]
    Refused(Box<Problem>),
    /// The answer is not of this API.
    #[error("{endpoint} answered something that is no answer of the admin API: {why}")]
    Garbled {
        /// Whom we asked.
        endpoint: String,
        /// What is wrong with it.
        why: String,
    },
}

impl AdminError {
    /// The refusal's code, if it is one.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused(problem) => Some(&problem.code),
            _ => None,
        }
    }
}

/// Where a node's admin API is: base URL such as `http://db-g0-0.db-g0-peers.ns.svc:7702`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint(pub String);

/// The admin API of nodes. Mutating calls are fenced; each has a time limit of its own.
#[async_trait]
pub trait AdminApi: Send + Sync {
    /// Who the node is.
    async fn identity(&self, at: &Endpoint) -> Result<Identity, AdminError>;
    /// Everything the node knows.
    async fn report(&self, at: &Endpoint) -> Result<Report, AdminError>;
    /// Makes the first member of a group.
    async fn bootstrap(&self, at: &Endpoint, call: &Bootstrap) -> Result<Done, AdminError>;
    /// Adds a learner; returns when the configuration is committed, not when it caught up.
    async fn add_learner(&self, at: &Endpoint, call: &AddLearner) -> Result<Done, AdminError>;
    /// Makes a caught-up learner a voter.
    async fn promote(&self, at: &Endpoint, call: &OfMember) -> Result<Done, AdminError>;
    /// Removes a member, voter or learner.
    async fn remove(&self, at: &Endpoint, call: &OfMember) -> Result<Done, AdminError>;
    /// Hands leadership to `call.member`.
    async fn transfer(&self, at: &Endpoint, call: &OfMember) -> Result<Done, AdminError>;
    /// Marks the group as having reached its size.
    async fn formed(&self, at: &Endpoint, fence: &Fence) -> Result<Done, AdminError>;
    /// Makes a bundle active.
    async fn deploy(&self, at: &Endpoint, call: &Deploy) -> Result<Deployed, AdminError>;
}
