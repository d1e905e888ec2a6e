//! Random changes of a sheet whose cells refer to each other: what is kept up to date is what
//! a fresh evaluation over the same rows comes to, and what is refused leaves nothing.

use std::collections::BTreeMap;

use proptest::{prelude::*, test_runner::TestRunner};

use super::{shapes::SHEET, *};
use crate::view::PatchBuilder;

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&NAMES[..])
}

fn text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        3 => (0..4u8).prop_map(|n| n.to_string()),
        5 => name().prop_map(str::to_owned),
        2 => name().prop_map(|n| format!("?{n}")),
        1 => Just("!x".to_owned()),
    ];
    prop::collection::vec(part, 1..4).prop_map(|parts| parts.join("+"))
}

#[derive(Debug, Clone)]
enum Act {
    Set(Vec<(&'static str, Option<String>)>),
    Keep(Vec<&'static str>),
}

fn act() -> impl Strategy<Value = Act> {
    let set = (name(), prop::option::weighted(0.85, text()));
    prop_oneof![
        4 => prop::collection::vec(set, 1..4).prop_map(Act::Set),
        2 => prop::collection::vec(name(), 1..3).prop_map(Act::Keep),
    ]
}

/// What a query answers for each name: a value, or what is wrong.
fn seen(world: &mut World) -> BTreeMap<&'static str, String> {
    let one = |world: &mut World, name| {
        let args = json!({ "names": [name] }).to_string();
        match world.query_raw("see", &args) {
            Ok(done) => done.result,
            Err(CallError::Refused(error)) if error.code == "internal" => {
                let thrown = world.isolate.thrown().unwrap();
                thrown.lines().next().unwrap().to_owned()
            }
            Err(error) => error.to_string(),
        }
    };
    NAMES
        .iter()
        .map(|name| (*name, one(world, *name)))
        .collect()
}

/// The view with rows and their index entries only.
fn rows_only(view: &MemoryView) -> MemoryView {
    let mut patch = PatchBuilder::new();
    for (space, key, _) in view.entries() {
        let row = key.ends_with(crate::range::ROW_TAIL);
        let entry = space == Space::Index && key.starts_with(b"_\0sheet");
        if !(entry || space == Space::Data && row) {
            patch.delete(space, key.clone());
        }
    }
    let mut rows = view.clone();
    rows.apply(&patch.seal());
    rows
}

#[derive(Debug, Default)]
struct Reached {
    steps: u32,
    refused: u32,
    errors: u32,
    collected: u32,
}

fn run(world: &mut World, fresh: &mut World, acts: &[Act], reached: &mut Reached) {
    for act in acts {
        let before = world.view.clone();
        let cells = world.cells();
        let (name, args) = match act {
            Act::Set(cells) => {
                let cells: serde_json::Map<String, Value> = cells
                    .iter()
                    .map(|(name, text)| ((*name).to_owned(), json!(text)))
                    .collect();
                ("set", Value::Object(cells))
            }
            Act::Keep(names) => ("keep", json!({ "names": names })),
        };
        reached.steps += 1;
        if let Err(error) = world.mutate_raw(name, &args.to_string()) {
            let told = error.to_string();
            let thrown = world.isolate.thrown().is_some();
            assert!(thrown || told.contains("circle"), "{told}");
            assert!(before.entries().eq(world.view.entries()));
            reached.refused += 1;
        }
        reached.collected += u32::from(world.cells() < cells);
        fresh.view = rows_only(&world.view);
        let (kept, made) = (seen(world), seen(fresh));
        reached.errors += kept.values().filter(|v| v.contains("DerivedError")).count() as u32;
        // A circle is told from where one looks.
        for (name, value) in &kept {
            let other = &made[name];
            let circle = value.contains("circle") && other.contains("circle");
            assert!(circle || value == other, "{name}: {value} against {other}");
        }
    }
}

#[test]
fn kept_values_are_what_a_fresh_evaluation_comes_to() {
    let (mut world, mut fresh) = (world(SHEET), world(SHEET));
    let mut reached = Reached::default();
    let mut runner = TestRunner::deterministic();
    for _ in 0..60 {
        let tree = prop::collection::vec(act(), 12)
            .new_tree(&mut runner)
            .unwrap();
        world.view = MemoryView::default();
        let acts = proptest::strategy::ValueTree::current(&tree);
        run(&mut world, &mut fresh, &acts, &mut reached);
    }
    assert!(
        reached.refused > 20 && reached.errors > 100 && reached.collected > 20,
        "{reached:?}"
    );
}
