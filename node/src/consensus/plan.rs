//! Planning a change of the configuration: pure functions of what the leader sees. A step
//! changes one member, is refused when the caller saw another configuration, and when no
//! majority of the voters that it leaves could be reached.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use flower_api::{
    MemberId,
    admin::code,
    report::{ConfigVersion, FollowerLag},
    wire::Problem,
};

use flower_store::sabotage::{Break, is_broken};

use super::types::{Membership, Peer, raw};

/// A member that has not answered the leader for this long is taken for unreachable.
pub(super) const REACHABLE: Duration = Duration::from_secs(2);

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Add(MemberId, String),
    Promote(MemberId),
    Remove(MemberId),
}

/// What a step is planned against.
pub(super) struct Seen<'a> {
    pub(super) me: MemberId,
    pub(super) membership: &'a Membership,
    pub(super) version: ConfigVersion,
    pub(super) committed: bool,
    pub(super) followers: &'a [FollowerLag],
}

impl Seen<'_> {
    fn is_reachable(&self, id: u64) -> bool {
        let recent = |f: &FollowerLag| {
            f.member.0 == id
                && f.contact_ms
                    .is_some_and(|ms| u128::from(ms) < REACHABLE.as_millis())
        };
        id == self.me.0 || self.followers.iter().any(recent)
    }

    fn voters(&self) -> BTreeSet<u64> {
        self.membership.voter_ids().collect()
    }
}

/// The configuration after a step; `None` when it is as wanted already.
pub(super) fn plan(
    seen: &Seen<'_>,
    fence: Option<ConfigVersion>,
    step: &Step,
) -> Result<Option<Membership>, Problem> {
    if fence.is_some_and(|fence| fence != seen.version) && !is_broken(Break::StaleAdminCall) {
        return Err(stale(seen.version, fence));
    }
    if !seen.committed {
        return Err(unsafe_now(
            "the last change of the configuration is not committed yet; try again",
        )
        .retryable());
    }
    if seen.membership.get_joint_config().len() != 1 {
        return Err(unsafe_now(
            "two sets of voters are in force: a change of the configuration was interrupted",
        ));
    }
    let mut members: BTreeMap<u64, Peer> = seen
        .membership
        .nodes()
        .map(|(id, peer)| (*id, peer.clone()))
        .collect();
    let mut voters = seen.voters();
    match step {
        Step::Add(member, address) => match members.get(&raw(*member)) {
            Some(known) if known.address == *address => return Ok(None),
            Some(known) => {
                return Err(unsafe_now(format!(
                    "member {member} is at {} already; remove it before it is added at {address}",
                    known.address
                )));
            }
            None => {
                let address = address.clone();
                members.insert(raw(*member), Peer { address });
            }
        },
        Step::Promote(member) => {
            if !members.contains_key(&raw(*member)) {
                return Err(unknown(*member));
            }
            if !voters.insert(raw(*member)) {
                return Ok(None);
            }
            carried(seen, &voters, &format!("with {member} as a voter"))?;
        }
        Step::Remove(member) => {
            if *member == seen.me {
                return Err(unsafe_now(format!(
                    "member {member} leads; hand leadership to another voter first"
                )));
            }
            if members.remove(&raw(*member)).is_none() {
                return Ok(None);
            }
            if voters.remove(&raw(*member)) {
                carried(seen, &voters, &format!("without {member}"))?;
            }
        }
    }
    Membership::new(vec![voters], members)
        .map(Some)
        .map_err(|e| unsafe_now(e.to_string()))
}

/// Refuses voters of whom no majority can be reached.
fn carried(seen: &Seen<'_>, voters: &BTreeSet<u64>, what: &str) -> Result<(), Problem> {
    let reachable = voters.iter().filter(|id| seen.is_reachable(**id)).count();
    let needed = voters.len() / 2 + 1;
    if reachable >= needed {
        return Ok(());
    }
    Err(unsafe_now(format!(
        "{what} the group has {} voters, of whom {needed} must be reachable and {reachable} are",
        voters.len()
    ))
    .retryable())
}

pub(super) fn unsafe_now(detail: impl Into<String>) -> Problem {
    Problem::new(409, code::UNSAFE, "The step would be unsafe now", detail)
}

fn unknown(member: MemberId) -> Problem {
    unsafe_now(format!(
        "member {member} is not in the configuration; add it as a learner first"
    ))
}

pub(super) fn stale(current: ConfigVersion, fence: Option<ConfigVersion>) -> Problem {
    let seen = fence.unwrap_or_default();
    Problem::new(
        409,
        code::STALE_CONFIGURATION,
        "The configuration has changed",
        format!(
            "the call was planned against the configuration at index {} of term {}, and that at \
             index {} of term {} is in force; read the report and plan again",
            seen.index, seen.term, current.index, current.term
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const V: ConfigVersion = ConfigVersion { term: 2, index: 7 };

    fn membership(voters: &[u64], learners: &[u64]) -> Membership {
        let members = voters.iter().chain(learners).map(|id| {
            let address = format!("host-{id}:7701");
            (*id, Peer { address })
        });
        let members: BTreeMap<_, _> = members.collect();
        Membership::new(vec![voters.iter().copied().collect()], members).unwrap()
    }

    fn follower(id: u64, contact_ms: Option<u64>) -> FollowerLag {
        FollowerLag {
            member: MemberId(id),
            matched: Some(1),
            lag_entries: 0,
            contact_ms,
            image: None,
        }
    }

    /// Member 1 leads; those in `reachable` have just answered.
    fn try_plan(
        membership: &Membership,
        reachable: &[u64],
        fence: Option<ConfigVersion>,
        step: &Step,
    ) -> Result<Option<Membership>, Problem> {
        let followers: Vec<_> = membership
            .nodes()
            .filter(|(id, _)| **id != 1)
            .map(|(id, _)| follower(*id, reachable.contains(id).then_some(50)))
            .collect();
        let seen = Seen {
            me: MemberId(1),
            membership,
            version: V,
            committed: true,
            followers: &followers,
        };
        plan(&seen, fence, step)
    }

    #[test]
    fn steps_change_one_member_and_repeat_harmlessly() {
        let three = membership(&[1, 2, 3], &[4]);
        let at = |id: u64| format!("host-{id}:7701");
        for (step, expected) in [
            (
                Step::Add(MemberId(5), at(5)),
                Some(membership(&[1, 2, 3], &[4, 5])),
            ),
            (Step::Add(MemberId(4), at(4)), None),
            (
                Step::Promote(MemberId(4)),
                Some(membership(&[1, 2, 3, 4], &[])),
            ),
            (Step::Promote(MemberId(2)), None),
            (Step::Remove(MemberId(2)), Some(membership(&[1, 3], &[4]))),
            (Step::Remove(MemberId(4)), Some(membership(&[1, 2, 3], &[]))),
            (Step::Remove(MemberId(9)), None),
        ] {
            let planned = try_plan(&three, &[2, 3, 4], Some(V), &step);
            assert_eq!(planned.unwrap(), expected, "{step:?}");
        }
    }

    #[test]
    fn unsafe_and_stale_steps_are_refused() {
        let three = membership(&[1, 2, 3], &[4]);
        let old = ConfigVersion { term: 2, index: 6 };
        for (reachable, fence, step, expected) in [
            (
                &[2, 3, 4][..],
                old,
                Step::Remove(MemberId(2)),
                code::STALE_CONFIGURATION,
            ),
            (&[2, 3, 4], V, Step::Remove(MemberId(1)), code::UNSAFE),
            (&[2, 3, 4], V, Step::Promote(MemberId(9)), code::UNSAFE),
            (
                &[2, 3, 4],
                V,
                Step::Add(MemberId(4), "elsewhere:1".into()),
                code::UNSAFE,
            ),
            // 1 and 3 would have to carry the group, and 3 is gone.
            (&[2], V, Step::Remove(MemberId(2)), code::UNSAFE),
            // Of four voters three must be reachable.
            (&[2], V, Step::Promote(MemberId(4)), code::UNSAFE),
        ] {
            let refused = try_plan(&three, reachable, Some(fence), &step).unwrap_err();
            assert_eq!(refused.code, expected, "{step:?}: {refused}");
        }
        // The one that is gone may be removed: 1 and 2 carry the group.
        assert!(try_plan(&three, &[2], Some(V), &Step::Remove(MemberId(3))).is_ok());
        // Nobody is removed from a group of one.
        let one = membership(&[1], &[]);
        assert!(try_plan(&one, &[], None, &Step::Remove(MemberId(1))).is_err());
    }

    #[test]
    fn nothing_is_changed_while_a_change_is_not_committed() {
        let three = membership(&[1, 2, 3], &[]);
        let seen = Seen {
            me: MemberId(1),
            membership: &three,
            version: V,
            committed: false,
            followers: &[],
        };
        let refused = plan(&seen, Some(V), &Step::Remove(MemberId(2))).unwrap_err();
        assert_eq!(refused.code, code::UNSAFE);
        assert!(refused.retryable);
    }
}
