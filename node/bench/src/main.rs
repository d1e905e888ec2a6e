//! The program of the benchmark: `flower bench` runs it.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand, ValueEnum};
use flower_bench::{alloc::Counting, footprint, page, run::Run};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Measures what Flower takes of memory, disk and time.
#[derive(Parser)]
#[command(name = "flower-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Seeds orders in a temporary folder, and measures bytes, heap, starts, reads and mutations
    Footprint {
        /// How many orders; 300,000 take about two minutes, 1.5 GB of disk and 4 GB of memory
        #[arg(long, value_name = "N", default_value_t = 10_000)]
        orders: u64,
        /// How the result is printed
        #[arg(long, value_enum, default_value = "text")]
        output: Output,
        /// Folder for the temporary one
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// Makes the page from runs that were kept as JSON
    Page {
        /// The runs
        runs: Vec<PathBuf>,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    /// A page in Markdown
    Text,
    /// The run as JSON
    Json,
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Footprint {
            orders,
            output,
            dir,
        } => {
            let dir = match dir {
                Some(dir) => tempfile::tempdir_in(dir)?,
                None => tempfile::tempdir()?,
            };
            let say = |what: &str| eprintln!("{what}");
            let run = footprint::footprint(dir.path(), orders.max(1), &say)?;
            match output {
                Output::Text => println!("{}", page::page(&[run])),
                Output::Json => println!("{}", serde_json::to_string_pretty(&run)?),
            }
        }
        Command::Page { runs } => {
            let read = |path: PathBuf| -> Result<Run> {
                let text = std::fs::read_to_string(&path);
                let text = text.with_context(|| path.display().to_string())?;
                serde_json::from_str(&text).with_context(|| path.display().to_string())
            };
            let mut runs = runs.into_iter().map(read).collect::<Result<Vec<_>>>()?;
            runs.sort_by_key(|run| run.orders);
            print!("{}", page::page(&runs));
        }
    }
    Ok(())
}
