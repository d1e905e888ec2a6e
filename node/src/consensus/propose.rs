//! Proposing an entry: one at a time takes its place in the log, under the leadership that it
//! was made for; then it is flushed and applied, which its proposer may wait for or not.

use std::sync::Arc;

use flower_engine::Entry;
use flower_store::LogPosition;
use openraft::{
    errors::{ClientWriteError, ForwardReason, ForwardToLeader},
    impls::ProgressResponder,
    raft::ClientWriteResult,
};
use tokio::sync::oneshot;

use super::{
    Consensus, LeaderInfo, Leadership,
    types::{LeaderId, Proposed, Stages, Types, position},
};
use crate::env::{Fatal, Mono};

/// A new leader refuses entries until a quorum has answered it; how long to wait between
/// attempts.
const LEASE_WAIT: std::time::Duration = std::time::Duration::from_millis(10);

/// Why an entry was not applied, as far as is known.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ProposeError {
    /// It is not in any log and never will be.
    #[error("this node does not lead under that leadership")]
    NotDone {
        /// Who leads, as far as is known.
        leader: Option<LeaderInfo>,
    },
    /// It may be applied, now or later.
    #[error("whether the entry is committed is not known")]
    Unknown,
    /// The node stops.
    #[error(transparent)]
    Fatal(#[from] Fatal),
}

/// An entry that has taken its place in this node's log.
pub struct Proposal {
    /// Its place; another leader may yet put something else there.
    pub position: LogPosition,
    /// Resolves when it is durable on this node, or never will be: the next batch may be
    /// closed. It need not be committed.
    pub flushed: FlushedSignal,
    /// Resolves when it is committed and applied on this node.
    pub applied: AppliedSignal,
}

/// See [`Proposal::flushed`].
pub struct FlushedSignal(oneshot::Receiver<()>);

impl FlushedSignal {
    /// True when it is durable on this node, false when it never will be.
    pub async fn wait(self) -> bool {
        self.0.await.is_ok()
    }
}

type Complete = openraft::alias::OneshotReceiverOf<Types, ClientWriteResult<Types>>;

/// See [`Proposal::applied`].
pub struct AppliedSignal {
    complete: Complete,
    consensus: Consensus,
}

impl AppliedSignal {
    /// Where it was applied. Has no time limit: a deposed leader may hear of it much later.
    ///
    /// # Errors
    /// `Unknown` when this node's log was overwritten or the node stops.
    pub async fn wait(self) -> Result<LogPosition, ProposeError> {
        match self.complete.await {
            Ok(result) => self.consensus.outcome(result),
            Err(_) => Err(self.consensus.gone()),
        }
    }
}

impl Consensus {
    /// Puts an entry into the log under `lead` and returns once it has its place there: the
    /// next one may be proposed then, and comes behind it. An entry refused for want of a
    /// quorum's sign of life is proposed again until `deadline`.
    ///
    /// # Errors
    /// `NotDone` when it is in no log: everything that was built on it must be dropped.
    pub async fn propose(
        &self,
        lead: &Leadership,
        entry: Entry,
        deadline: Mono,
    ) -> Result<Proposal, ProposeError> {
        let _alone = self.0.proposing.lock().await;
        let entry = Arc::new(entry);
        loop {
            let (stages, appended, flushed) = Stages::new();
            let (responder, mut complete) = ProgressResponder::complete_only();
            let proposed = Proposed {
                entry: entry.clone(),
                stages: Some(stages),
            };
            self.0
                .raft
                .write(proposed)
                .with_leader(LeaderId {
                    term: lead.term(),
                    node_id: lead.member().0,
                })
                .responder(responder)
                .await
                .map_err(|_| self.gone())?;
            let refused = tokio::select! {
                biased;
                Ok(position) = appended => {
                    return Ok(Proposal {
                        position,
                        flushed: FlushedSignal(flushed),
                        applied: AppliedSignal { complete, consensus: self.clone() },
                    });
                }
                result = &mut complete => result.map_err(|_| self.gone())?,
            };
            match refused {
                Err(ClientWriteError::ForwardToLeader(ForwardToLeader {
                    reason: ForwardReason::LeaseExpired,
                    ..
                })) if self.0.env.clock.mono() < deadline => self.0.env.sleep(LEASE_WAIT).await,
                other => {
                    return Err(match self.outcome(other) {
                        Err(error) => error,
                        // Applied without having been appended: cannot be, and is not believed.
                        Ok(_) => ProposeError::Unknown,
                    });
                }
            }
        }
    }

    fn outcome(&self, result: ClientWriteResult<Types>) -> Result<LogPosition, ProposeError> {
        match result {
            Ok(done) => Ok(position(&done.log_id)),
            Err(ClientWriteError::ForwardToLeader(_)) => Err(ProposeError::NotDone {
                leader: self.leader(),
            }),
            Err(_) => Err(ProposeError::Unknown),
        }
    }

    fn gone(&self) -> ProposeError {
        match self.0.env.tasks.failure() {
            Some(fatal) => ProposeError::Fatal(fatal),
            None => ProposeError::Unknown,
        }
    }
}
