//! Who is in the group: at most one change of the configuration, and only when the last one is
//! committed. Pure.
//!
//! A member whose data is gone is removed *before* its successor is added. With n voters of
//! which d are lost, the group survives n − d − ⌊n/2⌋ − 1 more failures; removing a lost one
//! first never lowers that number (3 voters, 1 lost: 0 before, 0 after; 4 and 1: 0, then 1),
//! and it spares the group a time with a larger quorum than it has living members for.

use flower_api::{
    ids::MemberId,
    report::{Lifecycle, Report},
};

use super::{Facts, Hold, Step, Verdict};
use crate::{
    conditions::Reason,
    controller::{observed::NodeView, raft_view::RaftView},
    names::Ordinal,
};

/// Waits while a change of the configuration is under way, or when the leader, whatever it
/// says of its lease, is not in touch with a majority: nothing that it begins would end.
pub fn settled(view: &RaftView) -> Verdict {
    if view.configuration.is_joint() || !view.configuration.committed {
        return Verdict::Block(Hold::new(
            Reason::ConfigurationChanging,
            "a change of the configuration is being committed",
        ));
    }
    let voters = view.voters();
    let together = voters.iter().filter(|id| view.alive.contains(id)).count();
    if together <= voters.len() / 2 {
        return Verdict::Block(Hold::new(
            Reason::WouldLoseQuorum,
            format!(
                "{together} of {} voters are together: waiting for the others",
                voters.len()
            ),
        ));
    }
    Verdict::Pass
}

/// Removes a member whose data directory is known to be gone or unreadable: the pod at its
/// address says so, or the only node that could read it no longer exists. A pod that says
/// nothing is no reason.
pub fn replace(facts: Facts<'_>, view: &RaftView) -> Verdict {
    for (member, ordinal) in &view.ordinals {
        if *member == view.leader {
            continue;
        }
        let why = match facts.observed.report(*ordinal) {
            Some(report) => gone(report, *member),
            None if view.alive.contains(member) => None,
            None => gone_with_its_node(facts, *ordinal),
        };
        let Some(why) = why else {
            continue;
        };
        if view.voters().contains(member) && !view.carries_without(*member) {
            return Verdict::Block(Hold::new(
                Reason::WouldLoseQuorum,
                format!(
                    "member {member} of pod {} is to be replaced ({why}), but those that are left are no caught-up majority: waiting for the other members",
                    facts.pod(*ordinal)
                ),
            ));
        }
        return Verdict::Do(Step::Remove {
            ordinal: *ordinal,
            member: *member,
            why,
        });
    }
    Verdict::Pass
}

fn gone(report: &Report, member: MemberId) -> Option<&'static str> {
    if report.identity.lifecycle == Lifecycle::Broken {
        return Some("its data cannot be read");
    }
    match report.identity.member {
        Some(now) if now != member => Some("its volume is gone"),
        _ => None,
    }
}

/// Why a volume that nobody can use any more is given up.
pub(super) fn gone_with_its_node(facts: Facts<'_>, ordinal: Ordinal) -> Option<&'static str> {
    let claim = facts.observed.claims.get(&ordinal)?;
    claim
        .gone_with
        .is_some()
        .then_some("the node that its volume was on no longer exists")
}

/// Removes learners of ordinals that are no longer wanted.
pub fn drop_learners(facts: Facts<'_>, view: &RaftView) -> Verdict {
    let surplus = view.learners().into_iter().find_map(|member| {
        let ordinal = *view.ordinals.get(&member)?;
        (ordinal >= facts.cluster.replicas).then_some((ordinal, member))
    });
    match surplus {
        Some((ordinal, member)) => Verdict::Do(Step::Remove {
            ordinal,
            member,
            why: "the cluster is to be smaller",
        }),
        None => Verdict::Pass,
    }
}

/// Promotes a learner that has caught up.
pub fn promote(facts: Facts<'_>, view: &RaftView) -> Verdict {
    let mut behind = None;
    let voters = view.voters();
    let mut learners: Vec<(Ordinal, MemberId)> = view
        .learners()
        .into_iter()
        .filter_map(|id| Some((*view.ordinals.get(&id)?, id)))
        .collect();
    learners.sort_unstable();
    for (ordinal, member) in learners {
        if !view.caught_up(member) {
            behind.get_or_insert_with(|| lagging(facts, view, ordinal, member));
            continue;
        }
        let good = voters.iter().filter(|id| view.caught_up(**id)).count() + 1;
        if good <= voters.len().div_ceil(2) {
            return Verdict::Block(Hold::new(
                Reason::WouldLoseQuorum,
                format!(
                    "pod {} could vote, but too few of the other voters are caught up to carry a larger quorum",
                    facts.pod(ordinal)
                ),
            ));
        }
        return Verdict::Do(Step::Promote { ordinal, member });
    }
    behind.map_or(Verdict::Pass, Verdict::Wait)
}

fn lagging(facts: Facts<'_>, view: &RaftView, ordinal: Ordinal, member: MemberId) -> Hold {
    let how = match view.followers.get(&member) {
        Some(lag) => match &lag.image {
            Some(image) if image.total_bytes > 0 => format!(
                "an image is {} % sent",
                image.sent_bytes.min(image.total_bytes) * 100 / image.total_bytes / 10 * 10
            ),
            Some(_) => "an image is being sent".to_owned(),
            None if lag.matched.is_none() => "it has not answered the leader yet".to_owned(),
            None => "it is receiving the log".to_owned(),
        },
        None => "the leader does not know it yet".to_owned(),
    };
    Hold::new(
        Reason::LearnerBehind,
        format!(
            "pod {} is catching up before it votes: {how}",
            facts.pod(ordinal)
        ),
    )
}

/// Adds the member of a pod that runs and is not in the configuration. While the log is still
/// whole, several learn side by side; when each needs an image, one after the other.
pub fn join(facts: Facts<'_>, view: &RaftView) -> Verdict {
    let learners = view.learners();
    let busy = learners
        .iter()
        .find(|id| view.alive.contains(id) && !view.caught_up(**id));
    for ordinal in 0..facts.cluster.replicas {
        let Some(member) = joinable(facts, view, ordinal) else {
            continue;
        };
        if view.purged > 0
            && let Some(busy) = busy
        {
            let at = view.ordinals.get(busy).copied().unwrap_or_default();
            return Verdict::Wait(Hold::new(
                Reason::CatchingUp,
                format!(
                    "pod {} joins after pod {} has caught up: one image at a time",
                    facts.pod(ordinal),
                    facts.pod(at)
                ),
            ));
        }
        return Verdict::Do(Step::AddLearner { ordinal, member });
    }
    Verdict::Pass
}

fn joinable(facts: Facts<'_>, view: &RaftView, ordinal: Ordinal) -> Option<MemberId> {
    let observed = facts.observed;
    if observed
        .pods
        .get(&ordinal)
        .is_none_or(|pod| pod.terminating)
        || observed
            .claims
            .get(&ordinal)
            .is_some_and(|claim| claim.terminating)
        || view.member_at(ordinal, None).is_some()
    {
        return None;
    }
    let identity = &observed.report(ordinal)?.identity;
    let fresh = matches!(
        identity.lifecycle,
        Lifecycle::Uninitialized | Lifecycle::Joining
    );
    let ours = identity.cluster.is_none() || identity.cluster == observed.status.cluster_id;
    identity
        .member
        .filter(|id| fresh && ours && !view.configuration.members.contains_key(id))
}

/// Stores the mark once every wanted replica votes.
pub fn form(facts: Facts<'_>, view: &RaftView) -> Verdict {
    if !view.formed && wanted_voters(facts, view) == facts.cluster.replicas as usize {
        return Verdict::Do(Step::MarkFormed);
    }
    Verdict::Pass
}

/// Voters at ordinals that are wanted.
pub fn wanted_voters(facts: Facts<'_>, view: &RaftView) -> usize {
    view.voters()
        .iter()
        .filter(|id| {
            view.ordinals
                .get(id)
                .is_some_and(|ordinal| *ordinal < facts.cluster.replicas)
        })
        .count()
}

/// Says what is missing when nothing else had anything to say.
pub fn missing(facts: Facts<'_>, view: &RaftView) -> Verdict {
    let message = (0..facts.cluster.replicas).find_map(|ordinal| absent(facts, view, ordinal));
    message.map_or(Verdict::Pass, |message| {
        Verdict::Wait(Hold::new(Reason::WaitingForPods, message))
    })
}

fn absent(facts: Facts<'_>, view: &RaftView, ordinal: Ordinal) -> Option<String> {
    let name = facts.pod(ordinal);
    let Some(pod) = facts.observed.pods.get(&ordinal) else {
        return Some(format!("pod {name} is being made"));
    };
    if pod.terminating {
        return Some(format!("pod {name} is stopping and comes back"));
    }
    match facts.observed.nodes.get(&ordinal) {
        None => {
            let why = pod.waiting.as_deref().unwrap_or("it has not started");
            return Some(format!("pod {name} does not run: {why}"));
        }
        Some(NodeView::Unreachable { why }) => {
            return Some(format!("pod {name} does not answer ({why})"));
        }
        Some(NodeView::Reported(_)) => {}
    }
    let member = view.member_at(ordinal, facts.observed.member(ordinal));
    if !member.is_some_and(|id| view.voters().contains(&id)) {
        return Some(format!("pod {name} is not a voter yet"));
    }
    (!pod.ready).then(|| format!("pod {name} is not ready"))
}
