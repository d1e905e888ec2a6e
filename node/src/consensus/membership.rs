//! Changes of the configuration, one member at a time: each is planned by a pure function
//! against the configuration that the caller saw, written as one entry, and confirmed.
//! Adding a learner never waits for it; promoting one asks that it has caught up.

use std::{collections::BTreeSet, time::Duration};

use flower_api::{
    MemberId,
    admin::{AddLearner, Bootstrap, Done, OfMember, code},
    report::ConfigVersion,
    wire::Problem,
};
use flower_store::sabotage::{Break, is_broken};
use openraft::{
    EntryPayload, Precondition, RaftMetrics, ServerState,
    async_runtime::watch::WatchReceiver,
    errors::{ChangeMembershipError, ClientWriteError, InitializeError, RaftError},
};

use super::{
    Consensus,
    plan::{REACHABLE, Seen, Step, plan, stale, unsafe_now},
    report::{configuration, version},
    types::{Peer, Types, raw},
};

/// How long promoting and transferring wait for the member to catch up.
const CATCH_UP_LIMIT: Duration = Duration::from_secs(3);
/// How long a transfer may take until another leader shows.
const TRANSFER_LIMIT: Duration = Duration::from_secs(5);
/// How long writing a configuration may take.
const COMMIT_LIMIT: Duration = Duration::from_secs(8);
/// Looks at the progress while something is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(20);
impl Consensus {
    /// Makes this member the first of a new group. Refused where any identity exists; may be
    /// repeated when it was interrupted.
    ///
    /// # Errors
    /// `already-initialized`, `wrong-member`; or when the identity cannot be written.
    pub async fn bootstrap(&self, call: &Bootstrap) -> Result<Done, Problem> {
        let me = self.me();
        if call.member != me.member || call.group != me.group {
            return Err(Problem::new(
                409,
                code::WRONG_MEMBER,
                "The call is for another member",
                format!(
                    "it is for member {} of group {}; this is member {} of group {}",
                    call.member, call.group, me.member, me.group
                ),
            ));
        }
        let _alone = self.0.changing.lock().await;
        if let Some(cluster) = me.cluster() {
            return Err(initialized(&format!(
                "member {} belongs to cluster {cluster}",
                me.member
            )));
        }
        let peer = Peer {
            address: call.address.clone(),
        };
        let first = std::collections::BTreeMap::from([(me.member.0, peer)]);
        match self.0.raft.initialize(first).await {
            Ok(()) => {}
            // An earlier call was interrupted before the cluster was written.
            Err(RaftError::APIError(InitializeError::NotAllowed(_))) if self.is_alone() => {}
            Err(error) => return Err(initialized(&error.to_string())),
        }
        match me.adopt(&call.cluster, None).await {
            Ok(true) => Ok(self.done()),
            Ok(false) => Err(initialized("another cluster was taken on meanwhile")),
            Err(error) => {
                let why = format!("the cluster's identity cannot be written: {error}");
                Err(internal(self.fail(why).to_string()))
            }
        }
    }

    fn is_alone(&self) -> bool {
        let members = self.metrics().membership_config;
        members.voter_ids().eq([self.me().member.0])
    }

    /// Adds a learner; returns when that is committed, not when the learner has caught up.
    ///
    /// # Errors
    /// `not-leader`, `stale-configuration`, `unsafe`, `no-quorum`.
    pub async fn add_learner(&self, call: &AddLearner) -> Result<Done, Problem> {
        let step = Step::Add(call.member, call.address.clone());
        self.change(call.fence.configuration, step).await
    }

    /// Makes a learner that has caught up a voter.
    ///
    /// # Errors
    /// As [`Consensus::add_learner`], and `not-caught-up`.
    pub async fn promote(&self, call: &OfMember) -> Result<Done, Problem> {
        let metrics = self.leading()?;
        let is_learner = metrics
            .membership_config
            .get_node(&raw(call.member))
            .is_some()
            && !metrics
                .membership_config
                .voter_ids()
                .any(|id| id == raw(call.member));
        if is_learner {
            self.caught_up(call.member).await?;
        }
        self.change(call.fence.configuration, Step::Promote(call.member))
            .await
    }

    /// Removes a member, voter or learner. The leader is never removed: transfer first.
    ///
    /// # Errors
    /// As [`Consensus::add_learner`].
    pub async fn remove(&self, call: &OfMember) -> Result<Done, Problem> {
        self.change(call.fence.configuration, Step::Remove(call.member))
            .await
    }

    /// Hands leadership to a voter that has caught up; returns when it leads.
    ///
    /// # Errors
    /// `not-leader`, `stale-configuration`, `not-caught-up`, `unsafe`.
    pub async fn transfer(&self, call: &OfMember) -> Result<Done, Problem> {
        let _alone = self.0.changing.lock().await;
        let metrics = self.leading()?;
        let current = version(metrics.membership_config.log_id());
        if call
            .fence
            .configuration
            .is_some_and(|fence| fence != current)
            && !is_broken(Break::StaleAdminCall)
        {
            return Err(stale(current, call.fence.configuration));
        }
        if call.member == self.me().member {
            return Ok(self.done());
        }
        if !metrics
            .membership_config
            .voter_ids()
            .any(|id| id == raw(call.member))
        {
            return Err(unsafe_now(format!("member {} is no voter", call.member)));
        }
        self.caught_up(call.member).await?;
        self.hand_to(call.member).await
    }

    /// Hands leadership to the voter that is furthest; for stopping. `None` when this node
    /// does not lead or is the only voter.
    ///
    /// # Errors
    /// `not-caught-up`, `unsafe`: nobody took over.
    pub async fn hand_over(&self) -> Result<Option<MemberId>, Problem> {
        let _alone = self.0.changing.lock().await;
        let Ok(metrics) = self.leading() else {
            return Ok(None);
        };
        let voters: BTreeSet<u64> = metrics.membership_config.voter_ids().collect();
        let mut followers = self.followers(&metrics);
        followers.retain(|f| voters.contains(&f.member.0) && f.contact_ms.is_some());
        let best = followers.iter().max_by_key(|f| {
            let recent = f
                .contact_ms
                .is_some_and(|ms| u128::from(ms) < REACHABLE.as_millis());
            (recent, f.matched)
        });
        let Some(best) = best.map(|f| f.member) else {
            return Ok(None);
        };
        self.caught_up(best).await?;
        self.hand_to(best).await.map(|_| Some(best))
    }

    async fn hand_to(&self, member: MemberId) -> Result<Done, Problem> {
        if self
            .0
            .raft
            .trigger()
            .transfer_leader(raw(member))
            .await
            .is_err()
        {
            return Err(internal("the node stops"));
        }
        let mut progress = self.0.raft.metrics();
        let shown = async {
            loop {
                let leader = progress.borrow_watched().current_leader;
                let still_me = leader == Some(self.me().member.0);
                if (leader.is_some() && !still_me) || progress.changed().await.is_err() {
                    return leader;
                }
            }
        };
        match self.0.env.within(TRANSFER_LIMIT, shown).await.flatten() {
            Some(leader) if leader == raw(member) => Ok(self.done()),
            Some(other) => Err(unsafe_now(format!(
                "member {} leads now instead of {member}",
                MemberId(other)
            ))),
            None => Err(unsafe_now(format!(
                "member {member} did not take over within {TRANSFER_LIMIT:?}"
            ))
            .retryable()),
        }
    }

    /// Waits until a member has what was committed when the wait began.
    async fn caught_up(&self, member: MemberId) -> Result<(), Problem> {
        let begun = self.metrics();
        let committed = begun.cluster_committed.map(|id| id.index);
        let deadline = self.0.env.clock.mono() + CATCH_UP_LIMIT;
        loop {
            let metrics = self.leading()?;
            let followers = self.followers(&metrics);
            let matched = followers
                .iter()
                .find(|f| f.member == member)
                .and_then(|f| f.matched);
            if matched >= committed {
                return Ok(());
            }
            if self.0.env.clock.mono() >= deadline {
                let has = matched.map_or_else(|| "nothing".into(), |m| format!("entry {m}"));
                return Err(Problem::new(
                    409,
                    code::NOT_CAUGHT_UP,
                    "The member has not caught up",
                    format!(
                        "member {member} has {has} of {}; wait until its lag is small",
                        committed.unwrap_or(0)
                    ),
                )
                .retryable());
            }
            self.0.env.sleep(LOOK_EVERY).await;
        }
    }

    /// The library's metrics, if this node leads.
    fn leading(&self) -> Result<RaftMetrics<Types>, Problem> {
        let metrics = self.metrics();
        if metrics.state == ServerState::Leader {
            return Ok(metrics);
        }
        let detail = match self.leader() {
            Some(leader) => format!("member {} at {} leads", leader.member, leader.address),
            None => "nobody is known to lead".to_owned(),
        };
        Err(Problem::new(409, code::NOT_LEADER, "This node does not lead", detail).retryable())
    }

    async fn change(&self, fence: Option<ConfigVersion>, step: Step) -> Result<Done, Problem> {
        let _alone = self.0.changing.lock().await;
        let metrics = self.leading()?;
        let stored = &metrics.membership_config;
        let followers = self.followers(&metrics);
        let seen = Seen {
            me: self.me().member,
            membership: stored.membership(),
            version: version(stored.log_id()),
            committed: configuration(&metrics).is_some_and(|c| c.committed),
            followers: &followers,
        };
        let Some(next) = plan(&seen, fence, &step)? else {
            return Ok(self.done());
        };
        tracing::info!(
            ?step,
            index = seen.version.index,
            "changing the configuration"
        );
        let only_if = Precondition::LastMembershipLogId {
            last_membership_log_id: *stored.log_id(),
        };
        let written = self
            .0
            .raft
            .append_membership(next, EntryPayload::Blank, [only_if]);
        match self.0.env.within(COMMIT_LIMIT, written).await {
            Some(Ok(_)) => Ok(self.done()),
            Some(Err(RaftError::APIError(error))) => Err(self.refused(error, fence)),
            Some(Err(RaftError::Fatal(error))) => Err(internal(error.to_string()).unknown()),
            None => Err(Problem::new(
                503,
                flower_api::wire::code::NO_QUORUM,
                "The change is not committed yet",
                format!("no majority has confirmed it within {COMMIT_LIMIT:?}"),
            )
            .unknown()),
        }
    }

    fn refused(&self, error: ClientWriteError<Types>, fence: Option<ConfigVersion>) -> Problem {
        let current = version(self.metrics().membership_config.log_id());
        match error {
            ClientWriteError::PreconditionFailed(_) => stale(current, fence),
            ClientWriteError::ForwardToLeader(_) => match self.leading() {
                Err(problem) => problem,
                Ok(_) => unsafe_now("the leader waits for its quorum; try again").retryable(),
            },
            ClientWriteError::ChangeMembershipError(
                error @ (ChangeMembershipError::InProgress(_)
                | ChangeMembershipError::UncommittedLeaderLog(_)),
            ) => unsafe_now(error.to_string()).retryable(),
            error @ ClientWriteError::LogEntryDiscarded(_) => {
                unsafe_now(error.to_string()).unknown()
            }
            error => unsafe_now(error.to_string()),
        }
    }

    fn done(&self) -> Done {
        Done {
            configuration: configuration(&self.metrics()).map(|c| c.version),
        }
    }
}

fn initialized(detail: &str) -> Problem {
    Problem::new(
        409,
        code::ALREADY_INITIALIZED,
        "An identity exists here",
        detail,
    )
}

fn internal(detail: impl Into<String>) -> Problem {
    Problem::new(
        500,
        flower_api::wire::code::INTERNAL,
        "The node cannot do that",
        detail,
    )
}
