//! Who waits for which work until when. Knows nothing of what the works are.

use std::collections::{BTreeMap, BTreeSet};

use super::{JobId, Ticket};

/// Callers by work and by deadline.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    by_job: BTreeMap<JobId, Vec<(Ticket, u64)>>,
    by_deadline: BTreeSet<(u64, Ticket, JobId)>,
}

impl Waiting {
    /// One more caller of a work.
    pub(super) fn join(&mut self, job: JobId, ticket: Ticket, deadline_ms: u64) {
        self.by_job
            .entry(job)
            .or_default()
            .push((ticket, deadline_ms));
        self.by_deadline.insert((deadline_ms, ticket, job));
    }

    /// Callers beyond the first of each work.
    pub(super) fn joined(&self) -> usize {
        self.by_deadline.len().saturating_sub(self.by_job.len())
    }

    /// Removes and returns all callers of a work, in order of arrival.
    pub(super) fn take(&mut self, job: JobId) -> Vec<Ticket> {
        let Some(tickets) = self.by_job.remove(&job) else {
            return Vec::new();
        };
        for (ticket, deadline_ms) in &tickets {
            self.by_deadline.remove(&(*deadline_ms, *ticket, job));
        }
        tickets.into_iter().map(|(ticket, _)| ticket).collect()
    }

    /// Removes and returns the callers whose time is up, and whether each was the last one
    /// of its work.
    pub(super) fn expire(&mut self, now_ms: u64) -> Vec<(Ticket, JobId, bool)> {
        let mut out = Vec::new();
        while let Some(&(deadline_ms, ticket, job)) = self.by_deadline.first()
            && deadline_ms <= now_ms
        {
            self.by_deadline.pop_first();
            let mut last = false;
            if let Some(tickets) = self.by_job.get_mut(&job) {
                tickets.retain(|(t, _)| *t != ticket);
                last = tickets.is_empty();
            }
            if last {
                self.by_job.remove(&job);
            }
            out.push((ticket, job, last));
        }
        out
    }

    /// The first deadline.
    pub(super) fn first_deadline(&self) -> Option<u64> {
        self.by_deadline.first().map(|(at, ..)| *at)
    }
}
