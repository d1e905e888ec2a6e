//! The table of settings. `docs/reference/settings.md` is checked against it.

/// One setting: a flag `--x-y` and a variable `FLOWER_X_Y`.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Name of the flag, without dashes in front.
    pub flag: &'static str,
    /// What kind of value it takes.
    pub value: &'static str,
    /// Default; empty when there is none or it follows from something else.
    pub default: &'static str,
    /// What it does, for people.
    pub help: &'static str,
}

impl Setting {
    /// Name of the variable.
    pub fn variable(&self) -> String {
        format!("FLOWER_{}", self.flag.replace('-', "_").to_uppercase())
    }

    /// The clap flag.
    pub fn arg(&self) -> clap::Arg {
        let variable = self.variable();
        let default = if self.default.is_empty() {
            String::new()
        } else {
            format!(", default {}", self.default)
        };
        clap::Arg::new(self.flag)
            .long(self.flag)
            .value_name(self.value)
            .help(format!("{} [{variable}{default}]", self.help))
    }
}

const fn setting(
    flag: &'static str,
    value: &'static str,
    default: &'static str,
    help: &'static str,
) -> Setting {
    Setting {
        flag,
        value,
        default,
        help,
    }
}

/// Every setting of `flower serve`.
pub const SETTINGS: &[Setting] = &[
    setting(
        "data",
        "DIR",
        "/var/lib/flower",
        "Directory of the data; made when missing",
    ),
    setting(
        "name",
        "NAME",
        "",
        "Name in reports and logs; the host's name when not set",
    ),
    setting(
        "group",
        "NUMBER",
        "0",
        "Raft group of the cluster that this node belongs to",
    ),
    setting(
        "advertise",
        "HOST:PORT",
        "",
        "Address under which peers reach this node; NAME:PEER_PORT when not set",
    ),
    setting("listen", "ADDRESS", "0.0.0.0", "IP address to listen on"),
    setting("client-port", "PORT", "7700", "Port of the client API"),
    setting("peer-port", "PORT", "7701", "Port for the other members"),
    setting(
        "admin-port",
        "PORT",
        "7702",
        "Port of the admin API, health and metrics",
    ),
    setting(
        "auth-dir",
        "DIR",
        "",
        "Directory with the files client, admin and peer, each one token a line; read again when they change. Without it the node listens on loopback only",
    ),
    setting(
        "cache-mode",
        "auto|fixed",
        "auto",
        "Whether caches follow from the memory limit or are given",
    ),
    setting(
        "page-cache-bytes",
        "BYTES",
        "",
        "Page cache of state.redb, with cache-mode fixed",
    ),
    setting(
        "value-cache-bytes",
        "BYTES",
        "",
        "Cache of parsed values, with cache-mode fixed",
    ),
    setting(
        "headroom-percent",
        "PERCENT",
        "20",
        "Part of the memory limit left to the kernel's file cache and to peaks",
    ),
    setting(
        "memory-limit-bytes",
        "BYTES",
        "",
        "Memory limit; the tightest cgroup's, else the host's memory, when not set",
    ),
    setting(
        "snapshot-after-log-bytes",
        "BYTES",
        "16Mi",
        "Announce a snapshot and purge the log after so many bytes",
    ),
    setting(
        "receipt-retention-ms",
        "MILLISECONDS",
        "86400000",
        "How long the outcome of a mutation is kept under its idempotency key",
    ),
    setting("workers", "NUMBER", "3", "JavaScript workers"),
    setting(
        "recent-writes-bytes",
        "BYTES",
        "",
        "Keys written lately that are kept in memory, so that queries and watches learn whether something changed; a 16th of what the value cache gets when not set",
    ),
    setting(
        "query-cache-bytes",
        "BYTES",
        "",
        "Results of queries that are kept in memory; an 8th of what the value cache gets when not set",
    ),
    setting(
        "cors-origins",
        "ORIGINS",
        "",
        "Origins whose pages may call the client API, with commas between them, or * for all; none when not set",
    ),
    setting(
        "watch-heartbeat-ms",
        "MILLISECONDS",
        "10000",
        "How often a watch without news says that there is none",
    ),
    setting(
        "client-stall-ms",
        "MILLISECONDS",
        "30000",
        "A client that takes nothing of what waits for it for so long is let go",
    ),
    setting("log-format", "json|text", "json", "How log lines look"),
    setting(
        "log",
        "FILTER",
        "info,openraft=warn",
        "Which log lines are written: a level, or target=level, several with commas",
    ),
    setting(
        "stop-grace-ms",
        "MILLISECONDS",
        "5000",
        "How long a stopping node goes on serving and forwarding after it turned unready",
    ),
    setting("limit-heap", "BYTES", "32Mi", "JavaScript heap of a worker"),
    setting(
        "limit-wall-ms",
        "MILLISECONDS",
        "1000",
        "Time of one evaluation",
    ),
    setting(
        "limit-gas",
        "NUMBER",
        "20000",
        "Interrupts, each about 10,000 operations, of one evaluation",
    ),
    setting("limit-args", "BYTES", "1Mi", "Arguments of a call"),
    setting("limit-result", "BYTES", "8Mi", "Result of a call"),
    setting("limit-record", "BYTES", "256Ki", "One record"),
    setting("limit-bundle", "BYTES", "8Mi", "A bundle"),
    setting(
        "limit-rows-read",
        "NUMBER",
        "32000",
        "Rows that one call may read",
    ),
    setting(
        "limit-bytes-read",
        "BYTES",
        "16Mi",
        "Bytes that one call may read",
    ),
    setting(
        "limit-rows-written",
        "NUMBER",
        "16000",
        "Rows that one mutation may write",
    ),
    setting(
        "limit-bytes-written",
        "BYTES",
        "16Mi",
        "Bytes that one mutation may write",
    ),
    setting(
        "limit-ranges",
        "NUMBER",
        "4096",
        "Ranges that one call may open",
    ),
    setting(
        "limit-cells",
        "NUMBER",
        "10000",
        "Derived values that one call may evaluate",
    ),
    setting(
        "limit-build-wall-ms",
        "MILLISECONDS",
        "10000",
        "Milliseconds that one page of a build may take; mutations wait meanwhile",
    ),
    setting(
        "limit-build-gas",
        "NUMBER",
        "200000",
        "Steps of about 10,000 operations of one page of a build; one derived value has a tenth of FLOWER_LIMIT_GAS",
    ),
    setting(
        "limit-build-rows-read",
        "NUMBER",
        "1000000",
        "Rows that one page of a build may read",
    ),
    setting(
        "limit-build-bytes-read",
        "BYTES",
        "256Mi",
        "Bytes that one page of a build may read",
    ),
    setting(
        "limit-build-bytes-written",
        "BYTES",
        "32Mi",
        "Bytes that one page of a build may write",
    ),
    setting(
        "limit-build-ranges",
        "NUMBER",
        "100000",
        "Ranges that one page of a build may open",
    ),
    setting(
        "limit-build-cells",
        "NUMBER",
        "100000",
        "Derived values that one page of a build may evaluate",
    ),
    setting(
        "limit-queue",
        "NUMBER",
        "1024",
        "Mutations that may wait at the sequencer; more are refused with 429",
    ),
    setting(
        "limit-watches",
        "NUMBER",
        "1024",
        "Watches at a time; more are refused with 429",
    ),
    setting(
        "limit-watch-queries",
        "NUMBER",
        "1000",
        "Queries of one watch",
    ),
    setting(
        "limit-watch-step",
        "BYTES",
        "8Mi",
        "Values of one step of a watch",
    ),
    setting(
        "limit-watch-opens",
        "NUMBER",
        "100",
        "Watches that may be opened in a second; more are told when to come back",
    ),
];
