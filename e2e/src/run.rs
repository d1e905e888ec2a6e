//! Running short programs: what they said is in the error when they fail.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// How much of each of its outputs a failed program's error holds.
const LINES: usize = 30;
/// The same of tests that failed.
const FAILURES: usize = 150;

/// Runs a program and returns what it wrote to its standard output.
pub async fn run<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, args: &[S]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args);
    output(command, None).await
}

/// Runs a program with a text on its standard input.
pub async fn run_with_input<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    args: &[S],
    input: &str,
) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args);
    output(command, Some(input)).await
}

/// Runs a program in a folder with additions to its environment.
pub async fn run_in<S: AsRef<OsStr>>(
    folder: &Path,
    env: &[(&str, &str)],
    program: impl AsRef<OsStr>,
    args: &[S],
) -> Result<String> {
    let mut command = Command::new(program);
    command
        .args(args)
        .current_dir(folder)
        .envs(env.iter().copied());
    output(command, None).await
}

/// Runs a prepared command to its end.
pub async fn output(mut command: Command, input: Option<&str>) -> Result<String> {
    let shown = shown(&command);
    for name in of_our_own_build() {
        command.env_remove(name);
    }
    command
        .stdin(if input.is_some() {
            Stdio::piped()
        } else {
            Stdio::null()
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command
        .spawn()
        .with_context(|| format!("starting {shown}"))?;
    if let (Some(text), Some(mut stdin)) = (input, child.stdin.take()) {
        stdin
            .write_all(text.as_bytes())
            .await
            .with_context(|| format!("writing to {shown}"))?;
    }
    let output = child
        .wait_with_output()
        .await
        .with_context(|| format!("running {shown}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        // Tests say what failed on one of them and that something did on the other.
        let stderr = String::from_utf8_lossy(&output.stderr);
        let said = [failures(&stdout), last_lines(&stderr, LINES)];
        let said = said.iter().filter(|text| !text.trim().is_empty());
        let said: Vec<&str> = said.map(String::as_str).collect();
        bail!("{shown}: {}\n{}", output.status, said.join("\n"));
    }
    Ok(stdout)
}

/// What cargo tells the program that it runs of the program's package. Build scripts look at the
/// same names, so that a cargo started from here would take much of what is built for outdated,
/// and so would the next one.
fn of_our_own_build() -> impl Iterator<Item = OsString> {
    let of_package = |name: &OsString| {
        let name = name.to_string_lossy();
        let ours = ["CARGO_PKG_", "CARGO_MANIFEST_"];
        ours.iter().any(|prefix| name.starts_with(prefix))
            || ["CARGO_BIN_NAME", "CARGO_CRATE_NAME"].contains(&&*name)
    };
    std::env::vars_os().map(|(name, _)| name).filter(of_package)
}

/// The command line as a person would type it.
fn shown(command: &Command) -> String {
    let command = command.as_std();
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let line: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    let line = line.join(" ");
    if line.chars().count() > 200 {
        format!("{}…", line.chars().take(200).collect::<String>())
    } else {
        line
    }
}

/// What tests printed of their failures, which lies before all the tests that passed after them;
/// the last lines of anything else.
fn failures(printed: &str) -> String {
    let mut inside = false;
    let failed = printed.lines().filter(|line| {
        inside |= *line == "failures:";
        let kept = inside;
        inside &= !line.starts_with("test result: ");
        kept
    });
    let failed: Vec<&str> = failed.take(FAILURES).collect();
    match failed.is_empty() {
        true => last_lines(printed, LINES),
        false => last_lines(&failed.join("\n"), FAILURES),
    }
}

/// The last lines of a text, indented.
pub fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<_> = text.trim_end().lines().collect();
    let from = lines.len().saturating_sub(count);
    lines[from..]
        .iter()
        .map(|line| format!("    {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::failures;

    #[test]
    fn what_failed_is_shown_and_not_what_passed_afterwards() {
        let failed = "running 2 tests\n.F\nfailures:\n\n---- a stdout ----\npanicked\n\nfailures:\n    a\n\ntest result: FAILED. 1 passed";
        let printed = format!("{failed}\n{}", "test b ... ok\n".repeat(100));
        let shown = failures(&printed);
        assert!(shown.contains("panicked") && shown.contains("FAILED"));
        assert!(!shown.contains("test b"));
        assert_eq!(failures("one\ntwo"), "    one\n    two");
    }
}
