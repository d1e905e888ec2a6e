//! What a cell depends on, as bytes: a row, another cell, or a window of an index. A window
//! is kept under the values that all its entries share, so that a write finds its readers by
//! one prefix for each number of leading fields; only windows over several values of the
//! first field share none. Pure.

use std::{collections::BTreeSet, ops::Bound};

use serde_json::Value;

use super::cell::{CellId, Generation};
use crate::{codec, reads::Window, record};

const ROW: u8 = b'r';
const CELL: u8 = b'c';
const INDEX: u8 = b'i';
/// After the shared values: the window is everything that has them …
const WHOLE: u8 = 0;
/// … or a part of it.
const PART: u8 = 1;

/// A row, there or not.
pub(crate) fn row(table: &str, id: &str) -> Vec<u8> {
    [&[ROW], table.as_bytes(), b"\0", id.as_bytes()].concat()
}

pub(crate) fn cell(id: &CellId) -> Vec<u8> {
    [&[CELL], id.as_bytes()].concat()
}

/// The cell that a target is; absent for rows and windows.
pub(crate) fn as_cell(target: &[u8]) -> Option<CellId> {
    CellId::from_bytes(target.strip_prefix(&[CELL])?)
}

/// What bytes stand for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Row {
        table: String,
        id: String,
    },
    Cell(CellId),
    /// Entries of an index that share values, between bounds that follow those.
    Window {
        table: String,
        physical: String,
        shared: Vec<Value>,
        from: Vec<u8>,
        to: Option<Vec<u8>>,
    },
}

/// What a target is; absent for other bytes.
pub(crate) fn as_target(target: &[u8]) -> Option<Target> {
    let (&kind, body) = target.split_first()?;
    match kind {
        CELL => CellId::from_bytes(body).map(Target::Cell),
        ROW => {
            let (table, id) = pop_name(body)?;
            let id = String::from_utf8(id.to_vec()).ok()?;
            Some(Target::Row { table, id })
        }
        INDEX => {
            let (table, body) = pop_name(body)?;
            let (physical, body) = pop_name(body)?;
            let (&count, mut body) = body.split_first()?;
            let mut shared = Vec::new();
            for _ in 0..count {
                let (value, rest) = codec::pop(body)?;
                shared.push(value);
                body = rest;
            }
            let (from, to) = match body.split_first()? {
                (&PART, body) => {
                    let (from, body) = pop_bytes(body)?;
                    let (&bounded, body) = body.split_first()?;
                    let (to, _) = pop_bytes(body)?;
                    (from.to_vec(), (bounded != 0).then(|| to.to_vec()))
                }
                _ => (Vec::new(), None),
            };
            Some(Target::Window {
                table,
                physical,
                shared,
                from,
                to,
            })
        }
        _ => None,
    }
}

/// A name that ends in NUL, and what follows.
fn pop_name(bytes: &[u8]) -> Option<(String, &[u8])> {
    let nul = bytes.iter().position(|b| *b == 0)?;
    let name = String::from_utf8(bytes[..nul].to_vec()).ok()?;
    Some((name, &bytes[nul + 1..]))
}

/// An index, as targets name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct IndexName {
    pub table: String,
    /// Its stored name.
    pub physical: String,
    /// Number of its fields.
    pub fields: usize,
}

impl IndexName {
    fn begin(&self, shared: usize, values: &[u8]) -> Vec<u8> {
        let mut out = vec![INDEX];
        out.extend_from_slice(self.table.as_bytes());
        out.push(0);
        out.extend_from_slice(self.physical.as_bytes());
        out.push(0);
        // At most 16 fields.
        out.push(shared as u8);
        out.extend_from_slice(values);
        out
    }

    /// Ends of the leading values of an entry's key after the index's prefix, 0 first.
    fn ends(&self, rest: &[u8]) -> Vec<usize> {
        let mut ends = vec![0];
        let mut left = rest;
        while ends.len() <= self.fields
            && let Some((_, after)) = codec::pop(left)
        {
            ends.push(rest.len() - after.len());
            left = after;
        }
        ends
    }

    /// What begins the targets of the windows that may hold the entry under `key`, the
    /// windows that share no value first. After each: the number of bytes of `key` that the
    /// window's bounds leave out.
    pub fn around(&self, key: &[u8]) -> Vec<(Vec<u8>, usize)> {
        let prefix = record::index_prefix(&self.table, &self.physical).len();
        let rest = key.get(prefix..).unwrap_or_default();
        let ends = self.ends(rest).into_iter().enumerate();
        ends.map(|(n, end)| (self.begin(n, &rest[..end]), prefix + end))
            .collect()
    }

    /// The target for a window of the index's entries.
    pub fn window(&self, window: &Window) -> Vec<u8> {
        let prefix = record::index_prefix(&self.table, &self.physical);
        let rest = window.from.strip_prefix(&prefix[..]).unwrap_or_default();
        // A bound that is no value may look like one; what counts is that all keys between
        // the bounds begin with these bytes, and those then are values.
        for (n, end) in self.ends(rest).into_iter().enumerate().rev() {
            let shared = [&prefix[..], &rest[..end]].concat();
            let after = codec::after_prefix(&shared);
            let within = match (&window.to, &after) {
                (Some(to), Some(after)) => to <= after,
                (_, None) => true,
                (None, Some(_)) => false,
            };
            if !within && n > 0 {
                continue;
            }
            let mut out = self.begin(n, &rest[..end]);
            let to = window
                .to
                .as_ref()
                .filter(|to| Some(&to[..]) != after.as_deref());
            let to = to.and_then(|to| to.strip_prefix(&shared[..]));
            if to.is_none() && rest.len() == end {
                out.push(WHOLE);
            } else {
                out.push(PART);
                push_bytes(&mut out, &rest[end..]);
                out.push(u8::from(to.is_some()));
                push_bytes(&mut out, to.unwrap_or_default());
            }
            return out;
        }
        self.begin(0, &[])
    }
}

/// Keys have less than 64 KiB.
fn push_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    out.extend_from_slice(bytes);
}

fn pop_bytes(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (size, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*size)))
}

/// From what follows the shared values in the key of a window's reader record: whether one of
/// some entries lies in the window, `rests` being their keys after those values; and the
/// reader. Absent when the bytes are of another form.
pub(crate) fn window_reader<'a>(
    tail: &'a [u8],
    rests: &BTreeSet<Vec<u8>>,
) -> Option<(bool, &'a [u8])> {
    match tail.split_first()? {
        (&WHOLE, reader) => Some((true, reader)),
        (&PART, body) => {
            let (from, body) = pop_bytes(body)?;
            let (&bounded, body) = body.split_first()?;
            let (to, reader) = pop_bytes(body)?;
            let mut after = rests.range::<[u8], _>((Bound::Included(from), Bound::Unbounded));
            let first = after.next();
            let within = first.is_some_and(|rest| bounded == 0 || &rest[..] < to);
            Some((within, reader))
        }
        _ => None,
    }
}

/// The key of a reader record.
pub(crate) fn reader_key(of: Generation, target: &[u8], reader: &CellId) -> Vec<u8> {
    let mut key = readers_of(of, target);
    key.extend_from_slice(reader.as_bytes());
    key
}

/// What begins the keys of the reader records of a target.
pub(crate) fn readers_of(of: Generation, target: &[u8]) -> Vec<u8> {
    let mut key = of.readers();
    key.extend_from_slice(target);
    key
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{
        key::Space,
        range::{self, IdTail},
        reads::window_of,
    };

    fn name() -> IndexName {
        IndexName {
            table: "t".into(),
            physical: "i".into(),
            fields: 2,
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-2i64..3).prop_map(Value::from),
            "[ab\u{0}]{0,2}".prop_map(Value::from),
        ]
    }

    fn entry(a: &Value, b: &Value, id: &str) -> Vec<u8> {
        let on = ["a".to_owned(), "b".to_owned()];
        let row = json!({"a": a, "b": b});
        record::index_key("t", "i", &on, row.as_object().unwrap(), id).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]
        /// A write finds exactly the windows that it lies in.
        #[test]
        fn a_window_is_found_by_what_lies_in_it(
            from in (value(), value(), prop::option::of("[0-3]{16}")),
            to in (value(), value(), prop::option::of("[0-3]{16}")),
            cut in (0..4usize, 0..4usize),
            key in (value(), value(), "[0-3]{16}"),
            after in any::<bool>(),
            generation in 0..2u64,
        ) {
            let prefix = record::index_prefix("t", "i");
            let bound = |(a, b, id): &(Value, Value, Option<String>), cut: usize| {
                let whole = entry(a, b, id.as_deref().unwrap_or("0000000000000000"));
                let ends = name().ends(&whole[prefix.len()..]);
                let end = ends.get(cut).map_or(whole.len(), |end| prefix.len() + end);
                whole[..end].to_vec()
            };
            let low = bound(&from, cut.0);
            let high = bound(&to, cut.1);
            let high = if after { codec::after_prefix(&high).unwrap() } else { high };
            prop_assume!(low != high);
            let (low, high) = if low < high { (low, high) } else { (high, low) };
            let window = Window { space: Space::Index, from: low.into(), to: Some(high.into()) };
            let target = name().window(&window);
            let reader = CellId::of_row("cell", "0000000000000000");
            let of = Generation(generation);
            let stored = reader_key(of, &target, &reader);
            let key = entry(&key.0, &key.1, &key.2);
            let mut found = 0;
            for (begin, left_out) in name().around(&key) {
                let Some(tail) = stored.strip_prefix(&readers_of(of, &begin)[..]) else { continue };
                let (within, of) = window_reader(tail, &[key[left_out..].to_vec()].into()).unwrap();
                prop_assert_eq!(of, reader.as_bytes());
                found += usize::from(within);
            }
            prop_assert_eq!(found, usize::from(window.covers(Space::Index, &key)));
        }
    }

    /// Equality on leading fields is found by prefix alone, and so is a range within them.
    #[test]
    fn ranges_are_kept_under_what_their_entries_share() {
        let number = flower_api::manifest::FieldType::Number;
        let fields = [("a", &number), ("b", &number)];
        let target = |wanted: Value| {
            let prefix = record::index_prefix("t", "i");
            let range = range::bounds(&prefix, &fields, IdTail::Bare, wanted.as_object().unwrap());
            name().window(&window_of(Space::Index, &range.unwrap()))
        };
        let kept = |wanted: Value| {
            let target = target(wanted);
            let shared = usize::from(target[5]);
            (shared, target[6 + 9 * shared])
        };
        assert_eq!(kept(json!({})), (0, WHOLE));
        assert_eq!(kept(json!({"a": 1})), (1, WHOLE));
        assert_eq!(kept(json!({"a": 1, "b": 2})), (2, WHOLE));
        assert_eq!(kept(json!({"a": 1, "b": {"gt": 2}})), (1, PART));
        assert_eq!(kept(json!({"a": 1, "b": 2, "id": {"gt": "3"}})), (2, PART));
        assert_eq!(kept(json!({"a": {"gte": 1, "lte": 1}})), (1, WHOLE));
        assert_eq!(kept(json!({"a": {"gt": 1}})), (0, PART));
        assert_eq!(kept(json!({"a": {"gt": 1, "lt": 2}})), (0, PART));
    }
}
