//! The cells that a call meets: loads and writes their records, marks those dirty that a
//! write may have changed, collects those that nobody needs. Holds only what the call
//! touched, and only until it ends.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use flower_api::manifest::{Derived, Materialize};

use super::{
    cell::{Cell, CellId, Outcome, same_body},
    frame::Frame,
    target::{self, IndexName},
};
use crate::{
    deploy::Planted,
    error::ViewError,
    js::CallError,
    key::Space,
    problem,
    range::KeyRange,
    transaction::{DbError, Result, Transaction},
    view::Direction,
};

/// A cell that the call has met.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Absent when it is not stored (any more, or yet).
    pub record: Option<Cell>,
    /// Its record's value in the view.
    before: Option<Bytes>,
    /// A cell that is not stored yet becomes a root once it is.
    pub rooted: bool,
}

impl State {
    pub fn height(&self) -> u8 {
        self.record.as_ref().map_or(0, |cell| cell.height)
    }
}

/// An evaluation that had to make room: it goes on when this cell has been evaluated.
#[derive(Debug)]
pub(super) struct Waiting {
    pub cell: CellId,
    pub stored: bool,
    /// The cells whose evaluations were given up for it, outermost first.
    pub path: Vec<CellId>,
}

/// Derived values in one call.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    pub(super) cells: BTreeMap<CellId, State>,
    /// Stored cells that something changed for, and new ones, by height.
    pub(super) dirty: BTreeSet<(u8, CellId)>,
    /// Cells that may have lost their last reader or root.
    pub(super) doubtful: BTreeSet<CellId>,
    /// Evaluations that run, outermost first.
    pub(super) frames: Vec<Frame>,
    pub(super) waiting: Vec<Waiting>,
    /// The evaluations that run are given up, down to the first.
    pub(super) unwinding: bool,
    /// The cell that maintenance evaluates.
    pub(super) goal: Option<CellId>,
    /// Cells that maintenance could not evaluate, and why.
    pub(super) deferred: BTreeMap<CellId, CallError>,
    /// Outcomes of cells that are not stored, until the next write.
    pub(super) memo: BTreeMap<CellId, Outcome>,
    /// Cells below which nothing is dirty.
    pub(super) clean: BTreeSet<CellId>,
    /// Roots of `always` evaluated by this call that found nothing there.
    pub(super) hollow: BTreeSet<CellId>,
    /// Stored cells evaluated by this call that refuse errors.
    pub(super) strict: BTreeSet<CellId>,
    changed_rows: BTreeSet<(String, String)>,
    changed_entries: BTreeSet<(IndexName, Vec<u8>)>,
}

impl Graph {
    /// The least height of a stored cell that is dirty; nothing depends on new ones yet.
    pub(super) fn lowest_dirty(&self) -> Option<u8> {
        let stored = self.dirty.range((1, CellId::default())..).next();
        stored.map(|(height, _)| *height)
    }

    /// Whether a derived value's function runs.
    pub fn evaluating(&self) -> bool {
        !self.frames.is_empty()
    }

    /// The function that runs has looked up a row.
    pub fn read_row(&mut self, table: &str, id: &str, present: bool) {
        if let Some(frame) = self.frames.last_mut() {
            frame.row(table, id, present);
        }
    }

    /// The function that runs has walked entries of an index.
    pub fn read_window(&mut self, index: &IndexName, window: crate::reads::Window, present: bool) {
        if let Some(frame) = self.frames.last_mut() {
            frame.window(index, window, present);
        }
    }
}

fn damaged(id: &CellId) -> DbError {
    ViewError(format!("the cell {id:?} is damaged")).into()
}

impl Transaction {
    /// The declaration of a derived value.
    pub(super) fn derived<'a>(
        deployment: &'a crate::deploy::Deployment,
        name: &str,
    ) -> Result<&'a Derived> {
        let found = deployment.manifest.derived.get(name);
        found.ok_or_else(|| DbError::Wrong(format!("there is no derived value '{name}'")))
    }

    /// Makes the cell's state known.
    pub(super) fn load(&mut self, id: &CellId) -> Result<()> {
        if self.graph.cells.contains_key(id) {
            return Ok(());
        }
        let deployment = std::sync::Arc::clone(&self.deployment);
        let (space, key) = id.location(
            Self::derived(&deployment, id.name())?,
            deployment.generation,
        );
        let before = self.read(space, &key)?;
        let record = match &before {
            Some(value) => Some(Cell::decode(value).ok_or_else(|| damaged(id))?),
            None => None,
        };
        let state = State {
            record,
            before,
            rooted: false,
        };
        self.graph.cells.insert(id.clone(), state);
        Ok(())
    }

    /// The loaded cell's record; absent when it is not stored.
    pub(super) fn record(&self, id: &CellId) -> Option<&Cell> {
        self.graph.cells.get(id)?.record.as_ref()
    }

    pub(super) fn height(&self, id: &CellId) -> u8 {
        self.graph.cells.get(id).map_or(0, State::height)
    }

    /// Puts what is known of a cell into the patch, or takes it out.
    pub(super) fn store(&mut self, id: &CellId) -> Result<()> {
        let deployment = std::sync::Arc::clone(&self.deployment);
        let (space, key) = id.location(
            Self::derived(&deployment, id.name())?,
            deployment.generation,
        );
        let Some(state) = self.graph.cells.get(id) else {
            return Ok(());
        };
        let value = state
            .record
            .as_ref()
            .map(|cell| cell.encode(self.stamp.revision));
        match (&state.before, value) {
            (None, None) => self.unput(space, &key),
            (Some(before), Some(value)) if same_body(before, &value) => self.unput(space, &key),
            (_, value) => self.put(space, key, value)?,
        }
        Ok(())
    }

    /// Writes a key that says all by being there, or takes it away again.
    pub(super) fn put_mark(
        &mut self,
        space: Space,
        key: Vec<u8>,
        value: Option<Bytes>,
    ) -> Result<()> {
        // A mark is written only where there is none, and taken away only where there is one:
        // what undoes an earlier write of this call leaves nothing behind.
        match self.patch.get(space, &key) {
            Some(written) if written.is_some() != value.is_some() => {
                self.unput(space, &key);
                Ok(())
            }
            _ => self.put(space, key, value),
        }
    }

    /// Visits keys that begin with `prefix`; answers false to stop.
    pub(super) fn scan_prefix(
        &mut self,
        space: Space,
        prefix: &[u8],
        visit: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<()> {
        let range = KeyRange::of_prefix(prefix);
        self.scan(
            space,
            &range,
            Direction::Forward,
            u64::MAX,
            &mut |key, _| visit(key),
        )?;
        Ok(())
    }

    /// The cells that read a row or a cell.
    pub(super) fn readers(&mut self, target: &[u8]) -> Result<Vec<CellId>> {
        let prefix = target::readers_of(self.deployment.generation, target);
        let mut found = Vec::new();
        self.scan_prefix(Space::Readers, &prefix, &mut |key| {
            found.extend(CellId::from_bytes(&key[prefix.len()..]));
            true
        })?;
        Ok(found)
    }

    fn has_reader(&mut self, id: &CellId) -> Result<bool> {
        let prefix = target::readers_of(self.deployment.generation, &target::cell(id));
        let mut found = false;
        self.scan_prefix(Space::Readers, &prefix, &mut |_| {
            found = true;
            false
        })?;
        Ok(found)
    }

    /// Notes what the write of a row changes for derived values. `entries` are the keys of
    /// index entries that come or go.
    pub(crate) fn row_changed(
        &mut self,
        table: &str,
        id: &str,
        entries: &[(IndexName, Vec<u8>, bool)],
    ) {
        self.graph.memo.clear();
        self.graph.clean.clear();
        let row = (table.to_owned(), id.to_owned());
        self.graph.changed_rows.insert(row);
        let entries = entries
            .iter()
            .map(|(name, key, _)| (name.clone(), key.clone()));
        self.graph.changed_entries.extend(entries);
    }

    /// Makes or removes the roots that a row has.
    pub(crate) fn row_roots(&mut self, table: &str, id: &str, present: bool) -> Result<()> {
        let deployment = std::sync::Arc::clone(&self.deployment);
        for (name, declared) in &deployment.manifest.derived {
            if declared.materialize == Materialize::Each(table.to_owned()) {
                self.set_root(&CellId::of_row(name, id), present)?;
            }
        }
        Ok(())
    }

    pub(crate) fn set_root(&mut self, id: &CellId, root: bool) -> Result<()> {
        self.load(id)?;
        let Some(state) = self.graph.cells.get_mut(id) else {
            return Ok(());
        };
        state.rooted = root;
        if let Some(cell) = &mut state.record {
            if cell.root == root {
                return Ok(());
            }
            cell.root = root;
        } else if root {
            self.graph.dirty.insert((0, id.clone()));
        } else {
            self.graph.dirty.remove(&(0, id.clone()));
        }
        if !root {
            self.graph.doubtful.insert(id.clone());
        }
        let deployment = std::sync::Arc::clone(&self.deployment);
        if Self::derived(&deployment, id.name())?.materialize == Materialize::Always {
            self.root_aside(id)?;
        }
        self.store(id)
    }

    /// Marks the readers of what was written since the last time.
    pub(super) fn mark_changes(&mut self) -> Result<()> {
        for (table, id) in std::mem::take(&mut self.graph.changed_rows) {
            for reader in self.readers(&target::row(&table, &id))? {
                self.mark(reader)?;
            }
        }
        let ignored = usize::from(self.deployment.has(Planted::IgnoredWindow));
        // Each stretch of readers is walked once, however many entries of it have changed.
        let mut stretches: BTreeMap<Vec<u8>, (bool, BTreeSet<Vec<u8>>)> = BTreeMap::new();
        for (index, key) in std::mem::take(&mut self.graph.changed_entries) {
            let around = index.around(&key).into_iter().enumerate();
            for (n, (begin, left_out)) in around.skip(ignored) {
                let prefix = target::readers_of(self.deployment.generation, &begin);
                let (_, entries) = stretches.entry(prefix).or_insert((n == 0, BTreeSet::new()));
                entries.insert(key[left_out..].to_vec());
            }
        }
        for (prefix, (spanning, entries)) in stretches {
            let (mut found, mut seen) = (Vec::new(), 0);
            self.scan_prefix(Space::Readers, &prefix, &mut |stored| {
                seen += 1;
                let tail = &stored[prefix.len()..];
                if let Some((true, reader)) = target::window_reader(tail, &entries) {
                    found.extend(CellId::from_bytes(reader));
                }
                true
            })?;
            if spanning {
                self.cost.spans += seen;
            }
            for reader in found {
                self.mark(reader)?;
            }
        }
        Ok(())
    }

    /// The cell must be evaluated anew.
    pub(super) fn mark(&mut self, id: CellId) -> Result<()> {
        self.load(&id)?;
        if self.record(&id).is_some() {
            let height = self.height(&id);
            self.graph.dirty.insert((height, id));
        }
        Ok(())
    }

    /// Whether a stored or new cell has a root or a reader.
    pub(super) fn is_needed(&mut self, id: &CellId) -> Result<bool> {
        self.load(id)?;
        let state = self.graph.cells.get(id);
        let rooted = state.is_some_and(|s| s.record.as_ref().map_or(s.rooted, |cell| cell.root));
        Ok(rooted || self.has_reader(id)?)
    }

    /// Ends the roots of `always` whose inputs were there before this call and are gone after
    /// it. What comes and goes within the call counts neither way.
    pub(super) fn drop_hollow(&mut self) -> Result<()> {
        for id in std::mem::take(&mut self.graph.hollow) {
            let Some(state) = self.graph.cells.get(&id) else {
                continue;
            };
            let before = state.before.as_deref().and_then(Cell::decode);
            let lost = before.is_some_and(|cell| cell.root && !cell.hollow);
            if lost && state.record.as_ref().is_some_and(|cell| cell.hollow) {
                self.set_root(&id, false)?;
            }
        }
        Ok(())
    }

    /// Removes the cells that lost their last reader or root, and what only they read.
    pub(super) fn collect(&mut self) -> Result<()> {
        while let Some(id) = self.graph.doubtful.pop_first() {
            if !self.deployment.has(Planted::KeptCell) && !self.is_needed(&id)? {
                self.remove(&id)?;
            }
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, id: &CellId) -> Result<()> {
        let dirty = (self.height(id), id.clone());
        self.graph.dirty.remove(&dirty);
        let Some(cell) = self.graph.cells.get_mut(id).and_then(|s| s.record.take()) else {
            return Ok(());
        };
        self.relink(id, &cell.deps, &[])?;
        self.index_value(id, Some(&cell.outcome), None)?;
        self.store(id)
    }

    /// Writes and removes the reader records by which `id`'s dependencies change.
    pub(super) fn relink(&mut self, id: &CellId, old: &[Bytes], new: &[Bytes]) -> Result<()> {
        let (before, after): (BTreeSet<&Bytes>, BTreeSet<&Bytes>) =
            (old.iter().collect(), new.iter().collect());
        let of = self.deployment.generation;
        for target in before.difference(&after) {
            self.put_mark(Space::Readers, target::reader_key(of, target, id), None)?;
            if let Some(cell) = target::as_cell(target) {
                self.graph.doubtful.insert(cell);
            }
        }
        let unwritten = self.deployment.has(Planted::UnwrittenReader);
        for target in after.difference(&before) {
            if unwritten && target::as_cell(target).is_some() {
                continue;
            }
            let key = target::reader_key(of, target, id);
            self.put_mark(Space::Readers, key, Some(Bytes::new()))?;
        }
        Ok(())
    }

    /// The first stored cell that refuses errors and has one.
    pub(super) fn rejected(&mut self) -> Result<()> {
        let deployment = std::sync::Arc::clone(&self.deployment);
        for id in std::mem::take(&mut self.graph.strict) {
            if let Some(cell) = self.record(&id).filter(|cell| cell.outcome.failed) {
                let declared = Self::derived(&deployment, id.name())?;
                return Err(problem::derived_rejected(cell.outcome.told(&id, declared)).into());
            }
        }
        Ok(())
    }
}
