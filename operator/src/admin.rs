//! The nodes' admin API over HTTP: one small client, a time limit for every call, no retries.
//! A call that got no answer may have been carried out; the next pass looks.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use flower_api::{
    admin::{
        AddLearner, AdminApi, AdminError, Bootstrap, Deploy, Deployed, Done, Endpoint, Fence,
        OfMember, path,
    },
    report::{Identity, Report},
    wire::Problem,
};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::{Serialize, de::DeserializeOwned};

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

impl HttpAdmin {
    /// One call. While tokens are being rotated a node may know only an older one, so each
    /// is tried in turn.
    async fn call<A: Serialize + Sync, T: DeserializeOwned>(
        &self,
        at: &Endpoint,
        path: &str,
        body: Option<&A>,
        limit: Duration,
    ) -> Result<T, AdminError> {
        let garbled = |why: String| AdminError::Garbled {
            endpoint: at.0.clone(),
            why,
        };
        let bytes = match body {
            Some(body) => {
                Some(serde_json::to_vec(body).map_err(|error| garbled(error.to_string()))?)
            }
            None => None,
        };
        let mut answer = None;
        for token in &self.tokens {
            let sent = self.send(at, path, bytes.clone(), token);
            let (status, text) = tokio::time::timeout(limit, sent)
                .await
                .unwrap_or_else(|_| {
                    Err(AdminError::Unreachable {
                        endpoint: at.0.clone(),
                        why: format!("no answer within {} s", limit.as_secs()),
                    })
                })?;
            let refused = status == StatusCode::UNAUTHORIZED;
            answer = Some((status, text));
            if !refused {
                break;
            }
        }
        let (status, text) = answer.ok_or_else(|| garbled("no token to show".to_owned()))?;
        if status.is_success() {
            return serde_json::from_slice(&text).map_err(|error| garbled(error.to_string()));
        }
        match serde_json::from_slice::<Problem>(&text) {
            Ok(problem) => Err(AdminError::Refused(Box::new(problem))),
            Err(_) => Err(garbled(format!(
                "status {status}: {}",
                String::from_utf8_lossy(&text)
                    .chars()
                    .take(200)
                    .collect::<String>()
            ))),
        }
    }

    async fn send(
        &self,
        at: &Endpoint,
        path: &str,
        body: Option<Vec<u8>>,
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
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
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

#[async_trait]
impl AdminApi for HttpAdmin {
    async fn identity(&self, at: &Endpoint) -> Result<Identity, AdminError> {
        self.call::<(), _>(at, path::IDENTITY, None, READ).await
    }
    async fn report(&self, at: &Endpoint) -> Result<Report, AdminError> {
        self.call::<(), _>(at, path::REPORT, None, READ).await
    }
    async fn bootstrap(&self, at: &Endpoint, call: &Bootstrap) -> Result<Done, AdminError> {
        self.call(at, path::BOOTSTRAP, Some(call), CHANGE).await
    }
    async fn add_learner(&self, at: &Endpoint, call: &AddLearner) -> Result<Done, AdminError> {
        self.call(at, path::ADD_LEARNER, Some(call), CHANGE).await
    }
    async fn promote(&self, at: &Endpoint, call: &OfMember) -> Result<Done, AdminError> {
        self.call(at, path::PROMOTE, Some(call), CHANGE).await
    }
    async fn remove(&self, at: &Endpoint, call: &OfMember) -> Result<Done, AdminError> {
        self.call(at, path::REMOVE, Some(call), CHANGE).await
    }
    async fn transfer(&self, at: &Endpoint, call: &OfMember) -> Result<Done, AdminError> {
        self.call(at, path::TRANSFER, Some(call), CHANGE).await
    }
    async fn formed(&self, at: &Endpoint, fence: &Fence) -> Result<Done, AdminError> {
        self.call(at, path::FORMED, Some(fence), CHANGE).await
    }
    async fn deploy(&self, at: &Endpoint, call: &Deploy) -> Result<Deployed, AdminError> {
        self.call(at, path::DEPLOY, Some(call), DEPLOY).await
    }
}
