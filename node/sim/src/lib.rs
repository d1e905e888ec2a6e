//! The whole node in a simulated world: turmoil's network and clock, the store's simulated
//! disk, threads that run inline and take virtual time, the operator's planner over a little
//! of Kubernetes. The same node code as in production; nothing here is shipped.

#[cfg(not(tokio_unstable))]
compile_error!("build with --cfg tokio_unstable (.cargo/config.toml): tokio's choices are seeded");

pub mod admin;
pub mod audit;
pub mod campaign;
pub mod check;
pub mod cluster;
pub mod entropy;
pub mod env;
pub mod faults;
pub mod http;
pub mod kube;
pub mod kubelet;
pub mod lanes;
pub mod node;
pub mod operator;
pub mod plan;
pub mod process;
pub mod seeds;
pub mod watch;
pub mod world;

pub use flower_load::APP;
