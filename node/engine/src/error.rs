//! Errors of reading the state.

/// The state could not be read: the disk or the file failed. Never the caller's fault;
/// the node that sees it stops.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the state cannot be read: {0}")]
pub struct ViewError(pub String);
