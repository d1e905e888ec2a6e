//! Load for a cluster: clients that call everything an application has, remember what they were
//! told, and the checkers that judge it. The simulated world uses the same clients and checkers
//! over its own network; the program `flower-load` uses them against real nodes.

pub mod check;
pub mod history;
pub mod real;
pub mod target;
pub mod watcher;
pub mod workload;

/// The application that the clients call.
pub const APP: &str = include_str!("app.js");
