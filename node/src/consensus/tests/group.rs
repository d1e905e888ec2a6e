//! Groups of nodes in one process, over loopback sockets and real files.

use std::{sync::Arc, time::Duration};

use flower_api::{
    ClusterId, GroupId, MemberId, Revision,
    admin::{AddLearner, Bootstrap, Fence, OfMember},
    report::{Lifecycle, Role},
};
use flower_engine::{Entry, EntryKind, PatchBuilder, Space, View};
use flower_store::{DirSettings, RealDisk};

use crate::{
    consensus::{Consensus, ConsensusSettings, FixedSecrets, ProposeError, Timing},
    env::{Env, Mono},
    node::{Node, NodeSettings},
};

/// A node in a directory of its own; restarted over the same one.
struct Running {
    env: Env,
    node: Node,
    dir: Arc<tempfile::TempDir>,
    address: String,
}

fn settings(listen: std::net::SocketAddr) -> NodeSettings {
    let secrets = Arc::new(FixedSecrets(vec!["a token of the tests".into()]));
    let mut consensus = ConsensusSettings::new(listen, secrets);
    consensus.timing = Timing {
        heartbeat: Duration::from_millis(50),
        election_min: Duration::from_millis(300),
        election_max: Duration::from_millis(600),
    };
    consensus.snapshot_after_log_bytes = 256 << 10;
    NodeSettings {
        name: "test".into(),
        client_address: String::new(),
        directory: DirSettings {
            log_cache_bytes: 4 << 20,
            log_tail_bytes: 1 << 20,
            page_cache_bytes: 8 << 20,
            value_cache_bytes: 1 << 20,
            group: GroupId(0),
        },
        consensus,
    }
}

impl Running {
    async fn start(dir: Arc<tempfile::TempDir>, address: Option<&str>) -> Self {
        let disk = loop {
            // The directory is locked until the last thread of the run before has let go.
            match RealDisk::open(dir.path()) {
                Ok(disk) => break disk,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Err(error) => panic!("{error}"),
            }
        };
        let env = Env::real(Arc::new(disk)).unwrap();
        let listen = address.unwrap_or("127.0.0.1:0").parse().unwrap();
        let node = Node::open(&env, settings(listen)).await.unwrap();
        let address = node.consensus().unwrap().listening().to_string();
        Self {
            env,
            node,
            dir,
            address,
        }
    }

    async fn fresh() -> Self {
        Self::start(Arc::new(tempfile::tempdir().unwrap()), None).await
    }

    fn consensus(&self) -> &Consensus {
        self.node.consensus().unwrap()
    }

    fn member(&self) -> MemberId {
        self.consensus().me().member
    }

    fn soon(&self) -> Mono {
        self.env.clock.mono() + Duration::from_secs(20)
    }

    /// Stops without handing over, as a process that is killed does; the files stay.
    async fn stop(self) -> (Arc<tempfile::TempDir>, String) {
        self.env.tasks.stop();
        let _ = self.consensus().0.raft.shutdown().await;
        self.env.tasks.ended().await;
        (self.dir.clone(), self.address.clone())
    }

    async fn restart(self) -> Self {
        let (dir, address) = self.stop().await;
        Self::start(dir, Some(&address)).await
    }

    async fn bootstrap(&self) {
        let call = Bootstrap {
            fence: fence(None),
            cluster: ClusterId("tests".into()),
            group: GroupId(0),
            member: self.member(),
            address: self.address.clone(),
            size: 1,
        };
        self.consensus().bootstrap(&call).await.unwrap();
        until("it leads", || {
            self.consensus().leadership().borrow().is_some()
        })
        .await;
    }

    /// Writes `key`; panics unless it is applied.
    async fn write(&self, n: u64) {
        self.try_write(n, 16).await.unwrap();
    }

    async fn try_write(&self, n: u64, bytes: usize) -> Result<u64, ProposeError> {
        let lead = *self.consensus().leadership().borrow();
        let lead = lead.ok_or(ProposeError::NotDone { leader: None })?;
        let proposal = self
            .consensus()
            .propose(&lead, entry(n, bytes), self.soon())
            .await?;
        proposal.applied.wait().await.map(|at| at.index)
    }

    fn reads(&self, n: u64) -> bool {
        let view = self.consensus().view();
        view.get(Space::Data, &n.to_be_bytes()).unwrap().is_some()
    }

    fn state(&self) -> (u64, String) {
        let report = self.consensus().report();
        (report.positions.applied, report.state_checksum)
    }
}

fn fence(configuration: Option<flower_api::report::ConfigVersion>) -> Fence {
    Fence {
        configuration,
        uid: String::new(),
        generation: 0,
        adopt: false,
    }
}

fn entry(n: u64, bytes: usize) -> Entry {
    let mut patch = PatchBuilder::new();
    patch.put(Space::Data, n.to_be_bytes().to_vec(), vec![7; bytes]);
    Entry {
        kind: EntryKind::Mutations,
        revision: Revision(n),
        stamp_ms: n,
        patches: vec![Arc::new(patch.seal())],
    }
}

async fn until(what: &str, met: impl Fn() -> bool) {
    let wait = async {
        while !met() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait)
        .await
        .unwrap_or_else(|_| panic!("waited a minute for: {what}"));
}

/// The one that leads by common agreement.
async fn leader(nodes: &[Running]) -> &Running {
    let leads = |n: &&Running| n.consensus().leadership().borrow().is_some();
    until("one leads", || nodes.iter().filter(leads).count() == 1).await;
    nodes.iter().find(leads).unwrap()
}

/// Adds `new` to the group that `lead` leads.
async fn add(lead: &Running, new: &Running) {
    let call = AddLearner {
        fence: fence(lead.consensus().report().configuration.map(|c| c.version)),
        member: new.member(),
        address: new.address.clone(),
    };
    lead.consensus().add_learner(&call).await.unwrap();
}

async fn promote(lead: &Running, new: &Running) {
    let of = of(lead, new);
    loop {
        match lead.consensus().promote(&of).await {
            Ok(_) => return,
            Err(problem) if problem.retryable => {}
            Err(problem) => panic!("{problem}"),
        }
    }
}

fn of(lead: &Running, other: &Running) -> OfMember {
    OfMember {
        fence: fence(lead.consensus().report().configuration.map(|c| c.version)),
        member: other.member(),
    }
}

async fn three() -> Vec<Running> {
    let nodes = vec![
        Running::fresh().await,
        Running::fresh().await,
        Running::fresh().await,
    ];
    nodes[0].bootstrap().await;
    for new in &nodes[1..] {
        add(&nodes[0], new).await;
        promote(&nodes[0], new).await;
    }
    nodes
}

async fn same_state(nodes: &[Running]) {
    until("all have the same state", || {
        nodes.windows(2).all(|w| w[0].state() == w[1].state())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_bootstraps_proposes_and_restarts() {
    let node = Running::fresh().await;
    assert_eq!(node.consensus().lifecycle(), Lifecycle::Uninitialized);
    node.bootstrap().await;
    for n in 1..=20 {
        node.write(n).await;
    }
    let index = node.consensus().fence(node.soon()).await.unwrap();
    assert!(node.consensus().wait_applied(index, node.soon()).await);
    assert!(
        node.consensus()
            .wait_revision(Revision(20), node.soon())
            .await
    );
    let report = node.consensus().report();
    assert_eq!(
        (report.role, report.lifecycle),
        (Role::Leader, Lifecycle::Member)
    );
    assert!(report.quorum_lease && report.recovered);
    let (term, member) = (report.term, node.member());
    let node = node.restart().await;
    assert_eq!(node.member(), member);
    until("it leads again", || {
        node.consensus().leadership().borrow().is_some()
    })
    .await;
    let report = node.consensus().report();
    assert!(
        report.term > term,
        "a restarted leader does not take up its term again"
    );
    assert_eq!(report.full_repairs, 0);
    assert!((1..=20).all(|n| node.reads(n)));
    let again = Bootstrap {
        fence: fence(None),
        cluster: ClusterId("other".into()),
        group: GroupId(0),
        member,
        address: node.address.clone(),
        size: 1,
    };
    let refused = node.consensus().bootstrap(&again).await.unwrap_err();
    assert_eq!(refused.code, flower_api::admin::code::ALREADY_INITIALIZED);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_replicate_lose_their_leader_and_take_it_back() {
    let mut nodes = three().await;
    for n in 1..=50 {
        nodes[0].write(n).await;
    }
    same_state(&nodes).await;
    let old = nodes.remove(0);
    let old_term = old.consensus().report().term;
    let (dir, address) = old.stop().await;
    let lead = leader(&nodes).await;
    assert!(lead.consensus().report().term > old_term);
    for n in 51..=100 {
        lead.write(n).await;
    }
    nodes.push(Running::start(dir, Some(&address)).await);
    same_state(&nodes).await;
    assert!((1..=100).all(|n| nodes[2].reads(n)));
    for node in &nodes {
        let index = node.consensus().fence(node.soon()).await.unwrap();
        assert!(node.consensus().wait_applied(index, node.soon()).await);
        assert!(node.reads(100));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_directory_under_a_living_member_id_is_refused() {
    let mut nodes = three().await;
    for n in 1..=10 {
        nodes[0].write(n).await;
    }
    let lost = nodes.pop().unwrap();
    let old = lost.member();
    let (_, address) = lost.stop().await;
    let wiped = Running::start(Arc::new(tempfile::tempdir().unwrap()), Some(&address)).await;
    assert_ne!(wiped.member(), old);
    // The leader goes on addressing the old member there, and is refused each time.
    let lead = leader(&nodes).await;
    for n in 11..=20 {
        lead.write(n).await;
    }
    assert_eq!(wiped.consensus().lifecycle(), Lifecycle::Uninitialized);
    let report = wiped.consensus().report();
    assert_eq!((report.positions.last_log, report.term), (0, 0));
    // Replaced: the new member in, the old one out.
    add(lead, &wiped).await;
    promote(lead, &wiped).await;
    let remove = OfMember {
        fence: fence(None),
        member: old,
    };
    lead.consensus().remove(&remove).await.unwrap();
    let members = lead.consensus().report().configuration.unwrap().members;
    assert!(members.len() == 3 && !members.contains_key(&old));
    nodes.push(wiped);
    same_state(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_learner_behind_the_purged_log_receives_exactly_one_image() {
    let first = Running::fresh().await;
    first.bootstrap().await;
    for n in 1..=200 {
        first.try_write(n, 4 << 10).await.unwrap();
    }
    until("the log is purged", || {
        first.consensus().report().positions.purged > 0
    })
    .await;
    let term = first.consensus().report().term;
    let new = Running::fresh().await;
    add(&first, &new).await;
    for n in 201..=260 {
        first.try_write(n, 4 << 10).await.unwrap();
    }
    promote(&first, &new).await;
    let nodes = [first, new];
    same_state(&nodes).await;
    let (sent, received) = (nodes[0].consensus().report(), nodes[1].consensus().report());
    assert_eq!((sent.images_sent, received.images_received), (1, 1));
    assert_eq!(
        sent.term, term,
        "an image must not cost the leader its term"
    );
    assert!((1..=260).all(|n| nodes[1].reads(n)));
    // The image is durable: the member restarts from it and its log.
    let [first, new] = nodes;
    let new = new.restart().await;
    let nodes = [first, new];
    same_state(&nodes).await;
    assert_eq!(nodes[1].consensus().report().images_received, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_is_handed_over_and_a_batch_of_the_old_one_is_refused() {
    let nodes = three().await;
    let before = *nodes[0].consensus().leadership().borrow();
    nodes[0].write(1).await;
    let call = of(&nodes[0], &nodes[2]);
    nodes[0].consensus().transfer(&call).await.unwrap();
    let lead = leader(&nodes).await;
    assert_eq!(lead.member(), nodes[2].member());
    let stale = nodes[0]
        .consensus()
        .propose(&before.unwrap(), entry(2, 1), nodes[0].soon())
        .await;
    assert!(matches!(stale, Err(ProposeError::NotDone { .. })));
    lead.write(3).await;
    same_state(&nodes).await;
    assert!(!nodes[0].reads(2) && nodes[0].reads(3));
    let taken = lead.consensus().hand_over().await.unwrap();
    assert!(taken.is_some_and(|member| member != lead.member()));
    leader(&nodes).await.write(4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_grows_to_five_and_shrinks_to_three_under_writes() {
    let mut nodes = three().await;
    let mut n = 0;
    for _ in 0..2 {
        let new = Running::fresh().await;
        add(&nodes[0], &new).await;
        n += 1;
        nodes[0].write(n).await;
        promote(&nodes[0], &new).await;
        nodes.push(new);
    }
    let voters = |node: &Running| node.consensus().report().configuration.unwrap().voters;
    assert_eq!(voters(&nodes[0])[0].len(), 5);
    same_state(&nodes).await;
    let stale = of(&nodes[0], &nodes[4]);
    for _ in 0..2 {
        let gone = nodes.pop().unwrap();
        let call = of(&nodes[0], &gone);
        nodes[0].consensus().remove(&call).await.unwrap();
        // Removing it again is no change; a call planned against the old configuration is.
        let again = of(&nodes[0], &gone);
        nodes[0].consensus().remove(&again).await.unwrap();
        n += 1;
        nodes[0].write(n).await;
        gone.stop().await;
    }
    let refused = nodes[0].consensus().remove(&stale).await.unwrap_err();
    assert_eq!(refused.code, flower_api::admin::code::STALE_CONFIGURATION);
    assert_eq!(voters(&nodes[0]).len(), 1);
    assert_eq!(voters(&nodes[0])[0].len(), 3);
    same_state(&nodes).await;
    // The leader itself is not removed.
    let itself = of(&nodes[0], &nodes[0]);
    let refused = nodes[0].consensus().remove(&itself).await.unwrap_err();
    assert_eq!(refused.code, flower_api::admin::code::UNSAFE);
}
