//! `flower import`: looks at a whole export first, then sends it page by page. Every step may
//! be sent again, so a lost answer or a new leader is no more than a pause.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use clap::Args;
use flower_api::{
    admin::{AdminError, Endpoint},
    export::{Import, Imported, PAGE_BYTES, Step},
    wire::code,
};
use indicatif::ProgressBar;

use super::{
    AdminTarget, Failure, Output, bundle,
    export::{
        Summary,
        check::{Check, Whole, kind},
        style,
    },
};
use crate::admin_client::AdminClient;

/// Rows whose derived values are evaluated in one step, at first.
const BUILD_ROWS: u64 = 256;
/// How long a node that was never reached is tried for.
const REACH: Duration = Duration::from_secs(5);
/// Between attempts.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// An export.
    file: PathBuf,
    /// Give up when a step is not done within so many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    timeout: u64,
    #[command(flatten)]
    at: AdminTarget,
}

pub(super) async fn import(args: ImportArgs, output: Output) -> Result<(), Failure> {
    let whole = look(&args.file)?;
    let (client, at) = args.at.client()?;
    let sender = Sender {
        client,
        at,
        import: whole.end.sha256.clone(),
        patience: Duration::from_secs(args.timeout),
        bar: ProgressBar::new_spinner().with_style(style()),
    };
    sender.send_all(&args.file, &whole).await?;
    sender.bar.finish_and_clear();
    Summary::new(&args.file, &whole).show("imported", output)
}

/// Reads all of it before anything is sent: half of a damaged export must not be written.
fn look(path: &Path) -> Result<Whole, Failure> {
    let bad = |why: String| Failure::here(format!("{} cannot be imported: {why}", path.display()));
    let mut file = File::open(path).map_err(|e| bad(e.to_string()))?;
    let mut check = Check::default();
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece).map_err(|e| bad(e.to_string()))? {
            0 => return check.finish().map_err(bad),
            n => check.take(&piece[..n]).map_err(&bad)?,
        }
    }
}

struct Sender {
    client: AdminClient,
    at: Endpoint,
    import: String,
    patience: Duration,
    bar: ProgressBar,
}

/// Lines that are sent together.
#[derive(Default)]
struct Page {
    lines: Vec<String>,
    bytes: usize,
}

impl Sender {
    async fn send_all(&self, path: &Path, whole: &Whole) -> Result<(), Failure> {
        let unread =
            |e: std::io::Error| Failure::here(format!("{} cannot be read: {e}", path.display()));
        let mut lines = BufReader::new(File::open(path).map_err(unread)?).lines();
        let mut next = || lines.next().transpose().map_err(unread);
        next()?;
        let second = next()?.unwrap_or_default();
        let bundle = if kind(second.as_bytes()) == "bundle" {
            second.as_str()
        } else {
            ""
        };
        let begin = Step::Begin(whole.header.clone());
        let mut done = self.step(&begin, bundle).await?;
        let (mut page, mut seen) = (Page::default(), 0);
        let mut first = bundle.is_empty().then(|| second.clone());
        while let Some(line) = first.take().map_or_else(&mut next, |line| Ok(Some(line)))? {
            let kind = kind(line.as_bytes());
            if kind == "root" && !done.all_built {
                done = self.flush(&mut page, done).await?;
                done = self.build(done).await?;
            }
            if !["row", "receipt", "root"].contains(&kind) {
                continue;
            }
            seen += 1;
            if seen <= done.written.imported() {
                continue;
            }
            page.bytes += line.len() + 1;
            page.lines.push(line);
            if page.bytes >= PAGE_BYTES {
                done = self.flush(&mut page, done).await?;
            }
        }
        done = self.flush(&mut page, done).await?;
        self.build(done).await?;
        self.step(&Step::Finish(whole.end.counts), "").await?;
        Ok(())
    }

    /// Sends the lines of a page; in halves when evaluating them is too much for one step.
    async fn flush(&self, page: &mut Page, mut done: Imported) -> Result<Imported, Failure> {
        let page = std::mem::take(page);
        let mut waiting = vec![&page.lines[..]];
        while let Some(lines) = waiting.pop() {
            if lines.is_empty() {
                continue;
            }
            let at = done.written.imported();
            let sent = self.step(&Step::Page { at }, &lines.join("\n")).await;
            match sent {
                Err(failure) if failure.is(code::BUDGET) && lines.len() > 1 => {
                    let (left, right) = lines.split_at(lines.len() / 2);
                    waiting.extend([right, left]);
                    continue;
                }
                other => done = other?,
            }
            if done.written.imported() != at + lines.len() as u64 {
                return Err(Failure::here(
                    "somebody else imports into this database; run it again when they are done",
                ));
            }
            let lines = done.written.imported();
            self.bar.set_message(format!("importing: {lines} lines"));
            self.bar.tick();
        }
        Ok(done)
    }

    /// Has derived values evaluated, until those of all rows are.
    async fn build(&self, mut done: Imported) -> Result<Imported, Failure> {
        let mut most = BUILD_ROWS;
        while !done.all_built {
            match self.step(&Step::Build { most }, "").await {
                Err(failure) if failure.is(code::BUDGET) && most > 1 => most /= 2,
                other => done = other?,
            }
            let built = done.built;
            self.bar
                .set_message(format!("evaluating derived values: {built}"));
            self.bar.tick();
        }
        Ok(done)
    }

    /// One step, sent again while it may go better.
    async fn step(&self, step: &Step, lines: &str) -> Result<Imported, Failure> {
        let call = Import {
            fence: bundle::by_hand(),
            import: self.import.clone(),
            step: step.clone(),
        };
        let start = Instant::now();
        loop {
            let error = match self.client.import(&self.at, &call, lines).await {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            let again = match &error {
                AdminError::Unreachable { .. } => true,
                AdminError::Refused(problem) => problem.retryable,
                AdminError::Garbled { .. } => false,
            };
            // A wrong address is told soon.
            let patience = match (&error, step) {
                (AdminError::Unreachable { .. }, Step::Begin(_)) => REACH,
                _ => self.patience,
            };
            if !again || start.elapsed() + PAUSE >= patience {
                return Err(error.into());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
