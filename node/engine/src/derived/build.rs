//! Derived values of a build: a page follows what mutations noted since the last one, then
//! takes the next roots, and evaluates in order of heights until its share is used up. What
//! it leaves dirty is noted for the next page. Everything noted is marked before anything is
//! evaluated, so that evaluations see one consistent state and their errors are real.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use flower_api::manifest::{Materialize, OnError};

use super::{
    cell::{Cell, CellId},
    evaluate::Step,
};
use crate::{
    deploy::{self, Build, Deployment, PageTask, walk},
    key::Space,
    limits::{Cost, Limits},
    problem,
    record::{self, Row},
    transaction::{Result, Transaction, damaged},
};

/// Rows of a page; fewer when other shares are used up before.
pub const PAGE_ROWS: u64 = 2_000;
/// Rows, and roots, noted by mutations that one page follows.
const NOTED: usize = 2_000;
/// Cells that may wait for the next page.
const WAITING: usize = 20_000;
/// Roots taken at a time.
const FEED: u64 = 16;
/// A page that only follows mutations may use so many times the share.
const FOLLOWING: u64 = 4;

// Kinds of what is noted, after the prefix of the log.
pub(super) const ALWAYS: u8 = b'a';
const CELL: u8 = b'c';
const FAILING: u8 = b'f';
const ROOT: u8 = b'n';
pub(super) const ROW: u8 = b'r';

/// A page in the making.
#[derive(Debug)]
pub(crate) struct Building {
    build: Build,
    running: Arc<Deployment>,
    /// Roots that the page may take, and has taken.
    rows: u64,
    fed: u64,
    /// What the evaluations of the page may use, and what was used when they began.
    share: Cost,
    base: Cost,
    patch_share: u64,
    begun: bool,
    /// Nothing that was noted is left.
    followed: bool,
    /// Stored cells evaluated by the page that have errors.
    failing: BTreeSet<CellId>,
}

impl Building {
    /// `limits` are those of a call: a page that is no larger than one holds mutations up no
    /// longer than one.
    pub fn new(task: &PageTask, limits: &Limits) -> Self {
        let rows = task.rows.clamp(1, PAGE_ROWS);
        let part = |limit: u64| (limit / 4).saturating_mul(rows) / PAGE_ROWS;
        Self {
            build: task.build.clone(),
            running: Arc::clone(&task.running),
            rows,
            fed: 0,
            share: Cost {
                rows_read: part(limits.rows_read),
                bytes_read: part(limits.bytes_read),
                ranges: part(limits.ranges.saturating_mul(4)),
                cells: rows,
                gas: part(limits.gas / 4),
                ..Cost::default()
            },
            base: Cost::default(),
            patch_share: limits.patch_bytes / 4,
            begun: false,
            followed: true,
            failing: BTreeSet::new(),
        }
    }

    /// Whether a page that has used `now` ends before the next evaluation. It makes one.
    fn is_spent(&self, now: &Cost, patch_bytes: u64) -> bool {
        let times = if self.fed == 0 { FOLLOWING } else { 1 };
        let (share, base) = (&self.share, &self.base);
        let over = |now: u64, base: u64, share: u64| now - base > share.saturating_mul(times);
        now.cells > base.cells
            && (over(now.rows_read, base.rows_read, share.rows_read)
                || over(now.bytes_read, base.bytes_read, share.bytes_read)
                || over(now.ranges, base.ranges, share.ranges)
                || now.cells - base.cells >= share.cells.saturating_mul(times)
                || over(now.gas, base.gas, share.gas)
                || patch_bytes > self.patch_share)
    }
}

impl Transaction {
    /// What a page writes, the build after it, and whether nothing that was noted is left.
    pub(crate) fn finish_page(mut self) -> Option<deploy::Evaluated> {
        let building = self.building.take()?;
        let (_, patch) = self.finish();
        Some((patch, building.build, building.followed))
    }

    fn note_key(&self, kind: u8, rest: &[u8]) -> Vec<u8> {
        let mut key = self.deployment.generation.log();
        key.push(kind);
        key.extend_from_slice(rest);
        key
    }

    /// The next cell that a page evaluates. `gas` is what the call has used.
    pub(crate) fn next_built(&mut self, gas: u64) -> Result<Step> {
        self.cost.gas = gas;
        if let Some(step) = self.unfinished()? {
            return Ok(step);
        }
        if self.building.as_ref().is_some_and(|b| !b.begun) && !self.follow()? {
            return self.put_off();
        }
        loop {
            while let Some(id) = self.lowest_dirty() {
                if self.is_spent() {
                    self.collect()?;
                    return self.put_off();
                }
                if self.is_needed(&id)? {
                    self.graph.goal = Some(id.clone());
                    return self.begin(id, true);
                }
                self.remove(&id)?;
            }
            self.collect()?;
            self.deferred()?;
            self.failing()?;
            if self.is_spent() || !self.feed()? {
                return Ok(Step::Done);
            }
        }
    }

    fn is_spent(&self) -> bool {
        let building = self.building.as_ref();
        building.is_some_and(|b| b.is_spent(&self.cost, self.patch_bytes()))
    }

    /// Marks what mutations have changed since the last page, and what that one left. False
    /// when there is more than one page follows: then nothing may be evaluated yet.
    fn follow(&mut self) -> Result<bool> {
        let whole = self.limits;
        // Bounded by what one page follows, not by what a call may use.
        self.limits.rows_read = u64::MAX;
        self.limits.bytes_read = u64::MAX;
        for kind in [CELL, ROOT, FAILING] {
            let waiting = self.noted(kind, WAITING)?;
            if !waiting.end {
                return Err(problem::too_many_wait(WAITING).into());
            }
            for (key, _) in &waiting.found {
                let Some(id) = CellId::from_bytes(key) else {
                    continue;
                };
                match kind {
                    CELL => self.mark(id)?,
                    ROOT => self.set_root(&id, true)?,
                    _ => {
                        self.load(&id)?;
                        self.built(&id, true);
                    }
                }
            }
        }
        // Later than what the last page left: rows and roots may have gone since.
        let rows = self.noted(ROW, NOTED)?;
        for (key, value) in &rows.found {
            self.follow_row(key, value)?;
        }
        let roots = self.noted(ALWAYS, NOTED)?;
        for (key, _) in &roots.found {
            self.follow_root(key)?;
        }
        self.mark_changes()?;
        let cost = self.cost;
        self.limits = whole;
        if let Some(building) = &mut self.building {
            building.begun = true;
            building.base = cost;
            let times = |share: u64| share.saturating_mul(FOLLOWING);
            // After its share, the last evaluation may use what a build may.
            self.limits.rows_read += cost.rows_read + times(building.share.rows_read);
            self.limits.bytes_read += cost.bytes_read + times(building.share.bytes_read);
            self.limits.ranges += times(building.share.ranges);
            self.limits.cells += times(building.share.cells);
        }
        Ok(rows.end && roots.end)
    }

    /// Takes what is noted of a kind; its keys without what begins them.
    fn noted(&mut self, kind: u8, most: usize) -> Result<walk::Stretch> {
        let prefix = self.note_key(kind, &[]);
        let every = |_: &[u8]| true;
        let view = Arc::clone(&self.view);
        let mut found = walk::stretch(&*view, Space::Readers, &prefix, &[], most, &every)?;
        for (key, _) in &mut found.found {
            self.patch.delete(Space::Readers, key.clone());
            *key = key.slice(prefix.len()..);
        }
        Ok(found)
    }

    /// Marks what reads a row, and the index entries by which it differs from what it was.
    fn follow_row(&mut self, key: &[u8], before: &Bytes) -> Result<()> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let nul = key.iter().position(|b| *b == 0).unwrap_or(key.len());
        let (table, id) = (text(&key[..nul]), text(key.get(nul + 1..).unwrap_or(&[])));
        let deployment = Arc::clone(&self.deployment);
        let Some(declared) = deployment.manifest.tables.get(&table) else {
            return Ok(());
        };
        let old: Option<Row> = match before.is_empty() {
            true => None,
            false => Some(serde_json::from_slice(before).map_err(|_| damaged(&table, &id))?),
        };
        let stored = self.view.get(Space::Data, &record::row_key(&table, &id))?;
        let body = stored.as_ref().and_then(|value| record::body(value));
        let new: Option<Row> = match body {
            None => None,
            Some(body) => Some(serde_json::from_str(body).map_err(|_| damaged(&table, &id))?),
        };
        if old == new {
            return Ok(());
        }
        let entries = self.index_changes(&table, declared, &id, old.as_ref(), new.as_ref())?;
        self.row_changed(&table, &id, &entries);
        if old.is_some() != new.is_some() {
            self.row_roots(&table, &id, new.is_some())?;
        }
        Ok(())
    }

    /// An `always` cell is a root exactly while that of the application that runs is one.
    fn follow_root(&mut self, key: &[u8]) -> Result<()> {
        let Some((running, old)) = self
            .building
            .as_ref()
            .zip(CellId::from_bytes(key))
            .map(|(b, id)| (Arc::clone(&b.running), id))
        else {
            return Ok(());
        };
        let Some(new) = self.carried(&running, &old) else {
            return Ok(());
        };
        let root = self.cell_before(&running, &old)?.is_some_and(|c| c.root);
        self.set_root(&new, root)
    }

    /// The cell of an `always` derived value that takes the place of one of the application
    /// that runs; absent when its declaration has none.
    fn carried(&self, running: &Deployment, old: &CellId) -> Option<CellId> {
        let declared = self.deployment.manifest.derived.get(old.name())?;
        let before = running.manifest.derived.get(old.name())?;
        if declared.materialize != Materialize::Always {
            return None;
        }
        CellId::new(old.name(), declared, &old.key_json(before)).ok()
    }

    /// A cell as the application that runs has it.
    fn cell_before(&self, running: &Deployment, id: &CellId) -> Result<Option<Cell>> {
        let Some(declared) = running.manifest.derived.get(id.name()) else {
            return Ok(None);
        };
        let (space, key) = id.location(declared, running.generation);
        let found = self.view.get(space, &key)?;
        Ok(found.and_then(|value| Cell::decode(&value)))
    }

    /// Takes the next roots; false when the page takes no more.
    fn feed(&mut self) -> Result<bool> {
        let Some(building) = &self.building else {
            return Ok(false);
        };
        let most = building.rows.saturating_sub(building.fed).min(FEED);
        let Some(step) = building.build.steps.front().cloned() else {
            return Ok(false);
        };
        if most == 0 {
            return Ok(false);
        }
        let (after, running) = (building.build.after(), Arc::clone(&building.running));
        let view = Arc::clone(&self.view);
        let found = match &step {
            deploy::Step::Indexes { .. } => return Ok(false),
            deploy::Step::Each { table } => {
                let found = walk::rows(&*view, table, &after, most as usize)?;
                for (key, _) in &found.found {
                    let id = record::id_of_row_key(key).ok_or_else(|| damaged(table, "?"))?;
                    self.row_roots(table, id, true)?;
                }
                found
            }
            deploy::Step::Always { name } => {
                let (space, found) = walk::cells(&*view, &running, name, &after, most as usize)?;
                for (key, value) in &found.found {
                    let root = Cell::decode(value).is_some_and(|cell| cell.root);
                    if let Some((old, _)) = CellId::at(space, key).filter(|_| root)
                        && let Some(new) = self.carried(&running, &old)
                    {
                        self.set_root(&new, true)?;
                    }
                }
                found
            }
        };
        if let Some(building) = &mut self.building {
            building.fed += building.build.walked(&found);
        }
        Ok(true)
    }

    /// Notes what is dirty for the next page.
    fn put_off(&mut self) -> Result<Step> {
        let dirty: Vec<CellId> = self.graph.dirty.iter().map(|(_, id)| id.clone()).collect();
        let failing = match &mut self.building {
            Some(building) => {
                building.followed = false;
                building.begun = true;
                std::mem::take(&mut building.failing)
            }
            None => BTreeSet::new(),
        };
        let dirty = dirty.into_iter().map(|id| match self.record(&id) {
            Some(_) => (CELL, id),
            None => (ROOT, id),
        });
        // Judged once nothing is dirty, and not evaluated again for it: pages that did nothing
        // else would follow each other without end.
        let failing = failing.into_iter().map(|id| (FAILING, id));
        let left: Vec<(u8, CellId)> = dirty.chain(failing).collect();
        for (kind, id) in left {
            let key = self.note_key(kind, id.as_bytes());
            self.patch.put(Space::Readers, key, Bytes::new());
        }
        self.graph.deferred.clear();
        Ok(Step::Done)
    }

    /// A stored cell was evaluated.
    pub(super) fn built(&mut self, id: &CellId, failed: bool) {
        if let Some(building) = &mut self.building {
            match failed {
                true => building.failing.insert(id.clone()),
                false => building.failing.remove(id),
            };
        }
    }

    /// An error of a cell ends the build, unless the application that runs has one there too.
    fn failing(&mut self) -> Result<()> {
        let Some(building) = &mut self.building else {
            return Ok(());
        };
        let running = Arc::clone(&building.running);
        let deployment = Arc::clone(&self.deployment);
        for id in std::mem::take(&mut building.failing) {
            let Some(cell) = self.record(&id).filter(|cell| cell.outcome.failed) else {
                continue;
            };
            let told = cell.outcome.clone();
            let declared = Self::derived(&deployment, id.name())?;
            let same_key = running
                .manifest
                .derived
                .get(id.name())
                .is_some_and(|before| before.key == declared.key);
            let excused = same_key
                && declared.on_error == OnError::Store
                && self
                    .cell_before(&running, &id)?
                    .is_some_and(|cell| cell.outcome.failed);
            if !excused {
                return Err(problem::derived_failed(told.told(&id, declared)).into());
            }
        }
        Ok(())
    }
}
