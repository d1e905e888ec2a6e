//! The world of one simulated process: turmoil's sockets, virtual time, a simulated disk,
//! lanes that take virtual time. Every frame goes into the audit.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use flower_node::env::{
    ByteStream, Clock, Env, Fut, Listener, Mono, Net, NoProbe, RealClock, SeedTree, Tasks,
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
    stalled_until_ms: AtomicU64,
}

impl Controls {
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
    pub(crate) fn slow_ms(&self) -> u64 {
        self.0.slow.load(Ordering::Relaxed)
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
        clock: Arc::new(SimClock {
            mono: RealClock::new(),
            controls: controls.clone(),
        }),
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

/// Virtual time: tokio's clock is turmoil's inside a host; the wall clock follows it, as far
/// off as the controls say.
struct SimClock {
    mono: RealClock,
    controls: Controls,
}

impl Clock for SimClock {
    fn wall_ms(&self) -> u64 {
        let true_ms = BEGINNING_S * 1_000 + now().as_millis() as u64;
        true_ms.saturating_add_signed(self.controls.0.wall_ms.load(Ordering::Relaxed))
    }
    fn mono(&self) -> Mono {
        self.mono.mono()
    }
    fn sleep_until(&self, at: Mono) -> Fut<'static, ()> {
        self.mono.sleep_until(at)
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
