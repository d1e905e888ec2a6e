//! What is read when the metrics are asked for and the report does not hold.

/// Use of one cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// Bytes in it.
    pub bytes: u64,
    /// Found in it since the start; absent, as the next ones, when the cache does not count it.
    pub hits: Option<u64>,
    /// Not found.
    pub misses: Option<u64>,
    /// Thrown out.
    pub evictions: Option<u64>,
}

/// Use of one file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileUse {
    /// Its size.
    pub bytes: u64,
    /// Bytes of pages in use.
    pub allocated: Option<u64>,
    /// Bytes lost inside pages in use.
    pub fragmented: Option<u64>,
}

/// Absent is what nobody knows (now).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observed {
    /// Page caches by file: `state`, `raft`.
    pub page_caches: Vec<(&'static str, CacheUse)>,
    /// Parsed values.
    pub value_cache: Option<CacheUse>,
    /// Keys written lately, bytes.
    pub recent_bytes: Option<u64>,
    /// Results of queries.
    pub query_cache: Option<CacheUse>,
    /// Evaluations of queries.
    pub query_evaluations: Option<u64>,
    /// Watches.
    pub watches: Option<crate::watch::WatchStats>,
    /// Files: `state`, `raft`.
    pub files: Vec<(&'static str, FileUse)>,
    /// Records by class of key.
    pub records: Vec<(&'static str, u64)>,
    /// Bytes of receipts.
    pub receipt_bytes: Option<u64>,
    /// Workers that did not stop at their deadline.
    pub workers_stuck: Option<u64>,
    /// Age of the oldest entry that is committed and not applied, seconds.
    pub apply_lag_seconds: Option<f64>,
    /// Age of the oldest view held, seconds.
    pub view_oldest_age_seconds: Option<f64>,
    /// Processes killed for want of memory.
    pub oom_kills: Option<u64>,
}
