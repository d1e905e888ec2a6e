//! The keys that the last applied entries wrote, in memory: whether something that was read
//! at one entry still holds at a later one is answered without reading anything again.
//! Bounded in bytes; what lies before the oldest entry kept is unknown, never guessed.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use flower_api::Revision;
use flower_engine::{Entry, ReadSet, Space};
use parking_lot::Mutex;

/// Estimated bytes of one key besides itself, and of one entry.
const KEY_BYTES: u64 = 48;

/// Keys written by one entry.
#[derive(Debug, Clone)]
pub struct Written {
    /// The entry's index in the log.
    pub index: u64,
    /// The last revision that it holds.
    pub revision: Revision,
    /// What it wrote; receipts are left out, as no query reads them.
    pub keys: Arc<[(Space, Bytes)]>,
    bytes: u64,
}

impl Written {
    /// The keys of an entry.
    pub fn of(index: u64, entry: &Entry) -> Self {
        let writes = entry.patches.iter().flat_map(|patch| patch.writes());
        let seen = |space| !matches!(space, Space::Receipts | Space::ReceiptsByAge);
        let keys: Arc<[(Space, Bytes)]> = writes
            .filter(|write| seen(write.space))
            .map(|write| (write.space, write.key.clone()))
            .collect();
        let bytes = keys.iter().map(|(_, key)| key.len() as u64 + KEY_BYTES);
        Self {
            index,
            revision: entry.revision,
            bytes: bytes.sum::<u64>() + KEY_BYTES,
            keys,
        }
    }

    /// Whether it may have changed what was read.
    pub fn touches(&self, reads: &ReadSet) -> bool {
        reads.touched_by_keys(self.keys.iter().map(|(space, key)| (*space, &key[..])))
    }
}

/// Whether something was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touched {
    /// It was not.
    No,
    /// It was, last by this entry.
    By(u64),
    /// Nobody knows any more.
    Unknown,
}

/// The ring itself; positions are indexes of the log.
#[derive(Debug)]
pub struct Ring {
    limit: u64,
    bytes: u64,
    /// What entries up to here wrote is not known.
    floor: u64,
    /// The last entry that is about to be applied, or was.
    last: u64,
    /// Its revision, or an earlier one.
    revision: Revision,
    entries: VecDeque<Written>,
}

impl Ring {
    /// An empty ring of at most `limit` bytes, over a state that has applied `at`.
    pub fn new(limit: u64, at: u64) -> Self {
        Self {
            limit,
            bytes: 0,
            floor: at,
            last: at,
            revision: Revision(0),
            entries: VecDeque::new(),
        }
    }

    /// An entry is about to be applied.
    pub fn note(&mut self, written: Written) {
        self.last = self.last.max(written.index);
        self.revision = self.revision.max(written.revision);
        if written.keys.is_empty() {
            return;
        }
        self.bytes += written.bytes;
        self.entries.push_back(written);
        while self.bytes > self.limit
            && let Some(old) = self.entries.pop_front()
        {
            self.bytes -= old.bytes;
            self.floor = self.floor.max(old.index);
        }
    }

    /// An entry without writes is about to be applied.
    pub fn pass(&mut self, index: u64) {
        self.last = self.last.max(index);
    }

    /// The state is about to be replaced by one that has applied `at`.
    pub fn reset(&mut self, at: u64) {
        *self = Self {
            revision: self.revision,
            ..Self::new(self.limit, at.max(self.last))
        };
    }

    /// The last entry noted.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Its revision, or an earlier one.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Bytes in use.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether an entry after `after` and up to `upto` touched what was read.
    pub fn touched(&self, reads: &ReadSet, after: u64, upto: u64) -> Touched {
        if upto <= after {
            return Touched::No;
        }
        if after < self.floor || upto > self.last {
            return Touched::Unknown;
        }
        let from = self.entries.partition_point(|w| w.index <= after);
        let upto = self.entries.partition_point(|w| w.index <= upto);
        let mut between = self.entries.range(from..upto).rev();
        between
            .find(|written| written.touches(reads))
            .map_or(Touched::No, |written| Touched::By(written.index))
    }

    /// What was written after `after`, in order; absent when not all of it is known.
    pub fn since(&self, after: u64) -> Option<Vec<Written>> {
        if after < self.floor {
            return None;
        }
        let from = self.entries.partition_point(|w| w.index <= after);
        Some(self.entries.range(from..).cloned().collect())
    }
}

/// The ring, fed where entries are applied. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Recent(Arc<Mutex<Ring>>);

impl Recent {
    /// See [`Ring::new`].
    pub fn new(limit: u64, at: u64) -> Self {
        Self(Arc::new(Mutex::new(Ring::new(limit, at))))
    }

    /// Looks at the ring, or changes it.
    pub fn with<T>(&self, work: impl FnOnce(&mut Ring) -> T) -> T {
        work(&mut self.0.lock())
    }
}

#[cfg(test)]
mod tests {
    use flower_engine::{EntryKind, PatchBuilder, ReadSetBuilder, Window};
    use proptest::prelude::*;

    use super::*;

    fn entry(index: u64, keys: &[&[u8]]) -> Written {
        let mut patch = PatchBuilder::new();
        for key in keys {
            patch.put(Space::Index, key.to_vec(), &b"v"[..]);
        }
        let entry = Entry {
            kind: EntryKind::Mutations,
            revision: Revision(index),
            stamp_ms: 0,
            patches: vec![Arc::new(patch.seal())],
        };
        Written::of(index, &entry)
    }

    fn reads(key: &[u8]) -> ReadSet {
        let mut builder = ReadSetBuilder::default();
        builder.record(Space::Index, key);
        builder.finish()
    }

    #[test]
    fn what_lies_before_the_oldest_entry_is_unknown() {
        let one = entry(0, &[b"a"]).bytes;
        let mut ring = Ring::new(2 * one, 3);
        assert_eq!(ring.touched(&reads(b"a"), 3, 3), Touched::No);
        assert_eq!(ring.touched(&reads(b"a"), 2, 3), Touched::Unknown);
        ring.note(entry(4, &[b"a"]));
        ring.pass(5);
        ring.note(entry(6, &[b"b"]));
        assert_eq!(ring.touched(&reads(b"a"), 3, 6), Touched::By(4));
        assert_eq!(ring.touched(&reads(b"a"), 4, 6), Touched::No);
        assert_eq!(ring.touched(&reads(b"b"), 4, 5), Touched::No);
        assert_eq!(
            ring.touched(&reads(b"b"), 4, 7),
            Touched::Unknown,
            "not yet"
        );
        ring.note(entry(7, &[b"c"]));
        assert_eq!(
            ring.touched(&reads(b"a"), 3, 7),
            Touched::Unknown,
            "forgotten"
        );
        assert_eq!(ring.touched(&reads(b"a"), 4, 7), Touched::No);
        assert_eq!(ring.since(3).map(|w| w.len()), None);
        assert_eq!(ring.since(4).map(|w| w.len()), Some(2));
        assert!(ring.bytes() <= 2 * one);
        ring.reset(20);
        assert_eq!(ring.touched(&reads(b"a"), 7, 20), Touched::Unknown);
        assert_eq!(ring.since(20).map(|w| w.len()), Some(0));
    }

    #[test]
    fn receipts_are_left_out() {
        let mut patch = PatchBuilder::new();
        patch.put(Space::Receipts, &b"r"[..], &b"v"[..]);
        patch.put(Space::Meta, &b"active"[..], &b"v"[..]);
        let entry = Entry {
            kind: EntryKind::Mutations,
            revision: Revision(1),
            stamp_ms: 0,
            patches: vec![Arc::new(patch.seal())],
        };
        let keys = Written::of(1, &entry).keys;
        assert_eq!(keys.len(), 1);
        assert_eq!(keys[0].0, Space::Meta);
    }

    proptest! {
        /// As the plain walk over everything that was ever written says, or unknown.
        #[test]
        fn it_agrees_with_a_ring_without_bounds(
            limit in 60u64..1_000,
            entries in prop::collection::vec(prop::collection::vec(0u8..6, 0..4), 1..30),
            key in 0u8..6, window in (0u8..6, 0u8..6), at in (0u64..31, 0u64..31),
        ) {
            let mut builder = ReadSetBuilder::default();
            builder.record(Space::Index, &[key]);
            if window.0 < window.1 {
                builder.window(Window {
                    space: Space::Index,
                    from: Bytes::copy_from_slice(&[window.0]),
                    to: Some(Bytes::copy_from_slice(&[window.1])),
                });
            }
            let reads = builder.finish();
            let mut ring = Ring::new(limit, 0);
            let mut all = Vec::new();
            for (i, keys) in entries.iter().enumerate() {
                let keys: Vec<[u8; 1]> = keys.iter().map(|k| [*k]).collect();
                let keys: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
                let written = entry(i as u64 + 1, &keys);
                all.push(written.clone());
                ring.note(written);
            }
            let (after, upto) = at;
            let inside = |w: &&Written| w.index > after && w.index <= upto;
            let expected = all.iter().filter(inside).rfind(|w| w.touches(&reads));
            match ring.touched(&reads, after, upto) {
                Touched::Unknown => {
                    prop_assert!(upto > entries.len() as u64 || ring.since(after).is_none());
                }
                Touched::No => prop_assert!(expected.is_none()),
                Touched::By(index) => prop_assert_eq!(expected.map(|w| w.index), Some(index)),
            }
        }
    }
}
