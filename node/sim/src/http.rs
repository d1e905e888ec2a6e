//! An HTTP client over the world's sockets: one request, one answer, and a clear word on
//! whether the request can have reached a node. It retries nothing.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use flower_node::env::{ByteStream, Fut, Net};
use http::{HeaderMap, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connected, Connection},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{audit::Audit, env::SimNet};

/// A node that does not take a connection within this is taken for gone.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// An answer, whole.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Status.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

impl Answer {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoAnswer {
    /// The request was not sent.
    NotSent,
    /// It may have been carried out.
    Lost,
}

/// A client with its connections. Cheap to clone.
#[derive(Clone)]
pub struct Http {
    client: Client<Dialer, Full<Bytes>>,
    token: Arc<str>,
}

impl Http {
    /// A client on the host `name` that shows `token`, over HTTP/2 or HTTP/1.1.
    pub fn new(name: &str, audit: &Audit, token: &str, http2: bool) -> Self {
        let dialer = Dialer(Arc::new(SimNet::new(name, audit)));
        let client = Client::builder(TokioExecutor::new())
            .http2_only(http2)
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(30))
            .http2_keep_alive_interval(Duration::from_secs(1))
            .http2_keep_alive_timeout(Duration::from_secs(2))
            .retry_canceled_requests(false)
            .build(dialer);
        Self {
            client,
            token: token.into(),
        }
    }

    /// Sends one request to `authority` (`host:port`) and reads the whole answer.
    ///
    /// # Errors
    /// See [`NoAnswer`]; `Lost` when `limit` passes.
    pub async fn send(
        &self,
        authority: &str,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
        limit: Duration,
    ) -> Result<Answer, NoAnswer> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://{authority}{path}"))
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request
            .body(Full::new(body.into()))
            .expect("the simulation's own requests are requests");
        let exchange = async {
            let response = self.client.request(request).await.map_err(|error| {
                if error.is_connect() {
                    NoAnswer::NotSent
                } else {
                    NoAnswer::Lost
                }
            })?;
            let (head, body) = response.into_parts();
            let body = body.collect().await.map_err(|_| NoAnswer::Lost)?;
            Ok(Answer {
                status: head.status,
                headers: head.headers,
                body: body.to_bytes(),
            })
        };
        let in_time = tokio::time::timeout(limit, exchange).await;
        in_time.unwrap_or(Err(NoAnswer::Lost))
    }
}

#[derive(Clone)]
struct Dialer(Arc<SimNet>);

impl tower_service::Service<Uri> for Dialer {
    type Response = TokioIo<Dialed>;
    type Error = io::Error;
    type Future = Fut<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let net = self.0.clone();
        Box::pin(async move {
            let authority = to.authority().map(ToString::to_string).unwrap_or_default();
            let dialed = tokio::time::timeout(CONNECT_LIMIT, net.dial(&authority));
            match dialed.await {
                Ok(stream) => Ok(TokioIo::new(Dialed(stream?))),
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            }
        })
    }
}

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
