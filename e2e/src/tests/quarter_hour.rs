//! The README's first quarter of an hour: its blocks are run as they stand, on the example.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Test;
use crate::cluster::Scene;
use crate::paths::root;
use crate::run::run_with_input;

/// See the file's head.
pub const TEST: Test = Test {
    name: "quarter-hour",
    in_ci: true,
    what: "the blocks of the README's first quarter of an hour, run in their order in one shell",
    run: |scene| Box::pin(run(scene)),
};

const BEGIN: &str = "<!-- quarter-hour: begin -->";
const END: &str = "<!-- quarter-hour: end -->";

async fn run(scene: Scene) -> Result<String> {
    let text = std::fs::read_to_string(root().join("README.md"))?;
    let (_, rest) = text
        .split_once(BEGIN)
        .context("the README has no begin mark")?;
    let (part, _) = rest.split_once(END).context("the README has no end mark")?;
    let blocks = blocks(part);
    ensure!(!blocks.is_empty(), "there is no block between the marks");
    let mut script = "set -euo pipefail\n".to_owned();
    for (number, block) in blocks.iter().enumerate() {
        script.push_str(&format!("echo '--- block {}' >&2\n{block}\n", number + 1));
    }
    // The README names the default state folder; the test may run with another.
    let state = scene.cluster.paths.state().display().to_string();
    let script = script.replace("/var/lib/flower-e2e", &state);
    let shell = run_with_input("bash", &["-s"], &script);
    let said = tokio::time::timeout(Duration::from_secs(180), shell)
        .await
        .context("not within 3 minutes")??;
    ensure!(
        said.contains("Ada") && said.contains("Edsger"),
        "the customers are not in what was printed:\n{said}"
    );
    Ok(format!("{} blocks ran as they stand", blocks.len()))
}

/// The shell blocks of a Markdown text.
fn blocks(text: &str) -> Vec<String> {
    text.split("```sh\n")
        .skip(1)
        .filter_map(|rest| rest.split_once("```").map(|(block, _)| block.to_owned()))
        .collect()
}
