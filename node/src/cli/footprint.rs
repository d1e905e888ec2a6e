//! `flower footprint`: what a node takes of memory and disk, beside what it planned to take.

use flower_api::{
    admin::AdminApi,
    limits,
    report::{Footprint, Report},
    sizing::MemoryPlan,
};
use serde_json::json;

use super::{AdminTarget, Failure, Output, print, progress::showing};

pub(super) async fn footprint(at: AdminTarget, output: Output) -> Result<(), Failure> {
    let (client, at) = at.client()?;
    let report = showing("asking the node", client.report(&at)).await?;
    match output {
        Output::Json => print::json(&json!({ "footprint": report.footprint, "disk": report.disk })),
        Output::Text => {
            print::line(text(&report));
            Ok(())
        }
    }
}

fn text(report: &Report) -> String {
    let now = &report.footprint;
    let plan = |part: fn(&MemoryPlan) -> u64| now.plan.as_ref().map(part);
    let memory = [
        (
            "container, file cache included",
            now.cgroup_usage_bytes,
            now.limit_bytes,
        ),
        (
            "resident set",
            now.resident_bytes,
            plan(MemoryPlan::planned_bytes),
        ),
        (
            "  page cache of state.redb",
            Some(now.page_cache_bytes),
            plan(|p| p.page_cache_bytes),
        ),
        (
            "  page cache of raft.redb",
            Some(now.log_page_cache_bytes),
            plan(|p| p.log_page_cache_bytes),
        ),
        (
            "  values",
            Some(now.value_cache_bytes),
            plan(|p| p.value_cache_bytes),
        ),
        (
            "  JavaScript",
            Some(now.javascript_bytes),
            plan(|p| p.heaps_bytes),
        ),
        (
            "  tail of the log",
            Some(now.log_tail_bytes),
            plan(|p| p.log_bytes),
        ),
    ];
    let rows = memory.map(|(what, now, at_most)| {
        vec![what.to_owned(), print::known(now), print::known(at_most)]
    });
    let mut text = print::table(&["MEMORY", "NOW", "AT MOST"], rows.into(), 1).trim_fmt();
    let disk = [
        ("state.redb", print::bytes(now.state_file_bytes)),
        ("raft.redb", print::bytes(now.log_file_bytes)),
        ("stored keys and values", print::bytes(now.stored_bytes)),
        ("receipts", now.receipts.to_string()),
        ("free", print::bytes(report.disk.free_bytes)),
        ("kept free", print::bytes(report.disk.reserve_bytes)),
    ];
    let rows = disk.map(|(what, value)| vec![what.to_owned(), value]);
    text += &format!(
        "\n\n{}",
        print::table(&["DISK", "NOW"], rows.into(), 1).trim_fmt()
    );
    text + &ratios(now)
}

fn ratios(now: &Footprint) -> String {
    let stored = now.stored_bytes as f64;
    // The ratios of a few rows only tell how large an empty file is.
    if now.stored_bytes < limits::MIB {
        return String::new();
    }
    let file = now.state_file_bytes as f64 / stored;
    let resident = now
        .resident_bytes
        .map(|bytes| format!(", {:.2} bytes of memory", bytes as f64 / stored));
    format!(
        "\n\nEach stored byte takes {file:.2} bytes of disk{}.",
        resident.unwrap_or_default()
    )
}
