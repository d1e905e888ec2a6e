//! A small HTTP client for the harness: plain HTTP to loopback and the cluster's own addresses.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

/// A client that keeps connections.
pub type HttpClient = Client<HttpConnector, Full<Bytes>>;

/// A client that speaks HTTP/1.1.
pub fn http1() -> HttpClient {
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .build(connector())
}

/// A client that speaks HTTP/2 without TLS from the first byte.
pub fn h2c() -> HttpClient {
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .http2_only(true)
        .build(connector())
}

fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(Duration::from_secs(3)));
    connector.set_nodelay(true);
    connector
}

/// GETs a page; anything but success is an error with what was said.
pub async fn get(url: &str) -> Result<String> {
    let request = http::Request::get(url).body(Full::default())?;
    let (status, body) = send(&http1(), request, Duration::from_secs(5)).await?;
    ensure!(status.is_success(), "{url}: {status}: {body}");
    Ok(body)
}

/// Sends one request and reads the whole answer.
pub async fn send(
    client: &HttpClient,
    request: http::Request<Full<Bytes>>,
    limit: Duration,
) -> Result<(http::StatusCode, String)> {
    let url = request.uri().to_string();
    let exchange = async {
        let response = client.request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        anyhow::Ok((status, String::from_utf8_lossy(&body).into_owned()))
    };
    tokio::time::timeout(limit, exchange)
        .await
        .with_context(|| format!("{url}: no answer"))?
        .context(url)
}
