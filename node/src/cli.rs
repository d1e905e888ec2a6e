//! The commands of `flower`: what is typed, what is printed, and what the exit code means.
//! An edge of the program like `main.rs`: it may use the system's clock and files. It holds
//! no rule of the database.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::config::SETTINGS;

mod bench;
pub(crate) mod bundle;
mod call;
mod check;
pub(crate) mod deploy;
mod explain;
mod export;
mod failure;
mod footprint;
mod import;
pub(crate) mod print;
mod progress;
mod recover;
mod status;
mod target;
mod watch;

pub use failure::{Failure, exit};
use target::{AdminTarget, ClientTarget};

const EXIT_CODES: &str = "\
Exit codes:
  0   done
  1   failed here: a file that cannot be read, a setting that cannot be
  2   the command line was not understood
  3   refused by the node, or the function ended with a fault
  4   the node cannot be reached or does not answer; a `call` was not sent
  5   nobody knows whether it happened: run it again with the same --key
  141 whoever read the output has gone
  70  `serve` ended by an error that it cannot go on after";

/// Flower, a replicated application database: runs its nodes and talks to them.
#[derive(Debug, Parser)]
#[command(name = "flower", version, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Cli {
    /// How results are printed.
    #[arg(long, global = true, value_enum, default_value = "text")]
    output: Output,
    #[command(subcommand)]
    command: Command,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Text,
    /// One JSON document, for scripts.
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs a node of a cluster. Every flag is also a variable of the environment.
    Serve,
    /// Runs an application on this computer alone, and again whenever its file changes.
    Dev(DevArgs),
    /// Looks into a bundle before it is deployed: what it declares, what it would change.
    Check(check::CheckArgs),
    /// Makes a bundle the application of a cluster.
    Deploy(deploy::DeployArgs),
    /// Calls a mutation, exactly once: tried again under the same key until its outcome is known.
    Call(call::CallArgs),
    /// Calls a query.
    Query(call::QueryArgs),
    /// Shows a query's result, and again whenever it changes, until interrupted.
    Watch(watch::WatchArgs),
    /// Shows where a derived value comes from, or what a query reads and uses.
    #[command(subcommand)]
    Explain(explain::Explain),
    /// Writes rows, receipts and application of a database into a file, all of one revision.
    Export(export::ExportArgs),
    /// Brings an export into a database that is empty; goes on where it broke off.
    Import(import::ImportArgs),
    /// Shows the members of a cluster, their roles and how far each is.
    Status(StatusArgs),
    /// Shows what a node takes of memory and disk.
    Footprint(StatusArgs),
    /// Hands leadership over and turns the node unready, so that it may be stopped.
    PrepareStop(StatusArgs),
    /// Makes what one node holds the whole group, when its quorum is lost for good.
    ///
    /// Without --accept-loss-after it only shows what would be kept and lost. Run it on the most
    /// advanced of the nodes that are left, and only when the others cannot come back: what they
    /// alone held is lost, and their data never takes part again.
    Recover(recover::RecoverArgs),
    /// Measures memory, disk and time with the program `flower-bench`, which is not shipped.
    Bench(bench::BenchArgs),
    /// Prints completions for a shell.
    Completions {
        /// The shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

/// What `flower dev` is given.
#[derive(Debug, Clone, Args)]
pub struct DevArgs {
    /// The application: one JavaScript module.
    pub app: PathBuf,
    /// Folder that keeps the data; a temporary one, removed at the end, when not given.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Port of the client API; the two above it are the peers' and the admin API's.
    #[arg(long, value_name = "PORT", default_value_t = flower_api::ports::CLIENT)]
    pub port: u16,
}

#[derive(Debug, Args)]
struct StatusArgs {
    #[command(flatten)]
    at: AdminTarget,
}

/// The whole command line, `serve`'s flags made from the table of settings.
pub fn command() -> clap::Command {
    Cli::command().mut_subcommand("serve", |serve| {
        serve.args(SETTINGS.iter().map(crate::config::Setting::arg))
    })
}

/// Runs what was typed.
pub fn run() -> ExitCode {
    let matches = command().get_matches();
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let output = cli.output;
    let done = match cli.command {
        Command::Serve => {
            let serve = matches.subcommand_matches("serve");
            return crate::serve::run(serve.unwrap_or(&matches));
        }
        Command::Dev(args) => return crate::dev::run(args, output == Output::Json),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut command(), "flower", &mut text);
            print::line(String::from_utf8_lossy(&text).trim_end());
            Ok(())
        }
        Command::Check(args) => block_on(check::check(args, output)),
        Command::Deploy(args) => block_on(deploy::deploy(args, output)),
        Command::Call(args) => block_on(call::call(args, output)),
        Command::Query(args) => block_on(call::query(args, output)),
        Command::Watch(args) => block_on(watch::watch(args, output)),
        Command::Bench(args) => bench::bench(args, output),
        Command::Explain(what) => block_on(explain::explain(what, output)),
        Command::Export(args) => block_on(export::export(args, output)),
        Command::Import(args) => block_on(import::import(args, output)),
        Command::Status(args) => block_on(status::status(args.at, output)),
        Command::Footprint(args) => block_on(footprint::footprint(args.at, output)),
        Command::Recover(args) => block_on(recover::recover(args, output)),
        Command::PrepareStop(args) => block_on(deploy::prepare_stop(args.at, output)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(output),
    }
}

fn block_on(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime
        .map_err(|e| Failure::here(format!("no runtime: {e}")))?
        .block_on(work)
}

#[cfg(test)]
mod tests;
