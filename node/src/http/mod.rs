//! HTTP: one port for clients, one for administrators, health and metrics; HTTP/1.1 and h2c
//! on both. Connections are bounded in number, headers, streams and time, and end in order
//! when the node stops. What is answered is decided elsewhere.

mod admin;
mod body;
mod calls;
mod cors;
mod explain;
mod exports;
mod health;
mod mutation;
mod problem;
mod query;
mod server;
mod watch;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use flower_api::{
    report::Identity,
    wire::{Problem, header},
};
use http::{HeaderMap, request::Parts};
use rand::{RngCore, rngs::StdRng};

use crate::{
    auth::{Api, Subject, Tokens},
    env::{Env, Fatal, Mono},
    metrics::Metrics,
    service::{ServeSettings, Service},
};

pub use health::{Lag, Verdict};
use server::Doors;

/// Where the node is in its start; decides what can be answered.
pub enum Stage {
    /// The data directory is being opened.
    Opening,
    /// The data cannot be read: the node answers who it was and why, and nothing else.
    Broken(Box<Identity>),
    /// It serves.
    Running(Box<Service>),
}

/// The node's face: both HTTP ports, from before the data is opened until the end. Cheap to
/// clone.
#[derive(Clone)]
pub struct Front(Arc<Inner>);

struct Inner {
    env: Env,
    tokens: Arc<Tokens>,
    metrics: Arc<Metrics>,
    settings: ServeSettings,
    stage: ArcSwap<Stage>,
    verdict: ArcSwap<Verdict>,
    lag_seconds: parking_lot::Mutex<Option<f64>>,
    leaving: AtomicBool,
    stopped: tokio::sync::Mutex<bool>,
    ids: parking_lot::Mutex<StdRng>,
    doors: Doors,
    bodies: body::Budget,
}

impl Front {
    /// A node that is opening its data.
    pub fn new(
        env: &Env,
        tokens: Arc<Tokens>,
        metrics: Arc<Metrics>,
        settings: ServeSettings,
    ) -> Self {
        let stall = Duration::from_millis(settings.watches.stall_ms);
        let front = Self(Arc::new(Inner {
            env: env.clone(),
            tokens,
            metrics,
            settings,
            stage: ArcSwap::from_pointee(Stage::Opening),
            verdict: ArcSwap::from_pointee(Verdict::NotReady("opening its data".into())),
            lag_seconds: parking_lot::Mutex::new(None),
            leaving: AtomicBool::new(false),
            stopped: tokio::sync::Mutex::new(false),
            ids: parking_lot::Mutex::new(env.seeds.child("request ids").rng()),
            doors: Doors::new(stall),
            bodies: body::Budget::default(),
        }));
        let judged = front.clone();
        env.tasks
            .spawn("readiness", async move { judged.judge_readiness().await });
        front
    }

    /// Opens a port; returns where it listens.
    ///
    /// # Errors
    /// When the port is taken.
    pub async fn listen(&self, api: Api, at: SocketAddr) -> Result<SocketAddr, Fatal> {
        let (router, setting) = match api {
            Api::Client => (calls::router(self.clone()), "FLOWER_CLIENT_PORT"),
            Api::Admin => (admin::router(self.clone()), "FLOWER_ADMIN_PORT"),
        };
        let opened = self.0.env.net.listen(at).await;
        let listener = opened.map_err(|e| {
            Fatal::new(format!(
                "port {at} cannot be opened: {e} [setting: {setting}]"
            ))
        })?;
        let bound = listener
            .local_addr()
            .map_err(|e| Fatal::new(format!("port {at} does not say where it is: {e}")))?;
        self.0.doors.serve(&self.0.env, api, listener, router);
        Ok(bound)
    }

    /// The data is open: serve.
    pub fn run(&self, service: Service) {
        self.0
            .stage
            .store(Arc::new(Stage::Running(Box::new(service))));
    }

    /// The data is lost: say so.
    pub fn break_down(&self, identity: Identity) {
        self.0
            .stage
            .store(Arc::new(Stage::Broken(Box::new(identity))));
    }

    /// Before a stop: hands over leadership, turns unready, and returns when those who look
    /// at readiness have had the time to see it. Calls are served meanwhile. Once done, it
    /// returns at once.
    pub async fn prepare_stop(&self) {
        let mut stopped = self.0.stopped.lock().await;
        if *stopped {
            return;
        }
        if let Some(service) = self.running() {
            match service.consensus.hand_over().await {
                Ok(Some(member)) => tracing::info!(%member, "leadership is handed over"),
                Ok(None) => {}
                // The others elect a leader when this one is gone; that only takes longer.
                Err(problem) => tracing::warn!(%problem, "leadership was not handed over"),
            }
        }
        self.0.leaving.store(true, Ordering::Relaxed);
        self.0.env.sleep(self.0.settings.stop_grace).await;
        *stopped = true;
    }

    /// Takes no new connections, tells the open ones to go away, and returns when their calls
    /// are done or `limit` has passed.
    pub async fn close(&self, limit: Duration) {
        if let Some(service) = self.running() {
            // An open stream would keep its connection.
            service.watches.end();
        }
        self.0.doors.close(&self.0.env, limit).await;
    }

    fn running(&self) -> Option<Service> {
        match &**self.0.stage.load() {
            Stage::Running(service) => Some((**service).clone()),
            _ => None,
        }
    }

    /// The service, or why there is none.
    fn service(&self) -> Result<Service, Box<Problem>> {
        match &**self.0.stage.load() {
            Stage::Running(service) => Ok((**service).clone()),
            Stage::Opening => Err(problem::not_ready(
                "this node is opening its data; ask another one, or again soon",
            )),
            Stage::Broken(identity) => Err(problem::not_ready(format!(
                "the data of this node cannot be read: {}; ask another one",
                identity.broken.as_deref().unwrap_or("unknown")
            ))),
        }
    }

    fn authenticate(&self, api: Api, headers: &HeaderMap) -> Result<Subject, Box<Problem>> {
        let given = problem::only(headers, http::header::AUTHORIZATION.as_str())?;
        let given = given.map(http::HeaderValue::as_bytes);
        self.0.tokens.authenticate(api, given).map_err(|why| {
            Box::new(Problem::new(
                401,
                flower_api::wire::code::UNAUTHENTICATED,
                "Unauthenticated",
                why.to_string(),
            ))
        })
    }

    /// The request's own id when it is a good one, else a new one.
    fn request_id(&self, parts: &Parts) -> String {
        let given = parts.headers.get(header::REQUEST_ID);
        let good = given.and_then(|id| id.to_str().ok()).filter(|id| {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.:".contains(&b);
            (1..=64).contains(&id.len()) && id.bytes().all(plain)
        });
        good.map_or_else(|| self.mint_id(), ToOwned::to_owned)
    }

    /// A UUIDv7 of now.
    fn mint_id(&self) -> String {
        let mut random = [0; 10];
        self.0.ids.lock().fill_bytes(&mut random);
        let wall_ms = self.0.env.clock.wall_ms();
        uuid::Builder::from_unix_timestamp_millis(wall_ms, &random)
            .into_uuid()
            .to_string()
    }

    fn deadline(&self) -> Mono {
        self.0.env.clock.mono() + self.0.settings.deadline
    }
}
