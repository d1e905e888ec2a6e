//! What a deployment does to the rows that exist: pure over a view.

use std::{collections::BTreeMap, sync::Arc};

use flower_api::{
    Revision,
    limits::{INDEX_BUILD_ROWS, PATCH_BYTES},
    manifest::{Manifest, Materialize},
};

use super::{
    DeployError, Deployment, PlannedDeployment,
    diff::{Change, diff},
    record::{self as stored, Active},
};
use crate::{
    error::ViewError,
    key::{Space, meta},
    range::{KeyRange, ROW_TAIL},
    record::{self, Row},
    view::{Direction, PatchBuilder, View},
};

/// Leftover entries of dropped indexes that one patch removes.
const SWEEP_ENTRIES: u64 = INDEX_BUILD_ROWS;

pub(super) fn plan(
    view: &dyn View,
    source: &str,
    manifest: Manifest,
    managed_by: Option<&str>,
    revision: Revision,
) -> Result<PlannedDeployment, DeployError> {
    let hash = stored::hash(source);
    let active = stored::read_active(view)?;
    let before = match &active {
        Some((old, _, _)) => stored::read_bundle(view, old)?,
        None => None,
    };
    let same = before
        .as_ref()
        .is_some_and(|b| b.hash == hash && b.manifest == manifest);
    let mut patch = PatchBuilder::new();
    let mut changes = Vec::new();
    if !same {
        let mut planner = Planner::new(view, before.clone(), manifest, revision);
        planner.run()?;
        let (manifest, names) = (&planner.manifest, &planner.names);
        let bundle = stored::encode_bundle(revision, source, manifest, names);
        (patch, changes) = (planner.patch, planner.changes);
        patch.put(Space::Deploy, hash.clone().into_bytes(), bundle);
        if let Some(old) = before.filter(|old| old.hash != hash) {
            patch.delete(Space::Deploy, old.hash.clone().into_bytes());
        }
    }
    let manager = active.as_ref().and_then(|(_, _, by)| by.as_deref());
    if !same || manager != managed_by {
        // The revision stays that of the bundle's activation when only the manager changes.
        let since = active
            .filter(|_| same)
            .map_or(revision, |(_, since, _)| since);
        let active = Active {
            hash: hash.clone(),
            revision: since,
            managed_by: managed_by.map(str::to_owned),
        };
        patch.put(Space::Meta, meta::ACTIVE, stored::encode_active(&active));
    }
    Ok(PlannedDeployment {
        patch: patch.seal(),
        hash,
        changes,
        changed: !same,
    })
}

struct Planner<'a> {
    view: &'a dyn View,
    before: Option<Arc<Deployment>>,
    manifest: Manifest,
    revision: Revision,
    /// Stored names of the indexes of the new deployment.
    names: BTreeMap<String, String>,
    patch: PatchBuilder,
    patch_bytes: u64,
    changes: Vec<String>,
    refused: Vec<String>,
    /// Rows by table, counted to one past what an index may be built over.
    rows: BTreeMap<String, u64>,
}

impl<'a> Planner<'a> {
    fn new(
        view: &'a dyn View,
        before: Option<Arc<Deployment>>,
        manifest: Manifest,
        revision: Revision,
    ) -> Self {
        let names = before
            .as_ref()
            .map_or_else(BTreeMap::new, |b| b.index_names.clone());
        Self {
            view,
            before,
            manifest,
            revision,
            names,
            patch: PatchBuilder::new(),
            patch_bytes: 0,
            changes: Vec::new(),
            refused: Vec::new(),
            rows: BTreeMap::new(),
        }
    }

    fn run(&mut self) -> Result<(), DeployError> {
        let nothing = Manifest::default();
        let old = self.before.as_ref().map_or(&nothing, |b| &b.manifest);
        let differences = diff(old, &self.manifest);
        if differences.is_empty() {
            self.changes.push("changes code only".into());
        }
        for change in differences {
            self.weigh(change)?;
        }
        self.weigh_derived()?;
        if self.refused.is_empty() && self.patch_bytes > PATCH_BYTES {
            let (bytes, most) = (self.patch_bytes, PATCH_BYTES);
            self.refused.push(format!(
                "its new indexes have {bytes} bytes; one deployment may write {most}: deploy them one by one"
            ));
        }
        if self.refused.is_empty() {
            Ok(())
        } else {
            Err(DeployError::Refused(std::mem::take(&mut self.refused)))
        }
    }

    fn weigh(&mut self, change: Change) -> Result<(), ViewError> {
        match change {
            Change::Code(what) => self.changes.push(what),
            Change::AddTable(table) => self.changes.push(format!("adds table {table}")),
            Change::Fits { table, what } => self.changes.push(format!("table {table}: {what}")),
            Change::DropTable(table) => match self.rows_of(&table)? {
                0 => {
                    self.changes.push(format!("drops the empty table {table}"));
                    self.names
                        .retain(|name, _| !name.starts_with(&format!("{table}.")));
                }
                n => self.refuse(&table, n, "it would be dropped; delete its rows first"),
            },
            Change::Breaks { table, what } => match self.rows_of(&table)? {
                0 => self.changes.push(format!("table {table} (empty): {what}")),
                n => self.refuse(&table, n, &format!("the deployment {what}")),
            },
            Change::DropIndex { table, index } => self.drop_index(&table, &index)?,
            Change::AddIndex { table, index, on } => self.add_index(&table, &index, &on)?,
        }
        Ok(())
    }

    fn refuse(&mut self, table: &str, rows: u64, why: &str) {
        let more = if rows > INDEX_BUILD_ROWS {
            "more than "
        } else {
            ""
        };
        let rows = rows.min(INDEX_BUILD_ROWS);
        self.refused
            .push(format!("table {table} has {more}{rows} rows: {why}"));
    }

    fn rows_of(&mut self, table: &str) -> Result<u64, ViewError> {
        if let Some(&rows) = self.rows.get(table) {
            return Ok(rows);
        }
        let mut rows = 0;
        self.each(Space::Data, &record::table_prefix(table), &mut |_, _| {
            rows += 1;
            rows <= INDEX_BUILD_ROWS
        })?;
        self.rows.insert(table.to_owned(), rows);
        Ok(rows)
    }

    /// Visits the rows of a table, or the entries of an index; steps over cells.
    fn each(
        &self,
        space: Space,
        prefix: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), ViewError> {
        scan_prefix(self.view, space, prefix, &mut |key, value| {
            let cell = space == Space::Data && !key.ends_with(ROW_TAIL);
            cell || visit(key, value)
        })
    }

    /// Derived values cannot be built over what is there yet.
    fn weigh_derived(&mut self) -> Result<(), ViewError> {
        let mut stored = false;
        for space in [Space::Readers, Space::Cells] {
            self.each(space, &[], &mut |_, _| {
                stored = true;
                false
            })?;
        }
        let before = self.before.as_ref().map(|b| b.manifest.derived.clone());
        let new = self.manifest.derived.clone();
        for (name, declared) in before.iter().flatten().chain(&new) {
            if let Materialize::Each(table) = &declared.materialize
                && self.rows_of(table)? > 0
            {
                self.refused.push(format!(
                    "derived value {name} cannot be built over the rows of {table} yet"
                ));
            }
        }
        if stored && self.refused.is_empty() {
            let why = "stored derived values cannot be built anew by a deployment yet";
            self.refused.push(why.into());
        }
        Ok(())
    }

    fn drop_index(&mut self, table: &str, index: &str) -> Result<(), ViewError> {
        self.changes.push(format!("drops index {table}.{index}"));
        let key = format!("{table}.{index}");
        let physical = self.names.remove(&key).unwrap_or_else(|| index.to_owned());
        let (mut keys, mut bytes) = (Vec::new(), 0);
        self.each(
            Space::Index,
            &record::index_prefix(table, &physical),
            &mut |key, _| {
                bytes += key.len() as u64;
                keys.push(key.to_vec());
                keys.len() as u64 <= SWEEP_ENTRIES
            },
        )?;
        // What is too much for one entry stays for `sweep`; its name is never used again.
        if keys.len() as u64 <= SWEEP_ENTRIES && self.patch_bytes + bytes <= PATCH_BYTES {
            self.patch_bytes += bytes;
            for key in keys {
                self.patch.delete(Space::Index, key);
            }
        }
        Ok(())
    }

    fn add_index(&mut self, table: &str, index: &str, on: &[String]) -> Result<(), ViewError> {
        let rows = self.rows_of(table)?;
        if rows > INDEX_BUILD_ROWS {
            let most = INDEX_BUILD_ROWS;
            let why = format!("index '{index}' can be built over at most {most} rows");
            self.refuse(table, rows, &why);
            return Ok(());
        }
        let physical = format!("{index}.{}", self.revision);
        self.names
            .insert(format!("{table}.{index}"), physical.clone());
        let mut built = Vec::new();
        let mut wrong = None;
        self.each(
            Space::Data,
            &record::table_prefix(table),
            &mut |key, value| {
                match entry(table, &physical, on, key, value) {
                    Ok(entry) => built.push(entry),
                    Err(why) => wrong = Some(why),
                }
                wrong.is_none()
            },
        )?;
        if let Some(why) = wrong {
            self.refused.push(why);
            return Ok(());
        }
        self.changes.push(format!(
            "adds index {table}.{index} on {} ({rows} rows)",
            on.join(", ")
        ));
        for key in built {
            let value = record::value(self.revision, "");
            self.patch_bytes += (key.len() + value.len()) as u64;
            self.patch.put(Space::Index, key, value);
        }
        Ok(())
    }
}

/// The index entry of a stored row.
fn entry(
    table: &str,
    physical: &str,
    on: &[String],
    key: &[u8],
    value: &[u8],
) -> Result<Vec<u8>, String> {
    let damaged = || format!("a row of table {table} is damaged");
    let id = record::id_of_row_key(key).ok_or_else(damaged)?;
    let body = record::body(value).ok_or_else(damaged)?;
    let row: Row = serde_json::from_str(body).map_err(|_| damaged())?;
    record::index_key(table, physical, on, &row, id)
}

fn scan_prefix(
    view: &dyn View,
    space: Space,
    prefix: &[u8],
    visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
) -> Result<(), ViewError> {
    let range = KeyRange::of_prefix(prefix);
    view.scan(
        space,
        range.from.as_ref().map(Vec::as_slice),
        range.to.as_ref().map(Vec::as_slice),
        Direction::Forward,
        visit,
    )
}
