//! What serves clients on a running node: workers, the writer, the router and the reader over
//! one consensus, and the assembly of the node's report. HTTP is `http`; the node's life is
//! `node`.

use std::{sync::Arc, time::Duration};

use flower_api::{
    admin::{Bootstrap, Done, Fence},
    limits,
    report::{DeploymentInfo, Footprint, Identity, Lifecycle, Report},
    sizing::MemoryPlan,
    wire::{Problem, ReadClass, code},
};
use flower_engine::{
    Limits, Space, View, deploy,
    key::meta,
    lane::{LaneSettings, Mark, Work},
    receipt::{self, IdempotencyKey, Receipt, Scope},
};
use flower_store::FileName;

use tokio::sync::Semaphore;

use crate::{
    builder::Builder,
    config::{CorsOrigins, WatchLimits},
    consensus::Consensus,
    deploy::builds,
    env::{Env, Fatal, Mono},
    footprint::Meter,
    forward::Forwarder,
    metrics::{CacheUse, FileUse, Metrics, Observed},
    prepare,
    query::Queries,
    read::Reader,
    route::Router,
    watch::{self, Watches},
    workers::Workers,
    write::{Writer, WriterParts, unknown},
};

/// What a node serves with.
#[derive(Debug, Clone)]
pub struct ServeSettings {
    /// Bounds of an evaluation.
    pub limits: Limits,
    /// A bundle, bytes (`FLOWER_LIMIT_BUNDLE`).
    pub bundle_bytes: u64,
    /// Calls that may wait (`FLOWER_LIMIT_QUEUE`).
    pub queue: usize,
    /// JavaScript workers.
    pub workers: u32,
    /// How long receipts are kept, milliseconds.
    pub retention_ms: u64,
    /// How long a call may take in all, waiting for a leader included.
    pub deadline: Duration,
    /// How far the admin port is above the peers', on every node of the group.
    pub admin_above_peer: i32,
    /// How long a stopping node goes on serving after it turned unready.
    pub stop_grace: Duration,
    /// Results of queries that are kept, bytes.
    pub query_cache_bytes: u64,
    /// Watches.
    pub watches: WatchLimits,
    /// Origins whose pages may call.
    pub cors: CorsOrigins,
}

impl Default for ServeSettings {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            bundle_bytes: limits::BUNDLE_BYTES,
            queue: limits::QUEUE,
            workers: 2,
            retention_ms: limits::RECEIPT_RETENTION_MS,
            deadline: Duration::from_secs(10),
            admin_above_peer: 1,
            stop_grace: Duration::from_secs(5),
            query_cache_bytes: limits::QUERY_CACHE_BYTES,
            watches: WatchLimits::default(),
            cors: CorsOrigins::default(),
        }
    }
}

impl From<&crate::config::Config> for ServeSettings {
    fn from(config: &crate::config::Config) -> Self {
        let calls = &config.limits;
        Self {
            limits: Limits {
                heap_bytes: calls.heap,
                gas: calls.gas,
                wall_ms: calls.wall_ms,
                args_bytes: calls.args,
                result_bytes: calls.result,
                record_bytes: calls.record,
                rows_read: calls.rows_read,
                bytes_read: calls.bytes_read,
                rows_written: calls.rows_written,
                patch_bytes: calls.bytes_written,
                ranges: calls.ranges,
                ..Limits::default()
            },
            bundle_bytes: calls.bundle,
            queue: calls.queue as usize,
            workers: config.workers,
            retention_ms: config.receipt_retention_ms,
            admin_above_peer: i32::from(config.ports.admin) - i32::from(config.ports.peer),
            stop_grace: Duration::from_millis(config.stop_grace_ms),
            watches: config.watches,
            cors: config.cors.clone(),
            ..Self::default()
        }
    }
}

/// A node that serves. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    /// The world.
    pub env: Env,
    /// Replication.
    pub consensus: Consensus,
    /// Threads that run code of users.
    pub workers: Workers,
    /// Mutations.
    pub router: Router,
    /// Queries.
    pub reader: Reader,
    /// Their outcomes.
    pub queries: Queries,
    /// Watches.
    pub watches: Watches,
    /// Drives builds of deployments.
    pub(crate) builder: Builder,
    /// What it serves with.
    pub settings: Arc<ServeSettings>,
    /// One export at a time.
    pub(crate) exporting: Arc<Semaphore>,
    name: Arc<str>,
    meter: Arc<Meter>,
    plan: Option<MemoryPlan>,
}

impl Service {
    /// Starts serving over `consensus`. `name` is the one that the node was started under.
    pub fn start(
        env: &Env,
        consensus: &Consensus,
        settings: ServeSettings,
        name: &str,
        metrics: &Arc<Metrics>,
        meter: Meter,
        plan: Option<MemoryPlan>,
    ) -> Self {
        let workers = Workers::new(env, settings.limits, settings.workers, settings.queue);
        let writer = Writer::start(
            WriterParts {
                env: env.clone(),
                consensus: consensus.clone(),
                workers: workers.clone(),
                metrics: metrics.clone(),
                retention_ms: settings.retention_ms,
            },
            LaneSettings {
                // One worker is kept for queries.
                parallel: settings.workers.saturating_sub(1).max(1) as usize,
                queue: settings.queue,
                ..LaneSettings::default()
            },
        );
        let bounds = watch::bounds(&settings.watches);
        let cache_bytes = settings.query_cache_bytes;
        let queries = Queries::new(env, consensus, &workers, cache_bytes, bounds);
        // An answer is a result, or a problem with its data.
        let answer_bytes = settings.limits.result_bytes + limits::MIB;
        let forwarder = Forwarder::new(env, answer_bytes as usize);
        let router = Router::new(env, consensus, writer, forwarder);
        let service = Self {
            env: env.clone(),
            consensus: consensus.clone(),
            builder: Builder::start(env, consensus, &router),
            router,
            reader: Reader::new(env, consensus, &queries),
            watches: Watches::start(env, consensus, &queries, settings.watches),
            queries,
            workers,
            settings: Arc::new(settings),
            exporting: Arc::new(Semaphore::new(1)),
            name: name.into(),
            meter: Arc::new(meter),
            plan,
        };
        let watched = service.clone();
        env.tasks
            .spawn("worker watch", async move { watched.watch_workers().await });
        service
    }

    /// Threads cannot be killed: with so many of them stuck, leadership is handed over and
    /// the process ends, to be started again.
    async fn watch_workers(self) -> Result<(), Fatal> {
        tokio::select! {
            () = self.env.tasks.stopping() => return Ok(()),
            () = self.workers.exhausted() => {}
        }
        tracing::error!(
            stuck = self.workers.stuck(),
            "half of the workers are stuck"
        );
        if let Err(problem) = self.consensus.hand_over().await {
            tracing::warn!(%problem, "leadership was not handed over");
        }
        Err(Fatal::new(
            "half of the workers are stuck in calls that do not stop; the process starts anew. \
             The log names the bundle",
        ))
    }

    /// Refuses calls on a node that takes no part in a group: they would only wait.
    ///
    /// # Errors
    /// `not-ready`.
    pub fn takes_part(&self) -> Result<(), Box<Problem>> {
        let why = match self.consensus.lifecycle() {
            Lifecycle::Joining | Lifecycle::Member => return Ok(()),
            Lifecycle::Uninitialized => "this node belongs to no cluster yet",
            Lifecycle::Removed => "this node was removed from its group",
            Lifecycle::Broken => "the data of this node cannot be read",
        };
        let detail = format!("{why}; ask another one");
        Err(Box::new(
            Problem::new(503, code::NOT_READY, "Not ready", detail).retryable(),
        ))
    }

    /// Why mutations are refused for want of space, if they are.
    pub fn storage_full(&self) -> Option<Problem> {
        let full = self.consensus.without_room();
        if full.is_empty() {
            return None;
        }
        let members: Vec<String> = full.iter().map(ToString::to_string).collect();
        let reserve = self.consensus.disk().reserve_bytes >> 20;
        let detail = format!(
            "the volumes of members {} have less free than their reserve (the leader's is {reserve} \
             MiB): enlarge them or free space on them. Reads go on",
            members.join(", ")
        );
        let problem = Problem::new(503, code::STORAGE_FULL, "Storage full", detail);
        Some(problem.retryable().setting("storage.size"))
    }

    /// Who this node is.
    pub fn identity(&self) -> Identity {
        let me = self.consensus.me();
        Identity {
            cluster: me.cluster(),
            group: me.group,
            member: Some(me.member),
            lifecycle: self.consensus.lifecycle(),
            broken: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            name: self.name.to_string(),
        }
    }

    /// Everything the node says of itself; `verdict` is why it is not ready, if it is not.
    ///
    /// # Errors
    /// When the state cannot be read.
    pub fn report(&self, verdict: Option<String>) -> Result<Report, Fatal> {
        let unreadable = |e: flower_engine::ViewError| Fatal::new(e.to_string());
        let consensus = self.consensus.report();
        let view = self.consensus.view();
        let formed = view.get(Space::Meta, meta::FORMED).map_err(unreadable)?;
        let owner = prepare::owner(&*view).map_err(unreadable)?;
        let deployment = self.deployment(&*view).map_err(unreadable)?;
        Ok(Report {
            identity: self.identity(),
            role: consensus.role,
            term: consensus.term,
            leader: consensus.leader,
            quorum_lease: consensus.quorum_lease,
            configuration: consensus.configuration,
            positions: consensus.positions,
            followers: consensus.followers,
            formed: formed.is_some(),
            recovery: self.consensus.me().recovery(),
            owner,
            deployment,
            ready: verdict.is_none(),
            not_ready: verdict,
            images_received: consensus.images_received,
            replayed_entries: consensus.replayed_entries,
            full_repairs: consensus.full_repairs,
            state_checksum: consensus.state_checksum,
            footprint: self.footprint(),
            disk: self.consensus.disk(),
        })
    }

    fn deployment(
        &self,
        view: &dyn View,
    ) -> Result<Option<DeploymentInfo>, flower_engine::ViewError> {
        let Some((hash, revision, _)) = deploy::active(view)? else {
            return Ok(None);
        };
        let functions = deploy::load(view, &hash)?
            .map(|d| d.manifest.functions.keys().cloned().collect())
            .unwrap_or_default();
        let (build, failed_build) = builds(view)?;
        Ok(Some(DeploymentInfo {
            hash,
            revision,
            functions,
            build,
            failed_build,
        }))
    }

    fn footprint(&self) -> Footprint {
        let (state, log) = (self.consensus.state_stats(), self.consensus.log_stats());
        self.meter.measure(Footprint {
            page_cache_bytes: state.page_cache.bytes,
            log_page_cache_bytes: log.page_cache_bytes,
            value_cache_bytes: state.value_cache.bytes,
            javascript_bytes: self.workers.heap_bytes(),
            log_tail_bytes: log.tail_bytes,
            state_file_bytes: state.file_bytes,
            stored_bytes: state.totals.stored_bytes(),
            log_file_bytes: self.log_file_bytes().unwrap_or(0),
            receipts: state.receipts,
            plan: self.plan,
            ..Footprint::default()
        })
    }

    /// Size of `raft.redb`; absent when the disk does not say.
    fn log_file_bytes(&self) -> Option<u64> {
        self.env.disk.len(FileName::Log).ok().flatten()
    }

    fn query_cache(&self) -> CacheUse {
        let stats = self.queries.board().cache_stats();
        CacheUse {
            bytes: stats.bytes,
            hits: Some(stats.hits),
            misses: Some(stats.misses),
            evictions: Some(stats.evictions),
        }
    }

    /// What the metrics show and the report does not hold.
    pub fn observed(&self) -> Observed {
        let state = self.consensus.state_stats();
        let log_file = self.log_file_bytes().map(|bytes| FileUse {
            bytes,
            ..FileUse::default()
        });
        Observed {
            page_caches: vec![
                (
                    "state",
                    CacheUse {
                        bytes: state.page_cache.bytes,
                        hits: Some(state.page_cache.hits),
                        misses: Some(state.page_cache.misses),
                        evictions: Some(state.page_cache.evictions),
                    },
                ),
                (
                    "raft",
                    CacheUse {
                        bytes: self.consensus.log_stats().page_cache_bytes,
                        ..CacheUse::default()
                    },
                ),
            ],
            value_cache: Some(CacheUse {
                bytes: state.value_cache.bytes,
                hits: Some(state.value_cache.hits),
                misses: Some(state.value_cache.misses),
                evictions: None,
            }),
            recent_bytes: Some(self.consensus.recent().with(|ring| ring.bytes())),
            query_cache: Some(self.query_cache()),
            query_evaluations: Some(self.queries.evaluations()),
            watches: Some(self.watches.stats()),
            files: vec![(
                "state",
                FileUse {
                    bytes: state.file_bytes,
                    allocated: state.allocated_bytes,
                    fragmented: state.fragmented_bytes,
                },
            )]
            .into_iter()
            .chain(log_file.map(|file| ("raft", file)))
            .collect(),
            records: Space::ALL
                .iter()
                .map(|space| (space.name(), state.totals.records_in(*space)))
                .collect(),
            receipt_bytes: Some(state.receipt_bytes),
            workers_stuck: Some(self.workers.stuck()),
            apply_lag_seconds: None,
            view_oldest_age_seconds: Some(self.consensus.oldest_view_ms() as f64 / 1_000.0),
            oom_kills: self.meter.oom_kills(),
        }
    }

    /// Acts for the FlowerCluster that a call comes from, if it comes from one: its uid and
    /// generation are stored, or refused.
    ///
    /// # Errors
    /// `stale-spec`, `not-leader`.
    pub async fn act_for(&self, fence: &Fence, deadline: Mono) -> Result<(), Box<Problem>> {
        if fence.uid.is_empty() {
            return Ok(());
        }
        let mark = Mark::Owner {
            uid: fence.uid.clone(),
            generation: fence.generation,
            adopt: fence.adopt,
        };
        self.router.lead(Work::Mark(mark), deadline).await.map(drop)
    }

    /// Marks the group as having reached its size.
    ///
    /// # Errors
    /// `not-leader`, `timeout`.
    pub async fn form(&self, deadline: Mono) -> Result<Done, Box<Problem>> {
        let work = Work::Mark(Mark::Formed);
        self.router.lead(work, deadline).await?;
        Ok(self.done())
    }

    /// Makes this node the first member of a group, and stores for whom. A group of one is
    /// formed at once. Repeated after an interruption it goes on where that was.
    ///
    /// # Errors
    /// `already-initialized`, `wrong-member`, `stale-spec`.
    pub async fn bootstrap(&self, call: &Bootstrap, deadline: Mono) -> Result<Done, Box<Problem>> {
        self.consensus.bootstrap(call).await?;
        let mut leadership = self.consensus.leadership();
        let elected = leadership.wait_for(Option::is_some);
        if !matches!(self.env.until(deadline, elected).await, Some(Ok(_))) {
            return Err(Box::new(unknown()));
        }
        self.act_for(&call.fence, deadline).await?;
        match call.size {
            0 | 1 => self.form(deadline).await,
            _ => Ok(self.done()),
        }
    }

    /// The configuration now.
    pub fn done(&self) -> Done {
        let configuration = self.consensus.report().configuration;
        Done {
            configuration: configuration.map(|c| c.version),
        }
    }

    /// What is known under a key, on the leader: under way, or stored, as a fresh read.
    ///
    /// # Errors
    /// As a fresh read.
    pub async fn receipt(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        deadline: Mono,
    ) -> Result<Found, Box<Problem>> {
        // First the lane: what ends in between is in the view that is taken after it.
        let writer = self.router.writer();
        if writer.in_flight(scope.record_key(key)).await {
            return Ok(Found::InFlight);
        }
        let view = self.reader.view(ReadClass::Fresh, deadline).await?;
        match receipt::find(&*view, scope, key) {
            Ok(Some(receipt)) => Ok(Found::Stored(Box::new(receipt))),
            Ok(None) => Ok(Found::Nothing),
            Err(error) => {
                self.env.tasks.fail(Fatal::new(error.to_string()));
                Err(Box::new(unknown()))
            }
        }
    }
}

/// What is known under an idempotency key.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    /// Its outcome.
    Stored(Box<Receipt>),
    /// It is under way.
    InFlight,
    /// Nothing.
    Nothing,
}
