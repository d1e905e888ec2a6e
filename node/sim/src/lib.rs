//! The whole node in a simulated world: turmoil's network and clock, the store's simulated
//! disk, threads that run inline and take virtual time. The same node code as in production;
//! nothing here is shipped.

pub mod lanes;
pub mod world;
