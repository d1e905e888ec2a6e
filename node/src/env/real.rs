//! The operating system's clock, sockets and threads: the only place of the node's library
//! that may use them.

use std::{
    collections::{HashMap, VecDeque},
    io,
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::{Condvar, Mutex};
use tokio::net::{TcpListener, TcpStream};

use super::{ByteStream, Clock, Fut, Job, LaneGone, LaneId, LaneLocal, Lanes, Listener, Mono, Net};

/// The system's clocks.
pub struct RealClock {
    start: tokio::time::Instant,
}

impl RealClock {
    /// A clock whose monotonic time begins a second ago, so that no point is zero.
    pub fn new() -> Self {
        let now = tokio::time::Instant::now();
        Self {
            start: now.checked_sub(Duration::from_secs(1)).unwrap_or(now),
        }
    }
}

impl Default for RealClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for RealClock {
    fn wall_ms(&self) -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
    }
    fn mono(&self) -> Mono {
        Mono(self.start.elapsed())
    }
    fn sleep_until(&self, at: Mono) -> Fut<'static, ()> {
        // A deadline too far to represent is never reached.
        match self.start.checked_add(at.0) {
            Some(instant) => Box::pin(tokio::time::sleep_until(instant)),
            None => Box::pin(std::future::pending()),
        }
    }
}

/// The system's sockets.
pub struct RealNet;

impl Net for RealNet {
    fn listen(&self, at: SocketAddr) -> Fut<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let listener = TcpListener::bind(at).await?;
            Ok(Box::new(RealListener(listener)) as Box<dyn Listener>)
        })
    }
    fn dial(&self, to: &str) -> Fut<'_, io::Result<Box<dyn ByteStream>>> {
        let to = to.to_owned();
        Box::pin(async move {
            let stream = TcpStream::connect(to).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        })
    }
}

struct RealListener(TcpListener);

impl Listener for RealListener {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
    fn accept(&mut self) -> Fut<'_, io::Result<(Box<dyn ByteStream>, SocketAddr)>> {
        Box::pin(async {
            let (stream, from) = self.0.accept().await?;
            stream.set_nodelay(true)?;
            Ok((Box::new(stream) as Box<dyn ByteStream>, from))
        })
    }
}

/// One thread a lane, started with its first job; all end when this is dropped.
pub struct RealLanes {
    lanes: Mutex<HashMap<LaneId, Arc<Lane>>>,
    abandoned: Arc<AtomicUsize>,
}

struct Lane {
    id: LaneId,
    state: Mutex<LaneState>,
    wake: Condvar,
    abandoned: Arc<AtomicUsize>,
}

#[derive(Default)]
struct LaneState {
    jobs: VecDeque<Job>,
    /// Counts replacements: a thread of an older generation takes no more jobs.
    generation: u64,
    busy: bool,
    closed: bool,
}

impl RealLanes {
    /// No thread yet.
    pub fn new() -> Self {
        Self {
            lanes: Mutex::new(HashMap::new()),
            abandoned: Arc::new(AtomicUsize::new(0)),
        }
    }
}

impl Default for RealLanes {
    fn default() -> Self {
        Self::new()
    }
}

impl Lanes for RealLanes {
    fn submit(&self, id: LaneId, job: Job) -> Result<(), LaneGone> {
        let mut lanes = self.lanes.lock();
        let lane = match lanes.get(&id) {
            Some(lane) => lane.clone(),
            None => {
                let lane = Arc::new(Lane {
                    id,
                    state: Mutex::default(),
                    wake: Condvar::new(),
                    abandoned: self.abandoned.clone(),
                });
                start(&lane, 0)?;
                lanes.insert(id, lane.clone());
                lane
            }
        };
        drop(lanes);
        let mut state = lane.state.lock();
        if state.closed {
            return Err(LaneGone(id));
        }
        state.jobs.push_back(job);
        lane.wake.notify_one();
        Ok(())
    }

    fn replace(&self, stuck: LaneId) {
        let Some(lane) = self.lanes.lock().get(&stuck).cloned() else {
            return;
        };
        let mut state = lane.state.lock();
        state.generation += 1;
        if state.busy {
            self.abandoned.fetch_add(1, Ordering::Relaxed);
        }
        state.busy = false;
        let generation = state.generation;
        lane.wake.notify_all();
        drop(state);
        if start(&lane, generation).is_err() {
            lane.state.lock().closed = true;
        }
    }

    fn abandoned(&self) -> usize {
        self.abandoned.load(Ordering::Relaxed)
    }
}

impl Drop for RealLanes {
    fn drop(&mut self) {
        for lane in self.lanes.lock().values() {
            lane.state.lock().closed = true;
            lane.wake.notify_all();
        }
    }
}

fn start(lane: &Arc<Lane>, generation: u64) -> Result<(), LaneGone> {
    let id = lane.id;
    let lane = lane.clone();
    std::thread::Builder::new()
        .name(format!("flower-{id}"))
        .stack_size(2 << 20)
        .spawn(move || run(&lane, generation))
        .map(drop)
        .map_err(|error| {
            tracing::error!(lane = %id, %error, "a thread cannot be started");
            LaneGone(id)
        })
}

fn run(lane: &Lane, generation: u64) {
    let mut local = LaneLocal::default();
    while let Some(job) = next(lane, generation) {
        if catch_unwind(AssertUnwindSafe(|| job(&mut local))).is_err() {
            tracing::error!(lane = %lane.id, "a job panicked");
            local.clear();
        }
        let mut state = lane.state.lock();
        if state.generation == generation {
            state.busy = false;
        } else {
            lane.abandoned.fetch_sub(1, Ordering::Relaxed);
            return;
        }
    }
}

/// The next job; `None` when the thread must end. Jobs queued before a close still run.
fn next(lane: &Lane, generation: u64) -> Option<Job> {
    let mut state = lane.state.lock();
    loop {
        if state.generation != generation {
            return None;
        }
        if let Some(job) = state.jobs.pop_front() {
            state.busy = true;
            return Some(job);
        }
        if state.closed {
            return None;
        }
        lane.wake.wait(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn jobs_of_a_lane_run_in_order_and_survive_a_panic_and_a_replacement() {
        let lanes = RealLanes::new();
        let (tell, told) = mpsc::channel();
        let (release, stuck) = mpsc::channel::<()>();
        let say = |n: u32| {
            let tell = tell.clone();
            Box::new(move |local: &mut LaneLocal| {
                let count = local.get_or_insert_with(|| 0_u32);
                *count += 1;
                tell.send((n, *count)).unwrap();
            })
        };
        let lane = LaneId::Worker(1);
        lanes.submit(lane, say(1)).unwrap();
        lanes
            .submit(lane, Box::new(|_| panic!("on purpose")))
            .unwrap();
        lanes.submit(lane, say(2)).unwrap();
        assert_eq!(told.recv().unwrap(), (1, 1));
        assert_eq!(
            told.recv().unwrap(),
            (2, 1),
            "a panic drops what the lane kept"
        );
        let (begin, begun) = mpsc::channel();
        let job = move |_: &mut LaneLocal| {
            begin.send(()).unwrap();
            let _ = stuck.recv();
        };
        lanes.submit(lane, Box::new(job)).unwrap();
        lanes.submit(lane, say(3)).unwrap();
        begun.recv().unwrap();
        lanes.replace(lane);
        assert_eq!(lanes.abandoned(), 1);
        assert_eq!(told.recv().unwrap(), (3, 1), "on a new thread");
        release.send(()).unwrap();
        while lanes.abandoned() > 0 {
            std::thread::yield_now();
        }
    }
}
