//! Prepared works on their way to the log, and the words of the lane's own refusals.

use std::sync::Arc;

use flower_api::{
    Revision,
    wire::{Problem, code},
};

use super::{BatchId, JobId, Reply};
use crate::{
    entry::{Entry, EntryKind},
    key::{Space, meta},
    view::{Patch, PatchBuilder},
};

/// How a caller will be answered once the batch is applied.
#[derive(Debug)]
pub(super) enum Verdict {
    Reply(Reply),
    Refuse(Box<Problem>),
}

/// Prepared works, to become one entry.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) kind: EntryKind,
    pub(super) patches: Vec<Arc<Patch>>,
    pub(super) bytes: u64,
    pub(super) revision: Revision,
    pub(super) stamp_ms: u64,
    pub(super) verdicts: Vec<(JobId, Verdict)>,
}

/// A batch on its way.
#[derive(Debug)]
pub(super) struct Proposed {
    pub(super) id: BatchId,
    pub(super) term: u64,
    pub(super) flushed: bool,
    pub(super) batch: Batch,
}

impl Batch {
    /// The entry: the patches, then one that moves revision and stamp.
    pub(super) fn entry(&self) -> Entry {
        let mut mark = PatchBuilder::new();
        let revision = self.revision.0.to_be_bytes().to_vec();
        mark.put(Space::Meta, meta::REVISION, revision);
        mark.put(
            Space::Meta,
            meta::STAMP,
            self.stamp_ms.to_be_bytes().to_vec(),
        );
        let mut patches = self.patches.clone();
        patches.push(Arc::new(mark.seal()));
        Entry {
            kind: self.kind,
            revision: self.revision,
            stamp_ms: self.stamp_ms,
            patches,
        }
    }
}

impl Verdict {
    /// The verdict for the i-th caller: all but the first joined a work under way, and get
    /// what a retry would get.
    pub(super) fn clone_for(&self, i: usize) -> Self {
        match self {
            Self::Refuse(problem) => Self::Refuse(problem.clone()),
            Self::Reply(reply) => {
                let mut reply = reply.clone();
                if let Reply::Mutated { replayed, .. } = &mut reply {
                    *replayed |= i > 0;
                }
                Self::Reply(reply)
            }
        }
    }
}

/// The refusal of a caller whose time is up.
pub(super) fn timed_out(begun: bool) -> Problem {
    let detail = if begun {
        "the deadline passed while the call was under way; retry with the same key to learn \
         its outcome"
    } else {
        "the deadline passed before the call began; nothing happened"
    };
    let problem = Problem::new(504, code::TIMEOUT, "Timeout", detail);
    if begun {
        problem.unknown()
    } else {
        problem.retryable()
    }
}

/// splitmix64: one well-mixed seed for each revision of a term.
pub(super) fn mix(seed: u64, revision: u64) -> u64 {
    let mut z = seed.wrapping_add(revision.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The refusal of a call while so many wait already.
pub(super) fn overloaded(waiting: usize) -> Problem {
    Problem::new(
        429,
        code::OVERLOADED,
        "Overloaded",
        format!("{waiting} mutations wait already; retry in a moment"),
    )
    .retryable()
    .setting("FLOWER_LIMIT_QUEUE")
}
