//! What HTTP clients of this crate and of the simulation share: connections over an `Env`'s
//! net and clock, and a whole answer. They decide nothing about a call.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, Uri};
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::env::{ByteStream, Clock, Fut, Net, until};

/// A node that does not take a connection within this is taken for gone.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// An answer, whole.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

impl Answer {
    /// A header's value, when it is there and is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Makes connections for an HTTP client.
#[derive(Clone)]
pub struct Dialer {
    net: Arc<dyn Net>,
    clock: Arc<dyn Clock>,
}

impl Dialer {
    /// Connections over `net`, given up by `clock`.
    pub fn new(net: Arc<dyn Net>, clock: Arc<dyn Clock>) -> Self {
        Self { net, clock }
    }
}

impl tower_service::Service<Uri> for Dialer {
    type Response = TokioIo<Dialed>;
    type Error = io::Error;
    type Future = Fut<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let Self { net, clock } = self.clone();
        Box::pin(async move {
            let authority = to.authority().map(|a| a.as_str().to_owned());
            let address = authority.ok_or_else(|| io::Error::other("no address"))?;
            let deadline = clock.mono() + CONNECT_LIMIT;
            match until(&*clock, deadline, net.dial(&address)).await {
                Some(stream) => Ok(TokioIo::new(Dialed(stream?))),
                None => Err(io::ErrorKind::TimedOut.into()),
            }
        })
    }
}

/// A connection as an HTTP client wants it.
pub struct Dialed(Box<dyn ByteStream>);

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
