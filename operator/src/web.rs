//! Health and metrics of the operator over HTTP. A standby is ready; a replica that holds the
//! Lease is ready while the API server answers it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::context::Ctx;

/// Not ready after the API server was silent for so long.
const SILENCE: Duration = Duration::from_secs(120);

/// What the probes answer.
#[derive(Debug, Default)]
pub struct Health {
    state: Mutex<Phase>,
}

#[derive(Debug, Default, Clone)]
enum Phase {
    /// Something is missing before the work can begin.
    #[default]
    Starting,
    /// The FlowerCluster CRD is not installed.
    NoCrd(String),
    /// Another replica holds the Lease.
    Standby,
    /// Runs; when the API server last answered.
    Leading(Instant),
}

impl Health {
    /// The CRD is missing.
    pub fn no_crd(&self, why: String) {
        *self.state.lock() = Phase::NoCrd(why);
    }
    /// Waits for the Lease.
    pub fn standby(&self) {
        *self.state.lock() = Phase::Standby;
    }
    /// The API server answered.
    pub fn alive(&self) {
        *self.state.lock() = Phase::Leading(Instant::now());
    }
    /// Why this replica is not ready.
    pub fn not_ready(&self) -> Option<String> {
        match &*self.state.lock() {
            Phase::Starting => Some("starting".to_owned()),
            Phase::NoCrd(why) => Some(why.clone()),
            Phase::Leading(at) if at.elapsed() > SILENCE => Some(format!(
                "the API server has not answered for {} s",
                at.elapsed().as_secs()
            )),
            Phase::Standby | Phase::Leading(_) => None,
        }
    }
}

/// Serves `/healthz`, `/readyz` and `/metrics` until cancelled.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    ctx: Arc<Ctx>,
    health: Arc<Health>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let app = Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state((ctx, health));
    axum::serve(listener, app)
        .with_graceful_shutdown(async move { stop.cancelled().await })
        .await
}

async fn readyz(State((_, health)): State<(Arc<Ctx>, Arc<Health>)>) -> (StatusCode, String) {
    match health.not_ready() {
        None => (StatusCode::OK, "ok".to_owned()),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, why),
    }
}

async fn metrics(
    State((ctx, _)): State<(Arc<Ctx>, Arc<Health>)>,
) -> ([(&'static str, &'static str); 1], String) {
    let kind = [("content-type", "text/plain; version=0.0.4; charset=utf-8")];
    (kind, ctx.metrics.text())
}
