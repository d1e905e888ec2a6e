//! A small HTTP client for the commands: one request, one answer, and a clear word on whether
//! the request can have reached the node. It never retries; whoever calls knows what may be
//! sent twice.

pub mod sse;

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};

pub use crate::dial::Answer;

/// An answer larger than this is not read.
const ANSWER_BYTES_MAX: usize = 128 << 20;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// The request was not sent: nothing happened.
    #[error("{url} cannot be reached: {why}")]
    NotSent {
        /// Base of the API that was called.
        url: String,
        /// The cause.
        why: String,
    },
    /// The request may have been carried out, its answer is lost.
    #[error("{url} did not answer: {why}")]
    Lost {
        /// Base of the API that was called.
        url: String,
        /// The cause.
        why: String,
    },
}

/// Not the base URL of a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{url}' is not the address of a node: {why}")]
pub struct BadUrl {
    url: String,
    why: &'static str,
}

/// One API of one node, or of the Service before it.
#[derive(Debug, Clone)]
pub struct Api {
    base: String,
    token: Option<HeaderValue>,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Api {
    /// The API at `url` (`http://host:port`), called with `token`.
    ///
    /// # Errors
    /// `BadUrl` for anything but a scheme, a host and a port.
    pub fn new(url: &str, token: Option<&str>) -> Result<Self, BadUrl> {
        let bad = |why| BadUrl {
            url: url.to_owned(),
            why,
        };
        let parsed: Uri = url
            .parse()
            .map_err(|_| bad("write it as http://host:port"))?;
        if parsed.scheme_str() == Some("https") {
            return Err(bad(
                "nodes do not serve TLS yet; write it as http://host:port",
            ));
        }
        let plain = parsed.scheme_str() == Some("http") && parsed.authority().is_some();
        if !plain || !matches!(parsed.path(), "" | "/") || parsed.query().is_some() {
            return Err(bad("write it as http://host:port"));
        }
        let token = token.map(|token| HeaderValue::try_from(format!("Bearer {token}")));
        let mut token = token
            .transpose()
            .map_err(|_| bad("the token holds characters that no token has"))?;
        if let Some(token) = &mut token {
            token.set_sensitive(true);
        }
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(Duration::from_secs(3)));
        let client = Client::builder(TokioExecutor::new())
            .retry_canceled_requests(false)
            .build(connector);
        Ok(Self {
            base: url.trim_end_matches('/').to_owned(),
            token,
            client,
        })
    }

    /// The URL that it was made with.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Opens an event stream; a refusal is read whole.
    ///
    /// # Errors
    /// `NoAnswer`, when there is no answer within `limit`.
    pub async fn stream(
        &self,
        path: &str,
        headers: &[(&'static str, String)],
        body: Bytes,
        limit: Duration,
    ) -> Result<Result<Stream, Answer>, NoAnswer> {
        let opened = self.open(Method::POST, path, headers, body, limit).await?;
        Ok(opened.map(Stream::new))
    }

    /// Sends one request; what it is answered with is read as it comes, a refusal whole.
    ///
    /// # Errors
    /// `NoAnswer`, when there is no answer within `limit`.
    pub async fn open(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, String)],
        body: Bytes,
        limit: Duration,
    ) -> Result<Result<Chunks, Answer>, NoAnswer> {
        let request = self.request(method, path, headers, body)?;
        let exchange = async {
            let response = self.respond(request).await?;
            let (head, body) = response.into_parts();
            if head.status == StatusCode::OK {
                return Ok(Ok(Chunks::new(body, &self.base)));
            }
            self.whole(head, body).await.map(Err)
        };
        let in_time = tokio::time::timeout(limit, exchange).await;
        in_time.unwrap_or_else(|_| Err(self.lost(format!("no answer within {limit:?}"))))
    }

    /// Sends one request and reads the whole answer.
    ///
    /// # Errors
    /// `NoAnswer`, which tells whether the request can have been carried out.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, String)],
        body: Bytes,
        limit: Duration,
    ) -> Result<Answer, NoAnswer> {
        let request = self.request(method, path, headers, body)?;
        let exchange = async {
            let (head, body) = self.respond(request).await?.into_parts();
            self.whole(head, body).await
        };
        let seconds = limit.as_secs_f32();
        let in_time = tokio::time::timeout(limit, exchange).await;
        in_time.unwrap_or_else(|_| Err(self.lost(format!("no answer within {seconds} s"))))
    }

    fn lost(&self, why: String) -> NoAnswer {
        let url = self.base.clone();
        NoAnswer::Lost { url, why }
    }

    /// An answer, read to its end.
    async fn whole(
        &self,
        head: http::response::Parts,
        body: hyper::body::Incoming,
    ) -> Result<Answer, NoAnswer> {
        let read = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            body: read.map_err(|e| self.lost(causes(&*e)))?.to_bytes(),
        })
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, String)],
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, NoAnswer> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base));
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, token);
        }
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        request
            .body(Full::new(body))
            .map_err(|e| NoAnswer::NotSent {
                url: self.base.clone(),
                why: e.to_string(),
            })
    }

    async fn respond(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<http::Response<hyper::body::Incoming>, NoAnswer> {
        let url = self.base.clone();
        self.client.request(request).await.map_err(|e| {
            if e.is_connect() {
                let why = not_connected(&e);
                NoAnswer::NotSent { url, why }
            } else {
                let why = causes(&e);
                NoAnswer::Lost { url, why }
            }
        })
    }
}

/// An answer that is being read.
pub struct Chunks {
    body: hyper::body::Incoming,
    url: String,
}

impl Chunks {
    /// The body of an answer of the API at `url`.
    pub fn new(body: hyper::body::Incoming, url: &str) -> Self {
        let url = url.to_owned();
        Self { body, url }
    }

    /// The next bytes; nothing at the end.
    ///
    /// # Errors
    /// When the answer broke off.
    pub async fn next(&mut self) -> Result<Option<Bytes>, NoAnswer> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|e| NoAnswer::Lost {
                url: self.url.clone(),
                why: causes(&e),
            })?;
            if let Ok(bytes) = frame.into_data() {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }
}

/// An open event stream.
pub struct Stream {
    chunks: Chunks,
    reader: sse::Reader,
    read: VecDeque<sse::Event>,
}

impl Stream {
    /// The event stream of an answer.
    pub fn new(chunks: Chunks) -> Self {
        Self {
            chunks,
            reader: sse::Reader::default(),
            read: VecDeque::new(),
        }
    }

    /// The next frame; nothing when the stream has ended, in whatever way.
    pub async fn next(&mut self) -> Option<sse::Event> {
        loop {
            if let Some(event) = self.read.pop_front() {
                return Some(event);
            }
            let bytes = self.chunks.next().await.ok()??;
            self.read.extend(self.reader.take(&bytes));
        }
    }
}

/// An error with the errors behind it: the outer ones say little.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        next = cause.source();
    }
    text
}

/// What `why` begins with when the host's name is not known here.
pub(crate) const UNRESOLVED: &str = "the name cannot be resolved";

fn not_connected(error: &(dyn std::error::Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |e| e.source());
    // The connector's own word: the system's error behind it has no kind.
    let unresolved = chain.map(ToString::to_string).any(|e| e == "dns error");
    match unresolved {
        true => format!("{UNRESOLVED}: {}", root(error)),
        false => root(error),
    }
}

/// The first cause: for a connection that was not made the others only repeat it.
fn root(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(cause) = deepest.source() {
        deepest = cause;
    }
    deepest.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_base_url_is_taken() {
        for good in [
            "http://127.0.0.1:7700",
            "http://db.ns.svc:7700/",
            "http://[::1]:7700",
        ] {
            assert!(Api::new(good, None).is_ok(), "{good}");
        }
        for bad in [
            "",
            "127.0.0.1:7700",
            "https://h:1",
            "http://h:1/v1",
            "http://h/?x",
            "ftp://h",
        ] {
            assert!(Api::new(bad, None).is_err(), "{bad}");
        }
        assert!(Api::new("http://h:1", Some("a\nb")).is_err());
    }

    #[tokio::test]
    async fn a_name_that_is_not_known_is_told_apart() {
        let api = Api::new("http://no-such-host.invalid:1", None).unwrap();
        let limit = Duration::from_secs(30);
        let sent = api.send(Method::GET, "/", &[], Bytes::new(), limit).await;
        let Err(NoAnswer::NotSent { why, .. }) = sent else {
            panic!("{sent:?}")
        };
        assert!(why.starts_with(UNRESOLVED), "{why}");
    }

    #[tokio::test]
    async fn a_refused_connection_was_not_sent_and_a_cut_one_is_lost() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let api = Api::new(&url, None).unwrap();
        let cut = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            stream.readable().await.unwrap();
        });
        let send = || {
            api.send(
                Method::POST,
                "/",
                &[],
                Bytes::from("1"),
                Duration::from_secs(5),
            )
        };
        assert!(matches!(send().await, Err(NoAnswer::Lost { .. })));
        cut.await.unwrap();
        assert!(matches!(send().await, Err(NoAnswer::NotSent { .. })));
    }
}
