//! Fences: the log position that a fresh read must see. The leader asks a quorum whether it
//! still leads; a follower asks the leader. One is under way at a time; whoever arrives
//! meanwhile shares the next one, never one that was already sent.

use std::{sync::Arc, time::Duration};

use flower_api::MemberId;
use flower_store::sabotage::{Break, is_broken};
use openraft::{
    ReadPolicy, ServerState,
    async_runtime::watch::WatchReceiver,
    errors::{LinearizableReadError, RaftError},
};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{
    Raft,
    links::Links,
    wire::{Purpose, Request, Response},
};
use crate::env::{Env, Mono};

/// One question to the leader.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// Between attempts while nobody leads.
const RETRY: Duration = Duration::from_millis(20);

/// No fence in time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no quorum confirmed the leader in time: {0}")]
pub struct FenceError(pub Arc<str>);

type Answer = Result<u64, Arc<str>>;

/// Shares fences.
#[derive(Clone)]
pub(crate) struct Fences(Arc<Shared>);

struct Shared {
    env: Env,
    raft: Raft,
    links: Arc<Links>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    under_way: bool,
    /// Who shares the next one.
    next: Vec<oneshot::Sender<Answer>>,
}

impl Fences {
    pub(crate) fn new(env: &Env, raft: &Raft, links: &Arc<Links>) -> Self {
        Self(Arc::new(Shared {
            env: env.clone(),
            raft: raft.clone(),
            links: links.clone(),
            queue: Mutex::default(),
        }))
    }

    /// Asks until there is an answer or `deadline` comes.
    pub(crate) async fn fence(&self, deadline: Mono) -> Result<u64, FenceError> {
        let mut why: Arc<str> = "none was asked".into();
        while self.0.env.clock.mono() < deadline {
            match self.0.env.until(deadline, self.join()).await {
                Some(Ok(index)) => return Ok(index),
                Some(Err(reason)) => {
                    why = reason;
                    self.0.env.sleep(RETRY).await;
                }
                None => break,
            }
        }
        Err(FenceError(why))
    }

    async fn join(&self) -> Answer {
        let (tell, answer) = oneshot::channel();
        {
            let mut queue = self.0.queue.lock();
            queue.next.push(tell);
            if !queue.under_way {
                queue.under_way = true;
                let shared = self.0.clone();
                self.0.env.tasks.spawn_brief("fence", shared.run());
            }
        }
        answer
            .await
            .unwrap_or_else(|_| Err("the node stops".into()))
    }
}

impl Shared {
    async fn run(self: Arc<Self>) {
        loop {
            let sharers = {
                let mut queue = self.queue.lock();
                queue.next.retain(|waiting| !waiting.is_closed());
                if queue.next.is_empty() {
                    queue.under_way = false;
                    return;
                }
                std::mem::take(&mut queue.next)
            };
            let answer = match self.env.within(ASK_LIMIT, self.ask()).await {
                Some(answer) => answer,
                None => Err(format!("no answer within {ASK_LIMIT:?}").into()),
            };
            for sharer in sharers {
                let _ = sharer.send(answer.clone());
            }
        }
    }

    async fn ask(&self) -> Answer {
        if is_broken(Break::FenceBeforeCommit)
            && let Some(index) = unasked(&self.raft)
        {
            return Ok(index);
        }
        let refused = match self.raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
            Ok(linearizer) => return Ok(linearizer.read_log_id().index()),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(to))) => to,
            Err(error) => return Err(error.to_string().into()),
        };
        let known = refused
            .leader_id
            .zip(refused.leader_node)
            .map(|(id, peer)| (MemberId(id), peer.address))
            .or_else(|| self.leader());
        let Some((member, address)) = known.filter(|(id, _)| *id != self.links.me().member) else {
            return Err("no leader is known".into());
        };
        let asked = self
            .links
            .call(member, &address, Purpose::Fence, &Request::Fence, ASK_LIMIT)
            .await;
        match asked {
            Ok(Response::Fence(index)) => Ok(index),
            Ok(Response::Failed(why)) => Err(why.into()),
            Ok(other) => Err(format!("an answer to another question: {other:?}").into()),
            Err(error) => Err(error.to_string().into()),
        }
    }

    fn leader(&self) -> Option<(MemberId, String)> {
        let metrics = self.raft.metrics().borrow_watched().clone();
        let id = metrics.current_leader?;
        let peer = metrics.membership_config.get_node(&id)?;
        Some((MemberId(id), peer.address.clone()))
    }
}

/// What a leader that asks nobody would answer; for [`Break::FenceBeforeCommit`].
pub(super) fn unasked(raft: &Raft) -> Option<u64> {
    let metrics = raft.metrics().borrow_watched().clone();
    let leads = metrics.state == ServerState::Leader;
    metrics.last_applied.filter(|_| leads).map(|id| id.index)
}
