//! The consensus library's network over the links: its messages in our own form, a deadline
//! on every request. What comes the other way is in `server`.

use std::{sync::Arc, time::Duration};

use flower_api::MemberId;
use openraft::{
    RaftNetworkFactory, RaftNetworkV2, Snapshot,
    errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::{Backoff, RPCOption},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderError,
        TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
    },
};

use super::{
    contact,
    links::{CallError, Links},
    state::Image,
    transfer::{self, Outgoing},
    types::{LogId, Peer, Types, Vote, WireVote, log_id, position, record},
    wire::{AppendAnswer, Purpose, Request, Response, TransferRefusal},
};

/// Entries may be large and the follower's disk slow; the library asks again after this.
const APPEND_LIMIT: Duration = Duration::from_secs(3);
/// First waits between attempts to reach a member.
const BACKOFF: [u64; 4] = [50, 100, 200, 400];
/// Then always this, milliseconds.
const BACKOFF_MAX: u64 = 500;

/// Makes the library's clients.
pub(crate) struct Network {
    pub(crate) links: Arc<Links>,
    pub(crate) outgoing: Arc<Outgoing>,
    pub(crate) contacts: contact::Shared,
}

/// A client for one member and purpose.
pub(crate) struct Client {
    links: Arc<Links>,
    outgoing: Arc<Outgoing>,
    contacts: contact::Shared,
    member: MemberId,
    address: String,
    append: Purpose,
}

impl Network {
    fn client(&self, target: u64, peer: &Peer, append: Purpose) -> Client {
        Client {
            links: self.links.clone(),
            outgoing: self.outgoing.clone(),
            contacts: self.contacts.clone(),
            member: MemberId(target),
            address: peer.address.clone(),
            append,
        }
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Client;

    async fn new_client(&mut self, target: u64, peer: &Peer) -> Client {
        self.client(target, peer, Purpose::Append)
    }
    async fn new_heartbeat_client(&mut self, target: u64, peer: &Peer) -> Client {
        self.client(target, peer, Purpose::Heartbeat)
    }
    async fn new_snapshot_client(&mut self, target: u64, peer: &Peer) -> Client {
        self.client(target, peer, Purpose::Image)
    }
}

impl Client {
    async fn call(
        &self,
        purpose: Purpose,
        request: &Request,
        limit: Duration,
    ) -> Result<Response, RPCError<Types>> {
        let called = self
            .links
            .call(self.member, &self.address, purpose, request, limit)
            .await;
        match called {
            Ok(Response::Failed(why)) => Err(network(&format!(
                "member {} at {}: {why}",
                self.member, self.address
            ))),
            Ok(response) => Ok(response),
            Err(error @ CallError::Unreachable { .. }) => {
                Err(RPCError::Unreachable(Unreachable::new(&error)))
            }
            Err(error @ CallError::Lost { .. }) => {
                Err(RPCError::Network(NetworkError::new(&error)))
            }
        }
    }

    async fn ask_for_vote(
        &self,
        rpc: VoteRequest<Types>,
        pre: bool,
        option: &RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let request = Request::Vote {
            pre,
            vote: WireVote::from(&rpc.vote),
            last: rpc.last_log_id.as_ref().map(position),
            transfer: rpc.leadership_transfer,
        };
        match self
            .call(Purpose::Control, &request, option.soft_ttl())
            .await?
        {
            Response::Vote {
                vote,
                granted,
                last,
            } => Ok(VoteResponse::new(
                Vote::from(vote),
                last.map(log_id),
                granted,
            )),
            other => Err(unexpected(&other)),
        }
    }
}

fn network(why: &str) -> RPCError<Types> {
    RPCError::Network(NetworkError::from_string(why))
}

fn unexpected(response: &Response) -> RPCError<Types> {
    network(&format!("an answer to another question: {response:?}"))
}

impl RaftNetworkV2<Types> for Client {
    type SnapshotData = Image;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        let id = |id: &Option<LogId>| id.as_ref().map(position);
        let request = Request::Append {
            vote: WireVote::from(&rpc.vote),
            previous: id(&rpc.prev_log_id),
            committed: id(&rpc.leader_commit),
            records: rpc.entries.iter().map(|e| record(e).encode()).collect(),
            standing: self.contacts.standing(),
        };
        let limit = match self.append {
            Purpose::Heartbeat => option.hard_ttl(),
            _ => APPEND_LIMIT,
        };
        match self.call(self.append, &request, limit).await? {
            Response::Append { answer, low_space } => {
                self.links.learn_space(self.member, low_space);
                Ok(match answer {
                    AppendAnswer::Success => AppendEntriesResponse::Success,
                    AppendAnswer::Partial(upto) => {
                        AppendEntriesResponse::PartialSuccess(upto.map(log_id))
                    }
                    AppendAnswer::Conflict => AppendEntriesResponse::Conflict,
                    AppendAnswer::HigherVote(vote) => {
                        AppendEntriesResponse::HigherVote(vote.into())
                    }
                })
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.ask_for_vote(rpc, false, &option).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.ask_for_vote(rpc, true, &option).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot<super::types::LeaderId, u64, Peer, Image>,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let Image::Outgoing(view) = snapshot.snapshot else {
            let why = "an image that was received cannot be sent on";
            return Err(StreamingError::Network(NetworkError::from_string(why)));
        };
        let send = transfer::send(
            &self.links,
            &self.outgoing,
            self.member,
            &self.address,
            (&vote).into(),
            view,
        );
        tokio::select! {
            sent = send => match sent {
                Ok(vote) => Ok(SnapshotResponse::new(vote.into())),
                Err(error @ CallError::Unreachable { .. }) => {
                    Err(StreamingError::Unreachable(Unreachable::new(&error)))
                }
                Err(error @ CallError::Lost { .. }) => {
                    tracing::warn!(%error, "an image was not delivered");
                    Err(StreamingError::Network(NetworkError::new(&error)))
                }
            },
            closed = cancel => Err(StreamingError::Closed(closed)),
        }
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        let request = Request::Transfer {
            from: WireVote::from(req.from_leader()),
            to: *req.to_node_id(),
            last: req.last_log_id().map(position),
        };
        match self
            .call(Purpose::Control, &request, option.soft_ttl())
            .await?
        {
            Response::Transfer(Ok(())) => Ok(Ok(())),
            Response::Transfer(Err(TransferRefusal::VoteChanged { expected, actual })) => {
                Ok(Err(TransferLeaderError::VoteChanged {
                    expected: expected.into(),
                    actual: actual.into(),
                }))
            }
            Response::Transfer(Err(TransferRefusal::LogNotFlushed { expected, actual })) => {
                Ok(Err(TransferLeaderError::LogNotFlushed {
                    expected: expected.map(log_id),
                    actual: actual.map(log_id),
                }))
            }
            other => Err(unexpected(&other)),
        }
    }

    fn backoff(&self) -> Option<Backoff> {
        let waits = BACKOFF.into_iter().chain(std::iter::repeat(BACKOFF_MAX));
        Some(Backoff::new(waits.map(Duration::from_millis)))
    }
}
