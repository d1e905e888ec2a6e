//! `flower export`: the lines of a database as they come, into a file that is there only when
//! it is whole.

pub(super) mod check;

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use clap::Args;
use flower_api::{
    admin::AdminError,
    export::{Counts, Header},
    wire::ReadClass,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::{AdminTarget, Failure, Output, print, progress::showing};
use check::{Check, Whole};

#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    /// The file to write; `-` for standard output.
    file: PathBuf,
    /// Also writes the stored derived values, for whoever wants to check them; an import passes
    /// over them.
    #[arg(long)]
    cells: bool,
    /// How fresh it must be: fresh, local, 'bounded; ms=AGE' or 'session; min=REVISION'. A node
    /// without a leader has 'local'.
    #[arg(long, value_name = "CLASS", default_value = "fresh")]
    read: ReadClass,
    #[command(flatten)]
    at: AdminTarget,
}

/// What an export or import was of.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary<'a> {
    file: &'a Path,
    #[serde(flatten)]
    header: &'a Header,
    #[serde(flatten)]
    counts: Counts,
    bytes: u64,
    sha256: &'a str,
}

impl<'a> Summary<'a> {
    pub(super) fn new(file: &'a Path, whole: &'a Whole) -> Self {
        Self {
            file,
            header: &whole.header,
            counts: whole.end.counts,
            bytes: whole.bytes,
            sha256: &whole.end.sha256,
        }
    }

    /// Prints it; `done` begins the line for people.
    pub(super) fn show(&self, done: &str, output: Output) -> Result<(), Failure> {
        if output == Output::Json {
            return print::json(self);
        }
        let Counts {
            rows,
            receipts,
            roots,
            cells,
        } = self.counts;
        print::line(format_args!(
            "{done} {}: revision {}, {rows} rows, {receipts} receipts, {roots} roots, {cells} \
             cells, {}",
            self.file.display(),
            self.header.revision,
            print::bytes(self.bytes)
        ));
        Ok(())
    }
}

pub(super) async fn export(args: ExportArgs, output: Output) -> Result<(), Failure> {
    let (client, at) = args.at.client()?;
    let stdout = args.file == Path::new("-");
    let mut out = Target::open(&args.file, stdout)?;
    let opening = client.export(&at, args.cells, args.read);
    let mut chunks = showing("asking for the export", opening).await?;
    let mut check = Check::default();
    let bar = ProgressBar::new_spinner().with_style(style());
    let unwritten = |e: std::io::Error| {
        Failure::here(format!("{} cannot be written: {e}", args.file.display()))
    };
    loop {
        let next = chunks.next().await.map_err(|why| AdminError::Unreachable {
            endpoint: at.0.clone(),
            why: format!("the export broke off: {why}"),
        })?;
        let Some(bytes) = next else { break };
        check.take(&bytes).map_err(|why| broken(&why))?;
        out.file.write_all(&bytes).map_err(unwritten)?;
        let (rows, bytes) = (check.rows(), print::bytes(check.bytes()));
        bar.set_message(format!("exporting: {rows} rows, {bytes}"));
        bar.tick();
    }
    bar.finish_and_clear();
    let whole = check.finish().map_err(|why| broken(&why))?;
    out.keep().map_err(unwritten)?;
    match stdout {
        // The export itself is there.
        true => Ok(()),
        false => Summary::new(&args.file, &whole).show("exported to", output),
    }
}

/// For progress that is counted.
pub(super) fn style() -> ProgressStyle {
    ProgressStyle::default_spinner()
}

fn broken(why: &str) -> Failure {
    Failure::here(format!("the node's export is not whole: {why}; try again"))
}

/// Where an export goes: beside its name, until it is whole.
struct Target {
    file: BufWriter<Box<dyn Write>>,
    /// The unfinished file and its name when it is whole; absent for standard output.
    names: Option<(PathBuf, PathBuf)>,
}

impl Target {
    fn open(file: &Path, stdout: bool) -> Result<Self, Failure> {
        if stdout {
            return Ok(Self {
                file: BufWriter::new(Box::new(std::io::stdout())),
                names: None,
            });
        }
        let mut part = file.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        let opened = File::create(&part)
            .map_err(|e| Failure::here(format!("{} cannot be written: {e}", part.display())))?;
        Ok(Self {
            file: BufWriter::new(Box::new(opened)),
            names: Some((part, file.to_owned())),
        })
    }

    fn keep(mut self) -> std::io::Result<()> {
        self.file.flush()?;
        let Some((part, file)) = self.names.take() else {
            return Ok(());
        };
        File::open(&part)?.sync_all()?;
        std::fs::rename(part, file)
    }
}

impl Drop for Target {
    /// What is not whole does not stay.
    fn drop(&mut self) {
        if let Some((part, _)) = self.names.take() {
            let _ = std::fs::remove_file(part);
        }
    }
}
