//! A group of nodes in memory with the rules of membership of a real one: fences, one change
//! at a time, no leader without a quorum, catching up, one life per data directory. Faults are
//! fields to set; every mutating call is logged.

use std::collections::{BTreeMap, BTreeSet};

use flower_api::{
    admin::{AdminError, Done, Fence, code},
    ids::{ClusterId, GroupId, MemberId, Revision},
    report::{
        ConfigVersion, Configuration, DeploymentInfo, Disk, FollowerLag, Footprint, Identity,
        Lifecycle, Positions, Report, Role,
    },
    wire::Problem,
};
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

    pub(super) fn at(&self, address: &str) -> Option<&Node> {
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

    pub(super) fn address_of(&self, member: MemberId) -> Option<&String> {
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

    pub(super) fn replicate(&mut self) {
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

    pub(super) fn report(&self, address: &str) -> Option<Report> {
        let node = self.at(address).filter(|node| node.reachable)?;
        let leads = self.leader.as_deref() == Some(address);
        let known = node.configuration.as_ref();
        let member = known.is_some_and(|known| known.members.contains_key(&node.member));
        let leader = self.leader.as_ref().and_then(|at| self.at(at));
        let role = match known {
            _ if leads => Role::Leader,
            Some(known) if known.is_voter(node.member) => Role::Follower,
            Some(_) if member => Role::Learner,
            _ => Role::None,
        };
        Some(Report {
            identity: identity(node, address, member),
            role,
            term: self.term,
            leader: leader.map(|node| node.member).filter(|_| member),
            quorum_lease: leads,
            followers: known.filter(|_| leads).map_or_else(Vec::new, |known| {
                let others = known.members.keys().filter(|id| **id != node.member);
                others.map(|id| self.lag(*id)).collect()
            }),
            configuration: node.configuration.clone(),
            positions: Positions {
                last_log: node.log,
                committed: node.log,
                applied: node.log,
                checkpoint: node.log,
                purged: self.purged,
                revision: Revision(node.log),
            },
            formed: node.formed,
            recovery: None,
            owner: None,
            deployment: node.bundle.as_ref().map(|bundle| DeploymentInfo {
                hash: hash(bundle),
                revision: Revision(1),
                functions: Vec::new(),
                build: None,
                failed_build: None,
            }),
            ready: member,
            not_ready: None,
            images_received: node.images,
            replayed_entries: 0,
            full_repairs: 0,
            state_checksum: format!("{:x}", node.log),
            footprint: footprint(),
            disk: Disk {
                capacity_bytes: 1 << 30,
                free_bytes: 1 << 29,
                reserve_bytes: 64 << 20,
            },
        })
    }

    /// What the leader knows of another member.
    fn lag(&self, member: MemberId) -> FollowerLag {
        let to = self
            .address_of(member)
            .and_then(|at| self.at(at))
            .filter(|node| !node.broken);
        FollowerLag {
            member,
            matched: to
                .filter(|node| node.configuration.is_some())
                .map(|node| node.log),
            lag_entries: self.committed - to.map_or(0, |node| node.log),
            contact_ms: to.map(|_| 10),
            image: None,
        }
    }

    pub(super) fn fenced(&mut self, at: &str, fence: &Fence) -> Result<Configuration, AdminError> {
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
    pub(super) fn commit(&mut self, at: &str, mut next: Configuration) -> Result<Done, AdminError> {
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

fn identity(node: &Node, address: &str, member: bool) -> Identity {
    let lifecycle = match (&node.cluster, node.broken) {
        (_, true) => Lifecycle::Broken,
        (None, _) => Lifecycle::Uninitialized,
        (Some(_), _) if member => Lifecycle::Member,
        (Some(_), _) if node.configuration.is_some() => Lifecycle::Removed,
        (Some(_), _) => Lifecycle::Joining,
    };
    Identity {
        cluster: node.cluster.clone(),
        group: GroupId(0),
        member: (!node.broken).then_some(node.member),
        lifecycle,
        broken: node
            .broken
            .then(|| "a page has a wrong checksum".to_owned()),
        version: "0.1.0".to_owned(),
        name: format!("orders-g0-{}", address.trim_start_matches("10.0.0.")),
    }
}

fn footprint() -> Footprint {
    Footprint {
        resident_bytes: Some(64 << 20),
        stored_bytes: 1 << 20,
        state_file_bytes: 3 << 20,
        ..Footprint::default()
    }
}

pub(super) fn hash(bundle: &str) -> String {
    hex::encode(Sha256::digest(bundle.as_bytes()))
}

pub(super) fn refuse(code: &str, detail: &str) -> AdminError {
    AdminError::Refused(Box::new(Problem::new(409, code, "refused", detail)))
}
