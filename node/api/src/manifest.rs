//! What a bundle declares: tables, indexes, functions and their types. Made by loading the
//! bundle; stored with the deployment; diffed against the next one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The declarations of a bundle.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Tables by name.
    pub tables: BTreeMap<String, Table>,
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
