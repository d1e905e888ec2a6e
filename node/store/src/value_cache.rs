//! Values by (space, key), bounded in bytes. Each entry knows the position from which on it
//! holds; a view uses it only when the view is not older. A write removes the entry and leaves
//! a stamp, so that a reader of an older view cannot put the old value back afterwards.

use std::{
    hash::{BuildHasherDefault, Hash, Hasher},
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use flower_engine::Space;
use parking_lot::Mutex;
use quick_cache::{
    Equivalent, OptionsBuilder, Weighter,
    sync::{Cache, DefaultLifecycle},
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Fixed, so that eviction does not depend on the number of cores.
const SHARDS: usize = 8;
const STRIPES: usize = 64;
const SLOTS: usize = 256;
/// Bytes of an entry besides key and value, nearly.
const OVERHEAD_BYTES: u64 = 112;

/// How the cache does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ValueCacheStats {
    /// Bytes held.
    pub bytes: u64,
    /// Values held.
    pub values: u64,
    /// Reads that it answered.
    pub hits: u64,
    /// Reads of cached spaces that went to the tables.
    pub misses: u64,
}

/// See the module.
///
/// Views are named by a number that grows with each apply (`seq`). What must hold for a view
/// of `seq` that finds an entry written by a view of `from`: `from <= seq`, and no write of the
/// key in between. The second holds because every write removes the entry before its own view
/// exists, and an insertion is refused once a write after `from` has been stamped; stamp,
/// removal and insertion of a key happen under one lock.
pub(crate) struct ValueCache {
    entries: Option<Entries>,
    /// Last write of the keys that hash to a slot.
    stamps: Box<[Mutex<[u64; SLOTS]>]>,
    hits: AtomicU64,
    misses: AtomicU64,
}

type Entries =
    Cache<CacheKey, Held, Weight, BuildHasherDefault<Xxh3Hasher>, DefaultLifecycle<CacheKey, Held>>;

impl ValueCache {
    /// Holds at most `capacity` bytes; none for 0.
    pub(crate) fn new(capacity: u64) -> Self {
        let options = OptionsBuilder::new()
            .shards(SHARDS)
            .estimated_items_capacity(usize::try_from(capacity / 512).unwrap_or(usize::MAX).max(1))
            .weight_capacity(capacity)
            .build();
        let entries = options.ok().filter(|_| capacity > 0).map(|options| {
            Cache::with_options(
                options,
                Weight,
                BuildHasherDefault::default(),
                DefaultLifecycle::default(),
            )
        });
        Self {
            entries,
            stamps: (0..STRIPES).map(|_| Mutex::new([0; SLOTS])).collect(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Whether values of `space` are kept. Index entries and receipts are read once or in runs.
    pub(crate) fn keeps(&self, space: Space) -> bool {
        self.entries.is_some()
            && matches!(
                space,
                Space::Meta | Space::Data | Space::Deploy | Space::Cells
            )
    }

    /// The value for a view of `seq`, if it is known.
    pub(crate) fn get(&self, space: Space, key: &[u8], seq: u64) -> Option<Bytes> {
        let found = self
            .entries
            .as_ref()?
            .get(&KeyRef { space, key })
            .filter(|held| held.from <= seq);
        let counter = if found.is_some() {
            &self.hits
        } else {
            &self.misses
        };
        counter.fetch_add(1, Ordering::Relaxed);
        found.map(|held| held.value)
    }

    /// Keeps what a view of `seq` has read, unless the key was written since.
    pub(crate) fn put(&self, space: Space, key: &[u8], value: &Bytes, seq: u64) {
        let Some(entries) = &self.entries else { return };
        let (stripe, slot) = self.slot(space, key);
        let stamps = stripe.lock();
        if stamps[slot] > seq {
            return;
        }
        let key = CacheKey {
            space,
            key: Bytes::copy_from_slice(key),
        };
        let held = Held {
            value: value.clone(),
            from: seq,
        };
        entries.insert(key, held);
    }

    /// Forgets `key`, which the apply that makes view `seq` writes. Called before that view
    /// can be seen.
    pub(crate) fn written(&self, space: Space, key: &[u8], seq: u64) {
        let Some(entries) = self.entries.as_ref().filter(|_| self.keeps(space)) else {
            return;
        };
        let (stripe, slot) = self.slot(space, key);
        let mut stamps = stripe.lock();
        stamps[slot] = seq;
        entries.remove(&KeyRef { space, key });
    }

    fn slot(&self, space: Space, key: &[u8]) -> (&Mutex<[u64; SLOTS]>, usize) {
        let hash = xxh3_64_with_seed(key, space as u64) as usize;
        (&self.stamps[hash % STRIPES], hash / STRIPES % SLOTS)
    }

    pub(crate) fn stats(&self) -> ValueCacheStats {
        ValueCacheStats {
            bytes: self.entries.as_ref().map_or(0, Cache::weight),
            values: self.entries.as_ref().map_or(0, |e| e.len() as u64),
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
        }
    }
}

#[derive(Clone, PartialEq, Eq)]
struct CacheKey {
    space: Space,
    key: Bytes,
}

struct KeyRef<'a> {
    space: Space,
    key: &'a [u8],
}

impl Hash for CacheKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u8(self.space as u8);
        state.write(&self.key);
    }
}

impl Hash for KeyRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u8(self.space as u8);
        state.write(self.key);
    }
}

impl Equivalent<CacheKey> for KeyRef<'_> {
    fn equivalent(&self, other: &CacheKey) -> bool {
        self.space == other.space && self.key == other.key
    }
}

#[derive(Clone)]
struct Held {
    value: Bytes,
    from: u64,
}

#[derive(Clone)]
struct Weight;

impl Weighter<CacheKey, Held> for Weight {
    fn weight(&self, key: &CacheKey, held: &Held) -> u64 {
        (key.key.len() + held.value.len()) as u64 + OVERHEAD_BYTES
    }
}

/// A hasher without a random seed.
#[derive(Default)]
struct Xxh3Hasher(u64);

impl Hasher for Xxh3Hasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: &[u8] = b"k";

    fn get(cache: &ValueCache, seq: u64) -> Option<Bytes> {
        cache.get(Space::Data, K, seq)
    }

    #[test]
    fn an_older_view_never_sees_a_newer_value_nor_the_reverse() {
        let cache = ValueCache::new(1 << 20);
        let (old, new) = (Bytes::from_static(b"old"), Bytes::from_static(b"new"));
        cache.put(Space::Data, K, &old, 5);
        assert_eq!(get(&cache, 4), None, "read by a later view");
        assert_eq!(get(&cache, 5), Some(old.clone()));
        assert_eq!(get(&cache, 9), Some(old.clone()), "not written since");

        cache.written(Space::Data, K, 10);
        assert_eq!(get(&cache, 10), None);
        cache.put(Space::Data, K, &old, 9);
        assert_eq!(get(&cache, 10), None, "a late reader puts nothing back");
        cache.put(Space::Data, K, &new, 10);
        assert_eq!(get(&cache, 10), Some(new));
        assert_eq!(get(&cache, 9), None);
    }

    #[test]
    fn it_stays_below_its_capacity_and_keeps_spaces_apart() {
        let cache = ValueCache::new(64 << 10);
        let value = Bytes::from(vec![7; 1000]);
        for n in 0..1000_u32 {
            cache.put(Space::Data, &n.to_be_bytes(), &value, 1);
        }
        let stats = cache.stats();
        assert!(stats.bytes <= 64 << 10, "{stats:?}");
        assert!(stats.values > 10, "{stats:?}");
        cache.put(Space::Deploy, K, &value, 1);
        assert_eq!(get(&cache, 1), None);
        assert!(!cache.keeps(Space::Receipts));
        assert!(!ValueCache::new(0).keeps(Space::Data));
    }
}
