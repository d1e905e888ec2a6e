//! Shapes of graphs: chains, diamonds, cells that appear and vanish, windows, own writes,
//! keys of several fields.

use super::*;

/// A sheet: cells refer to cells by name.
pub(super) const SHEET: &str = "
import { derived, mutation, query, t, table } from '@flower/sdk';
table('sheet', { name: t.text(), text: t.text() }, { indexes: { byName: ['name'] } });
const value = derived('value', { name: t.text() }, t.number().optional(), (db, { name }, get) => {
  const cell = db.sheet.byName.range({ name }).first();
  if (cell === null) return undefined;
  let sum = 0;
  for (const part of cell.text.split('+')) {
    if (part.startsWith('!')) throw new Error(part);
    sum += part.startsWith('?') ? tried(get, part.slice(1))
      : part === '' || !isNaN(part) ? Number(part) : get(value, { name: part }) ?? 0;
  }
  return sum;
}, { materialize: 'always', index: 'byValue' });
const tried = (get, name) => { try { return get(value, { name }) ?? 0 } catch { return -1 } };
export const set = mutation({}, (tx, cells) => {
  for (const name of Object.keys(cells)) {
    const row = tx.sheet.byName.range({ name }).first();
    if (cells[name] === null) row && tx.sheet.delete(row.id);
    else if (row === null) tx.sheet.insert({ name, text: cells[name] });
    else tx.sheet.patch(row.id, { text: cells[name] });
  }
});
export const keep = mutation({}, (tx, { names }) => names.map((name) => tx.get(value, { name })));
export const see = query({}, (db, { names }) => names.map((name) => db.get(value, { name })));
export const rank = query({}, (db) => db.value.byValue.range().all().map((r) => r.name));
";

fn sheet(cells: Value) -> World {
    let mut world = world(SHEET);
    world.mutate("set", cells);
    world
}

fn see(world: &mut World, names: Value) -> Value {
    world.query("see", json!({ "names": names }))
}

#[test]
fn a_diamond_is_evaluated_once_a_cell() {
    let mut world = sheet(json!({"a": "1", "b": "a+10", "c": "a+100", "d": "b+c"}));
    assert_eq!(world.mutate("keep", json!({"names": ["d"]})), json!([112]));
    assert_eq!(world.cells(), 4);
    let cost = world.cost("set", json!({"a": "2"}));
    assert_eq!(cost.cells, 4);
    let seen = see(&mut world, json!(["a", "b", "c", "d"]));
    assert_eq!(seen, json!([2, 12, 102, 114]));
    // Written as another text with the same value: nothing above a is touched.
    assert_eq!(world.cost("set", json!({"a": "1+1"})).cells, 1);
    let ranked = world.query("rank", json!({}));
    assert_eq!(ranked, json!(["a", "b", "c", "d"]));
}

#[test]
fn cells_appear_and_vanish_with_what_reads_them() {
    let mut world = sheet(json!({"a": "1", "b": "a", "c": "b", "d": "1"}));
    world.mutate("keep", json!({"names": ["c"]}));
    assert_eq!(world.cells(), 3);
    world.mutate("set", json!({"c": "d"}));
    assert_eq!(world.cells(), 2, "b and a have no reader");
    world.mutate("set", json!({"c": "d+x"}));
    assert_eq!(world.cells(), 3, "a cell without a row is a cell");
    assert_eq!(see(&mut world, json!(["x", "c"])), json!([null, 1]));
    world.mutate("set", json!({"x": "5"}));
    assert_eq!(see(&mut world, json!(["x", "c"])), json!([5, 6]));
    world.mutate("set", json!({"c": null}));
    assert_eq!(world.cells(), 0, "what it reads is gone");
    assert_eq!(world.count(Space::Readers), 0);
    assert_eq!(world.query("rank", json!({})), json!([]));
}

#[test]
fn long_chains_need_no_deep_stack() {
    let mut cells = json!({"c0": "1"});
    for n in 1..128 {
        cells[format!("c{n}")] = json!(format!("c{}+1", n - 1));
    }
    let mut world = sheet(cells);
    assert_eq!(see(&mut world, json!(["c127"])), json!([128]));
    let kept = world.mutate("keep", json!({"names": ["c127"]}));
    assert_eq!(kept, json!([128]));
    assert_eq!(world.cells(), 128);
    let cost = world.cost("set", json!({"c0": "2"}));
    assert_eq!(cost.cells, 128);
    assert_eq!(see(&mut world, json!(["c127"])), json!([129]));
}

#[test]
fn a_path_that_is_too_long_is_refused_with_its_cells() {
    let mut cells = json!({"c0": "1"});
    for n in 1..130 {
        cells[format!("c{n}")] = json!(format!("c{}", n - 1));
    }
    let mut world = sheet(cells);
    let refused = |world: &mut World, name: &str, args: Value| {
        let result = match name {
            "see" => world.query_raw(name, &args.to_string()),
            _ => world.mutate_raw(name, &args.to_string()),
        };
        let error = problem(result);
        assert_eq!((error.status, error.code.as_str()), (409, "derived-depth"));
        error.detail
    };
    let detail = refused(&mut world, "keep", json!({"names": ["c128"]}));
    let path = detail.split(": ").nth(1).unwrap();
    assert!(path.starts_with("value({\"name\":\"c128\"}"), "{detail}");
    assert!(detail.contains("… 117 more …"), "{detail}");
    assert!(detail.ends_with("value({\"name\":\"c0\"})"), "{detail}");
    refused(&mut world, "see", json!({"names": ["c129"]}));
    // Grown from below, without evaluating what is above.
    world.mutate("keep", json!({"names": ["c127"]}));
    let detail = refused(&mut world, "set", json!({"c0": "z"}));
    assert!(detail.ends_with("value({\"name\":\"z\"})"), "{detail}");
}

#[test]
fn a_circle_is_refused_with_its_cells() {
    let mut world = sheet(json!({"a": "1", "b": "a", "c": "b"}));
    world.mutate("keep", json!({"names": ["c"]}));
    for cells in [
        json!({"a": "c"}),
        json!({"a": "?c"}),
        json!({"a": "a"}),
        json!({"b": "x", "x": "c"}),
    ] {
        let error = world.fails("set", cells.clone());
        let told = (error.status, error.code.as_str());
        assert_eq!(told, (409, "derived-cycle"), "{cells}");
        let path = error.detail.split(": ").nth(1).unwrap();
        let path: Vec<&str> = path.split(" → ").collect();
        assert_eq!(path.first(), path.last(), "{}", error.detail);
    }
    // Turned around: a circle only for who looks at the old references.
    world.mutate("set", json!({"a": "c", "b": "a", "c": "1"}));
    let kept = world.mutate("keep", json!({"names": ["b"]}));
    assert_eq!(kept, json!([1]));
    assert_eq!(see(&mut world, json!(["a", "b", "c"])), json!([1, 1, 1]));
    let mut world = sheet(json!({"a": "b", "b": "a"}));
    let error = world.query_fails("see", json!({"names": ["a"]}));
    assert_eq!(error.code, "derived-cycle");
    let path = "value({\"name\":\"a\"}) → value({\"name\":\"b\"}) → value({\"name\":\"a\"})";
    assert!(error.detail.ends_with(path), "{}", error.detail);
}

#[test]
fn heights_follow_edges_up_without_evaluating() {
    let mut world = sheet(json!({"a": "0", "b": "a", "c": "b", "x": "y", "y": "0"}));
    world.mutate("keep", json!({"names": ["c"]}));
    // The value of a stays, only what it reads changes: the world checks the heights.
    assert_eq!(world.cost("set", json!({"a": "x"})).cells, 3);
    assert_eq!(world.cost("set", json!({"a": "0"})).cells, 1);
}

#[test]
fn errors_are_values_that_are_thrown() {
    let mut world = sheet(json!({"a": "!no", "b": "a+1", "c": "b", "d": "?b+5"}));
    world.mutate("keep", json!({"names": ["d"]}));
    assert_eq!(see(&mut world, json!(["d"])), json!([4]));
    let error = world.query_fails("see", json!({"names": ["c"]}));
    let expected = "DerivedError: value({\"name\":\"a\"}): !no\n";
    assert!(error.detail.starts_with(expected), "{}", error.detail);
    let ranked = world.query("rank", json!({}));
    assert_eq!(ranked, json!(["d"]), "errors are not ranked");
    world.mutate("set", json!({"a": "7"}));
    assert_eq!(see(&mut world, json!(["c", "d"])), json!([8, 13]));
    // Halfway through a propagation.
    world.mutate("set", json!({"b": "a+!late"}));
    assert_eq!(see(&mut world, json!(["a", "d"])), json!([7, 4]));
    let error = world.query_fails("see", json!({"names": ["c"]}));
    let expected = "value({\"name\":\"b\"}): !late";
    assert!(error.detail.contains(expected), "{}", error.detail);
}

const WINDOWS: &str = "
import { derived, mutation, query, t, table } from '@flower/sdk';
table('visits', { shop: t.text(), day: t.int(), paid: t.bool() },
  { indexes: { byShop: ['shop', 'day'], byPaid: ['paid'] } });
const week = derived('week', { shop: t.text(), from: t.int() }, t.int(),
  (db, { shop, from }) => db.visits.byShop.range({ shop, day: { gte: from, lt: from + 7 } }).count(),
  { materialize: 'always' });
const last = derived('last', { shop: t.text() }, t.int().optional(),
  (db, { shop }) => db.visits.byShop.range({ shop }).desc().first()?.day, { materialize: 'always' });
const late = derived('late', { from: t.text(), paid: t.bool() }, t.record({ n: t.int(), p: t.int() }),
  (db, { from, paid }) => ({ n: db.visits.byShop.range({ shop: { gte: from } }).count(),
    p: db.visits.byPaid.range({ paid }).count() }), { materialize: 'always' });
export const keep = mutation({}, (tx) => {
  tx.get(week, { shop: 'a', from: 0 });
  tx.get(week, { from: 7, shop: 'a' });
  tx.get(last, { shop: 'a' });
  tx.get(late, { from: 'm', paid: true });
});
export const visit = mutation({}, (tx, { shop, day, paid = false }) => tx.visits.insert({ shop, day, paid }));
export const move = mutation({}, (tx, { id, day }) => tx.visits.patch(id, { day }));
export const see = query({}, (db) => [db.get(week, { shop: 'a', from: 0 }),
  db.get(week, { shop: 'a', from: 7 }), db.get(last, { shop: 'a' }) ?? null,
  db.get(late, { from: 'm', paid: true }).n, db.get(late, { from: 'm', paid: true }).p]);
";

#[test]
fn windows_are_made_anew_only_by_what_lies_in_them() {
    let mut world = world(WINDOWS);
    let visit = |world: &mut World, shop: &str, day: i64| {
        let args = json!({"shop": shop, "day": day}).to_string();
        let done = world.mutate_raw("visit", &args).unwrap();
        let id: Value = serde_json::from_str(&done.result).unwrap();
        (done.cost, id)
    };
    visit(&mut world, "a", 3);
    world.mutate("keep", json!({}));
    assert_eq!(world.query("see", json!({})), json!([1, 0, 3, 0, 0]));
    let cells = visit(&mut world, "a", 4).0.cells;
    assert_eq!(cells, 2, "the week and the last");
    let cells = visit(&mut world, "a", 2).0.cells;
    assert_eq!(cells, 1, "before the last: the week only");
    assert_eq!(visit(&mut world, "b", 3).0.cells, 0);
    let (cost, id) = visit(&mut world, "a", 9);
    assert_eq!(cost.cells, 2);
    assert_eq!(cost.spans, 1, "the window over shops is looked at");
    assert_eq!(world.query("see", json!({})), json!([3, 1, 9, 0, 0]));
    let cost = world.cost("move", json!({"id": id, "day": 5}));
    assert_eq!(cost.cells, 3);
    assert_eq!(cost.spans, 1, "once, though an entry went and another came");
    assert_eq!(world.query("see", json!({})), json!([4, 0, 5, 0, 0]));
    assert_eq!(visit(&mut world, "z", 1).0.cells, 1);
    world.mutate("visit", json!({"shop": "b", "day": 1, "paid": true}));
    assert_eq!(world.query("see", json!({})), json!([4, 0, 5, 1, 1]));
}

#[test]
fn a_query_on_demand_reads_rows_and_stores_nothing() {
    let mut world = sheet(json!({"a": "1", "b": "a"}));
    let args = json!({"names": ["b", "b"]}).to_string();
    let row = |world: &World| {
        let mut entries = world.view.entries();
        let found = entries.find(|(s, ..)| *s == Space::Data);
        found.map(|(_, key, _)| key.clone()).unwrap()
    };
    let done = world.query_raw("see", &args).unwrap();
    assert_eq!(done.cost.cells, 2, "each once");
    assert!(done.reads.touched_by_key(Space::Data, &row(&world)));
    world.mutate("keep", json!({"names": ["b"]}));
    let done = world.query_raw("see", &args).unwrap();
    assert_eq!(done.cost.cells, 0, "read from its record");
    assert!(!done.reads.touched_by_key(Space::Data, &row(&world)));
}

const NOTES: &str = "
import { derived, mutation, query, t, table } from '@flower/sdk';
table('notes', { room: t.int() }, { indexes: { byRoom: ['room'] } });
const size = derived('size', { room: t.int() }, t.int(),
  (db, key) => db.notes.byRoom.range(key).count(), { materialize: 'always', index: 'byValue' });
export const ask = mutation({}, (tx, { room }) => tx.get(size, { room }));
export const add = mutation({}, (tx, { room }) => tx.notes.insert({ room }));
const clear = (tx, room) => {
  for (const { id } of tx.notes.byRoom.range({ room })) tx.notes.delete(id);
};
export const drop = mutation({}, (tx, { room }) => clear(tx, room));
export const flicker = mutation({}, (tx, { room }) => {
  tx.notes.insert({ room });
  const seen = tx.size.byValue.range().count();
  clear(tx, room);
  return seen;
});
export const renew = mutation({}, (tx, { room }) => {
  clear(tx, room);
  const seen = tx.size.byValue.range({ value: 0 }).count();
  tx.notes.insert({ room });
  return seen;
});
";

/// What counts is what was there before a call and what is after it.
#[test]
fn what_comes_and_goes_within_a_call_ends_no_root() {
    let mut world = world(NOTES);
    let room = json!({"room": 1});
    assert_eq!(world.mutate("ask", room.clone()), 0);
    assert_eq!(world.count(Space::Cells), 1, "kept from its first read on");
    assert_eq!(world.mutate("flicker", room.clone()), 1);
    assert_eq!(world.count(Space::Cells), 1, "nothing was there before");
    world.mutate("add", room.clone());
    assert_eq!(world.mutate("renew", room.clone()), 1);
    assert_eq!(world.count(Space::Cells), 1, "something is there again");
    world.mutate("drop", room.clone());
    assert_eq!(world.count(Space::Cells), 0);
    assert_eq!(world.count(Space::Readers), 0);
    world.mutate("flicker", room);
    assert_eq!(world.count(Space::Cells), 0);
}

const LOOSE: &str = "
import { derived, mutation, query, t, table } from '@flower/sdk';
table('ends', { name: t.text(), on: t.text() }, { indexes: { byName: ['name'] } });
table('tops', { on: t.text().optional() });
const end = derived('end', { name: t.text() }, t.int(), (db, { name }, get) => {
  const found = db.ends.byName.range({ name }).first();
  return found ? 1 + get(end, { name: found.on }) : 0;
});
const top = derived('top', { id: t.id('tops') }, t.int(), (db, { id }, get) => {
  const { on } = db.tops.get(id);
  return on === undefined ? -1 : get(end, { name: on });
}, { materialize: { each: 'tops' } });
export const add = mutation({}, (tx, { name, on }) => tx.ends.insert({ name, on }));
export const watch = mutation({}, (tx, { on }) => tx.tops.insert({ on }));
export const close = mutation({}, (tx, { id, on, leave }) => {
  for (const row of tx.ends.byName.range({ name: on })) tx.ends.patch(row.id, { on: 'a' });
  if (leave === 'row') tx.tops.delete(id);
  if (leave === 'value') tx.tops.patch(id, { on: undefined });
});
";

/// Cells on a circle that lose their last reader in the same mutation are gone, not refused.
#[test]
fn a_circle_that_nobody_reads_in_the_end_refuses_nothing() {
    for leave in ["row", "value", "nothing"] {
        let mut world = world(LOOSE);
        world.mutate("add", json!({"name": "a", "on": "b"}));
        world.mutate("add", json!({"name": "b", "on": "c"}));
        let id = world.mutate("watch", json!({"on": "a"}));
        assert_eq!(world.count(Space::Cells), 3);
        let args = json!({"id": id, "on": "b", "leave": leave});
        if leave == "nothing" {
            let refused = world.fails("close", args);
            assert_eq!(refused.code, "derived-cycle");
            continue;
        }
        world.mutate("close", args);
        assert_eq!(world.count(Space::Cells), 0);
    }
}
