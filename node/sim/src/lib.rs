//! The whole node in a simulated world.
