//! Deployments and the pages of their builds, as works of the lane: the engine decides, an
//! isolate of the new bundle evaluates its derived values.

use std::sync::Arc;

use flower_engine::{
    Deadline, DeployError, PatchBuilder, PlannedDeployment, View, ViewError,
    deploy::{self, Page, PageError},
    lane::{Drawn, Prepared, Reply},
};

use super::{bad_bundle, commit, refuse};
use crate::workers::Isolates;

/// What makes the pages of a build.
pub(super) struct Pages<'a> {
    isolates: &'a mut Isolates,
    drawn: Drawn,
    deadline: &'a Deadline,
}

impl<'a> Pages<'a> {
    pub(super) fn new(isolates: &'a mut Isolates, drawn: Drawn, deadline: &'a Deadline) -> Self {
        Self {
            isolates,
            drawn,
            deadline,
        }
    }

    fn next(
        self,
        view: &Arc<dyn View>,
        rows: u64,
        hopeless: Option<String>,
    ) -> Result<Option<Page>, PageError> {
        let (revision, stamp) = (self.drawn.revision, self.drawn.into());
        let (isolates, deadline) = (self.isolates, self.deadline);
        let mut evaluate = |task| isolates.build(&task, stamp, deadline);
        deploy::page(view, rows, hopeless, revision, &mut evaluate)
    }
}

/// A deployment: active at once, or the beginning of its build.
pub(super) fn deployed(
    planned: Result<PlannedDeployment, DeployError>,
) -> Result<Prepared, ViewError> {
    let planned = match planned {
        Ok(planned) => planned,
        Err(DeployError::Storage(error)) => return Err(error),
        Err(DeployError::Refused(why)) => return Ok(refuse(bad_bundle(&why.join("; ")))),
    };
    let reply = Reply::Deployed {
        hash: planned.hash,
        changed: planned.changed,
        changes: planned.changes,
        building: planned.building,
    };
    Ok(match planned.patch.is_empty() {
        true => Prepared::Answer(reply),
        false => commit(PatchBuilder::from(&planned.patch), reply),
    })
}

/// The next page of the build that is under way.
pub(super) fn page(
    pages: Pages<'_>,
    view: Arc<dyn View>,
    rows: u64,
    hopeless: Option<String>,
) -> Result<Prepared, ViewError> {
    match pages.next(&view, rows, hopeless) {
        Ok(None) => Ok(Prepared::Answer(Reply::Built(None))),
        Ok(Some(page)) => {
            let patch = PatchBuilder::from(&page.patch);
            Ok(commit(patch, Reply::Built(Some(page.end))))
        }
        Err(PageError::Storage(error)) => Err(error),
        Err(PageError::Budget(problem)) => Ok(Prepared::Refuse(problem)),
    }
}
