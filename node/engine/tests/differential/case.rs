//! A case: an application and calls. Plays it on both sides and says where they part.

use std::{ops::AddAssign, sync::Arc};

use flower_engine::{Patch, deploy::Planted, view::MemoryView};
use serde_json::Value;

use crate::{
    app::App,
    reference::{Called, Reference},
    rng::Rng,
    steps::{self, Step},
    stored,
    world::{Played, World},
};

/// Calls of one case.
const STEPS: u64 = 40;

/// See the module's comment.
#[derive(Debug, Clone)]
pub struct Case {
    pub app: App,
    pub steps: Vec<Step>,
    /// A fault in the engine that the case must find.
    pub planted: Option<Planted>,
}

/// How many calls did what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub steps: u64,
    pub diamonds: u64,
    pub collections: u64,
    pub errors_halfway: u64,
    pub cycles: u64,
    pub spanning_windows: u64,
    pub rejections: u64,
    pub faults: u64,
    /// Prepared over an older state, and still as they are over the newer one.
    pub certified: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, more: Self) {
        self.steps += more.steps;
        self.diamonds += more.diamonds;
        self.collections += more.collections;
        self.errors_halfway += more.errors_halfway;
        self.cycles += more.cycles;
        self.spanning_windows += more.spanning_windows;
        self.rejections += more.rejections;
        self.faults += more.faults;
        self.certified += more.certified;
    }
}

impl Tally {
    /// What a whole run must have met so and so often.
    pub fn shapes(&self) -> [(&'static str, u64); 8] {
        [
            ("diamond", self.diamonds),
            ("collection", self.collections),
            ("error halfway", self.errors_halfway),
            ("cycle", self.cycles),
            ("spanning window", self.spanning_windows),
            ("rejection", self.rejections),
            ("fault after writes", self.faults),
            ("certified", self.certified),
        ]
    }

    fn count(&mut self, called: &Called) {
        let seen = called.seen;
        let refused = |code: &str| called.refusals.iter().any(|c| c == code);
        self.steps += 1;
        self.diamonds += u64::from(seen.diamond > 0);
        self.collections += u64::from(seen.collected > 0);
        self.errors_halfway += u64::from(seen.halfway > 0);
        self.spanning_windows += u64::from(seen.spanning > 0);
        self.cycles += u64::from(refused("derived-cycle"));
        self.rejections += u64::from(refused("derived-rejected"));
        self.faults += u64::from(called.answer.get("fault").is_some());
    }
}

impl Case {
    /// The case of a seed.
    pub fn random(seed: u64, planted: Option<Planted>) -> Self {
        let mut rng = Rng::new(seed);
        let app = App::random(&mut rng);
        let steps = steps::random(&mut rng, &app, STEPS);
        Self {
            app,
            steps,
            planted,
        }
    }

    /// Plays it. The engine plays it twice, once with isolates that are replaced often: the
    /// patches must have the same bytes. And each call is also prepared over the state before
    /// the last mutation: when it read nothing that this one wrote, it must come to the same.
    pub fn play(&self) -> Result<Tally, String> {
        let bundle = self.app.text();
        let reference = Reference::new(&bundle);
        let mut reused = World::new(&bundle, self.planted, u32::MAX)?;
        let mut fresh = World::new(&bundle, self.planted, 9)?;
        let mut last: Option<(Arc<MemoryView>, Patch)> = None;
        let mut tally = Tally::default();
        for step in &self.steps {
            let here = |why: String| format!("at revision {}: {why}", step.revision);
            let (kind, name) = match step.query {
                true => ("query", "ask"),
                false => ("mutation", "step"),
            };
            let (now, revision) = (1_000 + step.revision, step.revision);
            let expected = reference.call(kind, name, &step.args(), now, revision);
            tally.count(&expected);
            let before = Arc::clone(&reused.view);
            let found = reused.play(step).map_err(here)?;
            let early = match last.take() {
                Some((view, patch)) => {
                    let early = reused.evaluate(step, view).map_err(here)?;
                    let holds = early.reads.as_ref().is_some_and(|r| !r.touched_by(&patch));
                    holds.then_some(early)
                }
                None => None,
            };
            let again = fresh.play(step).map_err(here)?;
            same_answer(&expected, &found).map_err(here)?;
            same_played(&found, &again, "a fresh isolate").map_err(here)?;
            if let Some(early) = early {
                same_played(&found, &early, "one prepared earlier and certified").map_err(here)?;
                tally.certified += 1;
            }
            if let Some(patch) = found.patch {
                same_state(&self.app, &reference, &reused).map_err(here)?;
                last = Some((before, patch));
            }
        }
        Ok(tally)
    }
}

/// What is stored is what the reference holds, and fits together.
pub fn same_state(app: &App, reference: &Reference, world: &World) -> Result<(), String> {
    let (found, wrong) = stored::dump(app, &world.view, world.deployed);
    let mut expected = reference.dump();
    without_empty(&mut expected);
    if let Some(why) = difference("", &expected, &found) {
        return Err(why);
    }
    match wrong.into_iter().chain(world.check()).next() {
        Some(first) => Err(first),
        None => Ok(()),
    }
}

/// Drops empty lists: an index without entries leaves nothing in the store.
fn without_empty(dump: &mut Value) {
    for part in ["rows", "indexes", "values"] {
        if let Some(lists) = dump[part].as_object_mut() {
            lists.retain(|_, list| list.as_array().is_none_or(|list| !list.is_empty()));
        }
    }
}

fn same_played(found: &Played, other: &Played, which: &str) -> Result<(), String> {
    if let Some(why) = difference("", &found.answer, &other.answer) {
        return Err(format!("{which} answers something else {why}"));
    }
    match found.patch == other.patch {
        true => Ok(()),
        false => Err(format!("{which} writes something else")),
    }
}

/// Both sides answer a call alike.
pub fn same_answer(expected: &Called, found: &Played) -> Result<(), String> {
    let refused = expected.answer.get("refused").is_some();
    let same = match found.answer.get("refused").and_then(Value::as_str) {
        // Several refusals may apply; which one is met first is not promised.
        Some(code) => refused && expected.refusals.iter().any(|c| c == code),
        None => expected.answer == found.answer,
    };
    match same {
        true => Ok(()),
        false => Err(difference("", &expected.answer, &found.answer).unwrap_or_default()),
    }
}

/// Where two values part, for people.
fn difference(at: &str, expected: &Value, found: &Value) -> Option<String> {
    // As texts: the order of fields counts.
    let texts = (expected.to_string(), found.to_string());
    if texts.0 == texts.1 {
        return None;
    }
    let parts = match (expected, found) {
        (Value::Array(e), Value::Array(f)) if e.len() == f.len() => {
            let pairs = e.iter().zip(f).enumerate();
            let mut told = pairs.map(|(i, (e, f))| difference(&format!("{at}/{i}"), e, f));
            told.find_map(|part| part)
        }
        (Value::Object(e), Value::Object(f)) if e.keys().eq(f.keys()) => {
            let mut told = e
                .iter()
                .map(|(k, e)| difference(&format!("{at}/{k}"), e, &f[k]));
            told.find_map(|part| part)
        }
        _ => None,
    };
    let whole = || format!("{at}: the reference has\n  {expected}\nthe engine\n  {found}");
    Some(parts.unwrap_or_else(whole))
}
