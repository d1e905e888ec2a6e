//! Connections: accepted in bounded numbers, served by whichever HTTP they speak, and told to
//! go away when the node stops. Knows nothing of what is served.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Semaphore,
};
use tokio_util::sync::CancellationToken;

use crate::{
    auth::Api,
    env::{ByteStream, Env, Fatal, Fut, Listener},
};

/// Connections of one port at a time; more wait in the kernel's queue.
const CONNECTIONS: usize = 2_048;
/// Calls of one HTTP/2 connection at a time.
const STREAMS: u32 = 256;
/// Headers of a request.
const HEADER_BYTES: u32 = 32 * 1024;
/// A request's headers arrive within this, and the first bytes of a connection.
const HEADER_LIMIT: Duration = Duration::from_secs(10);
/// An HTTP/2 connection is asked for a sign of life this often; twice that without one
/// closes it.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// After an error of accepting: the process may be out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Until the first so many bytes of a connection are there, it is on the clock: the shortest
/// request line with its end has more.
const FIRST_BYTES: usize = 16;

/// Both ports' connections.
pub(super) struct Doors {
    closing: CancellationToken,
    /// Taken by `close`.
    graceful: Arc<Mutex<Option<GracefulShutdown>>>,
    /// A connection that takes nothing for so long is closed.
    stall: Duration,
}

impl Doors {
    pub(super) fn new(stall: Duration) -> Self {
        Self {
            stall,
            closing: CancellationToken::new(),
            graceful: Arc::new(Mutex::new(Some(GracefulShutdown::new()))),
        }
    }
}

impl Doors {
    /// Serves a port until the node closes.
    pub(super) fn serve(
        &self,
        env: &Env,
        api: Api,
        mut listener: Box<dyn Listener>,
        router: Router,
    ) {
        let (closing, world) = (self.closing.clone(), env.clone());
        let (graceful, stall) = (self.graceful.clone(), self.stall);
        let role = match api {
            Api::Client => "client port",
            Api::Admin => "admin port",
        };
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        env.tasks.spawn(role, async move {
            loop {
                let (stream, permit) = tokio::select! {
                    biased;
                    () = world.tasks.stopping() => return Ok::<(), Fatal>(()),
                    () = closing.cancelled() => break,
                    accepted = next(&world, &mut *listener, &room) => accepted,
                };
                let stream = TokioIo::new(Prompt::new(&world, stream, stall));
                let service = TowerToHyperService::new(router.clone());
                let connection = builder().serve_connection(stream, service).into_owned();
                let Some(watcher) = graceful.lock().as_ref().map(GracefulShutdown::watcher) else {
                    break;
                };
                let connection = watcher.watch(connection);
                world.tasks.spawn_brief("connection", async move {
                    if let Err(error) = connection.await {
                        tracing::debug!(%error, "a connection ended in disorder");
                    }
                    drop(permit);
                });
            }
            // The port is closed when the listener goes; the task must outlive the node.
            drop(listener);
            world.tasks.stopping().await;
            Ok(())
        });
    }

    /// See `Front::close`.
    pub(super) async fn close(&self, env: &Env, limit: Duration) {
        self.closing.cancel();
        let graceful = self.graceful.lock().take();
        if let Some(graceful) = graceful
            && env.within(limit, graceful.shutdown()).await.is_none()
        {
            tracing::warn!("some calls did not end in time");
        }
    }
}

/// The next connection, once there is room for one.
async fn next(
    env: &Env,
    listener: &mut dyn Listener,
    room: &Arc<Semaphore>,
) -> (Box<dyn ByteStream>, tokio::sync::OwnedSemaphorePermit) {
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else {
            // Never closed.
            std::future::pending().await
        };
        match listener.accept().await {
            Ok((stream, _)) => return (stream, permit),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                env.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_LIMIT)
        .max_buf_size(HEADER_BYTES as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEADER_BYTES)
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(2 * KEEP_ALIVE);
    builder
}

/// A connection that must say something soon: which HTTP it speaks is told by its first
/// bytes, and nothing else limits the wait for them. And it must take what is written to it:
/// nothing else limits that either.
struct Prompt {
    env: Env,
    stream: Box<dyn ByteStream>,
    seen: usize,
    late: Fut<'static, ()>,
    stall: Duration,
    /// Since something could not be written.
    stuck: Option<Fut<'static, ()>>,
}

impl Prompt {
    fn new(env: &Env, stream: Box<dyn ByteStream>, stall: Duration) -> Self {
        Self {
            env: env.clone(),
            stall,
            stuck: None,
            stream,
            seen: 0,
            late: env.sleep(HEADER_LIMIT),
        }
    }

    /// Ends a write that waits for too long.
    fn unstuck<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stuck = None;
            return written;
        }
        let (env, stall) = (&self.env, self.stall);
        let stuck = self.stuck.get_or_insert_with(|| env.sleep(stall));
        match stuck.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Prompt {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        match Pin::new(&mut this.stream).poll_read(cx, buf) {
            Poll::Ready(result) => {
                this.seen += buf.filled().len() - before;
                Poll::Ready(result)
            }
            Poll::Pending if this.seen < FIRST_BYTES => match this.late.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                Poll::Pending => Poll::Pending,
            },
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncWrite for Prompt {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.unstuck(cx, written)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.unstuck(cx, flushed)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
