//! What an evaluation read, at the level of stored keys: the certificate that query caches,
//! watches and the lane check against later writes. Holds keys only, never values, so that
//! checking rereads nothing.

use bytes::Bytes;

use crate::{
    key::Space,
    range::{KeyRange, ROW_TAIL},
    view::Patch,
};

/// Estimated bytes of one read besides its keys.
const READ_BYTES: u64 = 64;

/// A half-open range of keys that was read: what lies in it, and that nothing else does.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Window {
    /// Table.
    pub space: Space,
    /// First key of the range.
    pub from: Bytes,
    /// First key after the range; absent when it reaches to the end of the space.
    pub to: Option<Bytes>,
}

impl Window {
    /// Whether a write of `key` may change what the window holds. A window over
    /// [`Space::Data`] is one over rows: the cells between them are not in it.
    pub fn covers(&self, space: Space, key: &[u8]) -> bool {
        self.space == space
            && self.from <= key
            && self.to.as_ref().is_none_or(|to| key < to)
            && (space != Space::Data || key.ends_with(ROW_TAIL))
    }

    fn ends_before(&self, key: &[u8]) -> bool {
        self.to.as_ref().is_some_and(|to| to < key)
    }
}

/// What an evaluation read: sorted, merged, each key at most once. A patch that touches none
/// of it leaves the result of the evaluation as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadSet {
    records: Vec<(Space, Bytes)>,
    /// Disjoint, and no two of a space adjoin.
    windows: Vec<Window>,
    bytes: u64,
    /// Whether the time of the call or a random number was read: such a result is stale as
    /// soon as time passes, whatever is written.
    pub clock: bool,
}

impl ReadSet {
    /// Keys that were looked up, found or not.
    pub fn records(&self) -> impl Iterator<Item = (Space, &Bytes)> {
        self.records.iter().map(|(space, key)| (*space, key))
    }

    /// Ranges that were walked.
    pub fn windows(&self) -> impl Iterator<Item = &Window> {
        self.windows.iter()
    }

    /// Bytes that it occupies, estimated.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a write of this key may change the result.
    pub fn touched_by_key(&self, space: Space, key: &[u8]) -> bool {
        let found = self
            .records
            .binary_search_by(|(s, k)| (*s, &k[..]).cmp(&(space, key)));
        found.is_ok() || covered(&self.windows, space, key)
    }

    /// Whether a write of one of these keys may change the result.
    pub fn touched_by_keys<'k>(&self, keys: impl IntoIterator<Item = (Space, &'k [u8])>) -> bool {
        keys.into_iter()
            .any(|(space, key)| self.touched_by_key(space, key))
    }

    /// Whether this patch may change the result.
    pub fn touched_by(&self, patch: &Patch) -> bool {
        self.touched_by_keys(patch.writes().iter().map(|w| (w.space, &w.key[..])))
    }
}

fn covered(windows: &[Window], space: Space, key: &[u8]) -> bool {
    let after = windows.partition_point(|w| (w.space, &w.from[..]) <= (space, key));
    after > 0 && windows[after - 1].covers(space, key)
}

/// Collects reads in any order.
#[derive(Debug, Clone, Default)]
pub struct ReadSetBuilder {
    records: Vec<(Space, Bytes)>,
    windows: Vec<Window>,
    clock: bool,
}

impl ReadSetBuilder {
    /// A key was looked up.
    pub fn record(&mut self, space: Space, key: &[u8]) {
        self.records.push((space, Bytes::copy_from_slice(key)));
    }

    /// A half-open range of keys was walked.
    pub fn window(&mut self, window: Window) {
        // The next chunk of the range that was walked last.
        if let Some(last) = self.windows.last_mut()
            && last.space == window.space
            && last.from <= window.from
            && last.to.as_ref() == Some(&window.from)
        {
            last.to = window.to;
        } else {
            self.windows.push(window);
        }
    }

    /// The time of the call or a random number was read.
    pub fn clock(&mut self) {
        self.clock = true;
    }

    /// Sorts and merges.
    pub fn finish(mut self) -> ReadSet {
        self.windows.sort_unstable();
        let mut windows: Vec<Window> = Vec::with_capacity(self.windows.len());
        for window in self.windows {
            match windows.last_mut() {
                Some(last) if last.space == window.space && !last.ends_before(&window.from) => {
                    let longer = match (&last.to, &window.to) {
                        (Some(old), Some(new)) => new > old,
                        (Some(_), None) => true,
                        (None, _) => false,
                    };
                    if longer {
                        last.to = window.to;
                    }
                }
                _ => windows.push(window),
            }
        }
        let mut records = self.records;
        records.sort_unstable();
        records.dedup();
        records.retain(|(space, key)| !covered(&windows, *space, key));
        records.shrink_to_fit();
        windows.shrink_to_fit();
        let keys: usize = records.iter().map(|(_, key)| key.len()).sum();
        let bounds: usize = windows
            .iter()
            .map(|w| w.from.len() + w.to.as_ref().map_or(0, Bytes::len))
            .sum();
        ReadSet {
            bytes: (keys + bounds) as u64 + READ_BYTES * (records.len() + windows.len()) as u64,
            records,
            windows,
            clock: self.clock,
        }
    }
}

/// A range of keys as a half-open window.
pub(crate) fn window_of(space: Space, range: &KeyRange) -> Window {
    use std::ops::Bound;
    let after = |key: &[u8]| Bytes::from([key, b"\0"].concat());
    Window {
        space,
        from: match &range.from {
            Bound::Included(key) => Bytes::copy_from_slice(key),
            Bound::Excluded(key) => after(key),
            Bound::Unbounded => Bytes::new(),
        },
        to: match &range.to {
            Bound::Included(key) => Some(after(key)),
            Bound::Excluded(key) => Some(Bytes::copy_from_slice(key)),
            Bound::Unbounded => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::view::PatchBuilder;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0u8..4, 0..3)
    }

    fn space() -> impl Strategy<Value = Space> {
        prop_oneof![Just(Space::Meta), Just(Space::Index), Just(Space::Receipts)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        /// Exactly what was read is touched, however it was merged.
        #[test]
        fn merging_keeps_what_is_covered(
            records in prop::collection::vec((space(), key()), 0..6),
            windows in prop::collection::vec((space(), key(), prop::option::of(key())), 0..8),
            writes in prop::collection::vec((space(), key()), 1..20),
        ) {
            let mut builder = ReadSetBuilder::default();
            for (space, key) in &records {
                builder.record(*space, key);
            }
            let windows: Vec<Window> = windows
                .into_iter()
                .filter(|(_, from, to)| to.as_ref().is_none_or(|to| from < to))
                .map(|(space, from, to)| Window { space, from: from.into(), to: to.map(Bytes::from) })
                .collect();
            for window in &windows {
                builder.window(window.clone());
            }
            let set = builder.finish();
            for (space, key) in &writes {
                let expected = records.contains(&(*space, key.clone()))
                    || windows.iter().any(|w| w.covers(*space, key));
                prop_assert_eq!(set.touched_by_key(*space, key), expected);
                let mut patch = PatchBuilder::new();
                patch.delete(*space, key.clone());
                prop_assert_eq!(set.touched_by(&patch.seal()), expected);
            }
            let merged: Vec<&Window> = set.windows().collect();
            for pair in merged.windows(2) {
                let apart = pair[0].space < pair[1].space || pair[0].ends_before(&pair[1].from);
                prop_assert!(apart, "{:?}", pair);
            }
            let distinct: BTreeSet<_> = set.records().collect();
            prop_assert_eq!(distinct.len(), set.records().count());
            prop_assert_eq!(set.bytes() == 0, records.is_empty() && windows.is_empty());
        }
    }

    #[test]
    fn a_window_of_rows_does_not_hold_the_cells_between_them() {
        let mut builder = ReadSetBuilder::default();
        builder.window(Window {
            space: Space::Data,
            from: Bytes::from_static(b"t\0"),
            to: Some(Bytes::from_static(b"t\x01")),
        });
        let set = builder.finish();
        assert!(set.touched_by_key(Space::Data, b"t\0id\0r"));
        assert!(!set.touched_by_key(Space::Data, b"t\0id\0ctotal"));
        assert!(!set.touched_by_key(Space::Index, b"t\0id\0r"));
    }
}
