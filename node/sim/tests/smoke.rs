//! Three whole nodes in one process: they elect, write, lose one with its power cut first,
//! take it back, and hold the same state.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use flower_api::{
    ClusterId, GroupId, MemberId, Revision,
    admin::{AddLearner, Bootstrap, Fence, OfMember},
    wire::Problem,
};
use flower_engine::{Entry, EntryKind, PatchBuilder, Space, View};
use flower_node::{
    consensus::{Consensus, ConsensusSettings, FixedSecrets},
    env::{Env, Fut, SeedTree},
    node::{Node, NodeSettings},
};
use flower_sim::world;
use flower_store::{DirSettings, SimDisk};
use tokio::sync::{mpsc, oneshot};
use turmoil::Sim;

const NAMES: [&str; 3] = ["a", "b", "c"];
const PEER_PORT: u16 = 7701;

type Command = Box<dyn FnOnce(Env, Consensus) -> Fut<'static, ()> + Send>;

/// A node that runs: its handle to look at, and a way to have things done on its host.
#[derive(Clone)]
struct Handle {
    consensus: Consensus,
    commands: mpsc::UnboundedSender<Command>,
}

#[derive(Clone, Default)]
struct Registry(Arc<Mutex<BTreeMap<String, Handle>>>);

impl Registry {
    fn get(&self, name: &str) -> Option<Handle> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .cloned()
    }
    fn set(&self, name: &str, handle: Option<Handle>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match handle {
            Some(handle) => all.insert(name.to_owned(), handle),
            None => all.remove(name),
        };
    }
}

struct World<'a> {
    sim: Sim<'a>,
    nodes: Registry,
    disks: BTreeMap<&'static str, SimDisk>,
}

fn settings() -> NodeSettings {
    let listen = (Ipv4Addr::UNSPECIFIED, PEER_PORT).into();
    let secrets = Arc::new(FixedSecrets(vec!["a token of the simulation".into()]));
    NodeSettings {
        name: "sim".into(),
        client_address: String::new(),
        directory: DirSettings {
            log_cache_bytes: 1 << 20,
            log_tail_bytes: 1 << 20,
            page_cache_bytes: 4 << 20,
            value_cache_bytes: 1 << 20,
            group: GroupId(0),
        },
        consensus: ConsensusSettings::new(listen, secrets),
    }
}

async fn run(name: &str, seeds: SeedTree, disk: SimDisk, nodes: Registry) -> turmoil::Result {
    let env = world::env(&seeds, name, &disk);
    let node = Node::open(&env, settings()).await?;
    let consensus = node.consensus().ok_or("the directory is broken")?.clone();
    let (commands, mut inbox) = mpsc::unbounded_channel::<Command>();
    nodes.set(
        name,
        Some(Handle {
            consensus: consensus.clone(),
            commands,
        }),
    );
    loop {
        tokio::select! {
            command = inbox.recv() => match command {
                Some(command) => {
                    let work = command(env.clone(), consensus.clone());
                    env.tasks.spawn_brief("command", work);
                }
                None => return Ok(()),
            },
            fatal = consensus.fatal() => return Err(fatal.into()),
        }
    }
}

impl World<'_> {
    fn new(seed: u64) -> Self {
        let mut sim = turmoil::Builder::new()
            .simulation_duration(Duration::from_secs(600))
            .tick_duration(Duration::from_millis(1))
            .min_message_latency(Duration::from_micros(100))
            .max_message_latency(Duration::from_millis(5))
            .tcp_capacity(4_096)
            .rng_seed(seed)
            .build();
        let seeds = SeedTree::from_number(seed);
        let nodes = Registry::default();
        let disks: BTreeMap<_, _> = NAMES
            .iter()
            .zip(seed..)
            .map(|(name, seed)| (*name, SimDisk::new(seed)))
            .collect();
        for name in NAMES {
            let (seeds, disk, nodes) = (seeds.clone(), disks[name].clone(), nodes.clone());
            sim.host(name, move || {
                let (seeds, disk, nodes) = (seeds.clone(), disk.clone(), nodes.clone());
                async move { run(name, seeds, disk, nodes).await }
            });
        }
        Self { sim, nodes, disks }
    }

    /// Lets the world go on until `met` gives something.
    fn until<T>(&mut self, what: &str, mut met: impl FnMut(&Registry) -> Option<T>) -> T {
        let limit = self.sim.elapsed() + Duration::from_secs(120);
        loop {
            if let Some(found) = met(&self.nodes) {
                return found;
            }
            assert!(
                self.sim.elapsed() < limit,
                "two minutes passed without: {what}"
            );
            self.sim.step().unwrap_or_else(|e| panic!("{what}: {e}"));
        }
    }

    fn node(&mut self, name: &str) -> Handle {
        self.until("a node runs", |nodes| nodes.get(name))
    }

    /// Has `work` done on a host and waits for what comes of it.
    fn on<T, F>(&mut self, name: &str, work: impl FnOnce(Env, Consensus) -> F + Send + 'static) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (tell, mut told) = oneshot::channel();
        let command: Command = Box::new(move |env, consensus| {
            Box::pin(async move {
                let _ = tell.send(work(env, consensus).await);
            })
        });
        assert!(
            self.node(name).commands.send(command).is_ok(),
            "{name} runs"
        );
        self.until("a command is done", |_| told.try_recv().ok())
    }

    /// The same until it succeeds.
    fn insist(
        &mut self,
        name: &str,
        work: impl Fn(Consensus) -> Fut<'static, Result<(), Problem>> + Send + Sync + 'static,
    ) {
        let work = Arc::new(work);
        loop {
            let again = work.clone();
            match self.on(name, move |_, consensus| again(consensus)) {
                Ok(()) => return,
                Err(problem) => assert!(problem.retryable, "{problem}"),
            }
        }
    }

    fn leader(&mut self) -> &'static str {
        self.until("one leads", |nodes| {
            let leads = |name: &&&str| {
                nodes
                    .get(name)
                    .is_some_and(|n| n.consensus.leadership().borrow().is_some())
            };
            let leaders: Vec<_> = NAMES.iter().filter(leads).collect();
            (leaders.len() == 1).then(|| *leaders[0])
        })
    }

    fn member(&mut self, name: &str) -> MemberId {
        self.node(name).consensus.me().member
    }

    fn form(&mut self) {
        let member = self.member("a");
        let call = Bootstrap {
            fence: fence(),
            cluster: ClusterId("simulated".into()),
            group: GroupId(0),
            member,
            address: address("a"),
            size: 3,
        };
        self.on("a", move |_, consensus| async move {
            consensus.bootstrap(&call).await
        })
        .unwrap();
        assert_eq!(self.leader(), "a");
        for name in ["b", "c"] {
            let member = self.member(name);
            let add = AddLearner {
                fence: fence(),
                member,
                address: address(name),
            };
            self.insist("a", move |consensus| {
                let add = add.clone();
                Box::pin(async move { consensus.add_learner(&add).await.map(drop) })
            });
            self.insist("a", move |consensus| {
                let of = OfMember {
                    fence: fence(),
                    member,
                };
                Box::pin(async move { consensus.promote(&of).await.map(drop) })
            });
        }
    }

    /// Writes through whoever leads; an entry whose fate is unknown is written again.
    fn write(&mut self, numbers: std::ops::RangeInclusive<u64>) {
        for n in numbers {
            loop {
                let leader = self.leader();
                if self.on(leader, move |env, consensus| write(env, consensus, n)) {
                    break;
                }
            }
        }
    }

    fn crash(&mut self, name: &'static str) {
        // The power goes first: a program that is dropped must write nothing more.
        self.disks[name].cut_power();
        self.nodes.set(name, None);
        self.sim.crash(name);
    }

    fn same_state(&mut self) {
        self.until("all hold the same state", |nodes| {
            let states: Vec<_> = NAMES
                .iter()
                .map(|name| {
                    let view = nodes.get(name)?.consensus.view();
                    Some((view.applied()?, view.checksum()))
                })
                .collect::<Option<_>>()?;
            states.windows(2).all(|w| w[0] == w[1]).then_some(())
        });
    }
}

fn fence() -> Fence {
    Fence {
        configuration: None,
        uid: String::new(),
        generation: 0,
        adopt: false,
    }
}

fn address(name: &str) -> String {
    format!("{name}:{PEER_PORT}")
}

async fn write(env: Env, consensus: Consensus, n: u64) -> bool {
    let Some(lead) = *consensus.leadership().borrow() else {
        return false;
    };
    let mut patch = PatchBuilder::new();
    patch.put(
        Space::Data,
        n.to_be_bytes().to_vec(),
        n.to_be_bytes().to_vec(),
    );
    let entry = Entry {
        kind: EntryKind::Mutations,
        revision: Revision(n),
        stamp_ms: env.clock.wall_ms(),
        patches: vec![Arc::new(patch.seal())],
    };
    let deadline = env.clock.mono() + Duration::from_secs(5);
    match consensus.propose(&lead, entry, deadline).await {
        Ok(proposal) => matches!(
            env.until(deadline, proposal.applied.wait()).await,
            Some(Ok(_))
        ),
        Err(_) => false,
    }
}

fn smoke(seed: u64) {
    let mut world = World::new(seed);
    world.form();
    world.write(1..=30);
    // A follower, then whoever leads.
    let follower = NAMES.into_iter().find(|name| *name != "a").unwrap();
    world.crash(follower);
    world.write(31..=60);
    world.sim.bounce(follower);
    world.same_state();
    let leader = world.leader();
    world.crash(leader);
    world.write(61..=90);
    world.sim.bounce(leader);
    world.same_state();
    for name in NAMES {
        let node = world.node(name);
        let view = node.consensus.view();
        for n in 1..=90_u64 {
            let found = view.get(Space::Data, &n.to_be_bytes()).unwrap();
            assert!(found.is_some(), "{name} has lost {n} (seed {seed})");
        }
        assert_eq!(view.recount().unwrap().checksum, view.checksum(), "{name}");
        assert_eq!(node.consensus.report().full_repairs, 0, "{name}");
    }
}

#[test]
fn three_nodes_survive_power_cuts_with_the_same_state() {
    for seed in 1..=8 {
        smoke(seed);
    }
}
