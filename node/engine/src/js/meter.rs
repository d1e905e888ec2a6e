//! Counts what a script uses and says when it must stop: gas, time, heap. Shared by the
//! interrupt handler, the allocator and the prelude's `charge`. No clock of its own.

use std::cell::{Cell, RefCell};

use super::CallError;
use crate::{
    limits::{Deadline, Limits, setting},
    problem,
};

/// Elementary operations of one unit of gas: QuickJS asks its interrupt handler so often.
const OPERATIONS: u64 = 10_000;
/// Allocations from this size on ask for the deadline: native builtins that never ask the
/// interrupt handler grow their results in such steps.
const LARGE: usize = 4 << 10;

/// Why a script was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    Gas,
    Time,
    Heap,
    /// The evaluation of one derived value used up its share of the gas.
    Cell,
}

/// See the module's comment.
#[derive(Debug)]
pub(super) struct Meter {
    operations: Cell<u64>,
    /// Of the evaluation that runs.
    limits: RefCell<Limits>,
    heap_limit: u64,
    /// Operations of the evaluations of derived values that run, without those within.
    cells: RefCell<Vec<u64>>,
    /// False while the engine sets itself up: QuickJS does not survive failing then, and no
    /// code of an application has run.
    armed: Cell<bool>,
    heap: Cell<u64>,
    stopped: Cell<Option<Stop>>,
    /// An allocation has failed, in this evaluation or an earlier one.
    exhausted: Cell<bool>,
    deadline: RefCell<Deadline>,
    /// Allocations left before one fails; for tests of running out of memory.
    failing_in: Cell<Option<u64>>,
}

impl Meter {
    pub fn new(limits: &Limits) -> Self {
        Self {
            operations: Cell::new(0),
            limits: RefCell::new(*limits),
            heap_limit: limits.heap_bytes,
            cells: RefCell::default(),
            armed: Cell::new(false),
            heap: Cell::new(0),
            stopped: Cell::new(None),
            exhausted: Cell::new(false),
            deadline: RefCell::default(),
            failing_in: Cell::new(None),
        }
    }

    /// From here on the limits hold. False when the heap is too small already.
    #[must_use]
    pub fn arm(&self) -> bool {
        self.armed.set(true);
        self.heap.get() <= self.heap_limit / 2
    }

    /// A new evaluation within `limits`; the heap's is that of the isolate.
    pub fn begin(&self, limits: &Limits, deadline: &Deadline) {
        *self.limits.borrow_mut() = *limits;
        self.operations.set(0);
        self.stopped.set(None);
        self.cells.borrow_mut().clear();
        *self.deadline.borrow_mut() = deadline.clone();
    }

    /// Counts operations; answers whether the script must stop.
    pub fn spend(&self, operations: u64) -> bool {
        let spent = self.operations.get().saturating_add(operations);
        self.operations.set(spent);
        let limits = self.limits.borrow();
        if spent / OPERATIONS > limits.gas {
            self.stop(Stop::Gas);
        }
        if let Some(cell) = self.cells.borrow_mut().last_mut() {
            *cell = cell.saturating_add(operations);
            if *cell / OPERATIONS > limits.cell_gas() {
                self.stop(Stop::Cell);
            }
        }
        self.ask_time();
        self.stopped.get().is_some()
    }

    /// The function of a derived value begins.
    pub fn enter(&self) {
        self.cells.borrow_mut().push(0);
    }

    /// It has ended.
    pub fn leave(&self) {
        self.cells.borrow_mut().pop();
    }

    /// Whether the evaluation that runs used up its share of the gas; the call goes on.
    pub fn forgive(&self) -> bool {
        let cell = self.stopped.get() == Some(Stop::Cell);
        if cell {
            self.stopped.set(None);
            if let Some(cell) = self.cells.borrow_mut().last_mut() {
                *cell = 0;
            }
            self.ask_time();
        }
        cell && self.stopped.get().is_none()
    }

    /// One call of the interrupt handler.
    pub fn interrupt(&self) -> bool {
        self.armed.get() && self.spend(OPERATIONS)
    }

    fn ask_time(&self) {
        if self.deadline.borrow().passed() {
            self.stop(Stop::Time);
        }
    }

    fn stop(&self, why: Stop) {
        self.exhausted
            .set(self.exhausted.get() || why == Stop::Heap);
        if self.stopped.get().is_none() {
            self.stopped.set(Some(why));
        }
    }

    /// Whether `more` bytes may be allocated.
    pub fn admit(&self, more: usize) -> bool {
        if !self.armed.get() {
            return true;
        }
        if let Some(left) = self.failing_in.get() {
            self.failing_in.set(Some(left.saturating_sub(1)));
            if left == 0 {
                self.stop(Stop::Heap);
                return false;
            }
        }
        if self.heap.get() + more as u64 > self.heap_limit {
            self.stop(Stop::Heap);
            return false;
        }
        if more >= LARGE {
            self.ask_time();
            return !matches!(self.stopped.get(), Some(Stop::Time | Stop::Gas));
        }
        true
    }

    pub fn exhausted(&self) -> bool {
        self.exhausted.get()
    }

    pub fn allocated(&self, bytes: usize) {
        self.heap.set(self.heap.get() + bytes as u64);
    }

    pub fn freed(&self, bytes: usize) {
        self.heap.set(self.heap.get().saturating_sub(bytes as u64));
    }

    pub fn heap(&self) -> u64 {
        self.heap.get()
    }

    /// Units of gas spent.
    pub fn gas(&self) -> u64 {
        self.operations.get() / OPERATIONS
    }

    pub fn stopped(&self) -> Option<Stop> {
        self.stopped.get()
    }

    /// The refusal of a call that was stopped.
    pub fn refusal(&self, why: Stop) -> CallError {
        let limits = self.limits.borrow();
        let (what, limit, setting) = match why {
            Stop::Gas | Stop::Cell => ("gas", limits.gas, setting::GAS),
            Stop::Time => ("time in ms", limits.wall_ms, setting::WALL_MS),
            Stop::Heap => ("heap in bytes", self.heap_limit, setting::HEAP),
        };
        problem::budget(&limits, what, limit, setting)
    }

    /// From the `n`th allocation on, all fail; `None` ends that.
    #[cfg(test)]
    pub fn fail_from(&self, n: Option<u64>) {
        self.failing_in.set(n);
    }
}
