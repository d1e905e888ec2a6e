//! The `flower-operator` command: parses arguments, sets up logs, calls the library.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use flower_operator::{crd, run};
use tracing_subscriber::EnvFilter;

/// Runs Flower clusters on Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "flower-operator", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the controller.
    Run {
        #[command(flatten)]
        args: run::RunArgs,
        /// Form of the log lines.
        #[arg(
            long,
            env = "FLOWER_OPERATOR_LOG_FORMAT",
            value_enum,
            default_value = "json"
        )]
        log_format: LogFormat,
    },
    /// Prints the custom resource definitions as YAML.
    Crds,
    /// Prints a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

fn main() -> ExitCode {
    match start(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            eprintln!("flower-operator: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Run { args, log_format } => {
            logs(log_format);
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()?
                .block_on(run::run(args))
        }
        Command::Crds => {
            print!("{}", crd::generate::yaml()?);
            Ok(())
        }
        Command::Completions { shell } => {
            clap_complete::generate(
                shell,
                &mut Cli::command(),
                "flower-operator",
                &mut std::io::stdout(),
            );
            Ok(())
        }
    }
}

fn logs(format: LogFormat) {
    let filter = EnvFilter::try_from_env("FLOWER_OPERATOR_LOG")
        .unwrap_or_else(|_| EnvFilter::new("info,kube_runtime=warn"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter);
    match format {
        LogFormat::Json => builder.json().flatten_event(true).init(),
        LogFormat::Text => builder.init(),
    }
}
