//! Deployments and the pages of their builds, as works of the lane: the engine decides, an
//! isolate of the new bundle evaluates its derived values.

use std::sync::Arc;

use flower_engine::{
    Deadline, DeployError, Overlay, PatchBuilder, PlannedDeployment, View, ViewError,
    deploy::{self, Page, PageEnd, PageError},
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

/// A deployment, with the first page of its build when it begins one.
pub(super) fn deployed(
    pages: Pages<'_>,
    view: Arc<dyn View>,
    planned: Result<PlannedDeployment, DeployError>,
    rows: u64,
) -> Result<Prepared, ViewError> {
    let planned = match planned {
        Ok(planned) => planned,
        Err(DeployError::Storage(error)) => return Err(error),
        Err(DeployError::Refused(why)) => return Ok(refuse(bad_bundle(&why.join("; ")))),
    };
    let PlannedDeployment {
        patch,
        hash,
        changes,
        changed,
        mut building,
    } = planned;
    let mut whole = PatchBuilder::from(&patch);
    if building && rows > 0 && !patch.is_empty() {
        let begun: Arc<dyn View> = Arc::new(Overlay::new(view, vec![Arc::new(patch)]));
        match pages.next(&begun, rows, None) {
            Ok(Some(page)) => match page.end {
                PageEnd::Failed(why) => return Ok(refuse(bad_bundle(&why))),
                end => {
                    building = end == PageEnd::Going;
                    whole.add(PatchBuilder::from(&page.patch));
                }
            },
            Err(PageError::Storage(error)) => return Err(error),
            // It is begun; smaller pages follow.
            Ok(None) | Err(PageError::Budget(_)) => {}
        }
    }
    let reply = Reply::Deployed {
        hash,
        changed,
        changes,
        building,
    };
    Ok(match whole.is_empty() {
        true => Prepared::Answer(reply),
        false => commit(whole, reply),
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
