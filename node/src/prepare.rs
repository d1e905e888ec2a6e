//! What a worker does for one work of the lane: judges it on the view with everything ordered
//! before it, and makes its patch. Pure over the view but for the JavaScript that it runs.
//! Orders nothing and sends nothing.

use std::{ops::Bound, sync::Arc};

use flower_api::{
    Revision, admin,
    report::StoredOwner,
    wire::{Problem, code},
};
use flower_engine::{
    CallError, Deadline, PatchBuilder, ReadSet, ReadSetBuilder, Space, View, ViewError, deploy,
    key::meta,
    lane::{Drawn, Mark, Mutation, Prepared, Reply, Work},
    receipt::{self, Ended, Judged, Receipt},
};

use flower_store::sabotage::{Break, is_broken};

use crate::workers::{Call, Isolates, Purpose};

use build::Pages;

mod build;
mod import;

pub use import::{LAST_REVISION, not_empty};

/// A work's outcome, and what it read; absent when that is not known.
pub type Outcome = (Prepared, Option<Arc<ReadSet>>);

/// Prepares one work. All but mutations are prepared alone, so that what they read is of no
/// account.
///
/// # Errors
/// When the state cannot be read; the node stops then.
pub fn prepare(
    isolates: &mut Isolates,
    view: Arc<dyn View>,
    work: &Work,
    drawn: Drawn,
    retention_ms: u64,
    deadline: &Deadline,
) -> Result<Outcome, ViewError> {
    let alone = match work {
        Work::Mutate(call) => return mutate(isolates, view, call, drawn, retention_ms, deadline),
        Work::Deploy {
            source,
            manifest,
            managed_by,
        } => {
            let managed_by = managed_by.as_deref();
            let wrong = import::under_way(&*view)?.map_or_else(
                || owned_by_another(&*view, managed_by),
                |problem| Ok(Some(problem)),
            )?;
            match wrong {
                Some(problem) => Ok(refuse(problem)),
                None => {
                    let manifest = (**manifest).clone();
                    let revision = drawn.revision;
                    let planned =
                        deploy::plan_deployment(&*view, source, manifest, managed_by, revision);
                    build::deployed(planned)
                }
            }
        }
        Work::Build { rows, hopeless } => {
            let pages = Pages::new(isolates, drawn, deadline);
            build::page(pages, view, *rows, hopeless.clone())
        }
        Work::Mark(wanted) => mark(&*view, wanted),
        Work::Import(step) => import::step(isolates, view, step, drawn, deadline),
        Work::Trim { cutoff_ms, limit } => trim(&*view, *cutoff_ms, *limit, drawn.now_ms),
    };
    Ok((alone?, None))
}

/// Deletes receipts whose time is up, and what deployments of the past have left behind.
fn trim(view: &dyn View, cutoff_ms: u64, limit: usize, now_ms: u64) -> Result<Prepared, ViewError> {
    let mut trim = receipt::trim(view, cutoff_ms, limit)?;
    if let Some(leftovers) = deploy::sweep(view, limit)? {
        trim.patch.add(PatchBuilder::from(&leftovers));
        // There may be more of them: soon again.
        trim.next_due_ms = Some(now_ms);
    }
    let reply = Reply::Trimmed {
        trimmed: trim.trimmed,
        next_due_ms: trim.next_due_ms,
    };
    Ok(commit(trim.patch, reply))
}

fn commit(patch: PatchBuilder, reply: Reply) -> Prepared {
    Prepared::Commit {
        patch: Arc::new(patch.seal()),
        reply,
    }
}

fn refuse(problem: Problem) -> Prepared {
    Prepared::Refuse(Box::new(problem))
}

/// The application that mutations run in, or why none is taken now.
fn application(view: &dyn View) -> Result<Result<String, Problem>, ViewError> {
    if view.get(Space::Meta, meta::FORMED)?.is_none() {
        return Ok(Err(not_formed()));
    }
    if let Some(problem) = import::under_way(view)? {
        return Ok(Err(problem));
    }
    let active = deploy::active(view)?;
    Ok(active.map(|(hash, ..)| hash).ok_or_else(no_application))
}

fn mutate(
    isolates: &mut Isolates,
    view: Arc<dyn View>,
    call: &Mutation,
    drawn: Drawn,
    retention_ms: u64,
    deadline: &Deadline,
) -> Result<Outcome, ViewError> {
    let (scope, key, print) = (&call.scope, &call.key, call.fingerprint);
    match receipt::judge(&*view, scope, key, print, drawn.now_ms, retention_ms)? {
        Judged::New => {}
        Judged::Refuse(problem) => return Ok((Prepared::Refuse(problem), None)),
        Judged::Replay(receipt) => {
            let replay = Reply::Mutated {
                receipt,
                unkept: None,
                replayed: true,
                deployment: None,
            };
            return Ok((Prepared::Answer(replay), None));
        }
    }
    let hash = match application(&*view)? {
        Ok(hash) => hash,
        Err(problem) => return Ok((refuse(problem), None)),
    };
    let evaluated = isolates.evaluate(
        Call {
            hash: &hash,
            purpose: Purpose::Mutation,
            name: &call.name,
            args: &call.args,
            view,
            stamp: drawn.into(),
        },
        deadline,
    );
    let failed_reads = isolates.take_failed_reads();
    let (mut patch, ended, unkept, reads) = match evaluated {
        Ok(done) => {
            let ended = receipt::keep(&done.result);
            let unkept = (ended == Ended::ResultNotKept).then_some(done.result);
            let patch = with_readers(done.patch.unwrap_or_default());
            (patch, ended, unkept, Some(certified(done.reads)))
        }
        Err(CallError::Storage(error)) => return Err(error),
        Err(CallError::Fault(problem)) if !call.minted => {
            let fault = Ended::Fault(problem.into());
            (PatchBuilder::new(), fault, None, failed_reads)
        }
        Err(CallError::Refused(problem) | CallError::Fault(problem)) => {
            return Ok((Prepared::Refuse(problem.into()), failed_reads.map(Arc::new)));
        }
    };
    let receipt = Receipt {
        revision: drawn.revision,
        mutation: call.name.clone(),
        fingerprint: print,
        ended,
        created_ms: drawn.now_ms,
        until_ms: receipt::until_ms(key, drawn.now_ms, retention_ms),
    };
    if !is_broken(Break::ReceiptOutsidePatch) {
        receipt::record(&mut patch, scope, key, &receipt);
    }
    let reply = Reply::Mutated {
        receipt,
        unkept,
        replayed: false,
        deployment: Some(hash),
    };
    Ok((commit(patch, reply), reads.map(Arc::new)))
}

/// All that was read, but for [`Break::CertificateForgetsRange`].
fn certified(reads: ReadSet) -> ReadSet {
    if !is_broken(Break::CertificateForgetsRange) {
        return reads;
    }
    let mut records = ReadSetBuilder::default();
    for (space, key) in reads.records() {
        records.record(space, key);
    }
    records.finish()
}

/// All that was written, but for [`Break::ReaderRecordNotWritten`].
fn with_readers(mut patch: PatchBuilder) -> PatchBuilder {
    if is_broken(Break::ReaderRecordNotWritten) {
        let written = patch.range(Space::Readers, Bound::Unbounded, Bound::Unbounded);
        let keys: Vec<_> = written.map(|((_, key), _)| key.clone()).collect();
        for key in keys {
            patch.forget(Space::Readers, &key);
        }
    }
    patch
}

/// While a ConfigMap owns the application, only its owner deploys. An owner may take over
/// from a person or from another ConfigMap: the cluster has one `app`.
fn owned_by_another(
    view: &dyn View,
    managed_by: Option<&str>,
) -> Result<Option<Problem>, ViewError> {
    let owner = match deploy::pending(view)? {
        Some(pending) if pending.managed_by.is_some() => pending.managed_by,
        _ => deploy::active(view)?.and_then(|(_, _, owner)| owner),
    };
    Ok(match (owner, managed_by) {
        (Some(owner), None) => Some(Problem::new(
            409,
            admin::code::APP_MANAGED,
            "The application is managed",
            format!(
                "the application is deployed from ConfigMap {owner}: change it there, or remove \
                 'app' from the FlowerCluster to deploy by hand"
            ),
        )),
        _ => None,
    })
}

fn mark(view: &dyn View, wanted: &Mark) -> Result<Prepared, ViewError> {
    let mut patch = PatchBuilder::new();
    match wanted {
        Mark::Formed => {
            if view.get(Space::Meta, meta::FORMED)?.is_none() {
                patch.put(Space::Meta, meta::FORMED, &b"1"[..]);
            }
        }
        Mark::Owner {
            uid,
            generation,
            adopt,
        } => {
            let new = StoredOwner {
                uid: uid.clone(),
                generation: *generation,
            };
            match owner_after(owner(view)?, new, *adopt) {
                Err(problem) => return Ok(refuse(*problem)),
                Ok(None) => {}
                Ok(Some(owner)) => patch.put(Space::Meta, meta::OWNER, owner_json(&owner)),
            }
        }
    }
    Ok(if patch.is_empty() {
        Prepared::Answer(Reply::Marked)
    } else {
        commit(patch, Reply::Marked)
    })
}

/// The FlowerCluster object that last acted, as stored.
///
/// # Errors
/// When the state cannot be read.
pub fn owner(view: &dyn View) -> Result<Option<StoredOwner>, ViewError> {
    view.get(Space::Meta, meta::OWNER)?
        .map(|bytes| {
            serde_json::from_slice(&bytes)
                .map_err(|e| ViewError(format!("the stored owner is damaged: {e}")))
        })
        .transpose()
}

fn owner_json(owner: &StoredOwner) -> Vec<u8> {
    serde_json::json!({ "uid": owner.uid, "generation": owner.generation })
        .to_string()
        .into_bytes()
}

/// The owner to store when `new` acts; `None` when it is stored already. The same object acts
/// at the stored generation or a later one. Another object must say that it adopts the group:
/// one that was deleted and applied again has a new uid and begins at generation 1.
///
/// # Errors
/// `stale-spec`.
pub fn owner_after(
    stored: Option<StoredOwner>,
    new: StoredOwner,
    adopt: bool,
) -> Result<Option<StoredOwner>, Box<Problem>> {
    let stale = |detail: String| {
        Box::new(Problem::new(
            409,
            admin::code::STALE_SPEC,
            "The FlowerCluster is stale",
            detail,
        ))
    };
    match stored {
        None => Ok(Some(new)),
        Some(stored) if stored.uid == new.uid => match new.generation.cmp(&stored.generation) {
            std::cmp::Ordering::Less => Err(stale(format!(
                "the call comes from generation {} of FlowerCluster {}, and the group has acted \
                 for generation {}: the cluster's API was restored from an old copy, or an old \
                 operator still runs",
                new.generation, new.uid, stored.generation
            ))),
            std::cmp::Ordering::Equal => Ok(None),
            std::cmp::Ordering::Greater => Ok(Some(new)),
        },
        Some(_) if adopt => Ok(Some(new)),
        Some(stored) => Err(stale(format!(
            "the call comes from FlowerCluster {}, and the group belongs to {}; one that takes \
             over volumes must adopt them",
            new.uid, stored.uid
        ))),
    }
}

fn not_formed() -> Problem {
    Problem::new(
        503,
        code::NOT_FORMED,
        "The group is not formed",
        "the group has not reached its size yet; mutations are accepted once it has",
    )
    .retryable()
}

/// The refusal of a call while nothing is deployed.
pub fn no_application() -> Problem {
    Problem::new(
        503,
        code::NO_APPLICATION,
        "No application",
        "no application is deployed: run 'flower deploy <bundle>', or set 'app' in the \
         FlowerCluster",
    )
    .retryable()
}

/// The refusal of a bundle.
pub fn bad_bundle(why: &str) -> Problem {
    Problem::new(
        422,
        admin::code::BAD_BUNDLE,
        "The bundle is refused",
        format!("{why}; the application that runs is unchanged"),
    )
}

/// The revision that a view reflects.
///
/// # Errors
/// When the state cannot be read.
pub fn revision(view: &dyn View) -> Result<Revision, ViewError> {
    Ok(Revision(number(view, meta::REVISION)?))
}

/// A number among the marks; 0 when it was never written.
///
/// # Errors
/// When the state cannot be read.
pub fn number(view: &dyn View, key: &[u8]) -> Result<u64, ViewError> {
    view.get(Space::Meta, key)?.map_or(Ok(0), |bytes| {
        <[u8; 8]>::try_from(&bytes[..])
            .map(u64::from_be_bytes)
            .map_err(|_| ViewError("a mark is damaged".into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flower_engine::view::MemoryView;

    fn act(view: &mut MemoryView, uid: &str, generation: i64, adopt: bool) -> String {
        let wanted = Mark::Owner {
            uid: uid.into(),
            generation,
            adopt,
        };
        match mark(view, &wanted).unwrap() {
            Prepared::Commit { patch, .. } => {
                view.apply(&patch);
                "stored".into()
            }
            Prepared::Answer(_) => "same".into(),
            Prepared::Refuse(problem) => problem.code,
        }
    }

    #[test]
    fn generations_only_rise_and_another_object_must_adopt() {
        let mut view = MemoryView::default();
        for (uid, generation, adopt, expected) in [
            ("a", 3, false, "stored"),
            ("a", 3, false, "same"),
            ("a", 2, false, "stale-spec"),
            ("a", 2, true, "stale-spec"),
            ("a", 4, false, "stored"),
            ("b", 9, false, "stale-spec"),
            ("b", 1, true, "stored"),
            ("a", 5, false, "stale-spec"),
            ("b", 1, false, "same"),
        ] {
            assert_eq!(
                act(&mut view, uid, generation, adopt),
                expected,
                "{uid} {generation}"
            );
        }
        let stored = owner(&view).unwrap().unwrap();
        assert_eq!((&stored.uid[..], stored.generation), ("b", 1));
    }

    #[test]
    fn a_trim_removes_what_dropped_indexes_left_and_comes_back_soon() {
        let mut view = MemoryView::default();
        let manifest = flower_api::manifest::Manifest::default();
        let planned = deploy::plan_deployment(&view, "", manifest, None, Revision(1)).unwrap();
        view.apply(&planned.patch);
        let mut leftovers = PatchBuilder::new();
        for n in 0..3 {
            leftovers.put(Space::Index, format!("_\0t\0old.1\0{n}"), &b"12345678"[..]);
        }
        view.apply(&leftovers.seal());
        for left in [1, 0] {
            let Prepared::Commit { patch, reply } = trim(&view, 0, 2, 77).unwrap() else {
                panic!("a patch")
            };
            view.apply(&patch);
            let next = Reply::Trimmed {
                trimmed: 0,
                next_due_ms: Some(77),
            };
            assert_eq!(reply, next);
            let entries = view.entries().filter(|(s, ..)| *s == Space::Index);
            assert_eq!(entries.count(), left);
        }
        let Prepared::Commit { reply, .. } = trim(&view, 0, 2, 78).unwrap() else {
            panic!("a patch")
        };
        assert!(matches!(
            reply,
            Reply::Trimmed {
                next_due_ms: None,
                ..
            }
        ));
    }

    #[test]
    fn the_group_is_formed_once() {
        let mut view = MemoryView::default();
        let Prepared::Commit { patch, .. } = mark(&view, &Mark::Formed).unwrap() else {
            panic!("a patch")
        };
        view.apply(&patch);
        assert!(view.get(Space::Meta, meta::FORMED).unwrap().is_some());
        let again = mark(&view, &Mark::Formed).unwrap();
        assert_eq!(again, Prepared::Answer(Reply::Marked));
    }
}
