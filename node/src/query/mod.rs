//! Outcomes of queries: from the cache while they hold, else evaluated, each distinct query
//! once for all who wait for it. Calls and watches share the outcomes; the evaluations for
//! watches leave workers to calls. Decides nothing about freshness: the view is given.

mod board;
mod cache;
mod canonical;
mod key;
mod pace;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use flower_api::{
    Revision,
    wire::{Problem, code},
};
use flower_engine::{CallError, ReadSetBuilder, Space, View, deploy, key::meta};
use flower_store::StateView;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, Semaphore, watch};
use tracing::Instrument;

use crate::{
    consensus::Consensus,
    env::{Env, Mono},
    prepare::no_application,
    read::{read_stamp, unreadable},
    watch::hub::{Bounds, Hub, Number},
    workers::{Call, Isolates, Purpose, Workers, no_worker},
};

use board::Next;
pub use board::{Board, Landed};
pub use cache::CacheStats;
pub use canonical::canonical;
pub use key::{Etag, Key, Outcome, is_named};
use pace::Pace;

/// How long an evaluation for watches may wait for a worker.
const WATCH_WAIT: Duration = Duration::from_secs(30);

/// Evaluates and remembers. Cheap to clone.
#[derive(Clone)]
pub struct Queries(Arc<Inner>);

struct Inner {
    env: Env,
    consensus: Consensus,
    workers: Workers,
    board: Mutex<Board>,
    /// Evaluations for watches at a time.
    room: Arc<Semaphore>,
    pace: Mutex<Pace>,
    evaluations: AtomicU64,
}

/// An outcome, and what it is of.
#[derive(Debug, Clone)]
pub struct Answered {
    /// The outcome.
    pub outcome: Arc<Outcome>,
    /// A revision at which it holds.
    pub revision: Revision,
    /// Hash of the deployment that made it.
    pub deployment: Arc<str>,
}

impl Queries {
    /// With a cache of so many bytes and these bounds of watches.
    pub fn new(
        env: &Env,
        consensus: &Consensus,
        workers: &Workers,
        cache_bytes: u64,
        bounds: Bounds,
    ) -> Self {
        let view = consensus.view();
        let hub = Hub::new(bounds, index(&view), view.revision());
        // One worker stays for calls, if there are two.
        let room = workers.for_queries().saturating_sub(1).max(1);
        Self(Arc::new(Inner {
            env: env.clone(),
            consensus: consensus.clone(),
            workers: workers.clone(),
            board: Mutex::new(Board::new(cache_bytes, hub)),
            room: Arc::new(Semaphore::new(room)),
            pace: Mutex::new(Pace::default()),
            evaluations: AtomicU64::new(0),
        }))
    }

    /// What is known and under way. Held for a moment only.
    pub fn board(&self) -> MutexGuard<'_, Board> {
        self.0.board.lock()
    }

    /// Evaluations since the start.
    pub fn evaluations(&self) -> u64 {
        self.0.evaluations.load(Ordering::Relaxed)
    }

    /// The outcome of `key` in `view`, or in a later one.
    ///
    /// # Errors
    /// `no-application`; as workers refuse.
    pub async fn answer(
        &self,
        key: &Key,
        mut view: Arc<StateView>,
        deadline: Mono,
    ) -> Result<Answered, Box<Problem>> {
        loop {
            let deployment = self.deployment(&view)?;
            let at = index(&view);
            let next = {
                let mut board = self.board();
                let recent = self.0.consensus.recent();
                recent.with(|ring| board.next(key, &deployment, at, ring))
            };
            let (landing, own) = match next {
                Next::Known(outcome) => {
                    return Ok(Answered {
                        outcome,
                        revision: view.revision(),
                        deployment,
                    });
                }
                Next::Renew => {
                    view = self.0.consensus.view();
                    continue;
                }
                Next::Alone => {
                    let outcome = self.evaluate(key, &deployment, &view, deadline).await?;
                    return Ok(Answered {
                        outcome,
                        revision: view.revision(),
                        deployment,
                    });
                }
                Next::Join(landing) => (landing, false),
                Next::Fly(flight, landing) => {
                    let (queries, key, view) = (self.clone(), key.clone(), view.clone());
                    let flown = async move {
                        let flown = queries.evaluate(&key, &deployment, &view, deadline).await;
                        let landed = flown.map(|outcome| landed(outcome, &view, &deployment));
                        queries.keep(&key, &landed);
                        queries.board().land(&key, flight, landed);
                    };
                    // What it logs belongs to the call that began it.
                    let flown = flown.in_current_span();
                    self.0.env.tasks.spawn_brief("query", flown);
                    (landing, true)
                }
            };
            match self.0.env.until(deadline, land(landing)).await {
                Some(Ok(landed)) if own || landed.serves(at) => {
                    return Ok(landed.answered);
                }
                // Of an earlier state, or of another moment: it may do, or is made anew.
                Some(Ok(_)) => {}
                // Whoever began it may have had less time.
                Some(Err(problem)) if problem.code != code::TIMEOUT => return Err(problem),
                Some(Err(problem)) => {
                    if self.0.env.clock.mono() >= deadline {
                        return Err(problem);
                    }
                }
                None => return Err(Box::new(no_worker())),
            }
        }
    }

    /// The outcome of a watched query in exactly this view.
    ///
    /// # Errors
    /// When no worker came to it: it may go better in a moment.
    pub async fn outcome_at(
        &self,
        key: &Key,
        deployment: &Arc<str>,
        view: &Arc<StateView>,
    ) -> Result<Arc<Outcome>, Box<Problem>> {
        let at = index(view);
        let landing = {
            let mut board = self.board();
            if let Some(outcome) = self.known(&mut board, key, deployment, at) {
                return Ok(outcome);
            }
            match board.queued(key, at) {
                Ok(landing) => landing,
                Err((tell, landing)) => {
                    let (queries, key) = (self.clone(), key.clone());
                    let (view, deployment) = (view.clone(), deployment.clone());
                    self.0.env.tasks.spawn_brief("watched query", async move {
                        let landed = queries.turn(&key, &deployment, &view).await;
                        queries.board().dequeue(&key, index(&view));
                        let _ = tell.send(Some(landed));
                    });
                    landing
                }
            }
        };
        land(landing).await.map(|landed| landed.answered.outcome)
    }

    /// Waits for the turn of an evaluation for watches, and evaluates.
    async fn turn(
        &self,
        key: &Key,
        deployment: &Arc<str>,
        view: &Arc<StateView>,
    ) -> Result<Landed, Box<Problem>> {
        let deadline = self.0.env.clock.mono() + WATCH_WAIT;
        let turn = self.0.room.clone().acquire_owned();
        let Some(Ok(_turn)) = self.0.env.until(deadline, turn).await else {
            return Err(Box::new(no_worker()));
        };
        let flight = {
            let mut board = self.board();
            if let Some(outcome) = self.known(&mut board, key, deployment, index(view)) {
                return Ok(landed(outcome, view, deployment));
            }
            board.take_off(key, index(view))
        };
        let begun = self.0.env.clock.mono();
        let flown = self.evaluate(key, deployment, view, deadline).await;
        self.0.pace.lock().took(self.0.env.clock.mono() - begun);
        let landed = flown.map(|outcome| landed(outcome, view, deployment));
        self.keep(key, &landed);
        if let Some(flight) = flight {
            self.board().land(key, flight, landed.clone());
        }
        landed
    }

    /// From the cache, for a watch: the hub learns of it.
    fn known(
        &self,
        board: &mut Board,
        key: &Key,
        deployment: &str,
        at: u64,
    ) -> Option<Arc<Outcome>> {
        let now_ms = self.0.env.clock.mono().ms();
        let recent = self.0.consensus.recent();
        recent.with(|ring| board.known(key, deployment, at, ring, now_ms))
    }

    fn keep(&self, key: &Key, landed: &Result<Landed, Box<Problem>>) {
        if let Ok(landed) = landed {
            let now_ms = self.0.env.clock.mono().ms();
            let mut board = self.board();
            let recent = self.0.consensus.recent();
            recent.with(|ring| board.keep(key, landed, ring, now_ms));
        }
    }

    /// A view that several watches share: while evaluations for watches pile up, all take the
    /// same one for a while, so that each query is evaluated once for all of them. It shows
    /// everything up to `from`; absent when that is not applied in time.
    pub async fn shared_view(&self, from: u64, deadline: Mono) -> Option<Arc<StateView>> {
        if from > 0 && !self.0.consensus.wait_applied(from, deadline).await {
            return None;
        }
        loop {
            let newest = self.0.consensus.view();
            let now = self.0.env.clock.mono();
            let waiting = self.board().waiting().saturating_sub(1);
            let taken = self.0.pace.lock().take(newest, now, waiting, from);
            match taken {
                Ok(view) => return Some(view),
                Err(at) => self.0.env.clock.sleep_until(at).await,
            }
        }
    }

    /// Marks everything that was written; wakes the watches that have news.
    pub fn catch_up(&self) {
        let now_ms = self.0.env.clock.mono().ms();
        let applied = self.0.consensus.applied().borrow().revision;
        let mut board = self.board();
        let recent = self.0.consensus.recent();
        recent.with(|ring| board.catch_up(ring, applied, now_ms));
    }

    /// Wakes the watches whose queries may be tried again.
    pub fn tick(&self) {
        let now_ms = self.0.env.clock.mono().ms();
        self.board().tick(now_ms);
    }

    /// The active deployment of a view.
    ///
    /// # Errors
    /// `no-application`.
    pub fn deployment(&self, view: &StateView) -> Result<Arc<str>, Box<Problem>> {
        let active = deploy::active(view).map_err(|e| unreadable(&self.0.env.tasks, &e))?;
        let (hash, ..) = active.ok_or_else(|| Box::new(no_application()))?;
        Ok(hash.into())
    }

    async fn evaluate(
        &self,
        key: &Key,
        deployment: &Arc<str>,
        view: &Arc<StateView>,
        deadline: Mono,
    ) -> Result<Arc<Outcome>, Box<Problem>> {
        let inner = &self.0;
        let revision = view.revision();
        let stamp = read_stamp(&inner.env, "query", revision);
        inner.evaluations.fetch_add(1, Ordering::Relaxed);
        let (asked, hash, seen) = (key.clone(), deployment.clone(), view.clone());
        let work = move |isolates: &mut Isolates, deadline: &_| {
            let call = Call {
                hash: &hash,
                purpose: Purpose::Query,
                name: &asked.name,
                args: &asked.args,
                view: seen as Arc<dyn View>,
                stamp,
            };
            let ended = isolates.evaluate(call, deadline);
            (ended, isolates.take_failed_reads())
        };
        let ran = inner
            .workers
            .run(Purpose::Query, Some(deployment), deadline, work)
            .await;
        let (result, reads) = match ran {
            Ok((Ok(done), _)) => (Ok(done.result), Some(done.reads)),
            Ok((Err(CallError::Refused(problem) | CallError::Fault(problem)), reads)) => {
                let reads = reads.or_else(|| (problem.status < 500).then(declared_only));
                (Err(problem), reads)
            }
            Ok((Err(CallError::Storage(error)), _)) => {
                return Err(unreadable(&inner.env.tasks, &error));
            }
            Err(problem) if problem.code == code::BUDGET => (Err(*problem), None),
            Err(problem) => return Err(problem),
        };
        Ok(Arc::new(Outcome::new(key, result, reads)))
    }
}

/// Refused for what the deployment declares: nothing else was read.
fn declared_only() -> flower_engine::ReadSet {
    let mut reads = ReadSetBuilder::default();
    reads.record(Space::Meta, meta::ACTIVE);
    reads.finish()
}

/// Where a view stands in the log.
pub fn index(view: &StateView) -> u64 {
    view.applied().map_or(0, |position| position.index)
}

fn landed(outcome: Arc<Outcome>, view: &StateView, deployment: &Arc<str>) -> Landed {
    Landed {
        at: index(view),
        answered: Answered {
            outcome,
            revision: view.revision(),
            deployment: deployment.clone(),
        },
    }
}

/// Waits for an evaluation that somebody else may have begun.
async fn land(mut landing: board::Landing) -> Result<Landed, Box<Problem>> {
    let landed = landing.wait_for(Option::is_some).await;
    match landed.as_deref() {
        Ok(Some(landed)) => landed.clone(),
        _ => Err(Box::new(
            Problem::new(503, code::NOT_READY, "Not ready", "this node stops").retryable(),
        )),
    }
}

/// Kept by the board for every watch.
pub(crate) type Wakers = std::collections::BTreeMap<Number, Arc<Notify>>;
pub(crate) type News = BTreeSet<Number>;
pub(crate) type Teller = watch::Sender<Option<Result<Landed, Box<Problem>>>>;
