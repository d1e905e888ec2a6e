//! The client API on the wire: headers, read classes, errors (RFC 9457).

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::ids::Revision;

/// Header names, lower case.
pub mod header {
    /// Read class of a query.
    pub const READ: &str = "flower-read";
    /// How the read was served: class and lag.
    pub const READ_SERVED: &str = "flower-read-served";
    /// Revision that the answer reflects.
    pub const REVISION: &str = "flower-revision";
    /// Hash of the deployment that answered.
    pub const DEPLOYMENT: &str = "flower-deployment";
    /// Id of this request, in every log line about it.
    pub const REQUEST_ID: &str = "flower-request-id";
    /// `true` when the outcome is a stored receipt.
    pub const REPLAYED: &str = "flower-replayed";
    /// When the receipt may be forgotten (RFC 3339).
    pub const RECEIPT_EXPIRES: &str = "flower-receipt-expires";
    /// Idempotency key (1 to 255 printable ASCII characters).
    pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
    /// Set by a node that forwards to the leader: at most one hop.
    pub const FORWARDED_BY: &str = "flower-forwarded-by";
}

/// How fresh a read must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadClass {
    /// Newest applied snapshot of the replica that is asked.
    #[default]
    Local,
    /// A snapshot at or after a revision that the client has seen.
    Session {
        /// The revision.
        min: Revision,
    },
    /// A snapshot that holds everything committed some time ago, and anything of what came since.
    Bounded {
        /// How long ago at most, milliseconds.
        ms: u64,
    },
    /// Linearizable: reflects every mutation acknowledged before the read began.
    Fresh,
}

impl fmt::Display for ReadClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Session { min } => write!(f, "session; min={min}"),
            Self::Bounded { ms } => write!(f, "bounded; ms={ms}"),
            Self::Fresh => f.write_str("fresh"),
        }
    }
}

impl FromStr for ReadClass {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(';').map(str::trim);
        let class = parts.next().unwrap_or_default();
        let params: Vec<&str> = parts.collect();
        match (class, params.as_slice()) {
            ("local", []) => Ok(Self::Local),
            ("fresh", []) => Ok(Self::Fresh),
            ("session", []) => Ok(Self::Session { min: Revision(0) }),
            ("session", [param]) => param
                .strip_prefix("min=")
                .and_then(|min| min.parse().ok())
                .map(|min| Self::Session { min: Revision(min) })
                .ok_or_else(|| format!("'{param}' is not 'min=<revision>'")),
            ("bounded", [param]) => param
                .strip_prefix("ms=")
                .and_then(|ms| ms.parse().ok())
                .map(|ms| Self::Bounded { ms })
                .ok_or_else(|| format!("'{param}' is not 'ms=<milliseconds>'")),
            _ => Err(format!(
                "'{}' is not a read class: use 'local', 'session; min=<revision>', \
                 'bounded; ms=<milliseconds>' or 'fresh'",
                text.chars().take(64).collect::<String>()
            )),
        }
    }
}

/// What is known of a failed call's effects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Nothing happened.
    NotApplied,
    /// It may have happened: retry with the same key.
    Unknown,
}

/// Codes of refusals in the client API, in `Problem::code`. A declared fault has the code
/// `fault:<name>`.
pub mod code {
    #![allow(missing_docs)]
    pub const INVALID_ARGS: &str = "invalid-args";
    pub const MALFORMED: &str = "malformed";
    pub const UNAUTHENTICATED: &str = "unauthenticated";
    pub const FORBIDDEN: &str = "forbidden";
    pub const UNKNOWN_FUNCTION: &str = "unknown-function";
    pub const UNKNOWN_PARTITION: &str = "unknown-partition";
    pub const UNKNOWN_RECEIPT: &str = "unknown-receipt";
    pub const NOT_FOUND: &str = "not-found";
    pub const METHOD_NOT_ALLOWED: &str = "method-not-allowed";
    pub const NO_APPLICATION: &str = "no-application";
    pub const NOT_FORMED: &str = "not-formed";
    pub const IMPORTING: &str = "importing";
    pub const IN_FLIGHT: &str = "in-flight";
    pub const KEY_EXPIRED: &str = "key-expired";
    pub const KEY_REUSED: &str = "key-reused";
    pub const TOO_LARGE: &str = "too-large";
    pub const OVERLOADED: &str = "overloaded";
    pub const BUDGET: &str = "budget";
    pub const INTERNAL: &str = "internal";
    pub const NO_QUORUM: &str = "no-quorum";
    pub const NOT_READY: &str = "not-ready";
    pub const STORAGE_FULL: &str = "storage-full";
    pub const TIMEOUT: &str = "timeout";
    pub const DERIVED_REJECTED: &str = "derived-rejected";
    pub const DERIVED_CYCLE: &str = "derived-cycle";
    pub const DERIVED_DEPTH: &str = "derived-depth";
    pub const TOO_STALE: &str = "too-stale";
    pub const WATCH_GONE: &str = "watch-gone";
}

/// An error on the wire: `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// A URI that names the kind: `https://flowerdb.dev/problems/<code>`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The same for every problem of this kind.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// What happened here, to which object, and what to do.
    pub detail: String,
    /// Stable code for programs.
    pub code: String,
    /// Id of the request.
    #[serde(default)]
    pub request_id: String,
    /// Whether the same call may succeed later.
    pub retryable: bool,
    /// What is known of the effects.
    pub outcome: Outcome,
    /// Revision at which it was judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<Revision>,
    /// Where in the arguments (JSON pointers) and what.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// The setting to change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setting: Option<String>,
    /// Data of a declared fault; of `building`, the deployment that was begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<serde_json::Value>,
}

/// One thing wrong with the arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldError {
    /// JSON pointer into the arguments.
    pub pointer: String,
    /// What is wrong.
    pub detail: String,
}

impl Problem {
    /// A problem with `outcome: not-applied` and no retry; refine with the methods below.
    pub fn new(status: u16, code: &str, title: &str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("https://flowerdb.dev/problems/{code}"),
            title: title.to_owned(),
            status,
            detail: detail.into(),
            code: code.to_owned(),
            request_id: String::new(),
            retryable: false,
            outcome: Outcome::NotApplied,
            revision: None,
            errors: Vec::new(),
            setting: None,
            data: None,
        }
    }
    /// The same call may succeed later.
    #[must_use]
    pub fn retryable(mut self) -> Self {
        self.retryable = true;
        self
    }
    /// The effects are unknown.
    #[must_use]
    pub fn unknown(mut self) -> Self {
        self.outcome = Outcome::Unknown;
        self.retryable = true;
        self
    }
    /// Names the setting to change.
    #[must_use]
    pub fn setting(mut self, name: &str) -> Self {
        self.setting = Some(name.to_owned());
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.title, self.code, self.detail)?;
        if let Some(setting) = &self.setting {
            write!(f, " [setting: {setting}]")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_classes_round_trip_and_nonsense_is_refused() {
        for class in [
            ReadClass::Local,
            ReadClass::Fresh,
            ReadClass::Session { min: Revision(7) },
            ReadClass::Bounded { ms: 500 },
        ] {
            assert_eq!(class.to_string().parse::<ReadClass>().unwrap(), class);
        }
        for bad in [
            "",
            "fresh; x",
            "session; min=",
            "session; min=-1",
            "Local",
            "bounded",
            "bounded; ms=",
            "bounded; ms=-5",
            "bounded; min=5",
        ] {
            assert!(bad.parse::<ReadClass>().is_err(), "{bad}");
        }
    }
}
