//! Queries: brings the view up to the class that was asked for, then has it answered, from the
//! cache when the result holds there. Never asks for more freshness than the class says.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use flower_api::{
    Revision,
    wire::{Problem, ReadClass, code},
};
use flower_engine::{Stamp, ViewError};
use flower_store::StateView;
use rand::RngCore;

use crate::{
    consensus::{Consensus, Contact},
    env::{Env, Fatal, Mono, Tasks},
    query::{Etag, Key, Queries},
};

/// Answers queries. Cheap to clone.
#[derive(Clone)]
pub struct Reader {
    env: Env,
    consensus: Consensus,
    queries: Queries,
}

/// An answered query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The result, JSON.
    pub result: Bytes,
    /// Its tag.
    pub etag: Etag,
    /// The revision that it reflects.
    pub revision: Revision,
    /// Hash of the deployment that ran.
    pub deployment: Arc<str>,
}

/// Time and randomness of an evaluation that writes nothing; `what` keeps the seeds of one kind
/// of them apart from those of others.
pub(crate) fn read_stamp(env: &Env, what: &str, revision: Revision) -> Stamp {
    let seeds = env.seeds.child(&format!("{what} {revision}"));
    Stamp {
        now_ms: env.clock.wall_ms(),
        revision,
        seed: seeds.rng().next_u64(),
    }
}

/// The state cannot be read: the node stops.
pub(crate) fn unreadable(tasks: &Tasks, error: &ViewError) -> Box<Problem> {
    tasks.fail(Fatal::new(error.to_string()));
    let detail = "this node cannot read its state and stops; ask another one";
    Box::new(Problem::new(500, code::INTERNAL, "Internal error", detail))
}

impl Reader {
    /// A reader.
    pub fn new(env: &Env, consensus: &Consensus, queries: &Queries) -> Self {
        Self {
            env: env.clone(),
            consensus: consensus.clone(),
            queries: queries.clone(),
        }
    }

    /// A view as fresh as `class` asks.
    ///
    /// # Errors
    /// `not-ready` before the log is applied again after a start, `timeout` or `no-quorum`
    /// when the class cannot be served before the deadline.
    pub async fn view(
        &self,
        class: ReadClass,
        deadline: Mono,
    ) -> Result<Arc<StateView>, Box<Problem>> {
        let mut recovered = self.consensus.recovered();
        let recovery = recovered.wait_for(|recovered| *recovered);
        if !matches!(self.env.until(deadline, recovery).await, Some(Ok(_))) {
            return Err(Box::new(not_recovered()));
        }
        match class {
            ReadClass::Local => {}
            ReadClass::Session { min } => {
                if !self.consensus.wait_revision(min, deadline).await {
                    return Err(Box::new(behind(min)));
                }
            }
            ReadClass::Bounded { ms } => self.bounded(ms, deadline).await?,
            ReadClass::Fresh => {
                let fence = self.consensus.fence(deadline).await;
                let index = fence.map_err(|why| Box::new(no_fence(&why.to_string())))?;
                if !self.consensus.wait_applied(index, deadline).await {
                    return Err(Box::new(no_fence("this node is too far behind the leader")));
                }
            }
        }
        Ok(self.consensus.view())
    }

    /// The outcome of a query, fresh as `class` asks.
    ///
    /// # Errors
    /// As [`Reader::view`]; `no-application`; as the application refuses.
    pub async fn query(
        &self,
        name: &str,
        args: &str,
        class: ReadClass,
        deadline: Mono,
    ) -> Result<Answer, Box<Problem>> {
        let key = Key {
            name: name.into(),
            args: args.into(),
        };
        let view = self.view(class, deadline).await?;
        let answered = self.queries.answer(&key, view, deadline).await?;
        let revision = answered.revision;
        match &answered.outcome.result {
            Ok(result) => Ok(Answer {
                result: result.clone(),
                etag: answered.outcome.etag,
                revision,
                deployment: answered.deployment,
            }),
            Err(problem) => {
                let mut problem = problem.clone();
                problem.revision = Some(revision);
                Err(Box::new(problem))
            }
        }
    }

    /// Waits until the last contact with the leader is recent enough and everything that was
    /// known to be committed then is applied.
    async fn bounded(&self, ms: u64, deadline: Mono) -> Result<(), Box<Problem>> {
        let within = Duration::from_millis(ms);
        let mut contacts = self.consensus.contacts();
        loop {
            let now = self.env.clock.mono();
            let contact = self.consensus.contact();
            if let Some(contact) = contact.filter(|contact| now - contact.at <= within) {
                let limit = deadline.min(contact.at + within);
                if self.consensus.wait_applied(contact.committed, limit).await {
                    return Ok(());
                }
            }
            if self.env.clock.mono() >= deadline {
                return Err(Box::new(too_stale(ms, contact, now)));
            }
            let next = self.env.clock.mono() + CONTACT_LOOK;
            let _ = self.env.until(next.min(deadline), contacts.changed()).await;
        }
    }
}

/// While there is no contact that is recent enough, the leader's own is looked at this often.
const CONTACT_LOOK: Duration = Duration::from_millis(50);

fn too_stale(ms: u64, contact: Option<Contact>, now: Mono) -> Problem {
    let why = match contact {
        None => "this node has heard of no leader with a majority".to_owned(),
        Some(contact) if (now - contact.at).as_millis() > u128::from(ms) => format!(
            "its last contact with a leader that has a majority is {} ms old",
            (now - contact.at).as_millis()
        ),
        Some(_) => {
            "it has not applied what was committed at its last contact with the leader".to_owned()
        }
    };
    Problem::new(
        503,
        code::TOO_STALE,
        "Too stale",
        format!("this node cannot answer with a state of the last {ms} ms: {why}; ask another one, or allow more"),
    )
    .retryable()
}

fn not_recovered() -> Problem {
    Problem::new(
        503,
        code::NOT_READY,
        "Not ready",
        "this node has not applied its log yet after a start; ask another one, or again soon",
    )
    .retryable()
}

fn behind(min: Revision) -> Problem {
    Problem::new(
        504,
        code::TIMEOUT,
        "Timeout",
        format!(
            "this node has not applied revision {min} before the deadline; ask another one, or \
             check that the revision is of this cluster"
        ),
    )
    .retryable()
}

fn no_fence(why: &str) -> Problem {
    Problem::new(
        503,
        code::NO_QUORUM,
        "No quorum",
        format!("a fresh read needs the leader and a majority: {why}"),
    )
    .retryable()
}
