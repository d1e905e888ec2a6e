//! Cases with a deployment in the middle: calls, then another application over the same rows,
//! built in small pages between further calls, then calls of that one. Whatever the pages and the
//! calls between them were, what is built is what the reference computes from the rows, and what
//! one build makes at once.

use std::ops::AddAssign;

use flower_engine::deploy::PageEnd;
use serde_json::Value;

use crate::{
    app::{App, Kept},
    case::{same_answer, same_state},
    reference::Reference,
    rng::Rng,
    steps::{self, Step},
    world::World,
};

/// Calls before, while it is built, and after.
const CALLS: [u64; 3] = [12, 12, 8];
/// Between the revisions of two calls: pages have some of their own.
const APART: u64 = 1_000;

/// How many deployments did what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Built in more than one page, with mutations between them.
    pub staged: u64,
    pub failed: u64,
    pub indexes: u64,
    pub roots: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, more: Self) {
        self.staged += more.staged;
        self.failed += more.failed;
        self.indexes += more.indexes;
        self.roots += more.roots;
    }
}

impl Tally {
    /// What a whole run must have met so and so often.
    pub fn shapes(&self) -> [(&'static str, u64); 1] {
        [("staged build", self.staged)]
    }
}

/// Calls of one application, from a number on.
fn calls(rng: &mut Rng, app: &App, count: u64, from: u64) -> Vec<Step> {
    let mut calls = steps::random(rng, app, count);
    for call in &mut calls {
        call.revision = (from + call.revision) * APART;
    }
    calls
}

/// Plays a call on both sides; answers whether something was written.
fn both(reference: &Reference, world: &mut World, step: &Step) -> Result<bool, String> {
    let (kind, name) = match step.query {
        true => ("query", "ask"),
        false => ("mutation", "step"),
    };
    let (now, revision) = (1_000 + step.revision, step.revision);
    let expected = reference.call(kind, name, &step.args(), now, revision);
    let here = |why: String| format!("at revision {revision}: {why}");
    let found = world.play(step).map_err(here)?;
    same_answer(&expected, &found).map_err(here)?;
    match world.check().into_iter().next() {
        Some(why) => Err(here(why)),
        None => Ok(found.patch.is_some()),
    }
}

/// The roots that the next application takes over: of `always` values of both, with one key.
fn roots(dump: &Value, app: &App, next: &App) -> Vec<Value> {
    let always = |app: &App, name: &str| {
        let at = name[1..].parse().ok();
        let derived = at.and_then(|at: usize| app.derived.get(at));
        derived.is_some_and(|derived| derived.kept == Kept::Always)
    };
    let cells = dump["cells"].as_array().into_iter().flatten();
    let carried = cells.filter(|cell| {
        let name = cell["name"].as_str().unwrap_or_default();
        cell["root"] == true && always(app, name) && always(next, name)
    });
    carried.cloned().collect()
}

/// See the module's comment.
pub fn play(seed: u64) -> Result<Tally, String> {
    let mut rng = Rng::new(seed);
    let app = App::random(&mut rng);
    let next = app.changed(&mut rng);
    let before = Reference::new(&app.text());
    let mut world = World::deployed(&app.text(), 1)?;
    for step in &calls(&mut rng, &app, CALLS[0], 0) {
        if both(&before, &mut world, step)? {
            same_state(&app, &before, &world)?;
        }
    }
    let mut tally = Tally::default();
    tally.indexes += u64::from(
        app.tables
            .iter()
            .zip(&next.tables)
            .any(|(a, b)| a.indexes != b.indexes),
    );
    let mut meanwhile = calls(&mut rng, &app, CALLS[1], CALLS[0]).into_iter();
    let mut revision = CALLS[0] * APART + 1;
    let (mut pages, mut writes) = (0, 0);
    if world.begin(&next.text(), revision)? {
        let end = loop {
            for step in meanwhile.by_ref().take(rng.below(3)) {
                writes += u64::from(both(&before, &mut world, &step)?);
                revision = step.revision;
            }
            (pages, revision) = (pages + 1, revision + 1);
            match world.page(1 + rng.below(4) as u64, revision)? {
                PageEnd::Going => {}
                end => break end,
            }
        };
        if let PageEnd::Failed(why) = end {
            return rightly_failed(&why, &before, &app, &next)
                .map(|()| Tally { failed: 1, ..tally });
        }
    }
    tally.staged += u64::from(pages > 1 && writes > 0);
    let dump = before.dump();
    let carried = roots(&dump, &app, &next);
    tally.roots += u64::from(!carried.is_empty());
    let after = Reference::new(&next.text());
    let loaded = after.load(&dump["rows"], &carried);
    if loaded.answer.get("result").is_none() {
        return Err(format!(
            "the build succeeded; the reference: {:?}",
            loaded.answer
        ));
    }
    world.take_over()?;
    let built = |why: String| format!("after {pages} pages: {why}");
    same_state(&next, &after, &world).map_err(built)?;
    // All at once comes to the same.
    if world.begin(&format!("{}\n// again", next.text()), revision + 1)? {
        while world.page(1_000, revision + 2)? == PageEnd::Going {}
    }
    world.take_over()?;
    same_state(&next, &after, &world).map_err(|why| format!("built at once: {why}"))?;
    for step in &calls(&mut rng, &next, CALLS[2], CALLS[0] + CALLS[1]) {
        if both(&after, &mut world, step)? {
            same_state(&next, &after, &world)?;
        }
    }
    Ok(tally)
}

/// A build fails only where the reference refuses the rows, or has an error in a cell.
fn rightly_failed(why: &str, before: &Reference, app: &App, next: &App) -> Result<(), String> {
    let dump = before.dump();
    let after = Reference::new(&next.text());
    let loaded = after.load(&dump["rows"], &roots(&dump, app, next));
    let cells = after.dump();
    let mut cells = cells["cells"].as_array().into_iter().flatten();
    let failing = cells.any(|cell| cell["outcome"].get("error").is_some());
    match failing || loaded.answer.get("refused").is_some() {
        true => Ok(()),
        false => Err(format!(
            "the build failed, and the reference does not: {why}"
        )),
    }
}
