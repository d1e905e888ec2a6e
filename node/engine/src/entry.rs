//! What one log entry carries: a batch of patches. Every change of the state is a patch made
//! by the leader, deployments and trims included; applying one runs no code of users.

use std::sync::Arc;

use flower_api::Revision;
use serde::{Deserialize, Serialize};

use crate::view::Patch;

/// Format of entries on disk and between peers; the first byte of an encoded entry. A node
/// refuses a format that it does not know and leaves it untouched.
pub const FORMAT: u8 = 1;

/// What an entry is for; tells metrics and logs, never how to apply it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// A batch of mutations.
    Mutations,
    /// Receipts whose time is up.
    Trim,
    /// A deployment.
    Deploy,
    /// A mark of the operator: formed, owner.
    Mark,
    /// A step of an import.
    Import,
}

/// A log entry's payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What it is for.
    pub kind: EntryKind,
    /// Last revision drawn when the entry was closed; never below that of an earlier entry.
    pub revision: Revision,
    /// The leader's stamp, milliseconds since 1970; never below that of an earlier entry.
    pub stamp_ms: u64,
    /// Patches in commit order; later ones win.
    pub patches: Vec<Arc<Patch>>,
}

/// Bytes are not an entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadEntry {
    /// A format of another version of the program.
    #[error("log entry of format {0}; this version knows only format {FORMAT}")]
    UnknownFormat(u8),
    /// Damaged.
    #[error("damaged log entry: {0}")]
    Damaged(String),
}

impl Entry {
    /// Bytes of all patches.
    pub fn size(&self) -> u64 {
        self.patches.iter().map(|p| p.size()).sum()
    }

    /// For disk and wire: format byte, then postcard.
    ///
    /// # Panics
    /// Never: postcard into a growing vector does not fail for these types.
    pub fn encode(&self) -> Vec<u8> {
        let start = Vec::with_capacity(self.size() as usize + 64);
        let mut out = start;
        out.push(FORMAT);
        postcard::to_extend(self, out).expect("postcard into a vector")
    }

    /// The inverse of [`Entry::encode`].
    ///
    /// # Errors
    /// `BadEntry` for another format and for damaged bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadEntry> {
        let damaged = |why: &str| BadEntry::Damaged(why.to_owned());
        match bytes.split_first() {
            None => Err(damaged("it is empty")),
            Some((&FORMAT, body)) => {
                let (entry, rest) =
                    postcard::take_from_bytes::<Self>(body).map_err(|e| damaged(&e.to_string()))?;
                if !rest.is_empty() || !entry.patches.iter().all(|p| p.is_well_formed()) {
                    return Err(damaged("trailing bytes or unsorted writes"));
                }
                Ok(entry)
            }
            Some((&other, _)) => Err(BadEntry::UnknownFormat(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{key::Space, view::PatchBuilder};

    #[test]
    fn entries_round_trip_and_damage_is_told() {
        let mut patch = PatchBuilder::new();
        patch.put(Space::Data, &b"k"[..], &b"v"[..]);
        patch.delete(Space::Index, &b"i"[..]);
        let entry = Entry {
            kind: EntryKind::Mutations,
            revision: Revision(7),
            stamp_ms: 9,
            patches: vec![Arc::new(patch.seal())],
        };
        let bytes = entry.encode();
        assert_eq!(Entry::decode(&bytes).unwrap(), entry);
        assert!(Entry::decode(&bytes[..bytes.len() - 1]).is_err());
        assert!(Entry::decode(&[]).is_err());
        assert_eq!(Entry::decode(&[9, 1, 2]), Err(BadEntry::UnknownFormat(9)));
    }
}
