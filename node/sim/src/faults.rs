//! Faults, done and undone. Knows what each means for the world; when is the plan's, whether
//! the outcome is right the checkers'.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use flower_operator::{controller::plan::Step, names::Ordinal};
use flower_store::{FileName, sabotage, sim_disk::Fault as DiskFault};
use rand::{Rng, RngCore, rngs::StdRng};

use crate::{
    APP,
    kube::Kube,
    kubelet,
    operator::host,
    plan::{Fault, NODES_MAX, Whom},
    world::World,
};

/// What is to be undone, and when.
#[derive(Debug, Clone)]
enum Undo {
    Cuts(Vec<(String, String)>),
    Hold(String),
    Latency,
    Slow(String),
    SlowLog(String),
    Capacity(String),
}

/// The faults in force.
pub struct Faults {
    rng: StdRng,
    latency_ms: u64,
    disk_bytes: u64,
    /// Everything that is no node.
    others: Vec<String>,
    cuts: Vec<(String, String)>,
    held: BTreeSet<String>,
    undo: BTreeMap<(Duration, u64), Undo>,
    count: u64,
    /// Nodes whose disk failed since they last started: they may end.
    pub bad_disks: BTreeSet<String>,
    /// The leader is to lose power when this host starts.
    ambush: Option<String>,
    /// All are to lose power when somebody is elected in a later term, and for how long.
    usurp: Option<(Option<u64>, u64)>,
}

impl Faults {
    /// None yet.
    pub fn new(rng: StdRng, latency_ms: u64, disk_bytes: u64, others: Vec<String>) -> Self {
        Self {
            rng,
            latency_ms,
            disk_bytes,
            others,
            cuts: Vec::new(),
            held: BTreeSet::new(),
            undo: BTreeMap::new(),
            count: 0,
            bad_disks: BTreeSet::new(),
            ambush: None,
            usurp: None,
        }
    }

    fn later(&mut self, world: &World, ms: u64, undo: Undo) {
        self.count += 1;
        let at = world.elapsed() + Duration::from_millis(ms);
        self.undo.insert((at, self.count), undo);
    }

    /// Ends what is over; springs what waits for a start.
    pub fn turn(&mut self, world: &mut World, kube: &Kube) {
        while let Some(entry) = self.undo.first_entry() {
            if entry.key().0 > world.elapsed() {
                break;
            }
            let undo = entry.remove();
            self.end(world, undo);
        }
        if let Some(name) = &self.ambush
            && world.registry.live(name).is_some()
        {
            self.ambush = None;
            if let Some(leader) = world.leader() {
                self.crash(world, kube, &leader, true, 3_000);
                self.end_cuts(world);
            }
        }
        if let Some((before, ms)) = self.usurp
            && world.term() > before
        {
            self.usurp = None;
            self.blackout(world, kube, ms);
        }
    }

    /// Whoever is cut off is reached again, before its time.
    fn end_cuts(&mut self, world: &mut World) {
        let due = self.undo.iter();
        let cuts = due.filter(|(_, undo)| matches!(undo, Undo::Cuts(_)));
        let keys: Vec<_> = cuts.map(|(key, _)| *key).collect();
        for key in keys {
            if let Some(undo) = self.undo.remove(&key) {
                self.end(world, undo);
            }
        }
    }

    fn blackout(&mut self, world: &mut World, kube: &Kube, ms: u64) {
        for (at, name) in (0..NODES_MAX).map(host).enumerate() {
            if world.places[&name].up {
                let late = self.rng.random_range(0..=400 * at as u64);
                self.crash(world, kube, &name, true, ms + late);
            }
        }
    }

    /// Ends all of them.
    pub fn heal(&mut self, world: &mut World, kube: &Kube) {
        for undo in std::mem::take(&mut self.undo).into_values() {
            self.end(world, undo);
        }
        (self.ambush, self.usurp) = (None, None);
        let now = world.elapsed();
        for pod in kube.objects().pods.values_mut() {
            if !pod.terminating {
                pod.due = pod.due.map(|due| due.min(now));
            }
        }
        for place in world.places.values() {
            place.disk.heal();
            place.controls.set_drift(1_000);
        }
        world.audit.say("healed");
    }

    fn end(&mut self, world: &mut World, undo: Undo) {
        match undo {
            Undo::Cuts(pairs) => {
                for pair in pairs {
                    if let Some(at) = self.cuts.iter().position(|cut| *cut == pair) {
                        self.cuts.remove(at);
                    }
                    if !self.cuts.contains(&pair) && !self.holds(&pair) {
                        world.net().repair_oneway(&*pair.0, &*pair.1);
                    }
                }
            }
            Undo::Hold(name) => {
                self.held.remove(&name);
                for other in self.everyone(&name) {
                    if !self.held.contains(&other) {
                        world.net().release(&*name, &*other);
                    }
                }
                for (from, to) in &self.cuts {
                    if !self.holds(&(from.clone(), to.clone())) {
                        world.net().partition_oneway(&**from, &**to);
                    }
                }
            }
            Undo::Latency => world
                .net()
                .set_max_message_latency(Duration::from_millis(self.latency_ms)),
            Undo::Slow(name) => world.places[&name].controls.set_slow(0),
            Undo::SlowLog(name) => world.places[&name].controls.set_slow_log(0),
            Undo::Capacity(name) => world.places[&name].disk.set_capacity(self.disk_bytes),
        }
    }

    fn holds(&self, (from, to): &(String, String)) -> bool {
        self.held.contains(from) || self.held.contains(to)
    }

    fn nodes(&self, but: &str) -> Vec<String> {
        (0..NODES_MAX)
            .map(host)
            .filter(|name| name != but)
            .collect()
    }

    fn everyone(&self, but: &str) -> Vec<String> {
        let mut all = self.nodes(but);
        all.extend(self.others.iter().cloned());
        all
    }

    fn cut(&mut self, world: &World, pairs: Vec<(String, String)>, ms: u64) {
        for pair in &pairs {
            if !self.holds(pair) {
                world.net().partition_oneway(&*pair.0, &*pair.1);
            }
        }
        self.cuts.extend(pairs.iter().cloned());
        self.later(world, ms, Undo::Cuts(pairs));
    }

    fn whom(&mut self, world: &World, whom: Whom) -> Option<String> {
        let running: Vec<String> = world
            .registry
            .running()
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        match whom {
            Whom::Node(ordinal) => Some(host(ordinal)).filter(|name| running.contains(name)),
            Whom::Leader => world.leader(),
            Whom::Follower | Whom::Near => {
                let leader = world.leader();
                let mut rest = running;
                rest.retain(|name| Some(name) != leader.as_ref());
                if whom == Whom::Near {
                    let is_cut = |name: &String| self.cuts.iter().any(|cut| cut.0 == *name);
                    rest.retain(|name| leader.as_ref().is_some_and(is_cut) || !is_cut(name));
                }
                let at = self.rng.random_range(0..rest.len().max(1));
                rest.get(at).cloned()
            }
        }
    }

    fn crash(&mut self, world: &mut World, kube: &Kube, name: &str, power: bool, ms: u64) {
        world.crash(name, power);
        self.bad_disks.remove(name);
        let due = world.elapsed() + Duration::from_millis(ms);
        if let Some(ordinal) = ordinal(name) {
            kubelet::delay(kube, ordinal, due);
        }
    }

    /// Does a fault. One that cannot be, because nobody is there or the data would be gone
    /// for good, is left out.
    pub fn begin(&mut self, world: &mut World, kube: &Kube, fault: &Fault) {
        let name = match target(fault) {
            Some(whom) => match self.whom(world, whom) {
                Some(name) => name,
                None => return,
            },
            None => String::new(),
        };
        world.audit.say(format!("fault: {fault:?} {name}"));
        self.network(world, fault, &name);
        self.disk(world, fault, &name);
        self.process(world, kube, fault, &name);
        self.wishes(world, kube, fault);
    }

    fn network(&mut self, world: &mut World, fault: &Fault, name: &str) {
        let to = |other: String| (name.to_owned(), other);
        let from = |other: String| (other, name.to_owned());
        match fault {
            Fault::Isolate { wholly, ms, .. } => {
                let others = if *wholly {
                    self.everyone(name)
                } else {
                    self.nodes(name)
                };
                let both = others
                    .into_iter()
                    .flat_map(|other| [to(other.clone()), from(other)]);
                self.cut(world, both.collect(), *ms);
            }
            Fault::OneWay { deaf, ms, .. } => {
                let others = self.nodes(name).into_iter();
                let pairs = if *deaf {
                    others.map(from).collect()
                } else {
                    others.map(to).collect()
                };
                self.cut(world, pairs, *ms);
            }
            Fault::Pair { a, b, ms } if a != b => {
                let (a, b) = (host(*a), host(*b));
                self.cut(world, vec![(a.clone(), b.clone()), (b, a)], *ms);
            }
            Fault::Delay { latency_ms, ms } => {
                world
                    .net()
                    .set_max_message_latency(Duration::from_millis(*latency_ms));
                self.later(world, *ms, Undo::Latency);
            }
            Fault::Pause { ms, .. } if !self.held.contains(name) => {
                self.held.insert(name.to_owned());
                for other in self.everyone(name) {
                    world.net().hold(name, &*other);
                }
                let until = world.elapsed() + Duration::from_millis(*ms);
                world.places[name].controls.stall_until(until);
                self.later(world, *ms, Undo::Hold(name.to_owned()));
            }
            _ => {}
        }
    }

    fn disk(&mut self, world: &mut World, fault: &Fault, name: &str) {
        match fault {
            Fault::SlowDisk { by_ms, ms, .. } => {
                world.places[name].controls.set_slow(*by_ms);
                self.later(world, *ms, Undo::Slow(name.to_owned()));
            }
            Fault::SlowLog { by_ms, ms, .. } => {
                world.places[name].controls.set_slow_log(*by_ms);
                self.later(world, *ms, Undo::SlowLog(name.to_owned()));
            }
            Fault::Drift { permille, .. } => world.places[name].controls.set_drift(*permille),
            Fault::FullDisk { ms, .. } => {
                let disk = &world.places[name].disk;
                // Below the reserve, and a little left for what is under way.
                let room = self.rng.random_range(0..=1_u64) << 20;
                disk.set_capacity(disk.used() + room);
                self.bad_disks.insert(name.to_owned());
                self.later(world, *ms, Undo::Capacity(name.to_owned()));
            }
            Fault::BadDisk { .. } => {
                let after = self.rng.random_range(0..40);
                world.places[name].disk.fail_after(after, DiskFault::Eio);
                self.bad_disks.insert(name.to_owned());
            }
            Fault::Clock { by_ms, .. } => world.places[name].controls.set_wall(*by_ms),
            _ => {}
        }
    }

    fn process(&mut self, world: &mut World, kube: &Kube, fault: &Fault, name: &str) {
        match fault {
            Fault::Crash { power, ms, .. } => self.crash(world, kube, name, *power, *ms),
            Fault::Blackout { ms } => self.blackout(world, kube, *ms),
            Fault::Usurp { ms } => self.usurp = Some((world.term(), *ms)),
            Fault::Restart { .. } => {
                if let Some(live) = world.registry.live(name) {
                    live.stop();
                }
            }
            Fault::Wipe {
                ms, then_leader, ..
            } if may_lose(world, name) => {
                self.crash(world, kube, name, true, *ms);
                world.wipe(name);
                sabotage::reach("volume wiped");
                if *then_leader && world.leader().as_deref() != Some(name) {
                    self.ambush = Some(name.to_owned());
                }
            }
            Fault::Rot { .. } if may_lose(world, name) => {
                self.crash(world, kube, name, true, 500);
                let file = match self.rng.random_range(0..2) {
                    0 => FileName::Log,
                    _ => FileName::State,
                };
                let mut garbage = vec![0; 8_192];
                self.rng.fill_bytes(&mut garbage);
                if let Some(place) = world.places.get_mut(name) {
                    place.disk.overwrite(file, garbage);
                    place.rotten = true;
                }
                sabotage::reach("volume rotten");
            }
            _ => {}
        }
    }

    /// What people and operators do.
    fn wishes(&mut self, world: &mut World, kube: &Kube, fault: &Fault) {
        let mut objects = kube.objects();
        match fault {
            Fault::Scale { replicas } => {
                objects.replicas = *replicas;
                objects.generation += 1;
            }
            Fault::Rollout => {
                objects.template += 1;
                objects.generation += 1;
            }
            Fault::Deploy => {
                let number = self.rng.random_range(0..1_000);
                objects.bundle = format!("{APP}\n// {number}\n");
            }
            Fault::OperatorDies => {
                drop(objects);
                world.restart_operator();
            }
            _ => {}
        }
    }
}

/// A call of the past that changes the configuration, if there is one.
pub fn stale_call(kube: &Kube, rng: &mut StdRng) -> Option<(Step, flower_api::admin::Fence)> {
    let objects = kube.objects();
    let calls: Vec<_> = objects
        .sent
        .iter()
        .filter(|(step, _)| {
            matches!(
                step,
                Step::AddLearner { .. }
                    | Step::Promote { .. }
                    | Step::Remove { .. }
                    | Step::Transfer { .. }
            )
        })
        .collect();
    let at = rng.random_range(0..calls.len().max(1));
    calls.get(at).map(|call| (*call).clone())
}

fn target(fault: &Fault) -> Option<Whom> {
    match fault {
        Fault::Isolate { whom, .. }
        | Fault::OneWay { whom, .. }
        | Fault::Crash { whom, .. }
        | Fault::Restart { whom }
        | Fault::Pause { whom, .. }
        | Fault::SlowDisk { whom, .. }
        | Fault::SlowLog { whom, .. }
        | Fault::Drift { whom, .. }
        | Fault::FullDisk { whom, .. }
        | Fault::BadDisk { whom }
        | Fault::Wipe { whom, .. }
        | Fault::Rot { whom }
        | Fault::Clock { whom, .. } => Some(*whom),
        _ => None,
    }
}

fn ordinal(name: &str) -> Option<Ordinal> {
    (0..NODES_MAX).find(|ordinal| host(*ordinal) == name)
}

/// Whether a volume may be lost: the promise holds for one of three or more voters, as long
/// as all the others are there with theirs.
fn may_lose(world: &World, name: &str) -> bool {
    let Some(leader) = world
        .leader()
        .and_then(|leader| world.registry.live(&leader))
    else {
        return false;
    };
    let Some(configuration) = leader.consensus.and_then(|c| c.report().configuration) else {
        return false;
    };
    let running = world.registry.running();
    let voters = configuration.voters.concat();
    configuration.committed
        && !configuration.is_joint()
        && voters.len() >= 3
        && configuration.members.len() == voters.len()
        && voters.iter().all(|voter| {
            running
                .iter()
                .any(|(_, live)| live.member == Some(*voter) && live.broken.is_none())
        })
        && running
            .iter()
            .any(|(host, live)| host == name && live.member.is_some_and(|m| voters.contains(&m)))
}
