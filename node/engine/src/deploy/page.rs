//! One page of a build: the next stretch of what there is to walk, as one patch; the last one
//! makes the bundle active. Runs no JavaScript itself: derived values are evaluated by whoever
//! calls.

use std::sync::Arc;

use flower_api::{
    Revision,
    wire::{Problem, code},
};

use super::{
    Deployment,
    build::{self, Build, FailedBuild, NewIndex, Step},
    plan, record as stored, walk,
};
use crate::{
    error::ViewError,
    js::CallError,
    key::{Space, meta},
    record,
    view::{Overlay, Patch, PatchBuilder, View},
};

/// Bytes of index entries that one page writes.
const INDEX_BYTES: usize = 2 << 20;
/// Rows read from the store at a time.
const ROWS_AT_ONCE: usize = 256;

/// A page of a build.
#[derive(Debug, Clone)]
pub struct Page {
    /// What it writes.
    pub patch: Patch,
    /// The build after it.
    pub build: Build,
    /// What became of the build.
    pub end: PageEnd,
}

/// What became of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageEnd {
    /// There is more to do.
    Going,
    /// The bundle is active.
    Active,
    /// It failed, for this reason; the application that runs is unchanged.
    Failed(String),
}

/// Why there is no page.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PageError {
    /// It used up a budget: a smaller one may not.
    #[error("{0}")]
    Budget(Box<Problem>),
    /// The state cannot be read.
    #[error(transparent)]
    Storage(#[from] ViewError),
}

/// What a page works on.
pub struct PageTask {
    /// The build so far.
    pub build: Build,
    /// The bundle that is to become active.
    pub deployment: Arc<Deployment>,
    /// The one that runs.
    pub running: Arc<Deployment>,
    /// The state.
    pub view: Arc<dyn View>,
    /// Rows that it takes at most.
    pub rows: u64,
}

/// What evaluating derived values for a page came to: what it writes, and the build after it;
/// true when everything noted by mutations has been followed.
pub type Evaluated = (PatchBuilder, Build, bool);

/// Makes the next page of the build that is under way, of at most `rows` rows; absent when
/// none is. `hopeless` ends it for that reason. `evaluate` runs the derived values of a page.
///
/// # Errors
/// See [`PageError`].
pub fn page(
    view: &Arc<dyn View>,
    rows: u64,
    hopeless: Option<String>,
    revision: Revision,
    evaluate: &mut dyn FnMut(PageTask) -> Result<Evaluated, CallError>,
) -> Result<Option<Page>, PageError> {
    let Some(mut build) = build::pending(&**view)? else {
        return Ok(None);
    };
    if let Some(why) = hopeless.or_else(|| build.failed.clone()) {
        return failed(&**view, build, why, revision).map(Some);
    }
    let missing = |hash: &str| ViewError(format!("the bundle {hash} is missing"));
    let load = |hash: &str| stored::read_bundle(&**view, hash)?.ok_or_else(|| missing(hash));
    let (active, ..) = stored::read_active(&**view)?.ok_or_else(|| missing("that runs"))?;
    let (deployment, running) = (load(&build.hash)?, load(&active)?);
    let mut patch = PatchBuilder::new();
    if let Err(why) = index(&**view, &mut build, &mut patch, rows, revision)? {
        return failed(&**view, build, why, revision).map(Some);
    }
    let mut followed = !build.logging;
    if !matches!(build.steps.front(), Some(Step::Indexes { .. })) && !build_is_plain(&deployment) {
        // From here on mutations note what they write.
        build.logging = true;
        let made = Arc::new(patch.clone().seal());
        let over: Arc<dyn View> = Arc::new(Overlay::new(view.clone(), vec![made]));
        let task = PageTask {
            build: build.clone(),
            deployment,
            running: running.clone(),
            view: over,
            rows,
        };
        match evaluate(task) {
            Ok((more, after, all)) => {
                patch.add(more);
                (build, followed) = (after, all);
            }
            Err(CallError::Storage(error)) => return Err(error.into()),
            Err(CallError::Refused(problem)) if is_budget(&problem) => {
                return Err(PageError::Budget(problem.into()));
            }
            Err(CallError::Refused(problem) | CallError::Fault(problem)) => {
                return failed(&**view, build, problem.detail, revision).map(Some);
            }
        }
    }
    if !build.is_walked() || !followed {
        patch.put(Space::Meta, meta::BUILD, build.encode());
        return Ok(Some(Page {
            patch: patch.seal(),
            build,
            end: PageEnd::Going,
        }));
    }
    finish(&**view, patch, build, &running, revision).map(Some)
}

/// Whether there is nothing but indexes to build.
fn build_is_plain(deployment: &Deployment) -> bool {
    deployment.manifest.derived.is_empty()
}

fn is_budget(problem: &Problem) -> bool {
    problem.code == code::BUDGET
}

/// The bundle becomes active, unless what it relied on has changed meanwhile.
fn finish(
    view: &dyn View,
    mut patch: PatchBuilder,
    build: Build,
    running: &Deployment,
    revision: Revision,
) -> Result<Page, PageError> {
    for (table, why) in &build.empty {
        let rows = walk::rows_of(view, table)?;
        if rows > 0 {
            let why = plan::not_empty(table, rows, why);
            return failed(view, build, why, revision);
        }
    }
    patch.delete(Space::Meta, meta::BUILD);
    plan::replace(&mut patch, Some(running), &build.hash);
    let (hash, by) = (build.hash.clone(), build.managed_by.clone());
    plan::activate(&mut patch, hash, revision, by);
    Ok(Page {
        patch: patch.seal(),
        build,
        end: PageEnd::Active,
    })
}

/// The build ends without success, and that is remembered.
fn failed(
    view: &dyn View,
    build: Build,
    why: String,
    revision: Revision,
) -> Result<Page, PageError> {
    let mut patch = PatchBuilder::new();
    let active = stored::read_active(view)?;
    let active = active.map_or(String::new(), |(hash, ..)| hash);
    plan::give_up(&mut patch, &build, &active);
    let failed = FailedBuild {
        hash: build.hash.clone(),
        since: build.since,
        revision,
        why: why.clone(),
    };
    // These types always have a JSON form.
    let json = serde_json::to_vec(&failed).unwrap_or_default();
    patch.put(Space::Meta, meta::BUILD_FAILED, json);
    Ok(Page {
        patch: patch.seal(),
        build,
        end: PageEnd::Failed(why),
    })
}

/// Writes entries of new indexes for the next rows. The inner error is for people: a row has
/// no entry.
fn index(
    view: &dyn View,
    build: &mut Build,
    patch: &mut PatchBuilder,
    rows: u64,
    revision: Revision,
) -> Result<Result<(), String>, ViewError> {
    let (mut left, mut bytes) = (rows, 0);
    while let Some(Step::Indexes { table }) = build.steps.front().cloned() {
        if left == 0 || bytes >= INDEX_BYTES {
            break;
        }
        let most = ROWS_AT_ONCE.min(usize::try_from(left).unwrap_or(ROWS_AT_ONCE));
        let found = walk::rows(view, &table, &build.after(), most)?;
        let here: Vec<&NewIndex> = build.indexes.iter().filter(|i| i.table == table).collect();
        for (key, value) in &found.found {
            let (id, row) = walk::row(&table, key, value)?;
            for new in &here {
                match record::index_key(&table, &new.physical, &new.on, &row, &id) {
                    Ok(key) => {
                        bytes += key.len();
                        patch.put(Space::Index, key, record::value(revision, ""));
                    }
                    Err(why) => return Ok(Err(why)),
                }
            }
        }
        left = left.saturating_sub(build.walked(&found));
    }
    Ok(Ok(()))
}
