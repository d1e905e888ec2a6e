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
pub(crate) const DERIVED_ERROR: &str = "DerivedError";
/// Characters of a thrown message that are stored.
const MESSAGE_CHARS: usize = 4_000;

/// Which of the cells of all derived values of a database: those that one deployment made
/// and keeps. A deployment with other code makes new ones beside them, under other keys. The
/// first one's is 0, any other's the revision in which it was begun.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Generation(pub u64);

impl Generation {
    /// The stored name of a derived value, or of the index over one.
    pub(crate) fn named(self, name: &str) -> String {
        match self.0 {
            0 => name.to_owned(),
            n => format!("{name}.{n}"),
        }
    }

    /// The inverse; absent for a name that is of no generation.
    fn split(stored: &str) -> Option<(&str, Self)> {
        match stored.split_once('.') {
            None => Some((stored, Self(0))),
            Some((name, n)) => Some((name, Self(n.parse().ok()?))),
        }
    }

    /// What begins the keys of a derived value's cells in [`Space::Cells`].
    pub(crate) fn cells(self, name: &str) -> Vec<u8> {
        [&partition()[..], self.named(name).as_bytes(), b"\0"].concat()
    }

    /// What begins the keys of all reader records.
    pub(crate) fn readers(self) -> Vec<u8> {
        let mut key = partition();
        if self.0 > 0 {
            key.extend_from_slice(format!("g{}\0", self.0).as_bytes());
        }
        key
    }

    /// What begins the keys of what mutations note for a build of this generation.
    pub(crate) fn log(self) -> Vec<u8> {
        [&partition()[..], format!("d{}\0", self.0).as_bytes()].concat()
    }

    /// The generation that a reader record, or what is noted for a build, is of; absent for
    /// other keys.
    pub(crate) fn of_reader(key: &[u8]) -> Option<Self> {
        let rest = key.strip_prefix(&partition()[..])?;
        let Some(tagged) = rest.strip_prefix(b"g").or_else(|| rest.strip_prefix(b"d")) else {
            return Some(Self(0));
        };
        let end = tagged.iter().position(|b| *b == 0)?;
        let number = std::str::from_utf8(&tagged[..end]).ok()?;
        Some(Self(number.parse().ok()?))
    }
}

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

    /// The cell that lies under a key of [`Space::Data`] or [`Space::Cells`], and the
    /// generation that it is of; absent for other keys.
    pub fn at(space: Space, key: &[u8]) -> Option<(Self, Generation)> {
        match space {
            Space::Cells => {
                let stored = Self::from_bytes(key.strip_prefix(&partition()[..])?)?;
                let (name, generation) = Generation::split(stored.name())?;
                let bytes = [name.as_bytes(), b"\0", stored.key()].concat();
                Some((Self(bytes.into()), generation))
            }
            Space::Data => {
                let at = key.windows(2).rposition(|pair| pair == CELL_TAIL)?;
                let stored = std::str::from_utf8(&key[at + CELL_TAIL.len()..]).ok()?;
                let (name, generation) = Generation::split(stored)?;
                if name.contains('\0') {
                    return None;
                }
                let id = key.get(at.checked_sub(codec::ID_CHARS)?..at)?;
                let cell = Self::of_row(name, std::str::from_utf8(id).ok()?);
                Some((cell, generation))
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

    /// Where its record of a generation lies: beside the row that its key names, or in a
    /// space of its own.
    pub fn location(&self, declared: &Derived, of: Generation) -> (Space, Vec<u8>) {
        if let Some(table) = declared.home()
            && let Some((Value::String(id), _)) = codec::pop(self.key())
        {
            let mut key = record::table_prefix(table);
            key.extend_from_slice(id.as_bytes());
            key.extend_from_slice(CELL_TAIL);
            key.extend_from_slice(of.named(self.name()).as_bytes());
            return (Space::Data, key);
        }
        let mut key = of.cells(self.name());
        key.extend_from_slice(self.key());
        (Space::Cells, key)
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
