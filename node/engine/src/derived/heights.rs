//! Heights: the number of cells on the longest path of derived values down from a cell,
//! itself included. Kept exact where edges change, and bounded.

use std::collections::BTreeSet;

use flower_api::limits;

use super::{cell::CellId, target};
use crate::{
    deploy::Planted,
    problem,
    transaction::{Result, Transaction},
};

/// Cells of a path that an error names at its beginning and at its end.
const SHOWN: (usize, usize) = (10, 2);

impl Transaction {
    /// One more than the highest cell among these dependencies.
    pub(super) fn height_over(&mut self, deps: &[bytes::Bytes]) -> Result<u8> {
        let mut highest = 0;
        for target in deps {
            if let Some(cell) = target::as_cell(target) {
                self.load(&cell)?;
                highest = highest.max(self.height(&cell));
            }
        }
        Ok(highest.saturating_add(1))
    }

    /// Refuses a height above the limit.
    pub(super) fn check_height(&mut self, id: &CellId, height: u8) -> Result<()> {
        if usize::from(height) <= limits::HEIGHT {
            self.cost.height = self.cost.height.max(height.into());
            return Ok(());
        }
        let mut path = vec![id.clone()];
        while let Some(next) = self.highest_below(path.last().unwrap_or(id))? {
            path.push(next);
        }
        Err(problem::derived_depth(limits::HEIGHT, &self.shown_path(&path)).into())
    }

    fn highest_below(&mut self, id: &CellId) -> Result<Option<CellId>> {
        self.load(id)?;
        let deps = self.record(id).map(|cell| cell.deps.clone());
        let mut highest: Option<(u8, CellId)> = None;
        for cell in deps.iter().flatten().filter_map(|dep| target::as_cell(dep)) {
            self.load(&cell)?;
            let height = self.height(&cell);
            if highest.as_ref().is_none_or(|(most, _)| height > *most) {
                highest = Some((height, cell));
            }
        }
        Ok(highest.map(|(_, cell)| cell))
    }

    /// The cells whose heights follow from that of `id`, which was `old`, get theirs.
    pub(super) fn raise_readers(&mut self, id: &CellId, old: u8) -> Result<()> {
        if self.deployment.has(Planted::StaleHeight) {
            return Ok(());
        }
        let mut waiting = BTreeSet::from([(self.height(id), old, id.clone())]);
        // Lowest first, so that a cell is rarely met twice.
        while let Some((new, old, id)) = waiting.pop_first() {
            for reader in self.readers(&target::cell(&id))? {
                self.load(&reader)?;
                let Some(cell) = self.record(&reader) else {
                    continue;
                };
                let (was, deps) = (cell.height, cell.deps.clone());
                let height = if new >= was {
                    new.saturating_add(1)
                } else if old.saturating_add(1) == was && new < old {
                    self.height_over(&deps)?
                } else {
                    was
                };
                if height != was {
                    self.set_height(&reader, was, height)?;
                    waiting.insert((height, was, reader));
                }
            }
        }
        Ok(())
    }

    fn set_height(&mut self, id: &CellId, was: u8, height: u8) -> Result<()> {
        if let Some(state) = self.graph.cells.get_mut(id)
            && let Some(cell) = &mut state.record
        {
            cell.height = height;
        }
        self.check_height(id, height)?;
        if self.graph.dirty.remove(&(was, id.clone())) {
            self.graph.dirty.insert((height, id.clone()));
        }
        self.store(id)
    }

    /// A path for people: its first cells and its last.
    pub(super) fn shown_path(&self, path: &[CellId]) -> String {
        let show = |id: &CellId| match self.deployment.manifest.derived.get(id.name()) {
            Some(declared) => id.shown(declared),
            None => id.name().to_owned(),
        };
        let (first, last) = SHOWN;
        let mut shown: Vec<String> = path.iter().take(first).map(show).collect();
        if path.len() > first + last {
            shown.push(format!("… {} more …", path.len() - first - last));
        }
        let rest = path.len().saturating_sub(last).max(first.min(path.len()));
        shown.extend(path[rest..].iter().map(show));
        shown.join(" → ")
    }
}
