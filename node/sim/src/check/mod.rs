//! What must hold of the nodes, one property a file. A checker takes what was seen and gives the
//! first violation in words; it decides nothing else. `Observer` looks at the nodes as the world
//! goes on; what clients were told is judged by `flower_load::check`.

pub mod derived;
pub mod leaders;
pub mod members;
pub mod observer;
pub mod states;
