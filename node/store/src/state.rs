//! The state: `state.redb` and its only writer. One commit an entry, in memory and redb's
//! cache; durable at checkpoints only, which ask for proof that the log is. What was applied
//! since the last checkpoint is applied again from the log after a crash; so dropping the
//! writer writes nothing.

use std::sync::Arc;

use bytes::Bytes;
use flower_engine::{Space, Write};
use redb::{Durability, ReadableDatabase, WriteTransaction};

use crate::{
    backend::{self, OpenFile},
    disk::{Disk, FileName},
    error::{Fatal, OpenError},
    log::Flushed,
    record::{LogPosition, Payload},
    sabotage::{Break, is_broken},
    tables::{self, OWN, own},
    value_cache::{ValueCache, ValueCacheStats},
    view::{Registry, Standing, StateView, Totals, Views, seq_of},
};

const FILE: FileName = FileName::State;
/// A file up to this size is measured at some checkpoints: measuring walks all its pages.
const MEASURED_FILE_BYTES: u64 = 32 << 20;
/// One checkpoint in so many measures.
const MEASURED_EVERY: u64 = 16;

/// Proof that the state is durable up to a position; made only by [`State::checkpoint`] and by
/// installing an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpointed(Option<LogPosition>);

impl Checkpointed {
    /// The last durable position; absent for an empty state.
    pub fn position(&self) -> Option<LogPosition> {
        self.0
    }

    /// For tests of a log without a state.
    #[cfg(feature = "sim")]
    pub fn pretend(position: LogPosition) -> Self {
        Self(Some(position))
    }
}

/// What opening the state took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenReport {
    /// redb had to walk the whole file. Never the case after a power cut, as checkpoints
    /// record what it needs.
    pub full_repair: bool,
}

/// What applying an entry did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// The entry.
    pub position: LogPosition,
    /// Records written or removed.
    pub writes: usize,
    /// Bytes of the entry; what a checkpoint's distance is measured in.
    pub bytes: u64,
}

/// Sizes and counters of the state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StateStats {
    /// Size of `state.redb`.
    pub file_bytes: u64,
    /// Bytes of its allocated pages at a recent checkpoint; absent for files above 32 MiB,
    /// which are not walked for it.
    pub allocated_bytes: Option<u64>,
    /// Bytes in its pages that hold nothing, likewise.
    pub fragmented_bytes: Option<u64>,
    /// Sums over all records.
    pub totals: Totals,
    /// Receipts kept.
    pub receipts: u64,
    /// Bytes of keys and values of receipts and of their order by age.
    pub receipt_bytes: u64,
    /// redb's page cache.
    pub page_cache: PageCacheStats,
    /// The value cache.
    pub value_cache: ValueCacheStats,
    /// Views alive besides the newest.
    pub held_views: usize,
}

/// redb's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageCacheStats {
    /// Bytes in use.
    pub bytes: u64,
    /// Pages read from it.
    pub hits: u64,
    /// Pages read from the file.
    pub misses: u64,
    /// Pages dropped for others.
    pub evictions: u64,
}

#[derive(Debug, Clone, Copy)]
struct Measured {
    allocated: u64,
    fragmented: u64,
}

/// The writer.
pub struct State {
    disk: Arc<dyn Disk>,
    cache_bytes: u64,
    value_cache_bytes: u64,
    open: Arc<OpenFile>,
    cache: Arc<ValueCache>,
    registry: Arc<Registry>,
    views: Views,
    standing: Standing,
    durable: Option<LogPosition>,
    measured: Option<Measured>,
    checkpoints: u64,
    failed: Option<Fatal>,
}

impl Drop for State {
    fn drop(&mut self) {
        self.open.seal();
    }
}

impl State {
    /// Opens `state.redb`, making it when there is none. `cache_bytes` is redb's page cache,
    /// `value_cache_bytes` the value cache.
    ///
    /// # Errors
    /// When the disk fails, the file is damaged, or of an unknown format.
    pub fn open(
        disk: Arc<dyn Disk>,
        cache_bytes: u64,
        value_cache_bytes: u64,
    ) -> Result<(Self, OpenReport), OpenError> {
        let found = backend::open(&*disk, FILE, cache_bytes, &make_tables)?;
        let open = Arc::new(found.open);
        let cache = Arc::new(ValueCache::new(value_cache_bytes));
        let registry = Arc::new(Registry::default());
        let first = StateView::newest(&open, &cache, &registry)
            .map_err(|e| OpenError::from_redb(FILE, e))?;
        let standing = first.standing().clone();
        let state = Self {
            disk,
            cache_bytes,
            value_cache_bytes,
            open,
            cache,
            views: Views::new(first, registry.clone()),
            registry,
            durable: standing.applied,
            standing,
            measured: None,
            checkpoints: 0,
            failed: None,
        };
        let report = OpenReport {
            full_repair: found.walked,
        };
        Ok((state, report))
    }

    /// Position of the last applied entry.
    pub fn applied(&self) -> Option<LogPosition> {
        self.standing.applied
    }

    /// Position up to which the state is durable.
    pub fn durable(&self) -> Option<LogPosition> {
        self.durable
    }

    /// Proof of what is durable already.
    pub fn checkpointed(&self) -> Checkpointed {
        Checkpointed(self.durable)
    }

    /// The newest view.
    pub fn view(&self) -> Arc<StateView> {
        self.views.newest()
    }

    /// A handle on the newest view, for other threads.
    pub fn views(&self) -> Views {
        self.views.clone()
    }

    /// Writes an entry and moves the applied position, in one commit that is not yet durable;
    /// afterwards [`State::view`] shows it. Blank and membership entries move it too.
    ///
    /// # Errors
    /// When the disk fails; the state is not to be used afterwards.
    ///
    /// # Panics
    /// When `position` is not behind what was applied: applying twice would corrupt the sums.
    pub fn apply(&mut self, position: LogPosition, payload: &Payload) -> Result<Applied, Fatal> {
        self.usable()?;
        assert!(
            self.standing
                .applied
                .is_none_or(|last| position.index > last.index),
            "entry {position} after {:?}",
            self.standing.applied
        );
        let what = format_args!("applying entry {position}").to_string();
        let writes = merged(payload);
        let standing = match self.write(position, payload, &writes) {
            Ok(standing) => standing,
            Err(e) => return Err(self.fail(&what, e)),
        };
        for write in &writes {
            self.cache
                .written(write.space, &write.key, seq_of(Some(position)));
        }
        self.standing = standing;
        self.publish(&what)?;
        Ok(Applied {
            position,
            writes: writes.len(),
            bytes: match payload {
                Payload::Blank => 0,
                Payload::Entry(entry) => entry.size(),
                Payload::Membership(bytes) => bytes.len() as u64,
            },
        })
    }

    fn write(
        &self,
        position: LogPosition,
        payload: &Payload,
        writes: &[&Write],
    ) -> Result<Standing, redb::Error> {
        let mut standing = self.standing.clone();
        standing.applied = Some(position);
        let mut txn = self.open.db.begin_write()?;
        txn.set_durability(Durability::None)?;
        for run in writes.chunk_by(|a, b| a.space == b.space) {
            write_run(&txn, run, &mut standing.totals)?;
        }
        if let Payload::Entry(entry) = payload {
            standing.revision = standing.revision.max(entry.revision.0);
        }
        if let Payload::Membership(bytes) = payload {
            put_membership(&txn, position, bytes)?;
        }
        put_standing(&txn, &standing)?;
        txn.commit()?;
        Ok(standing)
    }

    fn publish(&mut self, what: &str) -> Result<(), Fatal> {
        match StateView::newest(&self.open, &self.cache, &self.registry) {
            Ok(view) => self.views.publish(view),
            Err(e) => return Err(self.fail(what, e)),
        }
        Ok(())
    }

    /// Makes everything applied durable. `log` proves that the log is, up to there: after a
    /// crash the log must reach at least as far as the state.
    ///
    /// # Errors
    /// When the disk fails; the state is not to be used afterwards.
    ///
    /// # Panics
    /// When the log was not flushed up to what was applied since the last checkpoint.
    pub fn checkpoint(&mut self, log: Flushed) -> Result<Checkpointed, Fatal> {
        self.usable()?;
        let Some(applied) = self
            .standing
            .applied
            .filter(|_| self.durable != self.standing.applied)
        else {
            return Ok(Checkpointed(self.durable));
        };
        assert!(
            log.covers(applied) || is_broken(Break::CheckpointAheadOfLog),
            "a checkpoint at {applied} with a log flushed up to {:?}",
            log.position()
        );
        if let Err(e) = commit_durably(&self.open) {
            return Err(self.fail("a checkpoint", e));
        }
        self.durable = Some(applied);
        if self.checkpoints.is_multiple_of(MEASURED_EVERY) {
            self.measured = self.measure();
        }
        self.checkpoints += 1;
        Ok(Checkpointed(self.durable))
    }

    /// Page counts of a small file.
    fn measure(&self) -> Option<Measured> {
        let file_bytes = self.disk.len(FILE).ok()??;
        if file_bytes > MEASURED_FILE_BYTES {
            return None;
        }
        let txn = self.open.db.begin_write().ok()?;
        let stats = txn.stats().ok()?;
        txn.abort().ok()?;
        Some(Measured {
            allocated: stats.allocated_pages() * stats.page_size() as u64,
            fragmented: stats.fragmented_bytes(),
        })
    }

    /// Sizes and counters.
    pub fn stats(&self) -> StateStats {
        let totals = self.standing.totals;
        let cache = self.open.db.cache_stats();
        StateStats {
            file_bytes: self.disk.len(FILE).ok().flatten().unwrap_or(0),
            allocated_bytes: self.measured.map(|m| m.allocated),
            fragmented_bytes: self.measured.map(|m| m.fragmented),
            totals,
            receipts: totals.records_in(Space::Receipts),
            receipt_bytes: totals.bytes_in(Space::Receipts) + totals.bytes_in(Space::ReceiptsByAge),
            page_cache: PageCacheStats {
                bytes: cache.used_bytes() as u64,
                hits: cache.read_hits(),
                misses: cache.read_misses(),
                evictions: cache.evictions(),
            },
            value_cache: self.cache.stats(),
            held_views: self.views.held(),
        }
    }

    /// Lets go of the present file and takes the one that has been renamed over it.
    pub(crate) fn replace_file(&mut self) -> Result<Checkpointed, Fatal> {
        self.open.seal();
        let opened = backend::open(&*self.disk, FILE, self.cache_bytes, &make_tables)
            .map_err(|e| Fatal::with(FILE, "taking an image into use", e))?;
        self.open = Arc::new(opened.open);
        self.cache = Arc::new(ValueCache::new(self.value_cache_bytes));
        self.publish("taking an image into use")?;
        self.standing = self.views.newest().standing().clone();
        self.durable = self.standing.applied;
        self.measured = None;
        Ok(Checkpointed(self.durable))
    }

    pub(crate) fn usable(&self) -> Result<(), Fatal> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn fail(&mut self, what: &str, cause: impl std::fmt::Display) -> Fatal {
        let fatal = Fatal::with(FILE, what, cause);
        self.failed = Some(fatal.clone());
        self.open.seal();
        fatal
    }
}

/// The entry's last write of each key, sorted: what its patches come to, one after the other.
fn merged(payload: &Payload) -> Vec<&Write> {
    let Payload::Entry(entry) = payload else {
        return Vec::new();
    };
    let mut writes: Vec<&Write> = entry.patches.iter().flat_map(|p| p.writes()).collect();
    // Stable, so that of equal keys the last patch's write stays last.
    writes.sort_by(|a, b| (a.space, &a.key).cmp(&(b.space, &b.key)));
    let mut last: Vec<&Write> = Vec::with_capacity(writes.len());
    for write in writes {
        match last.last_mut() {
            Some(before) if before.space == write.space && before.key == write.key => {
                *before = write;
            }
            _ => last.push(write),
        }
    }
    last
}

/// Writes of one space.
fn write_run(
    txn: &WriteTransaction,
    run: &[&Write],
    totals: &mut Totals,
) -> Result<(), redb::Error> {
    let space = run[0].space;
    let mut table = txn.open_table(tables::of_space(space))?;
    for write in run {
        let before = match &write.value {
            Some(value) => {
                totals.add(space, &write.key, value);
                table.insert(&write.key[..], &value[..])?
            }
            None => table.remove(&write.key[..])?,
        };
        if let Some(before) = before {
            totals.subtract(space, &write.key, before.value());
        }
    }
    Ok(())
}

pub(crate) fn make_tables(txn: &WriteTransaction) -> Result<(), redb::Error> {
    for space in Space::ALL {
        txn.open_table(tables::of_space(space))?;
    }
    put_standing(txn, &Standing::default())
}

pub(crate) fn put_standing(txn: &WriteTransaction, standing: &Standing) -> Result<(), redb::Error> {
    let bytes = postcard::to_stdvec(standing)
        .map_err(|e| redb::Error::Corrupted(format!("the standing cannot be encoded: {e}")))?;
    txn.open_table(OWN)?.insert(own::STANDING, &bytes[..])?;
    Ok(())
}

pub(crate) fn put_membership(
    txn: &WriteTransaction,
    position: LogPosition,
    bytes: &Bytes,
) -> Result<(), redb::Error> {
    let bytes = postcard::to_stdvec(&(position, &bytes[..]))
        .map_err(|e| redb::Error::Corrupted(format!("the configuration: {e}")))?;
    txn.open_table(OWN)?.insert(own::MEMBERSHIP, &bytes[..])?;
    Ok(())
}

/// An empty commit that makes all commits before it durable, with what a quick repair needs.
pub(crate) fn commit_durably(open: &OpenFile) -> Result<(), redb::Error> {
    let mut txn = open.db.begin_write()?;
    txn.set_durability(Durability::Immediate)?;
    txn.set_quick_repair(true);
    txn.commit()?;
    Ok(())
}
