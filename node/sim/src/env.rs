//! The world of one simulated process: turmoil's sockets, virtual time, a simulated disk,
//! lanes that take virtual time. Every frame goes into the audit.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use flower_node::env::{
    ByteStream, Clock, Env, Fut, LaneId, Listener, Mono, Net, NoProbe, SeedTree, Tasks,
};
use flower_store::SimDisk;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use turmoil::net::{TcpListener, TcpStream};

use crate::{audit::Audit, audit::now, entropy::BEGINNING_S, lanes::SimLanes};

/// What the world's driver may do to a host while it runs.
#[derive(Clone, Default)]
pub struct Controls(Arc<Settings>);

#[derive(Default)]
struct Settings {
    wall_ms: AtomicI64,
    slow: AtomicU64,
    slow_log: AtomicU64,
    /// The monotonic clock: its reading at a true time, and how fast it goes from there on.
    drift: Mutex<Option<Drift>>,
    stalled_until_ms: AtomicU64,
}

#[derive(Clone, Copy)]
struct Drift {
    since: Duration,
    read: Duration,
    permille: u64,
}

impl Drift {
    fn at(self, now: Duration) -> Duration {
        self.read
            + now
                .saturating_sub(self.since)
                .mul_f64(self.permille as f64 / 1_000.0)
    }
}

impl Controls {
    /// Lets the monotonic clock go at so many thousandths of the true speed from now on.
    pub fn set_drift(&self, permille: u64) {
        let (since, read) = (now(), self.mono());
        let drift = Drift {
            since,
            read,
            permille,
        };
        *self.0.drift.lock().unwrap_or_else(PoisonError::into_inner) = Some(drift);
    }
    fn drift(&self) -> Option<Drift> {
        *self.0.drift.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn mono(&self) -> Duration {
        self.drift().map_or(now(), |drift| drift.at(now()))
    }
    /// How long a wait on the monotonic clock takes.
    fn truly(&self, wait: Duration) -> Duration {
        let permille = self.drift().map_or(1_000, |drift| drift.permille);
        match permille {
            1_000 => wait,
            permille => wait.saturating_mul(1_000) / permille as u32,
        }
    }
    /// Makes every job of the log's lane take so many milliseconds more, at most.
    pub fn set_slow_log(&self, ms: u64) {
        self.0.slow_log.store(ms, Ordering::Relaxed);
    }
    /// Puts the wall clock so far off.
    pub fn set_wall(&self, off_ms: i64) {
        self.0.wall_ms.store(off_ms, Ordering::Relaxed);
    }
    /// Makes every job of a lane take so many milliseconds more, at most.
    pub fn set_slow(&self, ms: u64) {
        self.0.slow.store(ms, Ordering::Relaxed);
    }
    /// No job begins before `at`.
    pub fn stall_until(&self, at: Duration) {
        let ms = at.as_millis() as u64;
        self.0.stalled_until_ms.store(ms, Ordering::Relaxed);
    }
    pub(crate) fn slow_ms(&self, lane: LaneId) -> u64 {
        let log = match lane {
            LaneId::Log => self.0.slow_log.load(Ordering::Relaxed),
            _ => 0,
        };
        log.max(self.0.slow.load(Ordering::Relaxed))
    }
    pub(crate) fn stalled(&self) -> Duration {
        let until = self.0.stalled_until_ms.load(Ordering::Relaxed);
        Duration::from_millis(until).saturating_sub(now())
    }
}

/// The world of a process on the host `name`, over a disk that outlives it. To be called
/// inside the simulated host; `seeds` must be another one at every start.
pub fn env(seeds: SeedTree, name: &str, disk: &SimDisk, audit: &Audit, controls: &Controls) -> Env {
    let name: Arc<str> = name.into();
    Env {
        clock: Arc::new(SimClock::new(controls)),
        net: Arc::new(SimNet {
            name: name.clone(),
            audit: audit.clone(),
        }),
        disk: Arc::new(disk.for_program()),
        lanes: Arc::new(SimLanes::new(&seeds, name, audit, controls)),
        tasks: Tasks::new(),
        probe: Arc::new(NoProbe),
        seeds,
    }
}

/// No point of a monotonic clock is zero.
const MONO_BEGINS: Duration = Duration::from_secs(1);

/// The world's time; the wall clock is as far off as the controls say.
pub struct SimClock {
    controls: Controls,
}

impl SimClock {
    /// The clock of a host.
    pub fn new(controls: &Controls) -> Self {
        Self {
            controls: controls.clone(),
        }
    }
}

impl Clock for SimClock {
    fn wall_ms(&self) -> u64 {
        let true_ms = BEGINNING_S * 1_000 + now().as_millis() as u64;
        true_ms.saturating_add_signed(self.controls.0.wall_ms.load(Ordering::Relaxed))
    }
    fn mono(&self) -> Mono {
        Mono(MONO_BEGINS + self.controls.mono())
    }
    fn sleep_until(&self, at: Mono) -> Fut<'static, ()> {
        let wait = self.controls.truly(at - self.mono());
        Box::pin(async move { tokio::time::sleep(wait).await })
    }
}

/// Turmoil's sockets.
pub struct SimNet {
    name: Arc<str>,
    audit: Audit,
}

impl SimNet {
    /// The sockets of the host `name`.
    pub fn new(name: &str, audit: &Audit) -> Self {
        Self {
            name: name.into(),
            audit: audit.clone(),
        }
    }
    fn audited(&self, stream: TcpStream) -> Box<dyn ByteStream> {
        Box::new(Audited {
            stream,
            name: self.name.clone(),
            audit: self.audit.clone(),
        })
    }
}

impl Net for SimNet {
    fn listen(&self, at: SocketAddr) -> Fut<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let listener = TcpListener::bind(at).await?;
            let net = Self {
                name: self.name.clone(),
                audit: self.audit.clone(),
            };
            Ok(Box::new(SimListener { listener, net }) as Box<dyn Listener>)
        })
    }

    fn dial(&self, to: &str) -> Fut<'_, io::Result<Box<dyn ByteStream>>> {
        let to = to.to_owned();
        Box::pin(async move { Ok(self.audited(TcpStream::connect(to).await?)) })
    }
}

struct SimListener {
    listener: TcpListener,
    net: SimNet,
}

impl Listener for SimListener {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
    fn accept(&mut self) -> Fut<'_, io::Result<(Box<dyn ByteStream>, SocketAddr)>> {
        Box::pin(async {
            let (stream, from) = self.listener.accept().await?;
            Ok((self.net.audited(stream), from))
        })
    }
}

/// A stream whose written bytes go into the audit.
struct Audited {
    stream: TcpStream,
    name: Arc<str>,
    audit: Audit,
}

impl AsyncRead for Audited {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Audited {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(count)) = &written {
            self.audit.record("frame", &self.name, &buf[..*count]);
        }
        written
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
