//! `flower check`: looks into a bundle before it is deployed. Deploys nothing.

use std::path::PathBuf;

use clap::Args;
use flower_api::manifest::Manifest;
use flower_engine::{
    Deployment, Isolate,
    deploy::{Difference, Impact, WholeTable, compare, whole_tables},
    js,
};
use serde::Serialize;

use super::{AdminTarget, Failure, Output, bundle, print};
use crate::config::CallLimits;

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// The application: one JavaScript module.
    app: PathBuf,
    /// Compares it with what is deployed, and exits with 3 when the difference loses data;
    /// without it, nobody is asked.
    #[arg(long)]
    deployed: bool,
    #[command(flatten)]
    at: AdminTarget,
}

/// What was found.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    hash: String,
    bytes: usize,
    bytes_limit: u64,
    heap_bytes: u64,
    heap_limit: u64,
    manifest: Manifest,
    whole_tables: Vec<WholeTable>,
    /// Absent when nobody was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<Against>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Against {
    /// Hash of what runs; absent while nothing is deployed.
    hash: Option<String>,
    differences: Vec<Difference>,
}

pub(super) async fn check(args: CheckArgs, output: Output) -> Result<(), Failure> {
    let source = bundle::read(&args.app).map_err(Failure::here)?;
    let limits = CallLimits::default();
    let manifest = js::inspect(&source, &limits.engine(), &js::Deadline::never())
        .map_err(|why| Failure::here(why.to_string()))?;
    let deployment = Deployment::fresh(&source, manifest.clone());
    let hash = deployment.hash.clone();
    let isolate = Isolate::new(deployment.into(), &limits.engine())
        .map_err(|why| Failure::here(why.to_string()))?;
    let against = match args.deployed {
        true => Some(differences(&args.at, &manifest).await?),
        false => None,
    };
    let report = Report {
        hash,
        bytes: source.len(),
        bytes_limit: limits.bundle,
        heap_bytes: isolate.heap_bytes(),
        heap_limit: limits.heap,
        whole_tables: whole_tables(&source, &manifest),
        manifest,
        against,
    };
    match output {
        Output::Json => print::json(&report)?,
        Output::Text => print(&report),
    }
    match (report.against.as_ref().map_or(0, Against::losses), output) {
        (0, _) => Ok(()),
        // The report has said it.
        (_, Output::Json) => Err(Failure::told()),
        (many, Output::Text) => Err(Failure::refused(format!(
            "{many} of these changes would lose data: the deployment is refused while there are \
             rows that they concern"
        ))),
    }
}

impl Against {
    fn losses(&self) -> usize {
        let loses = |d: &&Difference| d.impact == Impact::LosesData;
        self.differences.iter().filter(loses).count()
    }
}

async fn differences(at: &AdminTarget, manifest: &Manifest) -> Result<Against, Failure> {
    let (client, at) = at.client()?;
    let running = client.deployment(&at).await?;
    let (hash, before) = running.map_or((None, Manifest::default()), |running| {
        (Some(running.hash), running.manifest)
    });
    Ok(Against {
        hash,
        differences: compare(&before, manifest),
    })
}

fn print(report: &Report) {
    let short: String = report.hash.chars().take(12).collect();
    print::line(format_args!(
        "{short} loads: {} of {} as text, {} of {} as a heap",
        print::bytes(report.bytes as u64),
        print::bytes(report.bytes_limit),
        print::bytes(report.heap_bytes),
        print::bytes(report.heap_limit),
    ));
    let names = |names: Vec<&String>| match names.is_empty() {
        true => "none".to_owned(),
        false => names.into_iter().cloned().collect::<Vec<_>>().join(", "),
    };
    for (name, table) in &report.manifest.tables {
        print::line(format_args!(
            "  table {name}, indexes: {}",
            names(table.indexes.keys().collect())
        ));
    }
    print::line(format_args!(
        "  derived values: {}",
        names(report.manifest.derived.keys().collect())
    ));
    print::line(format_args!(
        "  functions: {}",
        names(report.manifest.functions.keys().collect())
    ));
    for place in &report.whole_tables {
        print::line(format_args!(
            "  line {}: {} walks the whole table {}; a range of an index costs what it answers",
            place.line, place.text, place.table
        ));
    }
    let Some(against) = &report.against else {
        return;
    };
    match &against.hash {
        None => print::line("nothing is deployed yet"),
        Some(hash) if *hash == report.hash => print::line("it is deployed already"),
        Some(hash) => {
            let hash: String = hash.chars().take(12).collect();
            print::line(format_args!("compared with {hash}, which is deployed:"));
            if against.differences.is_empty() {
                print::line("  changes code only");
            }
            for Difference { impact, what } in &against.differences {
                print::line(format_args!("  {:<15} {what}", word(*impact)));
            }
        }
    }
}

fn word(impact: Impact) -> &'static str {
    match impact {
        Impact::Safe => "safe",
        Impact::NeedsBuild => "needs a build",
        Impact::BreaksClients => "breaks clients",
        Impact::LosesData => "loses data",
    }
}
