//! The log: `raft.redb` with an in-memory tail in front. Appended records are readable at
//! once, durable after [`Log::flush`]: one commit, whatever was appended, truncated, purged,
//! voted since the last one. Nothing is written anywhere else, and nothing in `Drop` that a
//! later opening relies on.

mod reader;
mod tail;

use std::{ops::Bound, sync::Arc};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use redb::{Durability, WriteTransaction};

pub use self::reader::LogReader;
use self::tail::{Tail, Work};
use crate::{
    backend::{self, OpenFile},
    disk::{Disk, FileName},
    error::{Fatal, OpenError},
    record::{LogPosition, LogRecord},
    sabotage::{Break, is_broken},
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

/// The writer. Its methods take `&self`, because appending must never wait for a flush that is
/// under way: what is appended meanwhile is the next batch. Appending, truncating and purging
/// take turns; flushes take turns of their own.
pub struct Log {
    shared: Arc<Shared>,
    tail_bytes: u64,
    walked: bool,
    /// Held by whoever changes the log's shape in memory.
    turn: Mutex<()>,
    /// Held by a flush.
    file: Mutex<FileSide>,
}

#[derive(Default)]
struct FileSide {
    /// A failed write leaves a file of unknown content: nothing is written after it.
    failed: Option<Fatal>,
}

struct Shared {
    open: OpenFile,
    tail: RwLock<Tail>,
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
        let tail = tail::load(&found.open)?;
        Ok(Self {
            shared: Arc::new(Shared {
                open: found.open,
                tail: RwLock::new(tail),
            }),
            tail_bytes,
            walked: found.walked,
            turn: Mutex::default(),
            file: Mutex::default(),
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
    pub fn append(&self, records: impl IntoIterator<Item = LogRecord>) {
        let records: Vec<LogRecord> = records.into_iter().collect();
        let _turn = self.turn.lock();
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
    pub fn truncate_after(&self, index: Option<u64>) -> Result<(), Fatal> {
        let _turn = self.turn.lock();
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
    pub fn save_vote(&self, vote: Bytes) {
        let mut tail = self.shared.tail.write();
        tail.vote = Some(vote);
        tail.pending.vote = true;
    }

    /// Notes what is committed. Written with the next flush that writes anything else.
    pub fn note_committed(&self, committed: Option<Bytes>) {
        let mut tail = self.shared.tail.write();
        tail.committed = committed;
        tail.pending.committed = true;
    }

    /// Gives up every record up to and including `upto`, which may lie behind the end (after
    /// an image). Readers see it at once; the disk is freed with the next [`Log::flush`].
    ///
    /// # Errors
    /// When the state is not durable up to `upto`: the log would be all that is left of it.
    pub fn purge(&self, upto: LogPosition, behind: &Checkpointed) -> Result<(), Fatal> {
        if behind.position().map(|position| position.index) < Some(upto.index)
            && !is_broken(Break::PurgePastCheckpoint)
        {
            return Err(Fatal::new(format!(
                "purging the log up to {upto} was asked, but the state is durable only up to {}",
                behind
                    .position()
                    .map_or_else(|| "nothing".to_owned(), |p| p.to_string())
            )));
        }
        let _turn = self.turn.lock();
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

    /// Makes everything up to now durable, in one commit with one sync; nothing to write costs
    /// nothing. What is appended meanwhile is for the next flush.
    ///
    /// # Errors
    /// When the disk fails; no later flush succeeds.
    pub fn flush(&self) -> Result<Flushed, Fatal> {
        let mut file = self.file.lock();
        if let Some(fatal) = &file.failed {
            return Err(fatal.clone());
        }
        let work = self.shared.tail.write().take_work();
        if work.pending.is_due() {
            match write(&self.shared.open, &work) {
                Ok(bytes) => self.shared.tail.write().written(bytes, self.tail_bytes),
                Err(e) => {
                    let fatal = Fatal::with(FILE, "writing the log", e);
                    file.failed = Some(fatal.clone());
                    return Err(fatal);
                }
            }
        }
        Ok(Flushed(work.bounds.last))
    }

    /// Sizes.
    pub fn stats(&self) -> LogStats {
        self.reader().stats()
    }
}

/// One durable commit of `work`. Returns the bytes of the records in the file afterwards.
fn write(open: &OpenFile, work: &Work) -> Result<u64, redb::Error> {
    let mut bytes = work.disk_bytes;
    let mut txn = open.db.begin_write()?;
    txn.set_durability(match is_broken(Break::NoFlush) {
        false => Durability::Immediate,
        true => Durability::None,
    })?;
    write_records(&txn, work, &mut bytes)?;
    write_own(&txn, work, bytes)?;
    txn.commit()?;
    Ok(bytes)
}

fn write_records(txn: &WriteTransaction, work: &Work, bytes: &mut u64) -> Result<(), redb::Error> {
    let mut log = txn.open_table(LOG)?;
    if let Some(purged) = work.bounds.purged.filter(|_| work.pending.purged) {
        log.retain_in(..=purged.index, |_, raw| forget(bytes, raw))?;
    }
    if let Some(from) = work.pending.rewrite_from.filter(|_| work.pending.truncated) {
        log.retain_in(from.., |_, raw| forget(bytes, raw))?;
    }
    let mut end = log.upper_bound_mut(Bound::<u64>::Unbounded)?;
    for record in &work.records {
        let raw = record.encode();
        *bytes += raw.len() as u64;
        end.insert_before(record.position.index, &raw[..])?;
    }
    end.close()?;
    Ok(())
}

/// For `retain_in`: drops a record and its bytes from the sum.
fn forget(bytes: &mut u64, raw: &[u8]) -> bool {
    *bytes = bytes.saturating_sub(raw.len() as u64);
    false
}

fn write_own(txn: &WriteTransaction, work: &Work, bytes: u64) -> Result<(), redb::Error> {
    let mut own = txn.open_table(OWN)?;
    own.insert(own::BYTES, &bytes.to_be_bytes()[..])?;
    if let Some(purged) = work.bounds.purged.filter(|_| work.pending.purged) {
        own.insert(own::PURGED, &tail::encode_position(purged)[..])?;
    }
    if let Some(vote) = work.vote.as_ref().filter(|_| work.pending.vote) {
        own.insert(own::VOTE, &vote[..])?;
    }
    if work.pending.committed {
        match &work.committed {
            Some(committed) => own.insert(own::COMMITTED, &committed[..])?,
            None => own.remove(own::COMMITTED)?,
        };
    }
    Ok(())
}
