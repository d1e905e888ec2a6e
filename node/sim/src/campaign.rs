//! One seed's world from its beginning to its verdict: a cluster grows, clients work, faults
//! come and end, and then everything must be as promised. And many of them.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use flower_load::{
    history::{History, Op, Outcome},
    watcher::{self, Current, Watched},
    workload::{Clients, MONEY},
};
use flower_store::{
    Disk,
    sabotage::{self, Break},
};
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    APP,
    admin::SimAdmin,
    check::{self, observer::Observer},
    cluster::Cluster,
    entropy,
    faults::{self, Faults},
    http::Http,
    kube::Kube,
    kubelet,
    node::Exit,
    operator::{self, host},
    plan::{Fault, NODES_MAX, Plan},
    watch,
    world::{ADMIN_TOKEN, Shape, World},
};

/// A cluster without faults is formed within this.
const FORMS: Duration = Duration::from_secs(60);
/// After the faults everything is as it should be within this.
pub const HEALS: Duration = Duration::from_secs(120);
/// Clients end their last calls within this.
const DRAINS: Duration = Duration::from_secs(60);
/// Every so often Kubernetes has its turn, steps.
const KUBELET_EVERY: u64 = 20;

/// What to run.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Decides everything.
    pub seed: u64,
    /// How long clients work under faults, seconds of the world's time.
    pub seconds: u64,
    /// One thing that is broken on purpose.
    pub broken: Option<Break>,
    /// Nodes' logs go to standard error.
    pub log: bool,
    /// Keeps all that goes into the hash.
    pub trace: bool,
}

/// What came of it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Verdict {
    /// The seed.
    pub seed: u64,
    /// Hash of every frame, disk operation and job.
    pub hash: String,
    /// How much went into it.
    pub hashed: u64,
    /// The world's time at its end, milliseconds.
    pub world_ms: u64,
    /// Calls of clients.
    pub calls: usize,
    /// Of them, acknowledged writes.
    pub written: usize,
    /// Of them, writes of unknown outcome.
    pub unknown: usize,
    /// Of them, answered reads.
    pub read: usize,
    /// States that were reached, and how often.
    pub reached: BTreeMap<String, u64>,
    /// What was violated.
    pub failure: Option<String>,
    /// The plan and the last events, when something was.
    pub story: Vec<String>,
    /// The hash after each step, and the step, when that was wanted.
    #[serde(skip)]
    pub trace: Vec<(u64, String)>,
}

/// Runs one world. One process runs one world only: what libraries keep for a whole process
/// would make the second one another.
pub fn run(settings: Settings) -> Verdict {
    entropy::with_seed(settings.seed, || {
        sabotage::set(settings.broken);
        sabotage::take_reached();
        let plan = Plan::from_seed(settings.seed, settings.seconds);
        let mut driver = Driver::new(plan);
        if settings.trace {
            driver.world.audit.trace();
        }
        let _logs = watch::logs(&driver.world.audit, settings.log);
        let ended = catch_unwind(AssertUnwindSafe(|| driver.live()));
        let failure = match ended {
            Ok(ended) => ended.err(),
            Err(_) => Some(format!("a panic: {}", watch::last_panic())),
        };
        let verdict = driver.verdict(failure);
        // A world that panicked may panic again when it is dropped.
        let _ = catch_unwind(AssertUnwindSafe(move || drop(driver)));
        verdict
    })
}

struct Driver {
    plan: Plan,
    world: World,
    kube: Kube,
    clients: Clients,
    watched: Watched,
    observer: Observer,
    faults: Faults,
    rng: StdRng,
    steps: u64,
    stale: u32,
    /// A stale call that was accepted.
    accepted: Arc<Mutex<Option<String>>>,
}

impl Driver {
    fn new(plan: Plan) -> Self {
        let mut world = World::new(&Shape {
            seed: plan.seed,
            hosts: (0..NODES_MAX).map(host).collect(),
            limits: plan.limits,
            latency_ms: plan.latency_ms,
            disk_bytes: plan.disk_bytes,
        });
        for ordinal in 0..NODES_MAX {
            world.crash(&host(ordinal), false);
        }
        let kube = Kube::default();
        {
            let mut objects = kube.objects();
            objects.replicas = plan.replicas;
            objects.generation = 1;
            objects.bundle = APP.into();
            objects.set_replicas = Some(plan.replicas);
        }
        world.spawn_operator(&kube);
        let clients = Clients {
            workload: plan.workload.clone(),
            hosts: (0..plan.replicas).map(host).collect(),
            history: History::default(),
            serial: Arc::new(AtomicU64::new(0)),
            stop: Arc::new(AtomicBool::new(false)),
        };
        let mut others = vec!["op".to_owned()];
        others.extend((0..plan.workload.clients).map(client));
        others.extend((0..plan.workload.watchers).map(watcher));
        let rng = world.seeds.child("faults").rng();
        let faults = Faults::new(rng, plan.latency_ms, plan.disk_bytes, others);
        Self {
            rng: world.seeds.child("driver").rng(),
            plan,
            world,
            kube,
            clients,
            watched: Watched::default(),
            observer: Observer::default(),
            faults,
            steps: 0,
            stale: 0,
            accepted: Arc::default(),
        }
    }

    /// The whole life.
    fn live(&mut self) -> Result<(), String> {
        self.until("the cluster is formed", FORMS, |driver| driver.is_formed())?;
        for number in 0..self.plan.workload.clients {
            let name = client(number);
            let (all, audit) = (self.clients.clone(), self.world.audit.clone());
            let seeds = self.world.seeds.clone();
            let at = name.clone();
            self.world.spawn(&name, async move {
                if number == 0 {
                    all.clone().open(&Cluster::new(&at, &audit)).await;
                }
                let number = number + 1;
                let rng = seeds.child(&format!("client {number}")).rng();
                all.run(number, Cluster::new(&at, &audit), rng).await;
            });
        }
        self.spawn_watchers();
        let accounts = self.plan.workload.accounts as usize;
        self.until("accounts are open", FORMS, |driver| {
            let ops = driver.clients.history.ops();
            let open = |op: &&Op| op.client == 0 && op.ended.is_some();
            ops.iter().filter(open).count() == accounts
        })?;
        self.suffer()?;
        self.faults.heal(&mut self.world, &self.kube);
        self.recover()?;
        self.judge()
    }

    fn spawn_watchers(&mut self) {
        for number in 0..self.plan.workload.watchers {
            let (name, audit) = (watcher(number), self.world.audit.clone());
            let rng = self.world.seeds.child(&name).rng();
            let (clients, watched) = (self.clients.clone(), self.watched.clone());
            let at = name.clone();
            self.world.spawn(&name, async move {
                let target = Cluster::new(&at, &audit);
                watcher::run(number, target, rng, clients, watched).await;
            });
        }
    }

    /// The faults, each at its time.
    fn suffer(&mut self) -> Result<(), String> {
        let begin = self.world.elapsed();
        for (at, fault) in self.plan.faults.clone() {
            self.go_on(begin + Duration::from_millis(at))?;
            if fault == Fault::StaleCall {
                self.stale_call();
            } else {
                self.faults.begin(&mut self.world, &self.kube, &fault);
            }
        }
        self.go_on(begin + Duration::from_millis(self.plan.ends_ms))
    }

    /// Liveness: the cluster is as the spec says, and takes writes, within the bound.
    fn recover(&mut self) -> Result<(), String> {
        let before = self.clients.history.ops().len();
        self.until("the cluster is whole again", HEALS, |driver| {
            driver.is_whole()
        })?;
        self.until("a write is acknowledged", HEALS, |driver| {
            let ops = driver.clients.history.ops();
            let written = |op: &Op| matches!(op.outcome, Outcome::Written { .. });
            ops.iter().skip(before).any(written)
        })?;
        self.clients.stop.store(true, Ordering::Relaxed);
        self.until("clients end", DRAINS, |driver| {
            let ops = driver.clients.history.ops();
            ops.iter().all(|op| op.ended.is_some())
        })?;
        self.until("all nodes hold the same state", HEALS, |driver| {
            driver.is_same() && driver.is_whole()
        })?;
        self.told_the_last()
    }

    /// Every watch is told the last state of what it watches.
    fn told_the_last(&mut self) -> Result<(), String> {
        let hosts = self.clients.hosts.clone();
        let last = self.script("last", move |cluster| async move {
            let key = json!({ "key": watcher::KEY });
            let register = cluster.read(&hosts, "get", "fresh", &key).await;
            let lists = cluster.read(&hosts, "catalogue", "fresh", &json!({})).await;
            (register, lists)
        })?;
        let part = |name: &str| last.0[name].as_u64().unwrap_or(u64::MAX);
        let last = Current {
            register: Some((part("serial"), part("version"))),
            lists: serde_json::from_value(last.1).ok(),
        };
        self.until("every watch is told the last", HEALS, |driver| {
            let current = driver.watched.current();
            current.iter().all(|told| *told == last)
        })
    }

    fn judge(&mut self) -> Result<(), String> {
        let hosts = self.clients.hosts.clone();
        let traces = self.script("judge", move |cluster| async move {
            cluster.traces(&hosts).await
        })?;
        for (name, live) in self.world.registry.running() {
            let Some(consensus) = live.consensus else {
                continue;
            };
            let view = consensus.view();
            let recount = view.recount().map_err(|e| format!("{name}: {e}"))?;
            if recount.checksum != view.checksum() {
                return Err(format!("{name}: the checksum is not that of its records"));
            }
            if let Some(wrong) = check::derived::judge(&*view) {
                return Err(format!("{name}: {wrong}"));
            }
        }
        let ops = self.clients.history.ops();
        let ending = flower_load::check::Ending {
            ops: &ops,
            traces: &traces,
            each: MONEY,
        };
        flower_load::check::judge(&ending).map_or(Ok(()), Err)
    }

    /// Runs a program on a host of its own while the world goes on as ever.
    fn script<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        name: &str,
        work: impl FnOnce(Cluster) -> F,
    ) -> Result<T, String> {
        let done = Arc::new(Mutex::new(None));
        let tell = done.clone();
        let work = work(Cluster::new(name, &self.world.audit));
        self.world.spawn(name, async move {
            let value = work.await;
            *tell.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        });
        self.until("the last reads are answered", HEALS, |_| {
            done.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .is_some()
        })?;
        let value = done.lock().unwrap_or_else(PoisonError::into_inner).take();
        value.ok_or_else(|| "a script without a result".to_owned())
    }

    fn go_on(&mut self, until: Duration) -> Result<(), String> {
        while self.world.elapsed() < until {
            self.step()?;
        }
        Ok(())
    }

    fn until(
        &mut self,
        what: &str,
        limit: Duration,
        met: impl Fn(&Self) -> bool,
    ) -> Result<(), String> {
        let end = self.world.elapsed() + limit;
        loop {
            // Looking costs; the world need not be looked at every millisecond.
            if self.steps.is_multiple_of(KUBELET_EVERY) && met(self) {
                return Ok(());
            }
            if self.world.elapsed() >= end {
                let seconds = limit.as_secs();
                return Err(format!("not live: not within {seconds} s: {what}"));
            }
            self.step()?;
        }
    }

    fn step(&mut self) -> Result<(), String> {
        self.steps += 1;
        self.world.step()?;
        self.faults.turn(&mut self.world, &self.kube);
        if self.steps.is_multiple_of(KUBELET_EVERY) {
            for (name, exit) in kubelet::turn(&mut self.world, &self.kube) {
                self.ended(&name, &exit)?;
            }
        }
        if let Some(why) = self.observer.look(&self.world) {
            return Err(why);
        }
        if let Some(why) = self.watched.wrong().or_else(sabotage::vote_forgotten) {
            return Err(why);
        }
        let accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        accepted.clone().map_or(Ok(()), Err)
    }

    /// A process ended by itself: its disk failed, or it must not have.
    fn ended(&mut self, name: &str, exit: &Exit) -> Result<(), String> {
        let disk = &self.world.places[name].disk;
        let full = disk.space().is_ok_and(|space| space.free < 64 << 20);
        match exit {
            Exit::Stopped => Ok(()),
            Exit::Fatal(_) if full => {
                sabotage::reach("ended by a full disk");
                Ok(())
            }
            Exit::Fatal(_) if self.faults.bad_disks.remove(name) => {
                sabotage::reach("ended by a bad disk");
                Ok(())
            }
            Exit::Fatal(why) => Err(format!("{name} ended by itself: {why}")),
        }
    }

    /// Delivers an old call to whoever leads.
    fn stale_call(&mut self) {
        let Some((step, fence)) = faults::stale_call(&self.kube, &mut self.rng) else {
            return;
        };
        let Some(ordinal) = (0..NODES_MAX).find(|o| Some(host(*o)) == self.world.leader()) else {
            return;
        };
        let current = self.observer.members.version();
        let planned = fence.configuration.map_or((0, 0), |c| (c.term, c.index));
        self.stale += 1;
        let name = format!("stale{}", self.stale);
        let admin = SimAdmin(Http::new(&name, &self.world.audit, ADMIN_TOKEN, true));
        let (accepted, audit) = (self.accepted.clone(), self.world.audit.clone());
        self.world.spawn(&name, async move {
            let said = format!("stale call of {planned:?} at {current:?}: {step}");
            let sent = operator::send(&admin, ordinal, &step, fence, String::new()).await;
            audit.say(format!("{said}: {sent:?}"));
            match sent {
                Ok(()) if planned < current => {
                    let mut cell = accepted.lock().unwrap_or_else(PoisonError::into_inner);
                    *cell = Some(format!("accepted: {said}"));
                }
                Err(_) if planned < current => sabotage::reach("stale call refused"),
                _ => {}
            }
        });
    }

    fn is_formed(&self) -> bool {
        let hash_runs = |live: &crate::node::Live| {
            let consensus = live.consensus.as_ref()?;
            let view = consensus.view();
            flower_engine::deploy::active(&*view).ok().flatten()
        };
        self.is_whole()
            && self
                .world
                .registry
                .running()
                .iter()
                .all(|(_, live)| hash_runs(live).is_some())
    }

    /// All wanted nodes run, are recovered, and are the voters; one leads.
    fn is_whole(&self) -> bool {
        let wanted = self.kube.objects().replicas;
        let running = self.world.registry.running();
        let Some(leader) = self.world.leader() else {
            return false;
        };
        let report = running
            .iter()
            .find(|(name, _)| *name == leader)
            .and_then(|(_, live)| live.consensus.as_ref())
            .map(|consensus| consensus.report());
        let Some(configuration) = report.and_then(|report| report.configuration) else {
            return false;
        };
        let mut ours: Vec<_> = running.iter().filter_map(|(_, live)| live.member).collect();
        let mut voters = configuration.voters.concat();
        ours.sort_unstable();
        voters.sort_unstable();
        running.len() == wanted as usize
            && configuration.committed
            && configuration.members.len() == voters.len()
            && ours == voters
            && running.iter().all(|(_, live)| {
                live.consensus
                    .as_ref()
                    .is_some_and(|consensus| *consensus.recovered().borrow())
            })
    }

    fn is_same(&self) -> bool {
        let states: Vec<_> = self
            .world
            .registry
            .running()
            .iter()
            .filter_map(|(_, live)| {
                let view = live.consensus.as_ref()?.view();
                Some((view.applied(), view.checksum()))
            })
            .collect();
        states.windows(2).all(|pair| pair[0] == pair[1])
    }

    fn verdict(&mut self, failure: Option<String>) -> Verdict {
        let ops = self.clients.history.ops();
        let count = |fits: &dyn Fn(&Op) -> bool| ops.iter().filter(|op| fits(op)).count();
        let mut states = sabotage::take_reached();
        states.extend(self.observer.reached());
        let watched = self.watched.reached();
        states.extend(watched.into_iter().filter(|(_, count)| *count > 0));
        if ops.iter().any(|op| op.replays > 0) {
            states.insert("receipt replayed", 1);
        }
        let named = states.into_iter();
        let reached = named.map(|(state, count)| (state.to_owned(), count));
        let mut digests = Vec::new();
        for place in self.world.places.values() {
            digests.extend(place.disk.digest().to_le_bytes());
        }
        self.world.audit.record("disks", "", &digests);
        let (hash, hashed) = self.world.audit.hash();
        let writes = |op: &Op| op.call.serial().is_some();
        let mut story = Vec::new();
        if failure.is_some() {
            story.extend(self.plan.to_string().lines().map(ToOwned::to_owned));
            story.extend(self.world.audit.last(60));
        }
        Verdict {
            seed: self.plan.seed,
            hash: format!("{hash:016x}"),
            hashed,
            world_ms: self.world.elapsed().as_millis() as u64,
            calls: ops.len(),
            written: count(&|op| writes(op) && matches!(op.outcome, Outcome::Written { .. })),
            unknown: count(&|op| writes(op) && op.outcome == Outcome::Unknown),
            read: count(&|op| {
                let class = op.call.class();
                class.is_some() && op.ended.is_some() && op.outcome != Outcome::None
            }),
            reached: reached.collect(),
            failure,
            story,
            trace: self.world.audit.take_trace(),
        }
    }
}

fn watcher(number: u32) -> String {
    format!("watcher{number}")
}

fn client(number: u32) -> String {
    format!("client{number}")
}
