//! Cells: how they are named, where they lie, what their records hold. A cell is one record:
//! root mark, height, dependencies and outcome change together and are read together, so that
//! records of their own would only be more keys. Pure.

use std::fmt;

use bytes::Bytes;
use flower_api::{PartitionId, Revision, limits, manifest::Derived};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    codec,
    key::Space,
    record,
    types::{self, Errors},
};

/// Format of cell records; the first byte after the revision.
const FORMAT: u8 = 1;
/// Between the id of a row and the name of a derived value in the key of a cell beside it.
const CELL_TAIL: &[u8] = b"\0c";
/// The name of errors that come from another cell; their text goes up as it is.
const DERIVED_ERROR: &str = "DerivedError";
/// Characters of a thrown message that are stored.
const MESSAGE_CHARS: usize = 4_000;

/// Name and key of a cell: the name, NUL, the encoded fields of the key. Of two cells of one
/// derived value neither is a prefix of the other.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CellId(Bytes);

impl CellId {
    /// The cell for a key given as JSON.
    ///
    /// # Errors
    /// What is wrong with the key, for the application's author.
    pub fn new(name: &str, declared: &Derived, key: &str) -> Result<Self, String> {
        let wrong = |why: String| format!("{name}: the key does not fit: {why}");
        let object: Map<String, Value> =
            serde_json::from_str(key).map_err(|e| wrong(e.to_string()))?;
        let mut errors = Errors::default();
        types::check_fields(&declared.key, &object, "", &mut errors);
        if !errors.0.is_empty() {
            return Err(wrong(errors.text()));
        }
        let mut bytes = [name.as_bytes(), b"\0"].concat();
        for (field, _) in &declared.key {
            if !codec::push(&mut bytes, object.get(field).unwrap_or(&Value::Null)) {
                return Err(wrong(format!("'{field}' has no order")));
            }
        }
        let (size, most) = (bytes.len() as u64, limits::KEY_BYTES);
        if size > most {
            return Err(wrong(format!("it has {size} bytes; at most {most}")));
        }
        Ok(Self(bytes.into()))
    }

    /// The cell for a row.
    pub fn of_row(name: &str, id: &str) -> Self {
        let mut bytes = [name.as_bytes(), b"\0"].concat();
        // A text always has a place.
        let _ = codec::push(&mut bytes, &Value::from(id));
        Self(bytes.into())
    }

    /// The cell that bytes name; absent for other bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let nul = bytes.iter().position(|b| *b == 0)?;
        std::str::from_utf8(&bytes[..nul]).ok()?;
        Some(Self(Bytes::copy_from_slice(bytes)))
    }

    /// The cell that lies under a key of [`Space::Data`] or [`Space::Cells`]; absent for
    /// other keys.
    pub fn at(space: Space, key: &[u8]) -> Option<Self> {
        match space {
            Space::Cells => Self::from_bytes(key.strip_prefix(&partition()[..])?),
            Space::Data => {
                let at = key.windows(2).rposition(|pair| pair == CELL_TAIL)?;
                let name = std::str::from_utf8(&key[at + CELL_TAIL.len()..]).ok()?;
                if name.contains('\0') {
                    return None;
                }
                let id = key.get(at.checked_sub(codec::ID_CHARS)?..at)?;
                Some(Self::of_row(name, std::str::from_utf8(id).ok()?))
            }
            _ => None,
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn name(&self) -> &str {
        let nul = self.0.iter().position(|b| *b == 0).unwrap_or(self.0.len());
        std::str::from_utf8(&self.0[..nul]).unwrap_or_default()
    }

    /// The encoded fields of its key.
    pub fn key(&self) -> &[u8] {
        self.0.get(self.name().len() + 1..).unwrap_or_default()
    }

    /// Its key as an object in declared order.
    pub fn key_object(&self, declared: &Derived) -> Map<String, Value> {
        let mut object = Map::new();
        let mut rest = self.key();
        for (field, _) in &declared.key {
            let Some((value, after)) = codec::pop(rest) else {
                break;
            };
            object.insert(field.clone(), value);
            rest = after;
        }
        object
    }

    pub fn key_json(&self, declared: &Derived) -> String {
        Value::Object(self.key_object(declared)).to_string()
    }

    /// For people: `total({"order":"…"})`.
    pub fn shown(&self, declared: &Derived) -> String {
        format!("{}({})", self.name(), self.key_json(declared))
    }

    /// Where its record lies: beside the row that its key names, or in a space of its own.
    pub fn location(&self, declared: &Derived) -> (Space, Vec<u8>) {
        if let Some(table) = declared.home()
            && let Some((Value::String(id), _)) = codec::pop(self.key())
        {
            let mut key = record::table_prefix(table);
            key.extend_from_slice(id.as_bytes());
            key.extend_from_slice(CELL_TAIL);
            key.extend_from_slice(self.name().as_bytes());
            return (Space::Data, key);
        }
        (Space::Cells, [&partition()[..], self.as_bytes()].concat())
    }
}

impl fmt::Debug for CellId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

/// What begins all keys of a partition.
pub(crate) fn partition() -> Vec<u8> {
    [PartitionId::ROOT.as_bytes(), b"\0"].concat()
}

/// What an evaluation ended with, as JSON: a value, or an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub failed: bool,
    pub json: String,
}

/// An error that is an outcome.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Failed {
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub message: String,
    /// Of a thrown fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl Outcome {
    pub fn value(json: &str) -> Self {
        Self {
            failed: false,
            json: json.to_owned(),
        }
    }

    pub fn error(message: impl Into<String>) -> Self {
        Self::failed(Failed {
            name: "Error".into(),
            message: message.into(),
            ..Failed::default()
        })
    }

    pub fn failed(mut error: Failed) -> Self {
        if let Some((end, _)) = error.message.char_indices().nth(MESSAGE_CHARS) {
            error.message.truncate(end);
        }
        Self {
            failed: true,
            // These types always have a JSON form.
            json: serde_json::to_string(&error).unwrap_or_default(),
        }
    }

    /// Whether there is a value, or an error: anything but an absent value.
    pub fn is_present(&self) -> bool {
        self.failed || self.json != "null"
    }

    fn error_of(&self) -> Failed {
        serde_json::from_str(&self.json).unwrap_or_default()
    }

    /// The error for people: with the cell's name, unless it already has that of the cell
    /// that it comes from.
    pub fn told(&self, id: &CellId, declared: &Derived) -> String {
        let error = self.error_of();
        if error.name == DERIVED_ERROR {
            return error.message;
        }
        format!("{}: {}", id.shown(declared), error.message)
    }

    /// The error as its readers get it thrown: a fault as it was, anything else with the name
    /// of the cell.
    pub fn thrown(&self, id: &CellId, declared: &Derived) -> Failed {
        let mut error = self.error_of();
        if error.code.is_none() {
            error.message = self.told(id, declared);
            error.name = DERIVED_ERROR.into();
        }
        error
    }
}

/// The record of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cell {
    /// Kept without a reader.
    pub root: bool,
    /// Nothing that it read was there.
    pub hollow: bool,
    /// Number of cells on the longest path of derived values down from it, itself included.
    pub height: u8,
    /// Targets (see `target`) in the order in which they were read.
    pub deps: Vec<Bytes>,
    pub outcome: Outcome,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    root: bool,
    hollow: bool,
    height: u8,
    deps: Vec<Bytes>,
    failed: bool,
    json: String,
}

impl Cell {
    /// Value of the record: revision (8 bytes, big endian), format, postcard.
    pub fn encode(&self, revision: Revision) -> Bytes {
        let stored = Stored {
            root: self.root,
            hollow: self.hollow,
            height: self.height,
            deps: self.deps.clone(),
            failed: self.outcome.failed,
            json: self.outcome.json.clone(),
        };
        let mut out = revision.0.to_be_bytes().to_vec();
        out.push(FORMAT);
        // Postcard into a growing vector does not fail for these types.
        postcard::to_extend(&stored, out).unwrap_or_default().into()
    }

    /// The inverse; absent for other bytes.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let (&format, body) = value.get(8..)?.split_first()?;
        if format != FORMAT {
            return None;
        }
        let stored: Stored = postcard::from_bytes(body).ok()?;
        Some(Self {
            root: stored.root,
            hollow: stored.hollow,
            height: stored.height,
            deps: stored.deps,
            outcome: Outcome {
                failed: stored.failed,
                json: stored.json,
            },
        })
    }
}

/// Whether two values of cell records differ only in the revision that wrote them.
pub(crate) fn same_body(a: &[u8], b: &[u8]) -> bool {
    a.get(8..) == b.get(8..)
}
