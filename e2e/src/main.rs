//! The `cargo e2e` command: a real Kubernetes on this machine, and the tests on it.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};

use crate::paths::Paths;

mod agent;
mod charts;
mod cluster;
mod collect;
mod deploy;
mod down;
mod flower;
mod host;
mod http;
mod image;
mod kube;
mod leftovers;
mod net;
mod paths;
mod process;
mod programs;
mod progress;
mod report;
mod run;
mod status;
mod steady;
mod suite;
mod tests;
mod workload;

/// A real Kubernetes on this machine, and the tests on it.
#[derive(Parser)]
#[command(name = "cargo e2e", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Bring up Kubernetes, the operator and the example; goes on where an interrupted one stopped
    Up {
        /// Stop once Kubernetes itself is up
        #[arg(long)]
        only_kubernetes: bool,
    },
    /// Remove everything that `up` made
    Down,
    /// Show what runs, and how it is
    Status,
    /// Build the container images into `target/images`, and bring them into the nodes when there are any
    Images,
    /// Run every check and the cluster tests; brings the cluster up when it is not
    Test {
        /// Also the cluster tests that CI leaves out
        #[arg(long)]
        all: bool,
        /// List the cluster tests and stop
        #[arg(long)]
        list: bool,
        /// Only checks and tests whose name contains one of these
        filter: Vec<String>,
    },
    /// kubectl on this cluster
    Kubectl {
        /// What kubectl is to do
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// helm on this cluster
    Helm {
        /// What helm is to do
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// The background part, started by `up`
    #[command(hide = true)]
    Agent,
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    match execute(cli.command).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn execute(command: Command) -> Result<ExitCode> {
    let paths = Paths::from_env();
    match command {
        Command::Up { only_kubernetes } => up(&paths, only_kubernetes).await?,
        Command::Down => {
            progress::heading("Taking everything down");
            down::down(&paths).await?;
        }
        Command::Status => status::show(&paths).await?,
        Command::Images => {
            let archives = image::build_all().await?;
            if status::is_up(&paths) {
                deploy::import(&paths, &archives).await?;
            }
            for archive in archives {
                println!("{}", archive.display());
            }
        }
        Command::Test { list: true, .. } => {
            for test in tests::ALL {
                println!(
                    "{:<26}{:<8}{}",
                    test.name,
                    if test.in_ci { "CI" } else { "--all" },
                    test.what
                );
            }
        }
        Command::Test { all, filter, .. } => {
            let passed = suite::run(&paths, &suite::Options { all, filter }).await?;
            return Ok(if passed {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            });
        }
        Command::Kubectl { args } => return pass_through(&paths, "kubectl", &args),
        Command::Helm { args } => return pass_through(&paths, "helm", &args),
        Command::Agent => agent::run(&paths).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn up(paths: &Paths, only_kubernetes: bool) -> Result<()> {
    let begun = std::time::Instant::now();
    progress::heading(&format!(
        "Bringing up Kubernetes in {}",
        paths.state().display()
    ));
    host::check(paths)?;
    host::packages().await?;
    programs::build_missing().await?;
    kube::up(paths).await?;
    let mut example = false;
    if !only_kubernetes {
        progress::heading("Installing Flower");
        example = deploy::up(paths).await?;
    }
    progress::heading(&format!("Up after {}", progress::seconds(begun.elapsed())));
    deploy::try_next(paths, example)
}

/// Becomes another program, with this cluster's kubeconfig.
fn pass_through(paths: &Paths, program: &str, args: &[String]) -> Result<ExitCode> {
    let config = paths.kubeconfig("admin");
    ensure!(
        config.exists(),
        "there is no cluster; `cargo e2e up` makes one"
    );
    let mut command = std::process::Command::new(programs::path(program)?);
    command.args(args).env("KUBECONFIG", config);
    Err(std::os::unix::process::CommandExt::exec(&mut command).into())
}

/// Bytes in hexadecimal.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
