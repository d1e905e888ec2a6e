//! The write path: one task drives the lane, event by event, and runs its effects; another
//! proposes batches in order. The story of a mutation, from top to bottom: `submit` →
//! `prepare` → certified → `propose` → flushed → applied → answered. Routing to the leader is
//! `route.rs`; the lane decides, this module only does.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use flower_api::wire::{Problem, code};
use flower_engine::{
    Deadline, Entry, EntryKind, Overlay, Patch, View,
    key::meta,
    lane::{
        BatchFailure, BatchId, Drawn, Effect, Event, JobId, Lane, LaneSettings, Now, Prepared,
        Refusal, Reply, Ticket, Work,
    },
};
use rand::RngCore;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{Instrument, Span};

use crate::{
    consensus::{Consensus, Leadership, ProposeError},
    env::{Env, Fatal, Fut, Mono},
    metrics::Metrics,
    prepare,
    workers::{Isolates, Purpose, Workers},
};

/// How long a batch may wait for its place in the log while a new leader waits for a quorum.
const PROPOSE_LIMIT: Duration = Duration::from_secs(5);
/// How long a preparation may wait for the worker; longer than any call of it may take.
const WORKER_LIMIT: Duration = Duration::from_secs(60);

/// What the writer needs besides the lane.
#[derive(Clone)]
pub struct WriterParts {
    /// The world.
    pub env: Env,
    /// Replication.
    pub consensus: Consensus,
    /// Threads that run code of users.
    pub workers: Workers,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// How long receipts are kept, milliseconds.
    pub retention_ms: u64,
}

/// Hands works to the lane. Cheap to clone.
#[derive(Clone)]
pub struct Writer {
    inbox: mpsc::UnboundedSender<Message>,
}

enum Message {
    Submit {
        work: Work,
        deadline: Mono,
        answer: oneshot::Sender<Result<Reply, Refusal>>,
        /// The caller's.
        span: Span,
    },
    InFlight {
        record_key: Bytes,
        answer: oneshot::Sender<bool>,
    },
    Event(Event),
}

impl Writer {
    /// Starts the tasks that drive the lane, until the node stops.
    pub fn start(parts: WriterParts, settings: LaneSettings) -> Self {
        let (inbox, messages) = mpsc::unbounded_channel();
        let writer = Self { inbox };
        let (proposals, to_propose) = mpsc::unbounded_channel();
        let tasks = parts.env.tasks.clone();
        tasks.spawn(
            "proposer",
            proposer(parts.clone(), to_propose, writer.clone()),
        );
        let driver = Driver {
            lane: Lane::new(settings),
            writer: writer.clone(),
            waiting: BTreeMap::new(),
            spans: BTreeMap::new(),
            last_ticket: 0,
            led: None,
            epoch: 0,
            wake: None,
            proposals,
            parts,
        };
        tasks.spawn("lane", driver.run(messages));
        writer
    }

    /// Has the lane do a work, if this node leads.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn submit(&self, work: Work, deadline: Mono) -> Result<Reply, Refusal> {
        let (answer, answered) = oneshot::channel();
        let message = Message::Submit {
            work,
            deadline,
            answer,
            span: Span::current(),
        };
        if self.inbox.send(message).is_err() {
            return Err(Refusal::NotLeading);
        }
        // The lane's task is gone without an answer: whatever was under way is unknown.
        answered.await.unwrap_or(Err(Refusal::Unknown))
    }

    /// Whether a mutation under this receipt's record key is under way here.
    pub async fn in_flight(&self, record_key: Bytes) -> bool {
        let (answer, answered) = oneshot::channel();
        let message = Message::InFlight { record_key, answer };
        self.inbox.send(message).is_ok() && answered.await.unwrap_or(false)
    }

    fn event(&self, event: Event) {
        // Nobody receives only when the node stops.
        let _ = self.inbox.send(Message::Event(event));
    }
}

/// A caller, and the receipt's record key of the mutation that it is the first to call.
struct Waiting {
    answer: oneshot::Sender<Result<Reply, Refusal>>,
    first_of: Option<Bytes>,
}

/// The receipt's record key of a mutation.
fn record_key(work: &Work) -> Option<Bytes> {
    match work {
        Work::Mutate(call) => Some(call.scope.record_key(&call.key)),
        _ => None,
    }
}

/// Drives the lane.
struct Driver {
    lane: Lane,
    parts: WriterParts,
    writer: Writer,
    waiting: BTreeMap<Ticket, Waiting>,
    /// Spans of the callers whose mutations are under way, by the receipt's record key.
    spans: BTreeMap<Bytes, Span>,
    last_ticket: u64,
    /// The leadership that the lane was last told of.
    led: Option<Leadership>,
    /// Counts what the lane was told to lead.
    epoch: u64,
    wake: Option<Mono>,
    proposals: mpsc::UnboundedSender<ToPropose>,
}

impl Driver {
    async fn run(mut self, mut messages: mpsc::UnboundedReceiver<Message>) -> Result<(), Fatal> {
        let mut leadership = self.parts.consensus.leadership();
        let env = self.parts.env.clone();
        loop {
            self.follow(&mut leadership)?;
            let wake = match self.wake {
                Some(at) => env.clock.sleep_until(at),
                None => Box::pin(std::future::pending()) as Fut<'static, ()>,
            };
            tokio::select! {
                biased;
                () = env.tasks.stopping() => return Ok(()),
                changed = leadership.changed() => if changed.is_err() {
                    env.tasks.stopping().await;
                    return Ok(());
                },
                message = messages.recv() => match message {
                    Some(message) => self.take(message)?,
                    None => return Ok(()),
                },
                () = wake => {
                    self.wake = None;
                    self.step(Event::Deadline)?;
                }
            }
        }
    }

    /// Tells the lane of a leadership that began or ended. A leadership that the lane gave up
    /// by itself, because a batch found no quorum in time, is taken up again once nothing of
    /// it is open.
    fn follow(
        &mut self,
        leadership: &mut watch::Receiver<Option<Leadership>>,
    ) -> Result<(), Fatal> {
        let now = *leadership.borrow_and_update();
        match (now, self.led) {
            (Some(lead), led) if led != Some(lead) => self.gain(lead),
            (Some(lead), _) if self.lane.term().is_none() && self.lane.unacknowledged() == 0 => {
                self.gain(lead)
            }
            (None, Some(_)) => {
                self.led = None;
                self.step(Event::LostLeadership)
            }
            _ => Ok(()),
        }
    }

    fn gain(&mut self, lead: Leadership) -> Result<(), Fatal> {
        let view = self.parts.consensus.view();
        let read = || {
            Ok((
                prepare::revision(&*view)?,
                prepare::number(&*view, meta::STAMP)?,
            ))
        };
        let (revision, stamp_ms) =
            read().map_err(|e: flower_engine::ViewError| Fatal::new(e.to_string()))?;
        let role = format!("leadership {}", lead.term());
        let seed = self.parts.env.seeds.child(&role).rng().next_u64();
        self.led = Some(lead);
        self.epoch += 1;
        self.step(Event::LeaderGained {
            term: lead.term(),
            revision,
            stamp_ms,
            seed,
        })
    }

    fn take(&mut self, message: Message) -> Result<(), Fatal> {
        match message {
            Message::Event(event) => self.step(event),
            Message::InFlight { record_key, answer } => {
                let _ = answer.send(self.lane.in_flight(&record_key));
                Ok(())
            }
            Message::Submit {
                work,
                deadline,
                answer,
                span,
            } => {
                self.last_ticket += 1;
                let ticket = Ticket(self.last_ticket);
                let first_of = record_key(&work).filter(|key| !self.spans.contains_key(key));
                if let Some(key) = &first_of {
                    self.spans.insert(key.clone(), span);
                }
                self.waiting.insert(ticket, Waiting { answer, first_of });
                self.step(Event::Arrived {
                    ticket,
                    work,
                    deadline_ms: deadline.ms(),
                })
            }
        }
    }

    fn step(&mut self, event: Event) -> Result<(), Fatal> {
        let clock = &self.parts.env.clock;
        let now = Now {
            mono_ms: clock.mono().ms(),
            wall_ms: clock.wall_ms(),
        };
        let before = self.lane.conflicts();
        for effect in self.lane.step(event, now) {
            self.run_effect(effect)?;
        }
        self.parts.metrics.conflicts(self.lane.conflicts() - before);
        Ok(())
    }

    fn run_effect(&mut self, effect: Effect) -> Result<(), Fatal> {
        match effect {
            Effect::Prepare {
                job,
                work,
                drawn,
                overlay,
            } => self.prepare(job, work, drawn, overlay),
            Effect::Propose { term, batch, entry } => {
                let Some(lead) = self.led.filter(|lead| lead.term() == term) else {
                    return Err(Fatal::new("a batch was closed under another leadership"));
                };
                if entry.kind == EntryKind::Mutations {
                    // The last patch is the batch's own mark.
                    let mutations = entry.patches.len().saturating_sub(1);
                    self.parts.metrics.batch(mutations, entry.size());
                }
                let to_propose = ToPropose {
                    lead,
                    epoch: self.epoch,
                    batch,
                    entry,
                };
                self.proposals
                    .send(to_propose)
                    .map_err(|_| Fatal::new("the proposer is gone"))?;
            }
            Effect::Reply { ticket, reply } => self.answer(ticket, Ok(reply)),
            Effect::Refuse { ticket, refusal } => self.answer(ticket, Err(refusal)),
            Effect::WakeAt { mono_ms } => {
                self.wake = Some(Mono(Duration::from_millis(mono_ms)));
            }
            Effect::DropSpeculation => self.parts.workers.forget_speculation(),
        }
        Ok(())
    }

    fn answer(&mut self, ticket: Ticket, answer: Result<Reply, Refusal>) {
        if let Some(waiting) = self.waiting.remove(&ticket) {
            // A caller that went away needs no answer.
            let _ = waiting.answer.send(answer);
            if let Some(key) = waiting.first_of {
                self.spans.remove(&key);
            }
        }
    }

    /// Prepares on a worker, on the newest view: it holds at least what the lane knows to be
    /// applied, and laying a patch over a view that has it already changes nothing.
    fn prepare(&self, job: JobId, work: Arc<Work>, drawn: Drawn, overlay: Vec<Arc<Patch>>) {
        let (parts, writer) = (self.parts.clone(), self.writer.clone());
        let deadline = parts.env.clock.mono() + WORKER_LIMIT;
        let tasks = parts.env.tasks.clone();
        let span = record_key(&work).and_then(|key| self.spans.get(&key).cloned());
        let span = span.unwrap_or_else(Span::none);
        let preparation = async move {
            let (consensus, retention_ms) = (parts.consensus.clone(), parts.retention_ms);
            let metrics = parts.metrics.clone();
            let builds = matches!(*work, Work::Build { .. } | Work::Import(_));
            let run = move |isolates: &mut Isolates, deadline: &Deadline| {
                let newest: Arc<dyn View> = consensus.view();
                let view: Arc<dyn View> = match overlay.is_empty() {
                    true => newest,
                    false => Arc::new(Overlay::new(newest, overlay)),
                };
                let done = prepare::prepare(isolates, view, &work, drawn, retention_ms, deadline);
                if let Some(cost) = isolates.take_cost() {
                    metrics.propagation(&cost);
                }
                done
            };
            let prepared = match builds {
                true => parts.workers.build(deadline, run).await,
                false => {
                    let purpose = Purpose::Mutation;
                    parts.workers.run(purpose, None, deadline, run).await
                }
            };
            let (outcome, reads) = match prepared {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(error)) => return tasks.fail(Fatal::new(error.to_string())),
                // A function that runs too long is not run again because others wrote.
                Err(problem) => (Prepared::Refuse(problem), Some(Arc::default())),
            };
            writer.event(Event::Prepared {
                job,
                outcome,
                reads,
            });
        };
        let preparation = preparation.instrument(span);
        self.parts.env.tasks.spawn_brief("preparation", preparation);
    }
}

struct ToPropose {
    lead: Leadership,
    epoch: u64,
    batch: BatchId,
    entry: Entry,
}

/// Proposes batches in the order in which they were closed. After one that is not done,
/// nothing more of the same epoch is proposed: what was built on it must not enter the log.
async fn proposer(
    parts: WriterParts,
    mut to_propose: mpsc::UnboundedReceiver<ToPropose>,
    writer: Writer,
) -> Result<(), Fatal> {
    let mut broken = 0;
    loop {
        let next = tokio::select! {
            biased;
            () = parts.env.tasks.stopping() => return Ok(()),
            next = to_propose.recv() => next,
        };
        let Some(next) = next else { return Ok(()) };
        let batch = next.batch;
        let proposed = if next.epoch == broken {
            Err(ProposeError::NotDone { leader: None })
        } else {
            let deadline = parts.env.clock.mono() + PROPOSE_LIMIT;
            parts
                .consensus
                .propose(&next.lead, next.entry, deadline)
                .await
        };
        let why = match proposed {
            Ok(proposal) => {
                follow_batch(&parts, &writer, batch, proposal);
                continue;
            }
            Err(ProposeError::Fatal(fatal)) => return Err(fatal),
            Err(ProposeError::NotDone { .. }) => BatchFailure::NotDone,
            Err(ProposeError::Unknown) => BatchFailure::Unknown,
        };
        broken = next.epoch;
        writer.event(Event::Failed { batch, why });
    }
}

/// Tells the lane when a batch that has its place in the log is flushed, and applied.
fn follow_batch(
    parts: &WriterParts,
    writer: &Writer,
    batch: BatchId,
    proposal: crate::consensus::Proposal,
) {
    let (flushed, applied) = (proposal.flushed, proposal.applied);
    let tell = writer.clone();
    let tasks = parts.env.tasks.clone();
    parts.env.tasks.spawn_brief("flushed", async move {
        if flushed.wait().await {
            tell.event(Event::Flushed { batch });
        }
    });
    let tell = writer.clone();
    parts.env.tasks.spawn_brief("applied", async move {
        let event = match applied.wait().await {
            Ok(_) => Event::Applied { batch },
            Err(ProposeError::Fatal(fatal)) => return tasks.fail(fatal),
            // It had its place in the log: another leader may have kept it.
            Err(ProposeError::NotDone { .. } | ProposeError::Unknown) => Event::Failed {
                batch,
                why: BatchFailure::Unknown,
            },
        };
        tell.event(event);
    });
}

/// The words for a work whose outcome is not known.
pub fn unknown() -> Problem {
    Problem::new(
        504,
        code::TIMEOUT,
        "Outcome unknown",
        "the leader changed while the call was under way; retry with the same key to learn its \
         outcome",
    )
    .unknown()
}
