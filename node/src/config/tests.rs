//! Tables: settings in, Config or the whole refusal out.

use super::*;

fn given(pairs: &[(&'static str, &str)]) -> Given {
    let known = |name: &str| SETTINGS.iter().any(|s| s.flag == name);
    assert!(pairs.iter().all(|(name, _)| known(name)));
    let listed = pairs
        .iter()
        .map(|(name, value)| (*name, ((*value).to_owned(), Source::Environment)));
    Given(listed.collect())
}

fn config(pairs: &[(&'static str, &str)]) -> Result<Config, String> {
    let mut all = vec![("auth-dir", "/auth")];
    all.extend(pairs);
    Config::from_given(&given(&all), "host-1").map_err(|e| e.to_string())
}

#[test]
fn defaults_are_those_of_the_limits() {
    let config = config(&[]).unwrap();
    assert_eq!(config.limits, CallLimits::default());
    assert_eq!(config.limits.engine(), flower_engine::js::Limits::default());
    assert_eq!(config.cache, CachePolicy::default());
    assert_eq!(config.workload(), Workload::default());
    assert_eq!(config.watches, WatchLimits::default());
    assert_eq!(config.cors, CorsOrigins::default());
    assert_eq!(config.receipt_retention_ms, limits::RECEIPT_RETENTION_MS);
    assert_eq!(
        config.snapshot_after_log_bytes,
        limits::SNAPSHOT_AFTER_LOG_BYTES
    );
    let ports = flower_api::ports::CLIENT..=flower_api::ports::ADMIN;
    assert_eq!(config.ports.client..=config.ports.admin, ports);
    assert_eq!(config.ports.peer, flower_api::ports::PEER);
    assert_eq!(config.name, "host-1");
    assert_eq!(config.advertise, "host-1:7701");
}

#[test]
fn values_are_read() {
    let config = config(&[
        ("name", "db-g0-1"),
        ("peer-port", "9001"),
        ("limit-record", "128Ki"),
        ("cache-mode", "fixed"),
        ("page-cache-bytes", "67108864"),
        ("value-cache-bytes", "32Mi"),
        ("log-format", "text"),
        ("memory-limit-bytes", "512Mi"),
    ])
    .unwrap();
    assert_eq!(config.advertise, "db-g0-1:9001");
    assert_eq!(config.limits.record, 128 * KIB);
    assert_eq!(config.memory_limit_bytes, Some(512 * MIB));
    assert_eq!(config.log_format, LogFormat::Text);
    let fixed = CachePolicy::Fixed {
        page_cache_bytes: 64 * MIB,
        value_cache_bytes: 32 * MIB,
        headroom_percent: 20,
    };
    assert_eq!(config.cache, fixed);
}

#[test]
fn what_is_wrong_is_told_by_name_with_numbers() {
    let table: &[(&[(&'static str, &str)], &str)] = &[
        (
            &[("client-port", "70000")],
            "FLOWER_CLIENT_PORT is '70000', which is not a whole number from 1 to 65535",
        ),
        (
            &[("client-port", "7701")],
            "FLOWER_CLIENT_PORT 7701, FLOWER_PEER_PORT 7701 and FLOWER_ADMIN_PORT 7702 must differ",
        ),
        (
            &[("workers", "-1")],
            "FLOWER_WORKERS is '-1', which is not a whole number from 1 to 64",
        ),
        (
            &[("limit-record", "2Mi")],
            "FLOWER_LIMIT_RECORD is '2Mi', which is not a number of bytes (Ki, Mi and Gi may follow it) from 1Ki to 768Ki",
        ),
        (
            &[("limit-heap", "32MB")],
            "FLOWER_LIMIT_HEAP is '32MB', which is not a number of bytes (Ki, Mi and Gi may follow it) from 4Mi to 1Gi",
        ),
        (
            &[("listen", "localhost")],
            "FLOWER_LISTEN is 'localhost', which is not an IP address such as 0.0.0.0, :: or 127.0.0.1",
        ),
        (
            &[("advertise", "http://x:1")],
            "FLOWER_ADVERTISE is 'http://x:1', which is not HOST:PORT, such as db-g0-0.db-g0-peers:7701",
        ),
        (
            &[("cache-mode", "big")],
            "FLOWER_CACHE_MODE is 'big', which is not one of auto, fixed",
        ),
        (
            &[("cache-mode", "fixed")],
            "FLOWER_CACHE_MODE is 'fixed', which needs both FLOWER_PAGE_CACHE_BYTES and FLOWER_VALUE_CACHE_BYTES",
        ),
        (
            &[("page-cache-bytes", "64Mi")],
            "FLOWER_PAGE_CACHE_BYTES and FLOWER_VALUE_CACHE_BYTES have no effect while FLOWER_CACHE_MODE is 'auto'; remove them or set FLOWER_CACHE_MODE to 'fixed'",
        ),
    ];
    for (pairs, expected) in table {
        assert_eq!(config(pairs).unwrap_err(), *expected);
    }
    let both = config(&[("workers", "0"), ("log-format", "xml")]).unwrap_err();
    assert_eq!(both.lines().count(), 2, "all of it at once: {both}");
}

#[test]
fn without_tokens_only_loopback_is_listened_on() {
    let refused = Config::from_given(&given(&[]), "h")
        .unwrap_err()
        .to_string();
    assert!(refused.contains("FLOWER_AUTH_DIR"), "{refused}");
    assert!(Config::from_given(&given(&[("listen", "127.0.0.1")]), "h").is_ok());
    assert!(Config::from_given(&given(&[("listen", "::1")]), "h").is_ok());
}

#[test]
fn unknown_variables_are_refused_with_the_nearest_and_service_links_are_not() {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let unknown = unknown_variables(&[
        pair("PATH", "/bin"),
        pair("FLOWER_WORKERS", "3"),
        pair("FLOWER_TOKEN", "x"),
        pair("FLOWER_WORKER", "3"),
        pair("FLOWER_CLENT_PORT", "7700"),
        pair("FLOWER_DB_SERVICE_HOST", "10.0.0.1"),
        pair("FLOWER_DB_SERVICE_PORT", "7700"),
        pair("FLOWER_DB_SERVICE_PORT_CLIENT", "7700"),
        pair("FLOWER_DB_PORT", "tcp://10.0.0.1:7700"),
        pair("FLOWER_PORT_7700_TCP_ADDR", "10.0.0.1"),
        pair("FLOWER_OPERATOR_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
    ]);
    assert_eq!(
        unknown,
        [
            "FLOWER_WORKER is no setting of Flower; did you mean FLOWER_WORKERS?",
            "FLOWER_CLENT_PORT is no setting of Flower; did you mean FLOWER_CLIENT_PORT?",
        ]
    );
}

#[test]
fn every_limit_that_an_error_names_is_a_setting() {
    let known: Vec<String> = SETTINGS.iter().map(Setting::variable).collect();
    assert!(flower_engine::limits::setting::ALL.len() > 15);
    for name in flower_engine::limits::setting::ALL {
        assert!(known.iter().any(|one| one == name), "{name}");
    }
}

#[test]
fn flags_go_before_the_environment_and_are_named_as_flags() {
    let command = clap::Command::new("t").args(SETTINGS.iter().map(Setting::arg));
    let matches = command.get_matches_from(["t", "--workers", "99", "--auth-dir=/a"]);
    let environment = [
        ("FLOWER_WORKERS".to_owned(), "2".to_owned()),
        ("FLOWER_GROUP".to_owned(), "1".to_owned()),
        ("FLOWER_NAME".to_owned(), String::new()),
    ];
    let given = Given::collect(&matches, &environment);
    let refused = Config::from_given(&given, "h").unwrap_err().to_string();
    assert_eq!(
        refused,
        "--workers is '99', which is not a whole number from 1 to 64"
    );
}
