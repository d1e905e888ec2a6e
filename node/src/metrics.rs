//! What Prometheus sees of a node. Events (calls, flushes, images) are counted as they
//! happen; everything else is read from the report and the stores when it is asked for. What
//! this host cannot know is absent, never 0; counters start at 0.

use std::time::Duration;

use flower_api::report::Report;
use flower_engine::Cost;
use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

mod observed;
mod scrape;
mod table;

pub use observed::{CacheUse, FileUse, Observed};
pub use table::{Kind, METRICS, Metric};

/// A call of the client API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// A query.
    Query,
    /// A mutation.
    Mutation,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome {
    /// With a result.
    Ok,
    /// With the stored result of an earlier call under the same key.
    Replayed,
    /// With a fault that the function declares.
    Fault,
    /// Refused: the caller must change something (status 4xx).
    Refused,
    /// Failed, and nothing happened (status 5xx).
    Failed,
    /// Nobody knows whether it happened.
    Unknown,
}

impl CallKind {
    const ALL: [Self; 2] = [Self::Query, Self::Mutation];
    fn label(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Mutation => "mutation",
        }
    }
}

impl CallOutcome {
    const ALL: [Self; 6] = [
        Self::Ok,
        Self::Replayed,
        Self::Fault,
        Self::Refused,
        Self::Failed,
        Self::Unknown,
    ];
    fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Replayed => "replayed",
            Self::Fault => "fault",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

/// Whether an image was sent or received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To a learner or a follower.
    Sent,
    /// From the leader.
    Received,
}

/// Counts events and writes the exposition. Cheap to call from anywhere; never blocks.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    calls: IntCounterVec,
    call_seconds: HistogramVec,
    batch_mutations: Histogram,
    conflicts: IntCounter,
    propagation_cells: Histogram,
    propagation_height: Histogram,
    spanning_readers: IntCounter,
    log_flush_seconds: Histogram,
    checkpoint_seconds: Histogram,
    leader_changes: IntCounter,
    mutation_written_bytes: IntCounter,
    images_sent: IntCounter,
    images_received: IntCounter,
    image_seconds: Histogram,
    image_bytes: IntGaugeVec,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All counters at 0.
    ///
    /// # Panics
    /// Never: the names are constants that a test registers.
    pub fn new() -> Self {
        let registry = Registry::new();
        let metrics = Self {
            calls: counters(&registry, "flower_calls_total"),
            call_seconds: histograms(&registry, "flower_call_duration_seconds", &seconds(0.000_5)),
            batch_mutations: histogram(&registry, "flower_batch_mutations", &doubling(1.0, 11)),
            conflicts: counter(&registry, "flower_mutation_conflicts_total"),
            propagation_cells: histogram(&registry, "flower_propagation_cells", &doubling(1.0, 15)),
            propagation_height: histogram(
                &registry,
                "flower_propagation_height",
                &doubling(1.0, 8),
            ),
            spanning_readers: counter(&registry, "flower_spanning_readers_seen_total"),
            log_flush_seconds: histogram(&registry, "flower_log_flush_seconds", &seconds(0.000_1)),
            checkpoint_seconds: histogram(&registry, "flower_checkpoint_seconds", &seconds(0.001)),
            leader_changes: counter(&registry, "flower_leader_changes_total"),
            mutation_written_bytes: counter(&registry, "flower_mutation_written_bytes_total"),
            images_sent: counter(&registry, "flower_images_sent_total"),
            images_received: counter(&registry, "flower_images_received_total"),
            image_seconds: histogram(&registry, "flower_image_seconds", &doubling(0.1, 14)),
            image_bytes: registered(
                &registry,
                IntGaugeVec::new(
                    opts("flower_image_bytes"),
                    table::find("flower_image_bytes").labels,
                ),
            ),
            registry,
        };
        for kind in CallKind::ALL {
            for outcome in CallOutcome::ALL {
                metrics
                    .calls
                    .with_label_values(&[kind.label(), outcome.label()]);
            }
            metrics.call_seconds.with_label_values(&[kind.label()]);
        }
        metrics
    }

    /// A call ended after `seconds`.
    pub fn call(&self, kind: CallKind, outcome: CallOutcome, seconds: f64) {
        self.calls
            .with_label_values(&[kind.label(), outcome.label()])
            .inc();
        self.call_seconds
            .with_label_values(&[kind.label()])
            .observe(seconds);
    }

    /// So many mutations were prepared again, because what they had read was written meanwhile.
    pub fn conflicts(&self, more: u64) {
        self.conflicts.inc_by(more);
    }

    /// A mutation was prepared; when it evaluated derived values, how many and how high.
    pub fn propagation(&self, cost: &Cost) {
        if cost.cells > 0 {
            self.propagation_cells.observe(cost.cells as f64);
            self.propagation_height.observe(cost.height as f64);
        }
        self.spanning_readers.inc_by(cost.spans);
    }

    /// A batch was closed with so many mutations, whose patches have `bytes`.
    pub fn batch(&self, mutations: usize, bytes: u64) {
        self.batch_mutations.observe(mutations as f64);
        self.mutation_written_bytes.inc_by(bytes);
    }

    /// One durable commit of the log.
    pub fn log_flush(&self, seconds: f64) {
        self.log_flush_seconds.observe(seconds);
    }

    /// One durable checkpoint of the state.
    pub fn checkpoint(&self, seconds: f64) {
        self.checkpoint_seconds.observe(seconds);
    }

    /// This node heard of another leader than before.
    pub fn leader_changed(&self) {
        self.leader_changes.inc();
    }

    /// An image arrived whole, here or there.
    pub fn image(&self, direction: Direction, bytes: u64, seconds: f64) {
        let (total, label) = match direction {
            Direction::Sent => (&self.images_sent, "sent"),
            Direction::Received => (&self.images_received, "received"),
        };
        total.inc();
        self.image_seconds.observe(seconds);
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.image_bytes.with_label_values(&[label]).set(bytes);
    }

    /// The exposition in Prometheus' text format.
    pub fn exposition(&self, report: &Report, observed: &Observed) -> String {
        let mut families = self.registry.gather();
        families.extend(scrape::gather(report, observed));
        families.sort_by(|a, b| a.name().cmp(b.name()));
        let mut text = Vec::new();
        // Writing into a vector fails only for a family without metrics, and none is made.
        if let Err(why) = TextEncoder::new().encode(&families, &mut text) {
            tracing::error!(%why, "metrics cannot be written");
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl crate::env::Probe for Metrics {
    fn log_flushed(&self, took: Duration) {
        self.log_flush(took.as_secs_f64());
    }
    fn checkpointed(&self, took: Duration) {
        self.checkpoint(took.as_secs_f64());
    }
    fn leader_changed(&self) {
        Self::leader_changed(self);
    }
    fn image_sent(&self, bytes: u64, took: Duration) {
        self.image(Direction::Sent, bytes, took.as_secs_f64());
    }
    fn image_received(&self, bytes: u64, took: Duration) {
        self.image(Direction::Received, bytes, took.as_secs_f64());
    }
}

fn opts(name: &'static str) -> Opts {
    Opts::new(name, table::find(name).help)
}

fn registered<C: prometheus::core::Collector + Clone + 'static>(
    registry: &Registry,
    made: prometheus::Result<C>,
) -> C {
    let made = made.expect("a constant name");
    registry
        .register(Box::new(made.clone()))
        .expect("registered once");
    made
}

fn counter(registry: &Registry, name: &'static str) -> IntCounter {
    registered(registry, IntCounter::with_opts(opts(name)))
}

fn counters(registry: &Registry, name: &'static str) -> IntCounterVec {
    registered(
        registry,
        IntCounterVec::new(opts(name), table::find(name).labels),
    )
}

fn histogram(registry: &Registry, name: &'static str, buckets: &[f64]) -> Histogram {
    let opts = HistogramOpts::from(opts(name)).buckets(buckets.to_vec());
    registered(registry, Histogram::with_opts(opts))
}

fn histograms(registry: &Registry, name: &'static str, buckets: &[f64]) -> HistogramVec {
    let opts = HistogramOpts::from(opts(name)).buckets(buckets.to_vec());
    registered(registry, HistogramVec::new(opts, table::find(name).labels))
}

fn doubling(first: f64, count: usize) -> Vec<f64> {
    std::iter::successors(Some(first), |x| Some(x * 2.0))
        .take(count)
        .collect()
}

/// From `first` seconds up to some ten seconds.
fn seconds(first: f64) -> Vec<f64> {
    std::iter::successors(Some(first), |x| Some(x * 2.0))
        .take_while(|x| *x < 20.0)
        .collect()
}

#[cfg(test)]
mod tests;
