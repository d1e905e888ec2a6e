//! Says what is wrong with the stored graph: for tests and for tools, since the engine trusts
//! what it wrote. Reads everything; never part of a call.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use flower_api::manifest::Materialize;

use super::{
    cell::{Cell, CellId, Generation},
    target, values,
};
use crate::{
    deploy::Deployment,
    error::ViewError,
    key::Space,
    range::{KeyRange, ROW_TAIL},
    record,
    view::{Direction, View},
};

/// What does not hold of the cells in `view` that are of the deployment's generation, a line
/// each: reader records are exactly the
/// reverse of dependencies, heights are exact, no cell is without root and reader, none is
/// missing, and the entries of indexes over values are those of the cells.
pub fn check(view: &dyn View, deployment: &Deployment) -> Vec<String> {
    match Checker::read(view, deployment) {
        Ok(checker) => checker.run(),
        Err(error) => vec![error.to_string()],
    }
}

struct Checker<'a> {
    deployment: &'a Deployment,
    cells: BTreeMap<CellId, Cell>,
    readers: BTreeSet<Bytes>,
    /// Entries of indexes over values.
    entries: BTreeSet<Bytes>,
    rows: BTreeSet<Bytes>,
    wrong: Vec<String>,
}

fn all(view: &dyn View, space: Space) -> Result<Vec<(Bytes, Bytes)>, ViewError> {
    let mut found = Vec::new();
    let range = KeyRange::of_prefix(&[]);
    view.scan(
        space,
        range.from.as_ref().map(Vec::as_slice),
        range.to.as_ref().map(Vec::as_slice),
        Direction::Forward,
        &mut |key, value| {
            found.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
            true
        },
    )?;
    Ok(found)
}

impl<'a> Checker<'a> {
    fn read(view: &dyn View, deployment: &'a Deployment) -> Result<Self, ViewError> {
        let mut checker = Self {
            deployment,
            cells: BTreeMap::new(),
            readers: BTreeSet::new(),
            entries: BTreeSet::new(),
            rows: BTreeSet::new(),
            wrong: Vec::new(),
        };
        for space in [Space::Data, Space::Cells] {
            for (key, value) in all(view, space)? {
                if space == Space::Data && key.ends_with(ROW_TAIL) {
                    checker.rows.insert(key);
                } else {
                    checker.cell(space, &key, &value);
                }
            }
        }
        let keys = all(view, Space::Readers)?.into_iter();
        let prefix = deployment.generation.readers();
        let own = |key: &Bytes| {
            key.starts_with(&prefix) && Generation::of_reader(key) == Some(deployment.generation)
        };
        checker.readers = keys.map(|(key, _)| key).filter(own).collect();
        for (name, derived) in &deployment.manifest.derived {
            if let Some(index) = &derived.index {
                let prefix = record::index_prefix(name, &deployment.generation.named(index));
                let found = all(view, Space::Index)?.into_iter().map(|(key, _)| key);
                let found = found.filter(|key| key.starts_with(&prefix));
                checker.entries.extend(found);
            }
        }
        Ok(checker)
    }

    fn cell(&mut self, space: Space, key: &[u8], value: &[u8]) {
        let shown = key.escape_ascii();
        let Some((id, generation)) = CellId::at(space, key) else {
            self.wrong
                .push(format!("the key {shown} in {space} is not that of a cell"));
            return;
        };
        if generation != self.deployment.generation {
            return;
        }
        let Some(declared) = self.deployment.manifest.derived.get(id.name()) else {
            self.wrong
                .push(format!("{id:?} is of no declared derived value"));
            return;
        };
        if id.location(declared, generation) != (space, key.to_vec()) {
            self.wrong.push(format!("{id:?} lies in the wrong place"));
        }
        match Cell::decode(value) {
            Some(cell) => {
                self.cells.insert(id, cell);
            }
            None => self.wrong.push(format!("{id:?} is damaged")),
        }
    }

    fn run(mut self) -> Vec<String> {
        let mut expected = BTreeSet::new();
        let mut entries = BTreeSet::new();
        let mut wrong = std::mem::take(&mut self.wrong);
        for (id, cell) in &self.cells {
            let mut height = 0;
            for dep in &cell.deps {
                expected.insert(Bytes::from(target::reader_key(
                    self.deployment.generation,
                    dep,
                    id,
                )));
                if let Some(below) = target::as_cell(dep) {
                    match self.cells.get(&below) {
                        Some(below) => height = height.max(below.height),
                        None => wrong.push(format!("{id:?} reads {below:?}, which is not stored")),
                    }
                }
            }
            if cell.height != height + 1 {
                let (is, should) = (cell.height, height + 1);
                wrong.push(format!("{id:?} has height {is}; it must be {should}"));
            }
            entries.extend(self.entry(id, cell));
        }
        for key in expected.difference(&self.readers) {
            wrong.push(format!(
                "the reader record {} is missing",
                key.escape_ascii()
            ));
        }
        for key in self.readers.difference(&expected) {
            wrong.push(format!(
                "the reader record {} is of nothing",
                key.escape_ascii()
            ));
        }
        for key in entries.symmetric_difference(&self.entries) {
            wrong.push(format!(
                "the entry {} is missing or stale",
                key.escape_ascii()
            ));
        }
        self.roots(&mut wrong);
        wrong
    }

    fn entry(&self, id: &CellId, cell: &Cell) -> Option<Bytes> {
        let declared = self.deployment.manifest.derived.get(id.name())?;
        let index = declared.index.as_ref().filter(|_| !cell.outcome.failed)?;
        values::entry_key(self.deployment.generation, id, index, &cell.outcome)
            .ok()
            .map(Bytes::from)
    }

    fn roots(&self, wrong: &mut Vec<String>) {
        for (id, cell) in &self.cells {
            let Some(declared) = self.deployment.manifest.derived.get(id.name()) else {
                continue;
            };
            let prefix = target::readers_of(self.deployment.generation, &target::cell(id));
            let read = self.readers.range(Bytes::from(prefix.clone())..).next();
            let read = read.is_some_and(|key| key.starts_with(&prefix));
            if !cell.root && !read {
                wrong.push(format!("{id:?} has no root and no reader"));
            }
            let should = match &declared.materialize {
                Materialize::Demand => Some(false),
                Materialize::Always => None,
                Materialize::Each(_) => {
                    let (_, key) = id.location(declared, self.deployment.generation);
                    let row = key.windows(2).rposition(|pair| pair == b"\0c");
                    let row = row.map(|at| [&key[..at], ROW_TAIL].concat());
                    Some(row.is_some_and(|row| self.rows.contains(&row[..])))
                }
            };
            if should.is_some_and(|should| should != cell.root) {
                wrong.push(format!(
                    "{id:?} is a root, or is none, and should not be so"
                ));
            }
        }
        for (name, declared) in &self.deployment.manifest.derived {
            let Materialize::Each(table) = &declared.materialize else {
                continue;
            };
            let prefix = record::table_prefix(table);
            for row in self.rows.iter().filter(|row| row.starts_with(&prefix)) {
                let cell = record::id_of_row_key(row).map(|id| CellId::of_row(name, id));
                if cell.is_none_or(|cell| !self.cells.contains_key(&cell)) {
                    wrong.push(format!(
                        "{name} has no cell for the row {}",
                        row.escape_ascii()
                    ));
                }
            }
        }
    }
}
