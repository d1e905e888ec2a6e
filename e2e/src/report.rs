//! What a run of the tests saw: the table that it ends with, and the same as a file. Runs nothing.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use tokio::process::Command;

use crate::paths::{root, target};
use crate::progress::seconds;
use crate::run::output;

/// How a check or test ended.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It holds.
    Passed,
    /// It does not.
    Failed,
    /// It was not run.
    Skipped,
}

/// One check or test.
#[derive(Serialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
    /// How long it took, seconds.
    pub seconds: f64,
    /// What it saw, why it failed, or why it was skipped.
    pub saw: String,
}

#[derive(Serialize)]
struct Report<'a> {
    commit: String,
    /// Whether files differed from the commit.
    changed: bool,
    all: bool,
    filter: &'a [String],
    rows: &'a [Row],
}

/// Writes the report into the build's folder, and says where.
///
/// # Errors
/// When the file cannot be written.
pub async fn write(rows: &[Row], all: bool, filter: &[String]) -> Result<PathBuf> {
    let report = Report {
        commit: git(&["rev-parse", "HEAD"]).await,
        changed: !git(&["status", "--porcelain"]).await.is_empty(),
        all,
        filter,
        rows,
    };
    let file = target().join("e2e-report.json");
    let text = serde_json::to_string_pretty(&report)?;
    std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
    Ok(file)
}

async fn git(args: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args(args).current_dir(root());
    let printed = output(command, None).await;
    printed.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// Prints the table and the closing line; true when nothing failed.
pub fn table(rows: &[Row]) -> bool {
    println!();
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    for row in rows {
        let word = match row.outcome {
            Outcome::Passed => "passed",
            Outcome::Failed => "FAILED",
            Outcome::Skipped => "skipped",
        };
        let first = row.saw.lines().next().unwrap_or_default();
        let took = seconds(Duration::from_secs_f64(row.seconds));
        println!("{:<width$}  {word:<8}{took:>13}  {first}", row.name);
    }
    let count = |outcome| rows.iter().filter(|row| row.outcome == outcome).count();
    let (passed, failed, skipped) = (
        count(Outcome::Passed),
        count(Outcome::Failed),
        count(Outcome::Skipped),
    );
    println!("\n{passed} passed, {failed} failed, {skipped} skipped");
    failed == 0
}
