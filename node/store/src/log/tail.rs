//! What memory knows of the log, and how it is found again in the file. Never writes.

use std::collections::VecDeque;

use bytes::Bytes;
use redb::{ReadableDatabase, ReadableTable};

use super::{Bounds, FILE};
use crate::{
    backend::OpenFile,
    error::OpenError,
    record::{LogPosition, LogRecord},
    tables::{LOG, OWN, own},
};

/// What memory knows. Invariants:
/// 1. `records` are contiguous and end at `last` (none: everything up to `last` is on disk).
/// 2. Every record that the file lacks, or that a flush is about to write, is in `records`; the
///    file is read only before them, where neither flush nor truncation under way changes it.
#[derive(Default)]
pub(super) struct Tail {
    pub(super) records: VecDeque<LogRecord>,
    pub(super) bytes: u64,
    /// Bytes of the records in the file.
    pub(super) disk_bytes: u64,
    pub(super) bounds: Bounds,
    /// Index of the first record that there ever was, for a log that was never purged.
    pub(super) begins: u64,
    pub(super) vote: Option<Bytes>,
    pub(super) committed: Option<Bytes>,
    pub(super) pending: Pending,
}

/// What the next flush writes.
#[derive(Debug, Default, Clone)]
pub(super) struct Pending {
    /// Disk differs from memory from this index on.
    pub(super) rewrite_from: Option<u64>,
    /// Disk may hold records at or after `rewrite_from`.
    pub(super) truncated: bool,
    pub(super) purged: bool,
    pub(super) vote: bool,
    pub(super) committed: bool,
}

/// What one flush writes: a copy, so that appending goes on.
pub(super) struct Work {
    pub(super) pending: Pending,
    pub(super) records: Vec<LogRecord>,
    pub(super) bounds: Bounds,
    pub(super) vote: Option<Bytes>,
    pub(super) committed: Option<Bytes>,
    pub(super) disk_bytes: u64,
}

impl Pending {
    /// A note of what is committed alone is not worth a commit.
    pub(super) fn is_due(&self) -> bool {
        self.rewrite_from.is_some() || self.purged || self.vote
    }

    pub(super) fn rewrite(&mut self, index: u64) {
        self.rewrite_from = Some(self.rewrite_from.map_or(index, |from| from.min(index)));
    }
}

impl Tail {
    /// First index that is read from memory.
    pub(super) fn first(&self) -> u64 {
        match self.records.front() {
            Some(record) => record.position.index,
            None => self.bounds.last.map_or(0, |last| last.index + 1),
        }
    }

    pub(super) fn push(&mut self, record: LogRecord) {
        let index = record.position.index;
        if let Some(last) = self.bounds.last {
            assert!(
                index == last.index + 1,
                "the log ends at {last}; record {index} cannot follow"
            );
        } else {
            self.begins = index;
        }
        self.pending.rewrite(index);
        self.bounds.last = Some(record.position);
        self.bytes += record.size();
        self.records.push_back(record);
    }

    /// The records that the file lacks.
    pub(super) fn unflushed(&self) -> impl Iterator<Item = &LogRecord> {
        let from = self.pending.rewrite_from.unwrap_or(u64::MAX);
        let skip = self.records.partition_point(|r| r.position.index < from);
        self.records.range(skip..)
    }

    /// Takes what is to be written, if anything is worth it.
    pub(super) fn take_work(&mut self) -> Work {
        let mut work = Work {
            pending: Pending::default(),
            records: Vec::new(),
            bounds: self.bounds,
            vote: self.vote.clone(),
            committed: self.committed.clone(),
            disk_bytes: self.disk_bytes,
        };
        if self.pending.is_due() {
            work.records = self.unflushed().cloned().collect();
            work.pending = std::mem::take(&mut self.pending);
        }
        work
    }

    /// Work has become durable: records in the file may leave memory, oldest first.
    pub(super) fn written(&mut self, disk_bytes: u64, bound: u64) {
        self.disk_bytes = disk_bytes;
        let lacking = self.pending.rewrite_from.unwrap_or(u64::MAX);
        self.drop_front_while(|record, bytes| bytes > bound && record.position.index < lacking);
    }

    pub(super) fn drop_front_while(&mut self, gone: impl Fn(&LogRecord, u64) -> bool) {
        while let Some(record) = self.records.front() {
            if !gone(record, self.bytes) {
                break;
            }
            self.bytes -= record.size();
            self.records.pop_front();
        }
    }
}

pub(super) fn encode_position(position: LogPosition) -> Vec<u8> {
    [position.term, position.leader, position.index]
        .iter()
        .flat_map(|n| n.to_be_bytes())
        .collect()
}

fn decode_position(bytes: &[u8]) -> Option<LogPosition> {
    let (term, rest) = bytes.split_first_chunk()?;
    let (leader, rest) = rest.split_first_chunk()?;
    Some(LogPosition {
        term: u64::from_be_bytes(*term),
        leader: u64::from_be_bytes(*leader),
        index: u64::from_be_bytes(rest.try_into().ok()?),
    })
}

pub(super) fn load(open: &OpenFile) -> Result<Tail, OpenError> {
    let damaged = |what: &str| OpenError::damaged(FILE, format_args!("{what} is damaged"));
    let ends = read_ends(open).map_err(|e| OpenError::from_redb(FILE, e))?;
    let purged = match ends.purged {
        Some(raw) => Some(decode_position(&raw).ok_or_else(|| damaged("the purged position"))?),
        None => None,
    };
    let disk_bytes = match ends.bytes {
        Some(raw) => u64::from_be_bytes(
            raw[..]
                .try_into()
                .map_err(|_| damaged("the sum of bytes"))?,
        ),
        None => 0,
    };
    let last = match ends.last {
        Some(raw) => {
            let record = LogRecord::decode(&raw).map_err(|e| OpenError::damaged(FILE, e))?;
            Some(record.position)
        }
        None => purged,
    };
    Ok(Tail {
        bounds: Bounds { purged, last },
        begins: ends.first,
        vote: ends.vote,
        committed: ends.committed,
        disk_bytes,
        ..Tail::default()
    })
}

struct Ends {
    vote: Option<Bytes>,
    committed: Option<Bytes>,
    purged: Option<Bytes>,
    bytes: Option<Bytes>,
    first: u64,
    last: Option<Bytes>,
}

fn read_ends(open: &OpenFile) -> Result<Ends, redb::Error> {
    let txn = open.db.begin_read()?;
    let own = txn.open_table(OWN)?;
    let value = |key: &[u8]| -> Result<Option<Bytes>, redb::Error> {
        Ok(own.get(key)?.map(|raw| Bytes::copy_from_slice(raw.value())))
    };
    let log = txn.open_table(LOG)?;
    Ok(Ends {
        vote: value(own::VOTE)?,
        committed: value(own::COMMITTED)?,
        purged: value(own::PURGED)?,
        bytes: value(own::BYTES)?,
        first: log.first()?.map_or(0, |(index, _)| index.value()),
        last: log
            .last()?
            .map(|(_, raw)| Bytes::copy_from_slice(raw.value())),
    })
}
