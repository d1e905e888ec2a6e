//! What handlers can do with the database.

use serde_json::{Value, json};

use super::*;

const APP: &str = "
import { mutation, query, t, table } from '@flower/sdk';
table('pets', { owner: t.text(), age: t.int().optional(), tags: t.list(t.text()).optional() },
  { indexes: { byOwner: ['owner', 'age'] } });
export const run = mutation({}, (tx, { code }) => handlers[code](tx));
export const look = query({}, (db, { code }) => handlers[code](db));
const names = (rows) => [...rows].map((r) => `${r.owner}${r.age ?? '-'}`);
const handlers = {
  fill(tx) {
    return ['b', 'a', 'c'].flatMap((owner) =>
      [3, 1, 2, undefined].map((age) => tx.pets.insert({ owner, age })));
  },
  write: (tx) => tx.pets.insert({ owner: 'x' }),
  prefix: (db) => names(db.pets.byOwner.range({ owner: 'a' })),
  range: (db) => names(db.pets.byOwner.range({ owner: 'a', age: { gte: 1, lt: 3 } })),
  present: (db) => names(db.pets.byOwner.range({ owner: 'a', age: { gt: null } })),
  absent: (db) => names(db.pets.byOwner.range({ owner: 'a', age: null })),
  desc: (db) => names(db.pets.byOwner.range({ owner: 'a' }).desc().take(2)),
  first: (db) => names([db.pets.byOwner.range({ owner: 'b' }).first()]),
  none: (db) => db.pets.byOwner.range({ owner: 'zz' }).first(),
  empty: (db) => names(db.pets.byOwner.range({ owner: 'a', age: { gt: 5, lt: 2 } })),
  counts: (db) => [db.pets.count(), db.pets.byOwner.range({ owner: { gt: 'a' } }).count(),
    db.pets.byOwner.range().take(5).count(), db.pets.byOwner.range().take(0).all().length],
  sums: (db) => [db.pets.byOwner.range().sum('age'), db.pets.byOwner.range({ owner: 'a' }).sum((p) => p.age ?? 10),
    db.pets.byOwner.range().desc().take(2).sum('age')],
  frozen(db) {
    const row = db.pets.byOwner.range().first();
    row.age = 5;
  },
  undef: (db) => db.pets.byOwner.range({ owner: undefined }).all(),
  nan: (tx) => tx.pets.insert({ owner: 'x', age: NaN }),
  gap: (db) => db.pets.byOwner.range({ age: 3 }).all(),
  unknown: (db) => db.pets.byOwner.range({ name: 3 }).all(),
  badop: (db) => db.pets.byOwner.range({ owner: { above: 3 } }).all(),
  badtype: (db) => db.pets.byOwner.range({ owner: 3 }).all(),
  missing: (tx) => tx.pets.patch('0000000000000000', { age: 1 }),
  badid: (db) => [db.pets.get(''), db.pets.get('x\\0y'), db.pets.get('no')],
  ids: (db) => {
    const all = db.pets.all().map((p) => p.id);
    return db.pets.range({ id: { gt: all[2], lte: all[5] } }).all().map((p) => all.indexOf(p.id));
  },
  edit(tx) {
    const id = tx.pets.insert({ owner: 'e', age: 1, tags: ['x'] });
    tx.pets.patch(id, { age: undefined, owner: 'f' });
    const one = tx.pets.get(id);
    tx.pets.replace(id, { ...one, age: 9, tags: undefined });
    const two = tx.pets.get(id);
    const gone = [tx.pets.delete(id), tx.pets.delete(id), tx.pets.get(id)];
    return [one.owner, one.age ?? 'absent', one.tags, two, id === two.id, gone,
      tx.pets.byOwner.range({ owner: 'f' }).count()];
  },
  own(tx) {
    const seen = [];
    for (const pet of tx.pets.byOwner.range({ owner: 'own' })) seen.push(pet.age);
    for (let i = 0; i < 3; i++) tx.pets.insert({ owner: 'own', age: i });
    for (const pet of tx.pets.byOwner.range({ owner: 'own' })) {
      seen.push(pet.age);
      if (pet.age === 0) {
        tx.pets.delete(tx.pets.byOwner.range({ owner: 'own', age: 1 }).first().id);
        tx.pets.insert({ owner: 'own', age: 7 });
      }
    }
    return seen;
  },
  badcursor: (db) => db.pets.byOwner.range({ owner: 'a' }).page({ cursor: 'AAAA' }),
  caught: (db) => { try { return handlers.badcursor(db) } catch (e) { return e.name } },
  pages(db) {
    const out = [];
    let cursor;
    do {
      const page = db.pets.byOwner.range({ owner: { gte: 'a', lte: 'b' } }).desc().page({ cursor, size: 3 });
      out.push(names(page.rows).join(' '));
      cursor = page.cursor;
    } while (cursor);
    return out;
  },
  log: () => { console.log('hello', { a: 1 }); console.error(new Error('x')); return 1 },
};
";

fn filled() -> World {
    let mut world = world(APP);
    let ids = world.mutate("run", json!({"code": "fill"}));
    assert_eq!(ids.as_array().unwrap().len(), 12);
    world
}

fn look(world: &mut World, code: &str) -> Value {
    world.query("look", json!({ "code": code }))
}

#[test]
fn ranges_answer_what_they_should() {
    let mut world = filled();
    for (code, expected) in [
        ("prefix", json!(["a-", "a1", "a2", "a3"])),
        ("range", json!(["a1", "a2"])),
        ("present", json!(["a1", "a2", "a3"])),
        ("absent", json!(["a-"])),
        ("desc", json!(["a3", "a2"])),
        ("first", json!(["b-"])),
        ("none", json!(null)),
        ("empty", json!([])),
        ("counts", json!([12, 8, 5, 0])),
        ("sums", json!([18, 16, 5])),
        ("ids", json!([3, 4, 5])),
        ("badid", json!([null, null, null])),
        ("pages", json!(["b3 b2 b1", "b- a3 a2", "a1 a-"])),
        ("caught", json!("RangeError")),
        ("log", json!(1)),
    ] {
        assert_eq!(look(&mut world, code), expected, "{code}");
    }
}

#[test]
fn mistakes_are_told() {
    let mut world = filled();
    for (code, expected) in [
        ("undef", "'owner' is undefined"),
        ("gap", "values for the first fields of owner, age, id"),
        ("unknown", "'name' is not a field here"),
        ("badop", "does not know 'above'"),
        ("badtype", "'owner' must be a text"),
        ("frozen", "TypeError"),
        ("write", "a query cannot write"),
    ] {
        let error = world.query_fails("look", json!({ "code": code }));
        assert_eq!(error.code, "internal");
        assert!(error.detail.contains(expected), "{code}: {}", error.detail);
    }
    for (code, expected) in [("missing", "pets has no row"), ("nan", "'age' is NaN")] {
        let error = world.fails("run", json!({ "code": code }));
        assert!(error.detail.contains(expected), "{code}: {}", error.detail);
    }
    let error = problem(world.query_raw("look", "{\"code\":\"badcursor\"}"));
    assert_eq!((error.status, error.code.as_str()), (400, "invalid-args"));
}

#[test]
fn rows_change_and_iteration_sees_own_writes() {
    let mut world = filled();
    let before = world.view.entries().count();
    let edit = world.mutate("run", json!({"code": "edit"}));
    assert_eq!(edit[0], "f");
    assert_eq!(edit[1], "absent");
    assert_eq!(edit[2], json!(["x"]));
    assert_eq!(edit[3]["age"], 9);
    assert_eq!(edit[3].get("tags"), None);
    assert_eq!(
        [&edit[4], &edit[5], &edit[6]],
        [&json!(true), &json!([true, false, null]), &json!(0)]
    );
    assert_eq!(world.view.entries().count(), before);
    assert_eq!(
        world.mutate("run", json!({"code": "own"})),
        json!([0, 2, 7])
    );
}

#[test]
fn a_count_is_charged_for_its_range() {
    let mut world = filled();
    let done = world.query_raw("look", "{\"code\":\"counts\"}").unwrap();
    assert_eq!(done.cost.rows_read, 12 + 8 + 5);
    assert_eq!(done.cost.ranges, 4);
    assert!(done.patch.is_none());
    let limits = Limits {
        rows_read: 24,
        ..Limits::default()
    };
    let (view, revision) = (world.view, world.revision);
    let mut world = world_with(APP, limits);
    (world.view, world.revision) = (view, revision);
    let error = problem(world.query_raw("look", "{\"code\":\"counts\"}"));
    assert_eq!(error.setting.as_deref(), Some("FLOWER_LIMIT_ROWS_READ"));
}
