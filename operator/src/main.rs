//! The `flower-operator` command.

fn main() {}
