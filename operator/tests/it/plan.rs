//! The planner as a table: what was observed → the step, or why none is made.
#![allow(clippy::too_many_lines)] // tables

use std::collections::BTreeMap;

use flower_api::{
    ids::{ClusterId, Revision},
    report::{BuildInfo, DeploymentInfo, ImageProgress, Lifecycle, Role, StoredOwner},
};
use flower_operator::{
    conditions::Reason,
    controller::{
        observed::{AppView, AuthView},
        plan::{Plan, Step},
    },
    crd::status::GroupStatus,
};
use k8s_openapi::jiff::Timestamp;

use super::support::case::{CLUSTER, Case, id};

/// The step's name with ordinal, or the hold's reason.
fn said(plan: &Plan) -> String {
    let at = match &plan.step {
        Step::None => {
            let hold = plan.hold.as_ref().map(|hold| hold.reason);
            return hold.map_or_else(
                || "nothing".to_owned(),
                |reason: Reason| reason.name().to_owned(),
            );
        }
        Step::AddLearner { ordinal, .. }
        | Step::Promote { ordinal, .. }
        | Step::Transfer { ordinal, .. }
        | Step::Remove { ordinal, .. }
        | Step::DeleteClaim { ordinal, .. }
        | Step::RestartPod { ordinal, .. } => Some(*ordinal),
        _ => None,
    };
    at.map_or_else(
        || plan.step.name().to_owned(),
        |ordinal| format!("{} {ordinal}", plan.step.name()),
    )
}

fn check(cases: Vec<(&str, Case, &str)>) {
    for (name, case, expected) in cases {
        let plan = case.plan();
        assert_eq!(said(&plan), expected, "{name}: {plan:#?}");
    }
}

fn case(mut base: Case, change: impl FnOnce(&mut Case)) -> Case {
    change(&mut base);
    base
}

#[test]
fn birth() {
    let saved = |case: &mut Case, first: u32| {
        case.observed.status.cluster_id = Some(ClusterId(CLUSTER.to_owned()));
        case.observed.status.groups = vec![GroupStatus {
            first_member: Some(id(first)),
            ..GroupStatus::default()
        }];
    };
    check(vec![
        ("new", Case::newborn(3), "save-identity"),
        (
            "saved",
            case(Case::newborn(3), |c| saved(c, 0)),
            "bootstrap",
        ),
        (
            "the first volume was exchanged after the save",
            case(Case::newborn(3), |c| saved(c, 9)),
            "save-identity",
        ),
        (
            "the same with one replica: it may have had data",
            case(Case::newborn(1), |c| saved(c, 9)),
            "MembersLost",
        ),
        (
            "the first pod does not answer",
            case(Case::newborn(3), |c| {
                c.observed.nodes.remove(&0);
            }),
            "WaitingForPods",
        ),
        (
            "another pod is Pending with an empty volume",
            case(Case::newborn(3), |c| {
                c.observed.nodes.remove(&2);
                c.observed.pods.get_mut(&2).expect("it").started = false;
            }),
            "save-identity",
        ),
        (
            "another pod has run and is silent",
            case(Case::newborn(3), |c| {
                c.observed.nodes.remove(&2);
            }),
            "WaitingForVolumes",
        ),
        (
            "a claim is older than the FlowerCluster",
            case(Case::newborn(3), |c| {
                c.observed.nodes.remove(&2);
                c.observed.pods.get_mut(&2).expect("it").started = false;
                c.observed.claims.get_mut(&2).expect("it").created =
                    Timestamp::from_second(1_600_000_000).ok();
            }),
            "WaitingForVolumes",
        ),
        (
            "the status was lost",
            case(Case::healthy(3, 3), |c| c.observed.status.cluster_id = None),
            "adopt",
        ),
        (
            "volumes of two clusters and no status",
            case(Case::healthy(3, 3), |c| {
                c.observed.status.cluster_id = None;
                c.node(1).identity.cluster = Some(ClusterId("other".to_owned()));
            }),
            "ForeignVolume",
        ),
        (
            "all volumes are gone",
            case(Case::newborn(3), |c| {
                saved(c, 0);
                c.observed.status.groups[0].bootstrapped = true;
            }),
            "MembersLost",
        ),
        (
            "the Secret is missing",
            case(Case::newborn(3), |c| {
                c.cluster.generate_auth = false;
                c.observed.auth = AuthView::Missing;
            }),
            "AuthSecretMissing",
        ),
    ]);
}

#[test]
fn leadership() {
    check(vec![
        ("as desired", Case::healthy(3, 3), "nothing"),
        (
            "nobody leads",
            case(Case::healthy(3, 3), |c| c.node(0).role = Role::Follower),
            "NoLeader",
        ),
        (
            "a leader without its lease",
            case(Case::healthy(3, 3), |c| c.node(0).quorum_lease = false),
            "NoLeader",
        ),
        (
            "two in one term",
            case(Case::healthy(3, 3), |c| c.lead(1)),
            "TwoLeaders",
        ),
        (
            "an old one in a lower term",
            case(Case::healthy(3, 3), |c| {
                c.lead(1);
                c.node(1).term = 2;
            }),
            "nothing",
        ),
        (
            "a leader of another cluster",
            case(Case::healthy(3, 3), |c| {
                c.node(0).identity.cluster = Some(ClusterId("other".to_owned()));
            }),
            "ForeignVolume",
        ),
        (
            "one replica, unreadable",
            case(Case::healthy(1, 1), |c| {
                c.node(0).identity.lifecycle = Lifecycle::Broken;
                c.node(0).role = Role::None;
            }),
            "OnlyMemberBroken",
        ),
        (
            "a change is under way",
            case(Case::healthy(3, 3), |c| {
                c.node(0).configuration.as_mut().expect("it").committed = false;
            }),
            "ConfigurationChanging",
        ),
        (
            "a joint change",
            case(Case::healthy(3, 3), |c| {
                c.node(0)
                    .configuration
                    .as_mut()
                    .expect("it")
                    .voters
                    .push(vec![id(0), id(1)]);
            }),
            "ConfigurationChanging",
        ),
        (
            "the group has seen a newer spec",
            case(Case::healthy(3, 3), |c| {
                let uid = c.cluster.uid.clone();
                c.node(0).owner = Some(StoredOwner { uid, generation: 9 });
            }),
            "NewerSpecSeen",
        ),
        (
            "a deleted FlowerCluster's group is taken over",
            case(Case::healthy(3, 3), |c| {
                c.node(0).owner = Some(StoredOwner {
                    uid: "other".to_owned(),
                    generation: 9,
                });
            }),
            "nothing",
        ),
    ]);
}

#[test]
fn growing() {
    let grown = |learners: &[u32]| {
        let mut base = Case::healthy(3, 1);
        base.configured(&[0], learners);
        for ordinal in 1..3 {
            if !base.observed.pods.contains_key(&ordinal) {
                base.pod(ordinal);
                base.report(ordinal, None);
            }
        }
        base
    };
    check(vec![
        ("two pods run", grown(&[]), "add-learner 1"),
        (
            "one learns, the log is whole",
            case(grown(&[1]), |c| c.lag(1).matched = None),
            "add-learner 2",
        ),
        (
            "one needs an image: the other waits",
            case(grown(&[1]), |c| {
                c.node(0).positions.purged = 50;
                c.lag(1).matched = None;
            }),
            "CatchingUp",
        ),
        (
            "that one is caught up",
            case(grown(&[1]), |c| c.node(0).positions.purged = 50),
            "add-learner 2",
        ),
        (
            "a learner that is away blocks nobody",
            case(grown(&[1]), |c| {
                c.node(0).positions.purged = 50;
                c.silent(1);
                c.lag(1).matched = None;
            }),
            "add-learner 2",
        ),
        ("both are caught up", grown(&[1, 2]), "promote 1"),
        (
            "an image is on its way",
            case(grown(&[1, 2]), |c| {
                for ordinal in [1, 2] {
                    c.lag(ordinal).image = Some(ImageProgress {
                        sent_bytes: 5,
                        total_bytes: 10,
                    });
                }
            }),
            "LearnerBehind",
        ),
        (
            "not formed yet",
            case(Case::healthy(3, 3), |c| c.node(0).formed = false),
            "mark-formed",
        ),
        (
            "a removed member's volume is exchanged, not added again",
            case(grown(&[]), |c| {
                let mut old = c.configuration(&[0, 1], &[]);
                old.version.index = 30;
                c.report(1, Some(old));
                c.node(1).identity.lifecycle = Lifecycle::Removed;
            }),
            "delete-claim 1",
        ),
        (
            "a member that knows a newer configuration than the leader's report is left alone",
            case(grown(&[]), |c| {
                let mut newer = c.configuration(&[0], &[1]);
                newer.version.index = 50;
                c.report(1, Some(newer));
            }),
            "add-learner 2",
        ),
    ]);
}

#[test]
fn replacing() {
    check(vec![
        (
            "a volume is gone",
            case(Case::healthy(3, 3), |c| c.wiped(2)),
            "remove 2",
        ),
        (
            "and another member is away",
            case(Case::healthy(3, 3), |c| {
                c.wiped(2);
                c.silent(1);
            }),
            "WouldLoseQuorum",
        ),
        (
            "a volume's node no longer exists",
            case(Case::healthy(3, 3), |c| c.stranded(2)),
            "remove 2",
        ),
        (
            "a volume's node no longer exists, and another member is away",
            case(Case::healthy(3, 3), |c| {
                c.stranded(2);
                c.silent(1);
            }),
            "WouldLoseQuorum",
        ),
        (
            "the leader is in touch with it all the same",
            case(Case::healthy(3, 3), |c| {
                c.stranded(2);
                c.lag(2).contact_ms = Some(5);
            }),
            "WaitingForPods",
        ),
        (
            "its member was removed",
            case(Case::healthy(3, 3), |c| {
                c.stranded(2);
                c.configured(&[0, 1], &[]);
            }),
            "delete-claim 2",
        ),
        (
            "its claim is going, and its pod holds it",
            case(Case::healthy(3, 3), |c| {
                c.stranded(2);
                c.configured(&[0, 1], &[]);
                c.observed.claims.get_mut(&2).expect("a claim").terminating = true;
            }),
            "restart-pod 2",
        ),
        (
            "a silent member is no reason",
            case(Case::healthy(3, 3), |c| c.silent(2)),
            "WaitingForPods",
        ),
        (
            "data is unreadable",
            case(Case::healthy(3, 3), |c| {
                c.node(2).identity.lifecycle = Lifecycle::Broken;
                c.node(2).leader = None;
                c.lag(2).contact_ms = None;
            }),
            "remove 2",
        ),
        (
            "its member is out: the claim goes",
            case(Case::healthy(3, 3), |c| {
                c.configured(&[0, 1], &[]);
                c.node(2).identity.lifecycle = Lifecycle::Broken;
                c.node(2).identity.member = None;
            }),
            "delete-claim 2",
        ),
        (
            "the claim is going: so does the pod",
            case(Case::healthy(3, 3), |c| {
                c.configured(&[0, 1], &[]);
                c.node(2).identity.lifecycle = Lifecycle::Broken;
                c.observed.claims.get_mut(&2).expect("it").terminating = true;
            }),
            "restart-pod 2",
        ),
        (
            "both are going",
            case(Case::healthy(3, 3), |c| {
                c.configured(&[0, 1], &[]);
                c.node(2).identity.lifecycle = Lifecycle::Broken;
                c.observed.claims.get_mut(&2).expect("it").terminating = true;
                c.observed.pods.get_mut(&2).expect("it").terminating = true;
            }),
            "Replacing",
        ),
        (
            "a pod that is restarting is waited for",
            case(Case::healthy(3, 3), |c| {
                c.observed.pods.get_mut(&2).expect("it").terminating = true;
            }),
            "WaitingForPods",
        ),
        (
            "the newcomer is added after the old one is out",
            case(Case::healthy(3, 3), |c| {
                c.configured(&[0, 1], &[]);
                c.report(2, None);
            }),
            "add-learner 2",
        ),
    ]);
}

#[test]
fn shrinking() {
    check(vec![
        ("the highest goes first", Case::healthy(3, 5), "remove 4"),
        (
            "the leader among those that go hands over",
            case(Case::healthy(3, 5), |c| {
                c.node(0).role = Role::Follower;
                c.node(0).quorum_lease = false;
                for ordinal in 0..5 {
                    c.node(ordinal).leader = Some(id(4));
                }
                c.lead(4);
            }),
            "transfer 0",
        ),
        (
            "too few would be left",
            case(Case::healthy(3, 5), |c| {
                c.silent(1);
                c.silent(2);
            }),
            "WouldLoseQuorum",
        ),
        (
            "not below the size while a low pod does not vote",
            case(Case::healthy(3, 3), |c| {
                c.configured(&[0, 1, 3], &[]);
                c.observed.nodes.remove(&2);
                c.observed.pods.get_mut(&2).expect("it").running = false;
            }),
            "Scaling",
        ),
        (
            "ordinals are numbers: 10 goes before 9",
            case(Case::healthy(7, 7), |c| {
                c.configured(&[0, 1, 2, 3, 4, 5, 6, 9, 10], &[]);
            }),
            "remove 10",
        ),
        (
            "a learner that is not wanted",
            case(Case::healthy(3, 3), |c| c.configured(&[0, 1, 2], &[3])),
            "remove 3",
        ),
        (
            "a claim is left over",
            case(Case::healthy(3, 3), |c| {
                c.pod(3);
                c.observed.pods.remove(&3);
            }),
            "delete-claim 3",
        ),
        (
            "nor while its pod is going",
            case(Case::healthy(3, 3), |c| {
                c.pod(3).terminating = true;
            }),
            "Scaling",
        ),
        (
            "not before the StatefulSet is smaller",
            case(Case::healthy(3, 3), |c| {
                c.pod(3);
                c.observed.pods.remove(&3);
                c.statefulset(4);
            }),
            "nothing",
        ),
    ]);
}

#[test]
fn rolling() {
    let all_stale = || {
        case(Case::healthy(3, 3), |c| {
            (0..3).for_each(|ordinal| c.stale_template(ordinal))
        })
    };
    check(vec![
        ("a follower first", all_stale(), "restart-pod 1"),
        (
            "the one that is most behind",
            case(all_stale(), |c| c.lag(2).lag_entries = 50),
            "restart-pod 2",
        ),
        (
            "one that is away before all",
            case(all_stale(), |c| c.silent(2)),
            "restart-pod 2",
        ),
        (
            "one that cannot start before all",
            case(all_stale(), |c| {
                c.silent(2);
                c.observed.nodes.remove(&2);
                let pod = c.observed.pods.get_mut(&2).expect("it");
                pod.running = false;
                pod.waiting = Some("ImagePullBackOff".to_owned());
            }),
            "restart-pod 2",
        ),
        (
            "not while another is not back",
            case(all_stale(), |c| {
                c.pod(2).ready = false;
            }),
            "MemberUnhealthy",
        ),
        (
            "not while another is behind",
            case(all_stale(), |c| {
                c.pod(2);
                c.lag(2).matched = None;
            }),
            "MemberUnhealthy",
        ),
        (
            "not while another is away",
            case(Case::healthy(5, 5), |c| {
                c.stale_template(1);
                c.silent(4);
            }),
            "MemberUnhealthy",
        ),
        (
            "the leader hands over to one that is new",
            case(Case::healthy(3, 3), |c| c.stale_template(0)),
            "transfer 1",
        ),
        (
            "the only member is restarted",
            case(Case::healthy(1, 1), |c| c.stale_template(0)),
            "restart-pod 0",
        ),
        (
            "kubectl rollout restart",
            case(Case::healthy(3, 3), |c| {
                let set = c.observed.statefulset.as_mut().expect("it");
                let template = &mut set.spec.as_mut().expect("it").template;
                let metadata = template.metadata.get_or_insert_default();
                metadata.annotations.get_or_insert_default().insert(
                    "kubectl.kubernetes.io/restartedAt".to_owned(),
                    "2026-02-03T04:05:06Z".to_owned(),
                );
                c.observed.pods.get_mut(&1).expect("it").restarted_at =
                    Some("2026-02-03T04:05:06Z".to_owned());
            }),
            "restart-pod 2",
        ),
        (
            "a claim was deleted by hand",
            case(Case::healthy(3, 3), |c| {
                c.observed.claims.get_mut(&1).expect("it").terminating = true;
            }),
            "restart-pod 1",
        ),
        (
            "a mended template reaches pods that cannot start, without a leader",
            case(Case::newborn(3), |c| {
                c.observed.nodes.clear();
                for pod in c.observed.pods.values_mut() {
                    pod.running = false;
                    pod.template_hash = Some("old".to_owned());
                }
            }),
            "restart-pod 0",
        ),
        (
            "a pod whose claim is gone",
            case(Case::healthy(3, 3), |c| {
                c.silent(2);
                c.observed.nodes.remove(&2);
                c.observed.claims.remove(&2);
                let pod = c.observed.pods.get_mut(&2).expect("it");
                pod.running = false;
                pod.started = false;
            }),
            "restart-pod 2",
        ),
    ]);
}

#[test]
fn applications() {
    let bundle = |refused: Option<&str>| AppView::Bundle {
        hash: "aa".to_owned(),
        refused: refused.map(str::to_owned),
    };
    let built = |hash: &str| {
        Some(DeploymentInfo {
            hash: "00".to_owned(),
            revision: Revision(1),
            functions: Vec::new(),
            build: Some(BuildInfo {
                hash: hash.to_owned(),
                since: Revision(2),
                done: 1,
                total: 10,
            }),
            failed_build: None,
        })
    };
    check(vec![
        (
            "a new bundle",
            case(Case::healthy(3, 3), |c| c.observed.app = bundle(None)),
            "deploy",
        ),
        (
            "a refused one",
            case(Case::healthy(3, 3), |c| {
                c.observed.app = bundle(Some("bad"))
            }),
            "nothing",
        ),
        (
            "one that is being built",
            case(Case::healthy(3, 3), |c| {
                c.observed.app = bundle(None);
                c.node(0).deployment = built("aa");
            }),
            "Building",
        ),
        (
            "while another one is built",
            case(Case::healthy(3, 3), |c| {
                c.observed.app = bundle(None);
                c.node(0).deployment = built("bb");
            }),
            "deploy",
        ),
        (
            "before the group has formed",
            case(Case::healthy(3, 2), |c| {
                c.observed.app = bundle(None);
                c.node(0).formed = false;
            }),
            "WaitingForPods",
        ),
    ]);
}

#[test]
fn the_size_of_the_statefulset_follows_the_configuration() {
    let cases: Vec<(&str, Case, u32)> = vec![
        ("as the spec says", Case::healthy(3, 3), 3),
        ("growing", Case::healthy(5, 3), 5),
        ("members leave before their pods", Case::healthy(3, 5), 5),
        (
            "scaled by hand",
            case(Case::healthy(3, 3), |c| c.statefulset(1)),
            3,
        ),
        (
            "no leader: every claim may hold the missing vote",
            case(Case::healthy(3, 5), |c| {
                c.node(0).role = Role::Follower;
            }),
            5,
        ),
        (
            "a claim on its way out is waited for",
            case(Case::healthy(5, 3), |c| {
                c.statefulset(3);
                c.pod(3);
                c.observed.pods.remove(&3);
                c.observed.claims.get_mut(&3).expect("it").terminating = true;
            }),
            3,
        ),
    ];
    for (name, case, expected) in cases {
        assert_eq!(case.plan().statefulset_replicas, expected, "{name}");
    }
}

#[test]
fn nothing_is_applied_while_the_operator_stands_still() {
    let paused = case(Case::healthy(3, 3), |c| c.cluster.paused = true);
    let foreign = case(Case::healthy(3, 3), |c| {
        c.observed.foreign.push("Service orders".to_owned())
    });
    for case in [paused, foreign] {
        let plan = case.plan();
        assert!(!plan.apply && plan.step == Step::None && plan.hold.is_some());
    }
}

/// The messages are for people: each names an object.
#[test]
fn holds_name_what_they_wait_for() {
    let cases: BTreeMap<&str, Case> = [
        ("orders-g0-2", case(Case::healthy(3, 2), |_| {})),
        (
            "orders-g0-1",
            case(Case::healthy(3, 3), |c| {
                c.stale_template(2);
                c.stale_template(0);
                c.pod(1).ready = false;
            }),
        ),
    ]
    .into();
    for (names, case) in cases {
        let hold = case.plan().hold.expect("a hold");
        assert!(hold.message.contains(names), "{}", hold.message);
    }
}
