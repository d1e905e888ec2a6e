//! Deployments: the stored bundle, the active one, and what may change over existing rows.
//! Decides and builds patches; runs no JavaScript.

use std::{collections::BTreeMap, sync::Arc};

use flower_api::{Revision, manifest::Manifest};

use crate::{
    derived::Generation,
    error::ViewError,
    view::{Patch, View},
};

pub(crate) use build::Step;
pub use build::{Build, FailedBuild, failed, pending};
pub use compare::{Difference, Impact, WholeTable, compare, whole_tables};
pub use page::{Evaluated, Page, PageEnd, PageError, PageTask, page};

/// A bundle made active, ready to be run.
#[derive(Debug, Clone)]
pub struct Deployment {
    /// SHA-256 of the source, hex.
    pub hash: String,
    /// The bundle: one ES module.
    pub source: Arc<str>,
    /// What it declares.
    pub manifest: Manifest,
    /// Revision of the entry that stored it.
    pub revision: Revision,
    /// Stored names of indexes, by `table.index`: an index that was dropped and declared
    /// again gets a new one, so that entries left over are never read.
    pub index_names: BTreeMap<String, String>,
    /// Which cells are its own.
    pub generation: Generation,
    #[doc(hidden)]
    pub planted: Option<Planted>,
}

/// A mistake that the engine makes on purpose, for tests that must find it. Nothing but a
/// test sets one.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// The reader record of one cell for another is not written.
    UnwrittenReader,
    /// Readers of a cell whose height changes keep theirs.
    StaleHeight,
    /// Windows over several values of an index's first field are not told of writes.
    IgnoredWindow,
    /// Cells that nobody needs stay.
    KeptCell,
    /// What is read of stored cells is not noted.
    StaleCertificate,
}

impl Deployment {
    /// A deployment over no rows at all; for tests and tools.
    pub fn fresh(source: &str, manifest: Manifest) -> Self {
        Self {
            hash: record::hash(source),
            source: source.into(),
            manifest,
            revision: Revision(0),
            index_names: BTreeMap::new(),
            generation: Generation::default(),
            planted: None,
        }
    }

    /// Whether tests planted this mistake.
    pub(crate) fn has(&self, planted: Planted) -> bool {
        self.planted == Some(planted)
    }

    /// The name under which an index is stored.
    pub(crate) fn stored_index<'a>(&'a self, table: &str, index: &'a str) -> &'a str {
        let found = self.index_names.get(&format!("{table}.{index}"));
        found.map_or(index, String::as_str)
    }
}

/// A deployment decided: what to replicate.
#[derive(Debug, Clone)]
pub struct PlannedDeployment {
    /// Bundle record, active pointer or build. Empty when nothing changes at all; not empty
    /// when only the manager changes.
    pub patch: Patch,
    /// Hash of the deployment.
    pub hash: String,
    /// What changes, a line each, for people.
    pub changes: Vec<String>,
    /// False when this bundle is active already.
    pub changed: bool,
    /// It becomes active when its build is done: the next is a [`page`] of it.
    pub building: bool,
}

/// Why a deployment is not made.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DeployError {
    /// It does not fit the rows that exist; what and why, a line each.
    #[error("the deployment is refused: {}", .0.join("; "))]
    Refused(Vec<String>),
    /// The state cannot be read.
    #[error(transparent)]
    Storage(#[from] ViewError),
}

/// The active deployment: hash, revision that activated it, and who manages it (the name of
/// an object; absent for `flower deploy`).
///
/// # Errors
/// When the state cannot be read.
pub fn active(view: &dyn View) -> Result<Option<(String, Revision, Option<String>)>, ViewError> {
    record::read_active(view)
}

/// The stored deployment with this hash.
///
/// # Errors
/// When the state cannot be read.
pub fn load(view: &dyn View, hash: &str) -> Result<Option<Arc<Deployment>>, ViewError> {
    record::read_bundle(view, hash)
}

/// The deployment that is active, whole.
///
/// # Errors
/// When the state cannot be read.
pub fn current(view: &dyn View) -> Result<Option<Arc<Deployment>>, ViewError> {
    match active(view)? {
        Some((hash, ..)) => load(view, &hash),
        None => Ok(None),
    }
}

/// Decides a deployment over the rows in `view`. Who may deploy over a managed application
/// is the caller's to check, with [`active`].
///
/// # Errors
/// `Refused` when the rows do not allow it, `Storage` when the state cannot be read.
pub fn plan_deployment(
    view: &dyn View,
    source: &str,
    manifest: Manifest,
    managed_by: Option<&str>,
    revision: Revision,
) -> Result<PlannedDeployment, DeployError> {
    plan::plan(view, source, manifest, managed_by, revision)
}

/// At most `most` (at least 1) entries and cells that indexes, deployments and builds of the
/// past left behind, to be removed by a patch of the trimming kind; absent when nothing is
/// left. Costs a seek for each index, and walks rows only when cells may lie beside them.
///
/// # Errors
/// When the state cannot be read.
pub fn sweep(view: &dyn View, most: usize) -> Result<Option<Patch>, ViewError> {
    sweep::sweep(view, most)
}

mod build;
mod compare;
mod diff;
mod page;
mod plan;
mod record;
mod sweep;
#[cfg(test)]
mod tests;
pub(crate) mod walk;
