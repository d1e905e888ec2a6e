//! The steps of an import, judged on the view: each is done once, however often it is sent.
//! What a step writes is the engine's to say.

use std::sync::Arc;

use flower_api::{
    admin,
    export::{Counts, Header, Imported, Step},
    wire::{Problem, code},
};
use flower_engine::{
    CallError, Deadline, DeployError, Deployment, PatchBuilder, Space, View, ViewError, deploy,
    import::{self, ImportError, Mark, Roots},
    key::meta,
    lane::{Drawn, Import, Prepared, Reply},
};

use super::{bad_bundle, commit, no_application, not_formed, owned_by_another, refuse};
use crate::workers::Isolates;

pub use flower_engine::import::LAST_REVISION;

/// Does a step.
pub(super) fn step(
    isolates: &mut Isolates,
    view: Arc<dyn View>,
    call: &Import,
    drawn: Drawn,
    deadline: &Deadline,
) -> Result<Prepared, ViewError> {
    if let Step::Begin(header) = &call.step {
        return begin(&*view, call, header, drawn);
    }
    let Some(mut mark) = Mark::read(&*view)?.filter(|mark| mark.import == call.import) else {
        return Ok(match import::imported(&*view)? {
            // It was sent again, and its answer was lost.
            Some(done) if done == call.import => answer(done_already(&call.step)),
            _ => refuse(position(
                "no import of this export is under way; begin it again",
            )),
        });
    };
    if let Step::Finish(counts) = &call.step {
        return finish(&mark, *counts);
    }
    let Some(deployment) = deploy::current(&*view)? else {
        // Nothing was deployed, so there are no rows either.
        mark.all_built = true;
        return Ok(match &call.step {
            Step::Build { .. } => moved(PatchBuilder::new(), &mark),
            _ => refuse(no_application()),
        });
    };
    let stamp = drawn.into();
    let mut build =
        |view, roots: &Roots| isolates.store(&deployment.hash, roots, view, stamp, deadline);
    match &call.step {
        Step::Begin(_) | Step::Finish(_) => Ok(answer(mark.told(false))),
        Step::Page { at } if *at != mark.written.imported() => Ok(answer(mark.told(false))),
        Step::Page { .. } => match page(&*view, &deployment, &mut mark, &call.lines)? {
            Page::Done(prepared) => Ok(prepared),
            Page::Roots(roots) => built(build(view, &roots), &mark),
        },
        Step::Build { .. } if mark.all_built => Ok(answer(mark.told(false))),
        Step::Build { most } => {
            let most = usize::try_from(*most).unwrap_or(usize::MAX).max(1);
            let roots = Roots::of_next_rows(&*view, &deployment, &mut mark, most)?;
            if roots.is_empty() {
                return Ok(moved(PatchBuilder::new(), &mark));
            }
            built(build(view, &roots), &mark)
        }
    }
}

/// What a page comes to.
enum Page {
    Done(Prepared),
    /// These are to be evaluated.
    Roots(Roots),
}

fn page(
    view: &dyn View,
    deployment: &Deployment,
    mark: &mut Mark,
    lines: &str,
) -> Result<Page, ViewError> {
    let refused = |problem| Ok(Page::Done(refuse(problem)));
    let lines = match import::parse(lines) {
        Ok(lines) => lines,
        Err(why) => return refused(bad_export(&why)),
    };
    match (import::only_roots(&lines), mark.all_built) {
        (None, false) => match import::write(view, deployment, mark, &lines) {
            Ok(patch) => Ok(Page::Done(moved(patch, mark))),
            Err(ImportError::Bad(why)) => refused(bad_export(&why)),
            Err(ImportError::Storage(error)) => Err(error),
        },
        (None, true) => refused(position(
            "rows come before the derived values of rows, which are evaluated already",
        )),
        (Some(_), false) => refused(position("derived values of rows come before roots")),
        (Some(roots), true) => match Roots::of_lines(deployment, &roots) {
            Ok(found) => {
                mark.written.roots += roots.len() as u64;
                Ok(Page::Roots(found))
            }
            Err(why) => refused(bad_export(&why)),
        },
    }
}

fn begin(
    view: &dyn View,
    call: &Import,
    header: &Header,
    drawn: Drawn,
) -> Result<Prepared, ViewError> {
    if let Some(mark) = Mark::read(view)? {
        return Ok(match mark.import == call.import {
            true => answer(mark.told(false)),
            false => refuse(another(&mark)),
        });
    }
    if view.get(Space::Meta, meta::FORMED)?.is_none() {
        return Ok(refuse(not_formed()));
    }
    if !import::is_empty(view)? {
        return Ok(refuse(not_empty()));
    }
    let mut patch = PatchBuilder::new();
    if let Some(manifest) = &call.manifest {
        let lines = import::parse(&call.lines).unwrap_or_default();
        let Some(flower_api::export::Line::Bundle(bundle)) = lines.first() else {
            return Ok(refuse(bad_export("the bundle is missing")));
        };
        let active = deploy::active(view)?;
        let same = active.is_some_and(|(hash, ..)| hash == bundle.hash);
        if !same {
            if let Some(problem) = owned_by_another(view, None)? {
                return Ok(refuse(problem));
            }
            let manifest = (**manifest).clone();
            let planned =
                deploy::plan_deployment(view, &bundle.source, manifest, None, drawn.revision);
            match planned {
                // Without rows nothing is to be built, unless a build of the same was begun.
                Ok(planned) if planned.building => {
                    let why = "its application is still being built here; import when it is active";
                    return Ok(refuse(position(why)));
                }
                Ok(planned) => patch.add(PatchBuilder::from(&planned.patch)),
                Err(DeployError::Storage(error)) => return Err(error),
                Err(DeployError::Refused(why)) => return Ok(refuse(bad_bundle(&why.join("; ")))),
            }
        }
    }
    import::trimmed(view, header, &mut patch)?;
    let mark = Mark::begin(&call.import, header);
    Ok(moved(patch, &mark))
}

fn finish(mark: &Mark, counts: Counts) -> Result<Prepared, ViewError> {
    let expected = Counts { cells: 0, ..counts };
    if !mark.all_built || mark.written != expected {
        return Ok(refuse(position(
            "not all lines are written and evaluated; begin again to learn how far it is",
        )));
    }
    let mut patch = PatchBuilder::new();
    mark.finish(&mut patch);
    Ok(commit(patch, Reply::Imported(mark.told(true))))
}

fn moved(mut patch: PatchBuilder, mark: &Mark) -> Prepared {
    mark.put(&mut patch);
    commit(patch, Reply::Imported(mark.told(false)))
}

fn built(done: Result<PatchBuilder, CallError>, mark: &Mark) -> Result<Prepared, ViewError> {
    match done {
        Ok(patch) => Ok(moved(patch, mark)),
        Err(CallError::Storage(error)) => Err(error),
        Err(CallError::Refused(problem) | CallError::Fault(problem)) => Ok(refuse(problem)),
    }
}

fn answer(told: Imported) -> Prepared {
    Prepared::Answer(Reply::Imported(told))
}

fn done_already(step: &Step) -> Imported {
    let written = match step {
        Step::Finish(counts) => *counts,
        _ => Counts::default(),
    };
    Imported {
        written,
        built: 0,
        all_built: true,
        finished: true,
    }
}

/// The refusal of mutations and deployments while an import is under way.
///
/// # Errors
/// When the state cannot be read.
pub(super) fn under_way(view: &dyn View) -> Result<Option<Problem>, ViewError> {
    let Some(mark) = Mark::read(view)? else {
        return Ok(None);
    };
    let detail = format!(
        "an export of revision {} is being imported, and {} of its lines are written; nothing \
         else is until it is done. If it broke off, run 'flower import' of the same file again",
        mark.revision,
        mark.written.imported()
    );
    Ok(Some(
        Problem::new(503, code::IMPORTING, "An import is under way", detail).retryable(),
    ))
}

fn another(mark: &Mark) -> Problem {
    let detail = format!(
        "another export, of revision {} and with checksum {}, is being imported; finish it with \
         'flower import' of its file, or use an empty database",
        mark.revision, mark.import
    );
    Problem::new(409, code::IMPORTING, "An import is under way", detail)
}

/// The refusal of an import into a database that is used.
pub fn not_empty() -> Problem {
    Problem::new(
        409,
        admin::code::NOT_EMPTY,
        "The database is not empty",
        "the database has rows or receipts; an export is imported into one that has none: make a \
         new cluster for it",
    )
}

fn bad_export(why: &str) -> Problem {
    Problem::new(
        422,
        admin::code::BAD_EXPORT,
        "The export is refused",
        format!("{why}; nothing of this page is written"),
    )
}

fn position(why: &str) -> Problem {
    let title = "Not the next step";
    Problem::new(409, admin::code::IMPORT_POSITION, title, why)
}
