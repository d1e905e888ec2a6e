//! Clusters by hand, for scenarios: formed, deployed to, and called as a client would. Every
//! call is one over the world's network; what fails is tried again under the same key.

use std::time::Duration;

use flower_api::{
    ClusterId, GroupId, MemberId,
    admin::{AddLearner, AdminApi, AdminError, Bootstrap, Deploy, Endpoint, Fence, OfMember},
    report::{Report, Role},
    wire::{Problem, header},
};
use flower_load::target::{self, Ended, Target};
use flower_node::client::Stream;
use http::Method;
use serde_json::Value;

use crate::{
    APP,
    admin::SimAdmin,
    audit::Audit,
    http::Http,
    node::{ADMIN, CLIENT, PEER},
    world::{ADMIN_TOKEN, CLIENT_TOKEN},
};

/// Between two attempts.
const AGAIN: Duration = Duration::from_millis(50);
/// One try of a call.
const CALL_LIMIT: Duration = Duration::from_secs(12);

/// Where a host's admin API is.
pub fn endpoint(host: &str) -> Endpoint {
    Endpoint(format!("http://{host}:{ADMIN}"))
}

/// A host's peer address.
pub fn peer(host: &str) -> String {
    format!("{host}:{PEER}")
}

/// A person's fence.
pub fn fence(report: &Report) -> Fence {
    Fence {
        configuration: report.configuration.as_ref().map(|c| c.version),
        uid: String::new(),
        generation: 0,
        adopt: false,
    }
}

/// A client of a world's cluster, on the host of a script.
#[derive(Clone)]
pub struct Cluster {
    admin: SimAdmin,
    calls: Http,
}

impl Cluster {
    /// A client on the host `name`.
    pub fn new(name: &str, audit: &Audit) -> Self {
        Self {
            admin: SimAdmin(Http::new(name, audit, ADMIN_TOKEN, true)),
            calls: Http::new(name, audit, CLIENT_TOKEN, true),
        }
    }

    /// The admin API.
    pub fn admin(&self) -> &SimAdmin {
        &self.admin
    }

    /// A node's report, once it answers and `fits`.
    pub async fn report(&self, host: &str, fits: impl Fn(&Report) -> bool) -> Report {
        loop {
            match self.admin.report(&endpoint(host)).await {
                Ok(report) if fits(&report) => return report,
                _ => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    /// The leader among `hosts` and its report, with a committed configuration.
    pub async fn leader(&self, hosts: &[String]) -> (String, Report) {
        loop {
            for host in hosts {
                if let Ok(report) = self.admin.report(&endpoint(host)).await
                    && report.role == Role::Leader
                    && report.quorum_lease
                    && report.configuration.as_ref().is_some_and(|c| c.committed)
                {
                    return (host.clone(), report);
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Makes a group of `hosts` and deploys the world's application.
    ///
    /// # Panics
    /// When a node refuses for good.
    pub async fn form(&self, hosts: &[String]) {
        let first = self.report(&hosts[0], |_| true).await;
        let member = first
            .identity
            .member
            .expect("a fresh directory has a member");
        let call = Bootstrap {
            fence: fence(&first),
            cluster: ClusterId("simulated".into()),
            group: GroupId(0),
            member,
            address: peer(&hosts[0]),
            size: hosts.len() as u32,
        };
        let done = self.admin.bootstrap(&endpoint(&hosts[0]), &call).await;
        done.expect("a fresh node is bootstrapped");
        for host in &hosts[1..] {
            let own = self.report(host, |_| true).await;
            let member = own.identity.member.expect("a fresh directory has a member");
            self.add(hosts, host, member).await;
            self.promote(hosts, member).await;
        }
        let (leader, report) = self.leader(hosts).await;
        let formed = self.admin.formed(&endpoint(&leader), &fence(&report)).await;
        formed.expect("the leader marks the group");
        let deploy = Deploy {
            fence: fence(&report),
            source: APP.into(),
            managed_by: None,
        };
        let deployed = self.admin.deploy(&endpoint(&leader), &deploy).await;
        deployed.expect("the application is deployed");
    }

    /// Adds a learner.
    pub async fn add(&self, hosts: &[String], host: &str, member: MemberId) {
        self.insist(hosts, async |leader: &str, fence: Fence| {
            let address = peer(host);
            let call = AddLearner {
                fence,
                member,
                address,
            };
            self.admin.add_learner(&endpoint(leader), &call).await
        })
        .await;
    }

    /// Makes a learner a voter.
    pub async fn promote(&self, hosts: &[String], member: MemberId) {
        self.insist(hosts, async |leader: &str, fence: Fence| {
            let call = OfMember { fence, member };
            self.admin.promote(&endpoint(leader), &call).await
        })
        .await;
    }

    /// Takes a member out.
    pub async fn remove(&self, hosts: &[String], member: MemberId) {
        self.insist(hosts, async |leader: &str, fence: Fence| {
            let call = OfMember { fence, member };
            self.admin.remove(&endpoint(leader), &call).await
        })
        .await;
    }

    async fn insist<T>(
        &self,
        hosts: &[String],
        call: impl AsyncFn(&str, Fence) -> Result<T, AdminError>,
    ) -> T {
        loop {
            let (leader, report) = self.leader(hosts).await;
            match call(&leader, fence(&report)).await {
                Ok(done) => return done,
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    /// Calls a mutation once.
    pub async fn mutate(&self, host: &str, name: &str, key: &str, args: &Value) -> Ended {
        let path = format!("/v1/p/_/m/{name}");
        self.send(host, &path, (header::IDEMPOTENCY_KEY, key), args)
            .await
    }

    async fn send(&self, host: &str, path: &str, header: (&str, &str), args: &Value) -> Ended {
        let authority = format!("{host}:{CLIENT}");
        let headers = [header];
        let sent = self.calls.send(
            &authority,
            Method::POST,
            path,
            &headers,
            args.to_string(),
            CALL_LIMIT,
        );
        match sent.await {
            Ok(answer) => Ended::of(&answer),
            Err(why) => Ended::None(why),
        }
    }

    /// Calls a mutation under one key, at one host after the other, until its outcome is
    /// known.
    ///
    /// # Panics
    /// When it is refused for good.
    pub async fn write(
        &self,
        hosts: &[String],
        name: &str,
        key: &str,
        args: &Value,
    ) -> (Value, bool) {
        target::write(self, hosts, name, key, args).await
    }

    /// Calls a query once.
    ///
    /// # Errors
    /// The refusal, or that there was no answer.
    pub async fn query(
        &self,
        host: &str,
        name: &str,
        class: &str,
        args: &Value,
    ) -> Result<(Value, u64), Option<Box<Problem>>> {
        match Target::query(self, host, name, class, args).await {
            Ended::Result {
                value, revision, ..
            } => Ok((value, revision)),
            Ended::Problem(problem) => Err(Some(problem)),
            Ended::None(_) => Err(None),
        }
    }

    /// Calls a query, at one host after the other, until there is an answer.
    pub async fn read(&self, hosts: &[String], name: &str, class: &str, args: &Value) -> Value {
        target::read(self, hosts, name, class, args).await
    }

    /// The serials of all traces, as a fresh read.
    pub async fn traces(&self, hosts: &[String]) -> Vec<u64> {
        target::traces(self, hosts).await
    }
}

impl Target for Cluster {
    async fn watch(
        &self,
        host: &str,
        headers: &[(&'static str, &str)],
        body: Vec<u8>,
    ) -> Option<Stream> {
        let authority = format!("{host}:{CLIENT}");
        self.calls
            .stream(&authority, "/v1/p/_/watch", headers, body, CALL_LIMIT)
            .await
    }

    async fn mutate(&self, host: &str, name: &str, key: &str, args: &Value) -> Ended {
        Self::mutate(self, host, name, key, args).await
    }

    async fn query(&self, host: &str, name: &str, class: &str, args: &Value) -> Ended {
        let path = format!("/v1/p/_/q/{name}");
        self.send(host, &path, (header::READ, class), args).await
    }
}
