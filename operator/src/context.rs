//! What every pass needs from the process: clients, metrics, memory that may be lost.
//! Nothing that a decision rests on lives here.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use flower_api::{admin::AdminApi, ids::Revision, report::FailedBuildInfo};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use parking_lot::Mutex;

use crate::{backoff::Backoff, events::Events, metrics::Metrics};

/// Makes an admin client that shows the given tokens (newest first).
pub trait Connect: Send + Sync {
    /// The client.
    fn connect(&self, tokens: &[String]) -> Arc<dyn AdminApi>;
}

/// Settings of the process that passes look at.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Image of clusters that name none.
    pub default_image: String,
    /// Time for one report.
    pub report_timeout: Duration,
    /// Pause between passes when all is as desired.
    pub resync: Duration,
    /// Pause while something is waited for.
    pub poll: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            default_image: format!("flowerdb.dev/flower:{}", env!("CARGO_PKG_VERSION")),
            report_timeout: Duration::from_secs(2),
            resync: Duration::from_secs(20),
            poll: Duration::from_secs(2),
        }
    }
}

/// What every pass needs.
pub struct Ctx {
    /// The API server.
    pub client: Client,
    /// Nodes.
    pub connect: Arc<dyn Connect>,
    /// Events.
    pub events: Events,
    /// Metrics.
    pub metrics: Metrics,
    /// Settings.
    pub settings: Settings,
    /// Consecutive failures.
    pub backoff: Backoff,
    /// Bundles that a group refused, so that a bad one is not sent every two seconds.
    pub refused: Mutex<HashMap<String, RefusedBundle>>,
    /// Whether the PodMonitor's CRD exists, and when that was asked.
    pub pod_monitors: Mutex<Option<(Instant, bool)>>,
    /// Time of day.
    pub now: fn() -> Timestamp,
}

/// A bundle that a group refused.
#[derive(Debug, Clone)]
pub struct RefusedBundle {
    /// Its hash.
    pub hash: String,
    /// Why.
    pub why: String,
    /// Revision at which its build failed, if it came that far unseen.
    pub failed_at: Option<Revision>,
    /// When.
    pub at: Instant,
}

/// A refused bundle is tried again after this: rows that were in its way may be gone.
pub const RETRY_REFUSED: Duration = Duration::from_secs(300);

impl Ctx {
    /// Why this bundle was refused, while that still counts.
    pub fn refusal(&self, uid: &str, hash: &str) -> Option<String> {
        let refused = self.refused.lock();
        refused
            .get(uid)
            .filter(|one| one.hash == hash && one.at.elapsed() < RETRY_REFUSED)
            .map(|one| one.why.clone())
    }
    /// Whether it is known already that the build of this bundle failed at this revision.
    pub fn knows_failure(&self, uid: &str, failed: &FailedBuildInfo) -> bool {
        let refused = self.refused.lock();
        refused
            .get(uid)
            .is_some_and(|one| one.hash == failed.hash && one.failed_at == Some(failed.revision))
    }
    /// Forgets an object that is gone.
    pub fn forget(&self, uid: &str) {
        self.refused.lock().remove(uid);
        self.backoff.succeeded(uid);
    }
}
