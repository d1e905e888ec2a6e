//! Lanes without threads: a job waits for a drawn latency in virtual time, then runs inline.
//! Jobs of one lane keep their order, so that timeouts can fire while a flush or an install
//! is under way.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use flower_node::env::{Job, LaneGone, LaneId, LaneLocal, Lanes, SeedTree};
use rand::{Rng, rngs::StdRng};
use tokio::sync::mpsc;

use crate::{audit::Audit, env::Controls};

thread_local! {
    /// What the lanes of this thread's worlds keep between jobs; it need not be `Send`.
    static LOCALS: RefCell<BTreeMap<(u64, LaneId), LaneLocal>> = const { RefCell::new(BTreeMap::new()) };
}

/// Tells the processes of one thread apart.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The lanes of one simulated process.
pub struct SimLanes {
    process: u64,
    rng: Arc<Mutex<StdRng>>,
    lanes: Mutex<BTreeMap<LaneId, mpsc::UnboundedSender<Job>>>,
    name: Arc<str>,
    audit: Audit,
    controls: Controls,
}

/// How long a job of a lane takes: mostly nothing or a millisecond (the world's tick), rarely
/// much, as with a disk that others use too.
fn latency_ms(lane: LaneId, rng: &mut StdRng) -> u64 {
    let usual = match lane {
        LaneId::Log | LaneId::Files => 0..=3,
        LaneId::State => 0..=1,
        LaneId::Image => 0..=4,
        LaneId::Worker(_) => 0..=2,
    };
    match rng.random_range(0..1_000) {
        0..2 => rng.random_range(100..=400),
        2..20 => rng.random_range(5..=40),
        _ => rng.random_range(usual),
    }
}

impl SimLanes {
    /// Lanes that draw their latencies from `seeds`. Needs a tokio runtime of one thread.
    pub fn new(seeds: &SeedTree, name: Arc<str>, audit: &Audit, controls: &Controls) -> Self {
        Self {
            process: NEXT.fetch_add(1, Ordering::Relaxed),
            rng: Arc::new(Mutex::new(seeds.child("lanes").rng())),
            lanes: Mutex::default(),
            name,
            audit: audit.clone(),
            controls: controls.clone(),
        }
    }

    fn start(&self, lane: LaneId) -> mpsc::UnboundedSender<Job> {
        let (send, mut jobs) = mpsc::unbounded_channel::<Job>();
        let (process, rng) = (self.process, self.rng.clone());
        let (name, audit, controls) =
            (self.name.clone(), self.audit.clone(), self.controls.clone());
        tokio::spawn(async move {
            while let Some(job) = jobs.recv().await {
                let mut ms = {
                    let mut rng = rng.lock().unwrap_or_else(PoisonError::into_inner);
                    let slow = controls.slow_ms(lane);
                    latency_ms(lane, &mut rng) + rng.random_range(0..=slow)
                };
                ms += controls.stalled().as_millis() as u64;
                if ms > 0 {
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                }
                let mut local = LOCALS
                    .with_borrow_mut(|all| all.remove(&(process, lane)))
                    .unwrap_or_default();
                job(&mut local);
                LOCALS.with_borrow_mut(|all| all.insert((process, lane), local));
                audit.record("job", &name, lane.to_string().as_bytes());
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
        LOCALS.with_borrow_mut(|all| all.remove(&(self.process, stuck)));
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
                .filter(|(process, _)| *process == self.process)
                .copied()
                .collect();
            mine.into_iter()
                .filter_map(|key| all.remove(&key))
                .collect()
        });
        drop(kept);
    }
}
