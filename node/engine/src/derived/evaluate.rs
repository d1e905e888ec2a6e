//! Reading a cell, step by step: the script asks, and is told the outcome or which function
//! to run first. What runs is on a stack of frames; when that gets deep, its evaluations are
//! given up and the innermost cell is evaluated first, from the foot of the stack, so that a
//! long path of cells needs no deep stack.

use std::sync::Arc;

use flower_api::{
    limits,
    manifest::{Derived, FieldType, Materialize, OnError},
};
use serde_json::Value;

use super::{
    cell::{Cell, CellId, Failed, Outcome},
    frame::Frame,
    graph::Waiting,
    target,
};
use crate::{
    limits::setting,
    problem,
    transaction::{DbError, Result, Transaction},
    types::{self, Errors},
};

/// Evaluations on the script's stack at once. Each has what is left of the stack.
const NESTED: usize = 8;

/// What the script does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Hand out this value, JSON.
    Value(String),
    /// Throw this error, JSON.
    Throw(String),
    /// Run the function of this derived value with this key (JSON), report what it ended
    /// with, then ask again.
    Evaluate(String, String),
    /// Leave the function that runs: it will be run again later.
    Unwind,
    /// Nothing.
    Done,
}

/// What a function ended with.
#[derive(Debug)]
pub(crate) enum Ended<'a> {
    /// JSON.
    Value(&'a str),
    Undefined,
    /// JSON of an error.
    Thrown(&'a str),
    /// It used up its share of the gas.
    Gas,
    /// It needs more of the script's stack than was left.
    Stack,
}

impl Transaction {
    /// Reads the cell of derived value `name` for a key given as JSON.
    pub(crate) fn cell(&mut self, name: &str, key: &str) -> Result<Step> {
        if self.graph.frames.is_empty() {
            // A handler asks.
            self.graph.goal = None;
        }
        match self.find_cell(name, key) {
            Err(error) => self.defer(error),
            found => found,
        }
    }

    fn find_cell(&mut self, name: &str, key: &str) -> Result<Step> {
        let deployment = Arc::clone(&self.deployment);
        let declared = Self::derived(&deployment, name)?;
        let id = CellId::new(name, declared, key).map_err(DbError::Wrong)?;
        if let Some(step) = self.unfinished()? {
            return Ok(step);
        }
        self.check_cycle(&id, &[])?;
        self.mark_changes()?;
        self.load(&id)?;
        let from_handler = self.graph.frames.is_empty();
        if self.record(&id).is_some() {
            if let Some(below) = self.dirty_below(&id)? {
                return self.begin(below, true);
            }
            if from_handler && self.writable && declared.materialize == Materialize::Always {
                self.set_root(&id, true)?;
            }
            let outcome = self.record(&id).map(|cell| cell.outcome.clone());
            return match outcome {
                Some(outcome) => self.answer(&id, declared, &outcome),
                None => Ok(Step::Done),
            };
        }
        if self.writable && from_handler && declared.materialize == Materialize::Always {
            self.set_root(&id, true)?;
        }
        let stored = match self.graph.frames.last() {
            Some(frame) => frame.stored,
            None => false,
        };
        let stored = stored || self.graph.cells.get(&id).is_some_and(|state| state.rooted);
        if !stored && let Some(outcome) = self.graph.memo.get(&id).cloned() {
            return self.answer(&id, declared, &outcome);
        }
        self.begin(id, stored)
    }

    /// What goes before anything else: giving up, or the cell that others wait for.
    pub(super) fn unfinished(&mut self) -> Result<Option<Step>> {
        if self.graph.unwinding {
            return Ok(Some(Step::Unwind));
        }
        match self.graph.waiting.last() {
            Some(waiting) if self.graph.frames.is_empty() => {
                let (cell, stored) = (waiting.cell.clone(), waiting.stored);
                self.begin(cell, stored).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn answer(&mut self, id: &CellId, declared: &Derived, outcome: &Outcome) -> Result<Step> {
        match self.graph.frames.last_mut() {
            Some(frame) => frame.cell(id, outcome.is_present()),
            None if outcome.failed && self.writable && declared.on_error == OnError::Reject => {
                return Err(problem::derived_rejected(outcome.told(id, declared)).into());
            }
            None => {}
        }
        if !outcome.failed {
            return Ok(Step::Value(outcome.json.clone()));
        }
        // These types always have a JSON form.
        let error = serde_json::to_string(&outcome.thrown(id, declared)).unwrap_or_default();
        Ok(Step::Throw(error))
    }

    /// The cells whose evaluations have begun and not ended, outermost first.
    fn chain(&self) -> impl Iterator<Item = &CellId> {
        let waiting = self.graph.waiting.iter().flat_map(|w| &w.path);
        waiting.chain(self.graph.frames.iter().map(|frame| &frame.cell))
    }

    /// Refuses to read `id` while it is being evaluated; `path` leads from what runs to it.
    fn check_cycle(&mut self, id: &CellId, path: &[CellId]) -> Result<()> {
        let Some(at) = self.chain().position(|cell| cell == id) else {
            return Ok(());
        };
        let mut circle: Vec<CellId> = self.chain().skip(at).cloned().collect();
        circle.extend_from_slice(path);
        circle.push(id.clone());
        Err(problem::derived_cycle(&self.shown_path(&circle)).into())
    }

    /// The stored cell, at or below `top`, that must be evaluated first; absent when `top` is
    /// up to date. Visits what is below in the order of reading, because what is read first
    /// may decide what else is read.
    fn dirty_below(&mut self, top: &CellId) -> Result<Option<CellId>> {
        let Some(lowest) = self.graph.lowest_dirty() else {
            return Ok(None);
        };
        let mut path: Vec<(CellId, std::vec::IntoIter<CellId>)> = Vec::new();
        let mut next = Some(top.clone());
        loop {
            if let Some(id) = next.take() {
                let above: Vec<CellId> = path.iter().map(|(cell, _)| cell.clone()).collect();
                self.check_cycle(&id, &above)?;
                self.load(&id)?;
                let height = self.height(&id);
                if self.graph.dirty.contains(&(height, id.clone())) {
                    return Ok(Some(id));
                }
                if height > lowest && !self.graph.clean.contains(&id) {
                    let deps = self.record(&id).map(|cell| cell.deps.clone());
                    let deps = deps.unwrap_or_default();
                    let below: Vec<CellId> =
                        deps.iter().filter_map(|d| target::as_cell(d)).collect();
                    path.push((id, below.into_iter()));
                }
            }
            match path.last_mut() {
                None => return Ok(None),
                Some((_, below)) => next = below.next(),
            }
            if next.is_none()
                && let Some((done, _)) = path.pop()
            {
                self.graph.clean.insert(done);
            }
        }
    }

    /// Begins an evaluation, or makes room for it.
    pub(super) fn begin(&mut self, cell: CellId, stored: bool) -> Result<Step> {
        if self.graph.frames.len() >= NESTED {
            self.give_up(cell, stored);
            return Ok(Step::Unwind);
        }
        let depth = self.chain().count() + 1;
        if depth > limits::HEIGHT {
            let mut path: Vec<CellId> = self.chain().cloned().collect();
            path.push(cell);
            let path = self.shown_path(&path);
            return Err(problem::derived_depth(limits::HEIGHT, &path).into());
        }
        self.cost.cells += 1;
        if self.cost.cells > self.limits.cells {
            let what = "evaluations of derived values";
            return Err(
                problem::budget(&self.limits, what, self.limits.cells, setting::CELLS).into(),
            );
        }
        let deployment = Arc::clone(&self.deployment);
        let key = cell.key_json(Self::derived(&deployment, cell.name())?);
        let name = cell.name().to_owned();
        self.graph.frames.push(Frame::new(cell, stored));
        Ok(Step::Evaluate(name, key))
    }

    fn give_up(&mut self, cell: CellId, stored: bool) {
        let path = self.graph.frames.iter().map(|f| f.cell.clone()).collect();
        self.graph.waiting.push(Waiting { cell, stored, path });
        self.graph.unwinding = true;
    }

    /// The function that runs has ended. Answers whether the one around it must be left too.
    pub(crate) fn leave(&mut self, ended: Ended) -> Result<bool> {
        let Some(frame) = self.graph.frames.pop() else {
            return Err(DbError::Wrong("no derived value is being evaluated".into()));
        };
        let outer = !self.graph.frames.is_empty();
        if self.graph.unwinding {
            self.graph.unwinding = outer;
            return Ok(outer);
        }
        if matches!(ended, Ended::Stack) && outer {
            // From the foot of the stack it has all of it.
            self.give_up(frame.cell, frame.stored);
            return Ok(true);
        }
        let deployment = Arc::clone(&self.deployment);
        let declared = Self::derived(&deployment, frame.cell.name())?;
        let outcome = self.judge(frame.cell.name(), declared, ended);
        let id = frame.cell.clone();
        if frame.stored {
            let outcome = self.indexable(&id, declared, outcome);
            self.settle_cell(frame, declared, outcome)?;
        } else {
            self.graph.memo.insert(id.clone(), outcome);
        }
        if self.graph.frames.is_empty() && self.graph.waiting.last().is_some_and(|w| w.cell == id) {
            self.graph.waiting.pop();
        }
        Ok(false)
    }

    /// What an evaluation comes to, whatever it read.
    fn judge(&self, name: &str, declared: &Derived, ended: Ended) -> Outcome {
        let unfit = |why: String| {
            Outcome::error(format!(
                "{name}: it returned what it does not declare: {why}"
            ))
        };
        let (json, most) = match ended {
            Ended::Value(json) => (json, self.limits.record_bytes),
            Ended::Undefined if matches!(declared.value, FieldType::Optional { .. }) => {
                return Outcome::value("null");
            }
            Ended::Undefined => {
                let why = format!("must be {}, not undefined", types::name(&declared.value));
                return unfit(why);
            }
            Ended::Thrown(json) => return self.judge_thrown(json),
            Ended::Gas => {
                let (share, setting) = (self.limits.cell_gas(), setting::GAS);
                return Outcome::error(format!(
                    "it used up its gas (limit {share}, a tenth of {setting})"
                ));
            }
            Ended::Stack => {
                let most = self.limits.stack_bytes;
                return Outcome::error(format!(
                    "it used up its stack (limit {most} bytes, which no setting changes): it calls itself too deep"
                ));
            }
        };
        let bytes = json.len() as u64;
        if bytes > most {
            let setting = setting::RECORD;
            return Outcome::error(format!(
                "{name}: its value has {bytes} bytes; the limit is {most} ({setting})"
            ));
        }
        let value: Value = match serde_json::from_str(json) {
            Ok(value) => value,
            Err(error) => return unfit(error.to_string()),
        };
        let mut errors = Errors::default();
        types::check(&declared.value, &value, "", &mut errors);
        if errors.0.is_empty() {
            return Outcome::value(json);
        }
        unfit(errors.text())
    }

    fn judge_thrown(&self, json: &str) -> Outcome {
        let (bytes, most) = (json.len() as u64, self.limits.record_bytes);
        let thrown: Failed = serde_json::from_str(json).unwrap_or_else(|e| Failed {
            name: "Error".into(),
            message: format!("it threw what has no JSON form: {e}"),
            ..Failed::default()
        });
        if thrown.data.is_some() && bytes > most {
            let setting = setting::RECORD;
            return Outcome::error(format!(
                "it threw a fault of {bytes} bytes; the limit is {most} ({setting})"
            ));
        }
        Outcome::failed(thrown)
    }

    /// The stored cell gets what its evaluation came to, and its readers hear of it.
    fn settle_cell(&mut self, frame: Frame, declared: &Derived, outcome: Outcome) -> Result<()> {
        let (id, empty) = (frame.cell.clone(), frame.empty);
        let deps = frame.targets();
        self.load(&id)?;
        let height = self.height_over(&deps)?;
        let Some(state) = self.graph.cells.get_mut(&id) else {
            return Ok(());
        };
        let old = state.record.take();
        let old_height = old.as_ref().map_or(0, |cell| cell.height);
        let root = old.as_ref().map_or(state.rooted, |cell| cell.root);
        state.record = Some(Cell {
            root,
            hollow: empty,
            height,
            deps: deps.clone(),
            outcome: outcome.clone(),
        });
        self.graph.dirty.remove(&(old_height, id.clone()));
        self.check_height(&id, height)?;
        self.built(&id, outcome.failed);
        if !root {
            self.graph.doubtful.insert(id.clone());
        } else if empty && declared.materialize == Materialize::Always {
            self.graph.hollow.insert(id.clone());
        }
        if declared.on_error == OnError::Reject {
            self.graph.strict.insert(id.clone());
        }
        let before = old.as_ref().map(|cell| &cell.outcome);
        let old_deps = old.as_ref().map_or(&[][..], |cell| &cell.deps);
        self.relink(&id, old_deps, &deps)?;
        self.index_value(&id, before, Some(&outcome))?;
        self.store(&id)?;
        if old.is_some() {
            if before != Some(&outcome) {
                for reader in self.readers(&target::cell(&id))? {
                    self.mark(reader)?;
                }
            }
            if old_height != height {
                self.raise_readers(&id, old_height)?;
            }
        }
        Ok(())
    }
}
