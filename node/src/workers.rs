//! The threads that run code of users, and the isolates that they keep. A call that does not
//! end at its wall limit is answered then; a thread that does not stop soon after is
//! abandoned and replaced. Decides nothing about calls, receipts or order.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use flower_api::{
    Revision, admin,
    wire::{Problem, code},
};
use flower_engine::{
    BundleError, CallError, Cost, Deadline, Deployment, Evaluated, Isolate, Limits, PatchBuilder,
    ReadSet, Stamp, View, ViewError,
    deploy::{self, PageTask},
    import::Roots,
    js,
};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

use crate::env::{Env, LaneId, LaneLocal, Mono};

/// What a worker is for: queries never wait behind mutations, nor the other way round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Queries, and the inspection of bundles.
    Query,
    /// The preparation of mutations and deployments.
    Mutation,
}

/// A bundle is loaded once and may take so many times as long as a call.
const LOAD_FACTOR: u64 = 10;

/// A call that was told to stop has so many times as long as a call to do so. Native code asks
/// nobody while it works, and a single operation on the largest integers and texts takes
/// seconds: an allocation after it ends the call, and its thread is no loss.
const GRACE_FACTOR: u64 = 10;

/// How long a work may take, and what is said when it took longer.
#[derive(Clone, Copy)]
struct Wall {
    ms: u64,
    passed: fn(u64) -> Problem,
}

/// The workers. Cheap to clone.
#[derive(Clone)]
pub struct Workers(Arc<Inner>);

struct Inner {
    env: Env,
    limits: Limits,
    queue: usize,
    queries: Arc<Pool>,
    mutations: Arc<Pool>,
    /// Workers that either kind may take when its own one is busy.
    shared: Pool,
    desks: Vec<Arc<Desk>>,
    stuck: AtomicU64,
    /// Bundles that got a thread stuck: one worker at a time runs them.
    penalised: Mutex<BTreeSet<String>>,
    penalty: Arc<Semaphore>,
    exhausted: Notify,
}

struct Pool {
    idle: Arc<Mutex<Vec<u32>>>,
    permits: Arc<Semaphore>,
    waiting: AtomicUsize,
}

impl Pool {
    fn new(workers: std::ops::Range<u32>) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(workers.len())),
            idle: Arc::new(Mutex::new(workers.collect())),
            waiting: AtomicUsize::new(0),
        }
    }

    fn try_take(&self) -> Option<Slot> {
        let permit = self.permits.clone().try_acquire_owned().ok()?;
        self.slot(permit)
    }

    async fn take(&self) -> Option<Slot> {
        let permit = self.permits.clone().acquire_owned().await.ok()?;
        self.slot(permit)
    }

    fn slot(&self, permit: OwnedSemaphorePermit) -> Option<Slot> {
        Some(Slot {
            worker: self.idle.lock().pop()?,
            idle: self.idle.clone(),
            _permit: permit,
        })
    }
}

/// What a worker's thread tells of itself.
#[derive(Default)]
struct Desk {
    heap_bytes: AtomicU64,
    bundle: Mutex<Option<String>>,
}

/// One worker, taken from its pool until dropped.
struct Slot {
    worker: u32,
    idle: Arc<Mutex<Vec<u32>>>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.idle.lock().push(self.worker);
    }
}

impl Workers {
    /// `count` workers: one is kept for mutations and one for queries, the others do both; a
    /// single one does everything. At most `queue` calls of a kind wait for one.
    pub fn new(env: &Env, limits: Limits, count: u32, queue: usize) -> Self {
        let count = count.max(1);
        let mutations = Arc::new(Pool::new(0..1));
        let queries = match count {
            1 => mutations.clone(),
            _ => Arc::new(Pool::new(1..2)),
        };
        Self(Arc::new(Inner {
            env: env.clone(),
            limits,
            queue,
            mutations,
            queries,
            shared: Pool::new(2..count.max(2)),
            desks: (0..count).map(|_| Arc::default()).collect(),
            stuck: AtomicU64::new(0),
            penalised: Mutex::default(),
            penalty: Arc::new(Semaphore::new(1)),
            exhausted: Notify::new(),
        }))
    }

    /// Bounds of an evaluation.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// How many of them run queries.
    pub fn for_queries(&self) -> usize {
        self.0.desks.len().saturating_sub(1).max(1)
    }

    /// Bytes of all JavaScript heaps, as of their last calls.
    pub fn heap_bytes(&self) -> u64 {
        let heaps = self.0.desks.iter();
        heaps.map(|d| d.heap_bytes.load(Ordering::Relaxed)).sum()
    }

    /// Threads that did not stop at their deadline, since the start.
    pub fn stuck(&self) -> u64 {
        self.0.stuck.load(Ordering::Relaxed)
    }

    /// Resolves when so many threads are stuck that only a restart frees them.
    pub async fn exhausted(&self) {
        self.0.exhausted.notified().await;
    }

    /// Drops the isolates that prepare mutations: they may have seen what never came to be.
    pub fn forget_speculation(&self) {
        for worker in (0..).take(self.0.desks.len()).filter(|w| *w != 1) {
            let desk = self.0.desks[worker as usize].clone();
            let clear = move |local: &mut LaneLocal| {
                local.clear();
                desk.heap_bytes.store(0, Ordering::Relaxed);
            };
            let lane = LaneId::Worker(worker);
            // A lane that is gone has no isolates either.
            let _ = self.0.env.lanes.submit(lane, Box::new(clear));
        }
    }

    /// Runs `work` on a worker. `bundle` is the hash of the bundle that it will run, if known.
    ///
    /// # Errors
    /// `overloaded` or `timeout` when no worker comes free, `budget` at the wall limit,
    /// `internal` when the work panicked. Nothing of it is seen then.
    pub async fn run<T: Send + 'static>(
        &self,
        purpose: Purpose,
        bundle: Option<&str>,
        deadline: Mono,
        work: impl FnOnce(&mut Isolates, &Deadline) -> T + Send + 'static,
    ) -> Result<T, Box<Problem>> {
        let wall = Wall {
            ms: self.0.limits.wall_ms,
            passed: over_budget,
        };
        self.run_within(wall, purpose, bundle, deadline, work).await
    }

    /// Runs `work` that makes values for the first time, which may take longer than a call.
    ///
    /// # Errors
    /// As [`Workers::run`].
    pub async fn build<T: Send + 'static>(
        &self,
        deadline: Mono,
        work: impl FnOnce(&mut Isolates, &Deadline) -> T + Send + 'static,
    ) -> Result<T, Box<Problem>> {
        let wall = Wall {
            ms: self.0.limits.for_build().wall_ms,
            passed: page_too_slow,
        };
        self.run_within(wall, Purpose::Mutation, None, deadline, work)
            .await
    }

    /// Runs `work` that loads a bundle, which may take longer than a call of it.
    ///
    /// # Errors
    /// As [`Workers::run`].
    pub async fn load<T: Send + 'static>(
        &self,
        deadline: Mono,
        work: impl FnOnce(&mut Isolates, &Deadline) -> T + Send + 'static,
    ) -> Result<T, Box<Problem>> {
        let wall = Wall {
            ms: self.0.limits.wall_ms.saturating_mul(LOAD_FACTOR),
            passed: load_too_slow,
        };
        self.run_within(wall, Purpose::Query, None, deadline, work)
            .await
    }

    async fn run_within<T: Send + 'static>(
        &self,
        wall: Wall,
        purpose: Purpose,
        bundle: Option<&str>,
        deadline: Mono,
        work: impl FnOnce(&mut Isolates, &Deadline) -> T + Send + 'static,
    ) -> Result<T, Box<Problem>> {
        let penalty = match bundle.map(|b| self.0.penalised.lock().contains(b)) {
            Some(true) => {
                let wait = self.0.penalty.clone().acquire_owned();
                let turn = self.0.env.until(deadline, wait).await;
                Some(turn.ok_or_else(|| Box::new(no_worker()))?)
            }
            _ => None,
        };
        let slot = self.take(purpose, deadline).await?;
        let (tell, told) = oneshot::channel();
        // What the code writes to the log is told with the id of the caller's request.
        let span = tracing::Span::current();
        let work = move |isolates: &mut Isolates, deadline: &Deadline| {
            span.in_scope(|| work(isolates, deadline))
        };
        let supervised = self.clone().supervise(slot, wall, work, tell);
        // Supervision goes on when the caller goes away.
        self.0.env.tasks.spawn_brief("evaluation", async move {
            supervised.await;
            drop(penalty);
        });
        told.await.unwrap_or_else(|_| Err(Box::new(panicked())))
    }

    async fn take(&self, purpose: Purpose, deadline: Mono) -> Result<Slot, Box<Problem>> {
        let pool = match purpose {
            Purpose::Query => &self.0.queries,
            Purpose::Mutation => &self.0.mutations,
        };
        if let Some(slot) = pool.try_take().or_else(|| self.0.shared.try_take()) {
            return Ok(slot);
        }
        let waiting = Count::up(&pool.waiting);
        if waiting.before >= self.0.queue {
            return Err(Box::new(overloaded(self.0.queue)));
        }
        let wait = async {
            tokio::select! {
                biased;
                slot = pool.take() => slot,
                slot = self.0.shared.take() => slot,
            }
        };
        let slot = self.0.env.until(deadline, wait).await.flatten();
        slot.ok_or_else(|| Box::new(no_worker()))
    }

    async fn supervise<T: Send + 'static>(
        self,
        slot: Slot,
        wall: Wall,
        work: impl FnOnce(&mut Isolates, &Deadline) -> T + Send + 'static,
        tell: oneshot::Sender<Result<T, Box<Problem>>>,
    ) {
        let flag = Arc::new(AtomicBool::new(false));
        let desk = self.0.desks[slot.worker as usize].clone();
        let (limits, deadline) = (self.0.limits, Deadline::new(flag.clone()));
        let (done, mut result) = oneshot::channel();
        let job = move |local: &mut LaneLocal| {
            let isolates = local.get_or_insert_with(|| Isolates {
                limits,
                desk,
                kept: None,
                cost: None,
                building: None,
            });
            let _ = done.send(work(isolates, &deadline));
            isolates.settle();
        };
        let lane = LaneId::Worker(slot.worker);
        if self.0.env.lanes.submit(lane, Box::new(job)).is_err() {
            return;
        }
        let limit = Duration::from_millis(wall.ms);
        match self.0.env.within(limit, &mut result).await {
            Some(Ok(value)) => {
                // Free before the caller goes on: it may call again at once.
                drop(slot);
                let _ = tell.send(Ok(value));
            }
            Some(Err(_)) => drop(slot),
            None => {
                flag.store(true, Ordering::Relaxed);
                let _ = tell.send(Err(Box::new((wall.passed)(wall.ms))));
                let grace = self.0.limits.wall_ms.saturating_mul(GRACE_FACTOR);
                let grace = Duration::from_millis(grace);
                if self.0.env.within(grace, result).await.is_none() {
                    self.abandon(slot.worker);
                }
            }
        }
    }

    fn abandon(&self, worker: u32) {
        let bundle = self.0.desks[worker as usize].bundle.lock().take();
        tracing::error!(
            worker,
            ?bundle,
            "a worker is stuck in a call and is replaced"
        );
        self.0.env.lanes.replace(LaneId::Worker(worker));
        self.0.stuck.fetch_add(1, Ordering::Relaxed);
        self.0.penalised.lock().extend(bundle);
        let half = self.0.desks.len().div_ceil(2).max(2);
        if self.0.env.lanes.abandoned() >= half {
            self.0.exhausted.notify_one();
        }
    }
}

/// A count that goes down again when dropped.
struct Count<'a> {
    of: &'a AtomicUsize,
    before: usize,
}

impl<'a> Count<'a> {
    fn up(of: &'a AtomicUsize) -> Self {
        let before = of.fetch_add(1, Ordering::Relaxed);
        Self { of, before }
    }
}

impl Drop for Count<'_> {
    fn drop(&mut self) {
        self.of.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The isolates that a worker keeps, of the deployment that it ran last, and of one that is
/// being built.
pub struct Isolates {
    limits: Limits,
    desk: Arc<Desk>,
    /// With the revision that made the bundle active: one that comes back reads and writes
    /// other indexes and cells than it did before.
    kept: Option<(String, Revision, Isolate)>,
    /// Of the deployment whose build is under way, beside the one that runs; with the revision
    /// that began the build.
    building: Option<(String, Revision, Isolate)>,
    cost: Option<Cost>,
}

/// One evaluation.
pub struct Call<'a> {
    /// Hash of the deployment.
    pub hash: &'a str,
    /// Query or mutation.
    pub purpose: Purpose,
    /// The function.
    pub name: &'a str,
    /// Arguments, JSON.
    pub args: &'a str,
    /// The state that it sees.
    pub view: Arc<dyn View>,
    /// Time, revision and seed.
    pub stamp: Stamp,
}

impl Isolates {
    /// Evaluates a call.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn evaluate(
        &mut self,
        call: Call<'_>,
        deadline: &Deadline,
    ) -> Result<Evaluated, CallError> {
        *self.desk.bundle.lock() = Some(call.hash.to_owned());
        let isolate = self.isolate(&*call.view, call.hash)?;
        let evaluate = match call.purpose {
            Purpose::Query => Isolate::query,
            Purpose::Mutation => Isolate::mutate,
        };
        let evaluated = evaluate(
            isolate, call.name, call.args, call.view, call.stamp, deadline,
        );
        self.cost = evaluated.as_ref().ok().map(|done| done.cost);
        evaluated
    }

    /// What the last evaluation used, when it ended well; taken.
    pub fn take_cost(&mut self) -> Option<Cost> {
        self.cost.take()
    }

    /// Loads the deployment with this hash, unless it is.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn warm(&mut self, view: &dyn View, hash: &str) -> Result<(), CallError> {
        self.isolate(view, hash).map(drop)
    }

    /// Stores cells for their own sake, in the deployment with this hash.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn store(
        &mut self,
        hash: &str,
        roots: &Roots,
        view: Arc<dyn View>,
        stamp: Stamp,
        deadline: &Deadline,
    ) -> Result<PatchBuilder, CallError> {
        *self.desk.bundle.lock() = Some(hash.to_owned());
        let isolate = self.isolate(&*view, hash)?;
        isolate.store(roots, view, stamp, deadline)
    }

    /// Evaluates the derived values of a page of a build.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn build(
        &mut self,
        task: &PageTask,
        stamp: Stamp,
        deadline: &Deadline,
    ) -> Result<deploy::Evaluated, CallError> {
        let (hash, since) = (&task.deployment.hash, task.deployment.revision);
        *self.desk.bundle.lock() = Some(hash.clone());
        let kept = self.building.take();
        let kept = kept.filter(|(kept, begun, _)| kept == hash && *begun == since);
        let (.., isolate) = match kept {
            Some(kept) => self.building.insert(kept),
            None => {
                let deployment = Arc::clone(&task.deployment);
                let isolate = self.load(deployment)?;
                self.building.insert((hash.clone(), since, isolate))
            }
        };
        let done = isolate.build(task, stamp, deadline);
        // One that failed may be of no use any more.
        self.building.take_if(|_| done.is_err());
        done
    }

    fn load(&self, deployment: Arc<Deployment>) -> Result<Isolate, CallError> {
        let hash = deployment.hash.clone();
        Isolate::new(deployment, &self.limits).map_err(|why| {
            let detail = format!("deployment {hash} does not load on this node: {why}");
            CallError::Refused(internal(detail))
        })
    }

    /// What the last call read of the view, when it failed; taken. Absent when it did not get
    /// that far.
    pub fn take_failed_reads(&mut self) -> Option<ReadSet> {
        let (.., isolate) = self.kept.as_mut()?;
        isolate.take_failed_reads()
    }

    /// What a bundle declares, learned in a throwaway isolate.
    ///
    /// # Errors
    /// What is wrong with the bundle.
    pub fn inspect(
        &self,
        source: &str,
        deadline: &Deadline,
    ) -> Result<flower_api::manifest::Manifest, BundleError> {
        js::inspect(source, &self.limits, deadline)
    }

    fn isolate(&mut self, view: &dyn View, hash: &str) -> Result<&mut Isolate, CallError> {
        let active = deploy::active(view)?.filter(|(active, ..)| active == hash);
        let since = active.map_or(Revision(0), |(_, since, _)| since);
        let same =
            |(kept, active, _): &(String, Revision, Isolate)| kept == hash && *active == since;
        if !self.kept.as_ref().is_some_and(same) {
            self.kept = None;
            let deployment = deploy::load(view, hash)?
                .ok_or_else(|| ViewError(format!("deployment {hash} is active and missing")))?;
            let stored = deployment.revision;
            let built = self
                .building
                .take_if(|(built, begun, _)| built == hash && *begun == stored);
            let isolate = match built {
                Some((.., isolate)) => isolate,
                None => self.load(deployment)?,
            };
            self.kept = Some((hash.to_owned(), since, isolate));
        }
        match &mut self.kept {
            Some((.., isolate)) => Ok(isolate),
            None => Err(CallError::Storage(ViewError("no isolate was made".into()))),
        }
    }

    /// After a call: an isolate that has served long or badly is dropped.
    fn settle(&mut self) {
        let mut heap = 0;
        for kept in [&mut self.kept, &mut self.building] {
            kept.take_if(|(.., isolate)| isolate.must_recycle());
            heap += kept.as_ref().map_or(0, |(.., i)| i.heap_bytes());
        }
        self.desk.heap_bytes.store(heap, Ordering::Relaxed);
        *self.desk.bundle.lock() = None;
    }
}

fn over_budget(wall_ms: u64) -> Problem {
    Problem::new(
        500,
        code::BUDGET,
        "Budget exceeded",
        format!("the function ran for {wall_ms} ms and was stopped; nothing was written"),
    )
    .setting("FLOWER_LIMIT_WALL_MS")
}

fn page_too_slow(wall_ms: u64) -> Problem {
    Problem::new(
        500,
        code::BUDGET,
        "Budget exceeded",
        format!("a page of the build ran for {wall_ms} ms and was stopped; nothing was written"),
    )
    .setting("FLOWER_LIMIT_BUILD_WALL_MS")
}

fn load_too_slow(wall_ms: u64) -> Problem {
    Problem::new(
        422,
        admin::code::BAD_BUNDLE,
        "The bundle is refused",
        format!(
            "loading the bundle took longer than {wall_ms} ms, {LOAD_FACTOR} times the time of a \
             call; the application that runs is unchanged. Do less at the top level of the module"
        ),
    )
    .setting("FLOWER_LIMIT_WALL_MS")
}

/// No worker took a call in its time.
pub(crate) fn no_worker() -> Problem {
    Problem::new(
        504,
        code::TIMEOUT,
        "Timeout",
        "no worker came free before the deadline, and nothing happened; more workers run more \
         calls at once",
    )
    .retryable()
    .setting("FLOWER_WORKERS")
}

fn overloaded(queue: usize) -> Problem {
    Problem::new(
        429,
        code::OVERLOADED,
        "Overloaded",
        format!("{queue} calls wait for a worker already; retry in a moment"),
    )
    .retryable()
    .setting("FLOWER_LIMIT_QUEUE")
}

fn internal(detail: impl Into<String>) -> Problem {
    Problem::new(500, code::INTERNAL, "Internal error", detail)
}

fn panicked() -> Problem {
    internal("the evaluation failed in the node itself; its log says more")
}

#[cfg(test)]
mod tests;
