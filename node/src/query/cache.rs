//! Results of queries with what they read: a result holds for every later state up to which
//! nothing of that was written. Bounded in bytes; what nobody watches goes first, the longest
//! unused before the others. Evaluates nothing.

use std::{collections::BTreeMap, sync::Arc};

use super::key::{Key, Outcome};
use crate::recent::{Ring, Touched};

/// Estimated bytes of an entry besides key, result and reads.
const ENTRY_BYTES: u64 = 256;
/// A result that takes a larger part of the cache than this is not kept.
const LARGEST_PART: u64 = 4;

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Bytes in use.
    pub bytes: u64,
    /// Results found.
    pub hits: u64,
    /// Results that had to be evaluated.
    pub misses: u64,
    /// Results that made room for others.
    pub evictions: u64,
}

/// What the cache knows for a state.
#[derive(Debug)]
pub enum Found {
    /// The result, and a position at which it is known to hold.
    Valid(Arc<Outcome>, u64),
    /// A result of a later state.
    Newer,
    /// Nothing.
    Nothing,
}

/// The cache. Positions are indexes of the log.
#[derive(Debug)]
pub struct Cache {
    limit: u64,
    entries: BTreeMap<Key, Entry>,
    /// Who goes first.
    order: BTreeMap<Rank, Key>,
    ticks: u64,
    stats: CacheStats,
}

/// Watched or not, and when last used.
type Rank = (bool, u64);

#[derive(Debug)]
struct Entry {
    outcome: Arc<Outcome>,
    deployment: Arc<str>,
    /// Evaluated at.
    at: u64,
    /// Known to hold up to.
    holds: u64,
    bytes: u64,
    rank: Rank,
}

impl Cache {
    /// Of at most so many bytes.
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            entries: BTreeMap::new(),
            order: BTreeMap::new(),
            ticks: 0,
            stats: CacheStats::default(),
        }
    }

    /// Counts.
    pub fn stats(&self) -> CacheStats {
        self.stats
    }

    /// The result of `key` under `deployment` for the state that has applied `at`.
    pub fn find(&mut self, key: &Key, deployment: &str, at: u64, ring: &Ring) -> Found {
        let Some(entry) = self.entries.get_mut(key) else {
            return Found::Nothing;
        };
        if at < entry.at {
            return Found::Newer;
        }
        if &*entry.deployment != deployment || !entry.holds_at(at, ring) {
            self.remove(key);
            return Found::Nothing;
        }
        let (outcome, holds) = (entry.outcome.clone(), entry.holds);
        let watched = entry.rank.0;
        self.rank(key, watched);
        Found::Valid(outcome, holds)
    }

    /// A result was found, or had to be evaluated.
    pub fn count(&mut self, hit: bool) {
        match hit {
            true => self.stats.hits += 1,
            false => self.stats.misses += 1,
        }
    }

    /// Keeps a result evaluated at `at`, if it can. Returns what is not kept: others that had
    /// to go, or this one.
    pub fn put(
        &mut self,
        key: &Key,
        deployment: &Arc<str>,
        at: u64,
        outcome: &Arc<Outcome>,
        watched: bool,
    ) -> Vec<Key> {
        let bytes = key.bytes() * 2 + outcome.bytes() + ENTRY_BYTES;
        let older = self.entries.get(key).is_some_and(|entry| entry.at > at);
        if older {
            return Vec::new();
        }
        if outcome.reads.is_none() || bytes > self.limit / LARGEST_PART {
            return vec![key.clone()];
        }
        self.remove(key);
        self.ticks += 1;
        let rank = (watched, self.ticks);
        self.stats.bytes += bytes;
        self.order.insert(rank, key.clone());
        let entry = Entry {
            outcome: outcome.clone(),
            deployment: deployment.clone(),
            at,
            holds: at,
            bytes,
            rank,
        };
        self.entries.insert(key.clone(), entry);
        let mut gone = Vec::new();
        while self.stats.bytes > self.limit
            && let Some((_, first)) = self.order.first_key_value()
        {
            let first = first.clone();
            self.remove(&first);
            self.stats.evictions += 1;
            gone.push(first);
        }
        gone
    }

    /// Whether somebody watches `key`.
    pub fn watch(&mut self, key: &Key, watched: bool) {
        if self.entries.contains_key(key) {
            self.rank(key, watched);
        }
    }

    fn rank(&mut self, key: &Key, watched: bool) {
        self.ticks += 1;
        if let Some(entry) = self.entries.get_mut(key) {
            self.order.remove(&entry.rank);
            entry.rank = (watched, self.ticks);
            self.order.insert(entry.rank, key.clone());
        }
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.order.remove(&entry.rank);
            self.stats.bytes -= entry.bytes;
        }
    }
}

impl Entry {
    fn holds_at(&mut self, at: u64, ring: &Ring) -> bool {
        if at <= self.holds {
            return true;
        }
        let Some(reads) = &self.outcome.reads else {
            return false;
        };
        let untouched = ring.touched(reads, self.holds, at) == Touched::No;
        if untouched {
            self.holds = at;
        }
        untouched
    }
}

#[cfg(test)]
mod tests;
