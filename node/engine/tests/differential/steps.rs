//! Random calls: mutations of several writes and reads, some of which end in an error, and
//! queries. Rows are named by their position, so that a call means something in any state.

use serde_json::{Value, json};

use crate::{
    app::{Answer, App, Derived, Key},
    rng::Rng,
};

/// One call. Its revision does not change when other calls are left out.
#[derive(Debug, Clone)]
pub struct Step {
    pub revision: u64,
    pub query: bool,
    pub ops: Vec<Value>,
}

impl Step {
    pub fn args(&self) -> String {
        json!({ "ops": self.ops }).to_string()
    }
}

/// `count` calls for an application.
pub fn random(rng: &mut Rng, app: &App, count: u64) -> Vec<Step> {
    (1..=count)
        .map(|revision| {
            let query = revision > 4 && rng.chance(12);
            let ops = match query {
                true => (0..1 + rng.below(4)).map(|_| read(rng, app)).collect(),
                false => mutation(rng, app, revision),
            };
            Step {
                revision,
                query,
                ops,
            }
        })
        .collect()
}

fn mutation(rng: &mut Rng, app: &App, revision: u64) -> Vec<Value> {
    let mut ops = Vec::new();
    let count = match revision {
        1..=4 => 4,
        _ => 1 + rng.below(4),
    };
    for _ in 0..count {
        if rng.chance(25) {
            ops.push(read(rng, app));
        }
        ops.push(write(rng, app, revision <= 4));
    }
    match rng.below(40) {
        0 => ops.push(json!({ "op": "stop" })),
        1 => ops.push(json!({ "op": "boom" })),
        2..=12 => ops.push(read(rng, app)),
        _ => {}
    }
    ops
}

fn write(rng: &mut Rng, app: &App, early: bool) -> Value {
    let table = format!("t{}", rng.below(app.tables.len()));
    let at = rng.below(12);
    match if early { 0 } else { rng.below(12) } {
        0..=3 => {
            let mut op = json!({ "op": "insert", "t": table, "row": row(rng) });
            if rng.chance(70) {
                op["ref"] = json!(at);
            }
            op
        }
        4..=8 => {
            let mut op = json!({ "op": "patch", "t": table, "at": at, "row": some_fields(rng) });
            if rng.chance(35) {
                op["ref"] = json!(rng.below(12));
            }
            op
        }
        9 => {
            let mut op = json!({ "op": "replace", "t": table, "at": at, "row": row(rng) });
            if rng.chance(50) {
                op["ref"] = json!(rng.below(12));
            }
            op
        }
        _ => json!({ "op": "delete", "t": table, "at": at }),
    }
}

fn field(rng: &mut Rng, name: &str) -> Value {
    match name {
        "g" => json!(rng.below(4)),
        "w" => json!(rng.between(-20, 20)),
        "b" => json!(rng.chance(50)),
        _ => rng
            .pick(&[None, Some("a"), Some("b"), Some("é")])
            .map_or(Value::Null, Value::from),
    }
}

fn row(rng: &mut Rng) -> Value {
    let mut row = json!({});
    for name in ["g", "w", "b", "s"] {
        row[name] = field(rng, name);
    }
    row
}

/// Some fields to patch; now and then none, so that a row is written and nothing changes.
fn some_fields(rng: &mut Rng) -> Value {
    let mut row = json!({});
    for name in ["g", "w", "b", "s"] {
        if rng.chance(35) {
            row[name] = field(rng, name);
        }
    }
    row
}

fn read(rng: &mut Rng, app: &App) -> Value {
    let indexed: Vec<usize> = (0..app.derived.len())
        .filter(|at| app.derived[*at].indexed)
        .collect();
    if rng.chance(12) {
        return scan(rng, app);
    }
    if !indexed.is_empty() && rng.chance(30) {
        let at = indexed[rng.below(indexed.len())];
        return top(rng, at, &app.derived[at]);
    }
    let at = rng.below(app.derived.len());
    let op = if rng.chance(85) { "get" } else { "need" };
    let mut read = json!({ "op": op, "d": format!("d{at}") });
    match app.derived[at].key {
        Key::Row(table) => {
            read["of"] = json!(format!("t{table}"));
            read["at"] = json!(rng.below(12));
        }
        Key::Group => read["key"] = json!({ "g": rng.below(4) }),
        Key::Pair => read["key"] = json!({ "h": rng.below(3), "g": rng.below(4) }),
        Key::Text => read["key"] = json!({ "s": rng.pick(&["a", "b", ""]) }),
    }
    read
}

fn ordered(rng: &mut Rng, mut read: Value) -> Value {
    read["desc"] = json!(rng.chance(50));
    read["how"] = json!(rng.pick(&["all", "all", "count", "first", "page"]));
    if rng.chance(40) {
        read["n"] = json!(rng.between(1, 4));
    }
    read
}

fn scan(rng: &mut Rng, app: &App) -> Value {
    let table = rng.below(app.tables.len());
    let index = rng.below(app.tables[table].indexes.len());
    let first = app.tables[table].indexes[index][0];
    let mut wanted = json!({});
    if first != "ref" && rng.chance(60) {
        wanted[first] = field(rng, first);
    }
    let read = json!({
        "op": "scan", "t": format!("t{table}"), "index": format!("i{index}"), "where": wanted,
    });
    ordered(rng, read)
}

/// A read of the index over a derived value.
fn top(rng: &mut Rng, at: usize, derived: &Derived) -> Value {
    let value = match derived.answer {
        Answer::Bool => json!(rng.chance(50)),
        Answer::Text => json!(format!("v{}", rng.below(97))),
        Answer::Coarse => json!(rng.below(4)),
        Answer::Number => json!(rng.below(97) as f64 / 4.0),
        Answer::Optional if rng.chance(20) => Value::Null,
        _ => json!(rng.below(97)),
    };
    let wanted = match (rng.below(4), value.is_null()) {
        (0, _) => json!({}),
        (1, _) | (_, true) => json!({ "value": value }),
        (2, _) => json!({ "value": { "gte": value } }),
        _ => json!({ "value": { "lt": value } }),
    };
    let read = json!({ "op": "top", "d": format!("d{at}"), "where": wanted });
    ordered(rng, read)
}
