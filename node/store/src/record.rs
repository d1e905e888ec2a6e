//! What the log holds: positions and records, with their encoding. The same bytes serve disk
//! and peers; a record carries its format in front and its checksum behind.

use std::sync::Arc;

use bytes::Bytes;
use flower_engine::{Entry, entry::BadEntry};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// A position in the log. Positions are ordered as the log's owners are: a log that ends at a
/// higher position holds every committed entry of the lower one.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct LogPosition {
    /// Term of the leader that wrote the entry.
    pub term: u64,
    /// Member id of that leader.
    pub leader: u64,
    /// Index, from 0.
    pub index: u64,
}

impl std::fmt::Display for LogPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of term {}", self.index, self.term)
    }
}

/// One record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// Where it stands.
    pub position: LogPosition,
    /// What it carries.
    pub payload: Payload,
}

/// What a record carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// Nothing: the first entry of a leader.
    Blank,
    /// Patches.
    Entry(Arc<Entry>),
    /// A configuration, encoded by the consensus module.
    Membership(Bytes),
}

/// Bytes are not a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadRecord {
    /// Of another version of the program.
    #[error("log record of format {0}; this version knows only format {FORMAT}")]
    UnknownFormat(u8),
    /// Damaged on disk or on the way.
    #[error("damaged log record: {0}")]
    Damaged(String),
}

const FORMAT: u8 = 1;
const CHECKSUM_BYTES: usize = 8;
const HEAD_BYTES: usize = 1 + 3 * 8 + 1;

impl LogRecord {
    /// Bytes that it takes in memory and on disk, nearly.
    pub fn size(&self) -> u64 {
        let payload = match &self.payload {
            Payload::Blank => 0,
            Payload::Entry(entry) => entry.size() + 24,
            Payload::Membership(bytes) => bytes.len() as u64,
        };
        payload + (HEAD_BYTES + CHECKSUM_BYTES) as u64
    }

    /// Format, position, kind, payload, checksum.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(self.size() as usize + 64);
        out.push(FORMAT);
        for n in [
            self.position.term,
            self.position.leader,
            self.position.index,
        ] {
            out.extend_from_slice(&n.to_be_bytes());
        }
        match &self.payload {
            Payload::Blank => out.push(0),
            Payload::Entry(entry) => {
                out.push(1);
                out.extend_from_slice(&entry.encode());
            }
            Payload::Membership(bytes) => {
                out.push(2);
                out.extend_from_slice(bytes);
            }
        }
        let sum = xxh3_64(&out);
        out.extend_from_slice(&sum.to_be_bytes());
        out.into()
    }

    /// The inverse of [`LogRecord::encode`].
    ///
    /// # Errors
    /// `BadRecord` for another format and for damaged bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadRecord> {
        let damaged = |why: &str| BadRecord::Damaged(why.to_owned());
        match bytes.first() {
            None => return Err(damaged("it is empty")),
            Some(&FORMAT) => {}
            Some(&other) => return Err(BadRecord::UnknownFormat(other)),
        }
        let Some((body, sum)) = bytes
            .split_last_chunk::<CHECKSUM_BYTES>()
            .filter(|(body, _)| body.len() >= HEAD_BYTES)
        else {
            return Err(damaged("it is cut short"));
        };
        if xxh3_64(body) != u64::from_be_bytes(*sum) {
            return Err(damaged("its checksum does not match"));
        }
        let number = |at: usize| {
            let mut raw = [0; 8];
            raw.copy_from_slice(&body[at..at + 8]);
            u64::from_be_bytes(raw)
        };
        let rest = &body[HEAD_BYTES..];
        let payload = match body[HEAD_BYTES - 1] {
            0 if rest.is_empty() => Payload::Blank,
            1 => Payload::Entry(Arc::new(Entry::decode(rest).map_err(|e| match e {
                BadEntry::UnknownFormat(format) => BadRecord::UnknownFormat(format),
                BadEntry::Damaged(why) => BadRecord::Damaged(why),
            })?)),
            2 => Payload::Membership(Bytes::copy_from_slice(rest)),
            _ => return Err(damaged("its kind is unknown")),
        };
        Ok(Self {
            position: LogPosition {
                term: number(1),
                leader: number(9),
                index: number(17),
            },
            payload,
        })
    }
}

#[cfg(test)]
mod tests {
    use flower_api::Revision;
    use flower_engine::{EntryKind, PatchBuilder, Space};

    use super::*;

    fn records() -> Vec<LogRecord> {
        let mut patch = PatchBuilder::new();
        patch.put(Space::Data, &b"k"[..], &b"v"[..]);
        let entry = Entry {
            kind: EntryKind::Mutations,
            revision: Revision(3),
            stamp_ms: 4,
            patches: vec![Arc::new(patch.seal())],
        };
        let position = LogPosition {
            term: 1,
            leader: u64::MAX,
            index: 9,
        };
        [
            Payload::Blank,
            Payload::Entry(Arc::new(entry)),
            Payload::Membership(Bytes::from_static(b"members")),
        ]
        .map(|payload| LogRecord { position, payload })
        .to_vec()
    }

    #[test]
    fn records_round_trip() {
        for record in records() {
            assert_eq!(LogRecord::decode(&record.encode()).unwrap(), record);
        }
    }

    #[test]
    fn every_flipped_or_missing_byte_is_told() {
        for record in records() {
            let bytes = record.encode();
            for at in 0..bytes.len() {
                let mut flipped = bytes.to_vec();
                flipped[at] ^= 1;
                assert!(LogRecord::decode(&flipped).is_err(), "byte {at}");
                assert!(LogRecord::decode(&bytes[..at]).is_err(), "cut at {at}");
            }
        }
        let mut newer = records()[0].encode().to_vec();
        newer[0] = 9;
        assert_eq!(LogRecord::decode(&newer), Err(BadRecord::UnknownFormat(9)));
    }
}
