//! Maintenance: brings all stored cells up to date, those that read least first, and collects
//! what nobody needs any more. A cycle that is met on the way refuses the call only if it is
//! there in the end: the cells on it may be about to lose their last reader.

use flower_api::wire::code;

use super::{cell::CellId, evaluate::Step};
use crate::{
    js::CallError,
    transaction::{DbError, Result, Transaction},
};

impl Transaction {
    /// The next cell to bring up to date; when there is none, what nobody needs is collected.
    /// `last`: the handler has ended, so that what refuses errors is heard.
    pub(crate) fn next_dirty(&mut self, last: bool) -> Result<Step> {
        if !self.writable || self.graph.evaluating() {
            return Ok(Step::Done);
        }
        if let Some(step) = self.unfinished()? {
            return Ok(step);
        }
        self.mark_changes()?;
        while let Some(id) = self.lowest_dirty() {
            if self.is_needed(&id)? {
                self.graph.goal = Some(id.clone());
                return self.begin(id, true);
            }
            self.remove(&id)?;
        }
        if last {
            self.drop_hollow()?;
        }
        self.collect()?;
        self.deferred()?;
        if last {
            self.rejected()?;
        }
        Ok(Step::Done)
    }

    pub(super) fn lowest_dirty(&self) -> Option<CellId> {
        let waiting = self.graph.dirty.iter().map(|(_, id)| id);
        let mut ready = waiting.filter(|id| !self.graph.deferred.contains_key(*id));
        ready.next().cloned()
    }

    /// A cycle below the cell that maintenance evaluates is put off until all other cells are
    /// up to date. Anything else goes on as it is.
    pub(super) fn defer(&mut self, error: DbError) -> Result<Step> {
        match (self.graph.goal.take(), error) {
            (Some(goal), DbError::Stop(error)) if is_cycle(&error) => {
                self.graph.deferred.insert(goal, *error);
                self.graph.waiting.clear();
                self.graph.unwinding = true;
                Ok(Step::Unwind)
            }
            (_, error) => Err(error),
        }
    }

    /// Refuses the call when a cell that was put off is still needed.
    pub(super) fn deferred(&mut self) -> Result<()> {
        let dirty = &self.graph.dirty;
        let is_dirty = |id: &CellId| dirty.iter().any(|(_, other)| other == id);
        let deferred = std::mem::take(&mut self.graph.deferred);
        match deferred.into_iter().find(|(id, _)| is_dirty(id)) {
            Some((_, error)) => Err(error.into()),
            None => Ok(()),
        }
    }
}

fn is_cycle(error: &CallError) -> bool {
    matches!(error, CallError::Refused(problem) if problem.code == code::DERIVED_CYCLE)
}
