//! Which pod is restarted next: at most one, broken ones first, then learners, followers (the
//! one that is most behind first), and the leader last after a transfer. Pure.
//! A healthy voter is restarted only while every other wanted member is healthy: the one that
//! was restarted before must be back.

use flower_api::ids::MemberId;

use super::{Facts, Hold, Step, Verdict, scale};
use crate::{conditions::Reason, controller::raft_view::RaftView, names::Ordinal};

/// Why a pod must be restarted, if it must.
pub fn stale(facts: Facts<'_>, ordinal: Ordinal) -> Option<&'static str> {
    let pod = facts.observed.pods.get(&ordinal)?;
    if pod.terminating {
        return None;
    }
    if pod.template_hash.as_deref() != Some(facts.template_hash) {
        return Some("its template has changed");
    }
    if let Some(wanted) = facts.observed.restarted_at()
        && pod.restarted_at.as_deref() != Some(wanted)
    {
        return Some("a restart was asked for");
    }
    facts
        .observed
        .claims
        .get(&ordinal)
        .is_some_and(|claim| claim.terminating)
        .then_some("its volume claim was deleted")
}

/// Restarts a pod that does not run and cannot: it waits on an old template, or for a claim
/// that is gone. It takes part in nothing, so this disturbs nobody.
pub fn stuck(facts: Facts<'_>) -> Verdict {
    for (ordinal, pod) in &facts.observed.pods {
        if pod.terminating || pod.running || facts.observed.report(*ordinal).is_some() {
            continue;
        }
        let orphaned = !pod.started && !facts.observed.claims.contains_key(ordinal);
        let why = match stale(facts, *ordinal) {
            Some(why) => why,
            None if orphaned => "its volume claim is gone",
            None => continue,
        };
        return Verdict::Do(Step::RestartPod {
            ordinal: *ordinal,
            uid: pod.uid.clone(),
            evict: false,
            why,
        });
    }
    Verdict::Pass
}

/// The next pod of a rollout.
pub fn next(facts: Facts<'_>, view: &RaftView) -> Verdict {
    let mut candidates: Vec<Candidate> = facts
        .observed
        .pods
        .keys()
        .filter_map(|ordinal| Candidate::of(facts, view, *ordinal))
        .collect();
    candidates.sort_by_key(|one| one.rank);
    let Some(candidate) = candidates.first() else {
        return Verdict::Pass;
    };
    let voter = candidate.member.filter(|id| view.voters().contains(id));
    let healthy_voter = voter.filter(|id| view.alive.contains(id));
    if let Some(id) = healthy_voter {
        if let Some(hold) = others(facts, view, candidate.ordinal) {
            return Verdict::Wait(hold);
        }
        let alone = view.voters().len() == 1;
        if !alone && !view.quorum_while_away(id) {
            return Verdict::Block(Hold::new(
                Reason::WouldLoseQuorum,
                format!(
                    "pod {} is to be restarted, but the group would have no caught-up majority meanwhile",
                    facts.pod(candidate.ordinal)
                ),
            ));
        }
        if id == view.leader && !alone {
            return scale::transfer(facts, view, "its pod is to be restarted", |_| true);
        }
    }
    let ready = facts
        .observed
        .pods
        .get(&candidate.ordinal)
        .is_some_and(|pod| pod.ready);
    Verdict::Do(Step::RestartPod {
        ordinal: candidate.ordinal,
        uid: candidate.uid.clone(),
        evict: ready,
        why: candidate.why,
    })
}

#[derive(Debug)]
struct Candidate {
    ordinal: Ordinal,
    uid: String,
    member: Option<MemberId>,
    why: &'static str,
    rank: (u8, u64, Ordinal),
}

impl Candidate {
    fn of(facts: Facts<'_>, view: &RaftView, ordinal: Ordinal) -> Option<Self> {
        let why = stale(facts, ordinal)?;
        let pod = facts.observed.pods.get(&ordinal)?;
        let member = view.member_at(ordinal, facts.observed.member(ordinal));
        let (class, lag) = match member {
            None => (0, 0),
            Some(id) if id == view.leader => (3, 0),
            Some(id) if !view.alive.contains(&id) => (0, 0),
            Some(id) if !view.voters().contains(&id) => (1, 0),
            Some(id) => (2, view.lag(id)),
        };
        Some(Self {
            ordinal,
            uid: pod.uid.clone(),
            member,
            why,
            rank: (class, u64::MAX - lag, ordinal),
        })
    }
}

/// Why another member forbids taking a healthy one away.
fn others(facts: Facts<'_>, view: &RaftView, target: Ordinal) -> Option<Hold> {
    let voters = view.voters();
    (0..facts.cluster.replicas)
        .filter(|ordinal| *ordinal != target)
        .find_map(|ordinal| {
            let pod = facts.observed.pods.get(&ordinal);
            let member = view.member_at(ordinal, facts.observed.member(ordinal));
            let what = match (pod, member) {
                (None, _) => "does not exist yet",
                (Some(pod), _) if pod.terminating => "is stopping",
                (Some(pod), _) if !pod.ready => "is not ready",
                (_, None) => "is not a member yet",
                (_, Some(id)) if !voters.contains(&id) => "does not vote yet",
                (_, Some(id)) if !view.caught_up(id) => "has not caught up",
                _ => return None,
            };
            Some(Hold::new(
                Reason::MemberUnhealthy,
                format!(
                    "pod {} is to be restarted after pod {}, which {what}",
                    facts.pod(target),
                    facts.pod(ordinal)
                ),
            ))
        })
}
