//! Turns a report and what was observed into metric families. A family without a known value
//! is left out.

use std::collections::BTreeMap;

use flower_api::report::{Report, Role};
use prometheus::proto::{self, MetricFamily, MetricType};

use super::{
    observed::Observed,
    table::{self, Kind},
};

/// Families by name.
#[derive(Default)]
struct Scrape(BTreeMap<&'static str, MetricFamily>);

impl Scrape {
    /// Sets one value; `labels` in the order of the table.
    fn set(&mut self, name: &'static str, labels: &[&str], value: f64) {
        let row = table::find(name);
        assert_eq!(row.labels.len(), labels.len(), "labels of {name}");
        let family = self.0.entry(name).or_insert_with(|| {
            let mut family = MetricFamily::default();
            family.set_name(name.to_owned());
            family.set_help(row.help.to_owned());
            family.set_field_type(match row.kind {
                Kind::Counter => MetricType::COUNTER,
                Kind::Gauge | Kind::Histogram => MetricType::GAUGE,
            });
            family
        });
        let mut metric = proto::Metric::default();
        let pairs = row.labels.iter().zip(labels).map(|(name, value)| {
            let mut pair = proto::LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value((*value).to_owned());
            pair
        });
        metric.set_label(pairs.collect());
        if row.kind == Kind::Counter {
            let mut counter = proto::Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = proto::Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        family.mut_metric().push(metric);
    }

    fn number(&mut self, name: &'static str, value: u64) {
        self.set(name, &[], value as f64);
    }

    fn known(&mut self, name: &'static str, value: Option<u64>) {
        if let Some(value) = value {
            self.number(name, value);
        }
    }

    fn flag(&mut self, name: &'static str, value: bool) {
        self.number(name, u64::from(value));
    }
}

/// Everything that is known now.
pub(super) fn gather(report: &Report, observed: &Observed) -> Vec<MetricFamily> {
    let mut scrape = Scrape::default();
    raft(&mut scrape, report);
    memory(&mut scrape, report, observed);
    stored(&mut scrape, report, observed);
    let build = report.deployment.as_ref().and_then(|d| d.build.as_ref());
    let (done, total) = build.map_or((0, 0), |build| (build.done, build.total));
    scrape.number("flower_build_rows", done);
    scrape.number("flower_build_total_rows", total);
    if let Some(seconds) = observed.apply_lag_seconds {
        scrape.set("flower_apply_lag_seconds", &[], seconds);
    }
    if let Some(seconds) = observed.view_oldest_age_seconds {
        scrape.set("flower_view_oldest_age_seconds", &[], seconds);
    }
    scrape.0.into_values().collect()
}

fn raft(scrape: &mut Scrape, report: &Report) {
    scrape.set("flower_up_info", &[&report.identity.version], 1.0);
    let roles = [
        (Role::Leader, "leader"),
        (Role::Follower, "follower"),
        (Role::Candidate, "candidate"),
        (Role::Learner, "learner"),
        (Role::None, "none"),
    ];
    for (role, label) in roles {
        scrape.set(
            "flower_role",
            &[label],
            f64::from(u8::from(report.role == role)),
        );
    }
    scrape.flag("flower_is_leader", report.role == Role::Leader);
    scrape.flag("flower_has_leader", report.leader.is_some());
    scrape.flag("flower_ready", report.ready);
    scrape.number("flower_term", report.term);
    let at = &report.positions;
    scrape.number("flower_log_last_index", at.last_log);
    scrape.number("flower_log_committed_index", at.committed);
    scrape.number("flower_applied_index", at.applied);
    scrape.number("flower_checkpoint_index", at.checkpoint);
    scrape.number("flower_purged_index", at.purged);
    scrape.number("flower_revision", at.revision.0);
    if let Some(configuration) = &report.configuration {
        let members = configuration.members.keys();
        let voters = members.filter(|id| configuration.is_voter(**id)).count();
        scrape.number("flower_voters", voters as u64);
    }
    for follower in &report.followers {
        let member = follower.member.to_string();
        scrape.set(
            "flower_follower_lag_entries",
            &[&member],
            follower.lag_entries as f64,
        );
    }
}

fn memory(scrape: &mut Scrape, report: &Report, observed: &Observed) {
    let footprint = &report.footprint;
    scrape.known("flower_resident_bytes", footprint.resident_bytes);
    scrape.known("flower_cgroup_limit_bytes", footprint.limit_bytes);
    scrape.known("flower_cgroup_usage_bytes", footprint.cgroup_usage_bytes);
    scrape.known("flower_oom_kills_total", observed.oom_kills);
    if let Some(plan) = &footprint.plan {
        for (part, bytes) in [
            ("limit", plan.limit_bytes),
            ("fixed", plan.fixed_bytes),
            ("javascript", plan.heaps_bytes),
            ("log", plan.log_bytes),
            ("log-page-cache", plan.log_page_cache_bytes),
            ("page-cache", plan.page_cache_bytes),
            ("value-cache", plan.value_cache_bytes),
            ("recent-writes", plan.recent_bytes),
            ("query-cache", plan.query_cache_bytes),
            ("headroom", plan.headroom_bytes),
        ] {
            scrape.set("flower_memory_plan_bytes", &[part], bytes as f64);
        }
    }
    for (file, cache) in &observed.page_caches {
        scrape.set("flower_page_cache_bytes", &[file], cache.bytes as f64);
        for (name, counted) in [
            ("flower_page_cache_hits_total", cache.hits),
            ("flower_page_cache_misses_total", cache.misses),
            ("flower_page_cache_evictions_total", cache.evictions),
        ] {
            if let Some(counted) = counted {
                scrape.set(name, &[file], counted as f64);
            }
        }
    }
    if let Some(cache) = &observed.value_cache {
        scrape.number("flower_value_cache_bytes", cache.bytes);
        scrape.known("flower_value_cache_hits_total", cache.hits);
        scrape.known("flower_value_cache_misses_total", cache.misses);
    }
    scrape.known("flower_recent_writes_bytes", observed.recent_bytes);
    if let Some(cache) = &observed.query_cache {
        scrape.number("flower_query_cache_bytes", cache.bytes);
        scrape.known("flower_query_cache_hits_total", cache.hits);
        scrape.known("flower_query_cache_misses_total", cache.misses);
        scrape.known("flower_query_cache_evictions_total", cache.evictions);
    }
    let evaluations = observed.query_evaluations;
    scrape.known("flower_query_evaluations_total", evaluations);
    if let Some(watches) = &observed.watches {
        scrape.number("flower_watches", watches.open);
        scrape.number("flower_watched_queries", watches.queries);
        scrape.number("flower_watch_steps_total", watches.steps);
        scrape.number("flower_watch_bytes", watches.bytes);
    }
    scrape.number("flower_javascript_heap_bytes", footprint.javascript_bytes);
    scrape.known("flower_javascript_workers_stuck", observed.workers_stuck);
    scrape.number("flower_log_tail_bytes", footprint.log_tail_bytes);
}

fn stored(scrape: &mut Scrape, report: &Report, observed: &Observed) {
    let footprint = &report.footprint;
    for (file, usage) in &observed.files {
        scrape.set("flower_file_bytes", &[file], usage.bytes as f64);
        if let Some(bytes) = usage.allocated {
            scrape.set("flower_file_allocated_bytes", &[file], bytes as f64);
        }
        if let Some(bytes) = usage.fragmented {
            scrape.set("flower_file_fragmented_bytes", &[file], bytes as f64);
        }
    }
    scrape.number("flower_stored_bytes", footprint.stored_bytes);
    // Nothing stored: a ratio to it says nothing.
    if footprint.stored_bytes > 0 {
        let stored = footprint.stored_bytes as f64;
        if let Some(resident) = footprint.resident_bytes {
            scrape.set(
                "flower_resident_per_stored_ratio",
                &[],
                resident as f64 / stored,
            );
        }
        let file = footprint.state_file_bytes as f64;
        scrape.set("flower_file_per_stored_ratio", &[], file / stored);
    }
    scrape.number("flower_receipts", footprint.receipts);
    scrape.known("flower_receipt_bytes", observed.receipt_bytes);
    for (class, records) in &observed.records {
        scrape.set("flower_records", &[class], *records as f64);
    }
    let disk = &report.disk;
    // A file system of no size is one that could not be asked.
    if disk.capacity_bytes > 0 {
        scrape.number("flower_disk_capacity_bytes", disk.capacity_bytes);
        scrape.number("flower_disk_free_bytes", disk.free_bytes);
        scrape.number("flower_disk_reserve_bytes", disk.reserve_bytes);
    }
}
