//! The examples of the documentation do what their comments say.

use flower_api::manifest::{FieldType, FunctionKind};
use serde_json::{Value, json};

use super::*;

const ORDERS: &str = include_str!("../../../../../docs/examples/orders.js");
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
    assert_eq!(manifest.functions.len(), 8);
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
