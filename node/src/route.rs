//! Brings a call to the leader, wherever that is: here, one hop away, or not elected yet. A
//! call is tried again while its deadline allows, always under the same key, so that it
//! happens once at most; what is not known stays not known.

use std::time::Duration;

use bytes::Bytes;
use flower_api::{
    admin,
    wire::{Outcome, Problem, code, header},
};
use flower_engine::lane::{Mutation, Refusal, Reply, Work};
use http::{HeaderName, HeaderValue, Method, Request};
use http_body_util::Full;
use serde::de::DeserializeOwned;

use crate::{
    consensus::{Consensus, LeaderInfo},
    dial::Answer,
    env::{Env, Fut, Mono},
    forward::{Forwarder, NoAnswer},
    write::{Writer, unknown},
};

/// Between two looks at who leads, while nobody does.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Milliseconds that a forwarded call has left; set by the node that forwards.
pub const DEADLINE_MS: &str = "flower-deadline-ms";
/// The forwarding node minted the key; set by the node that forwards.
pub const KEY_MINTED: &str = "flower-key-minted";

/// Brings calls to the leader. Cheap to clone.
#[derive(Clone)]
pub struct Router {
    env: Env,
    consensus: Consensus,
    writer: Writer,
    forwarder: Forwarder,
}

/// What is passed on of a request, whoever answers it.
#[derive(Debug, Clone)]
pub struct Origin {
    /// Id of the request.
    pub request_id: String,
    /// The client's own credentials.
    pub authorization: Option<HeaderValue>,
    /// Another node sent it here: it goes no further.
    pub forwarded: bool,
    /// Until when an answer is of use.
    pub deadline: Mono,
}

/// An answer.
#[derive(Debug)]
pub enum Routed {
    /// Given by this node.
    Here(Box<Reply>),
    /// Given by the leader.
    There(Answer),
}

/// Where a call goes now.
enum Next {
    Here,
    To(LeaderInfo),
    Nowhere,
}

impl Router {
    /// A router.
    pub fn new(env: &Env, consensus: &Consensus, writer: Writer, forwarder: Forwarder) -> Self {
        Self {
            env: env.clone(),
            consensus: consensus.clone(),
            writer,
            forwarder,
        }
    }

    /// The lane's inbox.
    pub fn writer(&self) -> &Writer {
        &self.writer
    }

    /// Whether this node leads and its lane draws.
    pub fn leads(&self) -> bool {
        self.consensus.leadership().borrow().is_some()
    }

    /// Runs a mutation on the leader.
    ///
    /// # Errors
    /// As the lane refuses; `no-quorum` when nobody leads before the deadline, `timeout` with
    /// outcome `unknown` when it may have happened.
    pub async fn mutate(&self, call: Mutation, origin: &Origin) -> Result<Routed, Box<Problem>> {
        let mut maybe = false;
        loop {
            match self.next() {
                Next::Here => {
                    let work = Work::Mutate(call.clone());
                    match self.writer.submit(work, origin.deadline).await {
                        Ok(reply) => return Ok(Routed::Here(Box::new(reply))),
                        Err(Refusal::Problem(problem)) => return Err(still(problem, maybe)),
                        Err(Refusal::Unknown) => maybe = true,
                        Err(Refusal::NotLeading) => {}
                    }
                }
                Next::To(leader) if !origin.forwarded => {
                    let request = forwarded_mutation(&call, origin, &leader, self.left(origin));
                    match self.forward(request, origin).await {
                        Ok(answer) if maybe => {
                            return Ok(Routed::There(doubtful(answer, call.minted)));
                        }
                        Ok(answer) => return Ok(Routed::There(answer)),
                        Err(outcome) => maybe |= outcome == Outcome::Unknown,
                    }
                }
                Next::To(_) => return Err(still(Box::new(not_leader()), maybe)),
                Next::Nowhere => {}
            }
            self.pause(origin, maybe).await?;
        }
    }

    /// Has the leader do a call of the admin API when another node leads: sends it on, one
    /// hop. `None` when this node leads, nobody does, or the call was sent on already: then it
    /// is for this node to answer. The calls are such that may be sent again.
    pub async fn admin_there<T: DeserializeOwned>(
        &self,
        path: &str,
        call: &Bytes,
        origin: &Origin,
        admin_above_peer: i32,
    ) -> Option<Result<T, Box<Problem>>> {
        let leader = match self.next() {
            Next::To(leader) if !origin.forwarded => leader,
            _ => return None,
        };
        let Some(at) = admin_address(&leader.address, admin_above_peer) else {
            return Some(Err(Box::new(unreached(&leader, &leader.address))));
        };
        let left = self.left(origin);
        let request = onward(&Method::POST, path, origin, &at, left, call.clone());
        Some(match self.forwarder.send(request, origin.deadline).await {
            Ok(answer) if answer.status.is_success() => {
                serde_json::from_slice(&answer.body).map_err(|_| Box::new(unanswered(&leader, &at)))
            }
            Ok(answer) => Err(serde_json::from_slice(&answer.body)
                .unwrap_or_else(|_| Box::new(unanswered(&leader, &at)))),
            Err(NoAnswer::NotSent) => Err(Box::new(unreached(&leader, &at))),
            Err(NoAnswer::Broken) => Err(Box::new(unanswered(&leader, &at))),
        })
    }

    /// Does a work that only the leader does; never sent on.
    ///
    /// # Errors
    /// As the lane refuses; `not-leader` when another node leads.
    pub async fn lead(&self, work: Work, deadline: Mono) -> Result<Reply, Box<Problem>> {
        loop {
            match self.writer.submit(work.clone(), deadline).await {
                Ok(reply) => return Ok(reply),
                Err(Refusal::Problem(problem)) => return Err(problem),
                Err(Refusal::Unknown) => return Err(Box::new(unknown())),
                Err(Refusal::NotLeading) => {}
            }
            // Elected a moment ago, and its lane has not heard of it: nothing happened.
            let leader = self.consensus.leader();
            let ours = leader.is_some_and(|one| one.member == self.consensus.me().member);
            let next = self.env.clock.mono() + LOOK_EVERY;
            if !ours || next >= deadline {
                return Err(Box::new(self.who_leads()));
            }
            self.env.clock.sleep_until(next).await;
        }
    }

    /// Has `here` answer when this node leads, else the leader. For reads: they are tried
    /// again without further thought.
    ///
    /// # Errors
    /// `no-quorum` when nobody leads before the deadline; as `here` refuses.
    pub async fn read<T>(
        &self,
        path: &str,
        origin: &Origin,
        here: impl Fn() -> Fut<'static, Result<T, Box<Problem>>>,
    ) -> Result<Result<T, Answer>, Box<Problem>> {
        loop {
            match self.next() {
                Next::Here => return here().await.map(Ok),
                Next::To(leader) if !origin.forwarded => {
                    let request = self.request(&Method::GET, path, origin, &leader, Bytes::new());
                    if let Ok(answer) = self.forward(request, origin).await {
                        return Ok(Err(answer));
                    }
                }
                Next::To(_) => return Err(Box::new(not_leader())),
                Next::Nowhere => {}
            }
            self.pause(origin, false).await?;
        }
    }

    /// Sends a request on to another member's client API; that goes no further.
    ///
    /// # Errors
    /// See [`NoAnswer`].
    pub async fn pass_on(
        &self,
        method: &Method,
        path: &str,
        origin: &Origin,
        address: &str,
        body: Bytes,
    ) -> Result<Answer, NoAnswer> {
        let request = onward(method, path, origin, address, self.left(origin), body);
        self.forwarder.send(request, origin.deadline).await
    }

    fn next(&self) -> Next {
        if self.leads() {
            return Next::Here;
        }
        match self.consensus.leader() {
            // It leads and is not done applying what is before its own first entry.
            Some(leader) if leader.member == self.consensus.me().member => Next::Nowhere,
            Some(leader) => Next::To(leader),
            None => Next::Nowhere,
        }
    }

    /// Waits a moment for the next attempt.
    async fn pause(&self, origin: &Origin, maybe: bool) -> Result<(), Box<Problem>> {
        let next = self.env.clock.mono() + LOOK_EVERY;
        if next < origin.deadline {
            self.env.clock.sleep_until(next).await;
            return Ok(());
        }
        Err(Box::new(if maybe { unknown() } else { no_quorum() }))
    }

    /// The leader's answer; or, when another attempt is due, what is known of this one.
    async fn forward(
        &self,
        request: Request<Full<Bytes>>,
        origin: &Origin,
    ) -> Result<Answer, Outcome> {
        let answer = match self.forwarder.send(request, origin.deadline).await {
            Ok(answer) => answer,
            Err(NoAnswer::NotSent) => return Err(Outcome::NotApplied),
            Err(NoAnswer::Broken) => return Err(Outcome::Unknown),
        };
        if !answer.status.is_server_error() {
            return Ok(answer);
        }
        match serde_json::from_slice::<Problem>(&answer.body) {
            Ok(p) if p.code == admin::code::NOT_LEADER => Err(p.outcome),
            Ok(p) if p.outcome == Outcome::Unknown => Err(Outcome::Unknown),
            _ => Ok(answer),
        }
    }

    fn left(&self, origin: &Origin) -> Duration {
        origin.deadline - self.env.clock.mono()
    }

    fn request(
        &self,
        method: &Method,
        path: &str,
        origin: &Origin,
        leader: &LeaderInfo,
        body: Bytes,
    ) -> Request<Full<Bytes>> {
        let address = &leader.client_address;
        onward(method, path, origin, address, self.left(origin), body)
    }

    fn who_leads(&self) -> Problem {
        let mut problem = not_leader();
        if let Some(leader) = self.consensus.leader() {
            problem.detail = format!(
                "member {} at {} leads; ask it",
                leader.member, leader.address
            );
        }
        problem.status = 409;
        problem
    }
}

fn forwarded_mutation(
    call: &Mutation,
    origin: &Origin,
    leader: &LeaderInfo,
    left: Duration,
) -> Request<Full<Bytes>> {
    let path = format!("/v1/p/{}/m/{}", call.scope.partition, call.name);
    let body = Bytes::copy_from_slice(call.args.as_bytes());
    let address = &leader.client_address;
    let mut request = onward(&Method::POST, &path, origin, address, left, body);
    let headers = request.headers_mut();
    if let Ok(key) = HeaderValue::from_str(call.key.as_str()) {
        headers.insert(HeaderName::from_static(header::IDEMPOTENCY_KEY), key);
    }
    if call.minted {
        let minted = HeaderValue::from_static("true");
        headers.insert(HeaderName::from_static(KEY_MINTED), minted);
    }
    request
}

/// A request to another member. Its parts were parsed before, so it is one; if it were not, an
/// empty one would be refused there.
fn onward(
    method: &Method,
    path: &str,
    origin: &Origin,
    address: &str,
    left: Duration,
    body: Bytes,
) -> Request<Full<Bytes>> {
    let mut request = Request::builder()
        .method(method)
        .uri(format!("http://{address}{path}"))
        .header(header::REQUEST_ID, &origin.request_id)
        .header(header::FORWARDED_BY, "1")
        .header(DEADLINE_MS, left.as_millis().to_string());
    if let Some(authorization) = &origin.authorization {
        request = request.header(http::header::AUTHORIZATION, authorization);
    }
    request.body(Full::new(body)).unwrap_or_default()
}

/// The admin API of the node with this peer address: its port is as far above the peers' as it
/// is here.
fn admin_address(peer: &str, above: i32) -> Option<String> {
    let (host, port) = peer.rsplit_once(':')?;
    let port = i32::from(port.parse::<u16>().ok()?).checked_add(above)?;
    let port = u16::try_from(port).ok().filter(|port| *port > 0)?;
    Some(format!("{host}:{port}"))
}

/// The code is of a node that does not lead: whoever asks may reach the leader itself.
fn unreached(leader: &LeaderInfo, at: &str) -> Problem {
    Problem::new(
        503,
        admin::code::NOT_LEADER,
        "This node does not lead",
        format!(
            "member {} leads, and its admin API at {at} cannot be reached from this node; nothing \
             happened",
            leader.member
        ),
    )
    .retryable()
}

fn unanswered(leader: &LeaderInfo, at: &str) -> Problem {
    Problem::new(
        504,
        code::TIMEOUT,
        "Outcome unknown",
        format!(
            "the call was sent on to member {}, which leads, at {at}, and there is no answer; \
             do it again, which changes nothing when it is done already",
            leader.member
        ),
    )
    .unknown()
}

/// A refusal after an attempt whose outcome is not known does not make it known.
fn still(problem: Box<Problem>, maybe: bool) -> Box<Problem> {
    let keyed = [code::KEY_REUSED, code::KEY_EXPIRED];
    if maybe && !keyed.contains(&&problem.code[..]) {
        Box::new(problem.unknown())
    } else {
        problem
    }
}

/// The same for the refusal of another node. A declared fault under the caller's own key is
/// none: it is kept, so the leader has judged all attempts.
fn doubtful(answer: Answer, minted: bool) -> Answer {
    if answer.status.is_success() {
        return answer;
    }
    match serde_json::from_slice::<Problem>(&answer.body) {
        Ok(problem) if minted || !problem.code.starts_with("fault:") => {
            let problem = still(Box::new(problem), true);
            let body = serde_json::to_vec(&problem).map_or(answer.body, Bytes::from);
            Answer { body, ..answer }
        }
        _ => answer,
    }
}

/// The lane answered a work with what belongs to another kind of work.
pub(crate) fn another_answer(than: &str, got: &Reply) -> Box<Problem> {
    let detail = format!("the lane gave another answer than {than}: {got:?}");
    Box::new(Problem::new(500, code::INTERNAL, "Internal error", detail))
}

fn not_leader() -> Problem {
    Problem::new(
        503,
        admin::code::NOT_LEADER,
        "This node does not lead",
        "the call was sent on to this node, which does not lead any more",
    )
    .retryable()
}

fn no_quorum() -> Problem {
    Problem::new(
        503,
        code::NO_QUORUM,
        "No quorum",
        "no node leads the group: a majority of its members must be up and reach each other; \
         nothing happened",
    )
    .retryable()
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};

    use super::*;

    #[test]
    fn a_refusal_of_the_next_leader_does_not_say_that_nothing_happened() {
        let answer = |status: u16, code: &str| {
            let problem = Problem::new(status, code, "Title", "detail");
            Answer {
                status: StatusCode::from_u16(status).unwrap(),
                headers: HeaderMap::new(),
                body: serde_json::to_vec(&problem).unwrap().into(),
            }
        };
        let outcome = |status, code, minted| {
            let told = doubtful(answer(status, code), minted);
            serde_json::from_slice::<Problem>(&told.body)
                .unwrap()
                .outcome
        };
        assert_eq!(outcome(503, code::NOT_READY, false), Outcome::Unknown);
        assert_eq!(outcome(429, code::OVERLOADED, false), Outcome::Unknown);
        assert_eq!(outcome(409, "fault:gone", true), Outcome::Unknown);
        // The receipts say so.
        assert_eq!(outcome(409, "fault:gone", false), Outcome::NotApplied);
        assert_eq!(outcome(422, code::KEY_REUSED, false), Outcome::NotApplied);
    }

    #[test]
    fn the_admin_api_is_on_the_same_host() {
        for (peer, above, expected) in [
            ("db-0.peers:7701", 1, Some("db-0.peers:7702")),
            ("[::1]:9001", -2, Some("[::1]:8999")),
            ("db", 1, None),
            ("db:65535", 1, None),
            ("db:1", -1, None),
        ] {
            assert_eq!(admin_address(peer, above).as_deref(), expected, "{peer}");
        }
    }
}
