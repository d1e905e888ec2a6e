//! Where a cell's value comes from, and what a query read, in the words of the application:
//! tables, indexes, fields. Reads stored records only; evaluates nothing.

use flower_api::{
    Revision,
    explain::{CellContent, CellExplained, CellName, LISTED, Read},
    manifest::{Derived, Materialize},
};
use serde_json::Value;

use crate::{
    codec,
    deploy::Deployment,
    derived::{Cell, CellId, IndexName, Target, as_target, cell_target, readers_of},
    error::ViewError,
    key::Space,
    range::{KeyRange, ROW_TAIL},
    reads::{ReadSet, Window},
    record,
    view::{Direction, View},
};

/// Says everything of a cell. `key` is an object, or the value of its one field.
///
/// # Errors
/// The state cannot be read; within, what is wrong with name or key.
pub fn cell(
    view: &dyn View,
    deployment: &Deployment,
    revision: Revision,
    name: &str,
    key: &Value,
) -> Result<Result<CellExplained, String>, ViewError> {
    let derived = &deployment.manifest.derived;
    let Some(declared) = derived.get(name) else {
        let known: Vec<&str> = derived.keys().map(String::as_str).take(20).collect();
        let known = match known.is_empty() {
            true => "none".to_owned(),
            false => known.join(", "),
        };
        let name: String = name.chars().take(64).collect();
        return Ok(Err(format!(
            "the application has no derived value '{name}'; it has: {known}"
        )));
    };
    let key = match (key, declared.key.as_slice()) {
        (Value::Object(_), _) => key.clone(),
        (value, [(field, _)]) => serde_json::json!({ field: value }),
        (_, fields) => {
            let fields: Vec<&str> = fields.iter().map(|(field, _)| field.as_str()).collect();
            let fields = fields.join(", ");
            return Ok(Err(format!("{name}: the key is an object of {fields}")));
        }
    };
    let id = match CellId::new(name, declared, &key.to_string()) {
        Ok(id) => id,
        Err(why) => return Ok(Err(why)),
    };
    let (space, at) = id.location(declared, deployment.generation);
    let stored = view.get(space, &at)?;
    let content = match &stored {
        Some(value) => Some(content(view, deployment, &id, value)?),
        None => None,
    };
    let root = content.as_ref().is_some_and(|content| content.root);
    Ok(Ok(CellExplained {
        revision,
        cell: named(deployment, &id),
        stored: stored.is_some(),
        why: why(declared, &id, stored.is_some(), root),
        content,
    }))
}

fn why(declared: &Derived, id: &CellId, stored: bool, root: bool) -> String {
    let key = id.key_object(declared);
    let of = key
        .values()
        .next()
        .map(Value::to_string)
        .unwrap_or_default();
    match (&declared.materialize, stored, root) {
        (Materialize::Each(table), true, true) => format!("{table} has the row {of}"),
        (Materialize::Always, true, true) => "a mutation read it".into(),
        (_, true, _) => "a stored cell reads it".into(),
        (Materialize::Each(table), false, _) => format!("{table} has no row {of}"),
        (Materialize::Always, false, _) => {
            "no mutation has read it, or all that it read is gone".into()
        }
        (Materialize::Demand, false, _) => {
            "no stored cell reads it: whoever reads it evaluates it".into()
        }
    }
}

fn content(
    view: &dyn View,
    deployment: &Deployment,
    id: &CellId,
    value: &[u8],
) -> Result<CellContent, ViewError> {
    let damaged = || ViewError(format!("the cell {id:?} is damaged"));
    let cell = Cell::decode(value).ok_or_else(damaged)?;
    let (changed, _) = value.split_first_chunk::<8>().ok_or_else(damaged)?;
    let outcome: Value = serde_json::from_str(&cell.outcome.json).map_err(|_| damaged())?;
    let (value, error) = match cell.outcome.failed {
        false => (Some(outcome), None),
        true => (None, Some(outcome)),
    };
    let (readers, more_readers) = readers(view, deployment, id)?;
    let reads = cell.deps.iter().filter_map(|dep| read(deployment, dep));
    Ok(CellContent {
        value,
        error,
        root: cell.root,
        height: cell.height,
        changed: Revision(u64::from_be_bytes(*changed)),
        reads: reads.collect(),
        readers,
        more_readers,
    })
}

fn readers(
    view: &dyn View,
    deployment: &Deployment,
    id: &CellId,
) -> Result<(Vec<CellName>, bool), ViewError> {
    let prefix = readers_of(deployment.generation, &cell_target(id));
    let range = KeyRange::of_prefix(&prefix);
    let (mut found, mut more) = (Vec::new(), false);
    view.scan(
        Space::Readers,
        range.from.as_ref().map(Vec::as_slice),
        range.to.as_ref().map(Vec::as_slice),
        Direction::Forward,
        &mut |key, _| {
            more = found.len() == LISTED;
            if !more && let Some(reader) = CellId::from_bytes(&key[prefix.len()..]) {
                found.push(named(deployment, &reader));
            }
            !more
        },
    )?;
    Ok((found, more))
}

fn named(deployment: &Deployment, id: &CellId) -> CellName {
    let declared = deployment.manifest.derived.get(id.name());
    CellName {
        derived: id.name().to_owned(),
        key: declared.map(|d| id.key_object(d)).unwrap_or_default(),
    }
}

/// A dependency of a cell; absent for bytes that are none.
fn read(deployment: &Deployment, target: &[u8]) -> Option<Read> {
    match as_target(target)? {
        Target::Row { table, id } => Some(Read::Row { table, id }),
        Target::Cell(id) => Some(Read::Cell(named(deployment, &id))),
        Target::Window {
            table,
            physical,
            shared,
            from,
            to,
        } => {
            let (index, fields) = index(deployment, &table, &physical)?;
            let equal = fields.into_iter().zip(shared).collect();
            Some(Read::Entries {
                table,
                index,
                equal,
                from: values(&from),
                to: to.as_deref().map(values).unwrap_or_default(),
            })
        }
    }
}

/// Name and fields of an index by its stored name.
fn index(deployment: &Deployment, table: &str, physical: &str) -> Option<(String, Vec<String>)> {
    if let Some(declared) = deployment.manifest.derived.get(table) {
        let key = declared.key.iter().map(|(field, _)| field.clone());
        let fields = std::iter::once("value".to_owned()).chain(key);
        return Some((declared.index.clone()?, fields.collect()));
    }
    let indexes = &deployment.manifest.tables.get(table)?.indexes;
    let found = indexes
        .iter()
        .find(|(name, _)| deployment.stored_index(table, name) == physical);
    found.map(|(name, index)| (name.clone(), index.on.clone()))
}

/// The values that bytes of a key begin with, and the id behind them.
fn values(mut bytes: &[u8]) -> Vec<Value> {
    let mut found = Vec::new();
    while let Some((value, rest)) = codec::pop(bytes) {
        found.push(value);
        bytes = rest;
    }
    let id = std::str::from_utf8(bytes.get(..codec::ID_CHARS).unwrap_or_default());
    found.extend(id.ok().filter(|id| codec::is_id(id)).map(Value::from));
    found
}

/// What an evaluation read, at most [`LISTED`] of it; and how much more there was.
pub fn reads(deployment: &Deployment, set: &ReadSet) -> (Vec<Read>, u64) {
    let records = set
        .records()
        .filter_map(|(space, key)| record(deployment, space, key));
    let windows = set.windows().filter_map(|w| window(deployment, w));
    let mut all = windows.chain(records);
    let listed: Vec<Read> = all.by_ref().take(LISTED).collect();
    (listed, all.count() as u64)
}

fn record(deployment: &Deployment, space: Space, key: &[u8]) -> Option<Read> {
    if space == Space::Data && key.ends_with(ROW_TAIL) {
        return Some(Read::Row {
            table: part(key, 1)?,
            id: record::id_of_row_key(key)?.to_owned(),
        });
    }
    let (id, of) = CellId::at(space, key)?;
    (of == deployment.generation).then(|| Read::Cell(named(deployment, &id)))
}

/// A part of a key that ends in NUL.
fn part(key: &[u8], at: usize) -> Option<String> {
    let part = key.split(|b| *b == 0).nth(at)?;
    String::from_utf8(part.to_vec()).ok()
}

fn window(deployment: &Deployment, window: &Window) -> Option<Read> {
    let table = part(&window.from, 1)?;
    match window.space {
        Space::Data => Some(Read::Rows { table }),
        Space::Index => {
            let physical = part(&window.from, 2)?;
            let (_, fields) = index(deployment, &table, &physical)?;
            let name = IndexName {
                table,
                physical,
                fields: fields.len(),
            };
            read(deployment, &name.window(window))
        }
        _ => None,
    }
}
