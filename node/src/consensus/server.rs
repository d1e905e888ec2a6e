//! The peer port: accepts connections, lets in members of the same cluster that address this
//! one, and hands their requests to the consensus library. Whatever is malformed, too large or
//! too slow ends its connection and nothing else.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use flower_api::limits;
use flower_store::{
    LogRecord,
    sabotage::{Break, is_broken},
};
use openraft::{
    ReadPolicy,
    errors::RaftError,
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, TransferLeaderError, TransferLeaderRequest,
        VoteRequest,
    },
};
use parking_lot::Mutex;
use tokio::{io::ReadHalf, io::WriteHalf, sync::Semaphore};

use super::{
    Raft, contact,
    handshake::{self, Hello, Refusal, Welcome},
    identity::Judgement,
    links::{CONNECT_LIMIT, Links, Stream},
    receive::Receiver,
    space::Space,
    types::{WireVote, decode, encode, entry, log_id, position},
    wire::{AppendAnswer, Purpose, Request, Response, TransferRefusal, read_frame, write_frame},
};
use crate::env::{Env, Fatal, Listener, Mono};

/// Connections at once; more wait in the system's queue.
const CONNECTIONS: usize = 256;
/// A connection over which nothing is asked is closed.
const IDLE_LIMIT: Duration = Duration::from_secs(60);
/// The same peer's same refusal is told at most this often …
const COMPLAIN_EVERY: Duration = Duration::from_secs(30);
/// … and so many of them at once.
const COMPLAINTS: usize = 64;
/// After a failed accept (no file descriptors, most likely).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What serving a peer needs.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) env: Env,
    pub(crate) raft: Raft,
    pub(crate) links: Arc<Links>,
    pub(crate) space: Space,
    pub(crate) contacts: contact::Shared,
    pub(crate) receiving: Arc<tokio::sync::Mutex<()>>,
    pub(crate) complaints: Arc<Complaints>,
}

/// Who was refused lately, why, and when that was first said.
pub(crate) type Complaints = Mutex<BTreeMap<(IpAddr, String), Mono>>;

impl Server {
    /// Accepts until the node stops.
    pub(crate) async fn run(self, mut listener: Box<dyn Listener>) -> Result<(), Fatal> {
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let Ok(place) = room.clone().acquire_owned().await else {
                return Ok(());
            };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.env.tasks.stopping() => return Ok(()),
            };
            match accepted {
                Ok((stream, from)) => {
                    let server = self.clone();
                    self.env.tasks.spawn_brief("peer connection", async move {
                        tokio::select! {
                            () = server.serve(stream, from) => {}
                            () = server.env.tasks.stopping() => {}
                        }
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "the peer port cannot accept");
                    self.env.sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn serve(&self, mut stream: Stream, from: SocketAddr) {
        let tokens = self.links.secrets().tokens();
        let handshake = handshake::accept(
            &mut stream,
            &tokens,
            |nonce| self.links.fill(nonce),
            |hello| self.judge(hello),
        );
        let hello = match self.env.within(CONNECT_LIMIT, handshake).await {
            Some(Ok(hello)) => hello,
            Some(Err(error)) => {
                self.complain(from, &error.to_string());
                return;
            }
            None => {
                self.complain(from, "it did not greet in time");
                return;
            }
        };
        let (read, write) = tokio::io::split(stream);
        let served = match hello.purpose {
            Purpose::Image => self.take_image(read, write).await,
            purpose => self.answer_all(purpose, read, write).await,
        };
        if let Err(error) = served {
            tracing::debug!(peer = %hello.sender, %from, purpose = ?hello.purpose, %error, "a peer's connection ended");
            let garbled = error.kind() == io::ErrorKind::InvalidData;
            if garbled && self.links.may_tell_of(hello.sender) {
                tracing::warn!(peer = %hello.sender, %from, %error, "a peer's message makes no sense; the connection is dropped");
            }
        }
    }

    /// Says why a peer was not let in, but not ten times a second.
    fn complain(&self, from: SocketAddr, why: &str) {
        let now = self.env.clock.mono();
        let mut complaints = self.complaints.lock();
        complaints.retain(|_, at| now - *at < COMPLAIN_EVERY);
        let key = (from.ip(), why.to_owned());
        let news = complaints.len() < COMPLAINTS && !complaints.contains_key(&key);
        if news {
            complaints.insert(key, now);
            tracing::warn!(%from, why, "a peer was not let in");
        } else {
            tracing::debug!(%from, why, "a peer was not let in");
        }
    }

    async fn judge(&self, hello: Hello) -> Result<Welcome, Refusal> {
        let me = self.links.me();
        match me.judge(&hello) {
            Judgement::LetIn => {}
            Judgement::Refuse(refusal) => return Err(refusal),
            Judgement::Outlived(by) => {
                self.links.outlived(by).await;
                return Err(Refusal::Outlived(by));
            }
            Judgement::Adopt => {
                let initialized = self.raft.is_initialized().await;
                if !matches!(initialized, Ok(false)) {
                    return Err(Refusal::State(
                        "it holds data, but does not know of which cluster".into(),
                    ));
                }
                match me.adopt(&hello.cluster, hello.recovery).await {
                    Ok(true) => {}
                    Ok(false) => {
                        return Err(Refusal::State("it has just joined another cluster".into()));
                    }
                    Err(error) => {
                        let why = format!("the cluster's identity cannot be written: {error}");
                        self.env.tasks.fail(Fatal::new(why.clone()));
                        return Err(Refusal::State(why));
                    }
                }
            }
        }
        self.links
            .learn_client_address(hello.sender, hello.client_address);
        Ok(Welcome {
            client_address: me.client_address.clone(),
        })
    }

    async fn take_image(
        &self,
        mut read: ReadHalf<Stream>,
        mut write: WriteHalf<Stream>,
    ) -> io::Result<()> {
        let receiver = Receiver {
            env: self.env.clone(),
            raft: self.raft.clone(),
            one: self.receiving.clone(),
        };
        receiver.run(&mut read, &mut write).await
    }

    async fn answer_all(
        &self,
        purpose: Purpose,
        mut read: ReadHalf<Stream>,
        mut write: WriteHalf<Stream>,
    ) -> io::Result<()> {
        let max = purpose.max_frame();
        loop {
            let frame = self
                .env
                .within(IDLE_LIMIT, read_frame(&mut read, max))
                .await;
            let Some(Some((number, body))) = frame.transpose()? else {
                return Ok(());
            };
            let request: Request = decode(&body)?;
            drop(body);
            let response = self.answer(request).await?;
            write_frame(&mut write, number, &encode(&response)).await?;
        }
    }

    async fn answer(&self, request: Request) -> io::Result<Response> {
        let answer = match request {
            Request::Append {
                vote,
                previous,
                committed,
                records,
                standing,
            } => {
                let arrived = self.env.clock.mono();
                if !records.is_empty()
                    && let Some(why) = self.space.refuses_entries()
                {
                    return Ok(Response::Failed(why));
                }
                let entries = records
                    .iter()
                    .map(|bytes| {
                        let record = LogRecord::decode(bytes)
                            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
                        entry(record)
                    })
                    .collect::<io::Result<_>>()?;
                let request = AppendEntriesRequest {
                    vote: vote.into(),
                    prev_log_id: previous.map(log_id),
                    entries,
                    leader_commit: committed.map(log_id),
                };
                let low_space = self.space.is_low();
                let taken = self.raft.append_entries(request).await;
                if let Some(standing) = standing.filter(|_| taken.as_ref().is_ok_and(is_taken)) {
                    self.contacts.hear(arrived, standing);
                }
                taken.map(|taken| Response::Append {
                    answer: append_answer(taken),
                    low_space,
                })
            }
            Request::Vote {
                pre,
                vote,
                last,
                transfer,
            } => {
                let mut request = VoteRequest::new(vote.into(), last.map(log_id));
                request.leadership_transfer = transfer;
                let voted = if pre {
                    self.raft.pre_vote(request).await
                } else {
                    self.raft.vote(request).await
                };
                voted.map(|v| Response::Vote {
                    vote: WireVote::from(&v.vote),
                    granted: v.vote_granted,
                    last: v.last_log_id.as_ref().map(position),
                })
            }
            Request::Transfer { from, to, last } => {
                let request = TransferLeaderRequest::new(from.into(), to, last.map(log_id));
                let taken = self.raft.handle_transfer_leader(request).await;
                taken
                    .map(|taken| Response::Transfer(taken.map_err(refusal)))
                    .map_err(RaftError::Fatal)
            }
            Request::Fence => return Ok(self.fence().await),
        };
        Ok(answer.unwrap_or_else(|error| Response::Failed(error.to_string())))
    }

    async fn fence(&self) -> Response {
        if is_broken(Break::FenceBeforeCommit)
            && let Some(index) = super::fence::unasked(&self.raft)
        {
            return Response::Fence(index);
        }
        match self.raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
            Ok(linearizer) => Response::Fence(linearizer.read_log_id().index()),
            Err(error) => Response::Failed(error.to_string()),
        }
    }
}

/// Whether this node takes the sender for its leader.
fn is_taken(response: &AppendEntriesResponse<super::types::Types>) -> bool {
    !matches!(response, AppendEntriesResponse::HigherVote(_))
}

fn append_answer(response: AppendEntriesResponse<super::types::Types>) -> AppendAnswer {
    match response {
        AppendEntriesResponse::Success => AppendAnswer::Success,
        AppendEntriesResponse::PartialSuccess(upto) => {
            AppendAnswer::Partial(upto.as_ref().map(position))
        }
        AppendEntriesResponse::Conflict => AppendAnswer::Conflict,
        AppendEntriesResponse::HigherVote(vote) => AppendAnswer::HigherVote(WireVote::from(&vote)),
    }
}

fn refusal(error: TransferLeaderError<super::types::Types>) -> TransferRefusal {
    match error {
        TransferLeaderError::VoteChanged { expected, actual } => TransferRefusal::VoteChanged {
            expected: WireVote::from(&expected),
            actual: WireVote::from(&actual),
        },
        TransferLeaderError::LogNotFlushed { expected, actual } => TransferRefusal::LogNotFlushed {
            expected: expected.as_ref().map(position),
            actual: actual.as_ref().map(position),
        },
    }
}

/// A connection's append frames and everything else must fit what a sender may send.
const _: () = assert!(limits::PEER_MESSAGE_BYTES < u32::MAX as u64);
