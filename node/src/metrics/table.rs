//! Every metric of a node by name. `docs/reference/metrics.md` is checked against this table.

/// Type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// What it says.
    pub help: &'static str,
}

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric {
        name,
        kind: Kind::Counter,
        labels,
        help,
    }
}
const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric {
        name,
        kind: Kind::Gauge,
        labels,
        help,
    }
}
const fn histogram(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric {
        name,
        kind: Kind::Histogram,
        labels,
        help,
    }
}

/// Row of the table.
///
/// # Panics
/// For a name that is not there: a bug, found by the tests.
pub(super) fn find(name: &str) -> &'static Metric {
    METRICS
        .iter()
        .find(|metric| metric.name == name)
        .expect("a metric of the table")
}

/// All of them.
pub const METRICS: &[Metric] = &[
    gauge(
        "flower_up_info",
        &["version"],
        "Always 1; the version of the program.",
    ),
    gauge(
        "flower_role",
        &["role"],
        "1 for the role that the node has, 0 for the others.",
    ),
    gauge("flower_is_leader", &[], "1 when this node leads its group."),
    gauge("flower_has_leader", &[], "1 when this node knows a leader."),
    gauge(
        "flower_ready",
        &[],
        "1 when the node takes itself for ready.",
    ),
    gauge("flower_term", &[], "Raft term."),
    counter(
        "flower_leader_changes_total",
        &[],
        "Times that the node heard of another leader than before.",
    ),
    gauge(
        "flower_log_last_index",
        &[],
        "Index of the last entry in the log.",
    ),
    gauge(
        "flower_log_committed_index",
        &[],
        "Index of the last entry known to be committed.",
    ),
    gauge(
        "flower_applied_index",
        &[],
        "Index of the last entry applied.",
    ),
    gauge(
        "flower_checkpoint_index",
        &[],
        "Applied index of the last durable checkpoint.",
    ),
    gauge(
        "flower_purged_index",
        &[],
        "Index of the last entry purged from the log.",
    ),
    gauge("flower_revision", &[], "Last applied revision."),
    gauge(
        "flower_voters",
        &[],
        "Voters of the configuration that the node knows.",
    ),
    gauge(
        "flower_follower_lag_entries",
        &["member"],
        "Entries that a member is behind; told by the leader.",
    ),
    gauge(
        "flower_apply_lag_seconds",
        &[],
        "Age of the oldest entry that is committed and not yet applied here.",
    ),
    counter(
        "flower_calls_total",
        &["kind", "outcome"],
        "Calls of the client API that ended.",
    ),
    histogram(
        "flower_call_duration_seconds",
        &["kind"],
        "Time from a call's arrival to its answer.",
    ),
    histogram(
        "flower_batch_mutations",
        &[],
        "Mutations that share one log entry.",
    ),
    counter(
        "flower_mutation_conflicts_total",
        &[],
        "Mutations prepared again because what they had read was written meanwhile.",
    ),
    histogram(
        "flower_propagation_cells",
        &[],
        "Derived values evaluated by a mutation that evaluated any.",
    ),
    histogram(
        "flower_propagation_height",
        &[],
        "Height of the highest stored derived value that such a mutation brought up to date.",
    ),
    counter(
        "flower_spanning_readers_seen_total",
        &[],
        "Readers of windows over several values of an index's first field that were looked at.",
    ),
    histogram(
        "flower_log_flush_seconds",
        &[],
        "Durable commits of the log.",
    ),
    histogram(
        "flower_checkpoint_seconds",
        &[],
        "Durable checkpoints of the state.",
    ),
    gauge("flower_resident_bytes", &[], "Resident set of the process."),
    gauge(
        "flower_cgroup_limit_bytes",
        &[],
        "Memory limit of the container.",
    ),
    gauge(
        "flower_cgroup_usage_bytes",
        &[],
        "Memory charged to the container, file cache included.",
    ),
    counter(
        "flower_oom_kills_total",
        &[],
        "Processes of the container killed for want of memory.",
    ),
    gauge(
        "flower_memory_plan_bytes",
        &["part"],
        "How the memory limit is split.",
    ),
    gauge(
        "flower_page_cache_bytes",
        &["file"],
        "Bytes in the page cache of a file.",
    ),
    counter(
        "flower_page_cache_hits_total",
        &["file"],
        "Pages found in the page cache.",
    ),
    counter(
        "flower_page_cache_misses_total",
        &["file"],
        "Pages read from the file.",
    ),
    counter(
        "flower_page_cache_evictions_total",
        &["file"],
        "Pages that made room for others.",
    ),
    gauge(
        "flower_value_cache_bytes",
        &[],
        "Bytes in the cache of values.",
    ),
    counter(
        "flower_value_cache_hits_total",
        &[],
        "Values found in the cache.",
    ),
    counter(
        "flower_value_cache_misses_total",
        &[],
        "Values read from the state.",
    ),
    gauge(
        "flower_recent_writes_bytes",
        &[],
        "Keys written lately, kept in memory.",
    ),
    gauge(
        "flower_query_cache_bytes",
        &[],
        "Results of queries kept in memory, with what they read.",
    ),
    counter(
        "flower_query_cache_hits_total",
        &[],
        "Queries answered with a result that still holds.",
    ),
    counter(
        "flower_query_cache_misses_total",
        &[],
        "Queries whose result had to be evaluated.",
    ),
    counter(
        "flower_query_cache_evictions_total",
        &[],
        "Results that made room for others.",
    ),
    counter(
        "flower_query_evaluations_total",
        &[],
        "Evaluations of queries, for calls and for watches.",
    ),
    gauge("flower_watches", &[], "Watches that are open."),
    gauge(
        "flower_watched_queries",
        &[],
        "Distinct queries that are watched.",
    ),
    counter(
        "flower_watch_steps_total",
        &[],
        "Steps sent to the clients of watches.",
    ),
    gauge(
        "flower_watch_bytes",
        &[],
        "Names and arguments of watches, and frames that wait or are being written.",
    ),
    gauge(
        "flower_javascript_heap_bytes",
        &[],
        "Heaps of all JavaScript workers.",
    ),
    gauge(
        "flower_javascript_workers_stuck",
        &[],
        "Workers that did not stop at their deadline.",
    ),
    gauge(
        "flower_log_tail_bytes",
        &[],
        "Tail of the log kept in memory.",
    ),
    gauge("flower_file_bytes", &["file"], "Size of a file."),
    gauge(
        "flower_file_allocated_bytes",
        &["file"],
        "Bytes of a file that hold something.",
    ),
    gauge(
        "flower_file_fragmented_bytes",
        &["file"],
        "Bytes lost inside a file's pages.",
    ),
    gauge("flower_stored_bytes", &[], "Keys and values stored."),
    gauge(
        "flower_resident_per_stored_ratio",
        &[],
        "Resident set divided by stored bytes.",
    ),
    gauge(
        "flower_file_per_stored_ratio",
        &[],
        "Size of the state's file divided by stored bytes.",
    ),
    gauge("flower_receipts", &[], "Receipts kept."),
    gauge("flower_receipt_bytes", &[], "Bytes of the receipts kept."),
    gauge(
        "flower_records",
        &["class"],
        "Records stored, by class of key.",
    ),
    gauge(
        "flower_disk_capacity_bytes",
        &[],
        "Size of the file system that holds the data.",
    ),
    gauge(
        "flower_disk_free_bytes",
        &[],
        "Free bytes of that file system.",
    ),
    gauge(
        "flower_disk_reserve_bytes",
        &[],
        "Free bytes below which mutations are refused.",
    ),
    gauge(
        "flower_build_rows",
        &[],
        "Rows and cells that a deployment's build has walked; 0 without a build.",
    ),
    gauge(
        "flower_build_total_rows",
        &[],
        "Rows and cells that a deployment's build walks, estimated when it began.",
    ),
    counter("flower_images_sent_total", &[], "Images sent whole."),
    counter(
        "flower_images_received_total",
        &[],
        "Images received and installed.",
    ),
    gauge(
        "flower_image_bytes",
        &["direction"],
        "Size of the last image sent or received.",
    ),
    histogram(
        "flower_image_seconds",
        &[],
        "Time that sending or receiving an image took.",
    ),
    gauge(
        "flower_view_oldest_age_seconds",
        &[],
        "Age of the oldest read view still held.",
    ),
    counter(
        "flower_mutation_written_bytes_total",
        &[],
        "Bytes of the patches of mutations, as this node led.",
    ),
];
