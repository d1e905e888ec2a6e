//! One whole node as a simulated process: the same parts as in production over the world's
//! `Env`. What it is and how it ended stands in the registry, for the driver and the checkers.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use flower_api::sizing::Workload;
use flower_api::{GroupId, MemberId};
use flower_engine::Limits;
use flower_node::{
    auth::Tokens,
    consensus::{Consensus, ConsensusSettings},
    env::{Env, Fatal, SeedTree},
    footprint::Meter,
    host::Host,
    metrics::Metrics,
    node::NodeSettings,
    run::{Parts, Running},
    service::ServeSettings,
};
use flower_store::{DirSettings, SimDisk};
use tokio::sync::mpsc;

use crate::{
    audit::Audit,
    env::{Controls, env},
};

/// The client port of every node.
pub const CLIENT: u16 = flower_api::ports::CLIENT;
/// The peer port.
pub const PEER: u16 = flower_api::ports::PEER;
/// The admin port.
pub const ADMIN: u16 = flower_api::ports::ADMIN;

/// Settings of a node that a plan draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeLimits {
    /// `snapshot.afterLogBytes`.
    pub snapshot_after_log_bytes: u64,
    /// A checkpoint after so many bytes …
    pub checkpoint_bytes: u64,
    /// … or milliseconds.
    pub checkpoint_ms: u64,
    /// redb's page cache for the state.
    pub page_cache_bytes: u64,
    /// Of the log kept in memory.
    pub log_tail_bytes: u64,
    /// Receipts.
    pub retention_ms: u64,
}

impl Default for NodeLimits {
    fn default() -> Self {
        Self {
            snapshot_after_log_bytes: 256 << 10,
            checkpoint_bytes: 64 << 10,
            checkpoint_ms: 1_000,
            page_cache_bytes: 4 << 20,
            log_tail_bytes: 1 << 20,
            retention_ms: flower_api::limits::RECEIPT_RETENTION_MS,
        }
    }
}

/// A node that has opened its data.
#[derive(Clone)]
pub struct Live {
    /// Absent when the data is broken.
    pub consensus: Option<Consensus>,
    /// Why it is broken.
    pub broken: Option<String>,
    /// The directory's life.
    pub member: Option<MemberId>,
    stop: mpsc::UnboundedSender<()>,
}

impl Live {
    /// As SIGTERM does.
    pub fn stop(&self) {
        let _ = self.stop.send(());
    }
}

/// How a process ended by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// It could not go on.
    Fatal(String),
    /// It was asked to.
    Stopped,
}

/// What is known of the processes, by host.
#[derive(Clone, Default)]
pub struct Registry(Arc<Mutex<BTreeMap<String, Entry>>>);

#[derive(Default)]
struct Entry {
    live: Option<Live>,
    exit: Option<Exit>,
    starts: u64,
}

impl Registry {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// The node that runs on a host, once its data is open.
    pub fn live(&self, name: &str) -> Option<Live> {
        self.all().get(name)?.live.clone()
    }
    /// All of them.
    pub fn running(&self) -> Vec<(String, Live)> {
        let all = self.all();
        all.iter()
            .filter_map(|(name, entry)| Some((name.clone(), entry.live.clone()?)))
            .collect()
    }
    /// How the process on a host ended, told once.
    pub fn take_exit(&self, name: &str) -> Option<Exit> {
        let mut all = self.all();
        let entry = all.get_mut(name)?;
        let exit = entry.exit.take()?;
        entry.live = None;
        Some(exit)
    }
    /// The process on a host is no more.
    pub fn forget(&self, name: &str) {
        if let Some(entry) = self.all().get_mut(name) {
            (entry.live, entry.exit) = (None, None);
        }
    }
    fn begin(&self, name: &str) -> u64 {
        let mut all = self.all();
        let entry = all.entry(name.to_owned()).or_default();
        entry.starts += 1;
        entry.starts
    }
    fn set_live(&self, name: &str, live: Live) {
        self.all().entry(name.to_owned()).or_default().live = Some(live);
    }
    fn set_exit(&self, name: &str, exit: Exit) {
        self.all().entry(name.to_owned()).or_default().exit = Some(exit);
    }
}

/// Everything that a host needs to start its process, again and again.
#[derive(Clone)]
pub struct Program {
    /// Host and node.
    pub name: String,
    /// The world's seeds.
    pub seeds: SeedTree,
    /// Settings.
    pub limits: NodeLimits,
    /// The volume.
    pub disk: SimDisk,
    /// Folder of the tokens.
    pub auth: PathBuf,
    /// What may be done to it.
    pub controls: Controls,
    /// The world's.
    pub audit: Audit,
    /// The world's.
    pub registry: Registry,
}

impl Program {
    /// One process, from its start to its end. Whatever the end, it stays until it is taken
    /// down: the driver decides what a power cut has left.
    pub async fn run(self) -> turmoil::Result {
        let start = self.registry.begin(&self.name);
        let seeds = self.seeds.child(&format!("{} {start}", self.name));
        let env = env(seeds, &self.name, &self.disk, &self.audit, &self.controls);
        let exit = match self.serve(&env).await {
            Ok(()) => Exit::Stopped,
            Err(fatal) => Exit::Fatal(fatal.to_string()),
        };
        self.audit.say(format!("{}: ended: {exit:?}", self.name));
        self.registry.set_exit(&self.name, exit);
        std::future::pending().await
    }

    async fn serve(&self, env: &Env) -> Result<(), Fatal> {
        let tasks = env.tasks.clone();
        let running = tokio::select! {
            running = Running::start(self.parts(env)?) => running?,
            fatal = tasks.fatal() => return Err(fatal),
        };
        let (stop, mut asked) = mpsc::unbounded_channel();
        let live = Live {
            consensus: running.node().consensus().cloned(),
            broken: running.node().broken().map(ToOwned::to_owned),
            member: running.node().identity().member,
            stop,
        };
        let member = live.member.map_or_else(|| "none".into(), |m| m.to_string());
        let broken = live.broken.as_deref().unwrap_or("");
        self.audit
            .say(format!("{}: runs, member {member} {broken}", self.name));
        self.registry.set_live(&self.name, live);
        tokio::select! {
            _ = asked.recv() => {}
            fatal = tasks.fatal() => return Err(fatal),
        }
        tokio::select! {
            stopped = running.stop() => stopped,
            fatal = tasks.fatal() => Err(fatal),
        }
    }

    fn parts(&self, env: &Env) -> Result<Parts, Fatal> {
        let at = |port| (Ipv4Addr::UNSPECIFIED, port).into();
        let host = Host::below(&self.auth);
        let tokens = Tokens::open(host.clone(), "/").map_err(|e| Fatal::new(e.to_string()))?;
        let tokens = Arc::new(tokens);
        let limits = &self.limits;
        let node = NodeSettings {
            name: self.name.clone(),
            client_address: format!("{}:{CLIENT}", self.name),
            directory: DirSettings {
                log_cache_bytes: 1 << 20,
                log_tail_bytes: limits.log_tail_bytes,
                page_cache_bytes: limits.page_cache_bytes,
                value_cache_bytes: 1 << 20,
                group: GroupId(0),
            },
            consensus: ConsensusSettings {
                snapshot_after_log_bytes: limits.snapshot_after_log_bytes,
                checkpoint_bytes: limits.checkpoint_bytes,
                checkpoint_every: Duration::from_millis(limits.checkpoint_ms),
                ..ConsensusSettings::new(at(PEER), tokens.clone())
            },
        };
        Ok(Parts {
            env: env.clone(),
            node,
            serve: ServeSettings {
                limits: Limits::default(),
                retention_ms: limits.retention_ms,
                // As many as a node has by default: with fewer no mutation is ever prepared
                // beside another.
                workers: Workload::default().workers,
                ..ServeSettings::default()
            },
            client: at(CLIENT),
            admin: at(ADMIN),
            tokens,
            metrics: Arc::new(Metrics::new()),
            // The host's memory is no part of the world.
            meter: Meter::new(host, None),
            plan: None,
        })
    }
}
