//! The operator's own metrics. Counters and histograms carry no object names; the gauges of a
//! cluster go when it goes.

use std::{future::Future, time::Instant};

use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};

use crate::{
    controller::{act::Acted, plan::Step, status::Inputs, validate::ValidatedCluster},
    error::Error,
};

/// Ends of a pass, so that every counter starts at 0.
const OUTCOMES: [&str; 7] = [
    "gone", "refused", "stepped", "waiting", "settled", "conflict", "failed",
];
const STEP_OUTCOMES: [&str; 3] = ["done", "held", "failed"];
const ERRORS: [&str; 9] = [
    "Forbidden",
    "Conflict",
    "RefusedByApiServer",
    "ApiServerError",
    "ApiServerUnreachable",
    "NodeUnreachable",
    "NodeRefused",
    "NodeGarbled",
    "IncompleteObject",
];
const ROLES: [&str; 3] = ["voter", "learner", "unreachable"];

/// All families.
pub struct Metrics {
    registry: Registry,
    passes: IntCounterVec,
    pass_seconds: Histogram,
    steps: IntCounterVec,
    step_seconds: HistogramVec,
    errors: IntCounterVec,
    watch_errors: IntCounter,
    backoff: IntGauge,
    leader: IntGauge,
    members: IntGaugeVec,
    margin: IntGaugeVec,
    stored: IntGaugeVec,
    resident: IntGaugeVec,
    catching_up: IntGaugeVec,
}

impl Metrics {
    /// Registers everything; counters start at 0.
    ///
    /// # Errors
    /// Never, unless two families have one name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let cluster = ["namespace", "flower_cluster"];
        let metrics = Self {
            passes: counters(
                "passes_total",
                "Passes over FlowerClusters by how they ended.",
                &["outcome"],
            )?,
            pass_seconds: Histogram::with_opts(seconds("pass", "Duration of a pass."))?,
            steps: counters(
                "steps_total",
                "Steps by name and outcome.",
                &["step", "outcome"],
            )?,
            step_seconds: HistogramVec::new(seconds("step", "Duration of a step."), &["step"])?,
            errors: counters(
                "errors_total",
                "Passes that failed, by category.",
                &["category"],
            )?,
            watch_errors: IntCounter::with_opts(named(
                "watch_errors_total",
                "Watches that failed and were begun anew.",
            ))?,
            backoff: gauge("backoff_objects", "FlowerClusters whose last pass failed.")?,
            leader: gauge("is_leader", "1 while this replica holds the Lease.")?,
            members: gauges(
                "cluster_members",
                "Members by role.",
                &["namespace", "flower_cluster", "role"],
            )?,
            margin: gauges(
                "cluster_quorum_margin",
                "Voters that may still fail before the quorum is lost; -1 when it is lost.",
                &cluster,
            )?,
            stored: gauges(
                "cluster_stored_bytes",
                "Key and value bytes stored by the replica that stores most.",
                &cluster,
            )?,
            resident: gauges(
                "cluster_resident_bytes",
                "Resident sets of all replicas.",
                &cluster,
            )?,
            catching_up: gauges(
                "cluster_image_remaining_bytes",
                "Bytes still to be sent to members that receive an image.",
                &cluster,
            )?,
            registry: Registry::new(),
        };
        metrics.register()?;
        metrics.start_at_zero();
        Ok(metrics)
    }

    fn register(&self) -> Result<(), prometheus::Error> {
        let r = &self.registry;
        r.register(Box::new(self.passes.clone()))?;
        r.register(Box::new(self.pass_seconds.clone()))?;
        r.register(Box::new(self.steps.clone()))?;
        r.register(Box::new(self.step_seconds.clone()))?;
        r.register(Box::new(self.errors.clone()))?;
        r.register(Box::new(self.watch_errors.clone()))?;
        r.register(Box::new(self.backoff.clone()))?;
        r.register(Box::new(self.leader.clone()))?;
        r.register(Box::new(self.members.clone()))?;
        r.register(Box::new(self.margin.clone()))?;
        r.register(Box::new(self.stored.clone()))?;
        r.register(Box::new(self.resident.clone()))?;
        r.register(Box::new(self.catching_up.clone()))?;
        let info = gauges("build_info", "1; the version is a label.", &["version"])?;
        info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        r.register(Box::new(info))
    }

    fn start_at_zero(&self) {
        for outcome in OUTCOMES {
            self.passes.with_label_values(&[outcome]);
        }
        for step in Step::NAMES {
            self.step_seconds.with_label_values(&[step]);
            for outcome in STEP_OUTCOMES {
                self.steps.with_label_values(&[step, outcome]);
            }
        }
        for category in ERRORS {
            self.errors.with_label_values(&[category]);
        }
    }

    /// A pass begins.
    pub fn start_pass(&self) -> Instant {
        Instant::now()
    }
    /// A pass ended.
    pub fn end_pass(&self, began: Instant, outcome: &str) {
        self.passes.with_label_values(&[outcome]).inc();
        self.pass_seconds.observe(began.elapsed().as_secs_f64());
    }
    /// Runs a step and counts it.
    ///
    /// # Errors
    /// Those of the step.
    pub async fn step(
        &self,
        step: &Step,
        run: impl Future<Output = Result<Acted, Error>>,
    ) -> Result<Acted, Error> {
        if *step == Step::None {
            return run.await;
        }
        let began = Instant::now();
        let result = run.await;
        let outcome = match &result {
            Ok(Acted::Held(_) | Acted::Stale(_)) => "held",
            Ok(_) => "done",
            Err(_) => "failed",
        };
        self.steps.with_label_values(&[step.name(), outcome]).inc();
        self.step_seconds
            .with_label_values(&[step.name()])
            .observe(began.elapsed().as_secs_f64());
        result
    }
    /// A pass failed.
    pub fn error(&self, category: &str) {
        self.errors.with_label_values(&[category]).inc();
    }
    /// A watch failed.
    pub fn watch_error(&self) {
        self.watch_errors.inc();
    }
    /// Objects whose last pass failed.
    pub fn backoff(&self, objects: usize) {
        self.backoff.set(whole(objects));
    }
    /// This replica holds the Lease, or not.
    pub fn leader(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// Gauges of a cluster.
    pub fn cluster(&self, cluster: &ValidatedCluster, inputs: &Inputs<'_>) {
        let labels = [cluster.namespace.as_str(), cluster.name.as_str()];
        let role = |role: &str, number: usize| {
            self.members
                .with_label_values(&[labels[0], labels[1], role])
                .set(whole(number));
        };
        let margin = match inputs.view {
            Some(view) => {
                let voters = view.voters();
                let good = voters.iter().filter(|id| view.caught_up(**id)).count();
                role("voter", voters.len());
                role("learner", view.learners().len());
                whole(good) - whole(voters.len() / 2 + 1)
            }
            None => -1,
        };
        let silent = inputs.observed.nodes.len() - inputs.observed.reports().count();
        role("unreachable", silent);
        self.margin.with_label_values(&labels).set(margin);
        let reports = || {
            inputs
                .observed
                .reports()
                .map(|(_, report)| &report.footprint)
        };
        let stored = reports().map(|one| one.stored_bytes).max();
        self.stored
            .with_label_values(&labels)
            .set(bytes(stored.unwrap_or(0)));
        // Absent when one is unknown, never too small.
        match reports().map(|one| one.resident_bytes).sum::<Option<u64>>() {
            Some(resident) => self
                .resident
                .with_label_values(&labels)
                .set(bytes(resident)),
            None => drop(self.resident.remove_label_values(&labels)),
        }
        let left = inputs.view.map_or(0, |view| {
            let images = view.followers.values().filter_map(|lag| lag.image);
            images
                .map(|image| image.total_bytes.saturating_sub(image.sent_bytes))
                .sum()
        });
        self.catching_up.with_label_values(&labels).set(bytes(left));
    }

    /// Takes a cluster's gauges away.
    pub fn forget(&self, namespace: &str, name: &str) {
        for role in ROLES {
            drop(self.members.remove_label_values(&[namespace, name, role]));
        }
        for family in [
            &self.margin,
            &self.stored,
            &self.resident,
            &self.catching_up,
        ] {
            drop(family.remove_label_values(&[namespace, name]));
        }
    }

    /// The text that Prometheus reads.
    pub fn text(&self) -> String {
        let mut out = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut out) {
            tracing::error!(%error, "metrics could not be encoded");
        }
        String::from_utf8(out).unwrap_or_default()
    }
}

/// All families have one prefix.
fn named(name: &str, help: &str) -> Opts {
    Opts::new(format!("flower_operator_{name}"), help)
}

fn counters(name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
    IntCounterVec::new(named(name, help), labels)
}

fn gauge(name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
    IntGauge::with_opts(named(name, help))
}

fn gauges(name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
    IntGaugeVec::new(named(name, help), labels)
}

fn seconds(what: &str, help: &str) -> HistogramOpts {
    HistogramOpts::from(named(&format!("{what}_duration_seconds"), help))
}

fn whole(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn bytes(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
