//! One watch: waits for news, gets the outcome of everything that may have changed in one
//! view, and puts a step on its way when something has. A slow client gets the newest state
//! when it is ready for it, never a queue.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use flower_api::{
    Revision,
    watch::WatchId,
    wire::{Problem, code},
};
use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::{Allowed, Wanted, Watches, frame::Frame, hub::Told, outbox::Outbox};
use crate::{
    env::Mono,
    query::{Key, Outcome, index},
};

/// A step is made within this, or begun anew in a newer view: none is held for longer.
const STEP_LIMIT: Duration = Duration::from_secs(30);
/// After workers were too busy.
const PAUSE: Duration = Duration::from_millis(250);

/// Why a watch ends.
enum End {
    /// Its client is gone.
    Left,
    /// Its client takes nothing.
    Stalled,
    /// The node stops, or takes no part any more.
    Moved(&'static str),
    /// It cannot go on.
    Failed(Box<Problem>),
}

/// What an attempt at a step came to.
enum Attempt {
    /// To be written.
    Step(Frame, Option<OwnedSemaphorePermit>),
    /// Nothing has changed after all.
    Nothing,
    /// Try again after a while.
    Later(Duration),
    /// Try again once there is room for a frame of so many KiB.
    Room(u32),
}

/// One watch.
pub(super) struct Session {
    watches: Watches,
    id: WatchId,
    news: Arc<Notify>,
    outbox: Outbox,
    allowed: Allowed,
    from: Revision,
    deployment: Option<Arc<str>>,
}

impl Session {
    pub(super) fn new(
        watches: Watches,
        id: WatchId,
        news: Arc<Notify>,
        outbox: Outbox,
        wanted: Wanted,
    ) -> Self {
        Self {
            watches,
            id,
            news,
            outbox,
            allowed: wanted.allowed,
            from: wanted.from,
            deployment: None,
        }
    }

    /// Serves the watch until its end.
    pub(super) async fn run(mut self) {
        let (env, outbox) = (self.watches.0.env.clone(), self.outbox.clone());
        let stall = Duration::from_millis(self.watches.0.limits.stall_ms);
        let closing = self.watches.0.closing.clone();
        outbox.put(Frame::opened(self.id.to_string(), self.from), None);
        let end = tokio::select! {
            biased;
            () = outbox.dropped() => End::Left,
            () = closing.cancelled() => End::Moved("this node stops"),
            () = env.tasks.stopping() => End::Moved("this node stops"),
            () = outbox.is_cut() => End::Stalled,
            () = outbox.stalled(&env, stall) => End::Stalled,
            end = self.serve() => end,
        };
        let retry_ms = self.watches.retry_ms();
        self.watches.close(self.id.number);
        match end {
            End::Left => {}
            End::Stalled => {
                tracing::info!(watch = %self.id, "its client takes nothing; it is let go");
                outbox.cut();
            }
            End::Moved(why) => outbox.put(Frame::moved(why, retry_ms), None),
            End::Failed(problem) => outbox.put(Frame::ended(&problem), None),
        }
        outbox.finish();
    }

    async fn serve(&mut self) -> End {
        let every = Duration::from_millis(self.watches.0.limits.heartbeat_ms);
        let mut beat = self.watches.now() + every;
        loop {
            if self.has_news() {
                match self.step_or_beat(&mut beat, every).await {
                    Ok(()) => continue,
                    Err(end) => return end,
                }
            }
            let due = self.watches.0.env.clock.sleep_until(beat);
            tokio::select! {
                () = self.news.notified() => {}
                () = due => {
                    if let Err(end) = self.beat() {
                        return end;
                    }
                    beat = self.watches.now() + every;
                }
            }
        }
    }

    fn has_news(&self) -> bool {
        self.watches.0.queries.board().hub.has_news(self.id.number)
    }

    /// Makes steps until there is one, with signs of life meanwhile.
    async fn step_or_beat(&mut self, beat: &mut Mono, every: Duration) -> Result<(), End> {
        let (env, outbox) = (self.watches.0.env.clone(), self.outbox.clone());
        let (queries, number) = (self.watches.0.queries.clone(), self.id.number);
        let allowed = self.allowed.clone();
        let step = self.step();
        tokio::pin!(step);
        loop {
            tokio::select! {
                done = &mut step => {
                    // The step was a sign of life.
                    *beat = env.clock.mono() + every;
                    return done;
                }
                () = env.clock.sleep_until(*beat) => {
                    allowed().map_err(End::Failed)?;
                    let same = queries.board().hub.same(number);
                    outbox.put_if_idle(same.map_or_else(Frame::comment, Frame::same));
                    *beat = env.clock.mono() + every;
                }
            }
        }
    }

    /// Says that nothing has changed.
    fn beat(&self) -> Result<(), End> {
        (self.allowed)().map_err(End::Failed)?;
        if !self.watches.0.consensus.takes_part() {
            return Err(End::Moved("this node was removed from its group"));
        }
        self.watches.0.queries.catch_up();
        let same = self.watches.0.queries.board().hub.same(self.id.number);
        if let Some(to) = same {
            self.outbox.put_if_idle(Frame::same(to));
        }
        Ok(())
    }

    /// Makes one step, when the client is ready for it.
    async fn step(&mut self) -> Result<(), End> {
        let mut room = None;
        loop {
            self.outbox.has_room().await;
            match self.attempt(room.take()).await? {
                Attempt::Step(frame, held) => {
                    self.watches.0.steps.fetch_add(1, Ordering::Relaxed);
                    self.outbox.put(frame, held);
                    return Ok(());
                }
                Attempt::Nothing => return Ok(()),
                Attempt::Later(pause) => self.watches.0.env.sleep(pause).await,
                Attempt::Room(kib) => {
                    // Nothing of the step is kept meanwhile.
                    room = self.watches.room(kib).await;
                }
            }
        }
    }

    async fn attempt(&mut self, held: Option<OwnedSemaphorePermit>) -> Result<Attempt, End> {
        let (watches, number) = (self.watches.clone(), self.id.number);
        let queries = &watches.0.queries;
        let deadline = watches.now() + STEP_LIMIT;
        let (_, from) = queries.board().hub.due(number);
        let Some(view) = queries.shared_view(from, deadline).await else {
            return Ok(Attempt::Later(PAUSE));
        };
        queries.catch_up();
        let (due, _) = queries.board().hub.due(number);
        let deployment = queries.deployment(&view).map_err(End::Failed)?;
        let mut outcomes = BTreeMap::new();
        for key in due {
            match queries.outcome_at(&key, &deployment, &view).await {
                Ok(outcome) => outcomes.insert(key, outcome),
                Err(problem) => {
                    tracing::debug!(watch = %self.id, %problem, "a step waits");
                    return Ok(Attempt::Later(PAUSE));
                }
            };
            if watches.now() >= deadline {
                return Ok(Attempt::Later(Duration::ZERO));
            }
        }
        let at = (index(&view), view.revision());
        drop(view);
        self.finish(at, &deployment, &outcomes, held)
    }

    /// Everything is there: the step.
    fn finish(
        &mut self,
        (at, revision): (u64, Revision),
        deployment: &Arc<str>,
        outcomes: &BTreeMap<Key, Arc<Outcome>>,
        held: Option<OwnedSemaphorePermit>,
    ) -> Result<Attempt, End> {
        let inner = &self.watches.0;
        let mut board = inner.queries.board();
        let changes = board.hub.changes(self.id.number, outcomes);
        let room = match self.room(&changes, held)? {
            Ok(room) => room,
            Err(kib) => return Ok(Attempt::Room(kib)),
        };
        let first = board.hub.same(self.id.number).is_none();
        let reached = board.hub.settle(self.id.number, at, revision, outcomes);
        drop(board);
        let revision = revision.max(reached);
        let mut frame = Frame::default();
        let before = self.deployment.replace(deployment.clone());
        let reloaded = before.is_some_and(|before| before != *deployment);
        if reloaded {
            frame = frame.reload(deployment);
        }
        let frame = match (changes.is_empty(), first || reloaded) {
            (true, false) => return Ok(Attempt::Nothing),
            (true, true) => frame.and_same(revision),
            // From what the client was told last: it hears nothing of revisions between that
            // changed nothing for it.
            (false, _) => frame.step(self.outbox.told(), revision, &changes),
        };
        Ok(Attempt::Step(frame, room))
    }

    /// Room for the frame that these changes make: what is held already, or what is free. Not
    /// to be had now: how much is needed.
    fn room(
        &self,
        changes: &[Told],
        held: Option<OwnedSemaphorePermit>,
    ) -> Result<Result<Option<OwnedSemaphorePermit>, u32>, End> {
        let inner = &self.watches.0;
        let size = |told: &Told| match &told.outcome.result {
            Ok(json) => json.len() as u64,
            Err(_) => 0,
        };
        let bytes: u64 = changes.iter().map(size).sum();
        if bytes > inner.limits.step {
            return Err(End::Failed(Box::new(too_large(bytes, inner.limits.step))));
        }
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(inner.room_kib);
        if kib == 0 {
            return Ok(Ok(None));
        }
        if let Some(held) = held.filter(|held| held.num_permits() >= kib as usize) {
            return Ok(Ok(Some(held)));
        }
        let free = inner.room.clone().try_acquire_many_owned(kib);
        Ok(free.map(Some).map_err(|_| kib))
    }
}

fn too_large(bytes: u64, most: u64) -> Problem {
    Problem::new(
        413,
        code::TOO_LARGE,
        "Too large",
        format!(
            "the results that changed at once have {bytes} bytes, and a step of a watch at most \
             {most}; watch less at once, or page the queries"
        ),
    )
    .setting("FLOWER_LIMIT_WATCH_STEP")
}
