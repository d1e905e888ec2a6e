//! What goes into the lane and what comes out: events, effects, works and their answers.
//! Data only; they own what they hold, so an effect means the same whenever it is run.

use std::sync::Arc;

use bytes::Bytes;
use flower_api::{
    Revision,
    export::{Imported, Step},
    manifest::Manifest,
    wire::Problem,
};

use crate::{
    deploy::PageEnd,
    entry::{Entry, EntryKind},
    limits::Stamp,
    reads::ReadSet,
    receipt::{Fingerprint, IdempotencyKey, Receipt, Scope},
    view::Patch,
};

/// One caller that waits for an answer. Numbered by the node; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// One piece of work, whoever waits for it. Numbered by the lane; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// One proposed log entry. Numbered by the lane; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);

/// The time, read by the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds on a clock that never goes back.
    pub mono_ms: u64,
    /// Milliseconds since 1970.
    pub wall_ms: u64,
}

/// What is drawn for a piece of work when it is admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drawn {
    /// Its revision. One that fails leaves a gap.
    pub revision: Revision,
    /// Its time, ms since 1970; never below that of any work before it.
    pub now_ms: u64,
    /// Seed of its random numbers.
    pub seed: u64,
}

impl From<Drawn> for Stamp {
    fn from(drawn: Drawn) -> Self {
        let Drawn {
            revision,
            now_ms,
            seed,
        } = drawn;
        Self {
            now_ms,
            revision,
            seed,
        }
    }
}

/// A call of a mutation.
#[derive(Debug, Clone, PartialEq)]
pub struct Mutation {
    /// Whose key it is.
    pub scope: Scope,
    /// Its idempotency key.
    pub key: IdempotencyKey,
    /// The node minted the key; then a declared fault leaves no receipt.
    pub minted: bool,
    /// The mutation's name.
    pub name: String,
    /// Arguments, JSON.
    pub args: Arc<str>,
    /// What the key stands for.
    pub fingerprint: Fingerprint,
}

/// A change of the group's marks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// The group has reached its size: mutations are accepted from now on.
    Formed,
    /// A FlowerCluster object acts on the group.
    Owner {
        /// Its uid.
        uid: String,
        /// Its generation.
        generation: i64,
        /// Takes the group over from another uid.
        adopt: bool,
    },
}

/// A step of an import.
#[derive(Debug, Clone, PartialEq)]
pub struct Import {
    /// Checksum of the export.
    pub import: String,
    /// The step.
    pub step: Step,
    /// Lines of the export that belong to it.
    pub lines: Arc<str>,
    /// What the bundle among them declares, for a step that begins; it has been inspected.
    pub manifest: Option<Arc<Manifest>>,
}

/// What the lane can be asked to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Work {
    /// Run a mutation.
    Mutate(Mutation),
    /// Make a bundle the active application. It has been inspected already.
    Deploy {
        /// One ES module.
        source: Arc<str>,
        /// What it declares.
        manifest: Arc<Manifest>,
        /// The ConfigMap that owns the application.
        managed_by: Option<String>,
    },
    /// Make the next page of the build that is under way.
    Build {
        /// Rows that it takes at most.
        rows: u64,
        /// End the build instead, for this reason.
        hopeless: Option<String>,
    },
    /// Set a mark.
    Mark(Mark),
    /// Do a step of an import.
    Import(Import),
    /// Delete receipts whose time is up. Made by the lane itself.
    Trim {
        /// Time up to which receipts are deleted, ms since 1970.
        cutoff_ms: u64,
        /// At most so many.
        limit: usize,
    },
}

impl Work {
    /// Kind of the entry that carries it.
    pub fn kind(&self) -> EntryKind {
        match self {
            Self::Mutate(_) => EntryKind::Mutations,
            Self::Deploy { .. } | Self::Build { .. } => EntryKind::Deploy,
            Self::Mark(_) => EntryKind::Mark,
            Self::Import(_) => EntryKind::Import,
            Self::Trim { .. } => EntryKind::Trim,
        }
    }

    /// The revision above which it draws: an import brings rows with ids that were made of the
    /// revisions up to its own, which must not be made again.
    pub(super) fn above(&self) -> Revision {
        match self {
            Self::Import(Import {
                step: Step::Begin(header),
                ..
            }) => header.revision,
            _ => Revision(0),
        }
    }

    /// The receipt's record key, for mutations.
    pub(super) fn key(&self) -> Option<(Bytes, Fingerprint)> {
        match self {
            Self::Mutate(m) => Some((m.scope.record_key(&m.key), m.fingerprint)),
            _ => None,
        }
    }
}

/// What a piece of work came to.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// A mutation: its receipt, and whether that was stored before.
    Mutated {
        /// The outcome.
        receipt: Receipt,
        /// The whole result when the receipt does not keep it.
        unkept: Option<String>,
        /// Stored before this call.
        replayed: bool,
        /// Hash of the deployment that ran it; absent for a replay.
        deployment: Option<String>,
    },
    /// A deployment.
    Deployed {
        /// Hash of the bundle.
        hash: String,
        /// False when it was active already.
        changed: bool,
        /// What changed, for people.
        changes: Vec<String>,
        /// It becomes active when its build is done.
        building: bool,
    },
    /// A page of a build: what became of it; absent when none is under way.
    Built(Option<PageEnd>),
    /// A mark is set.
    Marked,
    /// A step of an import is done.
    Imported(Imported),
    /// A trim.
    Trimmed {
        /// Receipts deleted.
        trimmed: u64,
        /// When the first one left falls due, ms since 1970.
        next_due_ms: Option<u64>,
    },
}

/// What preparing a piece of work came to.
#[derive(Debug, Clone, PartialEq)]
pub enum Prepared {
    /// This patch is to be committed; then this is the answer.
    Commit {
        /// Effects, receipt included.
        patch: Arc<Patch>,
        /// The answer.
        reply: Reply,
    },
    /// Nothing is to be written; this is the answer, once everything before it is applied.
    Answer(Reply),
    /// Refused; nothing happened.
    Refuse(Box<Problem>),
}

/// Why a caller gets no reply.
#[derive(Debug, Clone, PartialEq)]
pub enum Refusal {
    /// Nothing happened, and this node does not lead: ask the leader.
    NotLeading,
    /// It may have happened: retry with the same key.
    Unknown,
    /// Refused, with the reason.
    Problem(Box<Problem>),
}

/// Why a batch failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchFailure {
    /// It is not in the log and never will be.
    NotDone,
    /// It may be in the log.
    Unknown,
}

/// What happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// Somebody asks for work.
    Arrived {
        /// Who.
        ticket: Ticket,
        /// For what.
        work: Work,
        /// Until when an answer is of use, on the monotonic clock.
        deadline_ms: u64,
    },
    /// A preparation ended.
    Prepared {
        /// Of which work.
        job: JobId,
        /// How.
        outcome: Prepared,
        /// What it read of the state; absent when that is not known, and then every write
        /// since its preparation began makes it be prepared again.
        reads: Option<Arc<ReadSet>>,
    },
    /// The local log holds this batch durably.
    Flushed {
        /// The batch.
        batch: BatchId,
    },
    /// The batch is committed and applied here.
    Applied {
        /// The batch.
        batch: BatchId,
    },
    /// The batch failed; the leadership that it was proposed under is over.
    Failed {
        /// The batch.
        batch: BatchId,
        /// How.
        why: BatchFailure,
    },
    /// This node leads, and everything before its own first entry is applied.
    LeaderGained {
        /// The term.
        term: u64,
        /// Last revision in the applied state.
        revision: Revision,
        /// Last stamp in the applied state, ms since 1970.
        stamp_ms: u64,
        /// Seed of the seeds of this term's mutations.
        seed: u64,
    },
    /// This node leads no more.
    LostLeadership,
    /// Time has passed.
    Deadline,
}

/// What the node is to do.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Prepare this work on the newest view with these patches laid over it, and answer
    /// with `Prepared`. Several may be under way; the same work is again only after its answer.
    Prepare {
        /// The work's number.
        job: JobId,
        /// The work.
        work: Arc<Work>,
        /// Its revision, time and seed.
        drawn: Drawn,
        /// Patches that are not applied yet, oldest first.
        overlay: Vec<Arc<Patch>>,
    },
    /// Propose this entry under this term's leadership, after all entries before it; answer
    /// with `Flushed` and `Applied`, or with `Failed`.
    Propose {
        /// The term.
        term: u64,
        /// The batch.
        batch: BatchId,
        /// Its entry.
        entry: Entry,
    },
    /// Answer a caller.
    Reply {
        /// Whom.
        ticket: Ticket,
        /// What.
        reply: Reply,
    },
    /// Refuse a caller.
    Refuse {
        /// Whom.
        ticket: Ticket,
        /// Why.
        refusal: Refusal,
    },
    /// Step with `Deadline` at this time on the monotonic clock.
    WakeAt {
        /// The time.
        mono_ms: u64,
    },
    /// Forget everything derived from patches that are not applied: values cached under
    /// their revisions may become others under the next leader.
    DropSpeculation,
}
