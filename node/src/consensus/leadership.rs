//! What follows from the library's progress: the leadership that may be used, whether the
//! node has recovered, and that it must end. The decisions are pure functions.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use flower_api::MemberId;
use openraft::{RaftMetrics, ServerState, async_runtime::watch::WatchReceiver};
use tokio::sync::watch;

use super::{
    Me, Raft,
    state::{AppliedAt, StateStore},
    types::Types,
};
use crate::env::{Env, Fatal};

/// One leadership of this node: needed to propose, so that a batch made under one never
/// enters the log of another. Made only here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Leadership {
    term: u64,
    member: MemberId,
}

impl Leadership {
    /// Its term.
    pub fn term(&self) -> u64 {
        self.term
    }
    /// Who leads: this node.
    pub fn member(&self) -> MemberId {
        self.member
    }
}

/// Counts since the start.
#[derive(Default)]
pub(crate) struct Counters {
    leader_changes: AtomicU64,
}

impl Counters {
    /// How often another leader was seen.
    pub(crate) fn leader_changes(&self) -> u64 {
        self.leader_changes.load(Ordering::Relaxed)
    }
}

pub(crate) struct Watched {
    pub(crate) leadership: watch::Receiver<Option<Leadership>>,
    pub(crate) recovered: watch::Receiver<bool>,
    pub(crate) counters: Arc<Counters>,
}

/// Starts the task that follows the library.
pub(crate) fn watch(env: &Env, raft: &Raft, state: &StateStore, me: &Arc<Me>) -> Watched {
    let (send_leadership, leadership) = watch::channel(None);
    let (send_recovered, recovered) = watch::channel(false);
    let counters = Arc::new(Counters::default());
    let follower = Follower {
        env: env.clone(),
        me: me.clone(),
        replay_until: state.replay_until(),
        leadership: send_leadership,
        recovered: send_recovered,
        counters: counters.clone(),
        last_leader: None,
    };
    env.tasks
        .spawn("leadership", follower.run(raft.clone(), state.applied()));
    Watched {
        leadership,
        recovered,
        counters,
    }
}

struct Follower {
    env: Env,
    me: Arc<Me>,
    replay_until: Option<u64>,
    leadership: watch::Sender<Option<Leadership>>,
    recovered: watch::Sender<bool>,
    counters: Arc<Counters>,
    last_leader: Option<u64>,
}

impl Follower {
    async fn run(
        mut self,
        raft: Raft,
        mut applied: watch::Receiver<AppliedAt>,
    ) -> Result<(), Fatal> {
        let mut progress = raft.metrics();
        loop {
            let metrics = progress.borrow_watched().clone();
            let at = *applied.borrow_and_update();
            if let Err(error) = &metrics.running_state
                && !self.env.tasks.is_stopping()
            {
                return Err(Fatal::new(format!("consensus has stopped: {error}")));
            }
            if metrics
                .membership_config
                .get_node(&self.me.member.0)
                .is_some()
            {
                self.me.admit().await.map_err(|error| {
                    Fatal::new(format!("its membership cannot be remembered: {error}"))
                })?;
            }
            self.publish(&metrics, at);
            tokio::select! {
                changed = progress.changed() => if changed.is_err() {
                    self.env.tasks.stopping().await;
                    return Ok(());
                },
                _ = applied.changed() => {}
                () = self.env.tasks.stopping() => {
                    self.leadership.send_replace(None);
                    return Ok(());
                }
            }
        }
    }

    fn publish(&mut self, metrics: &RaftMetrics<Types>, at: AppliedAt) {
        if metrics.current_leader.is_some() && metrics.current_leader != self.last_leader {
            self.last_leader = metrics.current_leader;
            self.counters.leader_changes.fetch_add(1, Ordering::Relaxed);
            self.env.probe.leader_changed();
        }
        let now = usable(self.me.member, metrics.state, metrics.current_term, at);
        self.leadership.send_if_modified(|before| {
            let changed = *before != now;
            if changed {
                tracing::info!(
                    leads = now.is_some(),
                    term = metrics.current_term,
                    "leadership"
                );
            }
            *before = now;
            changed
        });
        let committed = metrics.cluster_committed.as_ref().map(|id| id.index);
        let done = is_recovered(self.replay_until, committed, metrics.last_log_index, at);
        self.recovered
            .send_if_modified(|before| done && !std::mem::replace(before, true));
    }
}

/// A leader may act once its own first entry is applied: everything before it is then, too.
fn usable(me: MemberId, state: ServerState, term: u64, at: AppliedAt) -> Option<Leadership> {
    let own = at
        .position
        .is_some_and(|p| p.term == term && p.leader == me.0);
    (state == ServerState::Leader && own).then_some(Leadership { term, member: me })
}

/// Recovered: a quorum's word covers what the log held at the start (or what a new leader has
/// left of it), and that much is applied.
fn is_recovered(
    replay_until: Option<u64>,
    committed: Option<u64>,
    last: Option<u64>,
    at: AppliedAt,
) -> bool {
    let target = replay_until.min(last);
    committed.is_some() && committed >= target && at.position.map(|p| p.index) >= target
}

#[cfg(test)]
mod tests {
    use flower_store::LogPosition;

    use super::*;

    fn at(term: u64, leader: u64, index: u64) -> AppliedAt {
        AppliedAt {
            position: Some(LogPosition {
                term,
                leader,
                index,
            }),
            ..AppliedAt::default()
        }
    }

    #[test]
    fn a_leader_may_act_only_once_its_own_entry_is_applied() {
        let me = MemberId(1);
        let lead = Some(Leadership {
            term: 3,
            member: me,
        });
        for (state, at, expected) in [
            (ServerState::Leader, at(3, 1, 9), lead),
            (ServerState::Leader, at(2, 1, 9), None),
            (ServerState::Leader, at(3, 2, 9), None),
            (ServerState::Leader, AppliedAt::default(), None),
            (ServerState::Follower, at(3, 1, 9), None),
            (ServerState::Candidate, at(3, 1, 9), None),
        ] {
            assert_eq!(usable(me, state, 3, at), expected, "{state:?} {at:?}");
        }
    }

    #[test]
    fn recovery_needs_a_quorums_word_for_what_the_log_held() {
        let none = AppliedAt::default();
        for (replay, committed, last, at, expected) in [
            (None, None, None, none, false),
            (None, Some(0), Some(0), none, true),
            (Some(9), None, Some(9), at(1, 1, 9), false),
            (Some(9), Some(8), Some(9), at(1, 1, 8), false),
            (Some(9), Some(9), Some(9), at(1, 1, 8), false),
            (Some(9), Some(9), Some(9), at(1, 1, 9), true),
            (Some(9), Some(20), Some(30), at(1, 1, 9), true),
            // A new leader has cut the log to 6, which is committed.
            (Some(9), Some(6), Some(6), at(2, 2, 6), true),
        ] {
            let got = is_recovered(replay, committed, last, at);
            assert_eq!(got, expected, "{replay:?} {committed:?} {last:?} {at:?}");
        }
    }
}
