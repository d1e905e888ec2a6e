//! What a deployment does to the rows that exist: made active at once when nothing of them
//! needs a look, else begun as a build. Pure over a view.

use std::{collections::BTreeMap, sync::Arc};

use flower_api::{
    Revision,
    manifest::{Manifest, Materialize},
};

use super::{
    DeployError, Deployment, PlannedDeployment,
    build::{self, Build, NewIndex, Step},
    diff::{Change, diff},
    record::{self as stored, Active},
    walk,
};
use crate::{
    derived::Generation,
    error::ViewError,
    key::{Space, meta},
    view::{PatchBuilder, View},
};

pub(super) fn plan(
    view: &dyn View,
    source: &str,
    manifest: Manifest,
    managed_by: Option<&str>,
    revision: Revision,
) -> Result<PlannedDeployment, DeployError> {
    let hash = stored::hash(source);
    let managed_by = managed_by.map(str::to_owned);
    let active = stored::read_active(view)?;
    let before = match &active {
        Some((old, _, _)) => stored::read_bundle(view, old)?,
        None => None,
    };
    let pending = build::pending(view)?;
    let mut patch = PatchBuilder::new();
    if let Some(before) = &before
        && before.hash == hash
        && before.manifest == manifest
    {
        // What runs is wanted: a build of something else is given up.
        if let Some(pending) = &pending {
            give_up(&mut patch, pending, &hash);
        }
        if let Some((hash, since, manager)) = active
            && manager != managed_by
        {
            // The revision stays that of the bundle's activation.
            activate(&mut patch, hash, since, managed_by);
        }
        return Ok(done(patch, hash, Vec::new(), false));
    }
    if let Some(mut pending) = pending {
        if pending.hash == hash && pending.failed.is_none() {
            let changes = pending.changes.clone();
            if pending.managed_by != managed_by {
                pending.managed_by = managed_by;
                patch.put(Space::Meta, meta::BUILD, pending.encode());
            }
            return Ok(PlannedDeployment {
                building: true,
                ..done(patch, hash, changes, true)
            });
        }
        give_up(&mut patch, &pending, &hash);
    }
    patch.delete(Space::Meta, meta::BUILD_FAILED);
    let mut planner = Planner::new(view, before.clone(), manifest, revision);
    planner.run()?;
    let steps = planner.steps()?;
    if !steps.is_empty() && before.as_ref().is_some_and(|old| old.hash == hash) {
        let why = "this version reads another manifest from the bundle that runs: change it";
        return Err(DeployError::Refused(vec![why.into()]));
    }
    let (manifest, names) = (&planner.manifest, &planner.names);
    let bundle = stored::encode_bundle(revision, source, manifest, names, planner.generation);
    patch.put(Space::Deploy, hash.clone().into_bytes(), bundle);
    if steps.is_empty() {
        replace(&mut patch, before.as_deref(), &hash);
        activate(&mut patch, hash.clone(), revision, managed_by);
        return Ok(done(patch, hash, planner.changes, true));
    }
    let changes = planner.changes.clone();
    let build = planner.build(hash.clone(), managed_by, steps)?;
    patch.put(Space::Meta, meta::BUILD, build.encode());
    Ok(PlannedDeployment {
        building: true,
        ..done(patch, hash, changes, true)
    })
}

fn done(
    patch: PatchBuilder,
    hash: String,
    changes: Vec<String>,
    changed: bool,
) -> PlannedDeployment {
    PlannedDeployment {
        patch: patch.seal(),
        hash,
        changes,
        changed,
        building: false,
    }
}

/// Writes which bundle runs.
pub(super) fn activate(
    patch: &mut PatchBuilder,
    hash: String,
    revision: Revision,
    managed_by: Option<String>,
) {
    let active = Active {
        hash,
        revision,
        managed_by,
    };
    patch.put(Space::Meta, meta::ACTIVE, stored::encode_active(&active));
}

/// Removes the bundle that ran; what it kept is left to the sweep.
pub(super) fn replace(patch: &mut PatchBuilder, before: Option<&Deployment>, hash: &str) {
    let Some(before) = before else { return };
    if before.hash != hash {
        patch.delete(Space::Deploy, before.hash.clone().into_bytes());
    }
    if !before.manifest.derived.is_empty() {
        patch.put(Space::Meta, meta::SWEEP, &b""[..]);
    }
}

/// Ends a build without its success; what it made is left to the sweep. `but` is the hash of
/// a bundle that stays.
pub(super) fn give_up(patch: &mut PatchBuilder, build: &Build, but: &str) {
    patch.delete(Space::Meta, meta::BUILD);
    if build.hash != but {
        patch.delete(Space::Deploy, build.hash.clone().into_bytes());
    }
    patch.put(Space::Meta, meta::SWEEP, &b""[..]);
}

struct Planner<'a> {
    view: &'a dyn View,
    before: Option<Arc<Deployment>>,
    manifest: Manifest,
    revision: Revision,
    /// Stored names of the indexes of the new deployment.
    names: BTreeMap<String, String>,
    generation: Generation,
    changes: Vec<String>,
    refused: Vec<String>,
    indexes: Vec<NewIndex>,
    /// Tables that must be empty, and why.
    empty: Vec<(String, String)>,
    /// Rows by table.
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
        let has_derived = |m: &Manifest| !m.derived.is_empty();
        let generation = match &before {
            None => Generation::default(),
            Some(b) if !has_derived(&b.manifest) && !has_derived(&manifest) => b.generation,
            Some(_) => Generation(revision.0),
        };
        Self {
            view,
            before,
            manifest,
            revision,
            names,
            generation,
            changes: Vec::new(),
            refused: Vec::new(),
            indexes: Vec::new(),
            empty: Vec::new(),
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
            Change::DropTable(table) => {
                let why = "it would be dropped; delete its rows first";
                if self.must_be_empty(&table, why)? {
                    self.changes.push(format!("drops the empty table {table}"));
                    self.names
                        .retain(|name, _| !name.starts_with(&format!("{table}.")));
                }
            }
            Change::Breaks { table, what } => {
                if self.must_be_empty(&table, &format!("the deployment {what}"))? {
                    self.changes.push(format!("table {table} (empty): {what}"));
                }
            }
            Change::DropIndex { table, index } => {
                self.changes.push(format!("drops index {table}.{index}"));
                // Its entries are left to the sweep; its name is never used again.
                self.names.remove(&format!("{table}.{index}"));
            }
            Change::AddIndex { table, index, on } => self.add_index(table, &index, on)?,
        }
        Ok(())
    }

    fn must_be_empty(&mut self, table: &str, why: &str) -> Result<bool, ViewError> {
        let rows = self.rows_of(table)?;
        if rows == 0 {
            self.empty.push((table.to_owned(), why.to_owned()));
            return Ok(true);
        }
        self.refused.push(not_empty(table, rows, why));
        Ok(false)
    }

    fn rows_of(&mut self, table: &str) -> Result<u64, ViewError> {
        if let Some(&rows) = self.rows.get(table) {
            return Ok(rows);
        }
        let rows = walk::rows_of(self.view, table)?;
        self.rows.insert(table.to_owned(), rows);
        Ok(rows)
    }

    fn add_index(&mut self, table: String, index: &str, on: Vec<String>) -> Result<(), ViewError> {
        let physical = format!("{index}.{}", self.revision);
        self.names
            .insert(format!("{table}.{index}"), physical.clone());
        let rows = self.rows_of(&table)?;
        let about = walk::shown(rows);
        let what = on.join(", ");
        self.changes.push(format!(
            "adds index {table}.{index} on {what} ({about} rows)"
        ));
        self.indexes.push(NewIndex {
            table,
            physical,
            on,
        });
        Ok(())
    }

    /// What a build must walk; nothing when none is needed.
    fn steps(&mut self) -> Result<Vec<Step>, ViewError> {
        let mut steps = Vec::new();
        let mut needed = false;
        let mut tables: Vec<String> = self.indexes.iter().map(|i| i.table.clone()).collect();
        tables.dedup();
        for table in tables {
            if self.rows_of(&table)? > 0 {
                needed = true;
                steps.push(Step::Indexes { table });
            }
        }
        let mut each: Vec<String> = Vec::new();
        let derived = self.manifest.derived.clone();
        for declared in derived.values() {
            if let Materialize::Each(table) = &declared.materialize
                && !each.contains(table)
            {
                needed |= self.rows_of(table)? > 0;
                each.push(table.clone());
            }
        }
        // Also over tables without rows: while others are built they may get some.
        steps.extend(each.into_iter().map(|table| Step::Each { table }));
        let Some(before) = self.before.clone() else {
            return Ok(Vec::new());
        };
        for (name, declared) in &derived {
            let always = |d: &flower_api::manifest::Derived| d.materialize == Materialize::Always;
            if always(declared) && before.manifest.derived.get(name).is_some_and(always) {
                needed |= walk::has_cells(self.view, &before, name)?;
                steps.push(Step::Always { name: name.clone() });
            }
        }
        Ok(if needed { steps } else { Vec::new() })
    }

    fn build(
        mut self,
        hash: String,
        managed_by: Option<String>,
        steps: Vec<Step>,
    ) -> Result<Build, ViewError> {
        let mut total = 0;
        for step in &steps {
            if let Step::Indexes { table } | Step::Each { table } = step {
                total += self.rows_of(table)?;
            }
        }
        Ok(Build {
            hash,
            since: self.revision,
            managed_by,
            changes: self.changes,
            done: 0,
            total,
            generation: self.generation,
            indexes: self.indexes,
            steps: steps.into(),
            after: None,
            logging: false,
            empty: self.empty,
            failed: None,
        })
    }
}

/// Why rows stand in the way.
pub(super) fn not_empty(table: &str, rows: u64, why: &str) -> String {
    format!("table {table} has {} rows: {why}", walk::shown(rows))
}
