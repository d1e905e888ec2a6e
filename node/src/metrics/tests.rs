//! The whole exposition: names by `promtool`, the table, and what is absent.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use flower_api::{
    GroupId, MemberId, Revision,
    report::{
        BuildInfo, ConfigVersion, Configuration, DeploymentInfo, Disk, FollowerLag, Footprint,
        Identity, Lifecycle, Positions, Role,
    },
    sizing,
};

use super::*;

fn deployment() -> DeploymentInfo {
    DeploymentInfo {
        hash: "aa".into(),
        revision: Revision(1),
        functions: Vec::new(),
        build: Some(BuildInfo {
            hash: "bb".into(),
            since: Revision(2),
            done: 3,
            total: 4,
        }),
        failed_build: None,
    }
}

fn report() -> Report {
    let plan = sizing::split(
        1 << 30,
        sizing::CachePolicy::default(),
        sizing::Workload::default(),
    );
    Report {
        identity: Identity {
            cluster: None,
            group: GroupId(0),
            member: Some(MemberId(1)),
            lifecycle: Lifecycle::Member,
            broken: None,
            version: "0.1.0".into(),
            name: "n".into(),
        },
        role: Role::Leader,
        term: 3,
        leader: Some(MemberId(1)),
        quorum_lease: true,
        configuration: Some(Configuration {
            version: ConfigVersion::default(),
            committed: true,
            voters: vec![vec![MemberId(1), MemberId(2)]],
            members: [
                (MemberId(1), "a:1".into()),
                (MemberId(2), "b:1".into()),
                (MemberId(3), "c:1".into()),
            ]
            .into(),
        }),
        positions: Positions {
            last_log: 9,
            ..Positions::default()
        },
        followers: vec![FollowerLag {
            member: MemberId(2),
            matched: Some(4),
            lag_entries: 5,
            contact_ms: None,
            image: None,
        }],
        formed: true,
        recovery: None,
        owner: None,
        deployment: Some(deployment()),
        ready: true,
        not_ready: None,
        images_received: 0,
        replayed_entries: 0,
        full_repairs: 0,
        state_checksum: String::new(),
        footprint: Footprint {
            resident_bytes: Some(100),
            limit_bytes: Some(200),
            cgroup_usage_bytes: Some(150),
            stored_bytes: 50,
            state_file_bytes: 75,
            plan: Some(plan.unwrap()),
            ..Footprint::default()
        },
        disk: Disk {
            capacity_bytes: 10,
            free_bytes: 5,
            reserve_bytes: 1,
        },
    }
}

fn observed() -> Observed {
    let cache = CacheUse {
        bytes: 1,
        hits: Some(2),
        misses: Some(3),
        evictions: Some(4),
    };
    let file = FileUse {
        bytes: 10,
        allocated: Some(8),
        fragmented: Some(1),
    };
    Observed {
        page_caches: vec![("state", cache), ("raft", cache)],
        value_cache: Some(cache),
        recent_bytes: Some(1),
        query_cache: Some(cache),
        query_evaluations: Some(5),
        watches: Some(crate::watch::WatchStats {
            open: 1,
            queries: 2,
            steps: 3,
            bytes: 4,
        }),
        files: vec![("state", file), ("raft", file)],
        records: vec![("data", 7)],
        receipt_bytes: Some(1),
        workers_stuck: Some(0),
        apply_lag_seconds: Some(0.5),
        view_oldest_age_seconds: Some(0.25),
        oom_kills: Some(0),
    }
}

fn full() -> String {
    let metrics = Metrics::new();
    metrics.image(Direction::Sent, 5, 1.0);
    metrics.exposition(&report(), &observed())
}

#[test]
fn promtool_finds_nothing_to_complain_of() {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is on PATH (Debian package prometheus)");
    promtool
        .stdin
        .take()
        .unwrap()
        .write_all(full().as_bytes())
        .unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success() && said.is_empty(),
        "{}",
        String::from_utf8_lossy(&said)
    );
}

#[test]
fn the_exposition_has_every_metric_of_the_table_and_no_other() {
    let text = full();
    for metric in METRICS {
        let kind = format!("{:?}", metric.kind).to_lowercase();
        let head = format!("# TYPE {} {kind}\n", metric.name);
        assert!(text.contains(&head), "{head} is missing in:\n{text}");
    }
    let heads = text
        .lines()
        .filter(|line| line.starts_with("# TYPE"))
        .count();
    assert_eq!(heads, METRICS.len());
}

#[test]
fn what_is_not_known_is_absent_and_counters_start_at_0() {
    let bare = Report {
        configuration: None,
        followers: Vec::new(),
        footprint: Footprint::default(),
        disk: Disk::default(),
        ..report()
    };
    let text = Metrics::new().exposition(&bare, &Observed::default());
    for absent in [
        "flower_resident_bytes",
        "flower_cgroup_limit_bytes",
        "flower_oom_kills_total",
        "flower_page_cache_hits_total",
        "flower_file_bytes",
        "flower_disk_free_bytes",
        "flower_resident_per_stored_ratio",
        "flower_voters",
        "flower_apply_lag_seconds",
        "flower_image_bytes",
    ] {
        assert!(!text.contains(absent), "{absent} in:\n{text}");
    }
    for line in [
        "flower_calls_total{kind=\"mutation\",outcome=\"unknown\"} 0",
        "flower_call_duration_seconds_count{kind=\"query\"} 0",
        "flower_images_received_total 0",
        "flower_leader_changes_total 0",
        "flower_role{role=\"leader\"} 1",
        "flower_role{role=\"none\"} 0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} in:\n{text}");
    }
}

#[test]
fn values_are_those_of_the_report() {
    let text = full();
    for line in [
        "flower_follower_lag_entries{member=\"0000000000000002\"} 5",
        "flower_voters 2",
        "flower_resident_per_stored_ratio 2",
        "flower_file_per_stored_ratio 1.5",
        "flower_page_cache_evictions_total{file=\"raft\"} 4",
        "flower_image_bytes{direction=\"sent\"} 5",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} in:\n{text}");
    }
}
