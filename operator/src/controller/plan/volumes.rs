//! Which volume claims are deleted. Pure. A claim goes only when a leader with a quorum says
//! that no member of its ordinal is left, so that nothing is lost with it.

use flower_api::report::Lifecycle;

use super::{Facts, Hold, Step, Verdict, membership, recovery};
use crate::{conditions::Reason, controller::raft_view::RaftView, names::Ordinal};

/// Gives a wanted pod an empty volume when the member on its volume can never take part
/// again: it is unreadable, was removed, was given up by a recovery, or is on a node that no
/// longer exists. A member id is never reused with other data, and never added again.
pub fn wipe(facts: Facts<'_>, view: &RaftView) -> Verdict {
    let mut waits = None;
    for ordinal in 0..facts.cluster.replicas {
        let observed = facts.observed;
        let Some(why) = useless(facts, view, ordinal) else {
            continue;
        };
        let pod = observed.pods.get(&ordinal);
        match observed.claims.get(&ordinal) {
            Some(claim) if !claim.terminating => {
                return Verdict::Do(Step::DeleteClaim {
                    ordinal,
                    uid: claim.uid.clone(),
                    why,
                });
            }
            // The claim goes when nothing uses it any more.
            _ => match pod.filter(|pod| !pod.terminating) {
                Some(pod) => {
                    return Verdict::Do(Step::RestartPod {
                        ordinal,
                        uid: pod.uid.clone(),
                        evict: false,
                        why: "its volume is being exchanged",
                    });
                }
                // A pod that does not end must not keep another one's volume from going.
                None => {
                    waits.get_or_insert_with(|| {
                        Hold::new(
                            Reason::Replacing,
                            format!(
                                "the volume of pod {} is being exchanged",
                                facts.pod(ordinal)
                            ),
                        )
                    });
                }
            },
        }
    }
    waits.map_or(Verdict::Pass, Verdict::Wait)
}

fn useless(facts: Facts<'_>, view: &RaftView, ordinal: Ordinal) -> Option<&'static str> {
    if view.member_at(ordinal, None).is_some() {
        // Still in the configuration: `membership::replace` removes it first.
        return None;
    }
    if let Some(why) = recovery::given_up(facts, ordinal) {
        return Some(why);
    }
    let Some(report) = facts.observed.report(ordinal) else {
        return membership::gone_with_its_node(facts, ordinal);
    };
    let identity = &report.identity;
    match identity.lifecycle {
        // Its member was removed before, or it never was one. Not while the others could
        // turn out to need what might be rescued from it.
        Lifecycle::Broken if view.quorum() => {
            Some("its data cannot be read, and the group has it elsewhere")
        }
        Lifecycle::Broken => None,
        Lifecycle::Member | Lifecycle::Removed => {
            let ours =
                identity.cluster.is_some() && identity.cluster == facts.observed.status.cluster_id;
            // The leader's word must not be older than the node's: it may have been added a
            // moment ago.
            let older = report
                .configuration
                .as_ref()
                .is_none_or(|known| known.version <= view.configuration.version);
            let out = identity
                .member
                .is_some_and(|id| !view.configuration.members.contains_key(&id));
            (ours && older && out).then_some("its member was removed from the group")
        }
        Lifecycle::Uninitialized | Lifecycle::Joining => None,
    }
}

/// Deletes a claim whose pod is no longer wanted and whose member has left.
pub fn leftovers(facts: Facts<'_>, view: &RaftView) -> Verdict {
    let observed = facts.observed;
    let wanted = super::scale::replicas(facts, Some(view));
    if let Some(ordinal) = observed.pods.keys().find(|ordinal| **ordinal >= wanted) {
        return Verdict::Wait(Hold::new(
            Reason::Scaling,
            format!("pod {} is going", facts.pod(*ordinal)),
        ));
    }
    // Before the StatefulSet has the lower number, its pods come back with their claims.
    if observed
        .statefulset_replicas()
        .is_none_or(|now| now > wanted)
    {
        return Verdict::Pass;
    }
    let leftover = observed.claims.iter().find(|(ordinal, claim)| {
        **ordinal >= wanted
            && !claim.terminating
            && !observed.pods.contains_key(ordinal)
            && view.member_at(**ordinal, None).is_none()
    });
    match leftover {
        Some((ordinal, claim)) => Verdict::Do(Step::DeleteClaim {
            ordinal: *ordinal,
            uid: claim.uid.clone(),
            why: "its member was removed, the cluster is smaller",
        }),
        None => Verdict::Pass,
    }
}
