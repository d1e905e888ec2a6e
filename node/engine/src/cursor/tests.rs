//! Index maintenance and ranges against a naive twin: rows in a map, every index sorted
//! anew, every range a filter.

mod reads;

use std::cmp::Ordering;

use flower_api::{
    Revision,
    manifest::{Manifest, Table},
};
use proptest::prelude::*;

use super::*;
use crate::{
    codec,
    deploy::Deployment,
    limits::{Deadline, Limits, Stamp},
    transaction::Transaction,
    view::MemoryView,
};

fn deployment() -> Arc<Deployment> {
    let table: Table = serde_json::from_value(json!({
        "fields": [
            ["a", {"type": "optional", "inner": {"type": "text"}}],
            ["b", {"type": "int"}],
            ["c", {"type": "optional", "inner": {"type": "number"}}],
        ],
        "indexes": {"one": {"on": ["a"]}, "two": {"on": ["a", "b"]}, "three": {"on": ["c", "a", "b"]}},
    }))
    .unwrap();
    let tables = [
        ("rows".to_owned(), table.clone()),
        ("rowsx".to_owned(), table),
    ]
    .into();
    let manifest = Manifest {
        tables,
        ..Manifest::default()
    };
    Arc::new(Deployment::fresh("", manifest))
}

#[derive(Debug, Clone)]
enum Op {
    Insert(Value),
    Patch(usize, Value),
    Delete(usize),
    Commit,
}

fn text() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        "[ab\u{0}\u{e9}]{0,3}".prop_map(Value::from)
    ]
}

fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        (-2i64..3).prop_map(Value::from),
        (-3.0..3.0f64).prop_map(Value::from)
    ]
}

fn row() -> impl Strategy<Value = Value> {
    (text(), -2i64..3, number()).prop_map(|(a, b, c)| json!({"a": a, "b": b, "c": c}))
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => row().prop_map(Op::Insert),
        3 => (any::<usize>(), row()).prop_map(|(at, row)| Op::Patch(at, row)),
        2 => any::<usize>().prop_map(Op::Delete),
        1 => Just(Op::Commit),
    ]
}

const INDEXES: [(&str, &[&str]); 4] = [
    ("", &[]),
    ("one", &["a"]),
    ("two", &["a", "b"]),
    ("three", &["c", "a", "b"]),
];

#[derive(Debug, Clone)]
struct Ask {
    index: usize,
    equal: Vec<Value>,
    ops: Vec<(&'static str, Value)>,
    on_id: Option<usize>,
    descending: bool,
    limit: Option<u64>,
}

/// A value that fits the field; mostly one that rows have.
fn value_for(field: &'static str) -> BoxedStrategy<Value> {
    match field {
        "a" => text().boxed(),
        "b" => (-3i64..4).prop_map(Value::from).boxed(),
        _ => number().boxed(),
    }
}

fn ask() -> impl Strategy<Value = Ask> {
    let ops = prop_oneof![
        Just(vec![]),
        Just(vec!["gt"]),
        Just(vec!["gte", "lt"]),
        Just(vec!["gt", "lte"]),
        Just(vec!["lte"]),
    ];
    (
        0..INDEXES.len(),
        0..3usize,
        ops,
        any::<bool>(),
        prop::option::of(0..6u64),
        any::<usize>(),
    )
        .prop_flat_map(|(index, equal, ops, descending, limit, pick)| {
            let fields = INDEXES[index].1;
            let equal = equal.min(fields.len());
            let given: Vec<_> = fields[..equal].iter().map(|f| value_for(f)).collect();
            let bound = fields
                .get(equal)
                .map_or_else(|| Just(Value::Null).boxed(), |f| value_for(f));
            let bounds: Vec<_> = ops.iter().map(|op| (Just(*op), bound.clone())).collect();
            let on_id = (equal == fields.len()).then_some(pick);
            (given, bounds).prop_map(move |(equal, ops)| Ask {
                index,
                equal,
                ops,
                on_id,
                descending,
                limit,
            })
        })
}

fn compare(a: &Value, b: &Value) -> Ordering {
    let rank = |v: &Value| match v {
        Value::Null => 0,
        Value::Number(_) => 2,
        _ => 3,
    };
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()).unwrap(),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        _ => rank(a).cmp(&rank(b)),
    }
}

type Rows = BTreeMap<String, Value>;

impl Ask {
    /// The bound on the id that the pick stands for.
    fn id(&self, rows: &Rows) -> String {
        let pick = self.on_id.unwrap_or(0);
        let known: Vec<&String> = rows.keys().collect();
        match known.get(pick % (known.len() + 1)) {
            Some(id) => (*id).clone(),
            None => "8".to_owned(),
        }
    }

    fn json(&self, rows: &Rows) -> String {
        let fields = INDEXES[self.index].1;
        let mut out = Map::new();
        for (field, value) in fields.iter().zip(&self.equal) {
            out.insert((*field).to_owned(), value.clone());
        }
        if !self.ops.is_empty() {
            let id = self.id(rows);
            let bound = |v: &Value| {
                if self.on_id.is_some() {
                    json!(id)
                } else {
                    v.clone()
                }
            };
            let ops = self.ops.iter().map(|(op, v)| ((*op).to_owned(), bound(v)));
            let field = fields.get(self.equal.len()).unwrap_or(&"id");
            out.insert((*field).to_owned(), Value::Object(ops.collect()));
        }
        Value::Object(out).to_string()
    }

    fn naive(&self, rows: &Rows) -> Vec<String> {
        let fields = INDEXES[self.index].1;
        let mut found: Vec<(&String, &Value)> = rows.iter().collect();
        found.sort_by(|(a, x), (b, y)| {
            let by_fields = fields.iter().map(|f| compare(&x[*f], &y[*f]));
            by_fields
                .fold(Ordering::Equal, Ordering::then)
                .then(a.cmp(b))
        });
        let fits = |op: &str, order: Ordering| match op {
            "gt" => order.is_gt(),
            "gte" => order.is_ge(),
            "lt" => order.is_lt(),
            _ => order.is_le(),
        };
        let id = self.id(rows);
        found.retain(|(row_id, row)| {
            let equal = fields.iter().zip(&self.equal);
            let mut equal = equal.map(|(f, v)| compare(&row[*f], v));
            let within = self
                .ops
                .iter()
                .all(|(op, bound)| match fields.get(self.equal.len()) {
                    Some(field) => fits(op, compare(&row[*field], bound)),
                    None => fits(op, row_id.as_str().cmp(&id)),
                });
            equal.all(Ordering::is_eq) && within
        });
        let mut ids: Vec<String> = found.into_iter().map(|(id, _)| id.clone()).collect();
        if self.descending {
            ids.reverse();
        }
        ids.truncate(self.limit.map_or(usize::MAX, |n| n as usize));
        ids
    }
}

/// The data under test and its naive twin.
struct Twins {
    view: MemoryView,
    tx: Transaction,
    rows: Rows,
    revision: u64,
}

fn transaction(view: &MemoryView, revision: u64) -> Transaction {
    let stamp = Stamp {
        now_ms: 0,
        revision: Revision(revision),
        seed: 0,
    };
    Transaction::new(
        Arc::new(view.clone()),
        deployment(),
        Limits::default(),
        stamp,
        Deadline::never(),
        true,
    )
}

impl Twins {
    fn new() -> Self {
        let view = MemoryView::default();
        Self {
            tx: transaction(&view, 1),
            view,
            rows: Rows::new(),
            revision: 1,
        }
    }

    fn pick(&self, at: usize) -> Option<String> {
        let known: Vec<&String> = self.rows.keys().collect();
        (!known.is_empty()).then(|| known[at % known.len()].clone())
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Insert(row) => {
                // A table whose name begins with the other's must stay out of its ranges.
                self.tx.insert("rowsx", &row.to_string()).unwrap();
                let id = self.tx.insert("rows", &row.to_string()).unwrap();
                assert!(codec::is_id(&id) && self.rows.keys().all(|known| *known < id));
                self.rows.insert(id, row);
            }
            Op::Patch(at, row) => {
                if let Some(id) = self.pick(at) {
                    self.tx.patch("rows", &id, &row.to_string(), &[]).unwrap();
                    self.rows.insert(id, row);
                }
            }
            Op::Delete(at) => {
                if let Some(id) = self.pick(at) {
                    assert!(self.tx.delete("rows", &id).unwrap());
                    self.rows.remove(&id);
                }
            }
            Op::Commit => {
                self.revision += 1;
                let next = transaction(&self.view, self.revision);
                let (_, patch) = std::mem::replace(&mut self.tx, next).finish();
                self.view.apply(&patch.seal());
                self.tx = transaction(&self.view, self.revision);
            }
        }
    }

    fn check(&mut self, ask: &Ask) {
        let range = ask.json(&self.rows);
        let wanted = Wanted {
            table: "rows",
            index: INDEXES[ask.index].0,
            range: &range,
            descending: ask.descending,
            limit: ask.limit,
        };
        let expected = ask.naive(&self.rows);
        let tx = &mut self.tx;
        assert_eq!(
            ids(&collect(tx, &wanted, 3)),
            expected,
            "chunks of {wanted:?}"
        );
        assert_eq!(ids(&rewound(tx, &wanted)), expected, "rewound {wanted:?}");
        assert_eq!(
            tx.count(&wanted).unwrap(),
            expected.len() as u64,
            "count of {wanted:?}"
        );
        let sum: i64 = expected
            .iter()
            .map(|id| self.rows[id]["b"].as_i64().unwrap())
            .sum();
        assert_eq!(
            tx.sum(&wanted, "b").unwrap(),
            sum as f64,
            "sum of {wanted:?}"
        );
        if ask.limit.is_none() {
            assert_eq!(ids(&paged(tx, &wanted)), expected, "pages of {wanted:?}");
        }
    }
}

fn parse(text: &str) -> Vec<Value> {
    serde_json::from_str(text).unwrap()
}

fn ids(rows: &[Value]) -> Vec<String> {
    rows.iter()
        .map(|row| row["id"].as_str().unwrap().to_owned())
        .collect()
}

fn collect(tx: &mut Transaction, wanted: &Wanted, chunk: u64) -> Vec<Value> {
    let cursor = tx.open(wanted).unwrap();
    let mut rows = Vec::new();
    loop {
        let mut more = parse(&tx.next(cursor, chunk).unwrap());
        if more.is_empty() {
            return rows;
        }
        rows.append(&mut more);
    }
}

/// Takes two of each chunk and goes back for the rest.
fn rewound(tx: &mut Transaction, wanted: &Wanted) -> Vec<Value> {
    let cursor = tx.open(wanted).unwrap();
    let mut rows = Vec::new();
    loop {
        let mut more = parse(&tx.next(cursor, 3).unwrap());
        if more.is_empty() {
            return rows;
        }
        let used = more.len().min(2);
        more.truncate(used);
        tx.rewind(cursor, used).unwrap();
        rows.append(&mut more);
    }
}

fn paged(tx: &mut Transaction, wanted: &Wanted) -> Vec<Value> {
    let (mut rows, mut after) = (Vec::new(), String::new());
    loop {
        let text = tx.page(wanted, &after, 2).unwrap();
        let page: Value = serde_json::from_str(&text).unwrap();
        let more = page["rows"].as_array().unwrap();
        assert!(more.len() <= 2);
        rows.extend(more.iter().cloned());
        match page["cursor"].as_str() {
            Some(next) => {
                assert_eq!(more.len(), 2, "a page before the last is full");
                after = next.to_owned();
            }
            None => return rows,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]
    #[test]
    fn ranges_and_indexes_agree_with_the_naive_twin(
        ops in prop::collection::vec(op(), 1..60),
        asks in prop::collection::vec(ask(), 12),
    ) {
        let mut twins = Twins::new();
        for op in ops {
            twins.run(op);
        }
        for ask in &asks {
            twins.check(ask);
        }
        // After committing: exactly one entry a row and index, and the same answers.
        twins.run(Op::Commit);
        let entries = twins.view.entries().filter(|(space, key, _)| {
            *space == Space::Index && key.starts_with(&record::table_prefix("rows"))
        });
        prop_assert_eq!(entries.count(), twins.rows.len() * 3);
        for ask in &asks {
            twins.check(ask);
        }
    }

    /// A client can send any cursor: it is refused, or lies within the range.
    #[test]
    fn foreign_cursors_never_leave_the_range(cursor in "[A-Za-z0-9_-]{0,40}", ask in ask()) {
        let mut twins = Twins::new();
        for n in 0..6 {
            twins.run(Op::Insert(json!({"a": "a", "b": n, "c": n})));
        }
        let range = ask.json(&twins.rows);
        let wanted = Wanted {
            table: "rows",
            index: INDEXES[ask.index].0,
            range: &range,
            descending: ask.descending,
            limit: None,
        };
        match twins.tx.page(&wanted, &cursor, 10) {
            Ok(page) => {
                let page: Value = serde_json::from_str(&page).unwrap();
                let allowed = Ask { limit: None, ..ask }.naive(&twins.rows);
                for id in ids(page["rows"].as_array().unwrap()) {
                    prop_assert!(allowed.contains(&id));
                }
            }
            Err(error) => prop_assert!(matches!(error, DbError::BadCursor(_)), "{:?}", error),
        }
    }
}

#[test]
fn a_cursor_of_one_range_is_refused_by_another() {
    let mut twins = Twins::new();
    for n in 0..6 {
        let a = if n < 3 { "a" } else { "b" };
        twins.run(Op::Insert(json!({"a": a, "b": n, "c": null})));
    }
    let wanted = |range| Wanted {
        table: "rows",
        index: "one",
        range,
        descending: false,
        limit: None,
    };
    let page = twins.tx.page(&wanted("{\"a\":\"a\"}"), "", 1).unwrap();
    let page: Value = serde_json::from_str(&page).unwrap();
    let cursor = page["cursor"].as_str().unwrap();
    assert!(twins.tx.page(&wanted("{\"a\":\"a\"}"), cursor, 1).is_ok());
    let other = twins.tx.page(&wanted("{\"a\":\"b\"}"), cursor, 1);
    assert!(matches!(other, Err(DbError::BadCursor(_))));
}
