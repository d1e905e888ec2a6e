//! How many pods there are, and shrinking. Pure. The size wanted comes from the spec; how many
//! pods may go follows from the configuration, never from counting pods or members.

use super::{Facts, Hold, Step, Verdict};
use crate::{conditions::Reason, controller::raft_view::RaftView, names::Ordinal};

/// Replicas of the StatefulSet: enough for the spec and for every member that is still in the
/// configuration. Without a leader's word, also for every claim that exists: its volume may
/// be the vote that is missing.
pub fn replicas(facts: Facts<'_>, view: Option<&RaftView>) -> u32 {
    let observed = facts.observed;
    let group = facts.cluster.group;
    let name = &facts.cluster.name;
    let needed: Option<Ordinal> = match view {
        Some(view) => view.ordinals.values().max().copied(),
        None => {
            let by_config = observed
                .reports()
                .filter_map(|(_, report)| report.configuration.as_ref())
                .flat_map(|configuration| configuration.members.values())
                .filter_map(|address| name.ordinal_of_address(group, address));
            by_config.chain(observed.claims.keys().copied()).max()
        }
    };
    let wanted = needed
        .map_or(0, |highest| highest + 1)
        .max(facts.cluster.replicas);
    let current = observed.statefulset_replicas().unwrap_or(0);
    // A pod made while its claim is on its way out would wait for a volume that goes.
    (current..wanted)
        .find(|ordinal| {
            observed
                .claims
                .get(ordinal)
                .is_some_and(|claim| claim.terminating)
        })
        .unwrap_or(wanted)
}

/// Removes the voter of the highest ordinal that is no longer wanted.
pub fn shrink(facts: Facts<'_>, view: &RaftView) -> Verdict {
    let voters = view.voters();
    let surplus = voters
        .iter()
        .filter_map(|id| Some((*view.ordinals.get(id)?, *id)))
        .filter(|(ordinal, _)| *ordinal >= facts.cluster.replicas)
        .max();
    let Some((ordinal, member)) = surplus else {
        return Verdict::Pass;
    };
    if voters.len() <= facts.cluster.replicas as usize {
        return Verdict::Wait(Hold::new(
            Reason::Scaling,
            format!(
                "pod {} still votes until the pods below {} all do",
                facts.pod(ordinal),
                facts.cluster.replicas
            ),
        ));
    }
    if member == view.leader {
        return transfer(facts, view, "its pod is to go", |to| {
            to < facts.cluster.replicas
        });
    }
    if !view.carries_without(member) {
        return Verdict::Block(Hold::new(
            Reason::WouldLoseQuorum,
            format!(
                "pod {} is to go, but those that are left are no caught-up majority: waiting for the other members",
                facts.pod(ordinal)
            ),
        ));
    }
    Verdict::Do(Step::Remove {
        ordinal,
        member,
        why: "the cluster is to be smaller",
    })
}

/// Hands leadership to the voter that is least behind among those whose ordinal `may` have
/// it, preferring one that already runs the wanted template.
pub fn transfer(
    facts: Facts<'_>,
    view: &RaftView,
    why: &'static str,
    may: impl Fn(Ordinal) -> bool,
) -> Verdict {
    let best = view
        .voters()
        .into_iter()
        .filter(|id| *id != view.leader && view.caught_up(*id))
        .filter_map(|id| Some((*view.ordinals.get(&id)?, id)))
        .filter(|(ordinal, _)| may(*ordinal))
        .filter(|(ordinal, _)| {
            let pod = facts.observed.pods.get(ordinal);
            pod.is_some_and(|pod| pod.ready && !pod.terminating)
        })
        .min_by_key(|(ordinal, id)| {
            let stale = super::rollout::stale(facts, *ordinal).is_some();
            (stale, view.lag(*id), *ordinal)
        });
    match best {
        Some((ordinal, member)) => Verdict::Do(Step::Transfer {
            ordinal,
            member,
            why,
        }),
        None => Verdict::Block(Hold::new(
            Reason::NoTransferTarget,
            format!(
                "pod {} leads and {why}, but no other voter is ready and caught up to take over",
                facts.pod(view.leader_ordinal)
            ),
        )),
    }
}
