//! Sends a call on to the leader's client port, over pooled HTTP/2 connections. Tells apart
//! what was never sent from what may have happened; retries nothing.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connected, Connection},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::env::{ByteStream, Env, Fut, Mono, Net};

/// A leader that does not take a connection within this is taken for gone.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// A connection is asked for a sign of life this often, and dropped when none comes: a call
/// must not hang on a leader that is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// The leader's answer.
#[derive(Debug)]
pub struct Forwarded {
    /// HTTP status.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoAnswer {
    /// The call was never sent.
    NotSent,
    /// It was sent: it may have happened.
    Broken,
}

/// The pool of connections. Cheap to clone.
#[derive(Clone)]
pub struct Forwarder {
    env: Env,
    client: Client<Dialer, Full<Bytes>>,
    answer_bytes: usize,
}

impl Forwarder {
    /// A pool that reads answers of at most so many bytes.
    pub fn new(env: &Env, answer_bytes: usize) -> Self {
        let dialer = Dialer {
            net: env.net.clone(),
            env: env.clone(),
        };
        let client = Client::builder(TokioExecutor::new())
            .http2_only(true)
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(60))
            .http2_keep_alive_interval(KEEP_ALIVE)
            .http2_keep_alive_timeout(2 * KEEP_ALIVE)
            .http2_keep_alive_while_idle(true)
            .build(dialer);
        Self {
            env: env.clone(),
            client,
            answer_bytes,
        }
    }

    /// Sends one request, whose URI names the leader.
    ///
    /// # Errors
    /// See [`NoAnswer`]; `Broken` when the deadline comes first.
    pub async fn send(
        &self,
        request: Request<Full<Bytes>>,
        deadline: Mono,
    ) -> Result<Forwarded, NoAnswer> {
        let answer = async {
            let response = self.client.request(request).await.map_err(|error| {
                tracing::debug!(%error, "a call could not be sent on");
                if error.is_connect() {
                    NoAnswer::NotSent
                } else {
                    NoAnswer::Broken
                }
            })?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, self.answer_bytes);
            let body = body.collect().await.map_err(|_| NoAnswer::Broken)?;
            Ok(Forwarded {
                status: head.status,
                headers: head.headers,
                body: body.to_bytes(),
            })
        };
        let late = Err(NoAnswer::Broken);
        self.env.until(deadline, answer).await.unwrap_or(late)
    }
}

#[derive(Clone)]
struct Dialer {
    net: Arc<dyn Net>,
    env: Env,
}

impl tower_service::Service<Uri> for Dialer {
    type Response = TokioIo<Dialed>;
    type Error = io::Error;
    type Future = Fut<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let Self { net, env } = self.clone();
        Box::pin(async move {
            let authority = to.authority().map(|a| a.as_str().to_owned());
            let address = authority.ok_or_else(|| io::Error::other("no address"))?;
            match env.within(CONNECT_LIMIT, net.dial(&address)).await {
                Some(stream) => Ok(TokioIo::new(Dialed(stream?))),
                None => Err(io::ErrorKind::TimedOut.into()),
            }
        })
    }
}

/// A connection as the client wants it.
struct Dialed(Box<dyn ByteStream>);

impl Connection for Dialed {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Dialed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Dialed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
