//! The index over the values of a derived value: an entry for each stored cell without an
//! error, in the order of values, then of keys. An entry's key holds all that it says.

use std::sync::Arc;

use bytes::Bytes;
use flower_api::{limits, manifest::Derived};
use serde_json::{Map, Value};

use super::cell::{CellId, Generation, Outcome};
use crate::{
    codec,
    key::Space,
    record,
    transaction::{Result, Transaction},
};

/// The key of a cell's entry.
///
/// # Errors
/// When it is too large, or the value has no order; for the application's author.
pub(super) fn entry_key(
    of: Generation,
    id: &CellId,
    index: &str,
    outcome: &Outcome,
) -> std::result::Result<Vec<u8>, String> {
    let name = id.name();
    let mut key = record::index_prefix(name, &of.named(index));
    let value: Value = serde_json::from_str(&outcome.json).map_err(|e| e.to_string())?;
    if !codec::push(&mut key, &value) {
        return Err(format!("{name}: its value has no order"));
    }
    key.extend_from_slice(id.key());
    let (bytes, most) = (key.len() as u64, limits::KEY_BYTES);
    if bytes > most {
        return Err(format!(
            "{name}: index '{index}' would need a key of {bytes} bytes; at most {most}"
        ));
    }
    Ok(key)
}

/// The row that an entry stands for: the fields of the cell's key, then `value`. Absent for
/// a key of another form.
pub(crate) fn row_of_entry(declared: &Derived, suffix: &[u8]) -> Option<String> {
    let (value, mut rest) = codec::pop(suffix)?;
    let mut row = Map::new();
    for (field, _) in &declared.key {
        let (part, after) = codec::pop(rest)?;
        row.insert(field.clone(), part);
        rest = after;
    }
    if !rest.is_empty() {
        return None;
    }
    row.insert("value".into(), value);
    Some(Value::Object(row).to_string())
}

impl Transaction {
    /// An outcome whose value cannot be indexed is an error.
    pub(super) fn indexable(&self, id: &CellId, declared: &Derived, outcome: Outcome) -> Outcome {
        let of = self.deployment.generation;
        match &declared.index {
            Some(index) if !outcome.failed => match entry_key(of, id, index, &outcome) {
                Ok(_) => outcome,
                Err(why) => Outcome::error(why),
            },
            _ => outcome,
        }
    }

    /// Moves the entry of a cell from one outcome to another; absent is no cell.
    pub(super) fn index_value(
        &mut self,
        id: &CellId,
        old: Option<&Outcome>,
        new: Option<&Outcome>,
    ) -> Result<()> {
        let deployment = Arc::clone(&self.deployment);
        let Some(index) = &Self::derived(&deployment, id.name())?.index else {
            return Ok(());
        };
        let key = |outcome: Option<&Outcome>| {
            let value = outcome.filter(|outcome| !outcome.failed)?;
            entry_key(deployment.generation, id, index, value).ok()
        };
        let (before, after) = (key(old), key(new));
        if before == after {
            return Ok(());
        }
        if let Some(key) = before {
            self.put_mark(Space::Index, key, None)?;
        }
        if let Some(key) = after {
            let value: Bytes = record::value(self.stamp.revision, "");
            self.put_mark(Space::Index, key, Some(value))?;
        }
        Ok(())
    }
}
