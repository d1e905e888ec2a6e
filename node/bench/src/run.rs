//! One run as JSON. What does not depend on the machine is in `sizes` and `work`.

use serde::{Deserialize, Serialize};

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// Orders.
    pub orders: u64,
    /// Commit of the program.
    pub commit: String,
    /// How it was built.
    pub build: String,
    /// What it ran on.
    pub machine: Machine,
    /// Stored keys and bytes by class of key.
    pub sizes: Vec<Class>,
    /// What one mutation reads and writes.
    pub work: Vec<Work>,
    /// Bytes of `state.redb` after seeding.
    pub file_bytes: u64,
    /// A mutation of 500 orders, milliseconds: the median of the first and of the last eighth.
    pub seeding_ms: (f64, f64),
    /// Live heap bytes.
    pub heap: Heap,
    /// Opening the files.
    pub starts: Vec<Start>,
    /// Point reads.
    pub reads: Vec<Reads>,
    /// Mutations of one order.
    pub mutations: Vec<Mutation>,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// Cores.
    pub cores: u64,
    /// Memory, rounded up.
    pub memory_gib: u64,
    /// Operating system.
    pub system: String,
    /// Architecture.
    pub architecture: String,
}

/// Records of a class.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Class {
    /// Which.
    pub class: String,
    /// Number of keys.
    pub keys: u64,
    /// Bytes of keys.
    pub key_bytes: u64,
    /// Bytes of values, without the version before each.
    pub value_bytes: u64,
}

/// What one mutation does, whatever the machine: means over the sampled ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Work {
    /// Which.
    pub mutation: String,
    /// Rows and entries read.
    pub rows_read: f64,
    /// Derived values evaluated.
    pub cells: f64,
    /// Keys written or deleted.
    pub keys_written: f64,
    /// Bytes of the patch.
    pub bytes_written: f64,
}

/// Live heap bytes, as counted by the allocator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Heap {
    /// Both files open, nothing read.
    pub opened: i64,
    /// Of these, redb's page cache by its own count: opening reads the stored map of free pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_pages: Option<u64>,
    /// More, with the application loaded.
    pub application: i64,
    /// More, after every record was read through the caches.
    pub read: i64,
    /// Of these, redb's page cache by its own count.
    pub page_cache: u64,
    /// Of these, the value cache by its own count.
    pub value_cache: u64,
    /// All of the above without both caches.
    pub rest: i64,
    /// A map of all keys and values in memory, for comparison.
    pub map: i64,
}

/// A start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Start {
    /// Cold: the system's file cache was emptied of both files. Warm: not.
    pub kind: String,
    /// Opening both files, milliseconds.
    pub open_ms: f64,
    /// Loading the application.
    pub load_ms: f64,
    /// The first query.
    pub query_ms: f64,
    /// The first mutation, evaluated and applied: processor time.
    pub mutation_ms: f64,
}

/// Point reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reads {
    /// From what.
    pub from: String,
    /// Nanoseconds of processor time of one.
    pub ns: f64,
}

/// Mutations of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mutation {
    /// Which.
    pub mutation: String,
    /// Page cache, MiB.
    pub page_cache_mib: u64,
    /// How many.
    pub samples: u64,
    /// Evaluating it, microseconds of processor time.
    pub evaluate_p50: f64,
    /// Evaluating and applying it.
    pub p50: f64,
    /// Likewise, of a hundred the slowest.
    pub p99: f64,
    /// Making its log entry durable, which depends on the disk alone.
    pub flush_p50: f64,
}

/// A value of sorted samples; 0 for none.
pub(crate) fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    let value = sorted.get(at).copied().unwrap_or(0.0);
    (value * 10.0).round() / 10.0
}

/// Sorts samples.
pub(crate) fn sorted(mut samples: Vec<f64>) -> Vec<f64> {
    samples.sort_by(f64::total_cmp);
    samples
}
