//! The one function that splits a memory limit into caches, heaps and headroom; used by the
//! node at start and by the operator to refuse a spec that cannot fit. Pure.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits::{HEAP_BYTES, MIB};

/// How caches are sized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachePolicy {
    /// From the limit, after fixed parts and headroom.
    Auto {
        /// Part of the limit left to the kernel's file cache and to peaks, in percent.
        headroom_percent: u8,
    },
    /// Given sizes.
    Fixed {
        /// Page cache of `state.redb`.
        page_cache_bytes: u64,
        /// Parsed values.
        value_cache_bytes: u64,
        /// As in `Auto`.
        headroom_percent: u8,
    },
}

/// Default of `headroom_percent`.
pub const HEADROOM_PERCENT: u8 = 20;

impl Default for CachePolicy {
    fn default() -> Self {
        Self::Auto {
            headroom_percent: HEADROOM_PERCENT,
        }
    }
}

/// What does not follow from the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// JavaScript workers.
    pub workers: u32,
    /// Heap of each.
    pub heap_bytes: u64,
    /// Keys written lately, when not a share of what values get.
    pub recent_bytes: Option<u64>,
    /// Results of queries, likewise.
    pub query_cache_bytes: Option<u64>,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            workers: 3,
            heap_bytes: HEAP_BYTES,
            recent_bytes: None,
            query_cache_bytes: None,
        }
    }
}

/// A memory limit, split. All bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemoryPlan {
    /// The limit that was split.
    pub limit_bytes: u64,
    /// Program, Raft, HTTP and requests in flight.
    pub fixed_bytes: u64,
    /// JavaScript heaps of all workers.
    pub heaps_bytes: u64,
    /// Log tail and messages to peers.
    pub log_bytes: u64,
    /// Page cache of `raft.redb`.
    pub log_page_cache_bytes: u64,
    /// Page cache of `state.redb`.
    pub page_cache_bytes: u64,
    /// Parsed values.
    pub value_cache_bytes: u64,
    /// Keys written lately.
    #[serde(default)]
    pub recent_bytes: u64,
    /// Results of queries with what they read.
    #[serde(default)]
    pub query_cache_bytes: u64,
    /// Left to the kernel's file cache and to peaks.
    pub headroom_bytes: u64,
}

impl MemoryPlan {
    /// Everything but the headroom.
    pub fn planned_bytes(&self) -> u64 {
        self.fixed_bytes
            + self.heaps_bytes
            + self.log_bytes
            + self.log_page_cache_bytes
            + self.page_cache_bytes
            + self.value_cache_bytes
            + self.recent_bytes
            + self.query_cache_bytes
    }
}

/// The limit is too small.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a memory limit of {} MiB cannot hold the node: program {} + JavaScript heaps {} + log {} + page caches {} + value cache {} MiB, and a headroom of {percent} % on top, make {} MiB; raise resources.limits.memory to that at least{}",
    limit / MIB, fixed / MIB, heaps / MIB, log / MIB, pages / MIB, values / MIB, needed.div_ceil(MIB), if *fixed_caches { " or lower cache.pageCacheBytes and cache.valueCacheBytes" } else { "" }
)]
pub struct CannotFit {
    limit: u64,
    fixed: u64,
    heaps: u64,
    log: u64,
    pages: u64,
    values: u64,
    percent: u64,
    /// The smallest limit that would do.
    pub needed: u64,
    fixed_caches: bool,
}

/// Program, Raft, HTTP, requests in flight: measured on an idle node with room for peaks.
const FIXED_BYTES: u64 = 56 * MIB;
/// Log tail and peer messages.
const LOG_BYTES: u64 = 24 * MIB;
/// Page cache of the log's file.
const LOG_PAGE_CACHE_BYTES: u64 = 8 * MIB;
/// redb works with less, but a write buffer is half of it.
const PAGE_CACHE_MIN_BYTES: u64 = 16 * MIB;
/// Larger page caches no longer pay: values are cached parsed (`research`: 64 MiB against
/// 1 GiB is a factor of two on hot reads, and the kernel's file cache serves the misses).
const PAGE_CACHE_MAX_BYTES: u64 = 1024 * MIB;
/// Smallest value cache, with the two that get a share of it.
const VALUE_CACHE_MIN_BYTES: u64 = 8 * MIB;
/// Of what values get, the keys written lately take this part, within bounds.
const RECENT_PART: u64 = 16;
const RECENT_MIN_BYTES: u64 = MIB;
const RECENT_MAX_BYTES: u64 = 32 * MIB;
/// The results of queries take this part, within bounds.
const QUERY_CACHE_PART: u64 = 8;
const QUERY_CACHE_MIN_BYTES: u64 = 2 * MIB;
const QUERY_CACHE_MAX_BYTES: u64 = 256 * MIB;
const _: () = assert!(RECENT_MIN_BYTES + QUERY_CACHE_MIN_BYTES < VALUE_CACHE_MIN_BYTES);

/// Keys written lately and results of queries: as given, else a share of what values get.
fn shares(load: Workload, values: u64) -> (u64, u64) {
    let part = |of: u64, low: u64, high: u64| (values / of).clamp(low, high);
    (
        load.recent_bytes
            .unwrap_or_else(|| part(RECENT_PART, RECENT_MIN_BYTES, RECENT_MAX_BYTES)),
        load.query_cache_bytes.unwrap_or_else(|| {
            part(
                QUERY_CACHE_PART,
                QUERY_CACHE_MIN_BYTES,
                QUERY_CACHE_MAX_BYTES,
            )
        }),
    )
}

/// What of them is no part of what values get: all that is given, and everything beside a
/// value cache that is.
fn on_top(load: Workload, values: u64, fixed_caches: bool) -> u64 {
    let (recent, results) = shares(load, values);
    let counted = |given: Option<u64>, share| match given {
        None if !fixed_caches => 0,
        _ => share,
    };
    counted(load.recent_bytes, recent) + counted(load.query_cache_bytes, results)
}

/// Splits `limit` bytes.
///
/// # Errors
/// `CannotFit`, with the numbers and the smallest limit that would do.
pub fn split(limit: u64, policy: CachePolicy, load: Workload) -> Result<MemoryPlan, CannotFit> {
    let heaps = u64::from(load.workers) * load.heap_bytes;
    let base = FIXED_BYTES + heaps + LOG_BYTES + LOG_PAGE_CACHE_BYTES;
    let (headroom_percent, given) = match policy {
        CachePolicy::Auto { headroom_percent } => (headroom_percent, None),
        CachePolicy::Fixed {
            page_cache_bytes,
            value_cache_bytes,
            headroom_percent,
        } => (
            headroom_percent,
            Some((page_cache_bytes, value_cache_bytes)),
        ),
    };
    let percent = u64::from(headroom_percent.min(80));
    let headroom = limit / 100 * percent;
    let fixed_caches = given.is_some();
    let (pages_min, values_min) = given.unwrap_or((PAGE_CACHE_MIN_BYTES, VALUE_CACHE_MIN_BYTES));
    let extra = on_top(load, values_min, fixed_caches);
    let used = base + pages_min + values_min + extra;
    if used + headroom > limit {
        let needed = (used * 100).div_ceil(100 - percent).div_ceil(MIB) * MIB;
        return Err(CannotFit {
            limit,
            fixed: FIXED_BYTES,
            heaps,
            log: LOG_BYTES,
            pages: pages_min + LOG_PAGE_CACHE_BYTES,
            values: values_min + extra,
            percent,
            needed: needed + MIB,
            fixed_caches,
        });
    }
    let (page_cache_bytes, values) = given.unwrap_or_else(|| {
        let rest = limit - headroom - base - extra;
        let pages = (rest / 2).clamp(PAGE_CACHE_MIN_BYTES, PAGE_CACHE_MAX_BYTES);
        (pages, (rest - pages).max(VALUE_CACHE_MIN_BYTES))
    });
    let (recent_bytes, query_cache_bytes) = shares(load, values);
    let value_cache_bytes = values + extra - recent_bytes - query_cache_bytes;
    Ok(MemoryPlan {
        limit_bytes: limit,
        fixed_bytes: FIXED_BYTES,
        heaps_bytes: heaps,
        log_bytes: LOG_BYTES,
        log_page_cache_bytes: LOG_PAGE_CACHE_BYTES,
        page_cache_bytes,
        value_cache_bytes,
        recent_bytes,
        query_cache_bytes,
        headroom_bytes: headroom,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_split_fits_and_the_minimum_it_names_is_one() {
        for mib in (16..4_096).step_by(7).chain([65_536]) {
            let limit = mib * MIB;
            for policy in [
                CachePolicy::default(),
                CachePolicy::Auto {
                    headroom_percent: 40,
                },
                CachePolicy::Fixed {
                    page_cache_bytes: 64 * MIB,
                    value_cache_bytes: 32 * MIB,
                    headroom_percent: 10,
                },
            ] {
                let given = Workload {
                    recent_bytes: Some(4 * MIB),
                    query_cache_bytes: Some(64 * MIB),
                    ..Workload::default()
                };
                for load in [Workload::default(), given] {
                    match split(limit, policy, load) {
                        Ok(plan) => {
                            let all = plan.planned_bytes() + plan.headroom_bytes;
                            assert!(all <= limit, "{mib} MiB");
                            let recent = load.recent_bytes.unwrap_or(plan.recent_bytes);
                            let results = load.query_cache_bytes;
                            assert_eq!(plan.recent_bytes, recent);
                            assert_eq!(
                                plan.query_cache_bytes,
                                results.unwrap_or(plan.query_cache_bytes)
                            );
                            assert!(plan.value_cache_bytes >= 5 * MIB, "{plan:?}");
                        }
                        Err(refusal) => {
                            assert!(refusal.needed > limit);
                            assert!(split(refusal.needed, policy, load).is_ok(), "{refusal}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_default_limit_fits() {
        let plan = split(512 * MIB, CachePolicy::default(), Workload::default()).unwrap();
        assert!(plan.page_cache_bytes >= 64 * MIB, "{plan:?}");
        let shares = plan.recent_bytes + plan.query_cache_bytes;
        assert!(plan.value_cache_bytes >= 4 * shares, "{plan:?}");
    }

    #[test]
    fn a_value_cache_that_is_given_is_that_large() {
        let policy = CachePolicy::Fixed {
            page_cache_bytes: 64 * MIB,
            value_cache_bytes: 32 * MIB,
            headroom_percent: 10,
        };
        let plan = split(512 * MIB, policy, Workload::default()).unwrap();
        assert_eq!(plan.value_cache_bytes, 32 * MIB);
        assert_eq!(plan.recent_bytes, 2 * MIB);
        assert_eq!(plan.query_cache_bytes, 4 * MIB);
    }
}
