//! A recovery that was accepted and waits for the next start, in `recovery.json`: it is written
//! while the node runs, and carried out before consensus begins. What it does to the log is
//! consensus' to say; here it is only kept.

use std::collections::BTreeMap;

use flower_api::{MemberId, report::Recovery};
use serde::{Deserialize, Serialize};

use crate::{
    disk::{Disk, FileName},
    error::{Fatal, OpenError},
    record::LogPosition,
};

const FILE: FileName = FileName::Recovery;
/// Format of `recovery.json`.
const FORMAT: u64 = 1;

/// What was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// Format of this file.
    format: u64,
    /// The recovery; its member is the one whose data stays.
    pub recovery: Recovery,
    /// Where its log ended when it was accepted: at another end nothing is done.
    pub last: LogPosition,
    /// Its own peer address.
    pub address: String,
    /// The other members and their addresses: they are given up.
    pub given_up: BTreeMap<MemberId, String>,
}

impl Accepted {
    /// A recovery from a log that ends at `last`.
    pub fn new(
        recovery: Recovery,
        last: LogPosition,
        address: String,
        given_up: BTreeMap<MemberId, String>,
    ) -> Self {
        Self {
            format: FORMAT,
            recovery,
            last,
            address,
            given_up,
        }
    }

    /// Keeps it, durably.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn save(&self, disk: &dyn Disk) -> Result<(), Fatal> {
        let bytes = serde_json::to_vec_pretty(self)
            .map_err(|e| Fatal::with(FILE, "encoding the recovery", e))?;
        disk.write_small_atomically(FILE, &bytes)
            .map_err(|e| Fatal::with(FILE, "saving the recovery", e))
    }

    /// The one that waits, if any does.
    ///
    /// # Errors
    /// When the disk fails, or the file is damaged or of another version.
    pub fn load(disk: &dyn Disk) -> Result<Option<Self>, OpenError> {
        let read = disk.read_small(FILE).map_err(|e| OpenError::io(FILE, &e))?;
        let Some(bytes) = read else {
            return Ok(None);
        };
        let accepted: Self =
            serde_json::from_slice(&bytes).map_err(|e| OpenError::damaged(FILE, e))?;
        if accepted.format != FORMAT {
            return Err(OpenError::UnknownFormat {
                file: FILE,
                found: accepted.format,
                known: FORMAT,
            });
        }
        Ok(Some(accepted))
    }

    /// Forgets the one that waits, durably; nothing when none does.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn forget(disk: &dyn Disk) -> Result<(), Fatal> {
        let removed = disk.remove(FILE).and_then(|()| disk.sync_dir());
        removed.map_err(|e| Fatal::with(FILE, "removing the recovery", e))
    }
}
