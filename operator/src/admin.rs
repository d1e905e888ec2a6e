//! The nodes' admin API over HTTP: one small client, a time limit for every call, no retries.
//! A call that got no answer may have been carried out; the next pass looks.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use flower_api::{
    admin::{AdminApi, AdminError, Endpoint},
    transport::{AdminAnswer, AdminRequest, AdminTransport, Patience},
};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};

use crate::context::Connect;

/// Reads answer at once or the node is in trouble.
const READ: Duration = Duration::from_secs(2);
/// Changes wait for a commit.
const CHANGE: Duration = Duration::from_secs(10);
/// A deployment may build indexes.
const DEPLOY: Duration = Duration::from_secs(60);
/// Largest answer that is read.
const ANSWER_BYTES: usize = 8 << 20;

/// Makes clients that share one pool of connections.
#[derive(Clone)]
pub struct HttpConnect {
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Default for HttpConnect {
    fn default() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(Duration::from_secs(1)));
        connector.set_nodelay(true);
        Self {
            client: Client::builder(TokioExecutor::new())
                .pool_idle_timeout(Duration::from_secs(30))
                .build(connector),
        }
    }
}

impl Connect for HttpConnect {
    fn connect(&self, tokens: &[String]) -> Arc<dyn AdminApi> {
        Arc::new(HttpAdmin {
            client: self.client.clone(),
            tokens: tokens.to_vec(),
        })
    }
}

struct HttpAdmin {
    client: Client<HttpConnector, Full<Bytes>>,
    tokens: Vec<String>,
}

#[async_trait]
impl AdminTransport for HttpAdmin {
    /// While tokens are being rotated a node may know only an older one, so each is tried in
    /// turn.
    async fn exchange(
        &self,
        at: &Endpoint,
        request: AdminRequest,
    ) -> Result<AdminAnswer, AdminError> {
        let limit = match request.patience {
            Patience::Read => READ,
            Patience::Change => CHANGE,
            Patience::Long => DEPLOY,
        };
        let body = request.body.map(Bytes::from);
        let mut answer = None;
        for token in &self.tokens {
            let sent = self.send(at, request.path, body.clone(), token);
            let (status, text) = tokio::time::timeout(limit, sent)
                .await
                .unwrap_or_else(|_| {
                    Err(AdminError::Unreachable {
                        endpoint: at.0.clone(),
                        why: format!("no answer within {} s", limit.as_secs()),
                    })
                })?;
            let refused = status == StatusCode::UNAUTHORIZED;
            answer = Some(AdminAnswer {
                status: status.as_u16(),
                body: text.into(),
            });
            if !refused {
                break;
            }
        }
        answer.ok_or_else(|| AdminError::Garbled {
            endpoint: at.0.clone(),
            why: "no token to show".to_owned(),
        })
    }
}

impl HttpAdmin {
    async fn send(
        &self,
        at: &Endpoint,
        path: &str,
        body: Option<Bytes>,
        token: &str,
    ) -> Result<(StatusCode, Bytes), AdminError> {
        let unreachable = |why: String| AdminError::Unreachable {
            endpoint: at.0.clone(),
            why,
        };
        let method = if body.is_some() {
            Method::POST
        } else {
            Method::GET
        };
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", at.0))
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body.unwrap_or_default()))
            .map_err(|error| unreachable(error.to_string()))?;
        let response = self
            .client
            .request(request)
            .await
            .map_err(|error| unreachable(root_cause(&error)))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES)
            .collect()
            .await
            .map_err(|error| unreachable(error.to_string()))?;
        Ok((status, body.to_bytes()))
    }
}

/// The innermost cause: "connection refused" says more than "client error (Connect)".
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}
