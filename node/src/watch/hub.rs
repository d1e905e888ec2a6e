//! What is watched, by whom, and what each watch has been told: a pure state machine. It
//! learns what was written and what evaluations came to; it says which watches have news and
//! what a step holds. Evaluates and sends nothing. Positions are indexes of the log.

mod news;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use flower_api::Revision;
use flower_engine::ReadSet;

use super::index::{Id, Index};
use crate::query::{Etag, Key, Outcome};

/// A watch of this node.
pub type Number = u128;

/// Estimated bytes of a watched query besides its key and name.
const ASK_BYTES: u64 = 320;
/// Bounds.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Watches at a time.
    pub watches: usize,
    /// Queries of one watch.
    pub queries: usize,
    /// Names, keys and what belongs to them, bytes.
    pub bytes: u64,
}

/// A query that a watch asks for.
#[derive(Debug, Clone)]
pub struct Ask {
    /// What it is told under.
    pub id: Arc<str>,
    /// Which it is.
    pub key: Key,
    /// What the client has already.
    pub has: Option<Etag>,
}

/// Why a watch or a query was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// So many watches are open already.
    Watches(usize),
    /// It would have so many queries.
    Queries(usize),
    /// All watches together would take more than so many bytes.
    Bytes(u64),
    /// Two queries with one id.
    Twice(Arc<str>),
    /// There is no such query to remove.
    Unknown(Arc<str>),
    /// There is no such watch.
    Gone,
}

/// One change for one watch.
#[derive(Debug, Clone)]
pub struct Told {
    /// Id of the query.
    pub id: Arc<str>,
    /// Its outcome.
    pub outcome: Arc<Outcome>,
}

/// The hub.
#[derive(Debug)]
pub struct Hub {
    bounds: Bounds,
    watches: BTreeMap<Number, Watch>,
    queries: BTreeMap<Id, Distinct>,
    ids: BTreeMap<Key, Id>,
    last_id: Id,
    index: Index,
    /// Queries whose reads nobody knows: any write may change them.
    blind: BTreeSet<Id>,
    /// Queries that are to be looked at again at a time, milliseconds.
    cooling: BTreeMap<Id, u64>,
    /// Everything written up to here is marked.
    marked: u64,
    revision: Revision,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Watch {
    names: BTreeMap<Arc<str>, Id>,
    asks: BTreeMap<Id, Asked>,
    /// Queries that may have another result than the one told.
    due: BTreeSet<Id>,
    /// Revision that it has come to, whether its client was told or nothing changed for it.
    at: Revision,
    begun: bool,
}

/// What one watch knows of one query.
#[derive(Debug, Default)]
struct Asked {
    /// The outcome told holds at this position; none was told yet when absent.
    as_of: Option<u64>,
    /// The tag that was told, by id.
    told: BTreeMap<Arc<str>, Option<Etag>>,
}

#[derive(Debug)]
struct Distinct {
    key: Key,
    watchers: BTreeSet<Number>,
    reads: Option<Arc<ReadSet>>,
    /// Position of the last evaluation known.
    at: u64,
    /// Its outcome may be another one since here.
    touched: u64,
    /// Before this time it is not tried again.
    cool_until: u64,
    /// How often in a row it had no lasting outcome.
    failures: u32,
}

impl Hub {
    /// Over a state that has applied `at`.
    pub fn new(bounds: Bounds, at: u64, revision: Revision) -> Self {
        Self {
            bounds,
            watches: BTreeMap::new(),
            queries: BTreeMap::new(),
            ids: BTreeMap::new(),
            last_id: 0,
            index: Index::default(),
            blind: BTreeSet::new(),
            cooling: BTreeMap::new(),
            marked: at,
            revision,
            bytes: 0,
        }
    }

    /// Position up to which everything written is marked.
    pub fn marked(&self) -> u64 {
        self.marked
    }
    /// Watches that are open.
    pub fn watches(&self) -> usize {
        self.watches.len()
    }
    /// Distinct queries that are watched.
    pub fn queries(&self) -> usize {
        self.queries.len()
    }
    /// Bytes of names, keys and what belongs to them.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// Queries of one watch; absent when it is gone.
    pub fn size(&self, number: Number) -> Option<usize> {
        self.watches.get(&number).map(|watch| watch.names.len())
    }
    /// Whether somebody watches `key`.
    pub fn watched(&self, key: &Key) -> bool {
        self.ids.contains_key(key)
    }
    /// All watches.
    pub fn numbers(&self) -> impl Iterator<Item = Number> + '_ {
        self.watches.keys().copied()
    }

    /// Opens a watch whose client has what was told up to `at`.
    ///
    /// # Errors
    /// See [`Refused`]; nothing is changed then.
    pub fn open(&mut self, number: Number, asks: &[Ask], at: Revision) -> Result<(), Refused> {
        if self.watches.len() >= self.bounds.watches {
            return Err(Refused::Watches(self.bounds.watches));
        }
        self.check(&BTreeSet::new(), 0, asks)?;
        let watch = Watch {
            at,
            ..Watch::default()
        };
        self.watches.insert(number, watch);
        for ask in asks {
            self.add(number, ask);
        }
        Ok(())
    }

    /// Removes queries from a watch, then adds others.
    ///
    /// # Errors
    /// See [`Refused`]; nothing is changed then.
    pub fn change(
        &mut self,
        number: Number,
        remove: &[Arc<str>],
        add: &[Ask],
    ) -> Result<usize, Refused> {
        let watch = self.watches.get(&number).ok_or(Refused::Gone)?;
        let mut names: BTreeSet<Arc<str>> = watch.names.keys().cloned().collect();
        let mut freed = 0;
        for id in remove {
            if !names.remove(id) {
                return Err(Refused::Unknown(id.clone()));
            }
            freed += watch
                .names
                .get(id)
                .and_then(|query| self.queries.get(query))
                .map_or(0, |query| cost(id, &query.key));
        }
        self.check(&names, freed, add)?;
        for id in remove {
            self.remove(number, id);
        }
        for ask in add {
            self.add(number, ask);
        }
        Ok(self.size(number).unwrap_or(0))
    }

    /// Ends a watch. Returns the queries that nobody watches any more.
    pub fn close(&mut self, number: Number) -> Vec<Key> {
        let names = self
            .watches
            .get(&number)
            .map(|w| w.names.keys().cloned().collect());
        let names: Vec<Arc<str>> = names.unwrap_or_default();
        let mut left = Vec::new();
        for id in names {
            left.extend(self.remove(number, &id));
        }
        self.watches.remove(&number);
        left
    }

    fn check(&self, names: &BTreeSet<Arc<str>>, freed: u64, add: &[Ask]) -> Result<(), Refused> {
        let most = self.bounds.queries;
        if names.len() + add.len() > most {
            return Err(Refused::Queries(most));
        }
        let mut names = names.clone();
        let mut bytes = self.bytes.saturating_sub(freed);
        for ask in add {
            if !names.insert(ask.id.clone()) {
                return Err(Refused::Twice(ask.id.clone()));
            }
            bytes += cost(&ask.id, &ask.key);
        }
        match bytes > self.bounds.bytes {
            true => Err(Refused::Bytes(self.bounds.bytes)),
            false => Ok(()),
        }
    }

    fn add(&mut self, number: Number, ask: &Ask) {
        let query = match self.ids.get(&ask.key) {
            Some(query) => *query,
            None => self.distinct(&ask.key),
        };
        let Some(watch) = self.watches.get_mut(&number) else {
            return;
        };
        if let Some(distinct) = self.queries.get_mut(&query) {
            distinct.watchers.insert(number);
        }
        watch.names.insert(ask.id.clone(), query);
        let asked = watch.asks.entry(query).or_default();
        asked.as_of = None;
        asked.told.insert(ask.id.clone(), ask.has);
        watch.due.insert(query);
        self.bytes += cost(&ask.id, &ask.key);
    }

    fn distinct(&mut self, key: &Key) -> Id {
        self.last_id += 1;
        let query = self.last_id;
        self.ids.insert(key.clone(), query);
        let distinct = Distinct {
            key: key.clone(),
            watchers: BTreeSet::new(),
            reads: None,
            at: 0,
            touched: self.marked,
            cool_until: 0,
            failures: 0,
        };
        self.queries.insert(query, distinct);
        self.blind.insert(query);
        query
    }

    /// Returns the query's key when nobody watches it any more.
    fn remove(&mut self, number: Number, id: &Arc<str>) -> Option<Key> {
        let watch = self.watches.get_mut(&number)?;
        let query = watch.names.remove(id)?;
        let distinct = self.queries.get_mut(&query)?;
        self.bytes = self.bytes.saturating_sub(cost(id, &distinct.key));
        let asked = watch.asks.get_mut(&query)?;
        asked.told.remove(id);
        if !asked.told.is_empty() {
            return None;
        }
        watch.asks.remove(&query);
        watch.due.remove(&query);
        distinct.watchers.remove(&number);
        if !distinct.watchers.is_empty() {
            return None;
        }
        let distinct = self.queries.remove(&query)?;
        if let Some(reads) = &distinct.reads {
            self.index.remove(query, reads);
        }
        self.blind.remove(&query);
        self.cooling.remove(&query);
        self.ids.remove(&distinct.key);
        Some(distinct.key)
    }

    /// Whether a watch has news, or was never told anything.
    pub fn has_news(&self, number: Number) -> bool {
        let watch = self.watches.get(&number);
        watch.is_some_and(|watch| !watch.begun || !watch.due.is_empty())
    }

    /// The queries that a watch needs the outcome of for its next step, and the position from
    /// which on an evaluation sees what changed.
    pub fn due(&self, number: Number) -> (Vec<Key>, u64) {
        let due = self.watches.get(&number).map(|watch| &watch.due);
        let queries = due
            .into_iter()
            .flatten()
            .filter_map(|id| self.queries.get(id));
        let mut from = 0;
        let keys = queries.map(|query| {
            from = from.max(query.touched);
            query.key.clone()
        });
        (keys.collect(), from)
    }

    /// What of these outcomes at `at` differs from what the watch was told.
    pub fn changes(&self, number: Number, outcomes: &BTreeMap<Key, Arc<Outcome>>) -> Vec<Told> {
        let Some(watch) = self.watches.get(&number) else {
            return Vec::new();
        };
        let mut changes = Vec::new();
        for (key, outcome) in outcomes {
            let asked = self.ids.get(key).and_then(|query| watch.asks.get(query));
            for (id, told) in asked.into_iter().flat_map(|asked| &asked.told) {
                if *told != Some(outcome.etag) {
                    changes.push(Told {
                        id: id.clone(),
                        outcome: outcome.clone(),
                    });
                }
            }
        }
        changes
    }

    /// The watch is told all of these outcomes at `at`, which has `revision`. Returns the
    /// revision that it had come to.
    pub fn settle(
        &mut self,
        number: Number,
        at: u64,
        revision: Revision,
        outcomes: &BTreeMap<Key, Arc<Outcome>>,
    ) -> Revision {
        let Some(watch) = self.watches.get_mut(&number) else {
            return revision;
        };
        for (key, outcome) in outcomes {
            let Some(query) = self.ids.get(key) else {
                continue;
            };
            let Some(asked) = watch.asks.get_mut(query) else {
                continue;
            };
            asked.as_of = asked.as_of.max(Some(at));
            for told in asked.told.values_mut() {
                *told = Some(outcome.etag);
            }
            let distinct = self.queries.get(query);
            let later = distinct.is_some_and(|d| d.touched > at && d.cool_until == 0);
            if !later {
                watch.due.remove(query);
            }
        }
        watch.begun = true;
        let from = watch.at;
        watch.at = from.max(revision);
        from
    }

    /// The revision up to which nothing has changed for a watch; absent when something may
    /// have, or nothing was told yet.
    pub fn same(&mut self, number: Number) -> Option<Revision> {
        let revision = self.revision;
        let watch = self.watches.get_mut(&number)?;
        if !watch.begun {
            return None;
        }
        if watch.due.is_empty() {
            watch.at = watch.at.max(revision);
        }
        Some(watch.at)
    }
}

fn cost(id: &Arc<str>, key: &Key) -> u64 {
    id.len() as u64 + key.bytes() + ASK_BYTES
}

#[cfg(test)]
mod tests;
