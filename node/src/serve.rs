//! `flower serve`: from settings and limits to a running node, and from a signal to its end.
//! An edge of the program: it reads the environment, installs the panic hook and owns the
//! runtime. What a node is made of is [`crate::node`]'s.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod parts;
mod signals;

use std::{process::ExitCode, sync::Arc, time::Duration};

use flower_api::{
    limits::MIB,
    sizing::{self, MemoryPlan},
};

use crate::{
    auth::Tokens,
    cgroup::{Cgroup, LimitSource, memory_limit},
    cli::exit,
    config::{BadSettings, Config, Given, unknown_variables},
    env::Fatal,
    footprint::Meter,
    host::Host,
    logging,
    run::Running,
};

pub(crate) use parts::parts;
pub(crate) use signals::Signals;

/// Everything that is known before the node's data is touched.
#[derive(Debug)]
pub struct Prepared {
    /// The settings.
    pub config: Config,
    /// The memory limit, split.
    pub plan: MemoryPlan,
    /// Where the limit comes from.
    pub limit_source: LimitSource,
    /// Measures the process.
    pub meter: Meter,
    /// The tokens.
    pub tokens: Arc<Tokens>,
}

impl Prepared {
    /// Splits the memory limit and reads the tokens.
    ///
    /// # Errors
    /// What does not fit or cannot be read, for people, with numbers.
    pub fn new(config: Config, host: Host) -> Result<Self, String> {
        let cgroup = Cgroup::find(&host);
        let (limit, limit_source) = match config.memory_limit_bytes {
            Some(bytes) => (bytes, LimitSource::Setting),
            None => memory_limit(&host, cgroup.as_ref()).ok_or(
                "this host does not tell how much memory there is; set FLOWER_MEMORY_LIMIT_BYTES",
            )?,
        };
        let plan = sizing::split(limit, config.cache, config.workload())
            .map_err(|e| format!("{e} (limit of {limit_source})"))?;
        let tokens = match &config.auth_dir {
            Some(dir) => Tokens::open(host.clone(), dir).map_err(|e| e.to_string())?,
            None => Tokens::off(),
        };
        let meter = Meter::new(host, cgroup);
        Ok(Self {
            config,
            plan,
            limit_source,
            meter,
            tokens: Arc::new(tokens),
        })
    }

    /// Says how memory is split.
    fn announce(&self) {
        let mib = |bytes: u64| bytes / MIB;
        let plan = &self.plan;
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            name = self.config.name,
            source = %self.limit_source,
            limit_mib = mib(plan.limit_bytes),
            program_mib = mib(plan.fixed_bytes),
            javascript_mib = mib(plan.heaps_bytes),
            log_mib = mib(plan.log_bytes + plan.log_page_cache_bytes),
            page_cache_mib = mib(plan.page_cache_bytes),
            value_cache_mib = mib(plan.value_cache_bytes),
            recent_mib = mib(plan.recent_bytes),
            query_cache_mib = mib(plan.query_cache_bytes),
            headroom_mib = mib(plan.headroom_bytes),
            "memory is split"
        );
    }
}

/// The settings of this process.
fn read_settings(matches: &clap::ArgMatches, host: &Host) -> Result<Config, BadSettings> {
    let environment: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let name = host.read("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = if name.trim().is_empty() {
        "flower"
    } else {
        name.trim()
    };
    let config = Config::from_given(&Given::collect(matches, &environment), name);
    let mut wrong = unknown_variables(&environment);
    match config {
        Ok(config) if wrong.is_empty() => Ok(config),
        Ok(_) => Err(BadSettings(wrong)),
        Err(BadSettings(more)) => {
            wrong.extend(more);
            Err(BadSettings(wrong))
        }
    }
}

/// A panic is a bug: the process must not go on with half of it. Opening the files is the
/// exception; a damaged file makes the storage library panic, and the node becomes Broken.
pub(crate) fn abort_on_panic() {
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        told(info);
        if !flower_store::data_dir::is_opening() {
            std::process::abort();
        }
    }));
}

/// The runtime of a node.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    runtime.map_err(|e| format!("the runtime cannot start: {e}"))
}

/// How long a node waits for the end of a process that holds its data.
const LOCK_PATIENCE: Duration = Duration::from_secs(30);

/// Runs a node until a signal or a fatal error.
pub fn run(matches: &clap::ArgMatches) -> ExitCode {
    let host = Host::default();
    let prepared = read_settings(matches, &host).map_err(|e| e.to_string());
    let prepared = prepared.and_then(|config| {
        logging::start(config.log_format, &config.log_filter).map_err(|e| e.to_string())?;
        let prepared = Prepared::new(config, host)?;
        prepared.announce();
        abort_on_panic();
        Ok((prepared, runtime()?))
    });
    let (prepared, runtime) = match prepared {
        Ok(ready) => ready,
        Err(why) => {
            eprintln!("flower: {why}");
            return ExitCode::from(exit::FAILED);
        }
    };
    match runtime.block_on(until_stopped(prepared)) {
        Ok(()) => {
            tracing::info!("stopped");
            ExitCode::SUCCESS
        }
        Err(fatal) => {
            tracing::error!(reason = %fatal, "the node ends");
            eprintln!("flower: {fatal}");
            ExitCode::from(exit::FATAL)
        }
    }
}

async fn until_stopped(prepared: Prepared) -> Result<(), Fatal> {
    let mut signals = Signals::new()?;
    let parts = tokio::select! {
        parts = parts(prepared, LOCK_PATIENCE) => parts?,
        name = signals.next() => {
            tracing::info!(signal = name, "stopped while another process held the data");
            return Ok(());
        }
    };
    let tasks = parts.env.tasks.clone();
    let running = tokio::select! {
        running = Running::start(parts) => running?,
        fatal = tasks.fatal() => return Err(fatal),
        // Nothing was served yet, and what is on the disk is safe at any moment.
        name = signals.next() => {
            tracing::info!(signal = name, "stopped before the data was open");
            return Ok(());
        }
    };
    tokio::select! {
        name = signals.next() => tracing::info!(signal = name, "stopping"),
        fatal = tasks.fatal() => return Err(fatal),
    }
    tokio::select! {
        stopped = running.stop() => stopped,
        fatal = tasks.fatal() => Err(fatal),
        name = signals.next() => {
            tracing::warn!(signal = name, "asked to stop a second time: ending at once");
            Ok(())
        }
    }
}
