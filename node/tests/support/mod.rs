//! Whole nodes on loopback, and a small HTTP client.
#![allow(dead_code, clippy::disallowed_methods)]

pub mod group;
mod watch;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use flower_api::{
    ClusterId, GroupId,
    admin::{Bootstrap, Deploy, Fence, path},
    report::{Identity, Report},
    wire::Problem,
};
use flower_node::{
    auth::Tokens,
    consensus::{ConsensusSettings, FixedSecrets, Timing},
    env::Env,
    footprint::Meter,
    host::Host,
    metrics::Metrics,
    node::NodeSettings,
    run::{Parts, Running},
    service::ServeSettings,
};
use flower_store::{DirSettings, RealDisk};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};

#[allow(unused_imports)]
pub use watch::{Event, Watch};

/// A node in a directory of its own.
pub struct TestNode {
    pub running: Running,
    pub dir: Arc<tempfile::TempDir>,
    pub env: Env,
    pub http: Http,
}

/// An answer.
#[derive(Debug)]
pub struct Got {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Got {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }
    /// Status and code of a problem, which must be a whole one.
    pub fn problem(&self) -> (u16, String) {
        assert_eq!(self.header("content-type"), "application/problem+json");
        let problem: Problem = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem.status, self.status.as_u16());
        assert_eq!(problem.request_id, self.header("flower-request-id"));
        assert!(!problem.detail.is_empty() && !problem.request_id.is_empty());
        (problem.status, problem.code)
    }
    pub fn ok(&self) -> Value {
        assert_eq!(
            self.status,
            StatusCode::OK,
            "{}",
            String::from_utf8_lossy(&self.body)
        );
        self.json()
    }
}

/// Calls one port.
#[derive(Clone)]
pub struct Http {
    client: Client<HttpConnector, Full<Bytes>>,
    pub calls: SocketAddr,
    pub admin: SocketAddr,
}

impl Http {
    pub fn new(calls: SocketAddr, admin: SocketAddr, h2: bool) -> Self {
        Self {
            client: Client::builder(TokioExecutor::new())
                .http2_only(h2)
                .build_http(),
            calls,
            admin,
        }
    }

    pub async fn send(
        &self,
        at: SocketAddr,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Got {
        let sent = self.try_send(at, method, path, headers, body).await;
        sent.expect("an answer")
    }

    /// Nothing when the connection breaks.
    pub async fn try_send(
        &self,
        at: SocketAddr,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Option<Got> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://{at}{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).unwrap();
        let (head, body) = self.client.request(request).await.ok()?.into_parts();
        Some(Got {
            status: head.status,
            headers: head.headers,
            body: body.collect().await.ok()?.to_bytes(),
        })
    }

    pub async fn mutate(&self, name: &str, key: &str, args: Value) -> Got {
        let path = format!("/v1/p/_/m/{name}");
        let key: &[_] = &[("idempotency-key", key)];
        let headers = if key[0].1.is_empty() { &[] } else { key };
        self.send(self.calls, Method::POST, &path, headers, args.to_string())
            .await
    }

    pub async fn query(&self, name: &str, class: &str, args: Value) -> Got {
        let path = format!("/v1/p/_/q/{name}");
        let class = [("flower-read", class)];
        self.send(self.calls, Method::POST, &path, &class, args.to_string())
            .await
    }

    pub async fn get(&self, path: &str) -> Got {
        self.send(self.calls, Method::GET, path, &[], "").await
    }

    pub async fn admin_get(&self, path: &str) -> Got {
        self.send(self.admin, Method::GET, path, &[], "").await
    }

    pub async fn admin_post(&self, path: &str, body: &impl serde::Serialize) -> Got {
        let body = serde_json::to_vec(body).unwrap();
        self.send(self.admin, Method::POST, path, &[], body).await
    }

    pub async fn report(&self) -> Report {
        serde_json::from_value(self.admin_get(path::REPORT).await.ok()).unwrap()
    }

    pub async fn identity(&self) -> Identity {
        serde_json::from_value(self.admin_get(path::IDENTITY).await.ok()).unwrap()
    }

    pub async fn deploy(&self, source: &str) -> Got {
        let call = Deploy {
            fence: no_fence(),
            source: source.to_owned(),
            managed_by: None,
        };
        self.admin_post(path::DEPLOY, &call).await
    }
}

pub fn no_fence() -> Fence {
    serde_json::from_value(json!({})).unwrap()
}

pub fn quick() -> ServeSettings {
    ServeSettings {
        stop_grace: Duration::ZERO,
        deadline: Duration::from_secs(20),
        ..ServeSettings::default()
    }
}

impl TestNode {
    pub async fn start(dir: Arc<tempfile::TempDir>, serve: ServeSettings, tokens: Tokens) -> Self {
        let disk = Arc::new(RealDisk::open(dir.path()).unwrap());
        let env = Env::real(disk).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let secrets = Arc::new(FixedSecrets(vec!["a secret of the tests".into()]));
        let mut consensus = ConsensusSettings::new(any, secrets);
        consensus.timing = Timing {
            heartbeat: Duration::from_millis(50),
            election_min: Duration::from_millis(300),
            election_max: Duration::from_millis(600),
        };
        let running = Running::start(Parts {
            env: env.clone(),
            node: NodeSettings {
                name: "test".into(),
                client_address: String::new(),
                directory: DirSettings {
                    log_cache_bytes: 4 << 20,
                    log_tail_bytes: 1 << 20,
                    page_cache_bytes: 8 << 20,
                    value_cache_bytes: 1 << 20,
                    group: GroupId(0),
                },
                consensus,
            },
            serve,
            client: any,
            admin: any,
            tokens: Arc::new(tokens),
            metrics: Arc::new(Metrics::new()),
            meter: Meter::new(Host::default(), None),
            plan: None,
        })
        .await
        .unwrap();
        let http = Http::new(running.client(), running.admin(), false);
        Self {
            running,
            dir,
            env,
            http,
        }
    }

    /// A node without a cluster.
    pub async fn fresh(serve: ServeSettings) -> Self {
        Self::start(Arc::new(tempfile::tempdir().unwrap()), serve, Tokens::off()).await
    }

    pub async fn bootstrap(&self, size: u32) -> Got {
        let service = self.running.service().unwrap();
        let call = Bootstrap {
            fence: no_fence(),
            cluster: ClusterId("cluster".into()),
            group: GroupId(0),
            member: service.consensus.me().member,
            address: service.consensus.listening().to_string(),
            size,
        };
        self.http.admin_post(path::BOOTSTRAP, &call).await
    }

    /// A group of one that runs `source`.
    pub async fn serving(source: &str, serve: ServeSettings) -> Self {
        let node = Self::fresh(serve).await;
        node.bootstrap(1).await.ok();
        node.http.deploy(source).await.ok();
        node
    }
}

/// Waits until `check` holds; fails with `what` after a generous time.
pub async fn until(what: &str, mut check: impl AsyncFnMut() -> bool) {
    for _ in 0..1_500 {
        if check().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("did not happen: {what}");
}
