//! Situations for tables of the planner, built up from a healthy one.

use flower_api::{
    ids::{ClusterId, GroupId, MemberId, Revision},
    report::{
        ConfigVersion, Configuration, Disk, FollowerLag, Footprint, Identity, Lifecycle, Positions,
        Report, Role,
    },
};
use flower_operator::{
    controller::{
        build::statefulset,
        observed::{AuthView, ClaimView, NodeView, Observed, PodView},
        plan::{Facts, Plan, plan},
        validate::ValidatedCluster,
    },
    crd::status::GroupStatus,
};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::validated;

pub const CLUSTER: &str = "c-1";

pub fn id(ordinal: u32) -> MemberId {
    MemberId(0xb0 + u64::from(ordinal))
}

/// A situation, built up from a healthy one.
pub struct Case {
    pub cluster: ValidatedCluster,
    pub observed: Observed,
}

impl Case {
    /// `voters` members that are all well; ordinal 0 leads.
    pub fn healthy(replicas: u32, voters: u32) -> Self {
        let cluster = validated("orders", json!({ "replicas": replicas }));
        let mut case = Self {
            observed: Observed {
                auth: AuthView::Present(vec!["token".to_owned()]),
                ..Observed::default()
            },
            cluster,
        };
        case.observed.status.cluster_id = Some(ClusterId(CLUSTER.to_owned()));
        case.observed.status.groups = vec![GroupStatus {
            bootstrapped: true,
            ..GroupStatus::default()
        }];
        case.statefulset(voters.max(replicas));
        let members: Vec<u32> = (0..voters).collect();
        let configuration = case.configuration(&members, &[]);
        for ordinal in 0..voters {
            case.pod(ordinal);
            case.report(ordinal, Some(configuration.clone()));
        }
        case.lead(0);
        case
    }

    /// Pods that run and nothing else yet.
    pub fn newborn(replicas: u32) -> Self {
        let mut case = Self::healthy(replicas, 0);
        case.observed.status = flower_operator::crd::FlowerClusterStatus::default();
        for ordinal in 0..replicas {
            case.pod(ordinal);
            case.report(ordinal, None);
        }
        case
    }

    pub fn statefulset(&mut self, replicas: u32) {
        let manifest = statefulset::statefulset(&self.cluster, replicas);
        self.observed.statefulset = serde_json::from_value(manifest.object).ok();
    }

    pub fn configuration(&self, voters: &[u32], learners: &[u32]) -> Configuration {
        let address = |ordinal: &u32| {
            let name = &self.cluster.name;
            (
                id(*ordinal),
                name.peer_address("shop", GroupId(0), *ordinal),
            )
        };
        Configuration {
            version: ConfigVersion { term: 3, index: 40 },
            committed: true,
            voters: vec![voters.iter().map(|ordinal| id(*ordinal)).collect()],
            members: voters.iter().chain(learners).map(address).collect(),
        }
    }

    pub fn pod(&mut self, ordinal: u32) -> &mut PodView {
        let claim = ClaimView {
            uid: format!("claim-{ordinal}"),
            volume: Some(format!("volume-{ordinal}")),
            created: Timestamp::from_second(1_800_000_000).ok(),
            ..ClaimView::default()
        };
        self.observed.claims.insert(ordinal, claim);
        let hash = statefulset::template_hash(&self.cluster);
        self.observed.pods.insert(
            ordinal,
            PodView {
                uid: format!("pod-{ordinal}"),
                ip: Some(format!("10.0.0.{ordinal}")),
                started: true,
                running: true,
                ready: true,
                template_hash: Some(hash),
                ..PodView::default()
            },
        );
        self.observed.pods.get_mut(&ordinal).expect("just made")
    }

    pub fn report(&mut self, ordinal: u32, configuration: Option<Configuration>) {
        let joined = configuration.is_some();
        let report = Report {
            identity: Identity {
                cluster: joined.then(|| ClusterId(CLUSTER.to_owned())),
                group: GroupId(0),
                member: Some(id(ordinal)),
                lifecycle: if joined {
                    Lifecycle::Member
                } else {
                    Lifecycle::Uninitialized
                },
                broken: None,
                version: "0.1.0".to_owned(),
                name: format!("orders-g0-{ordinal}"),
            },
            role: if joined { Role::Follower } else { Role::None },
            term: 3,
            leader: joined.then(|| id(0)),
            quorum_lease: false,
            configuration,
            positions: Positions {
                last_log: 100,
                committed: 100,
                applied: 100,
                checkpoint: 90,
                purged: 0,
                revision: Revision(7),
            },
            followers: Vec::new(),
            formed: true,
            recovery: None,
            owner: None,
            deployment: None,
            ready: joined,
            not_ready: None,
            images_received: 0,
            replayed_entries: 0,
            full_repairs: 0,
            state_checksum: String::new(),
            footprint: Footprint::default(),
            disk: Disk::default(),
        };
        self.observed
            .nodes
            .insert(ordinal, NodeView::Reported(Box::new(report)));
    }

    pub fn node(&mut self, ordinal: u32) -> &mut Report {
        match self.observed.nodes.get_mut(&ordinal) {
            Some(NodeView::Reported(report)) => report,
            _ => panic!("{ordinal} reports nothing"),
        }
    }

    /// This node leads; the others follow it closely.
    pub fn lead(&mut self, ordinal: u32) {
        let Some(NodeView::Reported(node)) = self.observed.nodes.get_mut(&ordinal) else {
            return;
        };
        node.role = Role::Leader;
        node.quorum_lease = true;
        let members: Vec<MemberId> = node
            .configuration
            .iter()
            .flat_map(|known| known.members.keys().copied())
            .filter(|member| *member != id(ordinal))
            .collect();
        node.followers = members
            .into_iter()
            .map(|member| FollowerLag {
                member,
                matched: Some(100),
                lag_entries: 0,
                contact_ms: Some(20),
                image: None,
            })
            .collect();
    }

    /// All nodes know this configuration; 0 leads.
    pub fn configured(&mut self, voters: &[u32], learners: &[u32]) {
        let configuration = self.configuration(voters, learners);
        for ordinal in voters.iter().chain(learners) {
            if !self.observed.pods.contains_key(ordinal) {
                self.pod(*ordinal);
                self.report(*ordinal, Some(configuration.clone()));
            }
            self.node(*ordinal).configuration = Some(configuration.clone());
        }
        self.lead(0);
    }

    pub fn lag(&mut self, ordinal: u32) -> &mut FollowerLag {
        let member = id(ordinal);
        self.node(0)
            .followers
            .iter_mut()
            .find(|lag| lag.member == member)
            .expect("a follower")
    }

    /// Neither the leader nor the operator reaches it.
    pub fn silent(&mut self, ordinal: u32) {
        let why = "no answer within 2000 ms".to_owned();
        self.observed
            .nodes
            .insert(ordinal, NodeView::Unreachable { why });
        let lag = self.lag(ordinal);
        lag.contact_ms = Some(60_000);
        if let Some(pod) = self.observed.pods.get_mut(&ordinal) {
            pod.ready = false;
        }
    }

    /// Its pod cannot run anywhere: the node of its volume was deleted.
    pub fn stranded(&mut self, ordinal: u32) {
        self.silent(ordinal);
        let pod = self.observed.pods.get_mut(&ordinal).expect("a pod");
        (pod.ip, pod.running) = (None, false);
        self.observed.nodes.remove(&ordinal);
        let claim = self.observed.claims.get_mut(&ordinal).expect("a claim");
        claim.gone_with = Some("node-3".to_owned());
    }

    /// Its volume was lost: another member, which knows nothing.
    pub fn wiped(&mut self, ordinal: u32) {
        self.report(ordinal, None);
        self.node(ordinal).identity.member = Some(MemberId(0xf0 + u64::from(ordinal)));
        let lag = self.lag(ordinal);
        lag.contact_ms = Some(60_000);
    }

    pub fn stale_template(&mut self, ordinal: u32) {
        let pod = self.observed.pods.get_mut(&ordinal).expect("a pod");
        pod.template_hash = Some("old".to_owned());
    }

    pub fn plan(&self) -> Plan {
        plan(Facts {
            cluster: &self.cluster,
            observed: &self.observed,
            template_hash: &statefulset::template_hash(&self.cluster),
        })
    }
}
