//! The database node: runs the effects that the engine decides.

pub mod auth;
pub mod cgroup;
pub mod config;
pub mod consensus;
pub mod env;
pub mod footprint;
pub mod host;
pub mod logging;
pub mod metrics;
pub mod node;
