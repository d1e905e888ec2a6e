//! The consensus library's log over the store's: appended entries are readable at once; one
//! flush on the log lane takes everything that arrived while the last one ran (vote and log
//! alike, never reordered), and only then are the waiters told. No decisions about purging.

use std::{
    io,
    ops::{Bound, RangeBounds},
    sync::Arc,
};

use flower_api::ids::MemberId;
use flower_store::{
    Bounds, Flushed, Log, LogPosition, LogReader,
    sabotage::{self, Break, is_broken},
};
use openraft::{
    LogState, OptionalSend, RaftLogReader, storage::IOFlushed, storage::RaftLogStorage,
};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use super::{
    state::StateStore,
    types::{
        LogId, Proposed, RaftEntry, Stages, Types, Vote, WireVote, decode, encode, entry, log_id,
        position, record,
    },
};
use crate::env::{Env, Fatal, LaneId};

/// One message to a follower holds entries up to this, and at least one.
const READ_BYTES: u64 = 4 << 20;

/// Handle on the log; cheap to clone.
#[derive(Clone)]
pub(crate) struct LogStore {
    shared: Arc<Shared>,
    behind: Behind,
}

/// What purging waits for.
#[derive(Clone)]
enum Behind {
    /// A checkpoint of the state.
    State(StateStore),
    /// Nothing: the library's suite purges a log without a state.
    #[cfg(test)]
    Nothing,
}

struct Shared {
    env: Env,
    member: MemberId,
    log: Arc<Log>,
    reader: LogReader,
    queue: Mutex<Queue>,
    flushed: watch::Sender<Option<Flushed>>,
}

/// Who waits for the next flush.
#[derive(Default)]
struct Queue {
    waiters: Vec<Waiter>,
    scheduled: bool,
}

enum Waiter {
    Append(IOFlushed<Types>, Vec<Arc<Stages>>),
    Done(oneshot::Sender<()>),
}

/// The part of the log that the state store needs: what is durable.
#[derive(Clone)]
pub(crate) struct FlushedLog(Arc<Shared>);

impl FlushedLog {
    /// Over the log of `member`, which has just been opened.
    pub(crate) fn new(env: &Env, member: MemberId, log: Log) -> Self {
        let reader = log.reader();
        let vote = reader
            .vote()
            .and_then(|bytes| decode::<WireVote>(&bytes).ok());
        sabotage::vote_found(member.0, vote.map(|vote| vote.parts()));
        Self(Arc::new(Shared {
            env: env.clone(),
            member,
            log: Arc::new(log),
            reader,
            queue: Mutex::default(),
            flushed: watch::Sender::new(None),
        }))
    }

    /// Flushes what is pending, if anything is, and says how far the log is durable.
    pub(crate) async fn flush(&self) -> io::Result<Flushed> {
        let known = *self.0.flushed.borrow();
        if let Some(known) = known.filter(|_| is_broken(Break::CheckpointAheadOfLog)) {
            return Ok(known);
        }
        let done = self.0.wait_for_flush();
        done.await.map_err(|_| gone(&self.0.env))?;
        self.0
            .flushed
            .borrow()
            .ok_or_else(|| io::Error::other("the log was flushed, but does not say how far"))
    }

    /// Sizes and bounds.
    pub(crate) fn reader(&self) -> &LogReader {
        &self.0.reader
    }
}

impl Shared {
    fn wait_for_flush(self: &Arc<Self>) -> oneshot::Receiver<()> {
        let (tell, done) = oneshot::channel();
        self.enqueue(Waiter::Done(tell));
        done
    }

    fn enqueue(self: &Arc<Self>, waiter: Waiter) {
        let mut queue = self.queue.lock();
        queue.waiters.push(waiter);
        if queue.scheduled {
            return;
        }
        queue.scheduled = true;
        drop(queue);
        let shared = self.clone();
        let job = Box::new(move |_: &mut crate::env::LaneLocal| shared.flush());
        if let Err(error) = self.env.lanes.submit(LaneId::Log, job) {
            self.env.tasks.fail(Fatal::new(error.to_string()));
        }
    }

    /// Runs on the log lane. The waiters are taken before the flush: it covers them all.
    fn flush(&self) {
        let waiters = {
            let mut queue = self.queue.lock();
            queue.scheduled = false;
            std::mem::take(&mut queue.waiters)
        };
        let begun = self.env.clock.mono();
        match self.log.flush() {
            Ok(flushed) => {
                self.env.probe.log_flushed(self.env.clock.mono() - begun);
                self.flushed.send_replace(Some(flushed));
                for waiter in waiters {
                    match waiter {
                        Waiter::Append(callback, stages) => {
                            stages.iter().for_each(|s| s.set_flushed());
                            callback.io_completed(Ok(()));
                        }
                        Waiter::Done(tell) => {
                            let _ = tell.send(());
                        }
                    }
                }
            }
            Err(fatal) => {
                for waiter in waiters {
                    if let Waiter::Append(callback, _) = waiter {
                        callback.io_completed(Err(io::Error::other(fatal.to_string())));
                    }
                }
                self.env.tasks.fail(Fatal::new(fatal.to_string()));
            }
        }
    }
}

fn gone(env: &Env) -> io::Error {
    match env.tasks.failure() {
        Some(fatal) => io::Error::other(fatal.to_string()),
        None => io::Error::other("the log's thread is gone"),
    }
}

fn failed(fatal: flower_store::Fatal) -> io::Error {
    io::Error::other(fatal.to_string())
}

impl LogStore {
    pub(crate) fn new(log: FlushedLog, state: StateStore) -> Self {
        Self {
            shared: log.0,
            behind: Behind::State(state),
        }
    }

    /// A log that is purged without a state, as the library's suite does.
    #[cfg(test)]
    pub(crate) fn without_state(log: FlushedLog) -> Self {
        Self {
            shared: log.0,
            behind: Behind::Nothing,
        }
    }

    fn committed(&self) -> io::Result<Option<LogPosition>> {
        self.shared
            .reader
            .committed()
            .map(|bytes| decode::<LogPosition>(&bytes))
            .transpose()
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = Reader;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        let Bounds { purged, last } = self.shared.reader.bounds();
        Ok(LogState {
            last_purged_log_id: purged.map(log_id),
            last_log_id: last.map(log_id),
        })
    }

    async fn get_log_reader(&mut self) -> Reader {
        Reader(self.shared.reader.clone())
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let vote = WireVote::from(vote);
        self.shared.log.save_vote(encode(&vote));
        if !is_broken(Break::VoteAfterLog) {
            let flushed = self.shared.wait_for_flush().await;
            flushed.map_err(|_| gone(&self.shared.env))?;
        }
        sabotage::vote_told(self.shared.member.0, vote.parts());
        Ok(())
    }

    /// Only noted: the next flush carries it. This is awaited by the library's core.
    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        self.shared
            .log
            .note_committed(committed.map(|id| encode(&position(&id))));
        Ok(())
    }

    /// A note beyond the end of the log is worth nothing: what it spoke of is not here.
    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        let last = self.shared.reader.bounds().last.map(|last| last.index);
        Ok(self
            .committed()?
            .filter(|committed| Some(committed.index) <= last)
            .map(log_id))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = RaftEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut stages = Vec::new();
        let mut records = Vec::new();
        for entry in entries {
            let record = record(&entry);
            let at = record.position;
            records.push(record);
            if let openraft::EntryPayload::Normal(Proposed {
                stages: Some(of), ..
            }) = entry.payload
            {
                stages.push((at, of));
            }
        }
        self.shared.log.append(records);
        let stages = stages
            .into_iter()
            .inspect(|(at, of)| of.set_appended(*at))
            .map(|(_, of)| of)
            .collect();
        self.shared.enqueue(Waiter::Append(callback, stages));
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        self.shared
            .log
            .truncate_after(last.map(|id| id.index))
            .map_err(failed)?;
        // Nobody waits, but what was cut must not come back by luck.
        drop(self.shared.wait_for_flush());
        Ok(())
    }

    /// Waits until the state is durable that far, then gives up the records; the file shrinks
    /// with the next flush.
    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        let upto = position(&upto);
        let behind = match &self.behind {
            Behind::State(state) => state.checkpointed_upto(upto.index).await?,
            #[cfg(test)]
            Behind::Nothing => flower_store::Checkpointed::pretend(upto),
        };
        self.shared.log.purge(upto, &behind).map_err(failed)?;
        drop(self.shared.wait_for_flush());
        Ok(())
    }
}

/// Reads the log for replication and apply.
#[derive(Clone)]
pub(crate) struct Reader(LogReader);

impl RaftLogReader<Types> for Reader {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<RaftEntry>>
    where
        RB: RangeBounds<u64> + Clone + std::fmt::Debug + OptionalSend,
    {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&end) => end.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => u64::MAX,
        };
        self.read(start, end, u64::MAX)
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        self.0
            .vote()
            .map(|bytes| decode::<WireVote>(&bytes).map(Vote::from))
            .transpose()
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> io::Result<Vec<RaftEntry>> {
        self.read(start, end, READ_BYTES)
    }
}

impl Reader {
    fn read(&self, start: u64, end: u64, max_bytes: u64) -> io::Result<Vec<RaftEntry>> {
        if start >= end {
            return Ok(Vec::new());
        }
        self.0
            .get(start..end, max_bytes)
            .map_err(failed)?
            .into_iter()
            .map(entry)
            .collect()
    }
}
