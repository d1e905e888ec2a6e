//! Works under preparation, in the order of their admission, and what was certified since the
//! oldest of them began. They are prepared side by side and certified one by one: a work whose
//! reads were written meanwhile is prepared again, with everything before it certified, so
//! that its second try always holds. Values are never read again.

use std::{collections::VecDeque, sync::Arc};

use super::{Drawn, JobId, Prepared, Work};
use crate::{reads::ReadSet, view::Patch};

/// Works certified without a conflict after which one more is prepared at a time.
const CALM: usize = 16;

/// A work under preparation.
#[derive(Debug)]
pub(super) struct Preparing {
    pub(super) job: JobId,
    pub(super) work: Arc<Work>,
    pub(super) drawn: Drawn,
    /// Patches certified when its preparation began: those it sees.
    seen: u64,
    ended: Option<(Prepared, Option<Arc<ReadSet>>)>,
}

/// What comes next of the works under preparation.
#[derive(Debug)]
pub(super) enum Next {
    /// The oldest one holds.
    Certified(Box<Preparing>, Prepared),
    /// The oldest one read what has changed since: to be prepared again.
    Again(JobId, Arc<Work>, Drawn),
}

/// All works under preparation.
#[derive(Debug)]
pub(super) struct Preparations {
    all: VecDeque<Preparing>,
    /// The last patches certified, back to what the oldest preparation has not seen.
    recent: VecDeque<Arc<Patch>>,
    /// How many patches were ever certified.
    certified: u64,
    most: usize,
    /// How many are prepared side by side now: halved by a conflict, so that a crowd on one
    /// record is prepared once each.
    width: usize,
    calm: usize,
    conflicts: u64,
}

impl Preparations {
    /// At most `most` (at least 1) at a time.
    pub(super) fn new(most: usize) -> Self {
        let most = most.max(1);
        Self {
            all: VecDeque::new(),
            recent: VecDeque::new(),
            certified: 0,
            most,
            width: most,
            calm: 0,
            conflicts: 0,
        }
    }

    /// Works prepared again because what they read had changed.
    pub(super) fn conflicts(&self) -> u64 {
        self.conflicts
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether a mutation may be prepared besides those under way. Everything else is
    /// prepared alone.
    pub(super) fn has_room(&self) -> bool {
        let alone = self.all.front().is_some_and(|p| !is_mutation(&p.work));
        !alone && self.all.len() < self.width
    }

    pub(super) fn begin(&mut self, job: JobId, work: Arc<Work>, drawn: Drawn) {
        self.all.push_back(Preparing {
            job,
            work,
            drawn,
            seen: self.certified,
            ended: None,
        });
    }

    /// A preparation has ended; false for one that is not under way (any more).
    pub(super) fn end(
        &mut self,
        job: JobId,
        outcome: Prepared,
        reads: Option<Arc<ReadSet>>,
    ) -> bool {
        let Some(found) = self.all.iter_mut().find(|p| p.job == job) else {
            return false;
        };
        found.ended = Some((outcome, reads));
        true
    }

    /// Certifies the oldest work, if its preparation has ended.
    pub(super) fn next(&mut self) -> Option<Next> {
        let front = self.all.front()?;
        let (outcome, reads) = front.ended.as_ref()?;
        // A receipt that was found stays: trims are prepared alone.
        let replay = matches!(outcome, Prepared::Answer(_));
        if !replay && self.conflicts_with(front.seen, reads.as_deref()) {
            self.conflicts += 1;
            (self.width, self.calm) = ((self.width / 2).max(1), 0);
            let certified = self.certified;
            let front = self.all.front_mut()?;
            front.ended = None;
            front.seen = certified;
            return Some(Next::Again(front.job, front.work.clone(), front.drawn));
        }
        self.calm += 1;
        if self.calm >= CALM {
            (self.width, self.calm) = ((self.width + 1).min(self.most), 0);
        }
        let mut front = self.all.pop_front()?;
        let (outcome, _) = front.ended.take()?;
        Some(Next::Certified(Box::new(front), outcome))
    }

    /// What was read is unknown: then anything newer conflicts.
    fn conflicts_with(&self, seen: u64, reads: Option<&ReadSet>) -> bool {
        let newer = usize::try_from(self.certified - seen).unwrap_or(usize::MAX);
        let newer = self.recent.len().saturating_sub(newer);
        let mut newer = self.recent.iter().skip(newer);
        match reads {
            None => newer.next().is_some(),
            Some(reads) => newer.any(|patch| reads.touched_by(patch)),
        }
    }

    /// A patch has its place in the order.
    pub(super) fn certify(&mut self, patch: Arc<Patch>) {
        self.certified += 1;
        self.recent.push_back(patch);
        let oldest = self.all.iter().map(|p| p.seen).min();
        let needed = self.certified - oldest.unwrap_or(self.certified);
        while self.recent.len() as u64 > needed {
            self.recent.pop_front();
        }
    }

    /// Forgets all of them; says which they were.
    pub(super) fn clear(&mut self) -> Vec<JobId> {
        self.recent.clear();
        self.all.drain(..).map(|p| p.job).collect()
    }
}

/// Whether a work may be prepared beside others.
pub(super) fn is_mutation(work: &Work) -> bool {
    matches!(work, Work::Mutate(_))
}
