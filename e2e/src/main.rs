//! The `cargo e2e` command.

fn main() {}
