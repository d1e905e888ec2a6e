//! The controller for FlowerCluster resources: a library with a thin binary. `controller` has
//! the pass, phase by phase; decisions are pure and live in `controller::{validate, plan,
//! build}`; the process around them is in `run`.

pub mod admin;
pub mod amount;
pub mod backoff;
pub mod conditions;
pub mod context;
pub mod controller;
pub mod crd;
pub mod error;
pub mod events;
pub mod failpoint;
pub mod labels;
pub mod metrics;
pub mod names;
pub mod run;
pub mod web;
