//! Tables for the bounds, and a walk against a naive twin: a hub that knows every write ever
//! made and every result at every position.

use flower_engine::{Entry, EntryKind, PatchBuilder, ReadSetBuilder, Space};
use proptest::prelude::*;

use super::*;
use crate::recent::{Ring, Written};

const LIVE: u64 = 0;

fn key(name: &str) -> Key {
    Key {
        name: name.into(),
        args: "{}".into(),
    }
}

fn ask(id: &str, name: &str) -> Ask {
    Ask {
        id: id.into(),
        key: key(name),
        has: None,
    }
}

fn bounds() -> Bounds {
    Bounds {
        watches: 2,
        queries: 3,
        bytes: 3_000,
    }
}

fn written(index: u64, cells: &[u8]) -> Written {
    let mut patch = PatchBuilder::new();
    for cell in cells {
        patch.put(Space::Index, vec![*cell], &b"v"[..]);
    }
    let entry = Entry {
        kind: EntryKind::Mutations,
        revision: Revision(index),
        stamp_ms: 0,
        patches: vec![Arc::new(patch.seal())],
    };
    Written::of(index, &entry)
}

fn outcome(key: &Key, result: &str, cells: &[u8]) -> Arc<Outcome> {
    let mut reads = ReadSetBuilder::default();
    for cell in cells {
        reads.record(Space::Index, &[*cell]);
    }
    Arc::new(Outcome::new(key, Ok(result.into()), Some(reads.finish())))
}

#[test]
fn bounds_are_kept_and_a_refusal_changes_nothing() {
    let mut hub = Hub::new(bounds(), 0, Revision(0));
    let four: Vec<Ask> = ["a", "b", "c", "d"].map(|n| ask(n, n)).to_vec();
    assert_eq!(hub.open(1, &four, Revision(0)), Err(Refused::Queries(3)));
    let twice = [ask("a", "x"), ask("a", "y")];
    assert_eq!(
        hub.open(1, &twice, Revision(0)),
        Err(Refused::Twice("a".into()))
    );
    let long = [ask("a", &"x".repeat(3_000))];
    assert_eq!(hub.open(1, &long, Revision(0)), Err(Refused::Bytes(3_000)));
    assert_eq!((hub.watches(), hub.queries(), hub.bytes()), (0, 0, 0));

    hub.open(1, &four[..3], Revision(0)).unwrap();
    hub.open(2, &four[..2], Revision(0)).unwrap();
    assert_eq!(hub.open(3, &[], Revision(0)), Err(Refused::Watches(2)));
    assert_eq!((hub.queries(), hub.size(1)), (3, Some(3)));
    let bytes = hub.bytes();
    assert_eq!(hub.change(1, &[], &four[3..]), Err(Refused::Queries(3)));
    assert_eq!(
        hub.change(1, &["z".into()], &[]),
        Err(Refused::Unknown("z".into()))
    );
    assert_eq!(hub.change(7, &[], &[]), Err(Refused::Gone));
    assert_eq!(hub.bytes(), bytes);
    // Removed first, so that an id may be given to another query.
    assert_eq!(hub.change(1, &["c".into()], &[ask("c", "d")]), Ok(3));
    assert!(!hub.watched(&key("c")) && hub.watched(&key("d")));

    assert_eq!(hub.close(1), [key("d")]);
    let mut rest = hub.close(2);
    rest.sort();
    assert_eq!(rest, [key("a"), key("b")]);
    assert_eq!((hub.watches(), hub.queries(), hub.bytes()), (0, 0, 0));
    assert!(hub.index.is_empty() && hub.blind.is_empty() && hub.ids.is_empty());
}

#[test]
fn a_query_that_failed_is_tried_again_after_a_while_only() {
    let mut hub = Hub::new(bounds(), 1, Revision(1));
    let mut ring = Ring::new(1 << 20, 1);
    hub.open(1, &[ask("a", "q")], Revision(0)).unwrap();
    let problem = flower_api::wire::Problem::new(500, "budget", "Budget", "too long");
    let failed = Arc::new(Outcome::new(&key("q"), Err(problem), None));
    hub.learn(&key("q"), 1, &failed, &ring, 1_000);
    hub.settle(1, 1, Revision(1), &BTreeMap::from([(key("q"), failed)]));
    assert!(!hub.has_news(1));
    let write = written(2, &[9]);
    ring.note(write.clone());
    assert!(hub.mark(Some(&[write]), 2, Revision(2), 2_000).is_empty());
    assert!(hub.tick(5_999).is_empty() && !hub.has_news(1));
    assert_eq!(hub.tick(6_000), BTreeSet::from([1]));
    assert!(hub.has_news(1));
    // Again, with nothing written since: after twice as long.
    let problem = flower_api::wire::Problem::new(500, "budget", "Budget", "too long");
    let failed = Arc::new(Outcome::new(&key("q"), Err(problem), None));
    hub.learn(&key("q"), 2, &failed, &ring, 6_000);
    hub.settle(1, 2, Revision(2), &BTreeMap::from([(key("q"), failed)]));
    assert!(hub.tick(15_999).is_empty() && !hub.has_news(1));
    assert_eq!(hub.tick(16_000), BTreeSet::from([1]));
    // A result ends it.
    let result = outcome(&key("q"), "1", &[1]);
    hub.learn(&key("q"), 2, &result, &ring, 16_000);
    hub.settle(1, 2, Revision(2), &BTreeMap::from([(key("q"), result)]));
    assert!(hub.tick(1 << 40).is_empty() && !hub.has_news(1));
}

#[test]
fn what_an_application_throws_is_looked_at_again_when_what_it_read_is_written() {
    let mut hub = Hub::new(bounds(), 1, Revision(1));
    let mut ring = Ring::new(1 << 20, 1);
    hub.open(1, &[ask("a", "q")], Revision(0)).unwrap();
    let mut reads = ReadSetBuilder::default();
    reads.record(Space::Index, &[7]);
    let problem = flower_api::wire::Problem::new(500, "internal", "Internal error", "thrown");
    let thrown = Arc::new(Outcome::new(&key("q"), Err(problem), Some(reads.finish())));
    hub.learn(&key("q"), 1, &thrown, &ring, 0);
    hub.settle(1, 1, Revision(1), &BTreeMap::from([(key("q"), thrown)]));
    for (index, cell, news) in [(2, 9, false), (3, 7, true)] {
        let write = written(index, &[cell]);
        ring.note(write.clone());
        let told = hub.mark(Some(&[write]), index, Revision(index), 0);
        assert_eq!((!told.is_empty(), hub.has_news(1)), (news, news), "{index}");
    }
}

#[test]
fn a_result_that_the_client_has_is_not_told_again() {
    let mut hub = Hub::new(bounds(), 5, Revision(5));
    let ring = Ring::new(1 << 20, 5);
    let result = outcome(&key("q"), "1", &[1]);
    let has = Ask {
        has: Some(result.etag),
        ..ask("a", "q")
    };
    hub.open(1, &[has, ask("b", "q")], Revision(3)).unwrap();
    assert!(hub.has_news(1));
    assert_eq!(hub.same(1), None, "nothing is told yet");
    hub.learn(&key("q"), 5, &result, &ring, LIVE);
    let outcomes = BTreeMap::from([(key("q"), result)]);
    let changes = hub.changes(1, &outcomes);
    let told: Vec<&str> = changes.iter().map(|told| &*told.id).collect();
    assert_eq!(told, ["b"]);
    assert_eq!(hub.settle(1, 5, Revision(5), &outcomes), Revision(3));
    assert_eq!(hub.same(1), Some(Revision(5)));
}

#[derive(Debug, Clone)]
enum Move {
    Write(Vec<u8>),
    /// The ring forgets.
    Forget,
    /// A watch makes a step in the state so many entries ago.
    Step(u64, u64),
    /// A call evaluates a query in the state so many entries ago.
    Call(usize, u64),
    /// The cache lets go of what a query has read.
    Evict(usize),
    Add(u64, usize),
    Remove(u64, usize),
    CatchUp,
}

fn moves() -> impl Strategy<Value = Move> {
    let cell = 0u8..5;
    prop_oneof![
        4 => prop::collection::vec(cell, 1..3).prop_map(Move::Write),
        1 => Just(Move::Forget),
        6 => (1u64..3, 0u64..3).prop_map(|(w, ago)| Move::Step(w, ago)),
        2 => (0usize..4, 0u64..4).prop_map(|(q, ago)| Move::Call(q, ago)),
        1 => (0usize..4).prop_map(Move::Evict),
        1 => (1u64..3, 0usize..4).prop_map(|(w, q)| Move::Add(w, q)),
        1 => (1u64..3, 0usize..4).prop_map(|(w, q)| Move::Remove(w, q)),
        4 => Just(Move::CatchUp),
    ]
}

/// What each query reads: its own cell and the next one.
fn cells(query: usize) -> [u8; 2] {
    [query as u8, query as u8 + 1]
}

/// Everything that ever was.
struct Twin {
    history: Vec<Vec<u8>>,
}

impl Twin {
    /// How often each cell of a query was written, up to a position.
    fn result(&self, query: usize, at: u64) -> String {
        let count = |cell| {
            let upto = self.history.iter().take(at as usize);
            upto.flatten().filter(|c| **c == cell).count()
        };
        format!("{:?}", cells(query).map(count))
    }
}

struct Walk {
    hub: Hub,
    ring: Ring,
    twin: Twin,
    /// What each watch's client shows, and as of which position.
    models: BTreeMap<Number, (BTreeMap<Arc<str>, String>, u64)>,
}

impl Walk {
    fn now(&self) -> u64 {
        self.twin.history.len() as u64
    }

    fn catch_up(&mut self) {
        let written = self.ring.since(self.hub.marked());
        let last = self.ring.last();
        let news = self
            .hub
            .mark(written.as_deref(), last, Revision(last), LIVE);
        assert!(news.iter().all(|number| self.hub.has_news(*number)));
    }

    fn evaluate(&mut self, query: usize, at: u64) -> Arc<Outcome> {
        let key = key(&query.to_string());
        let outcome = outcome(&key, &self.twin.result(query, at), &cells(query));
        self.hub.learn(&key, at, &outcome, &self.ring, LIVE);
        outcome
    }

    fn step(&mut self, number: Number, ago: u64) {
        self.catch_up();
        let at = self.now().saturating_sub(ago);
        let (_, from) = self.hub.due(number);
        let last = self.models[&number].1;
        // The node takes a view that shows what changed, and never goes back.
        if at < from || at < last {
            return;
        }
        let (due, _) = self.hub.due(number);
        let mut outcomes = BTreeMap::new();
        for key in due {
            let query = key.name.parse().unwrap();
            outcomes.insert(key, self.evaluate(query, at));
        }
        let changes = self.hub.changes(number, &outcomes);
        self.hub.settle(number, at, Revision(at), &outcomes);
        let (model, as_of) = self.models.get_mut(&number).unwrap();
        for told in changes {
            let json = told.outcome.result.as_ref().unwrap();
            let text = String::from_utf8(json.to_vec()).unwrap();
            assert_ne!(model.get(&told.id), Some(&text), "told twice");
            model.insert(told.id, text);
        }
        *as_of = at;
        for (id, shown) in model {
            let query = id.parse().unwrap();
            assert_eq!(shown, &self.twin.result(query, at), "{id} at {at}");
        }
    }

    fn run(&mut self, one: Move) {
        match one {
            Move::Write(cells) => {
                self.twin.history.push(cells.clone());
                self.ring.note(written(self.now(), &cells));
            }
            Move::Forget => self.ring.reset(self.now()),
            Move::Step(number, ago) => self.step(number.into(), ago),
            Move::Call(query, ago) => {
                let at = self.now().saturating_sub(ago);
                self.evaluate(query, at);
            }
            Move::Evict(query) => self.hub.forget(&key(&query.to_string())),
            Move::Add(number, query) => {
                let id = query.to_string();
                let _ = self.hub.change(number.into(), &[], &[ask(&id, &id)]);
            }
            Move::Remove(number, query) => {
                let id: Arc<str> = query.to_string().into();
                let number = number.into();
                if self
                    .hub
                    .change(number, std::slice::from_ref(&id), &[])
                    .is_ok()
                {
                    let (model, _) = self.models.get_mut(&number).unwrap();
                    model.remove(&id);
                }
            }
            Move::CatchUp => self.catch_up(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]
    /// Whatever the order of writes, steps, evictions and calls: after a step the client shows
    /// every query as it was at the step's position, is told nothing twice, and at the end,
    /// when nothing is due, shows the newest state.
    #[test]
    fn every_step_shows_one_state(moves in prop::collection::vec(moves(), 1..60)) {
        let bounds = Bounds { watches: 2, queries: 4, bytes: 1 << 20 };
        let mut walk = Walk {
            hub: Hub::new(bounds, 0, Revision(0)),
            ring: Ring::new(400, 0),
            twin: Twin { history: Vec::new() },
            models: BTreeMap::from([(1, Default::default()), (2, Default::default())]),
        };
        walk.hub.open(1, &[ask("0", "0"), ask("1", "1")], Revision(0)).unwrap();
        walk.hub.open(2, &[ask("1", "1"), ask("3", "3")], Revision(0)).unwrap();
        for one in moves {
            walk.run(one);
        }
        for number in [1, 2] {
            walk.step(number, 0);
            prop_assert!(!walk.hub.has_news(number));
            let names = walk.hub.size(number).unwrap();
            prop_assert_eq!(walk.models[&number].0.len(), names);
        }
        walk.hub.close(1);
        walk.hub.close(2);
        prop_assert!(walk.hub.index.is_empty() && walk.hub.blind.is_empty());
        prop_assert_eq!(walk.hub.bytes(), 0);
    }
}
