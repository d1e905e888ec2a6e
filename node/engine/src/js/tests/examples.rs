//! The examples of the documentation do what their comments say.

use flower_api::manifest::{FieldType, FunctionKind};
use serde_json::{Value, json};

use super::*;

const ORDERS: &str = include_str!("../../../../../docs/examples/orders.js");
const SHEET: &str = include_str!("../../../../../docs/examples/sheet.js");
const COMMENTS: &str = include_str!("../../../../../docs/examples/comments.js");
const COUNTER: &str = include_str!("../../../../../docs/examples/counter.js");

#[test]
fn the_manifest_says_what_is_declared() {
    let manifest = inspect(ORDERS, &Limits::default(), &Deadline::never()).unwrap();
    let tables: Vec<_> = manifest.tables.keys().collect();
    assert_eq!(tables, ["customers", "lines", "orders"]);
    let orders = &manifest.tables["orders"];
    assert_eq!(orders.indexes["byCustomer"].on, ["customer", "placedAt"]);
    assert_eq!(orders.fields[0].0, "customer");
    assert!(matches!(orders.fields[2].1, FieldType::Optional { .. }));
    let place = &manifest.functions["placeOrder"];
    assert_eq!(place.kind, FunctionKind::Mutation);
    assert_eq!(place.errors["no-customer"], 404);
    assert_eq!(manifest.functions["order"].kind, FunctionKind::Query);
    assert_eq!(manifest.functions.len(), 9);
    assert_eq!(manifest.derived.len(), 2);
    assert_eq!(manifest.derived["total"].index.as_deref(), Some("byValue"));
}

fn item(sku: &str, qty: u64, cents: u64) -> Value {
    json!({"sku": sku, "qty": qty, "cents": cents})
}

#[test]
fn orders_are_placed_changed_and_found() {
    let mut world = world(ORDERS);
    let ann = world.mutate("addCustomer", json!({"name": "Ann"}));
    let bob = world.mutate("addCustomer", json!({"name": "Bob"}));
    let mut placed = Vec::new();
    for n in 1..=5 {
        let customer = if n % 2 == 0 { &bob } else { &ann };
        let args = json!({"customer": customer, "items": [item("a", n, 100), item("b", 1, 50)]});
        placed.push(world.mutate("placeOrder", args));
    }
    assert!(
        placed.windows(2).all(|w| w[0].as_str() < w[1].as_str()),
        "ids in commit order"
    );
    let people = world.query("listCustomers", json!({}));
    assert_eq!(people[0]["name"], "Ann");
    assert_eq!(people.as_array().map(Vec::len), Some(2));
    assert_eq!(world.query("count", json!({})), 5);
    assert_eq!(world.query("count", json!({"customer": ann})), 3);

    let order = world.query("order", json!({"id": placed[2]}));
    assert_eq!(order["total"], 350);
    assert_eq!(order["lines"].as_array().unwrap().len(), 2);
    assert_eq!(order["customer"], ann);
    let line = order["lines"][0]["id"].clone();
    assert_eq!(world.mutate("setQty", json!({"line": line, "qty": 7})), 750);
    assert_eq!(world.mutate("setQty", json!({"line": line, "qty": 0})), 50);
    let gone = world.fails("setQty", json!({"line": line, "qty": 1}));
    assert_eq!((gone.status, gone.code.as_str()), (404, "fault:no-line"));
    assert_eq!(gone.data, Some(json!({"line": line})));

    let page = world.query("ordersOf", json!({"customer": ann, "size": 2}));
    assert_eq!(page["rows"][0]["id"], placed[4]);
    assert_eq!(page["rows"][1]["id"], placed[2]);
    let rest = json!({"customer": ann, "size": 2, "cursor": page["cursor"]});
    let rest = world.query("ordersOf", rest);
    assert_eq!(rest["rows"].as_array().unwrap().len(), 1);
    assert_eq!(rest["rows"][0]["id"], placed[0]);
    assert_eq!(rest["cursor"], Value::Null);
    assert_eq!(world.query("order", json!({"id": ann})), Value::Null);

    let recent = world.query("recent", json!({"n": 2}));
    assert_eq!(recent[0]["id"], placed[4]);
    assert_eq!(recent[1]["id"], placed[3]);
}

#[test]
fn a_declared_fault_leaves_nothing() {
    let mut world = world(ORDERS);
    let nobody = json!({"customer": "0000000000010000", "items": []});
    let result = world.mutate_raw("placeOrder", &nobody.to_string());
    assert!(matches!(result, Err(CallError::Fault(_))));
    let ann = world.mutate("addCustomer", json!({"name": "Ann"}));
    let before = world.view.entries().count();
    let empty = world.fails("placeOrder", json!({"customer": ann, "items": []}));
    assert_eq!(
        (empty.status, empty.code.as_str()),
        (409, "fault:empty-order")
    );
    assert_eq!(world.view.entries().count(), before);
}

#[test]
fn counters_count() {
    let mut world = world(COUNTER);
    assert_eq!(world.query("read", json!({"key": "x"})), 0);
    for n in 1..=3 {
        assert_eq!(world.mutate("bump", json!({"key": "x"})), n);
    }
    assert_eq!(world.mutate("bump", json!({"key": "a", "by": -4})), -4);
    assert_eq!(world.query("read", json!({"key": "x"})), 3);
    let list = world.query("list", json!({"size": 1}));
    assert_eq!(list["rows"][0]["key"], "a");
    let rest = world.query("list", json!({"cursor": list["cursor"]}));
    assert_eq!(rest["rows"][0]["value"], 3);
    // Two rows and two index entries: no entry is left behind.
    assert_eq!(world.view.entries().count(), 4);
}

#[test]
fn totals_follow_their_lines_and_are_ranked() {
    let mut world = world(ORDERS);
    let ann = world.mutate("addCustomer", json!({"name": "Ann"}));
    let place = |world: &mut World, items: Value| {
        world.mutate("placeOrder", json!({"customer": ann, "items": items}))
    };
    let small = place(&mut world, json!([item("a", 1, 49_999)]));
    let large = place(&mut world, json!([item("a", 5, 10_000), item("b", 1, 7)]));
    let totals = |world: &mut World| {
        let rows = world.query("ranking", json!({"n": 5}));
        let rows = rows.as_array().unwrap().iter();
        rows.map(|row| (row["id"].clone(), row["total"].clone()))
            .collect::<Vec<_>>()
    };
    let less = json!(50_007 - 50_007 / 20);
    let expected = [(small.clone(), json!(49_999)), (large.clone(), less)];
    assert_eq!(totals(&mut world), expected);
    // One cent more, and 5 % less.
    let order = world.query("order", json!({"id": large}));
    let line = order["lines"][0]["id"].clone();
    let new = world.mutate("setQty", json!({"line": line, "qty": 6}));
    assert_eq!(new, 60_007 - 3_000);
    assert_eq!(totals(&mut world)[0], (large, json!(57_007)));
}

fn set(world: &mut World, name: &str, formula: &str) -> Value {
    world.mutate("set", json!({"name": name, "formula": formula}))
}

#[test]
fn a_sheet_follows_its_formulas() {
    let mut world = world(SHEET);
    assert_eq!(set(&mut world, "A1", "2"), json!({"value": 2}));
    assert_eq!(set(&mut world, "A2", "=(A1 + 1) * 2"), json!({"value": 6}));
    assert_eq!(
        set(&mut world, "A3", "=sum(A1, A2, 4) / B1"),
        json!({"error": "value({\"cell\":\"0000000000030000\"}): division by 0"})
    );
    let value_of = |world: &mut World, name: &str| {
        let all = world.query("read", json!({}));
        let mut cells = all.as_array().unwrap().iter();
        let found = cells.find(|cell| cell["name"] == name).cloned();
        found.unwrap_or_default()
    };
    // B1 did not exist; the formula that names it sees it come, and change.
    set(&mut world, "B1", "4");
    assert_eq!(value_of(&mut world, "A3")["value"], 3);
    set(&mut world, "A1", "=B1");
    assert_eq!(value_of(&mut world, "A3")["value"], 4.5);
    let before = world.view.entries().count();
    let refused = world.fails("set", json!({"name": "B1", "formula": "=1 + A3"}));
    assert_eq!(
        (refused.status, refused.code.as_str()),
        (409, "derived-cycle")
    );
    assert!(refused.detail.contains("value("), "{}", refused.detail);
    assert_eq!(world.view.entries().count(), before);
    assert_eq!(value_of(&mut world, "A3")["value"], 4.5);
    set(&mut world, "B1", "");
    assert!(value_of(&mut world, "A3")["error"].is_string());
    assert_eq!(value_of(&mut world, "A2")["value"], 2);
}

#[test]
fn comments_count_what_is_below_them() {
    let mut world = world(COMMENTS);
    let say = |world: &mut World, parent: Option<&Value>| {
        let mut args = json!({"author": "ann", "text": "…"});
        if let Some(parent) = parent {
            args["parent"] = parent.clone();
        }
        world.mutate("say", args)
    };
    let (a, b) = (say(&mut world, None), say(&mut world, None));
    let below = say(&mut world, Some(&a));
    let deep = say(&mut world, Some(&below));
    say(&mut world, Some(&below));
    say(&mut world, Some(&b));
    let seen = |world: &mut World| {
        let all = world.query("list", json!({}));
        let all = all.as_array().unwrap().iter();
        all.map(|c| (c["id"].clone(), c["replies"].as_u64().unwrap()))
            .collect::<Vec<_>>()
    };
    assert_eq!(seen(&mut world), [(b.clone(), 1), (a.clone(), 3)]);
    let busiest = world.query("busiest", json!({"n": 2}));
    let expected = json!([{"comment": a, "value": 3}, {"comment": below, "value": 2}]);
    assert_eq!(busiest, expected);
    say(&mut world, Some(&deep));
    assert_eq!(seen(&mut world), [(a.clone(), 4), (b.clone(), 1)]);
    let args = json!({"comment": below}).to_string();
    let done = world.mutate_raw("remove", &args).unwrap();
    assert_eq!(done.result, "4");
    assert_eq!(seen(&mut world), [(b, 1), (a, 0)]);
}
