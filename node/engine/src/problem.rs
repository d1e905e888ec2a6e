//! Refusals of evaluations, as they go on the wire.

use flower_api::wire::{Problem, code};

use crate::{js::CallError, limits::Limits};

/// A budget of `limits` is used up: which one, its limit, and the setting to change.
pub(crate) fn budget(limits: &Limits, what: &str, limit: u64, setting: &'static str) -> CallError {
    let (setting, who) = (
        limits.named(setting),
        match limits.call_gas {
            None => "call",
            Some(_) => "build",
        },
    );
    let title = format!("The {who} used up a budget");
    let detail = format!("the {who} used up its {what} (limit {limit})");
    CallError::Refused(Problem::new(500, code::BUDGET, &title, detail).setting(setting))
}

/// A derived value ended at a limit, and with it the call that read it.
pub(crate) fn derived_limit(message: &str, setting: &str) -> CallError {
    let title = "A derived value used up a budget";
    CallError::Refused(Problem::new(500, code::BUDGET, title, message).setting(setting))
}

/// Something is larger than its limit in bytes.
pub(crate) fn too_large(what: &str, bytes: u64, limit: u64, setting: &str) -> CallError {
    let detail = format!("{what} has {bytes} bytes; the limit is {limit}");
    CallError::Refused(
        Problem::new(413, code::TOO_LARGE, "Something is too large", detail).setting(setting),
    )
}

/// A fault is kept in a receipt as a whole; no setting allows a larger one.
pub(crate) fn fault_too_large(what: &str, bytes: u64, limit: u64) -> CallError {
    let detail = format!(
        "{what} has {bytes} bytes of JSON; the limit is {limit}, because a fault is kept in a receipt"
    );
    CallError::Refused(Problem::new(
        413,
        code::TOO_LARGE,
        "Something is too large",
        detail,
    ))
}

/// The arguments do not fit what the function declares.
pub(crate) fn invalid_args(detail: impl Into<String>) -> Problem {
    Problem::new(
        400,
        code::INVALID_ARGS,
        "The arguments are not valid",
        detail,
    )
}

/// The application failed.
pub(crate) fn internal(detail: impl Into<String>) -> Problem {
    Problem::new(500, code::INTERNAL, "The function failed", detail)
}

/// A derived value that refuses errors has one.
pub(crate) fn derived_rejected(detail: impl Into<String>) -> CallError {
    let title = "A derived value refused the mutation";
    CallError::Refused(Problem::new(409, code::DERIVED_REJECTED, title, detail))
}

/// A derived value has an error in the build of a deployment.
pub(crate) fn derived_failed(detail: impl Into<String>) -> CallError {
    let title = "A derived value fails over the rows that exist";
    CallError::Refused(Problem::new(409, code::DERIVED_REJECTED, title, detail))
}

/// A build cannot follow the mutations that are made meanwhile.
pub(crate) fn too_many_wait(most: usize) -> CallError {
    let title = "The build cannot follow";
    let detail = format!(
        "more than {most} cells of the new derived values must be made again because of what was \
         written meanwhile: too many of them read the same row or range"
    );
    CallError::Refused(Problem::new(409, code::DERIVED_REJECTED, title, detail))
}

/// A derived value would depend on itself.
pub(crate) fn derived_cycle(path: &str) -> CallError {
    let title = "A derived value would depend on itself";
    let detail = format!("derived values read each other in a circle: {path}");
    CallError::Refused(Problem::new(409, code::DERIVED_CYCLE, title, detail))
}

/// A path of derived values is too long.
pub(crate) fn derived_depth(most: usize, path: &str) -> CallError {
    let title = "Derived values read each other too deep";
    let detail = format!("more than {most} derived values, each read by the one before: {path}");
    CallError::Refused(Problem::new(409, code::DERIVED_DEPTH, title, detail))
}
