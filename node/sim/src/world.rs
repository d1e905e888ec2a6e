//! A world: hosts with their disks and processes, the network between them, and the clock.
//! It does what its driver says; it decides nothing and checks nothing.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use flower_node::env::SeedTree;
use flower_store::SimDisk;
use rand::RngCore;
use turmoil::Sim;

use crate::{
    audit::Audit,
    entropy,
    env::Controls,
    kube::Kube,
    node::{Live, NodeLimits, Program, Registry},
    operator,
};

/// Tokens of every world.
pub const CLIENT_TOKEN: &str = "client-token-of-the-world";
/// Opens the admin API.
pub const ADMIN_TOKEN: &str = "admin-token-of-the-world";
const PEER_TOKEN: &str = "peer-token-of-the-world";

/// How a world is made.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Decides everything.
    pub seed: u64,
    /// Hosts of nodes, by name.
    pub hosts: Vec<String>,
    /// Settings of every node.
    pub limits: NodeLimits,
    /// Largest delay of a message, milliseconds.
    pub latency_ms: u64,
    /// Size of each volume.
    pub disk_bytes: u64,
}

/// A host for a node.
pub struct Place {
    /// Its volume.
    pub disk: SimDisk,
    /// What may be done to it.
    pub controls: Controls,
    /// Its process is there (it may be starting).
    pub up: bool,
    /// Volumes that it has had.
    pub volumes: u64,
    /// The volume holds garbage: the node may find its data broken.
    pub rotten: bool,
}

/// A world. To be made and used inside [`entropy::with_seed`].
pub struct World {
    sim: Sim<'static>,
    /// Hosts of nodes.
    pub places: BTreeMap<String, Place>,
    /// Processes.
    pub registry: Registry,
    /// What happened.
    pub audit: Audit,
    /// The world's seeds.
    pub seeds: SeedTree,
    scripts: u32,
    _auth: tempfile::TempDir,
}

impl World {
    /// A world whose processes all start at once.
    ///
    /// # Panics
    /// When there is no room for three small files.
    pub fn new(shape: &Shape) -> Self {
        let mut sim = turmoil::Builder::new()
            .simulation_duration(Duration::from_secs(24 * 3_600))
            .tick_duration(Duration::from_millis(1))
            .min_message_latency(Duration::from_micros(100))
            .max_message_latency(Duration::from_millis(shape.latency_ms.max(1)))
            .tcp_capacity(4_096)
            .rng_seed(shape.seed)
            .build();
        let seeds = SeedTree::from_number(shape.seed);
        let auth = tempfile::tempdir().expect("a temporary folder");
        write_tokens(auth.path());
        let (audit, registry) = (Audit::default(), Registry::default());
        let mut places = BTreeMap::new();
        for name in &shape.hosts {
            let disk = SimDisk::new(seeds.child(&format!("disk {name}")).rng().next_u64());
            disk.set_capacity(shape.disk_bytes);
            let controls = Controls::default();
            let program = Program {
                name: name.clone(),
                seeds: seeds.clone(),
                limits: shape.limits,
                disk: disk.clone(),
                auth: auth.path().to_owned(),
                controls: controls.clone(),
                audit: audit.clone(),
                registry: registry.clone(),
            };
            sim.host(name.as_str(), move || program.clone().run());
            let place = Place {
                disk,
                controls,
                up: true,
                volumes: 1,
                rotten: false,
            };
            places.insert(name.clone(), place);
        }
        Self {
            sim,
            places,
            registry,
            audit,
            seeds,
            scripts: 0,
            _auth: auth,
        }
    }

    /// Time since the world began.
    pub fn elapsed(&self) -> Duration {
        self.sim.elapsed()
    }

    /// Lets a millisecond pass.
    ///
    /// # Errors
    /// When a script fails.
    pub fn step(&mut self) -> Result<(), String> {
        self.sim.step().map_err(|e| e.to_string())?;
        entropy::set_clock(self.sim.elapsed());
        Ok(())
    }

    /// Starts a program on a host of its own, `name`.
    pub fn spawn(&mut self, name: &str, work: impl Future<Output = ()> + 'static) {
        self.sim.client(name, async move {
            work.await;
            Ok(())
        });
    }

    /// Starts the operator on its host, `op`.
    pub fn spawn_operator(&mut self, kube: &Kube) {
        let (kube, audit) = (kube.clone(), self.audit.clone());
        self.sim.host("op", move || {
            let (kube, audit) = (kube.clone(), audit.clone());
            async move {
                operator::run("op".into(), kube, audit).await;
                Ok(())
            }
        });
    }

    /// The operator's process ends, wherever it is, and another begins.
    pub fn restart_operator(&mut self) {
        self.sim.crash("op");
        self.sim.bounce("op");
    }

    /// Runs a program on a host of its own and lets the world go on until it is done.
    ///
    /// # Panics
    /// When it takes more than ten minutes of the world's time, or fails.
    pub fn script<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        work: impl FnOnce(String, Audit) -> F,
    ) -> T {
        self.scripts += 1;
        let name = format!("script{}", self.scripts);
        let done = Arc::new(Mutex::new(None));
        let tell = done.clone();
        let work = work(name.clone(), self.audit.clone());
        self.spawn(&name, async move {
            let value = work.await;
            *tell.lock().expect("one thread") = Some(value);
        });
        let limit = self.elapsed() + Duration::from_secs(600);
        loop {
            if let Some(value) = done.lock().expect("one thread").take() {
                return value;
            }
            assert!(
                self.elapsed() < limit,
                "a script takes more than ten minutes"
            );
            self.step().unwrap_or_else(|e| panic!("{e}"));
        }
    }

    /// Lets the world go on until `met` gives something.
    ///
    /// # Panics
    /// After two minutes of the world's time.
    pub fn until<T>(&mut self, what: &str, mut met: impl FnMut(&Self) -> Option<T>) -> T {
        let limit = self.elapsed() + Duration::from_secs(120);
        loop {
            if let Some(found) = met(self) {
                return found;
            }
            assert!(self.elapsed() < limit, "two minutes passed without: {what}");
            self.step().unwrap_or_else(|e| panic!("{what}: {e}"));
        }
    }

    /// Lets the world go on until the nodes of these hosts hold the same state.
    ///
    /// # Panics
    /// As [`World::until`].
    pub fn same_state(&mut self, hosts: &[String]) {
        self.until("all hold the same state", |world| {
            let states: Vec<_> = hosts
                .iter()
                .map(|name| {
                    let view = world.registry.live(name)?.consensus?.view();
                    Some((view.applied()?, view.checksum()))
                })
                .collect::<Option<_>>()?;
            states.windows(2).all(|w| w[0] == w[1]).then_some(())
        });
    }

    /// The node on a host, once it runs.
    pub fn node(&mut self, name: &str) -> Live {
        self.until("a node runs", |world| world.registry.live(name))
    }

    /// The host whose node leads, when exactly one does.
    pub fn leader(&self) -> Option<String> {
        let mut leaders = self.registry.running().into_iter().filter(|(_, live)| {
            let consensus = live.consensus.as_ref();
            consensus.is_some_and(|c| c.leadership().borrow().is_some())
        });
        let (name, _) = leaders.next()?;
        leaders.next().is_none().then_some(name)
    }

    /// The last term in which a running node was elected and takes itself for the leader.
    pub fn term(&self) -> Option<u64> {
        let running = self.registry.running();
        let terms = running
            .iter()
            .map(|(_, live)| live.consensus.as_ref()?.elected());
        terms.flatten().max()
    }

    /// Takes a process down. The power goes first when it fails with it: a program that is
    /// dropped must write nothing more, and what was not synced is lost in part.
    pub fn crash(&mut self, name: &str, power: bool) {
        let Some(place) = self.places.get_mut(name) else {
            return;
        };
        if power {
            place.disk.cut_power();
        } else {
            place.disk.kill();
        }
        place.up = false;
        self.registry.forget(name);
        self.sim.crash(name);
        let how = if power { "power cut" } else { "killed" };
        self.audit.say(format!("{name}: {how}"));
    }

    /// Starts the process of a host that is down.
    pub fn start(&mut self, name: &str) {
        if let Some(place) = self.places.get_mut(name)
            && !place.up
        {
            place.up = true;
            self.audit.say(format!("{name}: starts"));
            self.sim.bounce(name);
        }
    }

    /// Gives a host that is down an empty volume.
    pub fn wipe(&mut self, name: &str) {
        if let Some(place) = self.places.get_mut(name) {
            place.disk.wipe();
            place.volumes += 1;
            place.rotten = false;
            self.audit.say(format!("{name}: has an empty volume"));
        }
    }

    /// The network.
    pub fn net(&self) -> &Sim<'static> {
        &self.sim
    }
}

fn write_tokens(dir: &Path) {
    for (file, token) in [
        ("client", CLIENT_TOKEN),
        ("admin", ADMIN_TOKEN),
        ("peer", PEER_TOKEN),
    ] {
        let written = std::fs::write(dir.join(file), token);
        written.expect("room for a small file");
    }
}
