//! What is being done, shown while it lasts, with how long each step took.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};

/// Runs one step: shows it while it runs, and how it ended.
pub async fn step<T>(name: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
    let begun = Instant::now();
    let bar = std::io::stderr().is_terminal().then(|| spinner(name));
    tokio::pin!(work);
    let mut beat = tokio::time::interval_at(
        tokio::time::Instant::now() + Duration::from_secs(2),
        Duration::from_secs(30),
    );
    let result = loop {
        tokio::select! {
            result = &mut work => break result,
            _ = beat.tick() => if bar.is_none() {
                eprintln!("  … {name} ({})", seconds(begun.elapsed()));
            },
        }
    };
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let mark = if result.is_ok() { "✓" } else { "✗" };
    eprintln!("  {mark} {name} ({})", seconds(begun.elapsed()));
    result
}

fn spinner(name: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(name.to_owned());
    if let Ok(style) = ProgressStyle::with_template("  {spinner} {msg} ({elapsed})") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// A heading above a group of steps.
pub fn heading(text: &str) {
    eprintln!("{text}");
}

/// A line that belongs to the step before it.
pub fn note(text: &str) {
    eprintln!("    {text}");
}

/// A length of time for people.
pub fn seconds(time: Duration) -> String {
    let s = time.as_secs_f64();
    if s < 60.0 {
        format!("{s:.1} s")
    } else {
        format!("{} min {:02} s", time.as_secs() / 60, time.as_secs() % 60)
    }
}

/// What is waited for cannot come any more.
#[derive(Debug)]
pub struct Ended(pub String);

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Ended {}

/// Asks again and again until there is an answer, up to a limit.
///
/// `ask` returns `Ok(value)` when it is there, or `Err(why not yet)`; the last reason is in the error.
pub async fn wait_for<T, F>(what: &str, limit: Duration, mut ask: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let begun = Instant::now();
    let mut pause = Duration::from_millis(50);
    loop {
        let attempt = tokio::time::timeout(
            limit
                .saturating_sub(begun.elapsed())
                .max(Duration::from_secs(1)),
            ask(),
        );
        let why = match attempt.await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(why)) => why,
            Err(_) => anyhow::anyhow!("no answer"),
        };
        if why.is::<Ended>() {
            return Err(why.context(what.to_owned()));
        }
        if begun.elapsed() >= limit {
            bail!("{what}: not within {}: {why:#}", seconds(limit));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 3 / 2).min(Duration::from_secs(1));
    }
}
