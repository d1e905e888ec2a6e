//! A data directory and an isolate: what a node has, without the network between.

use std::{
    fs::File,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use anyhow::{Context, Result, anyhow, bail};
use flower_api::{GroupId, MemberId, Revision, limits};
use flower_engine::{
    Cost, Deadline, Deployment, Entry, EntryKind, Isolate, Limits, Patch, PatchBuilder, Space,
    Stamp, View, deploy, inspect,
    key::meta,
    receipt::{self, Fingerprint, IdempotencyKey, Receipt, Scope},
};
use flower_store::{
    DataDir, DirSettings, Log, LogPosition, LogRecord, OpenDir, Opened, Payload, RealDisk, State,
    StateView,
};

/// The application.
pub(crate) const WORKLOAD: &str = include_str!("workload.js");
const MEMBER: MemberId = MemberId(1);
/// The time at which everything happens: figures must not depend on when they are taken.
const NOW_MS: u64 = 1_700_000_000_000;

/// Sizes of caches, MiB.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caches {
    pub page_mib: u64,
    pub value_mib: u64,
}

/// See the module.
pub(crate) struct World {
    dir: PathBuf,
    log: Log,
    pub state: State,
    isolate: Option<Isolate>,
    index: Option<u64>,
    revision: u64,
    dirty: u64,
}

/// A mutation that was done.
pub(crate) struct Done {
    pub cost: Cost,
    pub keys: u64,
    pub bytes: u64,
    pub evaluate_us: f64,
    pub apply_us: f64,
    pub flush_us: f64,
}

/// Microseconds since.
pub(crate) fn micros(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

/// Processor time of this thread, microseconds, the kernel's work for it included. Other
/// programs on the machine do not lengthen it as they do time by the clock.
pub(crate) fn processor_us() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: it writes to `time`, which outlives the call, and to nothing else.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

impl World {
    /// Opens the directory.
    pub fn open(dir: &Path, caches: Caches) -> Result<Self> {
        let disk = Arc::new(RealDisk::open(dir)?);
        let settings = DirSettings {
            log_cache_bytes: 4 << 20,
            log_tail_bytes: 1 << 20,
            page_cache_bytes: caches.page_mib << 20,
            value_cache_bytes: caches.value_mib << 20,
            group: GroupId(0),
        };
        let OpenDir { log, state, .. } = match DataDir::open(disk, &settings, MEMBER)? {
            Opened::Fresh(open) | Opened::Member(open) => open,
            Opened::Broken { why, .. } => bail!("the directory cannot be opened: {why}"),
        };
        let index = log.reader().bounds().last.map(|last| last.index);
        let revision = state.view().revision().0;
        Ok(Self {
            dir: dir.to_owned(),
            log,
            state,
            isolate: None,
            index,
            revision,
            dirty: 0,
        })
    }

    /// Makes the workload the application.
    pub fn deploy(&mut self) -> Result<()> {
        let manifest = inspect(WORKLOAD, &Limits::default(), &Deadline::never())
            .map_err(|e| anyhow!("{e}"))?;
        self.revision += 1;
        let view = self.state.view();
        let revision = Revision(self.revision);
        let planned = deploy::plan_deployment(&*view, WORKLOAD, manifest, None, revision)?;
        self.commit(EntryKind::Deploy, planned.patch)?;
        self.load()
    }

    /// Loads the application.
    pub fn load(&mut self) -> Result<()> {
        let view = self.state.view();
        let (hash, ..) = deploy::active(&*view)?.context("nothing is deployed")?;
        let deployment: Arc<Deployment> =
            deploy::load(&*view, &hash)?.context("the deployment is missing")?;
        let isolate = Isolate::new(deployment, &Limits::default());
        self.isolate = Some(isolate.map_err(|e| anyhow!("{e}"))?);
        Ok(())
    }

    /// The newest view.
    pub fn view(&self) -> Arc<StateView> {
        self.state.view()
    }

    fn stamp(&self) -> Stamp {
        Stamp {
            now_ms: NOW_MS + self.revision,
            revision: Revision(self.revision),
            seed: self.revision,
        }
    }

    /// Runs a query; its result.
    pub fn query(&mut self, name: &str, args: &str) -> Result<String> {
        let (view, stamp) = (self.state.view() as Arc<dyn View>, self.stamp());
        let isolate = self.isolate.as_mut().context("nothing is loaded")?;
        let done = isolate.query(name, args, view, stamp, &Deadline::never());
        Ok(done.map_err(|e| anyhow!("{name}: {e}"))?.result)
    }

    /// Runs a mutation with its receipt, and makes it durable in the log.
    pub fn mutate(&mut self, name: &str, args: &str) -> Result<Done> {
        if self.isolate.as_ref().is_some_and(Isolate::must_recycle) {
            self.load()?;
        }
        self.revision += 1;
        let (view, stamp) = (self.state.view() as Arc<dyn View>, self.stamp());
        let isolate = self.isolate.as_mut().context("nothing is loaded")?;
        let begun = processor_us();
        let evaluated = isolate.mutate(name, args, view, stamp, &Deadline::never());
        let done = evaluated.map_err(|e| anyhow!("{name}: {e}"))?;
        let mut patch = done.patch.unwrap_or_default();
        self.receipt(&mut patch, name, args, &done.result)?;
        let evaluate_us = processor_us() - begun;
        let patch = patch.seal();
        let (keys, bytes) = (patch.writes().len() as u64, patch.size());
        let (flush_us, apply_us) = self.commit(EntryKind::Mutations, patch)?;
        Ok(Done {
            cost: done.cost,
            keys,
            bytes,
            evaluate_us,
            apply_us,
            flush_us,
        })
    }

    fn receipt(
        &self,
        patch: &mut PatchBuilder,
        name: &str,
        args: &str,
        result: &str,
    ) -> Result<()> {
        // As long as a UUID, and the same in every run.
        let key: IdempotencyKey = format!("bench-{:030}", self.revision)
            .parse()
            .map_err(|_| anyhow!("no key"))?;
        let scope = Scope {
            partition: "_".into(),
            subject: "client".into(),
        };
        let created_ms = NOW_MS + self.revision;
        let receipt = Receipt {
            revision: Revision(self.revision),
            mutation: name.to_owned(),
            fingerprint: Fingerprint::of(name, args)?,
            ended: receipt::keep(result),
            created_ms,
            until_ms: receipt::until_ms(&key, created_ms, limits::RECEIPT_RETENTION_MS),
        };
        receipt::record(patch, &scope, &key, &receipt);
        Ok(())
    }

    /// Logs, flushes and applies an entry; microseconds of the flush and of the apply.
    fn commit(&mut self, kind: EntryKind, patch: Patch) -> Result<(f64, f64)> {
        let mut mark = PatchBuilder::new();
        let revision = self.revision.to_be_bytes().to_vec();
        mark.put(Space::Meta, meta::REVISION, revision);
        let entry = Entry {
            kind,
            revision: Revision(self.revision),
            stamp_ms: NOW_MS + self.revision,
            patches: vec![Arc::new(patch), Arc::new(mark.seal())],
        };
        let bytes = entry.size();
        let index = self.index.map_or(0, |index| index + 1);
        let position = LogPosition {
            term: 1,
            leader: MEMBER.0,
            index,
        };
        let payload = Payload::Entry(Arc::new(entry));
        let begun = Instant::now();
        self.log.append([LogRecord {
            position,
            payload: payload.clone(),
        }]);
        let flushed = self.log.flush()?;
        let flush_us = micros(begun);
        let begun = processor_us();
        self.state.apply(position, &payload)?;
        let apply_us = processor_us() - begun;
        self.index = Some(index);
        self.dirty += bytes;
        if self.dirty >= limits::CHECKPOINT_BYTES {
            self.dirty = 0;
            let behind = self.state.checkpoint(flushed)?;
            self.log.purge(position, &behind)?;
        }
        Ok((flush_us, apply_us))
    }

    /// Makes the state durable, and the log empty.
    pub fn checkpoint(&mut self) -> Result<()> {
        let flushed = self.log.flush()?;
        let behind = self.state.checkpoint(flushed)?;
        if let Some(position) = behind.position() {
            self.log.purge(position, &behind)?;
        }
        self.log.flush()?;
        self.dirty = 0;
        Ok(())
    }

    /// Closes it, and has the system forget what it keeps of the files when `cold`.
    pub fn close(mut self, cold: bool) -> Result<PathBuf> {
        self.checkpoint()?;
        let dir = self.dir.clone();
        drop(self);
        if cold {
            forget(&dir)?;
        }
        Ok(dir)
    }
}

/// Empties the system's file cache of a folder's files.
fn forget(dir: &Path) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let file = File::open(entry?.path())?;
        file.sync_all()?;
        // SAFETY: the descriptor is that of an open file, and the call touches no memory.
        let failed =
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        anyhow::ensure!(failed == 0, "posix_fadvise: error {failed}");
    }
    Ok(())
}
