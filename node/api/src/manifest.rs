//! What a bundle declares: tables, indexes, derived values, functions and their types. Made by loading the
//! bundle; stored with the deployment; diffed against the next one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The declarations of a bundle.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Tables by name.
    pub tables: BTreeMap<String, Table>,
    /// Derived values by name; they share one namespace with the tables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub derived: BTreeMap<String, Derived>,
    /// Functions by name.
    pub functions: BTreeMap<String, Function>,
}

/// A table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Table {
    /// Fields by name, in order of declaration.
    pub fields: Vec<(String, FieldType)>,
    /// Indexes by name.
    pub indexes: BTreeMap<String, Index>,
}

/// An ordered index: an equality prefix and one range are read from it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    /// Field names, in order; the row's id is the implicit last.
    pub on: Vec<String>,
}

/// A value that a function of the bundle computes from rows and other derived values, one
/// for each key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Derived {
    /// Fields of the key, in order.
    pub key: Vec<(String, FieldType)>,
    /// Type of the value.
    pub value: FieldType,
    /// Which of its cells are stored.
    #[serde(default)]
    pub materialize: Materialize,
    /// Name of the index over its values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
    /// What an error does.
    #[serde(default)]
    pub on_error: OnError,
}

impl Derived {
    /// The table beside whose rows the cells are stored: that of a key of one id.
    pub fn home(&self) -> Option<&str> {
        match self.key.as_slice() {
            [(_, FieldType::Id { table })] => Some(table),
            _ => None,
        }
    }
}

/// Which cells of a derived value are stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Materialize {
    /// Those that a stored cell reads.
    #[default]
    Demand,
    /// One for each row of the table.
    Each(String),
    /// Each from its first read in a mutation until nothing that it reads is there.
    Always,
}

/// What happens when a derived value's function fails.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnError {
    /// The error is the value; readers get it thrown.
    #[default]
    Store,
    /// The mutation is refused.
    Reject,
}

/// A type of a field, argument or result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum FieldType {
    /// Id of a row of a table.
    Id {
        /// The table.
        table: String,
    },
    /// Text of at most so many UTF-16 units.
    Text {
        /// Bound.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max: Option<u64>,
    },
    /// A whole number within ±(2^53 - 1).
    Int {
        /// Least value.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        min: Option<i64>,
        /// Greatest value.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max: Option<i64>,
    },
    /// A finite number.
    Number,
    /// true or false.
    Bool,
    /// Milliseconds since 1970.
    Time,
    /// Any JSON.
    Json,
    /// One of some texts.
    OneOf {
        /// The texts.
        values: Vec<String>,
    },
    /// A list.
    List {
        /// Type of its items.
        item: Box<FieldType>,
        /// Bound of its length.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max: Option<u64>,
    },
    /// An object with known fields.
    Record {
        /// Its fields.
        fields: Vec<(String, FieldType)>,
    },
    /// May be absent.
    Optional {
        /// The type when present.
        inner: Box<FieldType>,
    },
}

/// What a function is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FunctionKind {
    /// Reads.
    Query,
    /// Reads and writes.
    Mutation,
}

/// A function that clients call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Function {
    /// Query or mutation.
    pub kind: FunctionKind,
    /// Arguments: a record; absent means any JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<FieldType>,
    /// Result; absent means anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returns: Option<FieldType>,
    /// Declared faults by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, u16>,
}
