//! The lane: the sequencer of a partition as a pure state machine, events in and effects out.
//! It orders works, draws revisions and stamps, fills batches while the last one is being
//! flushed, and says who is answered what. It has no clock, reads no state and runs no code.
//!
//! 1. A call waits in a bounded queue; one under a key that is under way joins that work.
//! 2. Works are admitted in order: each draws its revision and stamp, and is prepared over the
//!    patches that are not applied yet, mutations side by side. They are certified in the same
//!    order: one whose reads were written meanwhile is prepared again. One that fails leaves a
//!    gap in the revisions.
//! 3. Certified works fill a batch. It is proposed when no other one is being flushed, or when
//!    it is full; at most a few are unacknowledged.
//! 4. Callers are answered when their batch is applied. What was judged on unapplied patches,
//!    refusals included, waits for those.
//! 5. When the leadership ends, what was not proposed has not happened; what was proposed is
//!    as its batch says.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
    sync::Arc,
};

use bytes::Bytes;
use flower_api::{Revision, limits};

use crate::{
    entry::EntryKind,
    receipt::{Fingerprint, key_reused},
    view::Patch,
};

mod batch;
mod preparing;
mod types;
mod waiting;

use batch::{Batch, Proposed, Verdict, mix, overloaded, timed_out};
use preparing::{Next, Preparations, Preparing, is_mutation};
pub use types::*;
use waiting::Waiting;

/// Bounds of a lane.
#[derive(Debug, Clone)]
pub struct LaneSettings {
    /// Works queued, and callers joined to works; more is refused (`FLOWER_LIMIT_QUEUE`).
    pub queue: usize,
    /// Mutations prepared side by side.
    pub parallel: usize,
    /// A batch is full at this many bytes.
    pub batch_bytes: u64,
    /// Proposed batches that are not applied.
    pub unacknowledged: usize,
    /// Least milliseconds between two trims, and the most.
    pub trim_every_ms: (u64, u64),
    /// Receipts deleted by one trim.
    pub trim_limit: usize,
}

impl Default for LaneSettings {
    fn default() -> Self {
        Self {
            queue: limits::QUEUE,
            parallel: 1,
            batch_bytes: limits::BATCH_BYTES,
            unacknowledged: 3,
            trim_every_ms: (1_000, 60_000),
            trim_limit: 4_096,
        }
    }
}

/// What is drawn from while this node leads.
#[derive(Debug)]
struct Leading {
    term: u64,
    /// Last revision drawn.
    revision: Revision,
    /// Last stamp drawn.
    stamp_ms: u64,
    seed: u64,
    /// When the next trim is tried, monotonic.
    trim_at_ms: u64,
}

/// The sequencer. See the module's head.
#[derive(Debug)]
pub struct Lane {
    settings: LaneSettings,
    leading: Option<Leading>,
    queue: VecDeque<(JobId, Arc<Work>)>,
    preparing: Preparations,
    filling: VecDeque<Batch>,
    proposed: VecDeque<Proposed>,
    waiting: Waiting,
    /// Works under way, by the record key of their receipt.
    keys: BTreeMap<Bytes, (JobId, Fingerprint)>,
    key_of: BTreeMap<JobId, Bytes>,
    last_number: u64,
    woken_ms: Option<u64>,
}

impl Lane {
    /// A lane that does not lead.
    pub fn new(settings: LaneSettings) -> Self {
        Self {
            preparing: Preparations::new(settings.parallel),
            settings,
            leading: None,
            queue: VecDeque::new(),
            filling: VecDeque::new(),
            proposed: VecDeque::new(),
            waiting: Waiting::default(),
            keys: BTreeMap::new(),
            key_of: BTreeMap::new(),
            last_number: 0,
            woken_ms: None,
        }
    }

    /// Whether a work under this receipt's record key is under way.
    pub fn in_flight(&self, record_key: &[u8]) -> bool {
        self.keys.contains_key(record_key)
    }

    /// Works that wait to be admitted.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Proposed batches that are neither applied nor failed.
    pub fn unacknowledged(&self) -> usize {
        self.proposed.len()
    }

    /// Mutations prepared again because what they had read was written meanwhile, ever.
    pub fn conflicts(&self) -> u64 {
        self.preparing.conflicts()
    }

    /// The term that the lane draws in, while it leads.
    pub fn term(&self) -> Option<u64> {
        self.leading.as_ref().map(|l| l.term)
    }

    /// Takes one event; says what is to be done, in order.
    pub fn step(&mut self, event: Event, now: Now) -> Vec<Effect> {
        let mut out = Vec::new();
        match event {
            Event::Arrived {
                ticket,
                work,
                deadline_ms,
            } => self.arrived(ticket, work, deadline_ms, now, &mut out),
            Event::Prepared {
                job,
                outcome,
                reads,
            } => {
                // One of an earlier leadership is not under way any more.
                if self.preparing.end(job, outcome, reads) {
                    self.certify(now, &mut out);
                }
            }
            Event::Flushed { batch } => {
                if let Some(p) = self.proposed.iter_mut().find(|p| p.id == batch) {
                    p.flushed = true;
                }
            }
            Event::Applied { batch } => self.applied(batch, &mut out),
            Event::Failed { batch, why } => self.failed(batch, why, &mut out),
            Event::LeaderGained {
                term,
                revision,
                stamp_ms,
                seed,
            } => {
                self.stop_leading(&mut out);
                self.abandon_proposed(&mut out);
                self.leading = Some(Leading {
                    term,
                    revision,
                    stamp_ms,
                    seed,
                    trim_at_ms: now.mono_ms + self.settings.trim_every_ms.0,
                });
            }
            Event::LostLeadership => self.stop_leading(&mut out),
            Event::Deadline => self.woken_ms = None,
        }
        self.expire(now, &mut out);
        self.propose(&mut out);
        self.admit(now, &mut out);
        self.wake(now, &mut out);
        out
    }

    fn arrived(
        &mut self,
        ticket: Ticket,
        work: Work,
        deadline_ms: u64,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let refuse = |refusal| Effect::Refuse { ticket, refusal };
        if self.leading.is_none() {
            out.push(refuse(Refusal::NotLeading));
            return;
        }
        if deadline_ms <= now.mono_ms {
            out.push(refuse(Refusal::Problem(Box::new(timed_out(false)))));
            return;
        }
        let key = work.key();
        if let (Some((key, fingerprint)), Work::Mutate(call)) = (&key, &work)
            && let Some((job, theirs)) = self.keys.get(key)
        {
            if theirs != fingerprint {
                let problem = Box::new(key_reused(&call.key, &call.name));
                out.push(refuse(Refusal::Problem(problem)));
            } else if self.waiting.joined() >= self.settings.queue {
                out.push(refuse(Refusal::Problem(Box::new(overloaded(
                    self.settings.queue,
                )))));
            } else {
                self.waiting.join(*job, ticket, deadline_ms);
            }
            return;
        }
        // Only clients are held to the bound: an operator must get through a crowd.
        if self.queue.len() >= self.settings.queue && key.is_some() {
            out.push(refuse(Refusal::Problem(Box::new(overloaded(
                self.settings.queue,
            )))));
            return;
        }
        let job = JobId(self.number());
        if let Some((key, fingerprint)) = key {
            self.key_of.insert(job, key.clone());
            self.keys.insert(key, (job, fingerprint));
        }
        self.waiting.join(job, ticket, deadline_ms);
        self.queue.push_back((job, Arc::new(work)));
    }

    /// Takes what is prepared, in the order of admission.
    fn certify(&mut self, now: Now, out: &mut Vec<Effect>) {
        while let Some(next) = self.preparing.next() {
            match next {
                Next::Certified(work, outcome) => self.certified(work, outcome, now, out),
                Next::Again(job, work, drawn) => {
                    let overlay = self.overlay();
                    out.push(Effect::Prepare {
                        job,
                        work,
                        drawn,
                        overlay,
                    });
                }
            }
        }
    }

    fn certified(
        &mut self,
        prepared: Box<Preparing>,
        outcome: Prepared,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let Preparing {
            job, work, drawn, ..
        } = *prepared;
        if let Work::Trim { .. } = &*work {
            self.plan_trim(&outcome, drawn, now);
        }
        let (patch, verdict) = match outcome {
            Prepared::Commit { patch, reply } => (Some(patch), Verdict::Reply(reply)),
            Prepared::Answer(reply) => (None, Verdict::Reply(reply)),
            Prepared::Refuse(problem) => (None, Verdict::Refuse(problem)),
        };
        let Some(patch) = patch.filter(|p| !p.is_empty()) else {
            // Judged on patches that are not applied yet: it is true when they are.
            match self.last_batch() {
                Some(batch) => batch.verdicts.push((job, verdict)),
                None => self.answer(job, verdict, out),
            }
            return;
        };
        self.preparing.certify(patch.clone());
        let kind = work.kind();
        let full = self.settings.batch_bytes;
        let fits = |b: &Batch| {
            b.kind == EntryKind::Mutations && kind == EntryKind::Mutations && b.bytes < full
        };
        if !self.filling.back().is_some_and(fits) {
            self.filling.push_back(Batch {
                kind,
                patches: Vec::new(),
                bytes: 0,
                revision: drawn.revision,
                stamp_ms: drawn.now_ms,
                verdicts: Vec::new(),
            });
        }
        if let Some(batch) = self.filling.back_mut() {
            batch.bytes += patch.size();
            batch.patches.push(patch);
            batch.revision = drawn.revision;
            batch.stamp_ms = drawn.now_ms;
            batch.verdicts.push((job, verdict));
        }
    }

    /// When to try the next trim: soon when this one hit its limit, else when the first
    /// receipt left falls due, within the bounds.
    fn plan_trim(&mut self, outcome: &Prepared, drawn: Drawn, now: Now) {
        let (least, most) = self.settings.trim_every_ms;
        let reply = match outcome {
            Prepared::Commit { reply, .. } | Prepared::Answer(reply) => Some(reply),
            Prepared::Refuse(_) => None,
        };
        let due_in = match reply {
            Some(Reply::Trimmed {
                next_due_ms: Some(due),
                ..
            }) => due.saturating_sub(drawn.now_ms),
            _ => most,
        };
        if let Some(leading) = &mut self.leading {
            leading.trim_at_ms = now.mono_ms + due_in.clamp(least, most);
        }
    }

    fn applied(&mut self, batch: BatchId, out: &mut Vec<Effect>) {
        let Some(at) = self.proposed.iter().position(|p| p.id == batch) else {
            return;
        };
        // Batches apply in order, so those before this one are applied too.
        for done in self.proposed.drain(..=at).collect::<Vec<_>>() {
            for (job, verdict) in done.batch.verdicts {
                self.answer(job, verdict, out);
            }
        }
    }

    fn failed(&mut self, batch: BatchId, why: BatchFailure, out: &mut Vec<Effect>) {
        let Some(at) = self.proposed.iter().position(|p| p.id == batch) else {
            return;
        };
        if let Some(failed) = self.proposed.remove(at) {
            if self.term() == Some(failed.term) {
                self.stop_leading(out);
            }
            let refusal = match why {
                BatchFailure::NotDone => Refusal::NotLeading,
                BatchFailure::Unknown => Refusal::Unknown,
            };
            self.refuse_batch(failed.batch, &refusal, out);
        }
    }

    /// What was not proposed has not happened.
    fn stop_leading(&mut self, out: &mut Vec<Effect>) {
        if self.leading.take().is_none() {
            return;
        }
        let unprepared = self.preparing.clear();
        let queued = mem::take(&mut self.queue).into_iter().map(|(job, _)| job);
        for job in unprepared.into_iter().chain(queued).collect::<Vec<_>>() {
            self.refuse(job, &Refusal::NotLeading, out);
        }
        for batch in mem::take(&mut self.filling) {
            self.refuse_batch(batch, &Refusal::NotLeading, out);
        }
        out.push(Effect::DropSpeculation);
    }

    /// A new leadership begins: entries of an earlier one are applied or gone, and nobody
    /// will say which.
    fn abandon_proposed(&mut self, out: &mut Vec<Effect>) {
        for old in mem::take(&mut self.proposed) {
            self.refuse_batch(old.batch, &Refusal::Unknown, out);
        }
    }

    fn refuse_batch(&mut self, batch: Batch, refusal: &Refusal, out: &mut Vec<Effect>) {
        for (job, verdict) in batch.verdicts {
            // A refusal changes nothing, whatever became of the batch that it waited for.
            let certain = matches!(verdict, Verdict::Refuse(_));
            let refusal = if certain {
                &Refusal::NotLeading
            } else {
                refusal
            };
            self.refuse(job, refusal, out);
        }
    }

    fn last_batch(&mut self) -> Option<&mut Batch> {
        let proposed = self.proposed.back_mut().map(|p| &mut p.batch);
        self.filling.back_mut().or(proposed)
    }

    fn answer(&mut self, job: JobId, verdict: Verdict, out: &mut Vec<Effect>) {
        self.forget_key(job);
        for (i, ticket) in self.waiting.take(job).into_iter().enumerate() {
            out.push(match verdict.clone_for(i) {
                Verdict::Reply(reply) => Effect::Reply { ticket, reply },
                Verdict::Refuse(problem) => Effect::Refuse {
                    ticket,
                    refusal: Refusal::Problem(problem),
                },
            });
        }
    }

    fn refuse(&mut self, job: JobId, refusal: &Refusal, out: &mut Vec<Effect>) {
        self.forget_key(job);
        for ticket in self.waiting.take(job) {
            out.push(Effect::Refuse {
                ticket,
                refusal: refusal.clone(),
            });
        }
    }

    fn forget_key(&mut self, job: JobId) {
        if let Some(key) = self.key_of.remove(&job) {
            self.keys.remove(&key);
        }
    }

    /// Answers callers whose time is up. A work that nobody waits for and that has not begun
    /// is dropped.
    fn expire(&mut self, now: Now, out: &mut Vec<Effect>) {
        let expired = self.waiting.expire(now.mono_ms);
        if expired.is_empty() {
            return;
        }
        let mut dropped = BTreeSet::new();
        for (ticket, job, last) in expired {
            let queued = last && self.queue.iter().any(|(id, _)| *id == job);
            if queued {
                dropped.insert(job);
                self.forget_key(job);
            }
            out.push(Effect::Refuse {
                ticket,
                refusal: Refusal::Problem(Box::new(timed_out(!queued))),
            });
        }
        self.queue.retain(|(job, _)| !dropped.contains(job));
    }

    fn propose(&mut self, out: &mut Vec<Effect>) {
        let Some(term) = self.term() else { return };
        while let Some(first) = self.filling.front() {
            let flushing = self.proposed.iter().any(|p| !p.flushed);
            let closed = self.filling.len() > 1 || first.bytes >= self.settings.batch_bytes;
            let room = self.proposed.len() < self.settings.unacknowledged;
            if !room || (flushing && !closed) {
                return;
            }
            let id = BatchId(self.number());
            let Some(batch) = self.filling.pop_front() else {
                return;
            };
            out.push(Effect::Propose {
                term,
                batch: id,
                entry: batch.entry(),
            });
            self.proposed.push_back(Proposed {
                id,
                term,
                flushed: false,
                batch,
            });
        }
    }

    fn admit(&mut self, now: Now, out: &mut Vec<Effect>) {
        // A full batch that cannot be proposed holds the rest back.
        let full = |b: &Batch| b.bytes >= self.settings.batch_bytes;
        if self.filling.len() > 1 || self.filling.iter().any(full) {
            return;
        }
        while let Some((job, work, drawn)) = self.draw(now) {
            let overlay = self.overlay();
            self.preparing.begin(job, work.clone(), drawn);
            out.push(Effect::Prepare {
                job,
                work,
                drawn,
                overlay,
            });
        }
    }

    /// The next work that may be prepared now, with what it draws.
    fn draw(&mut self, now: Now) -> Option<(JobId, Arc<Work>, Drawn)> {
        let leading = self.leading.as_mut()?;
        let stamp_ms = now.wall_ms.max(leading.stamp_ms);
        let trim = leading.trim_at_ms <= now.mono_ms;
        let alone = trim || self.queue.front().is_some_and(|(_, w)| !is_mutation(w));
        if !self.preparing.has_room() || (alone && !self.preparing.is_empty()) {
            return None;
        }
        let (job, work) = if trim {
            leading.trim_at_ms = u64::MAX;
            let work = Work::Trim {
                cutoff_ms: stamp_ms,
                limit: self.settings.trim_limit,
            };
            self.last_number += 1;
            (JobId(self.last_number), Arc::new(work))
        } else {
            self.queue.pop_front()?
        };
        leading.stamp_ms = stamp_ms;
        leading.revision = Revision(leading.revision.max(work.above()).0 + 1);
        let drawn = Drawn {
            revision: leading.revision,
            now_ms: stamp_ms,
            seed: mix(leading.seed, leading.revision.0),
        };
        Some((job, work, drawn))
    }

    /// The certified patches that are not applied, oldest first.
    fn overlay(&self) -> Vec<Arc<Patch>> {
        let proposed = self.proposed.iter().map(|p| &p.batch);
        proposed
            .chain(&self.filling)
            .flat_map(|b| b.patches.iter().cloned())
            .collect()
    }

    /// Asks to be woken at the first deadline or trim, unless an earlier wake is set.
    /// A trim that is due already waits for the work under preparation, not for the clock.
    fn wake(&mut self, now: Now, out: &mut Vec<Effect>) {
        let trim = self.leading.as_ref().map(|l| l.trim_at_ms);
        let trim = trim.filter(|at| *at > now.mono_ms);
        let next = self.waiting.first_deadline().into_iter().chain(trim).min();
        let Some(at) = next.filter(|at| *at < u64::MAX) else {
            return;
        };
        if self.woken_ms.is_none_or(|woken| at < woken) {
            self.woken_ms = Some(at);
            out.push(Effect::WakeAt { mono_ms: at });
        }
    }

    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}
