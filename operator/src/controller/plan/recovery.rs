//! After a recovery of the group from one survivor (`flower recover`): the volumes of the
//! members that it gave up are exchanged, so that their data can never take part again. Pure.
//! Which volumes those are is saved when the recovery is first seen, so that a volume that came
//! later is never taken for one of them. The operator itself never recovers a group.

use flower_api::report::Lifecycle;

use super::{Facts, Step, Verdict};
use crate::{controller::raft_view::RaftView, names::Ordinal};

/// Saves a recovery that the status does not know yet.
pub fn note(facts: Facts<'_>, view: &RaftView) -> Verdict {
    let Some(recovery) = view.recovery else {
        return Verdict::Pass;
    };
    let observed = facts.observed;
    if recovery.number <= observed.recoveries(facts.cluster.group) {
        return Verdict::Pass;
    }
    let is_empty = |ordinal: &Ordinal| {
        observed
            .report(*ordinal)
            .is_some_and(|report| report.identity.lifecycle == Lifecycle::Uninitialized)
    };
    let claims = observed
        .claims
        .iter()
        .filter(|(ordinal, _)| view.member_at(**ordinal, None).is_none() && !is_empty(ordinal))
        .map(|(_, claim)| claim.uid.clone())
        .collect();
    Verdict::Do(Step::SaveRecovery {
        number: recovery.number,
        claims,
    })
}

/// Why a volume is given up, if the last recovery gave it up.
pub(super) fn given_up(facts: Facts<'_>, ordinal: Ordinal) -> Option<&'static str> {
    let claim = facts.observed.claims.get(&ordinal)?;
    let group = facts.observed.group(facts.cluster.group)?;
    let listed = group.given_up_claims.contains(&claim.uid);
    listed.then_some("the group was recovered without the member on it")
}
