//! Keys of the state. Every key of a partition's data begins with the partition and a kind,
//! so that several partitions and kinds can share a table later. Text parts end in NUL.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A table of `state.redb`. The numbers are part of the disk and wire formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Space {
    /// Names: revision, stamp, owner, formed, active deployment, trim watermark.
    Meta = 0,
    /// Rows and the cells beside them: partition, table, row id, kind.
    Data = 1,
    /// Index entries: partition, index, encoded fields, row id. Empty values with a version.
    Index = 2,
    /// Receipts: partition, subject, key.
    Receipts = 3,
    /// Receipts by the time until which they are kept: time, partition, subject, key.
    ReceiptsByAge = 4,
    /// Deployments by hash: source and manifest.
    Deploy = 5,
    /// Reverse edges of derived values: partition, what is read, the cell that reads it.
    Readers = 6,
    /// Cells that lie beside no row: partition, derived value, encoded key.
    Cells = 7,
}

impl Space {
    /// All spaces, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Meta,
        Self::Data,
        Self::Index,
        Self::Receipts,
        Self::ReceiptsByAge,
        Self::Deploy,
        Self::Readers,
        Self::Cells,
    ];

    /// The table's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Meta => "meta",
            Self::Data => "data",
            Self::Index => "index",
            Self::Receipts => "receipts",
            Self::ReceiptsByAge => "receipts_by_age",
            Self::Deploy => "deploy",
            Self::Readers => "readers",
            Self::Cells => "cells",
        }
    }

    /// The space with this number.
    pub fn from_number(n: u8) -> Option<Self> {
        Self::ALL.get(usize::from(n)).copied()
    }
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Keys in [`Space::Meta`] that patches write.
pub mod meta {
    /// Last committed revision: u64, big endian.
    pub const REVISION: &[u8] = b"revision";
    /// Last stamp, milliseconds: u64, big endian.
    pub const STAMP: &[u8] = b"stamp";
    /// The group has once reached its size: one byte.
    pub const FORMED: &[u8] = b"formed";
    /// JSON of `flower_api::report::StoredOwner`.
    pub const OWNER: &[u8] = b"owner";
    /// JSON of the active deployment: hash, revision, managed by.
    pub const ACTIVE: &[u8] = b"active";
    /// JSON of the build that is under way (`deploy::Build`).
    pub const BUILD: &[u8] = b"build";
    /// JSON of the last build, when it failed (`deploy::FailedBuild`).
    pub const BUILD_FAILED: &[u8] = b"build_failed";
    /// Key in [`super::Space::Data`] from which cells that nobody needs are looked for;
    /// absent when there are none.
    pub const SWEEP: &[u8] = b"sweep";
    /// Latest key time (ms, u64 big endian) whose receipt may have been trimmed: a UUIDv7 key
    /// up to it is refused, never executed again.
    pub const TRIMMED: &[u8] = b"trimmed";
    /// How far an import is that is under way: JSON of the engine's import module. While it is
    /// there, mutations and deployments are refused.
    pub const IMPORTING: &[u8] = b"importing";
    /// Checksum of the export that was imported last.
    pub const IMPORTED: &[u8] = b"imported";
}
