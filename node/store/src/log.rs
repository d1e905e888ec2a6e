//! The log: `raft.redb` with an in-memory tail in front. Appended records are readable at
//! once, durable after [`Log::flush`]: one commit, whatever was appended, truncated, purged,
//! voted since the last one. Nothing is written anywhere else, and nothing in `Drop` that a
//! later opening relies on.

use std::{
    collections::VecDeque,
    ops::{Bound, Range},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::RwLock;
use redb::{Durability, ReadTransaction, ReadableDatabase, ReadableTable};

use crate::{
    backend::{self, OpenFile},
    disk::{Disk, FileName},
    error::{Fatal, OpenError},
    record::{LogPosition, LogRecord},
    state::Checkpointed,
    tables::{LOG, OWN, own},
};

const FILE: FileName = FileName::Log;

/// Proof that the log was durable up to a position; made only by [`Log::flush`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flushed(Option<LogPosition>);

impl Flushed {
    /// The last durable position; absent for an empty log.
    pub fn position(self) -> Option<LogPosition> {
        self.0
    }

    /// Whether a log that was durable up to here holds what was applied up to `applied`.
    pub(crate) fn covers(self, applied: LogPosition) -> bool {
        self.0.is_some_and(|durable| durable >= applied)
    }
}

/// Where the log begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    /// The last record that was purged.
    pub purged: Option<LogPosition>,
    /// The last record; the purged one when none is left.
    pub last: Option<LogPosition>,
}

/// Sizes of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogStats {
    /// Bytes of the records held in memory.
    pub tail_bytes: u64,
    /// Bytes of redb's page cache in use.
    pub page_cache_bytes: u64,
    /// Bytes of all records that are not purged, flushed or not.
    pub log_bytes: u64,
}

/// The writer.
pub struct Log {
    shared: Arc<Shared>,
    tail_bytes: u64,
    walked: bool,
    failed: Option<Fatal>,
}

struct Shared {
    open: OpenFile,
    tail: RwLock<Tail>,
}

/// What memory knows. Invariants:
/// 1. `records` are contiguous and end at `last` (none: everything up to `last` is on disk).
/// 2. Every record at or after `rewrite_from` is in `records`: disk is read only before them.
#[derive(Default)]
struct Tail {
    records: VecDeque<LogRecord>,
    bytes: u64,
    /// Bytes of the records in the file.
    disk_bytes: u64,
    bounds: Bounds,
    vote: Option<Bytes>,
    committed: Option<Bytes>,
    pending: Pending,
}

/// What the next flush writes.
#[derive(Debug, Default, Clone)]
struct Pending {
    /// Disk differs from memory from this index on.
    rewrite_from: Option<u64>,
    /// Disk may hold records at or after `rewrite_from`.
    truncated: bool,
    purged: bool,
    vote: bool,
    committed: bool,
}

impl Pending {
    /// A note of what is committed alone is not worth a commit.
    fn is_due(&self) -> bool {
        self.rewrite_from.is_some() || self.purged || self.vote
    }

    fn rewrite(&mut self, index: u64) {
        self.rewrite_from = Some(self.rewrite_from.map_or(index, |from| from.min(index)));
    }
}

impl Tail {
    /// First index that is read from memory.
    fn first(&self) -> u64 {
        match self.records.front() {
            Some(record) => record.position.index,
            None => self.bounds.last.map_or(0, |last| last.index + 1),
        }
    }

    fn push(&mut self, record: LogRecord) {
        let index = record.position.index;
        if let Some(last) = self.bounds.last {
            assert!(
                index == last.index + 1,
                "the log ends at {last}; record {index} cannot follow"
            );
        }
        self.pending.rewrite(index);
        self.bounds.last = Some(record.position);
        self.bytes += record.size();
        self.records.push_back(record);
    }

    /// The records that the file lacks.
    fn unflushed(&self) -> impl Iterator<Item = &LogRecord> {
        let from = self.pending.rewrite_from.unwrap_or(u64::MAX);
        let skip = self.records.partition_point(|r| r.position.index < from);
        self.records.range(skip..)
    }

    fn drop_front_while(&mut self, gone: impl Fn(&LogRecord, u64) -> bool) {
        while let Some(record) = self.records.front() {
            if !gone(record, self.bytes) {
                break;
            }
            self.bytes -= record.size();
            self.records.pop_front();
        }
    }
}

impl Log {
    /// Opens `raft.redb`, making it when there is none. `cache_bytes` is redb's page cache,
    /// `tail_bytes` what flushed records may take in memory.
    ///
    /// # Errors
    /// When the disk fails, the file is damaged, or of an unknown format.
    pub fn open(disk: &dyn Disk, cache_bytes: u64, tail_bytes: u64) -> Result<Self, OpenError> {
        let found = backend::open(disk, FILE, cache_bytes, &|txn| {
            txn.open_table(LOG)?;
            Ok(())
        })?;
        let tail = load(&found.open)?;
        Ok(Self {
            shared: Arc::new(Shared {
                open: found.open,
                tail: RwLock::new(tail),
            }),
            tail_bytes,
            walked: found.walked,
            failed: None,
        })
    }

    /// Whether opening read the whole file, because the process before this one was killed.
    /// That work is bounded by what the log holds, which purging bounds, not by the data.
    pub fn walked(&self) -> bool {
        self.walked
    }

    /// A reader; any number, on any thread.
    pub fn reader(&self) -> LogReader {
        LogReader {
            shared: self.shared.clone(),
        }
    }

    /// Appends. Readable when it returns, durable after the next [`Log::flush`].
    ///
    /// # Panics
    /// When a record does not follow the one before: a hole would lose entries.
    pub fn append(&mut self, records: impl IntoIterator<Item = LogRecord>) {
        let mut tail = self.shared.tail.write();
        for record in records {
            tail.push(record);
        }
    }

    /// Drops every record after `index`; all of them when absent. Takes effect at once for
    /// readers, on disk with the next [`Log::flush`].
    ///
    /// # Errors
    /// When the disk fails.
    ///
    /// # Panics
    /// When purged records would have to come back.
    pub fn truncate_after(&mut self, index: Option<u64>) -> Result<(), Fatal> {
        self.usable()?;
        let bounds = self.reader().bounds();
        if bounds.last.map(|last| last.index) <= index {
            return Ok(());
        }
        assert!(
            bounds.purged.map(|purged| purged.index) <= index,
            "the log is purged up to {:?}; it cannot be cut after {index:?}",
            bounds.purged
        );
        let last = match index {
            Some(index) if bounds.purged.map(|p| p.index) == Some(index) => bounds.purged,
            Some(index) => Some(self.position_of(index)?),
            None => None,
        };
        let mut tail = self.shared.tail.write();
        while let Some(record) = tail.records.back() {
            if Some(record.position.index) <= index {
                break;
            }
            tail.bytes -= record.size();
            tail.records.pop_back();
        }
        tail.bounds.last = last;
        tail.pending.rewrite(index.map_or(0, |index| index + 1));
        tail.pending.truncated = true;
        Ok(())
    }

    fn position_of(&self, index: u64) -> Result<LogPosition, Fatal> {
        let found = self.reader().get(index..index + 1, u64::MAX)?;
        match found.first() {
            Some(record) => Ok(record.position),
            None => Err(Fatal::with(
                FILE,
                format_args!("reading record {index}"),
                "it is missing",
            )),
        }
    }

    /// Notes the vote. Written with the next [`Log::flush`], which the caller makes before the
    /// vote is told to anyone.
    pub fn save_vote(&mut self, vote: Bytes) {
        let mut tail = self.shared.tail.write();
        tail.vote = Some(vote);
        tail.pending.vote = true;
    }

    /// Notes what is committed. Written with the next flush that writes anything else.
    pub fn note_committed(&mut self, committed: Option<Bytes>) {
        let mut tail = self.shared.tail.write();
        tail.committed = committed;
        tail.pending.committed = true;
    }

    /// Gives up every record up to and including `upto`, which may lie behind the end (after
    /// an image). Readers see it at once; the disk is freed with the next [`Log::flush`].
    ///
    /// # Errors
    /// When the state is not durable up to `upto`: the log would be all that is left of it.
    pub fn purge(&mut self, upto: LogPosition, behind: &Checkpointed) -> Result<(), Fatal> {
        self.usable()?;
        if behind.position().map(|position| position.index) < Some(upto.index) {
            return Err(Fatal::new(format!(
                "purging the log up to {upto} was asked, but the state is durable only up to {}",
                behind
                    .position()
                    .map_or_else(|| "nothing".to_owned(), |p| p.to_string())
            )));
        }
        let mut tail = self.shared.tail.write();
        if tail.bounds.purged.map(|p| p.index) >= Some(upto.index) {
            return Ok(());
        }
        tail.drop_front_while(|record, _| record.position.index <= upto.index);
        if tail.bounds.last.is_none_or(|last| last.index <= upto.index) {
            tail.bounds.last = Some(upto);
            if tail.pending.rewrite_from.is_some() {
                tail.pending.rewrite_from = Some(upto.index + 1);
                tail.pending.truncated = true;
            }
        }
        tail.bounds.purged = Some(upto);
        tail.pending.purged = true;
        Ok(())
    }

    /// Makes everything since the last flush durable, in one commit with one sync; nothing to
    /// write costs nothing.
    ///
    /// # Errors
    /// When the disk fails; the log is not to be used afterwards.
    pub fn flush(&mut self) -> Result<Flushed, Fatal> {
        self.usable()?;
        let pending = self.shared.tail.read().pending.clone();
        if pending.is_due() {
            let disk_bytes = match self.write(&pending) {
                Ok(bytes) => bytes,
                Err(e) => {
                    let fatal = Fatal::with(FILE, "writing the log", e);
                    self.failed = Some(fatal.clone());
                    return Err(fatal);
                }
            };
            let mut tail = self.shared.tail.write();
            tail.pending = Pending::default();
            tail.disk_bytes = disk_bytes;
            let bound = self.tail_bytes;
            tail.drop_front_while(|_, bytes| bytes > bound);
        }
        Ok(Flushed(self.shared.tail.read().bounds.last))
    }

    /// Returns the bytes of the records in the file afterwards.
    fn write(&self, pending: &Pending) -> Result<u64, redb::Error> {
        // Nobody else writes the tail, so the lock is held only for what readers must not wait
        // for: copying pointers.
        let (records, bounds, vote, committed, mut bytes) = {
            let tail = self.shared.tail.read();
            (
                tail.unflushed().cloned().collect::<Vec<_>>(),
                tail.bounds,
                tail.vote.clone(),
                tail.committed.clone(),
                tail.disk_bytes,
            )
        };
        let mut txn = self.shared.open.db.begin_write()?;
        txn.set_durability(Durability::Immediate)?;
        {
            let mut log = txn.open_table(LOG)?;
            if pending.purged
                && let Some(purged) = bounds.purged
            {
                log.retain_in(..=purged.index, |_, raw| forget(&mut bytes, raw))?;
            }
            if pending.truncated
                && let Some(from) = pending.rewrite_from
            {
                log.retain_in(from.., |_, raw| forget(&mut bytes, raw))?;
            }
            let mut end = log.upper_bound_mut(Bound::<u64>::Unbounded)?;
            for record in &records {
                let raw = record.encode();
                bytes += raw.len() as u64;
                end.insert_before(record.position.index, &raw[..])?;
            }
            end.close()?;
            let mut own = txn.open_table(OWN)?;
            own.insert(own::BYTES, &bytes.to_be_bytes()[..])?;
            if pending.purged
                && let Some(purged) = bounds.purged
            {
                own.insert(own::PURGED, &encode_position(purged)[..])?;
            }
            if pending.vote
                && let Some(vote) = vote
            {
                own.insert(own::VOTE, &vote[..])?;
            }
            if pending.committed {
                match committed {
                    Some(committed) => own.insert(own::COMMITTED, &committed[..])?,
                    None => own.remove(own::COMMITTED)?,
                };
            }
        }
        txn.commit()?;
        Ok(bytes)
    }

    fn usable(&self) -> Result<(), Fatal> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Sizes.
    pub fn stats(&self) -> LogStats {
        self.reader().stats()
    }
}

fn encode_position(position: LogPosition) -> Vec<u8> {
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

/// For `retain_in`: drops a record and its bytes from the sum.
fn forget(bytes: &mut u64, raw: &[u8]) -> bool {
    *bytes = bytes.saturating_sub(raw.len() as u64);
    false
}

fn load(open: &OpenFile) -> Result<Tail, OpenError> {
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
        last: log
            .last()?
            .map(|(_, raw)| Bytes::copy_from_slice(raw.value())),
    })
}

/// Reads the log on any thread while it is written: the tail first, else the file.
#[derive(Clone)]
pub struct LogReader {
    shared: Arc<Shared>,
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
                .max(tail.bounds.purged.map_or(0, |purged| purged.index + 1));
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
