//! Property: whatever the order of edits, lost volumes, crashes of the operator between a call
//! and its answer, and nodes that go and come, no step loses the quorum (the fake group ends
//! the test if one does), and in the end the cluster is as the spec says, and stays so.

use proptest::prelude::*;
use serde_json::json;

use super::support::world::{World, address};

#[derive(Debug, Clone)]
enum Act {
    /// The spec's size changes.
    Scale(u32),
    /// A volume and its pod are lost.
    LoseVolume(u32),
    /// A node's data becomes unreadable.
    Break(u32),
    /// A node's process stops for a while.
    Stop(u32),
    /// It comes back.
    Start(u32),
    /// The next admin call is carried out, but the operator dies before the answer.
    CrashAfterCall,
    /// The operator's process is replaced.
    Restart,
    /// The template changes.
    Template(u32),
    /// The StatefulSet is scaled by hand.
    ScaleByHand(u32),
    /// Clients write.
    Write(u64),
    /// Passes and the world's steps.
    Passes(usize),
    /// A pass without the world going on.
    Pass,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => prop_oneof![Just(1u32), Just(3), Just(5)].prop_map(Act::Scale),
        1 => (0u32..5).prop_map(Act::LoseVolume),
        1 => (0u32..5).prop_map(Act::Break),
        1 => (0u32..5).prop_map(Act::Stop),
        2 => (0u32..5).prop_map(Act::Start),
        3 => Just(Act::CrashAfterCall),
        2 => Just(Act::Restart),
        1 => (1u32..4).prop_map(Act::Template),
        1 => (0u32..6).prop_map(Act::ScaleByHand),
        2 => (1u64..10_000).prop_map(Act::Write),
        6 => (1usize..6).prop_map(Act::Passes),
        3 => Just(Act::Pass),
    ]
}

/// Whether losing this member's data still leaves a majority of the voters whole: a test may
/// not destroy what nobody could save.
fn may_lose(world: &World, ordinal: u32) -> bool {
    let group = world.nodes.0.lock();
    let Some(configuration) = group.configuration() else {
        return false;
    };
    let voters = configuration.voters.concat();
    let victim = group.nodes.get(&address(ordinal)).map(|node| node.member);
    let good = voters
        .iter()
        .filter(|id| {
            Some(**id) != victim
                && group
                    .nodes
                    .values()
                    .any(|node| node.member == **id && node.up && !node.broken)
        })
        .count();
    good > voters.len() / 2
}

async fn perform(world: &mut World, act: &Act) {
    match act {
        Act::Scale(replicas) => world.edit(|spec| spec["replicas"] = json!(replicas)),
        Act::LoseVolume(ordinal) if may_lose(world, *ordinal) => world.lose_volume(*ordinal),
        Act::Break(ordinal) if may_lose(world, *ordinal) => {
            if let Some(node) = world.nodes.0.lock().nodes.get_mut(&address(*ordinal)) {
                node.broken = node.cluster.is_some();
            }
        }
        Act::Stop(ordinal) => {
            if let Some(node) = world.nodes.0.lock().nodes.get_mut(&address(*ordinal)) {
                node.up = false;
            }
        }
        Act::Start(ordinal) => {
            if let Some(node) = world.nodes.0.lock().nodes.get_mut(&address(*ordinal)) {
                node.up = true;
            }
        }
        Act::CrashAfterCall => {
            world.nodes.0.lock().lose_next_answer = true;
            world.pass().await;
            world.restart_operator();
        }
        Act::Restart => world.restart_operator(),
        Act::Template(number) => {
            world.edit(|spec| spec["image"] = json!(format!("registry.example/flower:{number}")));
        }
        Act::ScaleByHand(replicas) => {
            if let Some(mut set) = world.api.get(super::support::world::SET) {
                set["spec"]["replicas"] = json!(replicas);
                world.api.put(super::support::world::SET, set);
            }
        }
        Act::Write(entries) => {
            let mut group = world.nodes.0.lock();
            group.write(*entries);
            group.purged = group.committed.saturating_sub(2_000);
        }
        Act::Passes(count) => {
            for _ in 0..*count {
                world.pass().await;
                world.turn();
            }
        }
        Act::Pass => {
            world.pass().await;
        }
        Act::LoseVolume(_) | Act::Break(_) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_step_loses_the_quorum_and_the_spec_is_reached(
        first in prop_oneof![Just(1u32), Just(3), Just(5)],
        acts in prop::collection::vec(act(), 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let mut world = World::new(json!({ "replicas": first }));
            world.settle().await;
            for act in &acts {
                perform(&mut world, act).await;
            }
            // Faults end; the cluster must come to rest as the spec says.
            for node in world.nodes.0.lock().nodes.values_mut() {
                node.up = true;
            }
            world.nodes.0.lock().lose_next_answer = false;
            world.turn();
            world.settle().await;
            world.turn();
            world.settle().await;
            let wanted = u32::try_from(world.object().spec.replicas).expect("few");
            assert_eq!(world.voters(), (0..wanted).collect::<Vec<_>>());
            assert!(world.is("Ready"), "{:#?}", world.status());
        });
    }
}
