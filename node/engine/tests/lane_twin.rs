//! The lane against a naive twin: random calls, retries, flushes, crashes of leadership and
//! deadlines. The twin applies committed entries one by one and knows nothing of batches,
//! overlays or joining.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use flower_api::Revision;
use flower_engine::{
    Entry, Overlay, PatchBuilder, ReadSet, ReadSetBuilder, Space, View,
    key::meta,
    lane::{
        BatchFailure, BatchId, Drawn, Effect, Event, JobId, Lane, LaneSettings, Mutation, Now,
        Prepared, Refusal, Reply, Ticket, Work,
    },
    receipt::{self, Ended, Fingerprint, Judged, Receipt, Scope},
    view::MemoryView,
};
use proptest::prelude::*;

const RETENTION_MS: u64 = 1_000_000;

/// One thing that the world does.
#[derive(Debug, Clone)]
enum Move {
    /// A call under one of a few keys, adding a number. The key fixes the number, but for
    /// every eighth call, which reuses it for another one.
    Call { key: u8, wrong: bool },
    /// One of the preparations under way ends.
    Prepare { which: usize },
    /// The log flushes its oldest unflushed batch.
    Flush,
    /// The oldest proposed batch is applied.
    Apply,
    /// The leadership ends: so many of the proposed batches survive.
    Lose { survivors: usize, told: bool },
    /// This node leads again.
    Lead,
    /// Time passes.
    Wait { ms: u64 },
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        8 => (0..24u8, 0..8u8).prop_map(|(key, w)| Move::Call { key, wrong: w == 0 }),
        8 => (0..4usize).prop_map(|which| Move::Prepare { which }),
        4 => Just(Move::Flush),
        4 => Just(Move::Apply),
        1 => (0..4usize, any::<bool>()).prop_map(|(survivors, told)| Move::Lose { survivors, told }),
        2 => Just(Move::Lead),
        2 => (1..400u64).prop_map(|ms| Move::Wait { ms }),
    ];
    proptest::collection::vec(one, 1..200)
}
/// A mutation that is being evaluated, and the patches that it sees.
type Preparing = (JobId, Arc<Work>, Drawn, Arc<dyn View>);

struct World {
    lane: Lane,
    now: Now,
    term: u64,
    next_ticket: u64,
    /// Applied state: what the real node keeps in `state.redb`.
    state: Arc<MemoryView>,
    log: VecDeque<(BatchId, Entry, bool)>,
    preparing: Vec<Preparing>,
    open: BTreeSet<Ticket>,
    called: BTreeMap<Ticket, (u8, u64)>,
    /// Keys that somebody was told of as done, with the result.
    acknowledged: BTreeMap<u8, String>,
    last: (u64, u64),
}

fn scope() -> Scope {
    Scope {
        partition: "_".into(),
        subject: "client".into(),
    }
}

/// Numbers are added up in several records, so that some calls conflict and some do not.
const SUMS: u64 = 3;

fn sum_key(of: u64) -> String {
    format!("sum{}", of % SUMS)
}

fn sum(view: &dyn View, of: u64) -> u64 {
    let read = view.get(Space::Data, sum_key(of).as_bytes()).unwrap();
    read.map_or(0, |b| u64::from_be_bytes(b[8..16].try_into().unwrap()))
}

/// The set of what the preparation of this number read.
fn reads(add: u64) -> Option<Arc<ReadSet>> {
    let mut set = ReadSetBuilder::default();
    set.record(Space::Data, sum_key(add).as_bytes());
    Some(Arc::new(set.finish()))
}

/// What the node does for `Prepare`: judge the key, else add the number to the sum. Odd keys
/// write a row of their own size, so that batches fill.
fn prepare(view: &dyn View, work: &Work, drawn: Drawn) -> (Prepared, Option<Arc<ReadSet>>) {
    let Work::Mutate(call) = work else {
        let alone = match work {
            Work::Trim { cutoff_ms, limit } => {
                let trim = receipt::trim(view, *cutoff_ms, *limit).unwrap();
                let reply = Reply::Trimmed {
                    trimmed: trim.trimmed,
                    next_due_ms: trim.next_due_ms,
                };
                let patch = Arc::new(trim.patch.seal());
                Prepared::Commit { patch, reply }
            }
            other => panic!("{other:?}"),
        };
        return (alone, None);
    };
    let (scope, key, print) = (&call.scope, &call.key, call.fingerprint);
    match receipt::judge(view, scope, key, print, drawn.now_ms, RETENTION_MS).unwrap() {
        Judged::Refuse(problem) => (Prepared::Refuse(problem), None),
        Judged::Replay(receipt) => {
            let replay = Reply::Mutated {
                receipt,
                unkept: None,
                replayed: true,
                deployment: None,
            };
            (Prepared::Answer(replay), None)
        }
        Judged::New => {
            let add: u64 = call.args.parse().unwrap();
            let total = sum(view, add) + add;
            let mut patch = PatchBuilder::new();
            let mut value = drawn.revision.0.to_be_bytes().to_vec();
            value.extend_from_slice(&total.to_be_bytes());
            patch.put(Space::Data, sum_key(add), value);
            patch.put(
                Space::Data,
                Bytes::from(format!("done/{key}")),
                vec![0; 8 + (add as usize % 2) * 400],
            );
            let receipt = Receipt {
                revision: drawn.revision,
                mutation: call.name.clone(),
                fingerprint: print,
                ended: Ended::Result(total.to_string()),
                created_ms: drawn.now_ms,
                until_ms: receipt::until_ms(key, drawn.now_ms, RETENTION_MS),
            };
            receipt::record(&mut patch, scope, key, &receipt);
            let commit = Prepared::Commit {
                patch: Arc::new(patch.seal()),
                reply: Reply::Mutated {
                    receipt,
                    unkept: None,
                    replayed: false,
                    deployment: None,
                },
            };
            (commit, reads(add))
        }
    }
}

impl World {
    fn new() -> Self {
        Self {
            lane: Lane::new(LaneSettings {
                queue: 8,
                parallel: 3,
                batch_bytes: 1_500,
                unacknowledged: 2,
                trim_every_ms: (200, 2_000),
                trim_limit: 3,
            }),
            now: Now {
                mono_ms: 0,
                wall_ms: 10_000,
            },
            term: 0,
            next_ticket: 0,
            state: Arc::default(),
            log: VecDeque::new(),
            preparing: Vec::new(),
            open: BTreeSet::new(),
            called: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            last: (0, 0),
        }
    }

    fn step(&mut self, event: Event) {
        for effect in self.lane.step(event, self.now) {
            match effect {
                Effect::Prepare {
                    job,
                    work,
                    drawn,
                    overlay,
                } => {
                    assert!(self.preparing.len() < 3, "side by side");
                    assert!(self.preparing.iter().all(|(other, ..)| *other != job));
                    let view = Overlay::new(self.state.clone(), overlay);
                    self.preparing.push((job, work, drawn, Arc::new(view)));
                }
                Effect::Propose { term, batch, entry } => {
                    assert_eq!(term, self.term);
                    self.log.push_back((batch, entry, false));
                    assert!(self.log.len() <= 2, "unacknowledged");
                }
                Effect::Reply { ticket, reply } => self.replied(ticket, reply),
                Effect::Refuse { ticket, refusal } => self.refused(ticket, refusal),
                Effect::WakeAt { mono_ms } => assert!(mono_ms > self.now.mono_ms),
                Effect::DropSpeculation => self.preparing.clear(),
            }
        }
    }

    fn replied(&mut self, ticket: Ticket, reply: Reply) {
        assert!(self.open.remove(&ticket), "answered once");
        let Reply::Mutated { receipt, .. } = reply else {
            panic!("{reply:?}")
        };
        let (key, _) = self.called[&ticket];
        let Ended::Result(result) = receipt.ended.clone() else {
            panic!("{receipt:?}")
        };
        let name = format!("k{key}").parse().unwrap();
        let stored = receipt::find(&*self.state, &scope(), &name).unwrap();
        assert_eq!(stored, Some(receipt), "acknowledged means applied");
        let earlier = self.acknowledged.entry(key).or_insert(result.clone());
        assert_eq!(*earlier, result, "every answer under a key is the same");
    }

    fn refused(&mut self, ticket: Ticket, refusal: Refusal) {
        assert!(self.open.remove(&ticket), "answered once");
        if let Refusal::Problem(p) = refusal {
            assert!(
                ["timeout", "overloaded", "key-reused"].contains(&&p.code[..]),
                "{p}"
            );
        }
    }

    fn apply(&mut self, entry: &Entry) {
        assert!(entry.revision.0 > self.last.0 && entry.stamp_ms >= self.last.1);
        self.last = (entry.revision.0, entry.stamp_ms);
        let state = Arc::make_mut(&mut self.state);
        entry.patches.iter().for_each(|p| state.apply(p));
        let mark = self.state.get(Space::Meta, meta::REVISION).unwrap();
        assert_eq!(&mark.unwrap()[..], self.last.0.to_be_bytes());
    }

    fn do_move(&mut self, it: Move) {
        match it {
            Move::Call { key, wrong } => {
                self.next_ticket += 1;
                let ticket = Ticket(self.next_ticket);
                let add = u64::from(key) + 1 + u64::from(wrong) * 1_000;
                self.open.insert(ticket);
                self.called.insert(ticket, (key, add));
                let args = add.to_string();
                self.step(Event::Arrived {
                    ticket,
                    work: Work::Mutate(Mutation {
                        scope: scope(),
                        key: format!("k{key}").parse().unwrap(),
                        minted: false,
                        name: "add".into(),
                        fingerprint: Fingerprint::of("add", &args).unwrap(),
                        args: args.into(),
                    }),
                    deadline_ms: self.now.mono_ms + 1_000,
                });
            }
            Move::Prepare { which } => {
                if !self.preparing.is_empty() {
                    let which = which % self.preparing.len();
                    let (job, work, drawn, view) = self.preparing.remove(which);
                    let (outcome, reads) = prepare(&*view, &work, drawn);
                    self.step(Event::Prepared {
                        job,
                        outcome,
                        reads,
                    });
                }
            }
            Move::Flush => {
                if let Some((batch, _, flushed)) = self.log.iter_mut().find(|(.., f)| !*f) {
                    *flushed = true;
                    let batch = *batch;
                    self.step(Event::Flushed { batch });
                }
            }
            Move::Apply => {
                if let Some((batch, entry, _)) = self.log.pop_front() {
                    self.apply(&entry);
                    self.step(Event::Applied { batch });
                }
            }
            Move::Lose { survivors, told } => self.lose(survivors, told),
            Move::Lead => {
                if self.lane.term().is_none() {
                    self.lead();
                }
            }
            Move::Wait { ms } => {
                self.now.mono_ms += ms;
                // The wall clock may stand still or go back.
                self.now.wall_ms = self.now.wall_ms + ms / 2 - ms % 7;
                self.step(Event::Deadline);
            }
        }
    }

    /// The first `survivors` of the proposed batches turn out committed, the others lost.
    fn lose(&mut self, survivors: usize, told: bool) {
        if told {
            self.step(Event::LostLeadership);
        }
        for (at, (batch, entry, _)) in std::mem::take(&mut self.log).into_iter().enumerate() {
            if at < survivors {
                self.apply(&entry);
            }
            let why = if at < survivors || at % 2 == 0 {
                BatchFailure::Unknown
            } else {
                BatchFailure::NotDone
            };
            self.step(Event::Failed { batch, why });
        }
        self.preparing.clear();
        self.step(Event::LostLeadership);
        assert_eq!(self.lane.term(), None);
    }

    fn lead(&mut self) {
        self.term += 1;
        self.last.0 = self.last.0.max(1);
        self.step(Event::LeaderGained {
            term: self.term,
            revision: Revision(self.last.0),
            stamp_ms: self.last.1,
            seed: self.term,
        });
    }

    /// Heals the world and runs it dry.
    fn settle(&mut self) {
        if self.lane.term().is_none() {
            self.lead();
        }
        for _ in 0..200 {
            self.do_move(Move::Prepare { which: 0 });
            self.do_move(Move::Flush);
            self.do_move(Move::Apply);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn every_call_is_answered_once_and_every_key_runs_at_most_once(plan in moves()) {
        let mut world = World::new();
        world.lead();
        for it in plan {
            world.do_move(it);
        }
        world.settle();
        prop_assert!(world.open.is_empty(), "unanswered: {:?}", world.open);
        // The twin: each key that ran added its number once, whatever was retried.
        let mut sum_of_done = 0;
        for key in 0..24u8 {
            let name = format!("k{key}").parse().unwrap();
            if let Some(receipt) = receipt::find(&*world.state, &scope(), &name).unwrap() {
                let right = Fingerprint::of("add", &(u64::from(key) + 1).to_string()).unwrap();
                let wrong = receipt.fingerprint != right;
                sum_of_done += u64::from(key) + 1 + u64::from(wrong) * 1_000;
            } else {
                prop_assert!(!world.acknowledged.contains_key(&key), "acknowledged and gone");
            }
        }
        let sums: u64 = (0..SUMS).map(|of| sum(&*world.state, of)).sum();
        prop_assert_eq!(sums, sum_of_done);
    }
}
