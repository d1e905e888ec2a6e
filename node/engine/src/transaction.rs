//! What a handler does to the data: reads over a view and the transaction's own writes,
//! collects a patch, keeps indexes, and charges every step. Writes nothing anywhere.

use std::sync::Arc;

use bytes::Bytes;
use flower_api::manifest::Table;

use crate::{
    codec,
    cursor::Cursor,
    deploy::{Deployment, Planted},
    derived::{Aside, Building, Graph, IndexName},
    error::ViewError,
    js::CallError,
    key::{Space, meta},
    limits::{Cost, Deadline, Limits, Stamp, setting},
    problem,
    range::ROW_TAIL,
    reads::ReadSetBuilder,
    record::{self, Row},
    view::{PatchBuilder, View},
};

/// Why an operation failed.
#[derive(Debug, Clone)]
pub(crate) enum DbError {
    /// The call ends, whatever the handler does.
    Stop(Box<CallError>),
    /// The handler did something wrong; it may catch this.
    Wrong(String),
    /// A paging cursor that the client sent does not belong here.
    BadCursor(String),
}

impl From<ViewError> for DbError {
    fn from(error: ViewError) -> Self {
        Self::Stop(Box::new(CallError::Storage(error)))
    }
}

impl From<CallError> for DbError {
    fn from(error: CallError) -> Self {
        Self::Stop(Box::new(error))
    }
}

impl From<String> for DbError {
    fn from(wrong: String) -> Self {
        Self::Wrong(wrong)
    }
}

/// Rows read between two looks at the deadline.
const READS_A_LOOK: u64 = 256;
/// Bytes stepped over between two looks at the deadline.
const BYTES_A_LOOK: u64 = 64 << 10;

pub(crate) type Result<T> = std::result::Result<T, DbError>;

/// One evaluation's view of the data.
pub(crate) struct Transaction {
    pub(crate) view: Arc<dyn View>,
    pub(crate) deployment: Arc<Deployment>,
    pub(crate) patch: PatchBuilder,
    pub(crate) cursors: Vec<Cursor>,
    pub(crate) cost: Cost,
    pub(crate) limits: Limits,
    pub(crate) deadline: Deadline,
    /// What the view was asked; what the transaction's own writes answered is not in it.
    pub(crate) reads: ReadSetBuilder,
    pub(crate) graph: Graph,
    pub(crate) writable: bool,
    pub(crate) stamp: Stamp,
    /// The page of a build that this makes, if it makes one.
    pub(crate) building: Option<Building>,
    /// What it writes for a build.
    pub(crate) aside: Aside,
    minted: u32,
    patch_bytes: u64,
}

impl Transaction {
    pub fn new(
        view: Arc<dyn View>,
        deployment: Arc<Deployment>,
        limits: Limits,
        stamp: Stamp,
        deadline: Deadline,
        writable: bool,
    ) -> Self {
        let mut reads = ReadSetBuilder::default();
        reads.record(Space::Meta, meta::ACTIVE);
        Self {
            view,
            deployment,
            patch: PatchBuilder::new(),
            cursors: Vec::new(),
            cost: Cost::default(),
            limits,
            deadline,
            reads,
            graph: Graph::default(),
            writable,
            stamp,
            building: None,
            aside: Aside::default(),
            minted: 0,
            patch_bytes: 0,
        }
    }

    /// What it used, and what it writes.
    pub fn finish(self) -> (Cost, PatchBuilder) {
        let mut patch = self.patch;
        patch.add(self.aside.into_patch());
        (self.cost, patch)
    }

    /// Bytes that it writes for itself.
    pub(crate) fn patch_bytes(&self) -> u64 {
        self.patch_bytes
    }

    /// Charges reading one row or index entry; now and then looks at the time.
    pub(crate) fn charge_read(
        cost: &mut Cost,
        limits: &Limits,
        deadline: &Deadline,
        bytes: usize,
    ) -> Result<()> {
        cost.rows_read += 1;
        cost.bytes_read += bytes as u64;
        let over = if cost.rows_read > limits.rows_read {
            problem::budget(limits, "rows read", limits.rows_read, setting::ROWS_READ)
        } else if cost.bytes_read > limits.bytes_read {
            problem::budget(limits, "bytes read", limits.bytes_read, setting::BYTES_READ)
        } else if cost.rows_read.is_multiple_of(READS_A_LOOK) && deadline.passed() {
            problem::budget(limits, "time in ms", limits.wall_ms, setting::WALL_MS)
        } else {
            return Ok(());
        };
        Err(over.into())
    }

    /// Charges stepping over a cell between rows: its bytes, and a look at the time.
    pub(crate) fn charge_step(
        cost: &mut Cost,
        limits: &Limits,
        deadline: &Deadline,
        bytes: usize,
    ) -> Result<()> {
        let before = cost.bytes_read / BYTES_A_LOOK;
        cost.bytes_read += bytes as u64;
        let over = if cost.bytes_read > limits.bytes_read {
            problem::budget(limits, "bytes read", limits.bytes_read, setting::BYTES_READ)
        } else if cost.bytes_read / BYTES_A_LOOK > before && deadline.passed() {
            problem::budget(limits, "time in ms", limits.wall_ms, setting::WALL_MS)
        } else {
            return Ok(());
        };
        Err(over.into())
    }

    pub(crate) fn read(&mut self, space: Space, key: &[u8]) -> Result<Option<Bytes>> {
        let found = match self.patch.get(space, key) {
            Some(written) => written.cloned(),
            None => {
                let cell =
                    space == Space::Cells || space == Space::Data && !key.ends_with(ROW_TAIL);
                if !(cell && self.deployment.has(Planted::StaleCertificate)) {
                    self.reads.record(space, key);
                }
                self.view.get(space, key)?
            }
        };
        let bytes = key.len() + found.as_ref().map_or(0, Bytes::len);
        Self::charge_read(&mut self.cost, &self.limits, &self.deadline, bytes)?;
        Ok(found)
    }

    /// The stored body of a row.
    pub(crate) fn row_body(&mut self, table: &str, id: &str) -> Result<Option<String>> {
        if !codec::is_id(id) {
            return Ok(None);
        }
        let found = self.read(Space::Data, &record::row_key(table, id))?;
        self.graph.read_row(table, id, found.is_some());
        let Some(value) = found else {
            return Ok(None);
        };
        let body = record::body(&value).ok_or_else(|| damaged(table, id))?;
        Ok(Some(body.to_owned()))
    }

    /// A row with its id, as JSON.
    pub fn get(&mut self, table: &str, id: &str) -> Result<Option<String>> {
        declared(&self.deployment, table)?;
        let body = self.row_body(table, id)?;
        Ok(body.map(|body| record::with_id(id, &body)))
    }

    fn row(&mut self, table: &str, id: &str) -> Result<Option<Row>> {
        let Some(body) = self.row_body(table, id)? else {
            return Ok(None);
        };
        let row = serde_json::from_str(&body).map_err(|_| damaged(table, id))?;
        Ok(Some(row))
    }

    fn existing(&mut self, table: &str, id: &str) -> Result<Row> {
        self.row(table, id)?
            .ok_or_else(|| DbError::Wrong(format!("{table} has no row '{id}'")))
    }

    /// Inserts a row; answers its id.
    pub fn insert(&mut self, table: &str, json: &str) -> Result<String> {
        let deployment = self.writable(table)?;
        let declared = declared(&deployment, table)?;
        let row = record::parse(table, json)?;
        if row.contains_key("id") {
            let why = format!("{table}.insert: ids are generated; leave 'id' out");
            return Err(DbError::Wrong(why));
        }
        let id = codec::mint_id(self.stamp.revision, self.minted)
            .ok_or_else(|| DbError::Wrong(format!("{table}.insert: no more ids in one call")))?;
        self.minted += 1;
        self.write(table, declared, &id, None, Some(row))?;
        Ok(id)
    }

    /// Changes fields of a row; those in `removed` become absent.
    pub fn patch(&mut self, table: &str, id: &str, json: &str, removed: &[String]) -> Result<()> {
        let deployment = self.writable(table)?;
        let declared = declared(&deployment, table)?;
        let changes = self.changes(table, id, json)?;
        let old = self.existing(table, id)?;
        let mut new = old.clone();
        for field in removed {
            new.remove(field);
        }
        new.extend(changes);
        self.write(table, declared, id, Some(old), Some(new))
    }

    /// Replaces a row's fields.
    pub fn replace(&mut self, table: &str, id: &str, json: &str) -> Result<()> {
        let deployment = self.writable(table)?;
        let declared = declared(&deployment, table)?;
        let new = self.changes(table, id, json)?;
        let old = self.existing(table, id)?;
        self.write(table, declared, id, Some(old), Some(new))
    }

    /// Deletes a row; answers whether there was one.
    pub fn delete(&mut self, table: &str, id: &str) -> Result<bool> {
        let deployment = self.writable(table)?;
        let declared = declared(&deployment, table)?;
        let Some(old) = self.row(table, id)? else {
            return Ok(false);
        };
        self.write(table, declared, id, Some(old), None)?;
        Ok(true)
    }

    fn writable(&self, table: &str) -> Result<Arc<Deployment>> {
        if self.graph.evaluating() {
            let why = format!("{table}: a derived value cannot write");
            Err(DbError::Wrong(why))
        } else if self.writable {
            Ok(Arc::clone(&self.deployment))
        } else {
            let why = format!("{table}: a query cannot write; declare a mutation");
            Err(DbError::Wrong(why))
        }
    }

    fn changes(&self, table: &str, id: &str, json: &str) -> Result<Row> {
        let mut row = record::parse(table, json)?;
        match row.shift_remove("id") {
            Some(other) if other != id => Err(DbError::Wrong(format!(
                "{table}: the id of a row cannot change (row '{id}')"
            ))),
            _ => Ok(row),
        }
    }

    fn write(
        &mut self,
        table: &str,
        declared: &Table,
        id: &str,
        old: Option<Row>,
        new: Option<Row>,
    ) -> Result<()> {
        self.cost.rows_written += 1;
        if self.cost.rows_written > self.limits.rows_written {
            let limit = self.limits.rows_written;
            let over = problem::budget(&self.limits, "rows written", limit, setting::ROWS_WRITTEN);
            return Err(over.into());
        }
        let mut new = new;
        let mut stored = None;
        if let Some(row) = &mut new {
            let body = record::canonical(table, declared, row)?;
            let (bytes, most) = (body.len() as u64, self.limits.record_bytes);
            if bytes > most {
                let what = format!("a row of {table}");
                let over = problem::too_large(&what, bytes, most, setting::RECORD);
                return Err(over.into());
            }
            stored = Some(record::value(self.stamp.revision, &body));
        }
        // All keys before the first write: a key that is too large must leave nothing half done.
        let entries = self.index_changes(table, declared, id, old.as_ref(), new.as_ref())?;
        if !self.deployment.manifest.derived.is_empty() {
            if old != new {
                self.row_changed(table, id, &entries);
            }
            if old.is_some() != new.is_some() {
                self.row_roots(table, id, new.is_some())?;
            }
        }
        self.write_aside(table, id, old.as_ref(), new.as_ref())?;
        for (_, key, present) in entries {
            let value = present.then(|| record::value(self.stamp.revision, ""));
            self.put(Space::Index, key, value)?;
        }
        self.put(Space::Data, record::row_key(table, id), stored)
    }

    /// Keys of index entries to delete (false) and to write (true).
    pub(crate) fn index_changes(
        &self,
        table: &str,
        declared: &Table,
        id: &str,
        old: Option<&Row>,
        new: Option<&Row>,
    ) -> Result<Vec<(IndexName, Vec<u8>, bool)>> {
        let mut out = Vec::new();
        for (name, index) in &declared.indexes {
            let physical = self.deployment.stored_index(table, name);
            let key = |row: &Row| record::index_key(table, physical, &index.on, row, id);
            let (before, after) = (old.map(key).transpose()?, new.map(key).transpose()?);
            if before != after {
                let name = IndexName {
                    table: table.to_owned(),
                    physical: physical.to_owned(),
                    fields: index.on.len(),
                };
                out.extend(before.map(|key| (name.clone(), key, false)));
                out.extend(after.map(|key| (name, key, true)));
            }
        }
        Ok(out)
    }

    /// Takes back what this call wrote under a key.
    pub(crate) fn unput(&mut self, space: Space, key: &[u8]) {
        if let Some(written) = self.patch.get(space, key) {
            self.patch_bytes -= size(key, written);
            self.patch.forget(space, key);
        }
    }

    pub(crate) fn put(&mut self, space: Space, key: Vec<u8>, value: Option<Bytes>) -> Result<()> {
        let before = self.patch.get(space, &key).map_or(0, |old| size(&key, old));
        self.patch_bytes += size(&key, value.as_ref());
        self.patch_bytes -= before;
        match value {
            Some(value) => self.patch.put(space, key, value),
            None => self.patch.delete(space, key),
        }
        if self.patch_bytes > self.limits.patch_bytes {
            let limit = self.limits.patch_bytes;
            let over =
                problem::budget(&self.limits, "bytes written", limit, setting::BYTES_WRITTEN);
            return Err(over.into());
        }
        Ok(())
    }
}

/// Bytes that a write takes in a patch.
fn size(key: &[u8], value: Option<&Bytes>) -> u64 {
    (key.len() + value.map_or(0, Bytes::len) + 2) as u64
}

/// The declaration of a table.
pub(crate) fn declared<'a>(deployment: &'a Deployment, table: &str) -> Result<&'a Table> {
    let found = deployment.manifest.tables.get(table);
    found.ok_or_else(|| DbError::Wrong(format!("there is no table '{table}'")))
}

/// A stored row that cannot be read.
pub(crate) fn damaged(table: &str, id: &str) -> DbError {
    ViewError(format!("row '{id}' of table {table} is damaged")).into()
}
