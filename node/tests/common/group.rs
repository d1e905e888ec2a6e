//! Forming a group of processes through the admin API, as the operator does it.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{Node, eventually, fence, run};
use flower_api::{
    ClusterId, GroupId,
    admin::{AddLearner, AdminApi, Bootstrap, Deploy, OfMember},
    report::{Report, Role},
};

/// Three nodes with data below `dir`, not formed.
pub fn start(dir: &std::path::Path) -> Vec<Node> {
    let names = ["a", "b", "c"].iter();
    names.map(|name| Node::start(dir, name, &[])).collect()
}

/// Runs one call to its end.
pub fn wait<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(work)
}

/// One member, then learners, then voters, as the operator does it.
pub fn form(nodes: &[Node], app: &str) {
    let client = nodes[0].admin_client();
    let first = nodes[0].report("the first answers", |r| r.identity.member.is_some());
    let bootstrap = Bootstrap {
        fence: fence(&first),
        cluster: ClusterId("test".into()),
        group: GroupId(0),
        member: first.identity.member.unwrap(),
        address: nodes[0].peer(),
        size: nodes.len() as u32,
    };
    wait(client.bootstrap(&nodes[0].admin(), &bootstrap)).unwrap();
    for node in &nodes[1..] {
        join(&nodes[0], node);
    }
    let lead = leads(&nodes[0]);
    assert_eq!(
        lead.configuration.as_ref().unwrap().voters,
        [lead
            .configuration
            .as_ref()
            .unwrap()
            .members
            .keys()
            .copied()
            .collect::<Vec<_>>()]
    );
    wait(client.formed(&nodes[0].admin(), &fence(&lead))).unwrap();
    let deploy = Deploy {
        fence: fence(&lead),
        source: app.into(),
        managed_by: None,
    };
    assert!(
        wait(client.deploy(&nodes[0].admin(), &deploy))
            .unwrap()
            .changed
    );
}

/// The report of a node, once it leads and its configuration is committed.
pub fn leads(node: &Node) -> Report {
    node.report("it leads", |r| {
        r.role == Role::Leader && r.configuration.as_ref().is_some_and(|c| c.committed)
    })
}

/// The node that leads, once all that run agree.
pub fn leader(nodes: &[Node], running: &[usize]) -> usize {
    eventually("there is one leader", || {
        let reports: Vec<Report> = running
            .iter()
            .map(|n| nodes[*n].report("it answers", |_| true))
            .collect();
        let leader = reports[0].leader?;
        let agreed = reports.iter().all(|r| r.leader == Some(leader));
        let at = reports
            .iter()
            .position(|r| r.identity.member == Some(leader))?;
        (agreed && reports[at].role == Role::Leader).then_some(running[at])
    })
}

/// Makes a node a voter of the group that `leader` leads.
pub fn join(leader: &Node, node: &Node) {
    let client = leader.admin_client();
    let own = node.report("it answers", |r| r.identity.member.is_some());
    let member = own.identity.member.unwrap();
    let call = AddLearner {
        fence: fence(&leads(leader)),
        member,
        address: node.peer(),
    };
    wait(client.add_learner(&leader.admin(), &call)).unwrap();
    eventually("it is promoted", || {
        let call = OfMember {
            fence: fence(&leads(leader)),
            member,
        };
        wait(client.promote(&leader.admin(), &call)).ok()
    });
}

/// Calls a mutation until told to end; a call is repeated under its key until its outcome is
/// known, so that each counts once. Returns how many were acknowledged.
pub fn write_until(url: &str, name: &str, args: &str, done: &AtomicBool) -> u64 {
    let mut acknowledged = 0;
    while !done.load(Ordering::Relaxed) {
        let key = uuid::Uuid::now_v7().to_string();
        eventually("the call's outcome is known", || {
            let (code, _, told) = run(&["call", name, args, "--url", url, "--key", &key]);
            assert!(matches!(code, 0 | 3 | 4 | 5), "{told}");
            (code == 0).then_some(())
        });
        acknowledged += 1;
    }
    acknowledged
}
