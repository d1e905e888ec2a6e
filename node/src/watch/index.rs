//! Which queries a write may have changed: keys that were looked up, and ranges that were
//! walked, filed under the longest prefix that all their keys share. A written key is looked
//! up once itself and once for every length of prefix there is. Pure.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use flower_engine::{ReadSet, Space, Window};

/// A query.
pub type Id = u64;

/// The index.
#[derive(Debug, Default)]
pub struct Index {
    keys: BTreeMap<(Space, Bytes), BTreeSet<Id>>,
    ranges: BTreeMap<(Space, Bytes), Vec<(Window, Id)>>,
    /// How many prefixes of each length there are.
    lengths: BTreeMap<(Space, usize), usize>,
}

impl Index {
    /// `id` has read this.
    pub fn insert(&mut self, id: Id, reads: &ReadSet) {
        for (space, key) in reads.records() {
            let readers = self.keys.entry((space, key.clone())).or_default();
            readers.insert(id);
        }
        for window in reads.windows() {
            let prefix = shared_prefix(window);
            let length = (window.space, prefix.len());
            let filed = self.ranges.entry((window.space, prefix)).or_default();
            if filed.is_empty() {
                *self.lengths.entry(length).or_default() += 1;
            }
            filed.push((window.clone(), id));
        }
    }

    /// `id` has read this, and does not care any more.
    pub fn remove(&mut self, id: Id, reads: &ReadSet) {
        for (space, key) in reads.records() {
            let at = (space, key.clone());
            if let Some(readers) = self.keys.get_mut(&at) {
                readers.remove(&id);
                if readers.is_empty() {
                    self.keys.remove(&at);
                }
            }
        }
        for window in reads.windows() {
            let at = (window.space, shared_prefix(window));
            let Some(filed) = self.ranges.get_mut(&at) else {
                continue;
            };
            filed.retain(|(other, reader)| *reader != id || other != window);
            if filed.is_empty() {
                self.ranges.remove(&at);
                let length = (window.space, at.1.len());
                if let Some(count) = self.lengths.get_mut(&length) {
                    *count -= 1;
                    if *count == 0 {
                        self.lengths.remove(&length);
                    }
                }
            }
        }
    }

    /// Tells every query that a write of this key may have changed, some perhaps twice.
    pub fn touched(&self, space: Space, key: &Bytes, mut tell: impl FnMut(Id)) {
        let at = (space, key.clone());
        for id in self.keys.get(&at).into_iter().flatten() {
            tell(*id);
        }
        for (_, length) in self
            .lengths
            .range((space, 0)..=(space, key.len()))
            .map(|l| l.0)
        {
            let Some(filed) = self.ranges.get(&(space, key.slice(..*length))) else {
                continue;
            };
            for (window, id) in filed {
                if window.covers(space, key) {
                    tell(*id);
                }
            }
        }
    }

    /// Whether nothing is in it.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.ranges.is_empty() && self.lengths.is_empty()
    }
}

/// The longest prefix that all keys of a window share.
fn shared_prefix(window: &Window) -> Bytes {
    let Some(to) = &window.to else {
        return Bytes::new();
    };
    let from = &window.from;
    let same = from
        .iter()
        .zip(to.iter())
        .take_while(|(a, b)| a == b)
        .count();
    // "ab" up to "ac" is everything that begins with "ab".
    let next = to.len() == same + 1
        && from
            .get(same)
            .is_some_and(|byte| byte.checked_add(1) == Some(to[same]));
    from.slice(..if next { same + 1 } else { same })
}

#[cfg(test)]
mod tests {
    use flower_engine::ReadSetBuilder;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_range_is_filed_under_what_all_its_keys_share() {
        for (from, to, expected) in [
            (&b"ab"[..], Some(&b"ac"[..]), &b"ab"[..]),
            (b"abc", Some(b"ac"), b"ab"),
            (b"abc", Some(b"abx"), b"ab"),
            (b"ab", Some(b"ad"), b"a"),
            (b"ab\xff", Some(b"ac"), b"ab"),
            (b"", None, b""),
            (b"a", None, b""),
            (b"ab", Some(b"ab\0"), b"ab"),
        ] {
            let window = Window {
                space: Space::Index,
                from: Bytes::copy_from_slice(from),
                to: to.map(Bytes::copy_from_slice),
            };
            assert_eq!(&shared_prefix(&window)[..], expected, "{window:?}");
        }
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![0u8..3, Just(254u8), Just(255u8)], 0..4)
    }

    fn reads() -> impl Strategy<Value = ReadSet> {
        let space = prop_oneof![Just(Space::Meta), Just(Space::Index)];
        let record = (space.clone(), bytes());
        let window = (space, bytes(), prop::option::of(bytes()));
        let records = prop::collection::vec(record, 0..5);
        (records, prop::collection::vec(window, 0..4)).prop_map(|(records, windows)| {
            let mut builder = ReadSetBuilder::default();
            for (space, key) in records {
                builder.record(space, &key);
            }
            for (space, from, to) in windows {
                if to.as_ref().is_none_or(|to| from < *to) {
                    builder.window(Window {
                        space,
                        from: from.into(),
                        to: to.map(Bytes::from),
                    });
                }
            }
            builder.finish()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        /// As asking every read set.
        #[test]
        fn it_tells_exactly_those_that_are_touched(
            sets in prop::collection::vec((reads(), any::<bool>()), 1..6),
            written in prop::collection::vec(bytes(), 1..8),
        ) {
            let mut index = Index::default();
            for (id, (set, _)) in sets.iter().enumerate() {
                index.insert(id as Id, set);
            }
            for (id, (set, stays)) in sets.iter().enumerate() {
                if !stays {
                    index.remove(id as Id, set);
                }
            }
            for key in &written {
                for space in [Space::Meta, Space::Index] {
                    let mut told = BTreeSet::new();
                    index.touched(space, &Bytes::copy_from_slice(key), |id| {
                        told.insert(id);
                    });
                    let expected: BTreeSet<Id> = sets.iter().enumerate()
                        .filter(|(_, (set, stays))| *stays && set.touched_by_key(space, key))
                        .map(|(id, _)| id as Id)
                        .collect();
                    prop_assert_eq!(told, expected);
                }
            }
            for (id, (set, stays)) in sets.iter().enumerate() {
                if *stays {
                    index.remove(id as Id, set);
                }
            }
            prop_assert!(index.is_empty());
        }
    }
}
