//! Derived values: their stored cells, the reader records that lead from what was read to
//! the cells that read it, and how both are kept up to date inside the mutation that changed
//! something. Everything is records of the patch; nothing in memory outlives a call.

mod aside;
mod build;
mod cell;
mod check;
mod evaluate;
mod frame;
mod graph;
mod heights;
mod settle;
mod target;
mod values;

pub(crate) use aside::Aside;
pub(crate) use build::Building;
pub use build::PAGE_ROWS;
pub(crate) use cell::DERIVED_ERROR;
pub use cell::Generation;
pub(crate) use cell::{Cell, CellId};
pub use check::check;
pub(crate) use evaluate::Ended;
pub(crate) use evaluate::Step;
pub(crate) use graph::Graph;
pub(crate) use target::{IndexName, Target, as_target, cell as cell_target, readers_of};
pub(crate) use values::row_of_entry;
