//! Bodies: read whole, within their limit and the request's time.

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use flower_api::wire::{Problem, code};
use http_body::Body as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::problem::{malformed, too_large};
use crate::env::{Env, Mono};

/// A body's bounds, and the words for them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    pub(super) what: &'static str,
    pub(super) bytes: u64,
    pub(super) setting: &'static str,
}

/// Memory that bodies of calls may take together.
const BODIES_KIB: u32 = 64 * 1024;

/// The memory for bodies: a crowd of large calls waits for each other instead of taking the
/// node's whole memory.
pub(super) struct Budget(Arc<Semaphore>);

impl Default for Budget {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(BODIES_KIB as usize)))
    }
}

/// A part of the budget, given back when the call is done.
pub(super) struct Share(#[allow(dead_code)] Option<OwnedSemaphorePermit>);

impl Budget {
    /// Reads a body once there is room for it: for what its head announces, else for the most
    /// that it may have.
    ///
    /// # Errors
    /// As [`read`]; `overloaded` when there is no room before the deadline.
    pub(super) async fn read(
        &self,
        env: &Env,
        body: Body,
        bound: Bound,
        deadline: Mono,
    ) -> Result<(Bytes, Share), Box<Problem>> {
        refuse_announced(&body, &bound)?;
        let announced = body.size_hint().upper().unwrap_or(bound.bytes);
        let kib = announced.min(bound.bytes).div_ceil(1024).max(1);
        let kib = u32::try_from(kib).unwrap_or(BODIES_KIB).min(BODIES_KIB);
        let room = self.0.clone().acquire_many_owned(kib);
        let Some(permit) = env.until(deadline, room).await else {
            return Err(Box::new(
                Problem::new(
                    429,
                    code::OVERLOADED,
                    "Overloaded",
                    "too many large calls are under way; retry in a moment",
                )
                .retryable(),
            ));
        };
        let bytes = read(env, body, bound, deadline).await?;
        Ok((bytes, Share(permit.ok())))
    }
}

/// The whole body.
///
/// # Errors
/// `too-large`, `timeout`, `malformed` when it breaks off.
pub(super) async fn read(
    env: &Env,
    body: Body,
    bound: Bound,
    deadline: Mono,
) -> Result<Bytes, Box<Problem>> {
    refuse_announced(&body, &bound)?;
    let limit = usize::try_from(bound.bytes).unwrap_or(usize::MAX);
    let whole = Limited::new(body, limit).collect();
    match env.until(deadline, whole).await {
        Some(Ok(body)) => Ok(body.to_bytes()),
        Some(Err(error)) if error.is::<LengthLimitError>() => {
            Err(too_large(bound.what, bound.bytes, bound.setting))
        }
        Some(Err(_)) => Err(malformed("the body broke off")),
        None => Err(Box::new(
            Problem::new(
                504,
                code::TIMEOUT,
                "Timeout",
                "the body did not arrive before the deadline; nothing happened",
            )
            .retryable(),
        )),
    }
}

/// A body whose head announces too much is not waited for.
fn refuse_announced(body: &Body, bound: &Bound) -> Result<(), Box<Problem>> {
    match body.size_hint().lower() > bound.bytes {
        true => Err(too_large(bound.what, bound.bytes, bound.setting)),
        false => Ok(()),
    }
}

/// Arguments: JSON text, `{}` when there is none.
///
/// # Errors
/// `malformed`.
pub(super) fn arguments(body: &[u8]) -> Result<String, Box<Problem>> {
    if body.trim_ascii().is_empty() {
        return Ok("{}".to_owned());
    }
    let text = std::str::from_utf8(body).map_err(|_| malformed("the body is not UTF-8"))?;
    serde_json::from_str::<serde::de::IgnoredAny>(text)
        .map_err(|e| malformed(format!("the arguments are not JSON: {e}")))?;
    Ok(text.to_owned())
}

/// A JSON body of the admin API.
///
/// # Errors
/// `malformed`, with the field that is wrong.
pub(super) fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Box<Problem>> {
    serde_json::from_slice(body).map_err(|e| malformed(format!("the body is wrong: {e}")))
}
