//! Derived values: what is stored, what is recomputed, what is refused. The world checks the
//! whole graph after every mutation.

mod builds;
mod limits;
mod random;
mod shapes;

use serde_json::{Value, json};

use super::*;
use crate::{key::Space, limits::Cost};

/// Orders with lines, a subtotal that only totals read, and a ranking of totals.
const ORDERS: &str = "
import { derived, mutation, query, t, table } from '@flower/sdk';
const orders = table('orders', { customer: t.text() }, { indexes: { byCustomer: ['customer'] } });
table('lines', { order: t.id('orders'), qty: t.int(), cents: t.int() },
  { indexes: { byOrder: ['order'] } });
const subtotal = derived('subtotal', { order: t.id('orders') }, t.int(),
  (db, key) => db.lines.byOrder.range(key).sum((l) => l.qty * l.cents));
const total = derived('total', { order: t.id('orders') }, t.int(), (db, key, get) => {
  const s = get(subtotal, key);
  return s < 5000 ? s + 490 : s;
}, { materialize: { each: orders }, index: 'byValue' });
const spent = derived('spent', { customer: t.text() }, t.int(), (db, { customer }, get) =>
  db.orders.byCustomer.range({ customer }).sum((o) => get(total, { order: o.id })),
  { materialize: 'always' });
export const place = mutation({}, (tx, { customer, lines }) => {
  const order = tx.orders.insert({ customer });
  for (const cents of lines) tx.lines.insert({ order, qty: 1, cents });
  return order;
});
export const add = mutation({}, (tx, { order, cents }) => {
  tx.lines.insert({ order, qty: 1, cents });
  return [tx.get(total, { order }), tx.total.get({ order })];
});
export const drop = mutation({}, (tx, { order }) => {
  for (const line of tx.lines.byOrder.range({ order })) tx.lines.delete(line.id);
  tx.orders.delete(order);
  return tx.get(total, { order });
});
export const rename = mutation({}, (tx, { order, customer }) => tx.orders.patch(order, { customer }));
export const watch = mutation({}, (tx, { customer }) => tx.get(spent, { customer }));
export const ranking = query({}, (db) =>
  db.total.byValue.range({ value: { gte: 500 } }).desc().all());
export const totalOf = query({}, (db, { order }) => db.get(total, { order }));
export const subtotalOf = query({}, (db, { order }) => db.subtotal.get({ order }));
export const spentBy = query({}, (db, { customer }) => db.spent.get({ customer }));
";

impl World {
    /// The records of a space.
    fn count(&self, space: Space) -> usize {
        self.view.entries().filter(|(s, ..)| *s == space).count()
    }

    /// Stored cells.
    fn cells(&self) -> usize {
        let data = self.view.entries().filter(|(space, key, _)| {
            *space == Space::Data && !key.ends_with(crate::range::ROW_TAIL)
        });
        data.count() + self.count(Space::Cells)
    }

    fn cost(&mut self, name: &str, args: Value) -> Cost {
        self.mutate_raw(name, &args.to_string()).unwrap().cost
    }
}

#[test]
fn cells_follow_the_rows_that_they_read() {
    let mut world = world(ORDERS);
    let a = world.mutate("place", json!({"customer": "ann", "lines": [1000, 2000]}));
    let b = world.mutate("place", json!({"customer": "ann", "lines": [7000]}));
    assert_eq!(world.cells(), 4);
    assert_eq!(world.query("totalOf", json!({"order": a})), 3490);
    assert_eq!(world.query("subtotalOf", json!({"order": a})), 3000);
    let ranked = |world: &mut World| {
        let rows = world.query("ranking", json!({}));
        let rows = rows.as_array().unwrap().iter();
        rows.map(|r| (r["order"].clone(), r["value"].as_i64().unwrap()))
            .collect::<Vec<_>>()
    };
    assert_eq!(ranked(&mut world), [(b.clone(), 7000), (a.clone(), 3490)]);
    assert_eq!(
        world.mutate("add", json!({"order": a, "cents": 9000})),
        json!([12000, 12000])
    );
    assert_eq!(ranked(&mut world), [(a.clone(), 12000), (b.clone(), 7000)]);
    // Its lines are gone, the cell is not stored any more, and still it has a value.
    assert_eq!(world.mutate("drop", json!({"order": a})), 490);
    assert_eq!(ranked(&mut world), [(b, 7000)]);
    assert_eq!(world.cells(), 2);
    assert_eq!(world.query("totalOf", json!({"order": a})), 490);
}

#[test]
fn always_cells_stay_from_their_first_read_until_their_inputs_are_gone() {
    let mut world = world(ORDERS);
    let a = world.mutate("place", json!({"customer": "ann", "lines": [6000]}));
    let b = world.mutate("place", json!({"customer": "bob", "lines": [100]}));
    assert_eq!(world.query("spentBy", json!({"customer": "ann"})), 6000);
    assert_eq!(world.count(Space::Cells), 0, "a query stores nothing");
    assert_eq!(world.mutate("watch", json!({"customer": "ann"})), 6000);
    assert_eq!(world.count(Space::Cells), 1);
    let b = json!({"order": b, "customer": "ann"});
    let cost = world.cost("rename", b.clone());
    assert_eq!(cost.cells, 1, "only the sum is made anew");
    assert_eq!(world.query("spentBy", json!({"customer": "ann"})), 6590);
    world.mutate("drop", json!({"order": a}));
    assert_eq!(world.query("spentBy", json!({"customer": "ann"})), 590);
    world.mutate("drop", json!({"order": b["order"]}));
    assert_eq!(world.count(Space::Cells), 0);
    assert_eq!(world.count(Space::Readers), 0);
    assert_eq!(world.query("spentBy", json!({"customer": "ann"})), 0);
}

#[test]
fn what_does_not_change_goes_no_further() {
    let mut world = world(ORDERS);
    let order = world.mutate("place", json!({"customer": "ann", "lines": [6000]}));
    world.mutate("watch", json!({"customer": "ann"}));
    // A line that costs nothing: the subtotal is made anew, and stays.
    let args = json!({"order": order, "cents": 0}).to_string();
    let done = world.mutate_raw("add", &args).unwrap();
    assert_eq!(done.cost.cells, 1);
    let written = done.patch.unwrap().seal();
    let cells: Vec<_> = written
        .writes()
        .iter()
        .filter(|w| w.space != Space::Index && !w.key.ends_with(crate::range::ROW_TAIL))
        .map(|w| (w.space, w.value.is_some()))
        .collect();
    // The subtotal's cell, which now reads one row more, and the reader record of that row.
    assert_eq!(cells, [(Space::Data, true), (Space::Readers, true)]);
}

#[test]
fn the_cost_of_maintenance_does_not_depend_on_the_rest() {
    let mut world = world(ORDERS);
    let mut costs = Vec::new();
    for n in 0..40 {
        let customer = format!("c{}", n % 20);
        let order = world.mutate("place", json!({"customer": customer, "lines": [100, 200]}));
        if n == 0 || n == 39 {
            let mut cost = world.cost("add", json!({"order": order, "cents": 1}));
            cost.bytes_read = 0;
            cost.gas = 0;
            costs.push(cost);
        }
    }
    assert_eq!(costs[0], costs[1]);
}

#[test]
fn the_same_calls_write_the_same_bytes() {
    let run = || {
        let mut world = world(ORDERS);
        for n in 0..5 {
            let order = world.mutate("place", json!({"customer": "ann", "lines": [n * 1000]}));
            world.mutate("watch", json!({"customer": "ann"}));
            world.mutate("add", json!({"order": order, "cents": 77}));
        }
        world
            .view
            .entries()
            .map(|(s, k, v)| (s, k.clone(), v.clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

#[test]
fn what_a_mutation_undoes_leaves_no_trace() {
    let source = ORDERS.replace(
        "export const add",
        "export const nothing = mutation({}, (tx, { order, customer }) => {
           const extra = tx.orders.insert({ customer });
           tx.lines.insert({ order: extra, qty: 1, cents: 5 });
           const seen = [tx.get(total, { order: extra })];
           for (const l of tx.lines.byOrder.range({ order: extra })) tx.lines.delete(l.id);
           tx.orders.delete(extra);
           const line = tx.lines.insert({ order, qty: 1, cents: 5 });
           seen.push(tx.get(total, { order }), tx.total.byValue.range().count());
           tx.lines.delete(line);
           return seen;
         });
         export const add",
    );
    let mut world = world(&source);
    let order = world.mutate("place", json!({"customer": "ann", "lines": [1]}));
    world.mutate("watch", json!({"customer": "ann"}));
    let args = json!({"order": order, "customer": "ann"}).to_string();
    let done = world.mutate_raw("nothing", &args).unwrap();
    assert_eq!(done.result, "[495,496,1]");
    let patch = done.patch.unwrap().seal();
    let derived = patch
        .writes()
        .iter()
        .filter(|w| w.value.is_some() || matches!(w.space, Space::Cells | Space::Readers));
    assert_eq!(derived.count(), 0, "{patch:?}");
}
