//! The database node: runs the effects that the engine decides.

pub mod auth;
pub mod cgroup;
pub mod config;
pub mod footprint;
pub mod host;
pub mod logging;
pub mod metrics;
