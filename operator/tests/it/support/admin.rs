//! A group of nodes in memory with the rules of membership of a real one: fences, one change
//! at a time, no leader without a quorum, catching up, one life per data directory. Faults are
//! fields to set; every mutating call is logged.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use async_trait::async_trait;
use flower_api::{
    admin::{
        AddLearner, AdminApi, AdminError, Bootstrap, Deploy, Deployed, Done, Endpoint, Fence,
        OfMember, code,
    },
    ids::{ClusterId, GroupId, MemberId, Revision},
    report::{
        ConfigVersion, Configuration, DeploymentInfo, Disk, FollowerLag, Footprint, Identity,
        Lifecycle, Positions, Report, Role,
    },
    wire::Problem,
};
use flower_operator::context::Connect;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

/// One data directory and the process that serves it.
#[derive(Debug, Clone)]
pub struct Node {
    /// Life of the directory.
    pub member: MemberId,
    /// Cluster on it.
    pub cluster: Option<ClusterId>,
    /// The configuration that it knows.
    pub configuration: Option<Configuration>,
    /// Last entry in its log.
    pub log: u64,
    /// The process runs.
    pub up: bool,
    /// The operator reaches it.
    pub reachable: bool,
    /// Its data cannot be read.
    pub broken: bool,
    /// Application in its state.
    pub bundle: Option<String>,
    /// The mark.
    pub formed: bool,
    /// Images that it received.
    pub images: u64,
}

/// All nodes, by the address that pods have.
#[derive(Debug, Default)]
pub struct Group {
    /// By pod address.
    pub nodes: BTreeMap<String, Node>,
    /// Term.
    pub term: u64,
    /// The leader's address.
    pub leader: Option<String>,
    /// Last committed entry.
    pub committed: u64,
    /// Last purged entry.
    pub purged: u64,
    /// Mutating calls that were carried out, in order.
    pub log: Vec<String>,
    /// The next mutating call is carried out, and its answer lost.
    pub lose_next_answer: bool,
    /// Learners receive nothing while this is set.
    pub stall_learners: bool,
    next_member: u64,
    owner: Option<(String, i64)>,
}

impl Group {
    /// An empty directory at this address.
    pub fn start_fresh(&mut self, address: &str) -> MemberId {
        self.next_member += 1;
        let member = MemberId(0xa000 + self.next_member);
        self.nodes.insert(
            address.to_owned(),
            Node {
                member,
                cluster: None,
                configuration: None,
                log: 0,
                up: true,
                reachable: true,
                broken: false,
                bundle: None,
                formed: false,
                images: 0,
            },
        );
        member
    }

    /// Adds committed entries, as clients' writes do.
    pub fn write(&mut self, entries: u64) {
        if self.leader.is_some() {
            self.committed += entries;
            self.replicate();
        }
    }

    fn at(&self, address: &str) -> Option<&Node> {
        self.nodes.get(address).filter(|node| node.up)
    }

    /// The configuration of the most advanced node.
    pub fn configuration(&self) -> Option<Configuration> {
        self.nodes
            .values()
            .filter(|node| !node.broken)
            .filter_map(|node| node.configuration.clone())
            .max_by_key(|known| known.version)
    }

    fn address_of(&self, member: MemberId) -> Option<&String> {
        self.nodes
            .iter()
            .find(|(_, node)| node.member == member)
            .map(|(address, _)| address)
    }

    fn voter_alive(&self, member: MemberId) -> bool {
        self.nodes
            .values()
            .any(|node| node.member == member && node.up && !node.broken && node.cluster.is_some())
    }

    /// Elects where there is no leader, sends the log on, and forgets a leader without quorum.
    pub fn tick(&mut self) {
        let Some(configuration) = self.configuration() else {
            return;
        };
        let voters: Vec<MemberId> = configuration.voters.concat();
        let alive = voters.iter().filter(|id| self.voter_alive(**id)).count();
        let quorum = alive > voters.len() / 2;
        let leads = self
            .leader
            .clone()
            .and_then(|address| self.at(&address).map(|node| node.member));
        if !quorum {
            self.leader = None;
            return;
        }
        if leads.is_none_or(|id| !voters.contains(&id) || !self.voter_alive(id)) {
            let best = voters
                .iter()
                .filter(|id| self.voter_alive(**id))
                .filter_map(|id| self.address_of(*id).cloned())
                .max_by_key(|address| self.nodes[address].log);
            self.leader = best;
            self.term += 1;
            self.committed += 1;
        }
        self.replicate();
    }

    fn replicate(&mut self) {
        let Some(leader) = self.leader.clone() else {
            return;
        };
        let Some(source) = self.nodes.get(&leader).cloned() else {
            return;
        };
        let Some(configuration) = source.configuration.clone() else {
            return;
        };
        for node in self.nodes.values_mut() {
            let member = configuration.members.contains_key(&node.member);
            if !node.up || node.broken || !member {
                continue;
            }
            if self.stall_learners && !configuration.is_voter(node.member) {
                node.cluster.clone_from(&source.cluster);
                continue;
            }
            if node.log < self.purged {
                node.images += 1;
            }
            node.cluster.clone_from(&source.cluster);
            node.configuration = Some(configuration.clone());
            node.log = self.committed;
            node.bundle.clone_from(&source.bundle);
            node.formed = source.formed;
        }
    }

    fn report(&self, address: &str) -> Option<Report> {
        let node = self.at(address).filter(|node| node.reachable)?;
        let leads = self.leader.as_deref() == Some(address);
        let configuration = node.configuration.clone();
        let known = configuration.as_ref();
        let member = known.is_some_and(|known| known.members.contains_key(&node.member));
        let lifecycle = match (&node.cluster, node.broken) {
            (_, true) => Lifecycle::Broken,
            (None, _) => Lifecycle::Uninitialized,
            (Some(_), _) if member => Lifecycle::Member,
            (Some(_), _) if known.is_some() => Lifecycle::Removed,
            (Some(_), _) => Lifecycle::Joining,
        };
        let leader = self
            .leader
            .as_ref()
            .and_then(|at| self.at(at))
            .map(|node| node.member);
        let role = match known {
            _ if leads => Role::Leader,
            Some(known) if known.is_voter(node.member) => Role::Follower,
            Some(_) if member => Role::Learner,
            _ => Role::None,
        };
        let follower = |id: &MemberId| {
            let to = self
                .address_of(*id)
                .and_then(|at| self.at(at))
                .filter(|node| !node.broken);
            FollowerLag {
                member: *id,
                matched: to
                    .filter(|node| node.configuration.is_some())
                    .map(|node| node.log),
                lag_entries: self.committed - to.map_or(0, |node| node.log),
                contact_ms: to.map(|_| 10),
                image: None,
            }
        };
        Some(Report {
            identity: Identity {
                cluster: node.cluster.clone(),
                group: GroupId(0),
                member: (!node.broken).then_some(node.member),
                lifecycle,
                broken: node
                    .broken
                    .then(|| "a page has a wrong checksum".to_owned()),
                version: "0.1.0".to_owned(),
                name: format!("orders-g0-{}", address.trim_start_matches("10.0.0.")),
            },
            role,
            term: self.term,
            leader: leader.filter(|_| member),
            quorum_lease: leads,
            followers: known.filter(|_| leads).map_or_else(Vec::new, |known| {
                known
                    .members
                    .keys()
                    .filter(|id| **id != node.member)
                    .map(follower)
                    .collect()
            }),
            configuration,
            positions: Positions {
                last_log: node.log,
                committed: node.log,
                applied: node.log,
                checkpoint: node.log,
                purged: self.purged,
                revision: Revision(node.log),
            },
            formed: node.formed,
            owner: None,
            deployment: node.bundle.as_ref().map(|bundle| DeploymentInfo {
                hash: hash(bundle),
                revision: Revision(1),
                functions: Vec::new(),
            }),
            ready: member,
            not_ready: None,
            images_received: node.images,
            replayed_entries: 0,
            full_repairs: 0,
            state_checksum: format!("{:x}", node.log),
            footprint: Footprint {
                resident_bytes: Some(64 << 20),
                stored_bytes: 1 << 20,
                state_file_bytes: 3 << 20,
                ..Footprint::default()
            },
            disk: Disk {
                capacity_bytes: 1 << 30,
                free_bytes: 1 << 29,
                reserve_bytes: 64 << 20,
            },
        })
    }

    fn fenced(&mut self, at: &str, fence: &Fence) -> Result<Configuration, AdminError> {
        if self.leader.as_deref() != Some(at) {
            return Err(refuse(code::NOT_LEADER, "another node leads"));
        }
        let configuration = self
            .nodes
            .get(at)
            .and_then(|node| node.configuration.clone())
            .ok_or_else(|| refuse(code::NOT_LEADER, "no configuration"))?;
        if fence
            .configuration
            .is_some_and(|seen| seen != configuration.version)
        {
            return Err(refuse(
                code::STALE_CONFIGURATION,
                "planned against another configuration",
            ));
        }
        if let Some((uid, generation)) = &self.owner
            && *uid == fence.uid
            && *generation > fence.generation
        {
            return Err(refuse(code::STALE_SPEC, "a newer generation was seen"));
        }
        self.owner = Some((fence.uid.clone(), fence.generation));
        Ok(configuration)
    }

    /// Commits a configuration, if the voters of old and new can.
    fn commit(&mut self, at: &str, mut next: Configuration) -> Result<Done, AdminError> {
        let old = self.nodes[at]
            .configuration
            .clone()
            .expect("a leader has one");
        for set in [&old.voters[0], &next.voters[0]] {
            let good = set.iter().filter(|id| self.voter_alive(**id)).count();
            assert!(
                good > set.len() / 2,
                "a change of the configuration that the voters cannot carry: {set:?}"
            );
        }
        self.committed += 1;
        next.version = ConfigVersion {
            term: self.term,
            index: self.committed,
        };
        next.committed = true;
        let version = next.version;
        let node = self.nodes.get_mut(at).expect("the leader");
        // Those that left hear of it, as a real leader sends the last entry to them.
        let left: BTreeSet<MemberId> = old
            .members
            .keys()
            .filter(|id| !next.members.contains_key(id))
            .copied()
            .collect();
        node.configuration = Some(next.clone());
        for other in self
            .nodes
            .values_mut()
            .filter(|other| left.contains(&other.member))
        {
            if other.up {
                other.configuration = Some(next.clone());
            }
        }
        self.replicate();
        Ok(Done {
            configuration: Some(version),
        })
    }
}

fn hash(bundle: &str) -> String {
    hex::encode(Sha256::digest(bundle.as_bytes()))
}

fn refuse(code: &str, detail: &str) -> AdminError {
    AdminError::Refused(Box::new(Problem::new(409, code, "refused", detail)))
}

/// The fake, shared by clients and test.
#[derive(Clone, Default)]
pub struct Fake(pub Arc<Mutex<Group>>);

impl Connect for Fake {
    fn connect(&self, _: &[String]) -> Arc<dyn AdminApi> {
        Arc::new(self.clone())
    }
}

impl Fake {
    fn change(
        &self,
        at: &Endpoint,
        what: String,
        run: impl FnOnce(&mut Group, &str) -> Result<Done, AdminError>,
    ) -> Result<Done, AdminError> {
        let mut group = self.0.lock();
        let address = address(at);
        let reachable = group.at(&address).is_some_and(|node| node.reachable);
        if !reachable {
            return Err(unreachable(at));
        }
        let done = run(&mut group, &address)?;
        group.log.push(what);
        if std::mem::take(&mut group.lose_next_answer) {
            return Err(unreachable(at));
        }
        Ok(done)
    }
}

fn address(at: &Endpoint) -> String {
    at.0.trim_start_matches("http://")
        .trim_end_matches(":7702")
        .to_owned()
}

fn unreachable(at: &Endpoint) -> AdminError {
    AdminError::Unreachable {
        endpoint: at.0.clone(),
        why: "connection refused".to_owned(),
    }
}

#[async_trait]
impl AdminApi for Fake {
    async fn identity(&self, at: &Endpoint) -> Result<Identity, AdminError> {
        Ok(self.report(at).await?.identity)
    }
    async fn report(&self, at: &Endpoint) -> Result<Report, AdminError> {
        self.0
            .lock()
            .report(&address(at))
            .ok_or_else(|| unreachable(at))
    }
    async fn bootstrap(&self, at: &Endpoint, call: &Bootstrap) -> Result<Done, AdminError> {
        self.change(at, format!("bootstrap {}", call.member), |group, at| {
            let index = group.committed + 1;
            let node = group.nodes.get_mut(at).expect("reachable");
            if node.member != call.member {
                return Err(refuse(code::WRONG_MEMBER, "another member"));
            }
            if node.cluster.is_some() {
                return Err(refuse(code::ALREADY_INITIALIZED, "an identity exists"));
            }
            node.cluster = Some(call.cluster.clone());
            node.formed = call.size == 1;
            let version = ConfigVersion { term: 1, index };
            node.configuration = Some(Configuration {
                version,
                committed: true,
                voters: vec![vec![call.member]],
                members: [(call.member, call.address.clone())].into(),
            });
            group.tick();
            Ok(Done {
                configuration: Some(version),
            })
        })
    }
    async fn add_learner(&self, at: &Endpoint, call: &AddLearner) -> Result<Done, AdminError> {
        self.change(at, format!("add {}", call.member), |group, at| {
            let mut next = group.fenced(at, &call.fence)?;
            next.members.insert(call.member, call.address.clone());
            group.commit(at, next)
        })
    }
    async fn promote(&self, at: &Endpoint, call: &OfMember) -> Result<Done, AdminError> {
        self.change(at, format!("promote {}", call.member), |group, at| {
            let mut next = group.fenced(at, &call.fence)?;
            let learner = group.nodes.values().find(|node| node.member == call.member);
            if learner.is_none_or(|node| node.log < group.committed) {
                return Err(refuse(code::NOT_CAUGHT_UP, "it has not caught up"));
            }
            next.voters[0].push(call.member);
            group.commit(at, next)
        })
    }
    async fn remove(&self, at: &Endpoint, call: &OfMember) -> Result<Done, AdminError> {
        self.change(at, format!("remove {}", call.member), |group, at| {
            let mut next = group.fenced(at, &call.fence)?;
            assert_ne!(
                group.nodes[at].member, call.member,
                "a leader is asked to remove itself"
            );
            next.members.remove(&call.member);
            next.voters[0].retain(|id| *id != call.member);
            group.commit(at, next)
        })
    }
    async fn transfer(&self, at: &Endpoint, call: &OfMember) -> Result<Done, AdminError> {
        self.change(at, format!("transfer {}", call.member), |group, at| {
            let configuration = group.fenced(at, &call.fence)?;
            let to = group
                .address_of(call.member)
                .filter(|at| group.at(at).is_some_and(|node| !node.broken))
                .cloned();
            let Some(to) = to.filter(|_| configuration.is_voter(call.member)) else {
                return Err(refuse(code::UNSAFE, "it cannot lead"));
            };
            group.leader = Some(to);
            group.term += 1;
            group.committed += 1;
            group.replicate();
            Ok(Done {
                configuration: Some(configuration.version),
            })
        })
    }
    async fn formed(&self, at: &Endpoint, fence: &Fence) -> Result<Done, AdminError> {
        self.change(at, "formed".to_owned(), |group, at| {
            let configuration = group.fenced(at, fence)?;
            group.nodes.get_mut(at).expect("the leader").formed = true;
            group.committed += 1;
            group.replicate();
            Ok(Done {
                configuration: Some(configuration.version),
            })
        })
    }
    async fn deploy(&self, at: &Endpoint, call: &Deploy) -> Result<Deployed, AdminError> {
        let source = call.source.clone();
        self.change(at, "deploy".to_owned(), |group, at| {
            let configuration = group.fenced(at, &call.fence)?;
            if source.contains("syntax error") {
                let problem =
                    Problem::new(422, code::BAD_BUNDLE, "bad bundle", "line 1: syntax error");
                return Err(AdminError::Refused(Box::new(problem)));
            }
            group.nodes.get_mut(at).expect("the leader").bundle = Some(source);
            group.committed += 1;
            group.replicate();
            Ok(Done {
                configuration: Some(configuration.version),
            })
        })?;
        Ok(Deployed {
            hash: hash(&call.source),
            changed: true,
            changes: Vec::new(),
        })
    }
}
