//! Around an evaluation: finding the function, checking arguments and result, and turning
//! what a handler threw into what the caller sees. Runs no JavaScript.

use flower_api::{
    limits::RECEIPT_RESULT_BYTES,
    manifest::{Function, FunctionKind, Manifest},
    wire::{Problem, code},
};
use serde::Deserialize;
use serde_json::Value;

use super::{CallError, engine::Outcome, host};
use crate::{
    derived::DERIVED_ERROR,
    limits::{Limits, setting},
    problem,
    types::{self, Errors},
};

/// Characters of a thrown error that are kept.
const LOG_CHARS: usize = 4_000;

fn kind_name(kind: FunctionKind) -> &'static str {
    match kind {
        FunctionKind::Query => "query",
        FunctionKind::Mutation => "mutation",
    }
}

/// The function that is called.
pub(super) fn find<'a>(
    manifest: &'a Manifest,
    kind: FunctionKind,
    name: &str,
) -> Result<&'a Function, CallError> {
    let shown: String = name.chars().take(64).collect();
    let detail = match manifest.functions.get(name) {
        Some(function) if function.kind == kind => return Ok(function),
        Some(function) => {
            let (is, asked) = (kind_name(function.kind), kind_name(kind));
            format!("'{shown}' is a {is}, not a {asked}")
        }
        None => {
            let same = manifest.functions.iter().filter(|(_, f)| f.kind == kind);
            let known: Vec<&str> = same.map(|(n, _)| n.as_str()).take(20).collect();
            format!(
                "the application has no {} '{shown}'; it has: {}",
                kind_name(kind),
                if known.is_empty() {
                    "none".into()
                } else {
                    known.join(", ")
                }
            )
        }
    };
    Err(CallError::Refused(Problem::new(
        404,
        code::UNKNOWN_FUNCTION,
        "There is no such function",
        detail,
    )))
}

/// Checks the size, form and types of arguments.
pub(super) fn check_args(
    name: &str,
    function: &Function,
    args: &str,
    limits: &Limits,
) -> Result<(), CallError> {
    let bytes = args.len() as u64;
    if bytes > limits.args_bytes {
        let what = format!("the arguments of {name}");
        return Err(problem::too_large(
            &what,
            bytes,
            limits.args_bytes,
            setting::ARGS,
        ));
    }
    let refused = |detail: String| CallError::Refused(problem::invalid_args(detail));
    let value: Value = serde_json::from_str(args)
        .map_err(|e| refused(format!("the arguments of {name} are not JSON: {e}")))?;
    if !value.is_object() {
        return Err(refused(format!(
            "the arguments of {name} must be a JSON object"
        )));
    }
    let Some(declared) = &function.args else {
        return Ok(());
    };
    let mut errors = Errors::default();
    types::check(declared, &value, "", &mut errors);
    if errors.0.is_empty() {
        return Ok(());
    }
    let detail = format!("the arguments of {name} do not fit: {}", errors.text());
    let mut problem = problem::invalid_args(detail);
    problem.errors = errors.0;
    Err(CallError::Refused(problem))
}

#[derive(Deserialize)]
struct ThrownFault {
    name: String,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    data: Option<Value>,
}

#[derive(Deserialize, Default)]
struct ThrownError {
    #[serde(default)]
    name: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    stack: String,
}

/// A call without a result: what the caller is told, and what only the log is.
pub(super) struct Failure {
    pub error: CallError,
    pub log: Option<String>,
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self { error, log: None }
    }
}

/// The result of a call, or what the caller is told.
pub(super) fn result(
    name: &str,
    function: &Function,
    outcome: Outcome,
    bad_cursor: Option<String>,
    limits: &Limits,
) -> Result<String, Failure> {
    match outcome {
        Outcome::Result(json) => checked_result(name, function, json, limits),
        Outcome::Fault(json) => Err(fault(name, function, &json, limits)),
        Outcome::Error(json) => Err(error(name, &json, bad_cursor)),
        Outcome::Broken(why) => Err(broken(name, why)),
    }
}

fn checked_result(
    name: &str,
    function: &Function,
    json: String,
    limits: &Limits,
) -> Result<String, Failure> {
    let bytes = json.len() as u64;
    if bytes > limits.result_bytes {
        let what = format!("the result of {name}");
        let over = problem::too_large(&what, bytes, limits.result_bytes, setting::RESULT);
        return Err(over.into());
    }
    let Some(declared) = &function.returns else {
        return Ok(json);
    };
    let value: Value = serde_json::from_str(&json).map_err(|e| broken(name, e.to_string()))?;
    let mut errors = Errors::default();
    types::check(declared, &value, "", &mut errors);
    if errors.0.is_empty() {
        return Ok(json);
    }
    let why = format!("it returned what it does not declare: {}", errors.text());
    Err(broken(name, why))
}

fn fault(name: &str, function: &Function, json: &str, limits: &Limits) -> Failure {
    let Ok(thrown) = serde_json::from_str::<ThrownFault>(json) else {
        return broken(name, "it threw a malformed fault");
    };
    let Some(&status) = function.errors.get(&thrown.name) else {
        let fault: String = thrown.name.chars().take(64).collect();
        let why = format!("it threw the fault '{fault}', which its errors do not declare");
        return broken(name, why);
    };
    let bytes = json.len() as u64;
    let what = || format!("the fault '{}' of {name}", thrown.name);
    if bytes > limits.result_bytes {
        return problem::too_large(&what(), bytes, limits.result_bytes, setting::RESULT).into();
    }
    if bytes > RECEIPT_RESULT_BYTES {
        return problem::fault_too_large(&what(), bytes, RECEIPT_RESULT_BYTES).into();
    }
    let detail = thrown.message.unwrap_or_else(|| thrown.name.clone());
    let title = "The application refused the call";
    let mut problem = Problem::new(status, &format!("fault:{}", thrown.name), title, detail);
    problem.data = thrown.data;
    CallError::Fault(problem).into()
}

fn error(name: &str, json: &str, bad_cursor: Option<String>) -> Failure {
    let thrown: ThrownError = serde_json::from_str(json).unwrap_or_default();
    if let Some(why) = bad_cursor.filter(|why| *why == thrown.message) {
        return host::bad_cursor(&why).into();
    }
    if let Some(over) = derived_limit(&thrown) {
        return over.into();
    }
    let text = format!("{}: {}\n{}", thrown.name, thrown.message, thrown.stack);
    broken(name, text.chars().take(LOG_CHARS).collect::<String>())
}

/// A derived value that ended at a limit, and whose error nobody caught: as with a limit of the
/// call, the caller is told which, of which cell, and the setting to change.
fn derived_limit(thrown: &ThrownError) -> Option<CallError> {
    if thrown.name != DERIVED_ERROR {
        return None;
    }
    let named = setting::ALL
        .iter()
        .find(|one| thrown.message.ends_with(&format!("{one})")));
    named.map(|one| problem::derived_limit(&thrown.message, one))
}

/// The function failed, and nothing was written. Why is for the log, not for the caller.
pub(super) fn broken(name: &str, why: impl Into<String>) -> Failure {
    let detail = format!("{name} failed; the node's log says why, under this request's id");
    Failure {
        error: CallError::Refused(problem::internal(detail)),
        log: Some(why.into()),
    }
}
