//! The settings of `flower serve`: one table that flags, environment and reference are made
//! from, and their validation into [`Config`]. Reads nothing but what it is given; the caller
//! passes the environment.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf};

use clap::parser::ValueSource;
use flower_api::{
    GroupId,
    limits::{self, GIB, KIB, MIB},
    sizing::{CachePolicy, Workload},
};
use flower_engine::limits::BuildLimits;

mod cors;
mod environment;
mod table;
mod value;

pub use cors::CorsOrigins;
pub use environment::{CLI_VARIABLES, unknown_variables};
pub use table::{SETTINGS, Setting};
pub use value::parse_bytes;

/// What is wrong with the settings; one line each, for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct BadSettings(pub Vec<String>);

/// The three ports of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// Client API.
    pub client: u16,
    /// Peers.
    pub peer: u16,
    /// Admin API, health, metrics.
    pub admin: u16,
}

/// Bounds of calls and bundles. Bytes unless named otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct CallLimits {
    pub heap: u64,
    pub wall_ms: u64,
    pub gas: u64,
    pub args: u64,
    pub result: u64,
    pub record: u64,
    pub bundle: u64,
    pub rows_read: u64,
    pub bytes_read: u64,
    pub rows_written: u64,
    pub bytes_written: u64,
    pub ranges: u64,
    pub cells: u64,
    /// Mutations that may wait at the sequencer.
    pub queue: u64,
    /// Of a page of a build.
    pub build: BuildLimits,
}

impl CallLimits {
    /// As the engine takes them.
    pub fn engine(&self) -> flower_engine::js::Limits {
        flower_engine::js::Limits {
            heap_bytes: self.heap,
            stack_bytes: limits::STACK_BYTES,
            gas: self.gas,
            wall_ms: self.wall_ms,
            args_bytes: self.args,
            result_bytes: self.result,
            record_bytes: self.record,
            rows_read: self.rows_read,
            bytes_read: self.bytes_read,
            rows_written: self.rows_written,
            patch_bytes: self.bytes_written,
            ranges: self.ranges,
            cells: self.cells,
            build: self.build,
            call_gas: None,
        }
    }
}

impl Default for CallLimits {
    fn default() -> Self {
        Self {
            heap: limits::HEAP_BYTES,
            wall_ms: limits::WALL_MS,
            gas: limits::GAS,
            args: limits::ARGS_BYTES,
            result: limits::RESULT_BYTES,
            record: limits::RECORD_BYTES,
            bundle: limits::BUNDLE_BYTES,
            rows_read: limits::ROWS_READ,
            bytes_read: limits::BYTES_READ,
            rows_written: limits::ROWS_WRITTEN,
            bytes_written: limits::PATCH_BYTES,
            ranges: limits::RANGES,
            cells: limits::CELLS,
            queue: limits::QUEUE as u64,
            build: BuildLimits::default(),
        }
    }
}

/// Bounds of watches. Bytes unless named otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct WatchLimits {
    pub watches: u64,
    pub queries: u64,
    pub step: u64,
    /// A second.
    pub opens: u64,
    pub heartbeat_ms: u64,
    /// A client that takes nothing for so long is let go.
    pub stall_ms: u64,
}

impl Default for WatchLimits {
    fn default() -> Self {
        Self {
            watches: limits::WATCHES,
            queries: limits::WATCH_QUERIES,
            step: limits::WATCH_STEP_BYTES,
            opens: limits::WATCH_OPENS,
            heartbeat_ms: limits::WATCH_HEARTBEAT_MS,
            stall_ms: limits::CLIENT_STALL_MS,
        }
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

/// The settings of a node, valid together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Directory of the data.
    pub data: PathBuf,
    /// The node's name in reports and logs.
    pub name: String,
    /// Raft group.
    pub group: GroupId,
    /// `host:port` under which peers reach this node.
    pub advertise: String,
    /// Address to listen on.
    pub listen: IpAddr,
    /// Ports to listen on.
    pub ports: Ports,
    /// Directory of the tokens; without one the node listens on loopback only.
    pub auth_dir: Option<PathBuf>,
    /// How caches are sized.
    pub cache: CachePolicy,
    /// Memory limit that replaces the one of the cgroup, bytes.
    pub memory_limit_bytes: Option<u64>,
    /// Announce a snapshot and purge the log after so many bytes.
    pub snapshot_after_log_bytes: u64,
    /// How long receipts are kept, milliseconds.
    pub receipt_retention_ms: u64,
    /// JavaScript workers.
    pub workers: u32,
    /// How log lines look.
    pub log_format: LogFormat,
    /// Which log lines are written, as of `tracing_subscriber::EnvFilter`.
    pub log_filter: String,
    /// How long a stopping node goes on serving, milliseconds.
    pub stop_grace_ms: u64,
    /// Keys written lately that are kept in memory, when not a share of the limit.
    pub recent_bytes: Option<u64>,
    /// Results of queries that are kept, likewise.
    pub query_cache_bytes: Option<u64>,
    /// Watches.
    pub watches: WatchLimits,
    /// Origins whose pages may call.
    pub cors: CorsOrigins,
    /// Bounds of calls.
    pub limits: CallLimits,
}

impl Config {
    /// What of the memory split does not follow from the limit.
    pub fn workload(&self) -> Workload {
        Workload {
            workers: self.workers,
            heap_bytes: self.limits.heap,
            recent_bytes: self.recent_bytes,
            query_cache_bytes: self.query_cache_bytes,
        }
    }

    /// Validates `given`; `host` is the name of the host, the default of FLOWER_NAME.
    ///
    /// # Errors
    /// Everything that is wrong, with the setting's name, the value and what is allowed.
    pub fn from_given(given: &Given, host: &str) -> Result<Self, BadSettings> {
        let mut read = value::Reader::new(given);
        let name = read.text("name").unwrap_or_else(|| host.to_owned());
        let ports = ports(&mut read);
        let advertise = read
            .address("advertise")
            .unwrap_or_else(|| format!("{name}:{}", ports.peer));
        let listen = read.ip("listen");
        let auth_dir = read.text("auth-dir").map(PathBuf::from);
        if auth_dir.is_none() && !listen.is_loopback() {
            read.wrong(format!(
                "FLOWER_AUTH_DIR is not set and FLOWER_LISTEN is {listen}: without tokens a node \
                 listens on loopback only; set FLOWER_AUTH_DIR to a directory with the files \
                 client, admin and peer, or FLOWER_LISTEN to 127.0.0.1"
            ));
        }
        let config = Self {
            data: read.text("data").unwrap_or_default().into(),
            name,
            group: GroupId(read.number("group", 0..=63) as u32),
            advertise,
            listen,
            ports,
            auth_dir,
            cache: cache(&mut read),
            memory_limit_bytes: read.bytes_if_given("memory-limit-bytes", 16 * MIB..=1024 * GIB),
            snapshot_after_log_bytes: read.bytes("snapshot-after-log-bytes", MIB..=1024 * GIB),
            receipt_retention_ms: read.number("receipt-retention-ms", 1_000..=365 * 86_400_000),
            workers: read.number("workers", 1..=64) as u32,
            log_format: read.log_format(),
            log_filter: read.text("log").unwrap_or_default(),
            stop_grace_ms: read.number("stop-grace-ms", 0..=600_000),
            recent_bytes: read.bytes_if_given("recent-writes-bytes", 64 * KIB..=GIB),
            query_cache_bytes: read.bytes_if_given("query-cache-bytes", 64 * KIB..=64 * GIB),
            watches: watch_limits(&mut read),
            cors: cors(&mut read),
            limits: call_limits(&mut read),
        };
        read.finish(config)
    }
}

fn ports(read: &mut value::Reader<'_>) -> Ports {
    let mut port = |name| read.number(name, 1..=65_535) as u16;
    let ports = Ports {
        client: port("client-port"),
        peer: port("peer-port"),
        admin: port("admin-port"),
    };
    if ports.client == ports.peer || ports.peer == ports.admin || ports.client == ports.admin {
        read.wrong(format!(
            "FLOWER_CLIENT_PORT {}, FLOWER_PEER_PORT {} and FLOWER_ADMIN_PORT {} must differ",
            ports.client, ports.peer, ports.admin
        ));
    }
    ports
}

fn cache(read: &mut value::Reader<'_>) -> CachePolicy {
    let mode = read.one_of("cache-mode", &["auto", "fixed"]);
    let headroom_percent = read.number("headroom-percent", 5..=80) as u8;
    let pages = read.bytes_if_given("page-cache-bytes", 4 * MIB..=1024 * GIB);
    let values = read.bytes_if_given("value-cache-bytes", MIB..=1024 * GIB);
    match (mode, pages, values) {
        ("fixed", Some(page_cache_bytes), Some(value_cache_bytes)) => CachePolicy::Fixed {
            page_cache_bytes,
            value_cache_bytes,
            headroom_percent,
        },
        ("fixed", _, _) => {
            read.wrong(
                "FLOWER_CACHE_MODE is 'fixed', which needs both FLOWER_PAGE_CACHE_BYTES and \
                 FLOWER_VALUE_CACHE_BYTES"
                    .to_owned(),
            );
            CachePolicy::default()
        }
        (_, None, None) => CachePolicy::Auto { headroom_percent },
        _ => {
            read.wrong(
                "FLOWER_PAGE_CACHE_BYTES and FLOWER_VALUE_CACHE_BYTES have no effect while \
                 FLOWER_CACHE_MODE is 'auto'; remove them or set FLOWER_CACHE_MODE to 'fixed'"
                    .to_owned(),
            );
            CachePolicy::default()
        }
    }
}

fn watch_limits(read: &mut value::Reader<'_>) -> WatchLimits {
    WatchLimits {
        watches: read.number("limit-watches", 1..=1_000_000),
        queries: read.number("limit-watch-queries", 1..=100_000),
        step: read.bytes("limit-watch-step", KIB..=256 * MIB),
        opens: read.number("limit-watch-opens", 1..=1_000_000),
        heartbeat_ms: read.number("watch-heartbeat-ms", 100..=15_000),
        stall_ms: read.number("client-stall-ms", 1_000..=600_000),
    }
}

fn cors(read: &mut value::Reader<'_>) -> CorsOrigins {
    let text = read.text("cors-origins").unwrap_or_default();
    text.parse().unwrap_or_else(|why: String| {
        read.wrong(format!("FLOWER_CORS_ORIGINS: {why}"));
        CorsOrigins::default()
    })
}

fn call_limits(read: &mut value::Reader<'_>) -> CallLimits {
    CallLimits {
        heap: read.bytes("limit-heap", 4 * MIB..=GIB),
        wall_ms: read.number("limit-wall-ms", 10..=60_000),
        gas: read.number("limit-gas", 100..=10_000_000),
        args: read.bytes("limit-args", KIB..=16 * MIB),
        result: read.bytes("limit-result", KIB..=64 * MIB),
        // A record with its key fits a frame of an image.
        record: read.bytes("limit-record", KIB..=limits::FRAME_BYTES * 3 / 4),
        bundle: read.bytes("limit-bundle", KIB..=16 * MIB),
        rows_read: read.number("limit-rows-read", 1..=10_000_000),
        bytes_read: read.bytes("limit-bytes-read", KIB..=GIB),
        rows_written: read.number("limit-rows-written", 1..=1_000_000),
        // Any entry can be sent to a peer in one message.
        bytes_written: read.bytes("limit-bytes-written", KIB..=limits::PEER_MESSAGE_BYTES / 2),
        ranges: read.number("limit-ranges", 1..=1_000_000),
        cells: read.number("limit-cells", 1..=1_000_000),
        queue: read.number("limit-queue", 1..=1_000_000),
        build: build_limits(read),
    }
}

fn build_limits(read: &mut value::Reader<'_>) -> BuildLimits {
    BuildLimits {
        // A page has two minutes, waiting included.
        wall_ms: read.number("limit-build-wall-ms", 10..=60_000),
        gas: read.number("limit-build-gas", 100..=100_000_000),
        rows_read: read.number("limit-build-rows-read", 1..=100_000_000),
        bytes_read: read.bytes("limit-build-bytes-read", KIB..=16 * GIB),
        patch_bytes: read.bytes(
            "limit-build-bytes-written",
            KIB..=limits::PEER_MESSAGE_BYTES / 2,
        ),
        ranges: read.number("limit-build-ranges", 1..=10_000_000),
        cells: read.number("limit-build-cells", 1..=10_000_000),
    }
}

/// Values as they were given, by flag name, with where each came from.
#[derive(Debug, Clone, Default)]
pub struct Given(BTreeMap<&'static str, (String, Source)>);

/// Where a value came from; a refusal names it that way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Flag,
    Environment,
}

impl Given {
    /// Values as of flags.
    pub fn of(values: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        let flags = values
            .into_iter()
            .map(|(flag, value)| (flag, (value, Source::Flag)));
        Self(flags.collect())
    }

    /// Flags go before the environment; an empty variable counts as not set.
    pub fn collect(matches: &clap::ArgMatches, environment: &[(String, String)]) -> Self {
        let mut given = BTreeMap::new();
        for setting in SETTINGS {
            let flag = (matches.value_source(setting.flag) == Some(ValueSource::CommandLine))
                .then(|| matches.get_one::<String>(setting.flag).cloned())
                .flatten();
            let variable = setting.variable();
            let from_environment = || {
                let found = environment.iter().find(|(name, _)| *name == variable);
                found
                    .map(|(_, value)| value.clone())
                    .filter(|value| !value.is_empty())
            };
            if let Some(value) = flag {
                given.insert(setting.flag, (value, Source::Flag));
            } else if let Some(value) = from_environment() {
                given.insert(setting.flag, (value, Source::Environment));
            }
        }
        Self(given)
    }
}

#[cfg(test)]
mod tests;
