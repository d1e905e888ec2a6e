//! Reading the log on any thread while it is written.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use bytes::Bytes;
use redb::{ReadTransaction, ReadableDatabase};

use super::{Bounds, FILE, LogStats, Shared};
use crate::{error::Fatal, record::LogRecord, tables::LOG};

/// Reads the log on any thread while it is written: the tail first, else the file.
#[derive(Clone)]
pub struct LogReader {
    pub(super) shared: Arc<Shared>,
}

impl LogReader {
    /// The records within `range` that are there, in order, as many as fit `max_bytes` and at
    /// least one. One coherent log: never a mix of before and after a truncation.
    ///
    /// # Errors
    /// When the disk fails or a record is damaged.
    pub fn get(&self, range: Range<u64>, max_bytes: u64) -> Result<Vec<LogRecord>, Fatal> {
        let (disk, recent) = {
            let tail = self.shared.tail.read();
            let from = range
                .start
                .max(tail.bounds.purged.map_or(tail.begins, |p| p.index + 1));
            let end = range
                .end
                .min(tail.bounds.last.map_or(0, |last| last.index + 1));
            if from >= end {
                return Ok(Vec::new());
            }
            let first = tail.first();
            // The snapshot is taken under the lock, so that it fits the copied tail.
            let disk = if from < first {
                Some((from..end.min(first), self.snapshot()?))
            } else {
                None
            };
            (disk, within(&tail.records, from..end, max_bytes))
        };
        let mut records = Vec::new();
        let mut room = max_bytes;
        if let Some((range, txn)) = disk {
            let wanted = range.end - range.start;
            records = read_records(&txn, range, &mut room)?;
            if (records.len() as u64) < wanted {
                return Ok(records);
            }
        }
        for record in recent {
            if !records.is_empty() && record.size() > room {
                break;
            }
            room = room.saturating_sub(record.size());
            records.push(record);
        }
        Ok(records)
    }

    fn snapshot(&self) -> Result<ReadTransaction, Fatal> {
        self.shared
            .open
            .db
            .begin_read()
            .map_err(|e| Fatal::with(FILE, "reading the log", e))
    }

    /// Where the log begins and ends, what is not flushed included.
    pub fn bounds(&self) -> Bounds {
        self.shared.tail.read().bounds
    }

    /// The vote saved last.
    pub fn vote(&self) -> Option<Bytes> {
        self.shared.tail.read().vote.clone()
    }

    /// The committed position noted last.
    pub fn committed(&self) -> Option<Bytes> {
        self.shared.tail.read().committed.clone()
    }

    /// Sizes.
    pub fn stats(&self) -> LogStats {
        let tail = self.shared.tail.read();
        LogStats {
            tail_bytes: tail.bytes,
            page_cache_bytes: self.shared.open.db.cache_stats().used_bytes() as u64,
            log_bytes: tail.disk_bytes + tail.unflushed().map(LogRecord::size).sum::<u64>(),
        }
    }
}

/// The contiguous records of `range` in the file, as many as `room` allows and at least one.
fn read_records(
    txn: &ReadTransaction,
    range: Range<u64>,
    room: &mut u64,
) -> Result<Vec<LogRecord>, Fatal> {
    let what = format!("reading the log from record {}", range.start);
    let failed = |e: redb::Error| Fatal::with(FILE, &what, e);
    let log = txn.open_table(LOG).map_err(|e| failed(e.into()))?;
    let mut records: Vec<LogRecord> = Vec::new();
    for found in log.range(range.clone()).map_err(|e| failed(e.into()))? {
        let (index, raw) = found.map_err(|e| failed(e.into()))?;
        let expected = range.start + records.len() as u64;
        let record = LogRecord::decode(raw.value()).map_err(|e| Fatal::with(FILE, &what, e))?;
        if index.value() != expected || record.position.index != expected {
            return Err(Fatal::with(
                FILE,
                &what,
                format_args!("record {expected} is missing"),
            ));
        }
        if !records.is_empty() && record.size() > *room {
            break;
        }
        *room = room.saturating_sub(record.size());
        records.push(record);
    }
    if records.is_empty() {
        return Err(Fatal::with(FILE, &what, "it is missing"));
    }
    Ok(records)
}

fn within(records: &VecDeque<LogRecord>, range: Range<u64>, max_bytes: u64) -> Vec<LogRecord> {
    let from = records.partition_point(|r| r.position.index < range.start);
    let mut bytes = 0;
    let mut taken = Vec::new();
    for record in records.range(from..) {
        if record.position.index >= range.end || (bytes > 0 && bytes + record.size() > max_bytes) {
            break;
        }
        bytes += record.size();
        taken.push(record.clone());
    }
    taken
}
