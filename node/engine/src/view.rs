//! Reading the state: a [`View`] is a snapshot; an [`Overlay`] lays unapplied patches over
//! one; a [`Patch`] is the sealed write set of a mutation. Nothing here writes anywhere.

use std::{
    collections::{BTreeMap, btree_map},
    ops::Bound,
    sync::Arc,
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{error::ViewError, key::Space};

/// Order of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Backward,
}

/// A coherent snapshot of the state.
pub trait View: Send + Sync {
    /// The value under `key`.
    ///
    /// # Errors
    /// When the disk fails.
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, ViewError>;

    /// Visits the entries between the bounds in order, until `visit` answers false.
    ///
    /// # Errors
    /// When the disk fails.
    fn scan(
        &self,
        space: Space,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        direction: Direction,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), ViewError>;
}

/// One write: a value, or a deletion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// Table.
    pub space: Space,
    /// Key.
    pub key: Bytes,
    /// New value; absent deletes.
    pub value: Option<Bytes>,
}

/// The write set of a mutation: sorted by (space, key), each at most once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Patch {
    writes: Vec<Write>,
}

impl Patch {
    /// The writes, sorted by (space, key).
    pub fn writes(&self) -> &[Write] {
        &self.writes
    }

    /// Whether nothing is written.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Bytes of keys and values.
    pub fn size(&self) -> u64 {
        self.writes
            .iter()
            .map(|w| (w.key.len() + w.value.as_ref().map_or(0, Bytes::len) + 2) as u64)
            .sum()
    }

    /// What this patch says of `key`: nothing, a deletion, or a value.
    pub fn get(&self, space: Space, key: &[u8]) -> Option<Option<&Bytes>> {
        let at = self
            .writes
            .binary_search_by(|w| (w.space, &w.key[..]).cmp(&(space, key)))
            .ok()?;
        Some(self.writes[at].value.as_ref())
    }

    /// Whether the order that the type promises holds; for patches from disk or peers.
    pub fn is_well_formed(&self) -> bool {
        self.writes
            .windows(2)
            .all(|w| (w[0].space, &w[0].key) < (w[1].space, &w[1].key))
    }
}

/// Collects writes; the last one of a key holds.
#[derive(Debug, Clone, Default)]
pub struct PatchBuilder {
    writes: BTreeMap<(Space, Bytes), Option<Bytes>>,
}

impl PatchBuilder {
    /// An empty patch.
    pub fn new() -> Self {
        Self::default()
    }
    /// Writes a value.
    pub fn put(&mut self, space: Space, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.writes.insert((space, key.into()), Some(value.into()));
    }
    /// Deletes a key.
    pub fn delete(&mut self, space: Space, key: impl Into<Bytes>) {
        self.writes.insert((space, key.into()), None);
    }
    /// Takes back what has been collected for `key`.
    pub fn forget(&mut self, space: Space, key: &[u8]) {
        self.writes.remove(&(space, Bytes::copy_from_slice(key)));
    }
    /// What has been collected for `key`.
    pub fn get(&self, space: Space, key: &[u8]) -> Option<Option<&Bytes>> {
        self.writes
            .get(&(space, Bytes::copy_from_slice(key)))
            .map(Option::as_ref)
    }
    /// The collected writes of a key range, in order.
    pub fn range(
        &self,
        space: Space,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
    ) -> btree_map::Range<'_, (Space, Bytes), Option<Bytes>> {
        self.writes.range(bounds(space, from, to))
    }
    /// Bytes of keys and values, as of the sealed patch.
    pub fn size(&self) -> u64 {
        let sizes = self
            .writes
            .iter()
            .map(|((_, key), value)| (key.len() + value.as_ref().map_or(0, Bytes::len) + 2) as u64);
        sizes.sum()
    }
    /// Number of keys written.
    pub fn len(&self) -> usize {
        self.writes.len()
    }
    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }
    /// Lays later writes over these.
    pub fn add(&mut self, later: Self) {
        self.writes.extend(later.writes);
    }
    /// Seals it.
    pub fn seal(self) -> Patch {
        Patch {
            writes: self
                .writes
                .into_iter()
                .map(|((space, key), value)| Write { space, key, value })
                .collect(),
        }
    }
}

impl From<&Patch> for PatchBuilder {
    fn from(patch: &Patch) -> Self {
        let writes = patch.writes().iter();
        Self {
            writes: writes
                .map(|w| ((w.space, w.key.clone()), w.value.clone()))
                .collect(),
        }
    }
}

type Bounds = (Bound<(Space, Bytes)>, Bound<(Space, Bytes)>);

/// Bounds of the keys of a space, in a map of all spaces.
fn bounds(space: Space, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Bounds {
    let key = |key: &[u8]| (space, Bytes::copy_from_slice(key));
    let low = match from {
        Bound::Included(k) => Bound::Included(key(k)),
        Bound::Excluded(k) => Bound::Excluded(key(k)),
        Bound::Unbounded => Bound::Included((space, Bytes::new())),
    };
    let high = match to {
        Bound::Included(k) => Bound::Included(key(k)),
        Bound::Excluded(k) => Bound::Excluded(key(k)),
        Bound::Unbounded => match Space::from_number(space as u8 + 1) {
            Some(next) => Bound::Excluded((next, Bytes::new())),
            None => Bound::Unbounded,
        },
    };
    (low, high)
}

/// Whether a map refuses such bounds: nothing lies between them.
fn is_inverted(low: &Bound<(Space, Bytes)>, high: &Bound<(Space, Bytes)>) -> bool {
    match (low, high) {
        (Bound::Included(a), Bound::Included(b)) => a > b,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => {
            a >= b
        }
        _ => false,
    }
}

/// A view with patches laid over it, oldest first.
#[derive(Clone)]
pub struct Overlay {
    base: Arc<dyn View>,
    patches: Vec<Arc<Patch>>,
}

impl Overlay {
    /// `patches` over `base`, oldest first.
    pub fn new(base: Arc<dyn View>, patches: Vec<Arc<Patch>>) -> Self {
        Self { base, patches }
    }
}

impl View for Overlay {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, ViewError> {
        for patch in self.patches.iter().rev() {
            if let Some(found) = patch.get(space, key) {
                return Ok(found.cloned());
            }
        }
        self.base.get(space, key)
    }

    fn scan(
        &self,
        space: Space,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        direction: Direction,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), ViewError> {
        let mut written = BTreeMap::new();
        for patch in &self.patches {
            for w in patch.writes().iter().filter(|w| w.space == space) {
                if within(&w.key, from, to) {
                    written.insert(w.key.clone(), w.value.clone());
                }
            }
        }
        scan_merged(&*self.base, &written, space, from, to, direction, visit)
    }
}

/// Whether `key` lies between the bounds.
pub fn within(key: &[u8], from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
    let above = match from {
        Bound::Included(f) => key >= f,
        Bound::Excluded(f) => key > f,
        Bound::Unbounded => true,
    };
    let below = match to {
        Bound::Included(t) => key <= t,
        Bound::Excluded(t) => key < t,
        Bound::Unbounded => true,
    };
    above && below
}

/// Scans `base` with `written` (keys within the bounds) laid over it.
///
/// # Errors
/// When the base cannot be read.
pub fn scan_merged(
    base: &dyn View,
    written: &BTreeMap<Bytes, Option<Bytes>>,
    space: Space,
    from: Bound<&[u8]>,
    to: Bound<&[u8]>,
    direction: Direction,
    visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
) -> Result<(), ViewError> {
    let mut over: Box<dyn Iterator<Item = (&Bytes, &Option<Bytes>)>> = match direction {
        Direction::Forward => Box::new(written.iter()),
        Direction::Backward => Box::new(written.iter().rev()),
    };
    let before = |a: &[u8], b: &[u8]| match direction {
        Direction::Forward => a < b,
        Direction::Backward => a > b,
    };
    let mut next = over.next();
    let mut going = true;
    base.scan(space, from, to, direction, &mut |key, value| {
        while let Some((k, v)) = next.filter(|(k, _)| before(k, key)) {
            next = over.next();
            if let Some(v) = v {
                going = visit(k, v);
                if !going {
                    return false;
                }
            }
        }
        match next {
            Some((k, v)) if k == key => {
                next = over.next();
                going = v.as_ref().is_none_or(|v| visit(k, v));
            }
            _ => going = visit(key, value),
        }
        going
    })?;
    while going && let Some((k, v)) = next {
        next = over.next();
        if let Some(v) = v {
            going = visit(k, v);
        }
    }
    Ok(())
}

/// A view in memory, for tests and for building up a state from nothing.
#[derive(Debug, Clone, Default)]
pub struct MemoryView {
    entries: BTreeMap<(Space, Bytes), Bytes>,
}

impl MemoryView {
    /// Applies a patch.
    pub fn apply(&mut self, patch: &Patch) {
        for w in patch.writes() {
            let key = (w.space, w.key.clone());
            match &w.value {
                Some(value) => self.entries.insert(key, value.clone()),
                None => self.entries.remove(&key),
            };
        }
    }
    /// All entries, in order.
    pub fn entries(&self) -> impl Iterator<Item = (Space, &Bytes, &Bytes)> {
        self.entries
            .iter()
            .map(|((space, key), value)| (*space, key, value))
    }
}

impl View for MemoryView {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, ViewError> {
        Ok(self
            .entries
            .get(&(space, Bytes::copy_from_slice(key)))
            .cloned())
    }
    fn scan(
        &self,
        space: Space,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        direction: Direction,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), ViewError> {
        let (low, high) = bounds(space, from, to);
        if is_inverted(&low, &high) {
            return Ok(());
        }
        let mut found = self.entries.range((low, high));
        let mut next = || match direction {
            Direction::Forward => found.next(),
            Direction::Backward => found.next_back(),
        };
        while let Some(((_, key), value)) = next() {
            if !visit(key, value) {
                break;
            }
        }
        Ok(())
    }
}
