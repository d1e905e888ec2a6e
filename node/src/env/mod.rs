//! Everything that the node does not decide itself: clock, seeds, network, disk, threads
//! (lanes) and tasks, in one plain struct. Nothing else in the crate may reach for the
//! ambient ones, so that the whole node runs in a simulated world.
//! The real implementations are in `real`; the simulated ones in `flower-sim`.

mod lanes;
mod probe;
mod real;
mod seeds;
mod tasks;

use std::{
    fmt,
    future::Future,
    io,
    net::SocketAddr,
    ops::{Add, Sub},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use flower_store::Disk;
use tokio::io::{AsyncRead, AsyncWrite};

pub use lanes::{Job, LaneGone, LaneId, LaneLocal, Lanes};
pub use probe::{NoProbe, Probe};
pub use real::{RealClock, RealLanes, RealNet};
pub use seeds::SeedTree;
pub use tasks::{Fatal, Tasks};

/// A boxed future that can cross threads.
pub type Fut<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The world around a node. Cheap to clone.
#[derive(Clone)]
pub struct Env {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness; every user draws from a child of its own.
    pub seeds: SeedTree,
    /// Sockets.
    pub net: Arc<dyn Net>,
    /// The data directory.
    pub disk: Arc<dyn Disk>,
    /// Threads that may block.
    pub lanes: Arc<dyn Lanes>,
    /// Tasks, and how the node ends.
    pub tasks: Tasks,
    /// Hears of what happens.
    pub probe: Arc<dyn Probe>,
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Env")
    }
}

impl Env {
    /// The operating system's world over the given data directory.
    ///
    /// # Errors
    /// When the operating system gives no randomness.
    pub fn real(disk: Arc<dyn Disk>) -> io::Result<Self> {
        Ok(Self {
            clock: Arc::new(RealClock::new()),
            seeds: SeedTree::from_os()?,
            net: Arc::new(RealNet),
            disk,
            lanes: Arc::new(RealLanes::new()),
            tasks: Tasks::new(),
            probe: Arc::new(NoProbe),
        })
    }

    /// Waits for `duration`.
    pub fn sleep(&self, duration: Duration) -> Fut<'static, ()> {
        self.clock.sleep_until(self.clock.mono() + duration)
    }

    /// What `future` yields, or `None` when the clock reaches `deadline` first.
    pub async fn until<F: Future>(&self, deadline: Mono, future: F) -> Option<F::Output> {
        until(&*self.clock, deadline, future).await
    }

    /// What `future` yields, or `None` when it takes longer than `limit`.
    pub async fn within<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        self.until(self.clock.mono() + limit, future).await
    }

    /// Runs `work` on a lane and waits for its result.
    ///
    /// # Errors
    /// `LaneGone` when the lane has been closed or the job panicked.
    pub async fn run_on<T: Send + 'static>(
        &self,
        lane: LaneId,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, LaneGone> {
        let (done, result) = tokio::sync::oneshot::channel();
        self.lanes.submit(
            lane,
            Box::new(move |_: &mut LaneLocal| {
                let _ = done.send(work());
            }),
        )?;
        result.await.map_err(|_| LaneGone(lane))
    }
}

/// What `future` yields, or `None` when `clock` reaches `deadline` first.
pub async fn until<F: Future>(clock: &dyn Clock, deadline: Mono, future: F) -> Option<F::Output> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = clock.sleep_until(deadline) => None,
    }
}

/// A point of the monotonic clock: time since some moment before the node started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mono(pub Duration);

impl Mono {
    /// Milliseconds, for the engine's state machines.
    pub fn ms(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

impl Add<Duration> for Mono {
    type Output = Self;
    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by))
    }
}

impl Sub for Mono {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Time.
pub trait Clock: Send + Sync {
    /// Wall clock, milliseconds since 1970. May jump.
    fn wall_ms(&self) -> u64;
    /// Monotonic clock.
    fn mono(&self) -> Mono;
    /// Resolves when the monotonic clock has reached `at`.
    fn sleep_until(&self, at: Mono) -> Fut<'static, ()>;
}

/// A stream of bytes in both directions.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> ByteStream for T {}

/// Sockets. Every stream has TCP_NODELAY on.
pub trait Net: Send + Sync {
    /// Listens on `at` (port 0: any free one).
    fn listen(&self, at: SocketAddr) -> Fut<'_, io::Result<Box<dyn Listener>>>;
    /// Connects to `host:port`. Has no time limit of its own.
    fn dial(&self, to: &str) -> Fut<'_, io::Result<Box<dyn ByteStream>>>;
}

/// Accepts connections.
pub trait Listener: Send + Sync {
    /// Where it listens.
    ///
    /// # Errors
    /// When the operating system does not say.
    fn local_addr(&self) -> io::Result<SocketAddr>;
    /// The next connection and its other end.
    fn accept(&mut self) -> Fut<'_, io::Result<(Box<dyn ByteStream>, SocketAddr)>>;
}
