//! Exports: one JSON document a line (NDJSON). The first line is the header, then the bundle,
//! rows by table, receipts, roots, on request cells, and at last the end with counts and the
//! checksum of all lines before it. Also the steps by which an export is imported.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    admin::Fence,
    ids::{ClusterId, GroupId, Revision},
    manifest::Manifest,
    wire::Problem,
};

/// Format of exports; another one is refused.
pub const FORMAT: u32 = 1;

/// Lines of a page are sent together up to about so many bytes. With every index that a table
/// may have, what they become stays below what one entry may write.
pub const PAGE_BYTES: usize = 256 << 10;

/// One line.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Line {
    /// The first one.
    Header(Header),
    /// The application.
    Bundle(Bundle),
    /// A row.
    Row(Row),
    /// A receipt.
    Receipt(Receipt),
    /// A cell that a mutation made a root by reading it.
    Root(Root),
    /// A stored cell; only on request, and passed over by an import.
    Cell(Cell),
    /// The last one.
    End(End),
}

/// Where an export comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// See [`FORMAT`].
    pub format: u32,
    /// Version of the program that wrote it.
    pub program: String,
    /// The cluster.
    pub cluster: Option<ClusterId>,
    /// The group.
    pub group: GroupId,
    /// The revision that all of it shows.
    pub revision: Revision,
    /// Latest time of a key whose receipt may be gone, ms since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trimmed_ms: Option<u64>,
    /// Whether it holds the stored cells.
    #[serde(default)]
    pub cells: bool,
}

/// The active application; there is none without rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bundle {
    /// SHA-256 of the source, hex.
    pub hash: String,
    /// What it declares; for readers, an import asks the source.
    pub manifest: Manifest,
    /// One ES module.
    pub source: String,
}

/// A row.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Row {
    /// Its table.
    pub table: String,
    /// Its id.
    pub id: String,
    /// The revision that wrote it.
    pub version: Revision,
    /// Its fields without the id.
    pub value: Box<RawValue>,
}

/// A receipt.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Receipt {
    /// Subject of the token.
    pub subject: String,
    /// The idempotency key.
    pub key: String,
    /// The mutation.
    pub mutation: String,
    /// What the key stands for, hex.
    pub fingerprint: String,
    /// Revision of the mutation.
    pub revision: Revision,
    /// Its time, ms since 1970.
    pub created_ms: u64,
    /// Kept until then, ms since 1970.
    pub until_ms: u64,
    /// How it ended.
    pub ended: Ended,
}

/// How a mutation ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Ended {
    /// With this result.
    Result(Box<RawValue>),
    /// With a result that was too large to keep.
    ResultNotKept,
    /// With a declared fault.
    Fault(Box<Problem>),
}

/// A cell of a derived value with `materialize: "always"` that is stored for its own sake.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Root {
    /// The derived value.
    pub derived: String,
    /// Its key, an object.
    pub key: Box<RawValue>,
}

/// A stored cell.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cell {
    /// The derived value.
    pub derived: String,
    /// Its key, an object.
    pub key: Box<RawValue>,
    /// Stored for its own sake.
    pub root: bool,
    /// Cells on the longest path down from it, itself included.
    pub height: u8,
    /// Its value, when it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Box<RawValue>>,
    /// Its error, when it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Box<RawValue>>,
}

/// Numbers of lines of a kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Rows.
    pub rows: u64,
    /// Receipts.
    pub receipts: u64,
    /// Roots.
    pub roots: u64,
    /// Cells.
    #[serde(default)]
    pub cells: u64,
}

impl Counts {
    /// Lines that an import writes.
    pub fn imported(&self) -> u64 {
        self.rows + self.receipts + self.roots
    }
}

/// The last line: without it the export is cut short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct End {
    /// What came before.
    #[serde(flatten)]
    pub counts: Counts,
    /// SHA-256 of all bytes before this line, hex.
    pub sha256: String,
}

/// A call of the import: this as the first line of the body, then lines of the export, as
/// they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Import {
    /// What it was planned against.
    pub fence: Fence,
    /// Checksum of the export: tells one import from another.
    pub import: String,
    /// What to do.
    pub step: Step,
}

/// One step of an import. Each may be sent again: what is done already is not done twice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Step {
    /// Begins it, or asks how far it is. The export's bundle follows, if it has one.
    Begin(Header),
    /// The lines that follow: rows and receipts, or roots, which come last.
    Page {
        /// Lines written before.
        at: u64,
    },
    /// Evaluates derived values of the next rows, about so many.
    Build {
        /// How many.
        most: u64,
    },
    /// Ends it, once all is there.
    Finish(Counts),
}

/// How far an import is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Imported {
    /// Lines written.
    pub written: Counts,
    /// Rows whose derived values are evaluated.
    pub built: u64,
    /// Whether those of all rows are.
    pub all_built: bool,
    /// Whether it has ended.
    pub finished: bool,
}
