//! Ranges of a transaction: opened once, read in chunks, paged, counted, summed; every entry
//! walked is charged. Sees the transaction's own writes.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use flower_api::manifest::FieldType;
use serde_json::{Map, Value, json};

use crate::{
    deploy::Deployment,
    derived::{self, IndexName},
    key::Space,
    limits::setting,
    problem,
    range::{self, IdTail, KeyRange, ROW_TAIL},
    reads::{self, Window},
    record,
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

/// What a range goes over.
#[derive(Debug, Clone)]
enum Source {
    Rows,
    Index(IndexName),
    /// Entries of the index over a derived value, which hold all that they say.
    Values,
}

/// An open range.
#[derive(Debug, Clone)]
pub(crate) struct Cursor {
    /// The table or derived value.
    table: String,
    source: Source,
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
        let id = match self.source {
            Source::Index(_) => record::id_of_index_key(key),
            Source::Rows => record::id_of_row_key(key),
            Source::Values => None,
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
            let over = problem::budget(&self.limits, "ranges", self.limits.ranges, setting::RANGES);
            return Err(over.into());
        }
        let deployment = Arc::clone(&self.deployment);
        let ops: Map<String, Value> = serde_json::from_str(wanted.range)
            .map_err(|e| DbError::Wrong(format!("{}.range: {e}", wanted.table)))?;
        let (source, prefix, range) = self.source(&deployment, wanted, &ops)?;
        let space = match source {
            Source::Rows => Space::Data,
            _ => Space::Index,
        };
        let direction = match wanted.descending {
            false => Direction::Forward,
            true => Direction::Backward,
        };
        Ok(Cursor {
            table: wanted.table.to_owned(),
            source,
            space,
            prefix_bytes: prefix.len(),
            before: (range.clone(), wanted.limit),
            range,
            direction,
            remaining: wanted.limit,
            chunk: Vec::new(),
        })
    }

    /// What a range goes over, the prefix of its keys, and its bounds.
    fn source(
        &self,
        deployment: &Deployment,
        wanted: &Wanted,
        ops: &Map<String, Value>,
    ) -> Result<(Source, Vec<u8>, KeyRange)> {
        let fail = |why: String| match wanted.index {
            "" => DbError::Wrong(format!("{}.range: {why}", wanted.table)),
            index => DbError::Wrong(format!("{}.{index}.range: {why}", wanted.table)),
        };
        if let Some(derived) = deployment.manifest.derived.get(wanted.table) {
            if self.graph.evaluating() {
                let why = "the index of a derived value has no place inside a derived value";
                return Err(fail(why.into()));
            }
            if derived.index.as_deref() != Some(wanted.index) {
                return Err(fail("there is no such index".into()));
            }
            let prefix =
                record::index_prefix(wanted.table, &deployment.generation.named(wanted.index));
            let value = ("value", &derived.value);
            let key = derived.key.iter().map(|(field, ty)| (field.as_str(), ty));
            let fields: Vec<(&str, &FieldType)> = [value].into_iter().chain(key).collect();
            let range = range::bounds(&prefix, &fields, IdTail::None, ops).map_err(fail)?;
            return Ok((Source::Values, prefix, range));
        }
        let table = declared(deployment, wanted.table)?;
        if wanted.index.is_empty() {
            if self.graph.evaluating() {
                return Err(fail("inside a derived value: name an index".into()));
            }
            let prefix = record::table_prefix(wanted.table);
            let range = range::bounds(&prefix, &[], IdTail::Row, ops).map_err(fail)?;
            return Ok((Source::Rows, prefix, range));
        }
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
        let range = range::bounds(&prefix, &fields, IdTail::Bare, ops).map_err(fail)?;
        let name = IndexName {
            table: wanted.table.to_owned(),
            physical: physical.to_owned(),
            fields: index.on.len(),
        };
        Ok((Source::Index(name), prefix, range))
    }

    /// Walks up to `most` entries of a range, charging each; `take` gets key and value.
    fn walk(
        &mut self,
        cursor: &Cursor,
        most: u64,
        take: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        let (space, direction) = (cursor.space, cursor.direction);
        let walked = self.scan(space, &cursor.range, direction, most, take)?;
        if let (Some((window, present)), Source::Index(name)) = (walked, &cursor.source) {
            self.graph.read_window(name, window, present);
        }
        Ok(())
    }

    /// Walks up to `most` entries between keys, charging each. Answers what has been read,
    /// which ends at the last entry when the walk does, and whether anything was there;
    /// absent when nothing needed to be read. Cells between rows are stepped over.
    pub(crate) fn scan(
        &mut self,
        space: Space,
        range: &KeyRange,
        direction: Direction,
        most: u64,
        take: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<Option<(Window, bool)>> {
        if most == 0 || range.is_empty() {
            return Ok(None);
        }
        let (from, to) = (refs(&range.from), refs(&range.to));
        let written: BTreeMap<Bytes, Option<Bytes>> = if self.patch.is_empty() {
            BTreeMap::new()
        } else {
            let own = self.patch.range(space, from, to);
            own.map(|((_, key), value)| (key.clone(), value.clone()))
                .collect()
        };
        let (cost, limits, deadline) = (&mut self.cost, &self.limits, &self.deadline);
        let (mut left, mut over, mut present) = (most, Ok(()), false);
        let mut read = range.clone();
        let mut visit = |key: &[u8], value: &[u8]| {
            if space == Space::Data && !key.ends_with(ROW_TAIL) {
                over = Self::charge_step(cost, limits, deadline, key.len() + value.len());
                return over.is_ok();
            }
            present = true;
            over = Self::charge_read(cost, limits, deadline, key.len() + value.len());
            left -= 1;
            let going = over.is_ok() && take(key, value) && left > 0;
            if !going {
                let end = Bound::Included(key.to_vec());
                match direction {
                    Direction::Forward => read.to = end,
                    Direction::Backward => read.from = end,
                }
            }
            going
        };
        let view = &*self.view;
        if written.is_empty() {
            view.scan(space, from, to, direction, &mut visit)?;
        } else {
            scan_merged(view, &written, space, from, to, direction, &mut visit)?;
        }
        let window = reads::window_of(space, &read);
        self.reads.window(window.clone());
        over?;
        Ok(Some((window, present)))
    }

    /// The row that an entry stands for, as JSON.
    fn row_at(&mut self, cursor: &Cursor, key: &[u8], value: &[u8]) -> Result<String> {
        if matches!(cursor.source, Source::Values) {
            let declared = self.deployment.manifest.derived.get(&cursor.table);
            let suffix = key.get(cursor.prefix_bytes..).unwrap_or_default();
            let row = declared.and_then(|declared| derived::row_of_entry(declared, suffix));
            return row.ok_or_else(|| damaged(&cursor.table, "?"));
        }
        let id = cursor.id(key).ok_or_else(|| damaged(&cursor.table, "?"))?;
        let body = match cursor.source {
            Source::Index(_) => self.row_body(&cursor.table, &id)?,
            _ => record::body(value).map(str::to_owned),
        };
        let body = body.ok_or_else(|| damaged(&cursor.table, &id))?;
        Ok(record::with_id(&id, &body))
    }

    /// The next rows of a range, at most `most`; fewer when they are large, none at its end.
    fn advance(&mut self, cursor: &mut Cursor, most: u64) -> Result<Vec<String>> {
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
            let row = self.row_at(cursor, &key, &value)?;
            bytes += row.len();
            rows.push(row);
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
        let ty = match self.deployment.manifest.derived.get(wanted.table) {
            Some(derived) => {
                let fields = derived.key.iter().find(|(f, _)| f == field);
                let value = (field == "value").then_some(&derived.value);
                fields.map(|(_, ty)| ty).or(value)
            }
            None => {
                let fields = &declared(&self.deployment, wanted.table)?.fields;
                fields.iter().find(|(f, _)| f == field).map(|(_, ty)| ty)
            }
        };
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
            for row in rows {
                let row = serde_json::from_str::<Map<String, Value>>(&row)
                    .map_err(|_| damaged(wanted.table, "?"))?;
                sum += row.get(field).and_then(Value::as_f64).unwrap_or(0.0);
            }
        }
    }

    /// A page: rows and the cursor of the next page, which is absent at the end.
    pub fn page(&mut self, wanted: &Wanted, after: &str, size: u64) -> Result<String> {
        let mut cursor = self.cursor(wanted)?;
        if !after.is_empty() {
            cursor.range = resumed(&self.deployment, &cursor, after)?;
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
fn resumed(deployment: &Deployment, cursor: &Cursor, text: &str) -> Result<KeyRange> {
    let wrong = || DbError::BadCursor(format!("the cursor '{:.64}' is not of this range", text));
    let suffix = URL_SAFE_NO_PAD.decode(text).map_err(|_| wrong())?;
    let base = match (&cursor.range.from, &cursor.range.to) {
        (Bound::Included(k) | Bound::Excluded(k), _) => k,
        (Bound::Unbounded, _) => return Err(wrong()),
    };
    let prefix = base.get(..cursor.prefix_bytes).ok_or_else(wrong)?;
    let key = [prefix, &suffix].concat();
    let known = match cursor.source {
        Source::Values => {
            let declared = deployment.manifest.derived.get(&cursor.table);
            declared.is_some_and(|declared| derived::row_of_entry(declared, &suffix).is_some())
        }
        _ => cursor.id(&key).is_some(),
    };
    if !known || !crate::view::within(&key, refs(&cursor.range.from), refs(&cursor.range.to)) {
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

fn list(rows: &[String]) -> String {
    format!("[{}]", rows.join(","))
}

#[cfg(test)]
mod tests;
