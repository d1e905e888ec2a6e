//! The `flower` command.

use std::process::ExitCode;

/// Smaller and steadier than the system's under a node's mix of sizes.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    flower_node::cli::run()
}
