//! Consensus as a whole: the library's own suite over our storage, and groups of nodes over
//! loopback sockets.

mod fuzz;
mod group;
mod suite;
