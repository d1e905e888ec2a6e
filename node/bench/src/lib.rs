//! The footprint of orders: seeds them through the engine that serves, into the store that
//! serves, and measures bytes, heap and time. Nothing here is part of a node.

pub mod alloc;
pub mod footprint;
mod machine;
mod ops;
pub mod page;
mod reads;
pub mod run;
mod sizes;
mod world;
