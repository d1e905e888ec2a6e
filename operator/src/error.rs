//! Why a pass failed. A refusal of the spec and a reason to wait are not errors: they are
//! values (`validate::Refusal`, `plan::Hold`).

use flower_api::admin::AdminError;

/// A pass ended early; it runs again after a backoff.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused or did not answer.
    #[error("{action} {object}: {source}")]
    Kube {
        /// What was tried.
        action: &'static str,
        /// On which object.
        object: String,
        /// The cause.
        #[source]
        source: kube::Error,
    },
    /// A node refused or did not answer a mutating call.
    #[error("{action}: {source}")]
    Admin {
        /// What was tried.
        action: String,
        /// The cause.
        #[source]
        source: AdminError,
    },
    /// An object that the API server gave us lacks what every object has.
    #[error("the API server answered an object without {0}")]
    Incomplete(&'static str),
    /// A manifest could not be encoded.
    #[error("encoding a manifest: {0}")]
    Encode(#[from] serde_json::Error),
}

impl Error {
    /// Wraps an error of the API server.
    pub fn kube(
        action: &'static str,
        object: impl Into<String>,
    ) -> impl FnOnce(kube::Error) -> Self {
        let object = object.into();
        move |source| Self::Kube {
            action,
            object,
            source,
        }
    }

    /// Somebody else wrote in between: run again soon, nothing is wrong.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Kube { source: kube::Error::Api(status), .. } if status.is_conflict())
    }

    /// What the API server has against an object that it was sent, when sending it again will
    /// not help; for the condition `Accepted`.
    pub fn refusal(&self) -> Option<String> {
        match self {
            Self::Kube {
                action,
                object,
                source: kube::Error::Api(status),
            } if !matches!(status.code, 401 | 409 | 429 | 503 | 504) => Some(format!(
                "{action} {object} was refused by the API server: {}; mend the field of the spec that it comes from",
                status.message
            )),
            _ => None,
        }
    }

    /// A word for metrics and events.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Kube {
                source: kube::Error::Api(status),
                ..
            } => match status.code {
                401 | 403 => "Forbidden",
                409 => "Conflict",
                422 => "RefusedByApiServer",
                _ => "ApiServerError",
            },
            Self::Kube { .. } => "ApiServerUnreachable",
            Self::Admin { source, .. } => match source {
                AdminError::Unreachable { .. } => "NodeUnreachable",
                AdminError::Refused(_) => "NodeRefused",
                AdminError::Garbled { .. } => "NodeGarbled",
            },
            Self::Incomplete(_) => "IncompleteObject",
            Self::Encode(_) => "Encode",
        }
    }
}
