//! What may have another outcome than the one told: what was written is held against what
//! queries have read, and evaluations say what they read.

use std::collections::BTreeSet;

use flower_api::Revision;
use flower_store::sabotage::{Break, is_broken};

use super::{Hub, Id, Number};
use crate::{
    query::{Key, Outcome},
    recent::{Ring, Touched, Written},
};

/// What a query without a lasting outcome costs others is bounded: it is tried again so long
/// after it failed, milliseconds, and after twice that each time that it fails once more …
const COOL_MS: u64 = 5_000;
/// … up to so many times.
const COOLER: u32 = 5;

impl Hub {
    /// Notes what was written up to `last`, which has `revision`; absent when that is not
    /// known. Returns the watches that have news.
    pub fn mark(
        &mut self,
        written: Option<&[Written]>,
        last: u64,
        revision: Revision,
        now_ms: u64,
    ) -> BTreeSet<Number> {
        let mut news = BTreeSet::new();
        match written {
            None if last > self.marked => {
                let all: Vec<Id> = self.queries.keys().copied().collect();
                for query in all {
                    self.touch(query, last, now_ms, &mut news);
                }
            }
            None => {}
            Some(written) => {
                let marked = self.marked;
                let skips = |w: &Written| is_broken(Break::WatchSkips) && w.index.is_multiple_of(8);
                for one in written.iter().filter(|w| w.index > marked && !skips(w)) {
                    let mut touched = self.blind.clone();
                    for (space, key) in one.keys.iter() {
                        self.index.touched(*space, key, |query| {
                            touched.insert(query);
                        });
                    }
                    for query in touched {
                        self.touch(query, one.index, now_ms, &mut news);
                    }
                }
            }
        }
        self.marked = self.marked.max(last);
        self.revision = self.revision.max(revision);
        news
    }

    /// Watches with news because a query has waited long enough after it failed.
    pub fn tick(&mut self, now_ms: u64) -> BTreeSet<Number> {
        let mut news = BTreeSet::new();
        let ready: Vec<Id> = self
            .cooling
            .iter()
            .filter(|(_, at)| **at <= now_ms)
            .map(|(query, _)| *query)
            .collect();
        for query in ready {
            self.cooling.remove(&query);
            let Some(distinct) = self.queries.get(&query) else {
                continue;
            };
            // Whatever was written: the same state may do this time.
            for number in &distinct.watchers {
                if let Some(watch) = self.watches.get_mut(number) {
                    watch.due.insert(query);
                    news.insert(*number);
                }
            }
        }
        news
    }

    fn touch(&mut self, query: Id, index: u64, now_ms: u64, news: &mut BTreeSet<Number>) {
        let Some(distinct) = self.queries.get_mut(&query) else {
            return;
        };
        distinct.touched = distinct.touched.max(index);
        if distinct.cool_until > now_ms {
            return;
        }
        for number in &distinct.watchers {
            let Some(watch) = self.watches.get_mut(number) else {
                continue;
            };
            let asked = watch.asks.get(&query);
            if asked.is_some_and(|asked| asked.as_of < Some(distinct.touched)) {
                watch.due.insert(query);
                news.insert(*number);
            }
        }
    }

    /// Learns what an evaluation at `at` has read, if its query is watched.
    pub fn learn(&mut self, key: &Key, at: u64, outcome: &Outcome, ring: &Ring, now_ms: u64) {
        let Some(query) = self.ids.get(key).copied() else {
            return;
        };
        let marked = self.marked;
        let Some(distinct) = self.queries.get_mut(&query) else {
            return;
        };
        if at < distinct.at {
            return;
        }
        distinct.at = at;
        distinct.touched = match &outcome.reads {
            _ if at >= marked => at.min(distinct.touched),
            None => marked,
            Some(reads) => match ring.touched(reads, at, marked) {
                Touched::No => at.min(distinct.touched),
                Touched::By(index) => index,
                Touched::Unknown => marked,
            },
        };
        if outcome.is_shaky() {
            let wait = COOL_MS << distinct.failures.min(COOLER);
            distinct.failures += 1;
            distinct.cool_until = now_ms.saturating_add(wait);
            self.cooling.insert(query, distinct.cool_until);
        } else {
            (distinct.failures, distinct.cool_until) = (0, 0);
            self.cooling.remove(&query);
        }
        if distinct.reads != outcome.reads {
            if let Some(old) = distinct.reads.take() {
                self.index.remove(query, &old);
            }
            if let Some(new) = &outcome.reads {
                self.index.insert(query, new);
            }
            distinct.reads = outcome.reads.clone();
        }
        match distinct.reads {
            Some(_) => self.blind.remove(&query),
            None => self.blind.insert(query),
        };
    }

    /// What a query has read is no longer kept: any write may change it.
    pub fn forget(&mut self, key: &Key) {
        let Some(query) = self.ids.get(key).copied() else {
            return;
        };
        if let Some(distinct) = self.queries.get_mut(&query)
            && let Some(old) = distinct.reads.take()
        {
            self.index.remove(query, &old);
            self.blind.insert(query);
        }
    }
}
