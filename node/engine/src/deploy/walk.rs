//! Walking what a deployment finds stored: rows, cells of the application that runs. Reads
//! only.

use std::ops::Bound;

use bytes::Bytes;

use super::Deployment;
use crate::{
    codec,
    error::ViewError,
    key::Space,
    range::ROW_TAIL,
    record::{self, Row},
    view::{Direction, View},
};

/// Rows of a table that are counted; of a larger one their number is estimated.
const COUNTED: u64 = 10_000;
/// Keys visited between two looks at the bound of a walk that steps over others.
const VISITED: usize = 16_000;

/// A stretch of keys that begin with a prefix.
pub(crate) struct Stretch {
    /// Those that were wanted, in order.
    pub found: Vec<(Bytes, Bytes)>,
    /// The last one visited; absent when there was none.
    pub last: Option<Vec<u8>>,
    /// Whether the prefix has no more.
    pub end: bool,
}

/// The next keys that begin with `prefix`, after `after` unless that is empty: at most `most`
/// that are wanted.
pub(crate) fn stretch(
    view: &dyn View,
    space: Space,
    prefix: &[u8],
    after: &[u8],
    most: usize,
    wanted: &dyn Fn(&[u8]) -> bool,
) -> Result<Stretch, ViewError> {
    let end = codec::after_prefix(prefix);
    let from = match after {
        [] => Bound::Included(prefix),
        after => Bound::Excluded(after),
    };
    let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let mut out = Stretch {
        found: Vec::new(),
        last: None,
        end: true,
    };
    let mut visited = 0;
    view.scan(space, from, to, Direction::Forward, &mut |key, value| {
        if out.found.len() >= most || visited >= most.max(VISITED) {
            out.end = false;
            return false;
        }
        visited += 1;
        out.last = Some(key.to_vec());
        if wanted(key) {
            out.found
                .push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
        }
        true
    })?;
    Ok(out)
}

/// The next rows of a table.
pub(crate) fn rows(
    view: &dyn View,
    table: &str,
    after: &[u8],
    most: usize,
) -> Result<Stretch, ViewError> {
    let prefix = record::table_prefix(table);
    let row = |key: &[u8]| key.ends_with(ROW_TAIL);
    stretch(view, Space::Data, &prefix, after, most, &row)
}

/// The next cells of a derived value of `deployment`.
pub(crate) fn cells(
    view: &dyn View,
    deployment: &Deployment,
    name: &str,
    after: &[u8],
    most: usize,
) -> Result<(Space, Stretch), ViewError> {
    let of = deployment.generation;
    let home = deployment.manifest.derived.get(name).and_then(|d| d.home());
    let Some(table) = home else {
        let found = stretch(view, Space::Cells, &of.cells(name), after, most, &|_| true)?;
        return Ok((Space::Cells, found));
    };
    let tail = [&b"\0c"[..], of.named(name).as_bytes()].concat();
    let cell = |key: &[u8]| key.ends_with(&tail);
    let prefix = record::table_prefix(table);
    let found = stretch(view, Space::Data, &prefix, after, most, &cell)?;
    Ok((Space::Data, found))
}

/// Whether there may be cells of a derived value; true when that needs a longer look.
pub(super) fn has_cells(
    view: &dyn View,
    deployment: &Deployment,
    name: &str,
) -> Result<bool, ViewError> {
    let (_, found) = cells(view, deployment, name, &[], 1)?;
    Ok(!found.found.is_empty() || !found.end)
}

/// How many rows a table has; estimated when there are many, by the revisions in their ids.
pub(super) fn rows_of(view: &dyn View, table: &str) -> Result<u64, ViewError> {
    let (mut rows, mut first, mut last) = (0u64, 0.0, 0.0);
    let prefix = record::table_prefix(table);
    let end = codec::after_prefix(&prefix);
    let (from, to) = (
        Bound::Included(&prefix[..]),
        end.as_deref().map_or(Bound::Unbounded, Bound::Excluded),
    );
    view.scan(Space::Data, from, to, Direction::Forward, &mut |key, _| {
        if key.ends_with(ROW_TAIL) {
            last = rank(key);
            first = if rows == 0 { last } else { first };
            rows += 1;
        }
        rows < COUNTED
    })?;
    if rows < COUNTED {
        return Ok(rows);
    }
    let mut greatest = last;
    view.scan(Space::Data, from, to, Direction::Backward, &mut |key, _| {
        greatest = rank(key);
        false
    })?;
    let share = (last - first) / (greatest - first);
    let share = if share > 0.0 && share <= 1.0 {
        share
    } else {
        1.0
    };
    Ok((rows as f64 / share) as u64)
}

/// A number that grows with the id in a key of a row or of a cell beside one.
fn rank(key: &[u8]) -> f64 {
    let nul = key.iter().rposition(|b| *b == 0).unwrap_or(0);
    let id = &key[nul.saturating_sub(codec::ID_CHARS)..nul];
    id.iter().fold(0.0, |sum, byte| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            _ => byte.saturating_sub(b'a') + 10,
        };
        sum * 32.0 + f64::from(digit)
    })
}

/// A number of rows for people.
pub(super) fn shown(rows: u64) -> String {
    if rows < COUNTED {
        rows.to_string()
    } else {
        format!("about {rows}")
    }
}

/// A stored row.
///
/// # Errors
/// When it is damaged.
pub(super) fn row(table: &str, key: &[u8], value: &[u8]) -> Result<(String, Row), ViewError> {
    let damaged = || ViewError(format!("a row of table {table} is damaged"));
    let id = record::id_of_row_key(key).ok_or_else(damaged)?;
    let body = record::body(value).ok_or_else(damaged)?;
    let row: Row = serde_json::from_str(body).map_err(|_| damaged())?;
    Ok((id.to_owned(), row))
}
