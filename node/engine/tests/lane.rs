//! The lane by table: events in, effects out.

use std::sync::Arc;

use flower_api::{Revision, wire::Outcome, wire::Problem};
use flower_engine::{
    Entry, EntryKind, PatchBuilder, ReadSet, ReadSetBuilder, Space, View,
    key::meta,
    lane::{
        BatchFailure, BatchId, Drawn, Effect, Event, JobId, Lane, LaneSettings, Mark, Mutation,
        Now, Prepared, Refusal, Reply, Ticket, Work,
    },
    receipt::{self, Ended, Fingerprint, Receipt, Scope},
    view::MemoryView,
};

/// A lane and its clock.
struct Bench {
    lane: Lane,
    now: Now,
}

impl Bench {
    fn new(settings: LaneSettings) -> Self {
        Self {
            lane: Lane::new(settings),
            now: Now {
                mono_ms: 0,
                wall_ms: 1_000_000,
            },
        }
    }

    fn leading() -> Self {
        let mut bench = Self::new(LaneSettings::default());
        bench.lead(1);
        bench
    }

    fn lead(&mut self, term: u64) -> Vec<Effect> {
        self.step(Event::LeaderGained {
            term,
            revision: Revision(10),
            stamp_ms: 0,
            seed: 7,
        })
    }

    /// Effects but for wakes.
    fn step(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = self.lane.step(event, self.now);
        effects.retain(|e| !matches!(e, Effect::WakeAt { .. }));
        effects
    }

    fn call(&mut self, ticket: u64, key: &str, args: &str) -> Vec<Effect> {
        let deadline_ms = self.now.mono_ms + 10_000;
        self.step(Event::Arrived {
            ticket: Ticket(ticket),
            work: mutate(key, args),
            deadline_ms,
        })
    }

    fn prepared(&mut self, job: JobId, bytes: usize) -> Vec<Effect> {
        self.ended(job, commit(bytes), None)
    }

    fn ended(&mut self, job: JobId, outcome: Prepared, reads: Option<ReadSet>) -> Vec<Effect> {
        self.step(Event::Prepared {
            job,
            outcome,
            reads: reads.map(Arc::new),
        })
    }
}

fn mutate(key: &str, args: &str) -> Work {
    Work::Mutate(Mutation {
        scope: Scope {
            partition: "_".into(),
            subject: "client".into(),
        },
        key: key.parse().unwrap(),
        minted: false,
        name: "add".into(),
        args: args.into(),
        fingerprint: Fingerprint::of("add", args).unwrap(),
    })
}

fn reply() -> Reply {
    Reply::Mutated {
        receipt: Receipt {
            revision: Revision(11),
            mutation: "add".into(),
            fingerprint: Fingerprint::of("add", "{}").unwrap(),
            ended: Ended::Result("1".into()),
            created_ms: 1,
            until_ms: 2,
        },
        unkept: None,
        replayed: false,
        deployment: None,
    }
}

fn commit(bytes: usize) -> Prepared {
    let mut patch = PatchBuilder::new();
    patch.put(Space::Data, &b"k"[..], vec![0; bytes]);
    Prepared::Commit {
        patch: Arc::new(patch.seal()),
        reply: reply(),
    }
}

/// The one `Prepare` among the effects.
fn preparing(effects: &[Effect]) -> (JobId, Drawn, usize) {
    let mut found = effects.iter().filter_map(|e| match e {
        Effect::Prepare {
            job,
            drawn,
            overlay,
            ..
        } => Some((*job, *drawn, overlay.len())),
        _ => None,
    });
    let first = found.next().expect("a preparation");
    assert!(found.next().is_none(), "one at a time");
    first
}

fn proposed(effects: &[Effect]) -> Vec<(BatchId, Entry)> {
    effects
        .iter()
        .filter_map(|e| match e {
            Effect::Propose { batch, entry, .. } => Some((*batch, entry.clone())),
            _ => None,
        })
        .collect()
}

/// Who was told what, shortly.
fn answers(effects: &[Effect]) -> Vec<(u64, String)> {
    effects
        .iter()
        .filter_map(|e| match e {
            Effect::Reply { ticket, reply } => Some((
                ticket.0,
                match reply {
                    Reply::Mutated { replayed: true, .. } => "replayed".into(),
                    Reply::Mutated { .. } => "done".into(),
                    other => format!("{other:?}"),
                },
            )),
            Effect::Refuse { ticket, refusal } => Some((
                ticket.0,
                match refusal {
                    Refusal::Problem(p) => format!("{} {:?}", p.code, p.outcome),
                    other => format!("{other:?}"),
                },
            )),
            _ => None,
        })
        .collect()
}

#[test]
fn one_call_is_prepared_proposed_and_answered_when_applied() {
    let mut bench = Bench::leading();
    let (job, drawn, overlay) = preparing(&bench.call(1, "k", "{}"));
    assert_eq!((drawn.revision, overlay), (Revision(11), 0));
    assert_eq!(drawn.now_ms, 1_000_000);
    let effects = bench.prepared(job, 4);
    let [(batch, entry)] = &proposed(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(
        (entry.kind, entry.revision),
        (EntryKind::Mutations, Revision(11))
    );
    let mut state = MemoryView::default();
    entry.patches.iter().for_each(|p| state.apply(p));
    let stored = |key| state.get(Space::Meta, key).unwrap().unwrap();
    assert_eq!(&stored(meta::REVISION)[..], 11u64.to_be_bytes());
    assert_eq!(&stored(meta::STAMP)[..], 1_000_000u64.to_be_bytes());
    assert!(bench.step(Event::Flushed { batch: *batch }).is_empty());
    let effects = bench.step(Event::Applied { batch: *batch });
    assert_eq!(answers(&effects), [(1, "done".into())]);
    assert!(!bench.lane.in_flight(b"_\0client\0k"));
}

#[test]
fn the_next_batch_fills_while_the_last_is_flushed() {
    let mut bench = Bench::leading();
    let (a, ..) = preparing(&bench.call(1, "a", "{}"));
    assert!(bench.call(2, "b", "{}").is_empty());
    assert!(bench.call(3, "c", "{}").is_empty());
    let effects = bench.prepared(a, 4);
    let first = proposed(&effects)[0].0;
    let (b, drawn, overlay) = preparing(&effects);
    assert_eq!((drawn.revision, overlay), (Revision(12), 1));
    let effects = bench.prepared(b, 4);
    assert!(proposed(&effects).is_empty(), "still being flushed");
    let (c, _, overlay) = preparing(&effects);
    assert_eq!(overlay, 2);
    assert!(bench.prepared(c, 4).is_empty());
    let effects = bench.step(Event::Flushed { batch: first });
    let second = &proposed(&effects)[0];
    assert_eq!(
        (second.1.patches.len(), second.1.revision),
        (3, Revision(13))
    );
    let effects = bench.step(Event::Applied { batch: second.0 });
    let told: Vec<u64> = answers(&effects).into_iter().map(|(t, _)| t).collect();
    assert_eq!(told, [1, 2, 3], "in order, those of the first batch first");
}

#[test]
fn full_batches_do_not_wait_for_the_flush_and_then_hold_the_rest_back() {
    let mut bench = Bench::leading();
    let mut effects = bench.call(0, "k0", "{}");
    for i in 1..8 {
        bench.call(i, &format!("k{i}"), "{}");
    }
    let mut batches = 0;
    while effects.iter().any(|e| matches!(e, Effect::Prepare { .. })) {
        let (job, ..) = preparing(&effects);
        effects = bench.prepared(job, 2 << 20);
        batches += proposed(&effects).len();
    }
    assert_eq!(batches, 3, "at most three unacknowledged");
    assert_eq!(bench.lane.queued(), 4, "one more is full and waits");
}

#[test]
fn a_call_under_way_is_joined_and_another_one_refused() {
    let mut bench = Bench::leading();
    let (job, ..) = preparing(&bench.call(1, "k", r#"{"n":1}"#));
    assert!(bench.call(2, "k", r#"{ "n": 1 }"#).is_empty());
    let effects = bench.call(3, "k", r#"{"n":2}"#);
    assert_eq!(answers(&effects), [(3, "key-reused NotApplied".into())]);
    let batch = proposed(&bench.prepared(job, 4))[0].0;
    assert!(bench.call(4, "k", r#"{"n":1}"#).is_empty());
    let effects = bench.step(Event::Applied { batch });
    let want = [(1, "done"), (2, "replayed"), (4, "replayed")].map(|(t, s)| (t, s.to_owned()));
    assert_eq!(answers(&effects), want);
}

#[test]
fn a_failing_call_leaves_a_gap_and_waits_for_what_it_was_judged_on() {
    let mut bench = Bench::leading();
    let (a, ..) = preparing(&bench.call(1, "a", "{}"));
    bench.call(2, "b", "{}");
    bench.call(3, "c", "{}");
    let effects = bench.prepared(a, 4);
    let first = proposed(&effects)[0].0;
    let (b, ..) = preparing(&effects);
    let refused = Problem::new(409, "fault:sold-out", "Sold out", "none left");
    let effects = bench.ended(b, Prepared::Refuse(Box::new(refused)), None);
    assert!(
        answers(&effects).is_empty(),
        "judged on a patch that is not applied"
    );
    let (c, drawn, _) = preparing(&effects);
    assert_eq!(drawn.revision, Revision(13));
    bench.prepared(c, 4);
    let effects = bench.step(Event::Applied { batch: first });
    let want = [(1, "done"), (2, "fault:sold-out NotApplied")].map(|(t, s)| (t, s.to_owned()));
    assert_eq!(answers(&effects), want);
    // With nothing unapplied, an answer is given at once.
    let mut bench = Bench::leading();
    let (job, ..) = preparing(&bench.call(1, "a", "{}"));
    let effects = bench.ended(job, Prepared::Answer(reply()), None);
    assert_eq!(answers(&effects), [(1, "done".into())]);
}

#[test]
fn stamps_never_go_back() {
    let mut bench = Bench::leading();
    let (job, first, _) = preparing(&bench.call(1, "a", "{}"));
    let batch = proposed(&bench.prepared(job, 4))[0].0;
    bench.step(Event::Applied { batch });
    bench.now.wall_ms -= 500;
    let (_, second, _) = preparing(&bench.call(2, "b", "{}"));
    assert_eq!(second.now_ms, first.now_ms);
    assert_ne!(second.seed, first.seed);
    let mut bench = Bench::new(LaneSettings::default());
    bench.step(Event::LeaderGained {
        term: 3,
        revision: Revision(1),
        stamp_ms: 5_000_000,
        seed: 1,
    });
    let (_, drawn, _) = preparing(&bench.call(1, "a", "{}"));
    assert_eq!(drawn.now_ms, 5_000_000, "not below what is applied");
}

#[test]
fn losing_the_leadership_sorts_calls_by_what_is_known() {
    let mut bench = Bench::leading();
    assert_eq!(
        answers(&Bench::new(LaneSettings::default()).call(1, "a", "{}"))[0].1,
        "NotLeading"
    );
    let (a, ..) = preparing(&bench.call(1, "proposed", "{}"));
    bench.call(2, "filling", "{}");
    bench.call(3, "preparing", "{}");
    bench.call(4, "queued", "{}");
    let effects = bench.prepared(a, 4);
    let batch = proposed(&effects)[0].0;
    let (b, ..) = preparing(&effects);
    let (c, ..) = preparing(&bench.prepared(b, 4));
    let effects = bench.step(Event::LostLeadership);
    let mut told = answers(&effects);
    told.sort();
    assert_eq!(told, [2, 3, 4].map(|t| (t, "NotLeading".to_owned())));
    assert!(effects.iter().any(|e| matches!(e, Effect::DropSpeculation)));
    assert!(bench.prepared(c, 4).is_empty(), "of an earlier leadership");
    let effects = bench.step(Event::Failed {
        batch,
        why: BatchFailure::Unknown,
    });
    assert_eq!(answers(&effects), [(1, "Unknown".into())]);
    bench.lead(2);
    let (_, drawn, overlay) = preparing(&bench.call(5, "queued", "{}"));
    assert_eq!((drawn.revision, overlay), (Revision(11), 0));
}

#[test]
fn a_batch_that_is_not_done_ends_the_term_and_its_calls_may_be_sent_on() {
    let mut bench = Bench::leading();
    let (a, ..) = preparing(&bench.call(1, "a", "{}"));
    bench.call(2, "b", "{}");
    let effects = bench.prepared(a, 4);
    let batch = proposed(&effects)[0].0;
    let effects = bench.step(Event::Failed {
        batch,
        why: BatchFailure::NotDone,
    });
    let mut told = answers(&effects);
    told.sort();
    assert_eq!(told, [1, 2].map(|t| (t, "NotLeading".to_owned())));
    assert_eq!(bench.lane.term(), None);
}

#[test]
fn a_new_term_leaves_old_batches_unknown() {
    let mut bench = Bench::leading();
    let (a, ..) = preparing(&bench.call(1, "a", "{}"));
    let batch = proposed(&bench.prepared(a, 4))[0].0;
    let effects = bench.lead(2);
    assert_eq!(answers(&effects), [(1, "Unknown".into())]);
    assert!(bench.step(Event::Applied { batch }).is_empty());
}

#[test]
fn deadlines_tell_what_is_known() {
    let mut bench = Bench::leading();
    let (job, ..) = preparing(&bench.call(1, "begun", "{}"));
    bench.call(2, "queued", "{}");
    bench.now.mono_ms += 10_000;
    let effects = bench.step(Event::Deadline);
    assert_eq!(
        answers(&effects),
        [
            (1, "timeout Unknown".into()),
            (2, "timeout NotApplied".into()),
        ]
    );
    assert_eq!(bench.lane.queued(), 0, "nobody waits for it");
    assert_eq!(
        proposed(&bench.prepared(job, 4)).len(),
        1,
        "begun work goes on"
    );
    // Joining it still finds the outcome.
    assert!(bench.call(3, "begun", "{}").is_empty());
    let late = bench.step(Event::Arrived {
        ticket: Ticket(4),
        work: mutate("late", "{}"),
        deadline_ms: bench.now.mono_ms,
    });
    assert_eq!(answers(&late), [(4, "timeout NotApplied".into())]);
}

#[test]
fn a_full_queue_refuses_calls_by_name_but_never_the_operator() {
    let mut bench = Bench::new(LaneSettings {
        queue: 2,
        ..LaneSettings::default()
    });
    bench.lead(1);
    for i in 0..3 {
        bench.call(i, &format!("k{i}"), "{}");
    }
    let effects = bench.call(9, "k9", "{}");
    let Effect::Refuse {
        refusal: Refusal::Problem(problem),
        ..
    } = &effects[0]
    else {
        panic!("{effects:?}")
    };
    assert_eq!((problem.status, &problem.code[..]), (429, "overloaded"));
    assert_eq!(problem.setting.as_deref(), Some("FLOWER_LIMIT_QUEUE"));
    assert!(problem.retryable && problem.outcome == Outcome::NotApplied);
    for i in 10..12 {
        assert!(bench.call(i, "k0", "{}").is_empty(), "joins");
    }
    assert_eq!(
        answers(&bench.call(12, "k0", "{}"))[0].1,
        "overloaded NotApplied"
    );
    let mark = bench.step(Event::Arrived {
        ticket: Ticket(13),
        work: Work::Mark(Mark::Formed),
        deadline_ms: 10_000,
    });
    assert!(mark.is_empty());
    assert_eq!(bench.lane.queued(), 3);
}

#[test]
fn marks_and_deployments_have_entries_of_their_own_in_order() {
    let mut bench = Bench::leading();
    let (a, ..) = preparing(&bench.call(1, "a", "{}"));
    bench.call(2, "b", "{}");
    bench.step(Event::Arrived {
        ticket: Ticket(3),
        work: Work::Mark(Mark::Formed),
        deadline_ms: 10_000,
    });
    bench.call(4, "c", "{}");
    let effects = bench.prepared(a, 4);
    let first = proposed(&effects)[0].0;
    let (b, ..) = preparing(&effects);
    let (mark, ..) = preparing(&bench.prepared(b, 4));
    let effects = bench.prepared(mark, 4);
    // The batch before the mark is closed, so it need not wait for the flush.
    assert_eq!(proposed(&effects)[0].1.kind, EntryKind::Mutations);
    let (c, _, overlay) = preparing(&effects);
    assert_eq!(overlay, 3);
    let effects = bench.prepared(c, 4);
    let kinds: Vec<_> = proposed(&effects).iter().map(|(_, e)| e.kind).collect();
    assert_eq!(kinds, [EntryKind::Mark]);
    let effects = bench.step(Event::Applied { batch: first });
    assert!(proposed(&effects).is_empty(), "the mark is being flushed");
}

#[test]
fn trims_are_tried_by_the_leader_when_something_is_due() {
    let mut bench = Bench::new(LaneSettings::default());
    let wake = |effects: &[Effect]| {
        effects.iter().find_map(|e| match e {
            Effect::WakeAt { mono_ms } => Some(*mono_ms),
            _ => None,
        })
    };
    let gained = Event::LeaderGained {
        term: 1,
        revision: Revision(1),
        stamp_ms: 0,
        seed: 1,
    };
    let effects = bench.lane.step(gained, bench.now);
    assert_eq!(wake(&effects), Some(1_000));
    bench.now.mono_ms = 1_000;
    let effects = bench.step(Event::Deadline);
    let Effect::Prepare { job, work, .. } = &effects[0] else {
        panic!("{effects:?}")
    };
    assert_eq!(
        **work,
        Work::Trim {
            cutoff_ms: 1_000_000,
            limit: 4_096
        }
    );
    // Nothing due yet: no entry, and the next try when the first receipt falls due.
    let trimmed = |next_due_ms| Reply::Trimmed {
        trimmed: 0,
        next_due_ms,
    };
    let outcome = Prepared::Answer(trimmed(Some(1_007_000)));
    let prepared = |job, outcome| Event::Prepared {
        job,
        outcome,
        reads: None,
    };
    let effects = bench.lane.step(prepared(*job, outcome), bench.now);
    assert!(proposed(&effects).is_empty());
    assert_eq!(wake(&effects), Some(8_000));
    bench.now.mono_ms = 8_000;
    let effects = bench.step(Event::Deadline);
    let (job, ..) = preparing(&effects);
    let mut patch = PatchBuilder::new();
    patch.delete(Space::Receipts, &b"k"[..]);
    let outcome = Prepared::Commit {
        patch: Arc::new(patch.seal()),
        reply: trimmed(None),
    };
    let effects = bench.lane.step(prepared(job, outcome), bench.now);
    assert_eq!(proposed(&effects)[0].1.kind, EntryKind::Trim);
    assert_eq!(wake(&effects), Some(68_000));
}

/// A lane that prepares several mutations side by side, and calls for each key.
fn side_by_side(parallel: usize, keys: &[&str]) -> (Bench, Vec<(JobId, usize)>) {
    let mut bench = Bench::new(LaneSettings {
        parallel,
        ..LaneSettings::default()
    });
    bench.lead(1);
    let mut all = Vec::new();
    for (i, key) in (1..).zip(keys) {
        all.extend(preparations(&bench.call(i, key, "{}")));
    }
    (bench, all)
}

fn preparations(effects: &[Effect]) -> Vec<(JobId, usize)> {
    let prepare = |e: &Effect| match e {
        Effect::Prepare { job, overlay, .. } => Some((*job, overlay.len())),
        _ => None,
    };
    effects.iter().filter_map(prepare).collect()
}

/// A patch of one record, and the set of what was read.
fn writes(key: &'static str) -> Prepared {
    let mut patch = PatchBuilder::new();
    patch.put(Space::Data, key.as_bytes(), &b"v"[..]);
    Prepared::Commit {
        patch: Arc::new(patch.seal()),
        reply: reply(),
    }
}

fn reads(keys: &[&str]) -> Option<ReadSet> {
    let mut set = ReadSetBuilder::default();
    for key in keys {
        set.record(Space::Data, key.as_bytes());
    }
    Some(set.finish())
}

#[test]
fn mutations_are_prepared_side_by_side_and_certified_in_order() {
    let (mut bench, all) = side_by_side(3, &["a", "b", "c", "d"]);
    let jobs: Vec<JobId> = all.iter().map(|(job, _)| *job).collect();
    assert_eq!(jobs.len(), 3, "the fourth waits");
    // The third ends first: it must wait for the two before it.
    assert!(bench.ended(jobs[2], writes("z"), reads(&["z"])).is_empty());
    assert!(bench.ended(jobs[1], writes("y"), reads(&["y"])).is_empty());
    let effects = bench.ended(jobs[0], writes("x"), reads(&["x"]));
    let entry = &proposed(&effects)[0].1;
    assert_eq!((entry.patches.len(), entry.revision), (4, Revision(13)));
    assert_eq!(entry.patches[0].writes()[0].key, "x");
    assert_eq!(preparations(&effects).len(), 1, "the fourth begins");
    assert_eq!(bench.lane.conflicts(), 0);
}

#[test]
fn a_mutation_whose_reads_were_written_meanwhile_is_prepared_again() {
    let (mut bench, all) = side_by_side(2, &["a", "b"]);
    let (a, b) = (all[0].0, all[1].0);
    assert!(bench.ended(b, writes("y"), reads(&["x", "y"])).is_empty());
    let effects = bench.ended(a, writes("x"), reads(&["x"]));
    assert_eq!(
        preparations(&effects),
        [(b, 1)],
        "over the patch of the first"
    );
    assert_eq!(bench.lane.conflicts(), 1);
    let batch = proposed(&effects)[0].0;
    let effects = bench.ended(b, writes("y"), reads(&["x", "y"]));
    assert!(preparations(&effects).is_empty(), "the second try holds");
    let effects = bench.step(Event::Applied { batch });
    assert_eq!(answers(&effects), [(1, "done".into())]);
}

#[test]
fn refusals_and_unknown_reads_are_judged_again_after_any_write() {
    let refused = || {
        let problem = Problem::new(409, "fault:sold-out", "Sold out", "none left");
        Prepared::Refuse(Box::new(problem))
    };
    for (outcome, set, again) in [
        (refused(), None, true),
        (refused(), reads(&["x"]), true),
        (refused(), reads(&["y"]), false),
        (writes("y"), None, true),
        // A receipt that was found is there for good.
        (Prepared::Answer(reply()), None, false),
    ] {
        let (mut bench, all) = side_by_side(2, &["a", "b"]);
        bench.ended(all[1].0, outcome.clone(), set);
        let effects = bench.ended(all[0].0, writes("x"), reads(&[]));
        let prepared = preparations(&effects);
        assert_eq!(!prepared.is_empty(), again, "{outcome:?}");
    }
}

#[test]
fn a_deployment_is_prepared_alone() {
    let mut bench = Bench::new(LaneSettings {
        parallel: 4,
        ..LaneSettings::default()
    });
    bench.lead(1);
    let a = preparations(&bench.call(1, "a", "{}"))[0].0;
    let mark = bench.step(Event::Arrived {
        ticket: Ticket(2),
        work: Work::Mark(Mark::Formed),
        deadline_ms: 10_000,
    });
    assert!(preparations(&mark).is_empty(), "a mutation is under way");
    assert!(bench.call(3, "b", "{}").is_empty(), "in order");
    let effects = bench.ended(a, writes("x"), reads(&[]));
    let mark = preparations(&effects);
    assert_eq!(mark.len(), 1, "the mark, and nothing beside it");
    let effects = bench.ended(mark[0].0, writes("m"), None);
    assert_eq!(preparations(&effects).len(), 1);
}

#[test]
fn conflicts_narrow_the_lane_and_calm_widens_it() {
    let (mut bench, all) = side_by_side(4, &["a", "b", "c", "d"]);
    let mut open: Vec<JobId> = all.iter().map(|(job, _)| *job).collect();
    let mut most = open.len();
    assert_eq!(most, 4);
    let mut next = 100;
    // All of them read and write one record.
    for _ in 0..40 {
        let job = open.remove(0);
        let effects = bench.ended(job, writes("hot"), reads(&["hot"]));
        let again = preparations(&effects);
        open.splice(0..0, again.iter().map(|(job, _)| *job));
        for (batch, _) in proposed(&effects) {
            open.extend(
                preparations(&bench.step(Event::Applied { batch }))
                    .iter()
                    .map(|p| p.0),
            );
        }
        open.sort();
        open.dedup();
        next += 1;
        open.extend(
            preparations(&bench.call(next, &format!("k{next}"), "{}"))
                .iter()
                .map(|p| p.0),
        );
        most = open.len();
    }
    assert_eq!(most, 1, "one at a time while they conflict");
}

/// A receipt that is judged and recorded through the lane's overlay.
#[test]
fn receipts_are_seen_through_the_overlay() {
    let mut patch = PatchBuilder::new();
    let Work::Mutate(call) = mutate("k", "{}") else {
        unreachable!("a mutation")
    };
    let Reply::Mutated { receipt, .. } = reply() else {
        unreachable!("a mutation's reply")
    };
    receipt::record(&mut patch, &call.scope, &call.key, &receipt);
    let base = Arc::new(MemoryView::default());
    let view = flower_engine::Overlay::new(base, vec![Arc::new(patch.seal())]);
    let judged = receipt::judge(&view, &call.scope, &call.key, call.fingerprint, 1, 1).unwrap();
    assert_eq!(judged, receipt::Judged::Replay(receipt));
}
