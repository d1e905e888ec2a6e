//! Resources and caches of a spec, checked. Pure.

use std::collections::BTreeMap;

use flower_api::sizing::CachePolicy;
use k8s_openapi::api::core::v1::ResourceRequirements;

use super::{Refusal, refuse};
use crate::{
    amount::Amount,
    conditions::Reason,
    crd::{Cache, CacheMode, Resources},
};

/// Memory request and limit when the spec gives none.
const DEFAULT_MEMORY: &str = "512Mi";

/// The container's resources with memory filled in, and the memory limit in bytes.
pub(super) fn resources(given: &Resources) -> Result<(ResourceRequirements, u64), Refusal> {
    let mut requests = given.requests.clone();
    let mut limits = given.limits.clone();
    for (field, amounts) in [("requests", &requests), ("limits", &limits)] {
        for (resource, amount) in amounts {
            if amount.milli().is_none() {
                return refuse(
                    Reason::QuantityInvalid,
                    format!(
                        "spec.resources.{field}.{resource} is '{amount}', which is no quantity such as 512Mi or 0.5"
                    ),
                );
            }
        }
    }
    let limit = limits
        .entry("memory".to_owned())
        .or_insert_with(|| {
            requests
                .get("memory")
                .cloned()
                .unwrap_or(DEFAULT_MEMORY.into())
        })
        .clone();
    requests
        .entry("memory".to_owned())
        .or_insert_with(|| limit.clone());
    for (resource, request) in &requests {
        if let Some(limit) = limits.get(resource)
            && request.milli() > limit.milli()
        {
            return refuse(
                Reason::QuantityInvalid,
                format!(
                    "spec.resources.requests.{resource} is {request}, above its limit of {limit}: lower the request or raise the limit"
                ),
            );
        }
    }
    let Some(bytes) = limit.bytes() else {
        return refuse(
            Reason::QuantityInvalid,
            format!("spec.resources.limits.memory is '{limit}', more than can be counted in bytes"),
        );
    };
    let typed = |amounts: BTreeMap<String, Amount>| {
        amounts
            .into_iter()
            .map(|(resource, amount)| (resource, amount.quantity()))
            .collect()
    };
    let requirements = ResourceRequirements {
        requests: Some(typed(requests)),
        limits: Some(typed(limits)),
        ..ResourceRequirements::default()
    };
    Ok((requirements, bytes))
}

/// How the caches are sized.
pub(super) fn cache_policy(cache: &Cache) -> Result<CachePolicy, Refusal> {
    let Some(headroom_percent) = u8::try_from(cache.headroom_percent)
        .ok()
        .filter(|percent| *percent <= 80)
    else {
        return refuse(
            Reason::CacheInvalid,
            format!(
                "spec.cache.headroomPercent is {}: it must be between 0 and 80",
                cache.headroom_percent
            ),
        );
    };
    match cache.mode {
        CacheMode::Auto => {
            if cache.page_cache_bytes.is_some() || cache.value_cache_bytes.is_some() {
                return refuse(
                    Reason::CacheInvalid,
                    "spec.cache.mode is Auto, which sizes the caches from resources.limits.memory: set it to Fixed to give pageCacheBytes and valueCacheBytes",
                );
            }
            Ok(CachePolicy::Auto { headroom_percent })
        }
        CacheMode::Fixed => {
            let bytes =
                |field: &str, amount: &Option<Amount>| match amount.as_ref().map(Amount::bytes) {
                    Some(Some(bytes)) => Ok(bytes),
                    Some(None) => refuse(
                        Reason::QuantityInvalid,
                        format!("spec.cache.{field} is no quantity such as 64Mi"),
                    ),
                    None => refuse(
                        Reason::CacheInvalid,
                        format!("spec.cache.mode is Fixed: set spec.cache.{field} too"),
                    ),
                };
            Ok(CachePolicy::Fixed {
                page_cache_bytes: bytes("pageCacheBytes", &cache.page_cache_bytes)?,
                value_cache_bytes: bytes("valueCacheBytes", &cache.value_cache_bytes)?,
                headroom_percent,
            })
        }
    }
}
