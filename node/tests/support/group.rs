//! Three nodes of one group.

use flower_api::{
    MemberId,
    admin::{AddLearner, OfMember, path},
};
use flower_node::service::ServeSettings;

use super::{TestNode, no_fence, until};

/// A call of the admin API that is tried again while the group is busy with the last one.
pub async fn step(leader: &TestNode, at: &str, call: &impl serde::Serialize) {
    until(at, async || {
        leader.http.admin_post(at, call).await.status == 200
    })
    .await;
}

/// A leader and two followers that run `app`.
pub async fn group(app: &str, serve: ServeSettings) -> Vec<TestNode> {
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(TestNode::fresh(serve.clone()).await);
    }
    nodes[0].bootstrap(3).await.ok();
    for node in &nodes[1..] {
        let consensus = &node.running.service().unwrap().consensus;
        let member = consensus.me().member;
        let learner = AddLearner {
            fence: no_fence(),
            member,
            address: consensus.listening().to_string(),
        };
        step(&nodes[0], path::ADD_LEARNER, &learner).await;
        step(&nodes[0], path::PROMOTE, &of(member)).await;
    }
    step(&nodes[0], path::FORMED, &no_fence()).await;
    nodes[0].http.deploy(app).await.ok();
    nodes
}

pub fn of(member: MemberId) -> OfMember {
    OfMember {
        fence: no_fence(),
        member,
    }
}

pub fn member(node: &TestNode) -> MemberId {
    node.running.service().unwrap().consensus.me().member
}
