//! The consensus library's state machine over the store's state: entries are applied, images
//! installed and checkpoints made on the state lane, one after the other. A checkpoint waits
//! for its log. No decisions about when: `upkeep` has those.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use flower_api::Revision;
use flower_store::{
    Checkpointed, ImageError, ImageReader, LogPosition, Payload, Received, Receiving, State,
    StateStats, StateView, Verified, Views,
    sabotage::{Break, is_broken},
};
use futures::{Stream, StreamExt};
use openraft::{
    OptionalSend, RaftSnapshotBuilder, Snapshot,
    alias::SmSnapshotOf,
    storage::{ApplyResponder, EntryResponder, RaftStateMachine},
};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::{
    log::FlushedLog,
    types::{
        LogId, SnapshotMeta, StoredMembership, Types, log_id, position, record, stored_membership,
    },
};
use crate::{
    env::{Env, Fatal, LaneId},
    recent::{Recent, Written},
};

/// Entries applied in one job of the state lane: the view is published once for all of them.
const APPLY_AT_ONCE: usize = 128;
/// How long a checkpoint waits for its log before it asks again.
const LOG_WAIT: Duration = Duration::from_millis(5);

/// How far the state has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AppliedAt {
    /// Last applied entry.
    pub position: Option<LogPosition>,
    /// Last applied revision.
    pub revision: Revision,
}

/// A snapshot on its way into or out of the state.
pub(crate) enum Image {
    /// This state, as it was.
    Outgoing(Arc<StateView>),
    /// Received and verified; waits to be installed.
    Incoming(Box<Verified>),
}

/// Handle on the state; cheap to clone.
#[derive(Clone)]
pub(crate) struct StateStore(Arc<Shared>);

struct Shared {
    env: Env,
    /// Locked on the state lane, and for statistics.
    state: Mutex<State>,
    views: Views,
    log: FlushedLog,
    /// One of apply, checkpoint and install at a time, in the order in which they ask.
    turn: tokio::sync::Mutex<()>,
    applied: watch::Sender<AppliedAt>,
    checkpointed: watch::Sender<Option<Checkpointed>>,
    /// Bytes applied since the last checkpoint.
    dirty_bytes: AtomicU64,
    dirty: Notify,
    /// Last index in the log when it was opened: entries up to it are applied again.
    replay_until: Option<u64>,
    replayed: AtomicU64,
    stats: Mutex<StateStats>,
    /// What was written lately; noted before a view shows it.
    recent: Recent,
    /// The library's suite applies what no log holds: nothing to wait for.
    #[cfg(test)]
    without_log: std::sync::atomic::AtomicBool,
}

impl StateStore {
    /// Over a state and log that have just been opened.
    ///
    /// # Errors
    /// When the disk fails.
    pub(crate) async fn new(
        env: &Env,
        mut state: State,
        log: FlushedLog,
        recent_bytes: u64,
    ) -> io::Result<Self> {
        let views = state.views();
        // Nothing has been applied since it was opened: this only says how far it is durable.
        let flushed = log.flush().await?;
        let durable = state.checkpoint(flushed).map_err(io::Error::other)?;
        let stats = state.stats();
        let replay_until = log.reader().bounds().last.map(|last| last.index);
        let applied = applied_at(&views.newest());
        let at = applied.position.map_or(0, |position| position.index);
        Ok(Self(Arc::new(Shared {
            env: env.clone(),
            state: Mutex::new(state),
            views,
            log,
            turn: tokio::sync::Mutex::new(()),
            applied: watch::Sender::new(applied),
            checkpointed: watch::Sender::new(Some(durable)),
            dirty_bytes: AtomicU64::new(0),
            dirty: Notify::new(),
            replay_until,
            replayed: AtomicU64::new(0),
            stats: Mutex::new(stats),
            recent: Recent::new(recent_bytes, at),
            #[cfg(test)]
            without_log: std::sync::atomic::AtomicBool::new(false),
        })))
    }

    /// For the library's suite: there is no log to wait for, and no checkpoint without one.
    #[cfg(test)]
    pub(crate) fn forget_log(&self) {
        self.0.without_log.store(true, Ordering::Relaxed);
    }

    /// The newest view.
    pub(crate) fn view(&self) -> Arc<StateView> {
        self.0.views.newest()
    }

    /// How far the state has come, and every change of it.
    pub(crate) fn applied(&self) -> watch::Receiver<AppliedAt> {
        self.0.applied.subscribe()
    }

    /// What was written lately.
    pub(crate) fn recent(&self) -> &Recent {
        &self.0.recent
    }

    /// Position up to which the state is durable.
    pub(crate) fn checkpoint_position(&self) -> Option<LogPosition> {
        self.0.checkpointed.borrow().and_then(|c| c.position())
    }

    /// Bytes applied since the last checkpoint.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.0.dirty_bytes.load(Ordering::Relaxed)
    }

    /// Whether something was applied since the last checkpoint.
    pub(crate) fn is_dirty(&self) -> bool {
        self.view().applied() != self.checkpoint_position()
    }

    /// Resolves some time after something was applied.
    pub(crate) async fn dirtied(&self) {
        self.0.dirty.notified().await;
    }

    /// Entries of the log that were applied again since the start.
    pub(crate) fn replayed(&self) -> u64 {
        self.0.replayed.load(Ordering::Relaxed)
    }

    /// Last index in the log when it was opened.
    pub(crate) fn replay_until(&self) -> Option<u64> {
        self.0.replay_until
    }

    /// Sizes and counters, as of the last checkpoint or install.
    pub(crate) fn stats(&self) -> StateStats {
        match self.0.state.try_lock() {
            Some(state) => {
                let fresh = state.stats();
                *self.0.stats.lock() = fresh.clone();
                fresh
            }
            None => self.0.stats.lock().clone(),
        }
    }

    /// Age of the oldest view that is still held, milliseconds.
    pub(crate) fn oldest_view_ms(&self) -> u64 {
        self.0.views.oldest_age_ms(self.0.env.clock.mono().ms())
    }

    /// Makes everything applied durable; waits for the log to be.
    pub(crate) async fn checkpoint(&self) -> io::Result<Checkpointed> {
        let _turn = self.0.turn.lock().await;
        self.checkpoint_in_turn().await
    }

    async fn checkpoint_in_turn(&self) -> io::Result<Checkpointed> {
        let applied = self.view().applied();
        let current = *self.0.checkpointed.borrow();
        if let Some(current) = current.filter(|c| c.position() == applied) {
            return Ok(current);
        }
        #[cfg(test)]
        if let Some(current) = current.filter(|_| self.0.without_log.load(Ordering::Relaxed)) {
            return Ok(current);
        }
        let log = loop {
            let flushed = self.0.log.flush().await?;
            if flushed.position() >= applied || is_broken(Break::CheckpointAheadOfLog) {
                break flushed;
            }
            self.0.env.sleep(LOG_WAIT).await;
        };
        let made = self
            .on_lane(move |shared| {
                let begun = shared.env.clock.mono();
                let made = shared.state.lock().checkpoint(log)?;
                shared
                    .env
                    .probe
                    .checkpointed(shared.env.clock.mono() - begun);
                shared.dirty_bytes.store(0, Ordering::Relaxed);
                Ok(made)
            })
            .await?;
        self.0.checkpointed.send_replace(Some(made));
        Ok(made)
    }

    /// Proof that the state is durable up to `index`; makes a checkpoint when it is not yet.
    /// Waits when the state has not come that far: an image may be about to be installed.
    pub(crate) async fn checkpointed_upto(&self, index: u64) -> io::Result<Checkpointed> {
        let mut applied = self.applied();
        loop {
            let current = *self.0.checkpointed.borrow();
            let past = is_broken(Break::PurgePastCheckpoint);
            if let Some(current) =
                current.filter(|c| past || c.position().map(|p| p.index) >= Some(index))
            {
                return Ok(current);
            }
            if applied.borrow_and_update().position.map(|p| p.index) >= Some(index) {
                self.checkpoint().await?;
            } else if applied.changed().await.is_err() {
                return Err(io::Error::other("the state is closed"));
            }
        }
    }

    async fn on_lane<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> Result<T, flower_store::Fatal> + Send + 'static,
    ) -> io::Result<T> {
        let shared = self.0.clone();
        let done = self
            .0
            .env
            .run_on(LaneId::State, move || work(&shared))
            .await;
        let failed = match done {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(fatal)) => fatal.to_string(),
            Err(gone) => gone.to_string(),
        };
        self.0.env.tasks.fail(Fatal::new(failed.clone()));
        Err(io::Error::other(failed))
    }

    /// The newest state as a snapshot; nothing is pinned until it is asked for.
    fn snapshot(&self) -> io::Result<SmSnapshotOf<Types, Self>> {
        let view = self.view();
        let meta = SnapshotMeta {
            last_log_id: view.applied().map(log_id),
            last_membership: stored_membership(view.membership())?,
        };
        Ok(Snapshot {
            meta,
            snapshot: Image::Outgoing(view),
        })
    }
}

fn applied_at(view: &StateView) -> AppliedAt {
    AppliedAt {
        position: view.applied(),
        revision: view.revision(),
    }
}

impl Shared {
    /// Before they are applied: no view shows a write that was not noted.
    fn note(&self, entries: &[ToApply]) {
        let index = |entry: &ToApply| entry.position.index;
        self.recent.with(|ring| {
            for entry in entries {
                match &entry.payload {
                    Payload::Entry(payload) => ring.note(Written::of(index(entry), payload)),
                    Payload::Blank | Payload::Membership(_) => ring.pass(index(entry)),
                }
            }
        });
    }

    /// Runs on the state lane.
    fn apply(&self, entries: Vec<ToApply>) -> Result<(), flower_store::Fatal> {
        self.note(&entries);
        let mut state = self.state.lock();
        let mut bytes = 0;
        let mut told = Vec::with_capacity(entries.len());
        for entry in entries {
            if Some(entry.position.index) <= self.replay_until {
                self.replayed.fetch_add(1, Ordering::Relaxed);
            }
            bytes += state.apply(entry.position, &entry.payload)?.bytes;
            told.extend(entry.responder);
        }
        drop(state);
        self.dirty_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.applied.send_replace(applied_at(&self.views.newest()));
        self.dirty.notify_one();
        for responder in told {
            responder.send(());
        }
        Ok(())
    }
}

struct ToApply {
    position: LogPosition,
    payload: Payload,
    responder: Option<ApplyResponder<Types>>,
}

impl RaftStateMachine<Types> for StateStore {
    type SnapshotData = Image;
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let view = self.view();
        Ok((
            view.applied().map(log_id),
            stored_membership(view.membership())?,
        ))
    }

    async fn apply<Strm>(&mut self, entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        let mut chunks = entries.ready_chunks(APPLY_AT_ONCE);
        while let Some(chunk) = chunks.next().await {
            let mut batch = Vec::with_capacity(chunk.len());
            for item in chunk {
                let (entry, responder) = item?;
                let record = record(&entry);
                batch.push(ToApply {
                    position: record.position,
                    payload: record.payload,
                    responder,
                });
            }
            let _turn = self.0.turn.lock().await;
            self.on_lane(move |shared| shared.apply(batch)).await?;
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, image: Image) -> io::Result<()> {
        let _turn = self.0.turn.lock().await;
        let expected = meta.last_log_id.as_ref().map(position);
        // The views up to there are not made from entries: what they hold is unknown.
        let at = expected.map_or(0, |position| position.index);
        self.0.recent.with(|ring| ring.reset(at));
        let disk = self.0.env.disk.clone();
        let made = self
            .on_lane(move |shared| {
                let verified = match image {
                    Image::Incoming(verified) => verified,
                    Image::Outgoing(view) => copy(view, disk)?,
                };
                let mut state = shared.state.lock();
                let made = verified.install(&mut state)?;
                *shared.stats.lock() = state.stats();
                drop(state);
                shared.dirty_bytes.store(0, Ordering::Relaxed);
                Ok(made)
            })
            .await?;
        if made.position() != expected {
            return Err(io::Error::other(format!(
                "an image at {:?} was installed where one at {expected:?} was announced",
                made.position()
            )));
        }
        self.0.checkpointed.send_replace(Some(made));
        self.0.applied.send_replace(applied_at(&self.view()));
        Ok(())
    }

    /// Absent while nothing has been applied.
    async fn get_current_snapshot(&mut self) -> io::Result<Option<SmSnapshotOf<Types, Self>>> {
        let snapshot = self.snapshot()?;
        Ok(snapshot.meta.last_log_id.is_some().then_some(snapshot))
    }
}

/// Page cache while an image is written.
pub(crate) const IMAGE_CACHE_BYTES: u64 = 16 << 20;

/// Another state's view, taken over the way of an image.
fn copy(
    view: Arc<StateView>,
    disk: Arc<dyn flower_store::Disk>,
) -> Result<Box<Verified>, flower_store::Fatal> {
    let refused = |e: ImageError| flower_store::Fatal::new(format!("copying a state: {e}"));
    let mut receiving = Receiving::start(disk, IMAGE_CACHE_BYTES)?;
    for frame in ImageReader::new(view) {
        match receiving.accept(&frame?).map_err(refused)? {
            Received::More(more) => receiving = *more,
            Received::Whole(verified) => return Ok(verified),
        }
    }
    Err(flower_store::Fatal::new("a state's image has no end"))
}

impl RaftSnapshotBuilder<Types> for StateStore {
    type SnapshotData = Image;

    /// A checkpoint and metadata: an image is made only when it is sent.
    async fn build_snapshot(&mut self) -> io::Result<SmSnapshotOf<Types, Self>> {
        if !is_broken(Break::PurgePastCheckpoint) {
            self.checkpoint().await?;
        }
        self.snapshot()
    }
}
