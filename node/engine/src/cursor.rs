//! Ranges of a transaction: opened once, read in chunks, paged, counted, summed; every entry
//! walked is charged. Sees the transaction's own writes.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use flower_api::manifest::FieldType;
use serde_json::{Map, Value, json};

use crate::{
    key::Space,
    limits::setting,
    problem,
    range::{self, IdTail, KeyRange},
    reads, record,
    transaction::{DbError, Result, Transaction, damaged, declared},
    view::{Direction, scan_merged},
};

/// A chunk ends after the row that reaches so many bytes.
const CHUNK_BYTES: usize = 256 << 10;
/// Rows of a chunk that the engine itself reads.
const CHUNK_ROWS: u64 = 64;

/// What a handler asks for.
#[derive(Debug, Clone)]
pub(crate) struct Wanted<'a> {
    pub table: &'a str,
    /// Empty for the table itself.
    pub index: &'a str,
    /// JSON of the range.
    pub range: &'a str,
    pub descending: bool,
    /// Rows at most; absent for all.
    pub limit: Option<u64>,
}

/// An open range.
#[derive(Debug, Clone)]
pub(crate) struct Cursor {
    table: String,
    space: Space,
    prefix_bytes: usize,
    range: KeyRange,
    direction: Direction,
    remaining: Option<u64>,
    /// State before the last chunk, and the keys of that chunk.
    before: (KeyRange, Option<u64>),
    chunk: Vec<Vec<u8>>,
}

impl Cursor {
    /// Continues after `key`.
    fn pass(&mut self, key: &[u8]) {
        match self.direction {
            Direction::Forward => self.range.from = Bound::Excluded(key.to_vec()),
            Direction::Backward => self.range.to = Bound::Excluded(key.to_vec()),
        }
    }

    fn id(&self, key: &[u8]) -> Option<String> {
        let id = match self.space {
            Space::Index => record::id_of_index_key(key),
            _ => record::id_of_row_key(key),
        };
        id.map(str::to_owned)
    }
}

fn refs(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

impl Transaction {
    /// Opens a range; answers its number.
    pub fn open(&mut self, wanted: &Wanted) -> Result<usize> {
        let cursor = self.cursor(wanted)?;
        self.cursors.push(cursor);
        Ok(self.cursors.len() - 1)
    }

    fn cursor(&mut self, wanted: &Wanted) -> Result<Cursor> {
        self.cost.ranges += 1;
        if self.cost.ranges > self.limits.ranges {
            let over = problem::budget("ranges", self.limits.ranges, setting::RANGES);
            return Err(over.into());
        }
        let deployment = Arc::clone(&self.deployment);
        let table = declared(&deployment, wanted.table)?;
        let ops: Map<String, Value> = serde_json::from_str(wanted.range)
            .map_err(|e| DbError::Wrong(format!("{}.range: {e}", wanted.table)))?;
        let fail = |why: String| match wanted.index {
            "" => DbError::Wrong(format!("{}.range: {why}", wanted.table)),
            index => DbError::Wrong(format!("{}.{index}.range: {why}", wanted.table)),
        };
        let (space, prefix, range) = if wanted.index.is_empty() {
            let prefix = record::table_prefix(wanted.table);
            let range = range::bounds(&prefix, &[], IdTail::Row, &ops).map_err(fail)?;
            (Space::Data, prefix, range)
        } else {
            let index = table
                .indexes
                .get(wanted.index)
                .ok_or_else(|| fail("there is no such index".into()))?;
            let physical = deployment.stored_index(wanted.table, wanted.index);
            let prefix = record::index_prefix(wanted.table, physical);
            let fields: Vec<(&str, &FieldType)> = index
                .on
                .iter()
                .filter_map(|on| table.fields.iter().find(|(f, _)| f == on))
                .map(|(field, ty)| (field.as_str(), ty))
                .collect();
            let range = range::bounds(&prefix, &fields, IdTail::Bare, &ops).map_err(fail)?;
            (Space::Index, prefix, range)
        };
        let direction = match wanted.descending {
            false => Direction::Forward,
            true => Direction::Backward,
        };
        Ok(Cursor {
            table: wanted.table.to_owned(),
            space,
            prefix_bytes: prefix.len(),
            before: (range.clone(), wanted.limit),
            range,
            direction,
            remaining: wanted.limit,
            chunk: Vec::new(),
        })
    }

    /// Walks up to `most` entries of a range, charging each; `take` gets key and value. What
    /// is recorded as read ends at the last entry when the walk does.
    fn walk(
        &mut self,
        cursor: &Cursor,
        most: u64,
        take: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        if most == 0 || cursor.range.is_empty() {
            return Ok(());
        }
        let (from, to) = (refs(&cursor.range.from), refs(&cursor.range.to));
        let written: BTreeMap<Bytes, Option<Bytes>> = if self.patch.is_empty() {
            BTreeMap::new()
        } else {
            let own = self.patch.range(cursor.space, from, to);
            own.map(|((_, key), value)| (key.clone(), value.clone()))
                .collect()
        };
        let (cost, limits, deadline) = (&mut self.cost, &self.limits, &self.deadline);
        let mut left = most;
        let mut over = Ok(());
        let mut read = cursor.range.clone();
        let mut visit = |key: &[u8], value: &[u8]| {
            over = Self::charge_read(cost, limits, deadline, key.len() + value.len());
            left -= 1;
            let going = over.is_ok() && take(key, value) && left > 0;
            if !going {
                let end = Bound::Included(key.to_vec());
                match cursor.direction {
                    Direction::Forward => read.to = end,
                    Direction::Backward => read.from = end,
                }
            }
            going
        };
        let (view, direction) = (&*self.view, cursor.direction);
        if written.is_empty() {
            view.scan(cursor.space, from, to, direction, &mut visit)?;
        } else {
            scan_merged(
                view,
                &written,
                cursor.space,
                from,
                to,
                direction,
                &mut visit,
            )?;
        }
        self.reads.window(reads::window_of(cursor.space, &read));
        over
    }

    /// The next rows of a range, at most `most`; fewer when they are large, none at its end.
    fn advance(&mut self, cursor: &mut Cursor, most: u64) -> Result<Vec<(String, String)>> {
        cursor.before = (cursor.range.clone(), cursor.remaining);
        cursor.chunk.clear();
        let most = cursor.remaining.map_or(most, |left| left.min(most));
        let (mut bytes, mut found) = (0, Vec::new());
        self.walk(cursor, most, &mut |key, value| {
            bytes += value.len();
            found.push((key.to_vec(), Bytes::copy_from_slice(value)));
            bytes < CHUNK_BYTES
        })?;
        let mut rows = Vec::new();
        let mut bytes = 0;
        for (key, value) in found {
            let id = cursor.id(&key).ok_or_else(|| damaged(&cursor.table, "?"))?;
            let body = if cursor.space == Space::Index {
                self.row_body(&cursor.table, &id)?
            } else {
                record::body(&value).map(str::to_owned)
            };
            let body = body.ok_or_else(|| damaged(&cursor.table, &id))?;
            bytes += body.len();
            rows.push((id, body));
            cursor.chunk.push(key);
            if bytes >= CHUNK_BYTES {
                break;
            }
        }
        if let Some(last) = cursor.chunk.last().cloned() {
            cursor.pass(&last);
        }
        cursor.remaining = cursor.remaining.map(|left| left - rows.len() as u64);
        Ok(rows)
    }

    fn opened(&self, number: usize) -> Result<Cursor> {
        let found = self.cursors.get(number).cloned();
        found.ok_or_else(|| DbError::Wrong("the range belongs to another call".into()))
    }

    /// The next rows of an open range, as a JSON list; empty at its end.
    pub fn next(&mut self, number: usize, most: u64) -> Result<String> {
        let mut cursor = self.opened(number)?;
        let rows = self.advance(&mut cursor, most)?;
        self.cursors[number] = cursor;
        Ok(list(&rows))
    }

    /// Goes back to after the first `used` rows of the last chunk.
    pub fn rewind(&mut self, number: usize, used: usize) -> Result<()> {
        let mut cursor = self.opened(number)?;
        (cursor.range, cursor.remaining) = cursor.before.clone();
        if used > 0
            && let Some(last) = cursor.chunk.get(used - 1).cloned()
        {
            cursor.pass(&last);
            cursor.remaining = cursor
                .remaining
                .map(|left| left.saturating_sub(used as u64));
        }
        self.cursors[number] = cursor;
        Ok(())
    }

    /// How many rows a range has; walks and charges each.
    pub fn count(&mut self, wanted: &Wanted) -> Result<u64> {
        let cursor = self.cursor(wanted)?;
        let mut count = 0;
        self.walk(&cursor, wanted.limit.unwrap_or(u64::MAX), &mut |_, _| {
            count += 1;
            true
        })?;
        Ok(count)
    }

    /// Sum of a number field over a range; absent values count nothing.
    pub fn sum(&mut self, wanted: &Wanted, field: &str) -> Result<f64> {
        let table = declared(&self.deployment, wanted.table)?;
        let ty = table
            .fields
            .iter()
            .find(|(f, _)| f == field)
            .map(|(_, ty)| ty);
        if !ty.is_some_and(is_number) {
            let why = format!("{}: '{field}' is not a field of numbers", wanted.table);
            return Err(DbError::Wrong(why));
        }
        let mut cursor = self.cursor(wanted)?;
        let mut sum = 0.0;
        loop {
            let rows = self.advance(&mut cursor, CHUNK_ROWS)?;
            if rows.is_empty() {
                return Ok(sum);
            }
            for (id, body) in rows {
                let row = serde_json::from_str::<Map<String, Value>>(&body)
                    .map_err(|_| damaged(wanted.table, &id))?;
                sum += row.get(field).and_then(Value::as_f64).unwrap_or(0.0);
            }
        }
    }

    /// A page: rows and the cursor of the next page, which is absent at the end.
    pub fn page(&mut self, wanted: &Wanted, after: &str, size: u64) -> Result<String> {
        let mut cursor = self.cursor(wanted)?;
        if !after.is_empty() {
            cursor.range = resumed(&cursor, after)?;
        }
        cursor.remaining = Some(size);
        let mut rows = Vec::new();
        let mut last = None;
        loop {
            let mut more = self.advance(&mut cursor, CHUNK_ROWS)?;
            if more.is_empty() {
                break;
            }
            last = cursor.chunk.last().cloned();
            rows.append(&mut more);
        }
        let mut further = false;
        self.walk(&cursor, 1, &mut |_, _| {
            further = true;
            true
        })?;
        let next = last
            .filter(|_| further)
            .map(|key| URL_SAFE_NO_PAD.encode(&key[cursor.prefix_bytes..]));
        let next = json!(next);
        Ok(format!("{{\"rows\":{},\"cursor\":{next}}}", list(&rows)))
    }
}

/// The rest of a range after the key that a client's cursor names.
fn resumed(cursor: &Cursor, text: &str) -> Result<KeyRange> {
    let wrong = || DbError::BadCursor(format!("the cursor '{:.64}' is not of this range", text));
    let suffix = URL_SAFE_NO_PAD.decode(text).map_err(|_| wrong())?;
    let base = match (&cursor.range.from, &cursor.range.to) {
        (Bound::Included(k) | Bound::Excluded(k), _) => k,
        (Bound::Unbounded, _) => return Err(wrong()),
    };
    let prefix = base.get(..cursor.prefix_bytes).ok_or_else(wrong)?;
    let key = [prefix, &suffix].concat();
    if cursor.id(&key).is_none()
        || !crate::view::within(&key, refs(&cursor.range.from), refs(&cursor.range.to))
    {
        return Err(wrong());
    }
    let mut rest = cursor.clone();
    rest.pass(&key);
    Ok(rest.range)
}

fn is_number(ty: &FieldType) -> bool {
    match ty {
        FieldType::Optional { inner } => is_number(inner),
        FieldType::Int { .. } | FieldType::Number | FieldType::Time => true,
        _ => false,
    }
}

fn list(rows: &[(String, String)]) -> String {
    let rows: Vec<String> = rows
        .iter()
        .map(|(id, body)| record::with_id(id, body))
        .collect();
    format!("[{}]", rows.join(","))
}

#[cfg(test)]
mod tests;
