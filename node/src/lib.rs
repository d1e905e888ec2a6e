//! The database node: runs the effects that the engine decides.

pub mod admin_client;
pub mod auth;
pub mod cgroup;
pub mod cli;
pub mod client;
pub mod config;
pub mod consensus;
pub mod deploy;
pub mod dev;
pub mod env;
pub mod footprint;
pub mod forward;
pub mod host;
pub mod http;
pub mod logging;
pub mod metrics;
pub mod node;
pub mod prepare;
pub mod read;
pub mod recent;
pub mod route;
pub mod run;
pub mod serve;
pub mod service;
pub mod workers;
pub mod write;
