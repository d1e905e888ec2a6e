//! Lanes without threads: a job waits for a drawn latency in virtual time, then runs inline.
//! Jobs of one lane keep their order, so that timeouts can fire while a flush or an install
//! is under way.

use std::{
    cell::RefCell,
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use flower_node::env::{Job, LaneGone, LaneId, LaneLocal, Lanes, SeedTree};
use rand::{Rng, rngs::StdRng};
use tokio::sync::mpsc;

/// Shortest and longest time that a job takes, microseconds.
const LATENCY_US: std::ops::Range<u64> = 50..2_000;

thread_local! {
    /// What the lanes of this thread's worlds keep between jobs; it need not be `Send`.
    static LOCALS: RefCell<HashMap<(u64, LaneId), LaneLocal>> = RefCell::default();
}

/// Tells the worlds of one thread apart.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The lanes of one simulated node.
pub struct SimLanes {
    world: u64,
    rng: Arc<Mutex<StdRng>>,
    lanes: Mutex<HashMap<LaneId, mpsc::UnboundedSender<Job>>>,
}

impl SimLanes {
    /// Lanes that draw their latencies from `seeds`. Needs a tokio runtime of one thread.
    pub fn new(seeds: &SeedTree) -> Self {
        Self {
            world: NEXT.fetch_add(1, Ordering::Relaxed),
            rng: Arc::new(Mutex::new(seeds.child("lanes").rng())),
            lanes: Mutex::default(),
        }
    }

    fn start(&self, lane: LaneId) -> mpsc::UnboundedSender<Job> {
        let (send, mut jobs) = mpsc::unbounded_channel::<Job>();
        let (world, rng) = (self.world, self.rng.clone());
        tokio::spawn(async move {
            while let Some(job) = jobs.recv().await {
                let latency = {
                    let mut rng = rng.lock().unwrap_or_else(PoisonError::into_inner);
                    rng.random_range(LATENCY_US)
                };
                tokio::time::sleep(Duration::from_micros(latency)).await;
                let mut local = LOCALS
                    .with_borrow_mut(|all| all.remove(&(world, lane)))
                    .unwrap_or_default();
                job(&mut local);
                LOCALS.with_borrow_mut(|all| all.insert((world, lane), local));
            }
        });
        send
    }
}

impl Lanes for SimLanes {
    fn submit(&self, lane: LaneId, job: Job) -> Result<(), LaneGone> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let send = lanes.entry(lane).or_insert_with(|| self.start(lane));
        send.send(job).map_err(|_| LaneGone(lane))
    }

    /// A job that runs inline is never stuck; what the lane kept is dropped all the same.
    fn replace(&self, stuck: LaneId) {
        LOCALS.with_borrow_mut(|all| all.remove(&(self.world, stuck)));
    }

    fn abandoned(&self) -> usize {
        0
    }
}

impl Drop for SimLanes {
    fn drop(&mut self) {
        let kept: Vec<_> = LOCALS.with_borrow_mut(|all| {
            let mine: Vec<_> = all
                .keys()
                .filter(|(w, _)| *w == self.world)
                .copied()
                .collect();
            mine.into_iter()
                .filter_map(|key| all.remove(&key))
                .collect()
        });
        drop(kept);
    }
}
