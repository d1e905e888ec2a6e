//! What is stored, decoded from its bytes: rows, index entries, cells, reader records; in the
//! form in which the reference dumps them. Shares no code with the engine.

use std::collections::{BTreeMap, BTreeSet};

use flower_api::PartitionId;
use flower_engine::{Space, view::MemoryView};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::app::{App, Key};

const ID_CHARS: usize = 16;

/// The record of a cell behind its revision and format.
#[derive(Deserialize)]
struct Record {
    root: bool,
    hollow: bool,
    height: u8,
    deps: Vec<Vec<u8>>,
    failed: bool,
    json: String,
}

/// Cuts `bytes` at the first NUL.
fn cut(bytes: &[u8]) -> (&str, &[u8]) {
    let at = bytes.iter().position(|b| *b == 0).expect("a NUL");
    (
        std::str::from_utf8(&bytes[..at]).expect("a name"),
        &bytes[at + 1..],
    )
}

/// A stored name without the deployment that it is of.
fn plain(name: &str) -> &str {
    name.split_once('.').map_or(name, |(name, _)| name)
}

/// A reader record's key without the deployment that it is of.
fn plain_reader(key: &[u8]) -> &[u8] {
    match key.strip_prefix(b"g") {
        Some(tagged) => cut(tagged).1,
        None => key,
    }
}

fn in_partition(key: &[u8]) -> &[u8] {
    let rest = key.strip_prefix(PartitionId::ROOT.as_bytes());
    rest.and_then(|rest| rest.strip_prefix(b"\0"))
        .expect("a key begins with its partition")
}

/// The value at the beginning of an encoded key.
fn value(bytes: &[u8]) -> (Value, &[u8]) {
    match bytes[0] {
        0x10 => (Value::Null, &bytes[1..]),
        0x20 => (json!(false), &bytes[1..]),
        0x21 => (json!(true), &bytes[1..]),
        0x30 => {
            let bits = u64::from_be_bytes(bytes[1..9].try_into().expect("eight bytes"));
            let positive = bits >> 63 == 1;
            let number = f64::from_bits(if positive { bits ^ 1 << 63 } else { !bits });
            let whole = number.fract() == 0.0;
            let value = if whole {
                json!(number as i64)
            } else {
                json!(number)
            };
            (value, &bytes[9..])
        }
        0x40 => {
            // No text of these tests holds NUL.
            let end = bytes.iter().position(|b| *b == 0).expect("an end");
            let text = std::str::from_utf8(&bytes[1..end]).expect("a text");
            (json!(text), &bytes[end + 2..])
        }
        other => panic!("{other:#x} begins no value"),
    }
}

fn values(mut bytes: &[u8], count: usize) -> (Vec<Value>, &[u8]) {
    let mut out = Vec::new();
    for _ in 0..count {
        let (one, rest) = value(bytes);
        out.push(one);
        bytes = rest;
    }
    (out, bytes)
}

impl Key {
    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Row(_) => &["id"],
            Self::Group => &["g"],
            Self::Pair => &["g", "h"],
            Self::Text => &["s"],
        }
    }
}

fn number(name: &str) -> usize {
    name[1..].parse().expect("a name of these tests")
}

/// Name and key of a cell from its bytes.
fn cell_name(app: &App, bytes: &[u8]) -> (String, Value) {
    let (name, rest) = cut(bytes);
    let fields = app.derived[number(name)].key.names();
    let (parts, rest) = values(rest, fields.len());
    assert!(rest.is_empty(), "a cell's key ends with its last field");
    let key: Map<String, Value> = fields.iter().map(|f| (*f).to_owned()).zip(parts).collect();
    (name.to_owned(), Value::Object(key))
}

fn cell_id(app: &App, bytes: &[u8]) -> String {
    let (name, key) = cell_name(app, bytes);
    format!("{name}{key}")
}

#[derive(Default)]
struct Found {
    rows: BTreeMap<String, Vec<Value>>,
    indexes: BTreeMap<String, Vec<Value>>,
    values: BTreeMap<String, Vec<Value>>,
    cells: BTreeMap<String, Value>,
    readers: BTreeSet<Vec<u8>>,
    wanted: BTreeSet<Vec<u8>>,
}

impl Found {
    fn data(&mut self, app: &App, key: &[u8], value: &[u8]) {
        let (table, rest) = cut(in_partition(key));
        let (id, kind) = cut(rest);
        if kind == b"r" {
            let body: Map<String, Value> = serde_json::from_slice(&value[8..]).expect("a row");
            let mut row = Map::new();
            row.insert("id".into(), json!(id));
            row.extend(body);
            self.rows
                .entry(table.into())
                .or_default()
                .push(Value::Object(row));
            return;
        }
        let name = kind.strip_prefix(b"c").expect("a row or a cell");
        let name = plain(std::str::from_utf8(name).expect("a name")).as_bytes();
        let bytes = [name, &b"\0\x40"[..], id.as_bytes(), &b"\0\0"[..]].concat();
        self.cell(app, &bytes, value);
    }

    fn cell(&mut self, app: &App, bytes: &[u8], value: &[u8]) {
        let record: Record = postcard::from_bytes(&value[9..]).expect("a cell's record");
        let (name, key) = cell_name(app, bytes);
        let outcome: Value = serde_json::from_str(&record.json).expect("an outcome");
        let kind = if record.failed { "error" } else { "value" };
        let mut deps = Vec::new();
        for dep in &record.deps {
            self.wanted.insert([&dep[..], bytes].concat());
            if let Some(cell) = dep.strip_prefix(b"c") {
                deps.push(cell_id(app, cell));
            }
        }
        deps.sort();
        let at = format!("{name}{key}");
        let cell = json!({
            "name": name, "key": key, "root": record.root, "hollow": record.hollow,
            "height": record.height, "outcome": { kind: outcome }, "deps": deps,
        });
        self.cells.insert(at, cell);
    }

    fn entry(&mut self, app: &App, key: &[u8]) {
        let (name, rest) = cut(in_partition(key));
        let (index, rest) = cut(rest);
        let index = plain(index);
        let at = format!("{name}.{index}");
        if name.starts_with('d') {
            let fields = app.derived[number(name)].key.names().len();
            let (parts, rest) = values(rest, 1 + fields);
            assert!(rest.is_empty(), "an entry ends with its key");
            self.values.entry(at).or_default().push(Value::Array(parts));
            return;
        }
        let on = &app.tables[number(name)].indexes[number(index)];
        let (mut parts, id) = values(rest, on.len());
        assert_eq!(id.len(), ID_CHARS, "an entry ends with its id");
        parts.push(json!(std::str::from_utf8(id).expect("an id")));
        self.indexes
            .entry(at)
            .or_default()
            .push(Value::Array(parts));
    }
}

/// All that is stored, of the one deployment of which anything is; and which reader records are missing or lead nowhere.
pub fn dump(app: &App, view: &MemoryView, deployed: bool) -> (Value, Vec<String>) {
    let mut found = Found::default();
    for (space, key, value) in view.entries() {
        match space {
            Space::Data => found.data(app, key, value),
            Space::Cells => {
                let (name, rest) = cut(in_partition(key));
                let bytes = [plain(name).as_bytes(), b"\0", rest].concat();
                found.cell(app, &bytes, value);
            }
            Space::Index => found.entry(app, key),
            Space::Readers => {
                found
                    .readers
                    .insert(plain_reader(in_partition(key)).to_vec());
            }
            // What deployments are, and which is active.
            Space::Meta | Space::Deploy if deployed => {}
            other => panic!("a mutation wrote to {other}"),
        }
    }
    let mut wrong = Vec::new();
    for missing in found.wanted.difference(&found.readers) {
        wrong.push(format!("no reader record {}", missing.escape_ascii()));
    }
    for orphan in found.readers.difference(&found.wanted) {
        wrong.push(format!(
            "a reader record without its dependency {}",
            orphan.escape_ascii()
        ));
    }
    let cells: Vec<Value> = found.cells.into_values().collect();
    let all = json!({
        "rows": found.rows, "indexes": found.indexes, "cells": cells, "values": found.values,
    });
    (all, wrong)
}
