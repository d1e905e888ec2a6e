//! The JavaScript host: loads a bundle, learns its manifest, evaluates its functions over a
//! view under limits. Holds no state of the application and has no clock.

mod bundle;
mod calls;
mod engine;
mod heap;
mod host;
mod isolate;
mod meter;

use flower_api::{manifest::Manifest, wire::Problem};

pub use crate::limits::{Cost, Deadline, Limits, Stamp};
use crate::{error::ViewError, reads::ReadSet, view::PatchBuilder};
pub use isolate::Isolate;

#[cfg(test)]
mod tests;

/// The outcome of an evaluation.
#[derive(Debug, Clone)]
pub struct Evaluated {
    /// JSON; `null` for a function that returns nothing.
    pub result: String,
    /// What a mutation writes, without its receipt; absent for queries.
    pub patch: Option<PatchBuilder>,
    /// What it used.
    pub cost: Cost,
    /// What it read of the view.
    pub reads: ReadSet,
}

/// Why a call has no result. Nothing was written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// The call is refused: `invalid-args`, `unknown-function`, `budget`, `too-large`,
    /// `timeout` (the deadline passed; nothing was applied), or `internal` (the function threw).
    #[error("{0}")]
    Refused(Problem),
    /// The function threw a declared fault: code `fault:<name>`. With an idempotency key it
    /// becomes a receipt.
    #[error("{0}")]
    Fault(Problem),
    /// The state cannot be read.
    #[error(transparent)]
    Storage(#[from] ViewError),
}

/// What is wrong with a bundle, a line each, for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the bundle is refused: {}", .problems.join("; "))]
pub struct BundleError {
    /// The problems.
    pub problems: Vec<String>,
}

impl BundleError {
    /// One problem.
    pub fn one(problem: impl Into<String>) -> Self {
        Self {
            problems: vec![problem.into()],
        }
    }
}

/// Runs the bundle under limits in a throwaway isolate and extracts what it declares.
///
/// # Errors
/// What is wrong with the bundle.
pub fn inspect(
    source: &str,
    limits: &Limits,
    deadline: &Deadline,
) -> Result<Manifest, BundleError> {
    isolate::inspect(source, limits, deadline)
}
