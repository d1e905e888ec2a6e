//! Connections to other members: one a member and purpose, dialled when first needed, shared
//! by everything that asks over it, and given up when it is idle or does not answer. Requests
//! of one link are answered in order; a caller that gives up leaves the link as it is.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use flower_api::{MemberId, report::Recovery};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use tokio::{
    io::{ReadHalf, WriteHalf},
    sync::{mpsc, oneshot},
};
use tokio_util::sync::CancellationToken;

use super::{
    handshake::{self, HandshakeError, Hello, PROTOCOL, PeerSecrets, Refusal},
    identity::Me,
    types::{decode, encode},
    wire::{Purpose, Request, Response, SMALL_FRAME, read_frame, write_frame},
};
use crate::env::{ByteStream, Env, Fatal, Mono};

/// Dialling and proving the secret.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// A link whose oldest request waits longer is given up.
const STUCK_LIMIT: Duration = Duration::from_secs(5);
/// A link that is not used is closed.
const IDLE_LIMIT: Duration = Duration::from_secs(30);
/// After a failed attempt to connect nobody dials for this long.
const DIAL_PAUSE: Duration = Duration::from_millis(200);
/// The log tells at most this often of a member that it speaks differently.
const TELL_EVERY: Duration = Duration::from_secs(30);
/// Requests that wait to be sent; more are refused.
const QUEUE: usize = 64;

pub(crate) type Stream = Box<dyn ByteStream>;

/// Why a request to another member has no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum CallError {
    /// No connection, or the peer refuses it: asking again at once is useless.
    #[error("member {member} at {address} cannot be reached: {why}")]
    Unreachable {
        member: MemberId,
        address: String,
        why: String,
    },
    /// The connection ended, or there was no answer in time.
    #[error("member {member} at {address} did not answer: {why}")]
    Lost {
        member: MemberId,
        address: String,
        why: String,
    },
}

/// All links of this node.
pub(crate) struct Links {
    env: Env,
    me: Arc<Me>,
    secrets: Arc<dyn PeerSecrets>,
    rng: Mutex<StdRng>,
    links: Mutex<HashMap<(MemberId, Purpose), Link>>,
    clients: Mutex<HashMap<MemberId, String>>,
    /// Members whose last answer to an append said that their volume is nearly full.
    low: Mutex<BTreeSet<MemberId>>,
    /// When the log last told of a member that it speaks differently.
    told: Mutex<BTreeMap<MemberId, Mono>>,
}

struct Link {
    address: String,
    send: mpsc::Sender<Call>,
}

struct Call {
    body: Bytes,
    deadline: Mono,
    reply: oneshot::Sender<Result<Response, CallError>>,
}

impl Links {
    pub(crate) fn new(env: &Env, me: Arc<Me>, secrets: Arc<dyn PeerSecrets>) -> Arc<Self> {
        Arc::new(Self {
            env: env.clone(),
            me,
            secrets,
            rng: Mutex::new(env.seeds.child("links").rng()),
            links: Mutex::default(),
            clients: Mutex::default(),
            low: Mutex::default(),
            told: Mutex::default(),
        })
    }

    pub(crate) fn env(&self) -> &Env {
        &self.env
    }

    pub(crate) fn me(&self) -> &Arc<Me> {
        &self.me
    }

    pub(crate) fn secrets(&self) -> &Arc<dyn PeerSecrets> {
        &self.secrets
    }

    /// Fills `nonce` from this node's seeds.
    pub(crate) fn fill(&self, nonce: &mut [u8]) {
        rand::RngCore::fill_bytes(&mut *self.rng.lock(), nonce);
    }

    /// Where the client API of a member is, as that member said.
    pub(crate) fn client_address(&self, member: MemberId) -> Option<String> {
        self.clients.lock().get(&member).cloned()
    }

    pub(crate) fn learn_client_address(&self, member: MemberId, address: String) {
        if !address.is_empty() {
            self.clients.lock().insert(member, address);
        }
    }

    /// Members that have less free space than their reserve, as they last said.
    pub(crate) fn low_on_space(&self) -> BTreeSet<MemberId> {
        self.low.lock().clone()
    }

    pub(crate) fn learn_space(&self, member: MemberId, low: bool) {
        let mut all = self.low.lock();
        if low {
            all.insert(member);
        } else {
            all.remove(&member);
        }
    }

    /// Whether it is time to tell, in the log, that what `member` says is not understood.
    pub(crate) fn may_tell_of(&self, member: MemberId) -> bool {
        let now = self.env.clock.mono();
        let mut told = self.told.lock();
        told.retain(|_, at| now - *at < TELL_EVERY);
        let news = !told.contains_key(&member);
        told.entry(member).or_insert(now);
        news
    }

    /// Asks `member` at `address`, for at most `limit`.
    pub(crate) async fn call(
        self: &Arc<Self>,
        member: MemberId,
        address: &str,
        purpose: Purpose,
        request: &Request,
        limit: Duration,
    ) -> Result<Response, CallError> {
        let (reply, answer) = oneshot::channel();
        let deadline = self.env.clock.mono() + limit;
        let call = Call {
            body: encode(request),
            deadline,
            reply,
        };
        if !self.enqueue(member, address, purpose, call) {
            return Err(self.unreachable(member, address, "too many requests wait for it"));
        }
        match self.env.until(deadline, answer).await {
            Some(Ok(answer)) => answer,
            Some(Err(_)) => Err(lost(member, address, "the connection ended")),
            None => Err(lost(member, address, format!("no answer within {limit:?}"))),
        }
    }

    fn enqueue(
        self: &Arc<Self>,
        member: MemberId,
        address: &str,
        purpose: Purpose,
        call: Call,
    ) -> bool {
        let mut links = self.links.lock();
        let call = match links.get(&(member, purpose)) {
            Some(link) if link.address == address => match link.send.try_send(call) {
                Ok(()) => return true,
                Err(mpsc::error::TrySendError::Full(_)) => return false,
                Err(mpsc::error::TrySendError::Closed(call)) => call,
            },
            _ => call,
        };
        let (send, calls) = mpsc::channel(QUEUE);
        let queued = send.try_send(call).is_ok();
        let address = address.to_owned();
        links.insert(
            (member, purpose),
            Link {
                address: address.clone(),
                send,
            },
        );
        let run = Runner {
            links: self.clone(),
            member,
            address,
            purpose,
            open: None,
            failed: None,
        };
        self.env.tasks.spawn_brief("link", run.run(calls));
        queued
    }

    /// Dials and shakes hands; nothing when that takes too long, or this node has no cluster.
    pub(crate) async fn greet(
        &self,
        member: MemberId,
        address: &str,
        purpose: Purpose,
    ) -> Option<Result<(Stream, handshake::Welcome), HandshakeError>> {
        let cluster = self.me.cluster()?;
        let hello = Hello {
            protocol: PROTOCOL,
            sender: self.me.member,
            cluster,
            group: self.me.group,
            addressed: member,
            purpose,
            client_address: self.me.client_address.clone(),
            recovery: self.me.recovery(),
        };
        let tokens = self.secrets.tokens();
        let mut rng = rand::SeedableRng::from_rng(&mut *self.rng.lock());
        let connect = async {
            let mut stream = self.env.net.dial(address).await?;
            let rng: &mut StdRng = &mut rng;
            let welcome = handshake::dial(&mut stream, hello, &tokens, rng).await?;
            Ok::<_, HandshakeError>((stream, welcome))
        };
        self.env.within(CONNECT_LIMIT, connect).await
    }

    /// The group was recovered without this node's data: that is noted, and the node ends. It
    /// takes no part when it starts again.
    pub(crate) async fn outlived(&self, by: Recovery) {
        let why = match self.me.outlived(by).await {
            Ok(()) => format!(
                "the group was recovered without this member ({by}); its data takes no part any \
                 more. Give the node an empty volume"
            ),
            Err(error) => format!(
                "the group was recovered without this member ({by}), and that cannot be noted: \
                 {error}"
            ),
        };
        self.env.tasks.fail(Fatal::new(why));
    }

    /// Dials and shakes hands.
    pub(crate) async fn connect(
        &self,
        member: MemberId,
        address: &str,
        purpose: Purpose,
    ) -> Result<Stream, CallError> {
        if self.me.cluster().is_none() {
            return Err(self.unreachable(member, address, "this node has no cluster yet"));
        }
        match self.greet(member, address, purpose).await {
            Some(Ok((stream, welcome))) => {
                self.learn_client_address(member, welcome.client_address);
                Ok(stream)
            }
            Some(Err(error)) => {
                if let HandshakeError::Refused(Refusal::OtherLife(Some(by))) = &error
                    && by.is_later(self.me.recovery())
                {
                    self.outlived(*by).await;
                }
                let differs = match &error {
                    HandshakeError::Refused(refusal) => matches!(refusal, Refusal::Protocol { .. }),
                    HandshakeError::Io(error) => error.kind() == io::ErrorKind::InvalidData,
                    HandshakeError::Impostor => false,
                };
                if differs && self.may_tell_of(member) {
                    tracing::warn!(%member, address, %error, "no connection to a member");
                }
                Err(self.unreachable(member, address, error))
            }
            None => {
                let why = format!("no connection within {CONNECT_LIMIT:?}");
                Err(self.unreachable(member, address, why))
            }
        }
    }

    pub(crate) fn unreachable(
        &self,
        member: MemberId,
        address: &str,
        why: impl ToString,
    ) -> CallError {
        CallError::Unreachable {
            member,
            address: address.to_owned(),
            why: why.to_string(),
        }
    }
}

pub(crate) fn lost(member: MemberId, address: &str, why: impl ToString) -> CallError {
    CallError::Lost {
        member,
        address: address.to_owned(),
        why: why.to_string(),
    }
}

/// The task of one link.
struct Runner {
    links: Arc<Links>,
    member: MemberId,
    address: String,
    purpose: Purpose,
    open: Option<Open>,
    /// The last attempt to connect, if it failed.
    failed: Option<(Mono, CallError)>,
}

/// A connection with its requests under way.
struct Open {
    write: WriteHalf<Stream>,
    waiting: Arc<Waiting>,
}

/// Since when a request waits, and whom its answer is for.
type Waiter = (Mono, oneshot::Sender<Result<Response, CallError>>);

#[derive(Default)]
struct Waiting {
    replies: Mutex<HashMap<u64, Waiter>>,
    ended: CancellationToken,
    next: AtomicU64,
}

impl Waiting {
    fn oldest(&self) -> Option<Mono> {
        self.replies.lock().values().map(|(since, _)| *since).min()
    }
}

impl Runner {
    async fn run(mut self, mut calls: mpsc::Receiver<Call>) {
        let env = self.links.env.clone();
        loop {
            let next = tokio::select! {
                next = env.within(IDLE_LIMIT, calls.recv()) => next,
                () = env.tasks.stopping() => return,
            };
            // Idle, or replaced by a link to another address.
            let Some(Some(call)) = next else { return };
            if call.reply.is_closed() || env.clock.mono() >= call.deadline {
                continue;
            }
            self.drop_dead();
            if let Err(error) = self.connect().await {
                let _ = call.reply.send(Err(error));
                continue;
            }
            self.send(call).await;
        }
    }

    async fn connect(&mut self) -> Result<(), CallError> {
        if self.open.is_some() {
            return Ok(());
        }
        let clock = self.links.env.clock.clone();
        if let Some((at, error)) = &self.failed
            && clock.mono() - *at < DIAL_PAUSE
        {
            return Err(error.clone());
        }
        let dialled = self
            .links
            .connect(self.member, &self.address, self.purpose)
            .await;
        match dialled {
            Ok(stream) => {
                self.failed = None;
                self.open = Some(self.start(stream));
                Ok(())
            }
            Err(error) => {
                tracing::debug!(%error, purpose = ?self.purpose, "no link");
                self.failed = Some((clock.mono(), error.clone()));
                Err(error)
            }
        }
    }

    fn drop_dead(&mut self) {
        let now = self.links.env.clock.mono();
        let dead = self.open.as_ref().is_some_and(|open| {
            open.waiting.ended.is_cancelled()
                || open
                    .waiting
                    .oldest()
                    .is_some_and(|since| now - since > STUCK_LIMIT)
        });
        if dead {
            self.open = None;
        }
    }

    fn start(&self, stream: Stream) -> Open {
        let (read, write) = tokio::io::split(stream);
        let waiting = Arc::new(Waiting::default());
        let peer = (self.links.clone(), self.member);
        let answers = read_answers(read, waiting.clone(), peer);
        self.links.env.tasks.spawn_brief("link answers", answers);
        Open { write, waiting }
    }

    async fn send(&mut self, call: Call) {
        let Some(open) = &mut self.open else { return };
        let env = &self.links.env;
        let number = open.waiting.next.fetch_add(1, Ordering::Relaxed);
        let now = env.clock.mono();
        open.waiting
            .replies
            .lock()
            .insert(number, (now, call.reply));
        let sent = env
            .within(
                STUCK_LIMIT,
                write_frame(&mut open.write, number, &call.body),
            )
            .await;
        if !matches!(sent, Some(Ok(()))) {
            open.waiting.replies.lock().clear();
            self.open = None;
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.waiting.ended.cancel();
        self.waiting.replies.lock().clear();
    }
}

async fn read_answers(
    mut read: ReadHalf<Stream>,
    waiting: Arc<Waiting>,
    (links, member): (Arc<Links>, MemberId),
) {
    let end = tokio::select! {
        () = waiting.ended.cancelled() => return,
        end = take_answers(&mut read, &waiting) => end,
    };
    if end.kind() == io::ErrorKind::InvalidData && links.may_tell_of(member) {
        tracing::warn!(%member, error = %end, "a peer's answer makes no sense; the connection is dropped");
    }
    waiting.ended.cancel();
    waiting.replies.lock().clear();
}

async fn take_answers(read: &mut ReadHalf<Stream>, waiting: &Waiting) -> io::Error {
    loop {
        let answer = match read_frame(read, SMALL_FRAME).await {
            Ok(Some((number, body))) => decode::<Response>(&body).map(|answer| (number, answer)),
            Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => Err(error),
        };
        match answer {
            Ok((number, answer)) => {
                if let Some((_, reply)) = waiting.replies.lock().remove(&number) {
                    let _ = reply.send(Ok(answer));
                }
            }
            Err(error) => return error,
        }
    }
}
