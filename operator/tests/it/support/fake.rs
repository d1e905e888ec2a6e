//! The admin API of the fake group: what arrives at an address is judged and carried out by
//! `admin::Group`; an answer can be lost on its way.

use std::sync::Arc;

use async_trait::async_trait;
use flower_api::{
    admin::{
        AddLearner, AdminApi, AdminError, Bootstrap, Deploy, Deployed, Done, Endpoint, Fence,
        OfMember, code,
    },
    report::{ConfigVersion, Configuration, Identity, Report},
    wire::Problem,
};
use flower_operator::context::Connect;
use parking_lot::Mutex;

use super::admin::{Group, hash, refuse};

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
