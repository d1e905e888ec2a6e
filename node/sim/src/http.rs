//! An HTTP client over the world's sockets: one request, one answer, and a clear word on
//! whether the request can have reached a node. It retries nothing.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use flower_node::{
    client::{Chunks, Stream},
    dial::Dialer,
};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioTimer},
};

pub use flower_load::target::NoAnswer;
pub use flower_node::dial::Answer;

use crate::{
    audit::Audit,
    env::{Controls, SimClock, SimNet},
};

/// A client with its connections. Cheap to clone.
#[derive(Clone)]
pub struct Http {
    client: Client<Dialer, Full<Bytes>>,
    token: Arc<str>,
}

impl Http {
    /// A client on the host `name` that shows `token`, over HTTP/2 or HTTP/1.1.
    pub fn new(name: &str, audit: &Audit, token: &str, http2: bool) -> Self {
        let net = Arc::new(SimNet::new(name, audit));
        let clock = Arc::new(SimClock::new(&Controls::default()));
        let dialer = Dialer::new(net, clock);
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

    fn request(
        &self,
        authority: &str,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Request<Full<Bytes>> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://{authority}{path}"))
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request
            .body(Full::new(body))
            .expect("the simulation's own requests are requests")
    }

    /// Opens an event stream; absent when it is not open within `limit`.
    pub async fn stream(
        &self,
        authority: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
        limit: Duration,
    ) -> Option<Stream> {
        let request = self.request(authority, Method::POST, path, headers, body.into());
        let response = tokio::time::timeout(limit, self.client.request(request)).await;
        let response = response.ok()?.ok()?;
        let opened = response.status() == StatusCode::OK;
        let chunks = Chunks::new(response.into_body(), authority);
        opened.then(|| Stream::new(chunks))
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
        let request = self.request(authority, method, path, headers, body.into());
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
