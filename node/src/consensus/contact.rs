//! When this node last knew how far the group had come: a leader from the quorum that answered
//! it, a follower from what the leader sent along. A leader without a quorum tells nobody, so
//! that nobody takes an old state for a recent one.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use openraft::{Instant, RaftMetrics, ServerState, async_runtime::watch::WatchReceiver};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::{Raft, report::is_alone, types::Types};
use crate::env::{Env, Mono};

/// A contact with a leader that had a quorum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contact {
    /// When the quorum answered, or later.
    pub at: Mono,
    /// Everything acknowledged before that lies up to this entry.
    pub committed: u64,
}

/// What a leader sends along: how long ago its quorum answered, and what it knows to be
/// committed since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Standing {
    pub(crate) age: Duration,
    pub(crate) committed: u64,
}

/// The contacts of this node.
pub(crate) struct Contacts {
    env: Env,
    raft: OnceLock<Raft>,
    heard: watch::Sender<Option<Contact>>,
}

impl Contacts {
    pub(crate) fn new(env: &Env) -> Self {
        Self {
            env: env.clone(),
            raft: OnceLock::new(),
            heard: watch::Sender::new(None),
        }
    }

    /// Once the library runs.
    pub(crate) fn begin(&self, raft: &Raft) {
        let _ = self.raft.set(raft.clone());
    }

    /// What this node sends along as a leader; nothing when it is none, or has no quorum's word
    /// for anything of its own term.
    pub(crate) fn standing(&self) -> Option<Standing> {
        let progress = self.raft.get()?.metrics();
        standing(&progress.borrow_watched())
    }

    /// A leader's message came in at `at` and was good.
    pub(crate) fn hear(&self, at: Mono, standing: Standing) {
        let contact = Contact {
            at: Mono(at.0.saturating_sub(standing.age)),
            committed: standing.committed,
        };
        self.heard.send_if_modified(|last| {
            let newer = last.is_none_or(|last| last.at < contact.at);
            if newer {
                *last = Some(contact);
            }
            newer
        });
    }

    /// The last contact.
    pub(crate) fn last(&self) -> Option<Contact> {
        let now = self.env.clock.mono();
        let own = self.standing().map(|own| Contact {
            at: Mono(now.0.saturating_sub(own.age)),
            committed: own.committed,
        });
        let heard = *self.heard.borrow();
        match (own, heard) {
            (Some(own), Some(heard)) if heard.at > own.at => Some(heard),
            (own, heard) => own.or(heard),
        }
    }

    /// Changes with what is heard.
    pub(crate) fn changes(&self) -> watch::Receiver<Option<Contact>> {
        self.heard.subscribe()
    }
}

fn standing(metrics: &RaftMetrics<Types>) -> Option<Standing> {
    if metrics.state != ServerState::Leader {
        return None;
    }
    let acked = metrics.last_quorum_acked.as_ref().map(|at| at.elapsed());
    let committed = metrics.cluster_committed.as_ref();
    let committed = committed.map(|id| (id.committed_leader_id().term, id.index));
    judge(metrics.current_term, committed, acked, is_alone(metrics))
}

/// Before something of its own term is committed a leader does not know what others have
/// committed before it.
fn judge(
    term: u64,
    committed: Option<(u64, u64)>,
    acked: Option<Duration>,
    alone: bool,
) -> Option<Standing> {
    let (_, committed) = committed.filter(|(of, _)| *of == term)?;
    let age = if alone { Duration::ZERO } else { acked? };
    Some(Standing { age, committed })
}

/// Shared between the leader's clients and the server.
pub(crate) type Shared = Arc<Contacts>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_vouches_only_for_what_a_quorum_and_its_own_term_tell() {
        let age = Duration::from_millis(30);
        let good = |age| Some(Standing { age, committed: 9 });
        for (committed, acked, alone, expected) in [
            (Some((3, 9)), Some(age), false, good(age)),
            (Some((3, 9)), None, true, good(Duration::ZERO)),
            (Some((3, 9)), None, false, None),
            (Some((2, 9)), Some(age), false, None),
            (None, Some(age), true, None),
        ] {
            assert_eq!(judge(3, committed, acked, alone), expected);
        }
    }
}
