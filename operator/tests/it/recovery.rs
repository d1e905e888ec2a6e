//! After `flower recover`: the volumes that it gave up are exchanged and the group grows again;
//! whoever is of the group's earlier life is not heard. And the past that a restored API shows
//! is not acted on, leader or not.

use flower_api::{
    ids::MemberId,
    report::{Recovery, StoredOwner},
};
use flower_operator::{
    conditions::Reason,
    controller::{observed::NodeView, plan::Step},
};
use proptest::prelude::*;

use super::support::case::{Case, id};

fn recovery(number: u32, by: u32) -> Option<Recovery> {
    let by = id(by);
    Some(Recovery { number, by })
}

/// The member of ordinal 2 was recovered and is the whole group; the others are silent.
fn recovered() -> Case {
    let mut case = Case::healthy(3, 3);
    let alone = case.configuration(&[2], &[]);
    for ordinal in [0, 1] {
        let why = "no answer within 2000 ms".to_owned();
        let nodes = &mut case.observed.nodes;
        nodes.insert(ordinal, NodeView::Unreachable { why });
        case.observed.pods.get_mut(&ordinal).unwrap().ready = false;
    }
    let node = case.node(2);
    node.configuration = Some(alone);
    node.configuration.as_mut().unwrap().version.term = 9;
    node.term = 10;
    node.leader = Some(id(2));
    node.recovery = recovery(1, 2);
    case.lead(2);
    case
}

/// What the step `SaveRecovery` saves.
fn save(case: &mut Case) -> Vec<String> {
    let Step::SaveRecovery { number, claims } = case.plan().step else {
        panic!("{:#?}", case.plan())
    };
    let group = &mut case.observed.status.groups[0];
    group.recoveries = i32::try_from(number).unwrap();
    group.given_up_claims.clone_from(&claims);
    claims
}

#[test]
fn the_volumes_that_were_given_up_are_exchanged_one_after_the_other() {
    let mut case = recovered();
    assert_eq!(save(&mut case), ["claim-0", "claim-1"]);
    for ordinal in [0, 1] {
        let Step::DeleteClaim {
            ordinal: at, uid, ..
        } = case.plan().step
        else {
            panic!("{:#?}", case.plan())
        };
        assert_eq!((at, uid), (ordinal, format!("claim-{ordinal}")));
        case.observed.claims.get_mut(&ordinal).unwrap().terminating = true;
        let Step::RestartPod { ordinal: at, .. } = case.plan().step else {
            panic!("{:#?}", case.plan())
        };
        assert_eq!(at, ordinal);
        // It does not end: its node is away. That must not keep the other one waiting.
        case.observed.pods.get_mut(&ordinal).unwrap().terminating = true;
    }
    let plan = case.plan();
    assert_eq!(plan.step, Step::None);
    assert_eq!(plan.hold.unwrap().reason, Reason::Replacing);

    // New volumes have other uids, and their members join.
    for ordinal in [0, 1] {
        case.pod(ordinal);
        let claim = case.observed.claims.get_mut(&ordinal).unwrap();
        claim.uid = format!("new-{ordinal}");
        case.report(ordinal, None);
        case.node(ordinal).identity.member = Some(MemberId(0xf0 + u64::from(ordinal)));
    }
    assert!(
        matches!(case.plan().step, Step::AddLearner { ordinal: 0, .. }),
        "{:#?}",
        case.plan()
    );
}

#[test]
fn what_is_saved_once_is_not_saved_again_and_a_second_recovery_is() {
    let mut case = recovered();
    save(&mut case);
    assert!(!matches!(case.plan().step, Step::SaveRecovery { .. }));
    case.node(2).recovery = recovery(2, 2);
    assert_eq!(save(&mut case), ["claim-0", "claim-1"]);
}

#[test]
fn volumes_in_use_by_the_group_and_empty_ones_are_not_given_up() {
    let mut case = recovered();
    // A person was faster: 0 has an empty volume already, and 1 votes.
    case.report(0, None);
    case.report(1, None);
    let two = case.configuration(&[1, 2], &[]);
    case.node(2).configuration = Some(two);
    case.lead(2);
    assert_eq!(save(&mut case), Vec::<String>::new());
}

#[test]
fn the_earlier_life_of_the_group_is_not_heard_whatever_its_term() {
    let mut case = recovered();
    save(&mut case);
    // The other two come back, and lead each other in a later term than the survivor's.
    let old = case.configuration(&[0, 1, 2], &[]);
    for ordinal in [0, 1] {
        case.report(ordinal, Some(old.clone()));
        case.node(ordinal).term = 99;
    }
    case.lead(0);
    let plan = case.plan();
    assert!(
        matches!(plan.step, Step::DeleteClaim { ordinal: 0, .. }),
        "{plan:#?}"
    );
    // Not even when the survivor is away for a moment.
    case.node(2).quorum_lease = false;
    let plan = case.plan();
    assert_eq!(plan.step, Step::None, "{plan:#?}");
    assert_eq!(plan.hold.unwrap().reason, Reason::NoLeader);
}

#[test]
fn two_survivors_recovered_side_by_side_are_told_and_left_alone() {
    let mut case = recovered();
    let alone = case.configuration(&[1], &[]);
    case.report(1, Some(alone));
    let node = case.node(1);
    (node.recovery, node.term, node.leader) = (recovery(1, 1), 7, Some(id(1)));
    case.lead(1);
    let plan = case.plan();
    assert_eq!(plan.step, Step::None, "{plan:#?}");
    assert_eq!(plan.hold.unwrap().reason, Reason::TwoLeaders);
}

proptest! {
    /// The API was restored from an older copy: whatever else is seen, nothing is applied and no
    /// step is made, as long as anybody of the group remembers a later generation.
    #[test]
    fn the_past_is_not_acted_on(
        generation in 1i64..5,
        ahead in 1i64..4,
        remembers in 0u32..3,
        leads in any::<bool>(),
        surplus in any::<bool>(),
        silent in proptest::collection::btree_set(1u32..3, 0..2),
        wiped in any::<bool>(),
        stale in any::<bool>(),
    ) {
        let mut case = Case::healthy(3, 3);
        case.cluster.generation = generation;
        if surplus {
            // It has grown since the copy.
            case.configured(&[0, 1, 2, 3, 4], &[]);
        }
        for ordinal in &silent {
            if *ordinal != remembers {
                case.silent(*ordinal);
            }
        }
        if wiped && remembers != 2 {
            case.wiped(2);
        }
        if stale {
            case.stale_template(1);
        }
        if !leads {
            case.node(0).quorum_lease = false;
        }
        let uid = case.cluster.uid.clone();
        case.node(remembers).owner = Some(StoredOwner { uid, generation: generation + ahead });
        let plan = case.plan();
        prop_assert_eq!(plan.step, Step::None);
        prop_assert!(!plan.apply);
        prop_assert_eq!(plan.hold.unwrap().reason, Reason::NewerSpecSeen);
        // The same generation is no past.
        let uid = case.cluster.uid.clone();
        case.node(remembers).owner = Some(StoredOwner { uid, generation });
        let hold = case.plan().hold.map(|hold| hold.reason);
        prop_assert_ne!(hold, Some(Reason::NewerSpecSeen));
    }
}
