//! Snapshots of the state: what every reader holds. A view costs no memory of its own, but the
//! pages that it sees are not reused while it lives, so it is held for one call only; the
//! registry tells how old the oldest is.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use bytes::Bytes;
use flower_api::Revision;
use flower_engine::{Direction, Space, View, ViewError};
use parking_lot::{Mutex, RwLock};
use redb::{ReadOnlyTable, ReadableDatabase};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::{
    backend::OpenFile,
    record::LogPosition,
    tables::{self, OWN, own},
    value_cache::ValueCache,
};

type Table = ReadOnlyTable<&'static [u8], &'static [u8]>;

/// What the file itself says of its content; changes in the same transaction.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Standing {
    pub(crate) applied: Option<LogPosition>,
    /// Highest revision of an applied entry.
    pub(crate) revision: u64,
    pub(crate) totals: Totals,
    /// Position of the image that the file began with.
    pub(crate) installed: Option<LogPosition>,
    /// Images received by the directory.
    pub(crate) images: u64,
}

/// Sums over all records of the replicated spaces; equal on every replica at equal positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Totals {
    /// XOR of the hashes of all records: tells replicas apart that should be equal.
    pub checksum: u128,
    /// Number of records, by the number of the space.
    pub records: [u64; Space::ALL.len()],
    /// Bytes of keys and values, by the number of the space.
    pub bytes: [u64; Space::ALL.len()],
}

impl Totals {
    /// Records of `space`.
    pub fn records_in(&self, space: Space) -> u64 {
        self.records[space as usize]
    }
    /// Bytes of keys and values in `space`.
    pub fn bytes_in(&self, space: Space) -> u64 {
        self.bytes[space as usize]
    }
    /// Bytes of all keys and values.
    pub fn stored_bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }
    /// All records.
    pub fn all_records(&self) -> u64 {
        self.records.iter().sum()
    }

    pub(crate) fn add(&mut self, space: Space, key: &[u8], value: &[u8]) {
        self.checksum ^= hash_record(space, key, value);
        self.records[space as usize] += 1;
        self.bytes[space as usize] += (key.len() + value.len()) as u64;
    }

    pub(crate) fn subtract(&mut self, space: Space, key: &[u8], value: &[u8]) {
        self.checksum ^= hash_record(space, key, value);
        let at = space as usize;
        self.records[at] = self.records[at].saturating_sub(1);
        self.bytes[at] = self.bytes[at].saturating_sub((key.len() + value.len()) as u64);
    }
}

/// The hash of one record; the key's length keeps key and value apart.
pub(crate) fn hash_record(space: Space, key: &[u8], value: &[u8]) -> u128 {
    let mut hash = Xxh3::new();
    hash.update(&[space as u8]);
    hash.update(&(key.len() as u64).to_be_bytes());
    hash.update(key);
    hash.update(value);
    hash.digest128()
}

/// A snapshot.
pub struct StateView {
    // Before `generation`: the tables' transaction ends before the file is closed.
    tables: Vec<Table>,
    standing: Standing,
    membership: Option<(LogPosition, Bytes)>,
    seq: u64,
    cache: Arc<ValueCache>,
    _ticket: Ticket,
    /// The file (after an image, perhaps an old one) stays open while it is seen.
    _generation: Arc<OpenFile>,
}

impl StateView {
    /// The newest committed state of `open`.
    pub(crate) fn newest(
        open: &Arc<OpenFile>,
        cache: &Arc<ValueCache>,
        registry: &Arc<Registry>,
    ) -> Result<Self, redb::Error> {
        let txn = open.db.begin_read()?;
        let own = txn.open_table(OWN)?;
        let damaged = |what: &str| redb::Error::Corrupted(format!("the {what} is damaged"));
        let standing: Standing = match own.get(own::STANDING)? {
            Some(raw) => postcard::from_bytes(raw.value()).map_err(|_| damaged("standing"))?,
            None => Standing::default(),
        };
        let membership = match own.get(own::MEMBERSHIP)? {
            Some(raw) => {
                let (position, bytes): (LogPosition, Vec<u8>) =
                    postcard::from_bytes(raw.value()).map_err(|_| damaged("configuration"))?;
                Some((position, bytes.into()))
            }
            None => None,
        };
        let tables = Space::ALL
            .iter()
            .map(|space| txn.open_table(tables::of_space(*space)))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            tables,
            seq: seq_of(standing.applied),
            standing,
            membership,
            cache: cache.clone(),
            _ticket: registry.enter(),
            _generation: open.clone(),
        })
    }

    /// Position of the last applied entry; absent for an empty state.
    pub fn applied(&self) -> Option<LogPosition> {
        self.standing.applied
    }
    /// Highest revision of an applied entry.
    pub fn revision(&self) -> Revision {
        Revision(self.standing.revision)
    }
    /// The last applied configuration: bytes of the consensus module.
    pub fn membership(&self) -> Option<Bytes> {
        self.membership.as_ref().map(|(_, bytes)| bytes.clone())
    }
    /// Where the configuration was written.
    pub fn membership_position(&self) -> Option<LogPosition> {
        self.membership.as_ref().map(|(position, _)| *position)
    }
    /// Rolling checksum of all records.
    pub fn checksum(&self) -> u128 {
        self.standing.totals.checksum
    }
    /// Sums over all records.
    pub fn totals(&self) -> &Totals {
        &self.standing.totals
    }
    /// Images received by the directory in its life.
    pub fn images_received(&self) -> u64 {
        self.standing.images
    }
    /// Position of the image that this file began with, if it did.
    pub fn installed(&self) -> Option<LogPosition> {
        self.standing.installed
    }

    pub(crate) fn standing(&self) -> &Standing {
        &self.standing
    }
    pub(crate) fn table(&self, space: Space) -> &Table {
        &self.tables[space as usize]
    }

    /// The checksum made anew from all records; reads everything.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn recount(&self) -> Result<Totals, ViewError> {
        let mut totals = Totals::default();
        for space in Space::ALL {
            let every = &mut |key: &[u8], value: &[u8]| {
                totals.add(space, key, value);
                true
            };
            self.scan(
                space,
                Bound::Unbounded,
                Bound::Unbounded,
                Direction::Forward,
                every,
            )?;
        }
        Ok(totals)
    }
}

/// Views are numbered by what they have applied, so that numbers never repeat.
pub(crate) fn seq_of(applied: Option<LogPosition>) -> u64 {
    applied.map_or(0, |position| position.index + 1)
}

fn unreadable(space: Space, error: impl std::fmt::Display) -> ViewError {
    ViewError(format!("table {space}: {error}"))
}

impl View for StateView {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, ViewError> {
        let cached = self.cache.keeps(space);
        if cached && let Some(value) = self.cache.get(space, key, self.seq) {
            return Ok(Some(value));
        }
        let found = self.table(space).get(key);
        let value = found
            .map_err(|e| unreadable(space, e))?
            .map(|raw| Bytes::copy_from_slice(raw.value()));
        if cached && let Some(value) = &value {
            self.cache.put(space, key, value, self.seq);
        }
        Ok(value)
    }

    fn scan(
        &self,
        space: Space,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        direction: Direction,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), ViewError> {
        if is_empty_range(from, to) {
            return Ok(());
        }
        let range = self.table(space).range::<&[u8]>((from, to));
        let mut range = range.map_err(|e| unreadable(space, e))?;
        loop {
            let next = match direction {
                Direction::Forward => range.next(),
                Direction::Backward => range.next_back(),
            };
            let Some(next) = next else { return Ok(()) };
            let (key, value) = next.map_err(|e| unreadable(space, e))?;
            if !visit(key.value(), value.value()) {
                return Ok(());
            }
        }
    }
}

fn is_empty_range(from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
    match (from, to) {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (
            Bound::Included(from) | Bound::Excluded(from),
            Bound::Included(to) | Bound::Excluded(to),
        ) => from >= to,
        _ => false,
    }
}

/// The newest view, for any thread.
#[derive(Clone)]
pub struct Views {
    newest: Arc<RwLock<Arc<StateView>>>,
    registry: Arc<Registry>,
}

impl Views {
    pub(crate) fn new(first: StateView, registry: Arc<Registry>) -> Self {
        Self {
            newest: Arc::new(RwLock::new(Arc::new(first))),
            registry,
        }
    }

    /// The newest view.
    pub fn newest(&self) -> Arc<StateView> {
        self.newest.read().clone()
    }

    pub(crate) fn publish(&self, view: StateView) {
        let old = std::mem::replace(&mut *self.newest.write(), Arc::new(view));
        drop(old);
    }

    /// Views alive besides the newest.
    pub fn held(&self) -> usize {
        self.registry.live.lock().len().saturating_sub(1)
    }

    /// For how long the oldest view that is not the newest has been held, in milliseconds; 0
    /// when there is none. It counts from the first time that it is asked after the view was
    /// superseded: ask regularly, with the monotonic clock.
    pub fn oldest_age_ms(&self, now_mono_ms: u64) -> u64 {
        let mut live = self.registry.live.lock();
        let Some(newest) = live.last_key_value().map(|(number, _)| *number) else {
            return 0;
        };
        let mut oldest = None;
        for (_, seen) in live.range_mut(..newest) {
            let since = *seen.get_or_insert(now_mono_ms);
            oldest = Some(oldest.map_or(since, |o: u64| o.min(since)));
        }
        oldest.map_or(0, |since| now_mono_ms.saturating_sub(since))
    }
}

/// The views that are alive, by a number that grows; with the time at which each was first seen
/// to be superseded.
#[derive(Default)]
pub(crate) struct Registry {
    live: Mutex<BTreeMap<u64, Option<u64>>>,
    next: Mutex<u64>,
}

impl Registry {
    fn enter(self: &Arc<Self>) -> Ticket {
        let mut next = self.next.lock();
        *next += 1;
        self.live.lock().insert(*next, None);
        Ticket {
            number: *next,
            registry: self.clone(),
        }
    }
}

struct Ticket {
    number: u64,
    registry: Arc<Registry>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.registry.live.lock().remove(&self.number);
    }
}
