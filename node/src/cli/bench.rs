//! `flower bench`: hands over to the program `flower-bench`, which counts the heap with an
//! allocator of its own and is not part of what is shipped.

use std::{ffi::OsString, os::unix::process::CommandExt, process::Command};

use clap::Args;

use super::{Failure, Output};

const PROGRAM: &str = "flower-bench";

#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    /// What to measure and how, as in `footprint --orders 10000`; `help` lists it.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        value_name = "ARGS"
    )]
    args: Vec<OsString>,
}

/// Becomes the other program; returns only when that cannot be.
pub(super) fn bench(args: BenchArgs, output: Output) -> Result<(), Failure> {
    let beside = std::env::current_exe().map(|own| own.with_file_name(PROGRAM));
    let program = beside.map_err(|e| Failure::here(format!("its own file is not known: {e}")))?;
    if !program.exists() {
        return Err(Failure::here(format!(
            "{} is not there: it counts memory in a way of its own and is not shipped. In a copy of \
             the sources: cargo build --release --workspace --bin flower --bin {PROGRAM}, then \
             target/release/flower bench",
            program.display()
        )));
    }
    let mut command = Command::new(&program);
    command.args(&args.args);
    let told = args
        .args
        .iter()
        .any(|arg| arg.to_string_lossy().starts_with("--output"));
    if output == Output::Json && !told {
        command.args(["--output", "json"]);
    }
    let error = command.exec();
    let program = program.display();
    Err(Failure::here(format!("{program} cannot be run: {error}")))
}
