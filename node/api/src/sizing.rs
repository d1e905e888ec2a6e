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
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            workers: 3,
            heap_bytes: HEAP_BYTES,
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
    }
}

/// The limit is too small.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a memory limit of {} MiB cannot hold the node: program {} + JavaScript heaps {} + log {} + page caches {} + value cache {} + headroom {} = {} MiB; raise resources.limits.memory to at least {} MiB{}",
    limit / MIB, fixed / MIB, heaps / MIB, log / MIB, pages / MIB, values / MIB, headroom / MIB, needed / MIB,
    needed.div_ceil(MIB), if *fixed_caches { " or lower cache.pageCacheBytes and cache.valueCacheBytes" } else { "" }
)]
pub struct CannotFit {
    limit: u64,
    fixed: u64,
    heaps: u64,
    log: u64,
    pages: u64,
    values: u64,
    headroom: u64,
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
/// Smallest value cache.
const VALUE_CACHE_MIN_BYTES: u64 = 8 * MIB;

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
    let (pages_min, values_min) = given.unwrap_or((PAGE_CACHE_MIN_BYTES, VALUE_CACHE_MIN_BYTES));
    let used = base + pages_min + values_min;
    if used + headroom > limit {
        let needed = (used * 100).div_ceil(100 - percent).div_ceil(MIB) * MIB;
        return Err(CannotFit {
            limit,
            fixed: FIXED_BYTES,
            heaps,
            log: LOG_BYTES,
            pages: pages_min + LOG_PAGE_CACHE_BYTES,
            values: values_min,
            headroom,
            needed: needed + MIB,
            fixed_caches: given.is_some(),
        });
    }
    let (page_cache_bytes, value_cache_bytes) = given.unwrap_or_else(|| {
        let rest = limit - headroom - base;
        let pages = (rest / 2).clamp(PAGE_CACHE_MIN_BYTES, PAGE_CACHE_MAX_BYTES);
        (pages, (rest - pages).max(VALUE_CACHE_MIN_BYTES))
    });
    Ok(MemoryPlan {
        limit_bytes: limit,
        fixed_bytes: FIXED_BYTES,
        heaps_bytes: heaps,
        log_bytes: LOG_BYTES,
        log_page_cache_bytes: LOG_PAGE_CACHE_BYTES,
        page_cache_bytes,
        value_cache_bytes,
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
                match split(limit, policy, Workload::default()) {
                    Ok(plan) => assert!(
                        plan.planned_bytes() + plan.headroom_bytes <= limit,
                        "{mib} MiB"
                    ),
                    Err(refusal) => {
                        assert!(refusal.needed > limit);
                        assert!(
                            split(refusal.needed, policy, Workload::default()).is_ok(),
                            "{refusal}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_default_limit_fits() {
        let plan = split(512 * MIB, CachePolicy::default(), Workload::default()).unwrap();
        assert!(plan.page_cache_bytes >= 64 * MIB, "{plan:?}");
    }
}
