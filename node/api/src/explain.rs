//! What the admin API says of a cell, and of a query: where a value comes from and what it costs.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    ids::Revision,
    wire::{Problem, ReadClass},
};

/// Readers and reads of which no more are listed.
pub const LISTED: usize = 200;

/// Asks for a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AskCell {
    /// The derived value.
    pub name: String,
    /// Its key: an object, or the one field's value alone.
    pub key: Value,
    /// How fresh: a read class; `fresh` when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<String>,
}

/// Asks for a query.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AskQuery {
    /// The query.
    pub name: String,
    /// Its arguments.
    pub args: Value,
    /// As in [`AskCell`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<String>,
}

/// The read class of a question.
///
/// # Errors
/// What is wrong with it.
pub fn class(read: Option<&str>) -> Result<ReadClass, String> {
    read.map_or(Ok(ReadClass::Fresh), str::parse)
}

/// A cell, by name and key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CellName {
    /// The derived value.
    pub derived: String,
    /// Its key.
    pub key: Map<String, Value>,
}

/// Something that was read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Read {
    /// A row, there or not.
    Row {
        /// Its table.
        table: String,
        /// Its id.
        id: String,
    },
    /// A cell.
    Cell(CellName),
    /// Rows of a table, by id.
    Rows {
        /// The table.
        table: String,
    },
    /// Entries of an index: those that have all of `equal`, from `from` up to `to`.
    Entries {
        /// The table, or the derived value.
        table: String,
        /// The index.
        index: String,
        /// Values that all entries share, by field.
        equal: Map<String, Value>,
        /// Values of the next fields at which it begins; none for the first entry.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        from: Vec<Value>,
        /// Values of the next fields at which it ends; none for the last entry.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        to: Vec<Value>,
    },
}

/// A cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CellExplained {
    /// The revision at which it was looked at.
    pub revision: Revision,
    /// The cell.
    #[serde(flatten)]
    pub cell: CellName,
    /// Whether it is stored; when it is not, only `why` is there.
    pub stored: bool,
    /// Why it is stored, or is not.
    pub why: String,
    /// What is stored of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<CellContent>,
}

/// What is stored of a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CellContent {
    /// Its value, when it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// Its error, when it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Value>,
    /// Kept for its own sake.
    pub root: bool,
    /// Cells on the longest path down from it, itself included.
    pub height: u8,
    /// The revision that changed it last.
    pub changed: Revision,
    /// What it read, in that order.
    pub reads: Vec<Read>,
    /// The stored cells that read it; at most [`LISTED`].
    pub readers: Vec<CellName>,
    /// There are more readers than are listed.
    pub more_readers: bool,
}

/// One budget of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// What is counted.
    pub what: String,
    /// How much of it was used.
    pub used: u64,
    /// How much may be.
    pub limit: u64,
    /// The setting of the limit.
    pub setting: String,
}

/// A query that was evaluated for its explanation, past the cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueryExplained {
    /// The revision at which it was evaluated.
    pub revision: Revision,
    /// Bytes of its result; absent when it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_bytes: Option<u64>,
    /// Why it has no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
    /// Time of the evaluation, microseconds; loading the application is not in it.
    pub micros: u64,
    /// What it used; nothing when it was refused.
    pub budgets: Vec<Budget>,
    /// Whether its result depends on the time or on random numbers, and so is never kept.
    pub volatile: bool,
    /// What it read; at most [`LISTED`].
    pub reads: Vec<Read>,
    /// Reads that are not listed.
    pub more_reads: u64,
}
