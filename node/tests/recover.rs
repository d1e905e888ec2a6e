//! A quorum that is lost for good: one survivor becomes the whole group and grows again, and the
//! members that were given up never take part any more, whenever they come back.

mod common;

use common::{
    COUNTER, Node,
    group::{form, join, leader, leads},
    json, run,
};
use flower_api::report::{Lifecycle, Report};

fn bump(node: &Node) -> i64 {
    let call = json(&["call", "bump", r#"{"key":"k"}"#, "--url", &node.client()]);
    call["result"].as_i64().unwrap()
}

fn read(node: &Node) -> i64 {
    let read = json(&["query", "read", r#"{"key":"k"}"#, "--url", &node.client()]);
    read["result"].as_i64().unwrap()
}

/// The exit code of `flower recover` at a node, and everything that it says.
fn recover(node: &Node, accept: Option<u64>) -> (i32, String) {
    let admin = node.admin().0;
    let index = accept.map(|index| index.to_string());
    let mut args = vec!["recover", "--admin-url", &admin];
    args.extend(
        index
            .iter()
            .flat_map(|index| ["--accept-loss-after", index.as_str()]),
    );
    let (code, told, why) = run(&args);
    (code, told + &why)
}

fn is_given_up(report: &Report) -> bool {
    let why = report.identity.broken.as_deref().unwrap_or_default();
    report.identity.lifecycle == Lifecycle::Broken && why.contains("recovered without this member")
}

/// As long as there is a leader nothing is shown as lost, and nothing is accepted.
fn is_refused_while_there_is_a_leader(node: &Node, head: u64) {
    let (code, told) = recover(node, None);
    assert!(
        code == 0 && told.contains("refused now: the group has a leader"),
        "{told}"
    );
    let (code, told) = recover(node, Some(head));
    assert!(code == 3 && told.contains("unsafe"), "{code}: {told}");
}

#[test]
fn a_survivor_becomes_the_group_and_those_given_up_never_take_part_again() {
    let dir = tempfile::tempdir().unwrap();
    let start = |name: &str| Node::start(dir.path(), name, &[]);
    let mut nodes: Vec<Node> = ["a", "b", "c"].iter().map(|name| start(name)).collect();
    form(&nodes, COUNTER);
    let led = leader(&nodes, &[0, 1, 2]);
    let [survivor, first, second] = [(led + 1) % 3, led, (led + 2) % 3];
    for n in 1..=5 {
        assert_eq!(bump(&nodes[led]), n);
    }
    let head = nodes[led].report("it leads", |_| true).positions.applied;
    nodes[survivor].report("it has all", |r| r.positions.applied >= head);

    is_refused_while_there_is_a_leader(&nodes[survivor], head);

    nodes[first].kill();
    nodes[second].kill();
    let shown = common::eventually("a recovery would be accepted", || {
        let (code, told) = recover(&nodes[survivor], None);
        assert_eq!(code, 0, "{told}");
        told.contains("--accept-loss-after").then_some(told)
    });
    let last: u64 = shown.trim().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(last >= head, "{shown}");

    // Another number than the one that was shown is no acknowledgement.
    let (code, told) = recover(&nodes[survivor], Some(last + 1));
    assert!(code == 3 && told.contains("look again"), "{code}: {told}");
    let (code, told) = recover(&nodes[survivor], Some(last));
    assert!(code == 0 && told.contains("accepted"), "{code}: {told}");
    assert_eq!(
        nodes[survivor].ended(),
        Some(70),
        "{}",
        nodes[survivor].log()
    );
    nodes[survivor].restart(&[]);
    let alone = leads(&nodes[survivor]);
    let me = alone.identity.member.unwrap();
    assert_eq!(alone.configuration.unwrap().voters, [[me]]);
    assert_eq!(alone.recovery.map(|r| (r.number, r.by)), Some((1, me)));
    assert_eq!(bump(&nodes[survivor]), 6);

    // The others come back together, as a majority of the group that they know.
    for given_up in [first, second] {
        nodes[given_up].restart(&[]);
    }
    for given_up in [first, second] {
        assert_eq!(
            nodes[given_up].ended(),
            Some(70),
            "{}",
            nodes[given_up].log()
        );
        nodes[given_up].restart(&[]);
        nodes[given_up].report("it takes no part", is_given_up);
    }
    assert_eq!(bump(&nodes[survivor]), 7);

    // It grows again, from empty volumes, and carries on without the survivor.
    let grown = [start("d"), start("e")];
    for node in &grown {
        join(&nodes[survivor], node);
    }
    assert_eq!(bump(&grown[0]), 8);
    nodes[survivor].kill();
    leader(&grown, &[0, 1]);
    assert_eq!(read(&grown[1]), 8);
    for node in &grown {
        let recovery = node.report("it answers", |_| true).recovery;
        assert_eq!(recovery.map(|r| (r.number, r.by)), Some((1, me)));
    }
    // Before the end, as a restart would have them: a volume that was given up stays so.
    nodes[first].kill();
    nodes[first].restart(&[]);
    nodes[first].report("it still takes no part", is_given_up);
}
