//! When the state is made durable and the log given up: a checkpoint after so many applied
//! bytes or so long after the first one; a snapshot (metadata only) and a purge behind it
//! after so many bytes of log. Never purges what an image on its way will need next.
//! The decisions are pure functions; two tasks carry them out.

use std::{sync::Arc, time::Duration};

use flower_store::sabotage::{Break, is_broken};
use openraft::{RaftMetrics, async_runtime::watch::WatchReceiver};

use super::{
    Raft, log::FlushedLog, report::contact, settings::ConsensusSettings, state::StateStore,
    transfer::Outgoing, types::Types,
};
use crate::env::{Env, Fatal};

/// How often the log's size is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A snapshot that takes longer is asked for again.
const SNAPSHOT_LIMIT: Duration = Duration::from_secs(30);
/// Entries always kept behind the snapshot, for followers that are a little behind.
const KEEP_ENTRIES: u64 = 16;
/// Of the log's bytes, this part is kept likewise.
const KEEP_PART: u64 = 4;
/// A follower that answered this recently is waited for, within bounds.
const RECENT: Duration = Duration::from_secs(5);
/// … until the log is this many times larger than it should be.
const PATIENCE: u64 = 4;

/// Starts the two tasks.
pub(crate) fn start(
    env: &Env,
    raft: &Raft,
    state: &StateStore,
    log: &FlushedLog,
    outgoing: &Arc<Outgoing>,
    settings: &ConsensusSettings,
) {
    let checkpoints = checkpoints(env.clone(), state.clone(), settings.clone());
    env.tasks.spawn("checkpoints", checkpoints);
    let purge = Purge {
        env: env.clone(),
        raft: raft.clone(),
        state: state.clone(),
        log: log.clone(),
        outgoing: outgoing.clone(),
        after_bytes: settings.snapshot_after_log_bytes,
    };
    env.tasks.spawn("purge", purge.run());
}

async fn checkpoints(
    env: Env,
    state: StateStore,
    settings: ConsensusSettings,
) -> Result<(), Fatal> {
    loop {
        tokio::select! {
            () = state.dirtied() => {}
            () = env.tasks.stopping() => return Ok(()),
        }
        if !state.is_dirty() {
            continue;
        }
        let due = env.clock.mono() + settings.checkpoint_every;
        while state.dirty_bytes() < settings.checkpoint_bytes && env.clock.mono() < due {
            tokio::select! {
                () = state.dirtied() => {}
                () = env.clock.sleep_until(due) => {}
                () = env.tasks.stopping() => return Ok(()),
            }
        }
        if let Err(error) = state.checkpoint().await
            && !env.tasks.is_stopping()
        {
            return Err(Fatal::new(format!("a checkpoint failed: {error}")));
        }
    }
}

struct Purge {
    env: Env,
    raft: Raft,
    state: StateStore,
    log: FlushedLog,
    outgoing: Arc<Outgoing>,
    after_bytes: u64,
}

impl Purge {
    async fn run(self) -> Result<(), Fatal> {
        loop {
            tokio::select! {
                () = self.env.sleep(LOOK_EVERY) => {}
                () = self.env.tasks.stopping() => return Ok(()),
            }
            let bytes = self.log.reader().stats().log_bytes;
            if bytes < self.after_bytes || self.outgoing.current().is_some() {
                continue;
            }
            tokio::select! {
                () = self.once() => {}
                () = self.env.tasks.stopping() => return Ok(()),
            }
        }
    }

    fn metrics(&self) -> RaftMetrics<Types> {
        self.raft.metrics().borrow_watched().clone()
    }

    async fn once(&self) {
        let Some(applied) = self.state.view().applied() else {
            return;
        };
        if self.raft.trigger().snapshot().await.is_err() {
            return;
        }
        let mut progress = self.raft.metrics();
        let announced = async {
            loop {
                let snapshot = progress.borrow_watched().snapshot.map(|id| id.index);
                if snapshot >= Some(applied.index) || progress.changed().await.is_err() {
                    return;
                }
            }
        };
        if self.env.within(SNAPSHOT_LIMIT, announced).await.is_none() {
            tracing::warn!("a snapshot was not announced in time; it will be asked for again");
            return;
        }
        let bounds = self.log.reader().bounds();
        let log = Log {
            purged: bounds.purged.map(|p| p.index),
            last: bounds.last.map(|p| p.index),
            bytes: self.log.reader().stats().log_bytes,
        };
        let metrics = self.metrics();
        let durable = self.state.checkpoint_position().map(|p| p.index);
        let announced = metrics.snapshot.map(|id| id.index);
        let announced = match is_broken(Break::PurgePastCheckpoint) {
            false => announced.min(durable),
            true => announced,
        };
        let matched = slowest(&metrics);
        if self.outgoing.current().is_some() {
            return;
        }
        if let Some(upto) = purge_upto(log, announced, matched, self.after_bytes) {
            tracing::info!(upto, log_bytes = log.bytes, "purging the log");
            let _ = self.raft.trigger().purge_log(upto).await;
        }
    }
}

/// Of the members that answered recently, the least that one is known to have.
fn slowest(metrics: &RaftMetrics<Types>) -> Option<Option<u64>> {
    let recent = metrics.replication.iter().flatten().filter(|(id, _)| {
        **id != metrics.id && contact(metrics, **id).is_some_and(|age| age < RECENT)
    });
    recent
        .map(|(_, matched)| matched.as_ref().map(|id| id.index))
        .min()
}

#[derive(Debug, Clone, Copy)]
struct Log {
    purged: Option<u64>,
    last: Option<u64>,
    bytes: u64,
}

/// Up to where the log is given up; `None` when there is nothing to give up now. `announced`
/// is what snapshot and checkpoint both cover; `matched` the slowest recent follower's end.
fn purge_upto(
    log: Log,
    announced: Option<u64>,
    matched: Option<Option<u64>>,
    after_bytes: u64,
) -> Option<u64> {
    let last = log.last?;
    let first = log.purged.map_or(0, |purged| purged + 1);
    let entries = (last + 1).saturating_sub(first);
    let keep = (entries / KEEP_PART).max(KEEP_ENTRIES);
    let mut upto = announced?.min(last.checked_sub(keep)?);
    if let Some(matched) = matched
        && log.bytes < after_bytes.saturating_mul(PATIENCE)
    {
        upto = upto.min(matched?);
    }
    (upto >= first).then_some(upto)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_given_up_behind_snapshot_margin_and_recent_followers() {
        let log = |purged, last, bytes| Log {
            purged,
            last: Some(last),
            bytes,
        };
        let after = 1_000;
        for (log, announced, matched, expected) in [
            // Nothing announced, nothing given up.
            (log(None, 999, 1_000), None, None, None),
            // A quarter is kept, and never less than the fixed margin.
            (log(None, 999, 1_000), Some(999), None, Some(749)),
            (log(None, 29, 1_000), Some(29), None, Some(13)),
            (log(None, 9, 1_000), Some(9), None, None),
            // Never past what is announced.
            (log(None, 999, 1_000), Some(500), None, Some(500)),
            // A recent follower is waited for, one without any entry too …
            (log(None, 999, 1_000), Some(999), Some(Some(100)), Some(100)),
            (log(None, 999, 1_000), Some(999), Some(None), None),
            // … but not for ever.
            (log(None, 999, 4_000), Some(999), Some(Some(100)), Some(749)),
            // What is purged is purged.
            (log(Some(800), 999, 1_000), Some(999), None, Some(950)),
            (log(Some(980), 999, 1_000), Some(999), None, Some(983)),
            (log(Some(990), 999, 1_000), Some(999), None, None),
        ] {
            let got = purge_upto(log, announced, matched, after);
            assert_eq!(got, expected, "{log:?} {announced:?} {matched:?}");
        }
    }
}
