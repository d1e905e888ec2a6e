//! The database node: runs the effects that the engine decides.
