//! Random applications: tables, and derived values that read rows, buckets, windows and each
//! other. As definitions, so that a failing one can be made smaller, and as a bundle's text.

use std::fmt::Write;

use crate::{body, rng::Rng};

/// Tables `t0`, `t1`, … with the fields `g`, `w`, `b`, `s` and `ref`.
#[derive(Debug, Clone)]
pub struct Table {
    /// The table whose rows `ref` names.
    pub refers: usize,
    /// Fields of the indexes `i0`, `i1`, …
    pub indexes: Vec<Vec<&'static str>>,
}

/// What a derived value is a value of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// `{ id }`, a row of this table.
    Row(usize),
    /// `{ g }`.
    Group,
    /// `{ g, h }`.
    Pair,
    /// `{ s }`.
    Text,
}

/// What a derived value answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Int,
    /// Fails for large values.
    Bounded,
    /// Often the same, so that propagation stops.
    Coarse,
    Optional,
    Number,
    Bool,
    Text,
    Json,
}

/// Which cells are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    Demand,
    Each,
    Always,
}

/// A derived value `d0`, `d1`, …
#[derive(Debug, Clone)]
pub struct Derived {
    pub key: Key,
    pub answer: Answer,
    pub kept: Kept,
    pub indexed: bool,
    pub rejects: bool,
    /// Statements that change `acc`.
    pub body: Vec<String>,
}

/// An application.
#[derive(Debug, Clone)]
pub struct App {
    pub tables: Vec<Table>,
    pub derived: Vec<Derived>,
}

const INDEXES: [&[&str]; 8] = [
    &["g"],
    &["w"],
    &["g", "w"],
    &["ref"],
    &["ref", "w"],
    &["s", "w"],
    &["b", "g"],
    &["g", "s", "w"],
];

fn random_table(rng: &mut Rng, tables: usize) -> Table {
    let mut indexes: Vec<Vec<&str>> = vec![vec!["g"]];
    for _ in 0..1 + rng.below(3) {
        let on = rng.pick(&INDEXES).to_vec();
        if !indexes.contains(&on) {
            indexes.push(on);
        }
    }
    Table {
        refers: rng.below(tables),
        indexes,
    }
}

fn random_key(rng: &mut Rng, tables: usize) -> Key {
    match rng.below(10) {
        0..=5 => Key::Row(rng.below(tables)),
        6..=7 => Key::Group,
        8 => Key::Pair,
        _ => Key::Text,
    }
}

const ANSWERS: [Answer; 12] = [
    Answer::Int,
    Answer::Int,
    Answer::Int,
    Answer::Int,
    Answer::Bounded,
    Answer::Coarse,
    Answer::Coarse,
    Answer::Optional,
    Answer::Number,
    Answer::Bool,
    Answer::Text,
    Answer::Json,
];

fn random_derived(rng: &mut Rng, tables: usize) -> Derived {
    let key = random_key(rng, tables);
    let kept = match (rng.below(10), key) {
        (0..=4, Key::Row(_)) => Kept::Each,
        (0..=6, _) => Kept::Demand,
        _ => Kept::Always,
    };
    let answer = rng.pick(&ANSWERS);
    Derived {
        key,
        answer,
        kept,
        indexed: kept != Kept::Demand && answer != Answer::Json && rng.chance(50),
        rejects: rng.chance(8),
        body: Vec::new(),
    }
}

impl App {
    /// An application from a seed. At least one derived value keeps its cells.
    pub fn random(rng: &mut Rng) -> Self {
        let count = 1 + rng.below(3);
        let tables: Vec<Table> = (0..count).map(|_| random_table(rng, count)).collect();
        let mut derived: Vec<Derived> = (0..2 + rng.below(5))
            .map(|_| random_derived(rng, count))
            .collect();
        if let Some(last) = derived.last_mut() {
            last.key = Key::Row(rng.below(count));
            last.kept = Kept::Each;
        }
        let recursive = rng.chance(50);
        let mut app = Self { tables, derived };
        if recursive {
            // Rows that name rows of their own table: chains, trees and circles.
            app.tables[0].refers = 0;
            app.derived[0].key = Key::Row(0);
        }
        for at in 0..app.derived.len() {
            app.derived[at].body = body::random(rng, &app, at, recursive);
        }
        app
    }

    /// Another application over the same rows: derived values with the same keys and other
    /// contents, most of them, one more, and sometimes one more index.
    pub fn changed(&self, rng: &mut Rng) -> Self {
        let mut app = self.clone();
        if rng.chance(50) {
            let table = rng.below(app.tables.len());
            let on = rng.pick(&INDEXES).to_vec();
            let indexes = &mut app.tables[table].indexes;
            if !indexes.contains(&on) {
                indexes.push(on);
            }
        }
        let tables = app.tables.len();
        for derived in &mut app.derived {
            if rng.chance(30) {
                continue;
            }
            let (key, kept, other) = (derived.key, derived.kept, random_derived(rng, tables));
            let kept = match (other.kept, key) {
                _ if rng.chance(60) => kept,
                (Kept::Each, Key::Row(_)) | (Kept::Always | Kept::Demand, _) => other.kept,
                (Kept::Each, _) => Kept::Always,
            };
            let indexed = other.indexed && kept != Kept::Demand;
            *derived = Derived {
                key,
                kept,
                indexed,
                ..other
            };
        }
        app.derived.push(random_derived(rng, tables));
        for at in 0..app.derived.len() {
            if app.derived[at].body.is_empty() || rng.chance(50) {
                app.derived[at].body = body::random(rng, &app, at, false);
            }
        }
        app
    }

    /// The bundle.
    pub fn text(&self) -> String {
        let named = self.tables.iter().enumerate();
        let refers: Vec<String> = named
            .map(|(at, table)| format!("t{at}: \"t{}\"", table.refers))
            .collect();
        let refers = format!("const REFERS = {{ {} }};\n", refers.join(", "));
        [HEAD, &self.definitions(), &refers, TAIL].concat()
    }

    /// The part of it that differs from that of other applications.
    pub fn definitions(&self) -> String {
        let mut out = String::new();
        for (at, table) in self.tables.iter().enumerate() {
            let named = table.indexes.iter().enumerate();
            let indexes: Vec<String> = named.map(|(i, on)| format!("i{i}: {on:?}")).collect();
            let (to, indexes) = (table.refers, indexes.join(", "));
            let _ = writeln!(
                out,
                "table(\"t{at}\", {{ g: t.int(0, 3), w: t.int(-20, 20), b: t.bool(), \
                 s: t.text(4).optional(), ref: t.id(\"t{to}\").optional() }}, \
                 {{ indexes: {{ {indexes} }} }});"
            );
        }
        let _ = writeln!(out, "const D = {{}};");
        for (at, derived) in self.derived.iter().enumerate() {
            derived.write(&mut out, at);
        }
        out
    }
}

impl Key {
    /// Its fields, as a declaration.
    fn fields(self) -> String {
        match self {
            Self::Row(table) => format!("{{ id: t.id(\"t{table}\") }}"),
            Self::Group => "{ g: t.int() }".into(),
            Self::Pair => "{ g: t.int(), h: t.int() }".into(),
            Self::Text => "{ s: t.text() }".into(),
        }
    }
}

impl Answer {
    /// Its type, and the last statement of a handler.
    fn text(self) -> (&'static str, &'static str) {
        match self {
            Self::Int => ("t.int()", "return acc;"),
            Self::Bounded => ("t.int(0, 80)", "return acc;"),
            Self::Coarse => ("t.int()", "return Math.floor(acc / 30);"),
            Self::Optional => (
                "t.int().optional()",
                "return acc % 3 === 0 ? undefined : acc;",
            ),
            Self::Number => ("t.number()", "return acc / 4;"),
            Self::Bool => ("t.bool()", "return acc % 2 === 0;"),
            Self::Text => ("t.text(3)", "return \"v\" + acc;"),
            Self::Json => ("t.json()", "return { acc, list: [acc % 5, null] };"),
        }
    }
}

impl Derived {
    fn write(&self, out: &mut String, at: usize) {
        let (ty, last) = self.answer.text();
        let mut options = Vec::new();
        match (self.kept, self.key) {
            (Kept::Each, Key::Row(table)) => {
                options.push(format!("materialize: {{ each: \"t{table}\" }}"));
            }
            (Kept::Always, _) => options.push("materialize: \"always\"".into()),
            _ => {}
        }
        if self.indexed {
            options.push("index: \"byValue\"".into());
        }
        if self.rejects {
            options.push("onError: \"reject\"".into());
        }
        let (fields, options) = (self.key.fields(), options.join(", "));
        let _ = writeln!(
            out,
            "D.d{at} = derived(\"d{at}\", {fields}, {ty}, (db, key, get) => {{"
        );
        let _ = writeln!(out, "  let acc = 0;");
        for statement in &self.body {
            let _ = writeln!(out, "  {statement}");
        }
        let _ = writeln!(
            out,
            "  acc = mod(acc, 97);\n  {last}\n}}, {{ {options} }});"
        );
    }
}

const HEAD: &str = r#"import { derived, fault, mutation, query, t, table } from "@flower/sdk";
const mod = (n, m) => ((n % m) + m) % m;
const num = (v) => (typeof v === "number" ? Math.round(v) : v === null ? 5 : JSON.stringify(v).length);
"#;

const TAIL: &str = r#"
const idsOf = (db, name) => db[name].range().all().map(({ id }) => id);
function pick(db, name, at) {
  const ids = idsOf(db, name);
  return ids.length === 0 ? undefined : ids[at % ids.length];
}
function rowOf(db, { t, row, ref }) {
  return ref === undefined ? row : { ...row, ref: pick(db, REFERS[t], ref) };
}
function keyOf(db, { key, of, at }) {
  return of === undefined ? key : { id: pick(db, of, at) ?? "0000000000000000" };
}
function caught(act) {
  try {
    return { value: act() };
  } catch (e) {
    return { name: e.name, message: e.message, code: e.code, data: e.data };
  }
}
function read(range, { desc, n, how }) {
  if (desc) range = range.desc();
  if (n !== undefined) range = range.take(n);
  if (how === "count") return range.count();
  if (how === "first") return range.first();
  return how === "page" ? range.page({ size: 3 }).rows : range.all();
}
const READS = {
  get: (db, op) => caught(() => db.get(D[op.d], keyOf(db, op))),
  need: (db, op) => db[op.d].get(keyOf(db, op)),
  top: (db, op) => read(db[op.d].byValue.range(op.where), op),
  scan: (db, op) => read(db[op.t][op.index].range(op.where), op),
};
const WRITES = {
  insert: (tx, op) => {
    if (tx[op.t].count() >= 9) tx[op.t].delete(idsOf(tx, op.t)[0]);
    return tx[op.t].insert(rowOf(tx, op));
  },
  patch: (tx, op, id) => tx[op.t].patch(id, rowOf(tx, op)),
  replace: (tx, op, id) => tx[op.t].replace(id, rowOf(tx, op)),
  delete: (tx, op, id) => tx[op.t].delete(id),
  stop: () => fault.throw("stop", { data: { at: 1 } }),
  boom: () => {
    throw new Error("boom");
  },
};
function run(db, op) {
  if (READS[op.op]) return READS[op.op](db, op);
  const id = op.at === undefined ? undefined : pick(db, op.t, op.at);
  if (op.at !== undefined && id === undefined) return null;
  return WRITES[op.op](db, op, id);
}
export const step = mutation(
  { args: { ops: t.list(t.json()) }, errors: { stop: 409, odd: 422 } },
  (tx, { ops }) => ops.map((op) => run(tx, op)),
);
export const ask = query(
  { args: { ops: t.list(t.json()) }, errors: { odd: 422 } },
  (db, { ops }) => ops.map((op) => run(db, op)),
);
"#;
