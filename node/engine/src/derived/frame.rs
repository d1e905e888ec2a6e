//! An evaluation that runs: what it has read so far, in the order of reading, its own writes
//! included. The order matters: whoever asks whether a cell is up to date visits what it
//! reads in the order in which its function does.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::{
    cell::CellId,
    target::{self, IndexName},
};
use crate::{reads::Window, record};

#[derive(Debug)]
enum Dep {
    Target(Bytes),
    Window(IndexName, Window),
}

/// See the module's comment.
#[derive(Debug)]
pub(super) struct Frame {
    pub cell: CellId,
    /// Whether its outcome becomes a record.
    pub stored: bool,
    /// Whether nothing that it read was there.
    pub empty: bool,
    deps: Vec<Dep>,
    known: BTreeSet<Bytes>,
}

impl Frame {
    pub fn new(cell: CellId, stored: bool) -> Self {
        Self {
            cell,
            stored,
            empty: true,
            deps: Vec::new(),
            known: BTreeSet::new(),
        }
    }

    fn target(&mut self, target: Vec<u8>, present: bool) {
        self.empty &= !present;
        let target = Bytes::from(target);
        if self.stored && self.known.insert(target.clone()) {
            self.deps.push(Dep::Target(target));
        }
    }

    pub fn row(&mut self, table: &str, id: &str, present: bool) {
        self.target(target::row(table, id), present);
    }

    pub fn cell(&mut self, cell: &CellId, present: bool) {
        self.target(target::cell(cell), present);
    }

    /// A window was walked; `present` when something lay in it.
    pub fn window(&mut self, index: &IndexName, window: Window, present: bool) {
        self.empty &= !present;
        if !self.stored {
            return;
        }
        let last = self.deps.iter_mut().rev().find_map(|dep| match dep {
            Dep::Window(of, last) if of == index => Some(last),
            _ => None,
        });
        match last {
            // The next chunk of one walk: it begins right after an entry, or ends at one.
            Some(last)
                if last.to.as_ref() == Some(&window.from) && window.from.ends_with(b"\0") =>
            {
                last.to = window.to;
            }
            Some(last)
                if window.to.as_ref() == Some(&last.from)
                    && record::id_of_index_key(&last.from).is_some() =>
            {
                last.from = window.from;
            }
            Some(last) if last.from <= window.from && last.to == window.to => {}
            Some(last) if last.from == window.from && last.to < window.to && last.to.is_some() => {
                last.to = window.to;
            }
            _ => self.deps.push(Dep::Window(index.clone(), window)),
        }
    }

    /// The dependencies, each once, in the order of reading.
    pub fn targets(self) -> Vec<Bytes> {
        let mut seen = BTreeSet::new();
        let targets = self.deps.into_iter().map(|dep| match dep {
            Dep::Target(target) => target,
            Dep::Window(index, window) => Bytes::from(index.window(&window)),
        });
        targets
            .filter(|target| seen.insert(target.clone()))
            .collect()
    }
}
