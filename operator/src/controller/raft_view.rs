//! The group as its one leader tells it, and what can be concluded from that: who is in touch,
//! who is caught up, what a majority carries. Pure readings of `Observed`.

use std::collections::{BTreeMap, BTreeSet};

use flower_api::{
    ids::{GroupId, MemberId},
    report::{
        BuildInfo, Configuration, FailedBuildInfo, FollowerLag, Lifecycle, Recovery, Report, Role,
        StoredOwner,
    },
};

use super::observed::Observed;
use crate::names::{ClusterName, Ordinal};

/// Entries behind the leader at which a member still counts as caught up: a busy follower is
/// always a little behind. The node itself checks exactly before it promotes.
pub const CAUGHT_UP_ENTRIES: u64 = 1_024;
/// Milliseconds without an answer after which the leader's word counts a member as away.
pub const CONTACT_MS: u64 = 3_000;

/// The group as its one leader tells it.
#[derive(Debug, Clone, PartialEq)]
pub struct RaftView {
    /// The leader.
    pub leader: MemberId,
    /// Its pod.
    pub leader_ordinal: Ordinal,
    /// Its term.
    pub term: u64,
    /// The configuration.
    pub configuration: Configuration,
    /// Ordinal of each member, from its address.
    pub ordinals: BTreeMap<MemberId, Ordinal>,
    /// Other members, as the leader knows them.
    pub followers: BTreeMap<MemberId, FollowerLag>,
    /// Members that are in touch with this leader in this term.
    pub alive: BTreeSet<MemberId>,
    /// Last entry known to be committed.
    pub committed: u64,
    /// Last entry purged from the leader's log: with none, a newcomer needs no image.
    pub purged: u64,
    /// The group has reached its size once.
    pub formed: bool,
    /// Hash of the active application.
    pub deployment: Option<String>,
    /// Another application that is being built, to become active.
    pub build: Option<BuildInfo>,
    /// The last application whose build failed.
    pub failed_build: Option<FailedBuildInfo>,
    /// The last recovery of the group, if there was one.
    pub recovery: Option<Recovery>,
    /// The FlowerCluster that last acted on the group.
    pub owner: Option<StoredOwner>,
}

/// Why there is no `RaftView`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoLeader {
    /// Nobody claims to lead with a quorum behind it.
    None,
    /// Two claim it in one term.
    Two {
        /// The pods' ordinals.
        ordinals: Vec<Ordinal>,
        /// The term.
        term: u64,
    },
}

impl RaftView {
    /// Finds the leader at the highest term that has a quorum's lease. A node of another
    /// cluster than the one in the status is not heard.
    ///
    /// # Errors
    /// When there is none, or two in one term.
    pub fn of(name: &ClusterName, group: GroupId, observed: &Observed) -> Result<Self, NoLeader> {
        let (leader_ordinal, report) = leader(group, observed)?;
        let (Some(leader), Some(configuration)) =
            (report.identity.member, report.configuration.clone())
        else {
            return Err(NoLeader::None);
        };
        let ordinals = configuration
            .members
            .iter()
            .filter_map(|(id, address)| Some((*id, name.ordinal_of_address(group, address)?)))
            .collect();
        let followers: BTreeMap<_, _> = report
            .followers
            .iter()
            .map(|one| (one.member, one.clone()))
            .collect();
        let alive = alive(leader, report.term, &followers, observed);
        let deployment = report.deployment.as_ref();
        Ok(Self {
            leader,
            leader_ordinal,
            term: report.term,
            configuration,
            ordinals,
            followers,
            alive,
            committed: report.positions.committed,
            purged: report.positions.purged,
            formed: report.formed,
            deployment: deployment.map(|one| one.hash.clone()),
            build: deployment.and_then(|one| one.build.clone()),
            failed_build: deployment.and_then(|one| one.failed_build.clone()),
            recovery: report.recovery,
            owner: report.owner.clone(),
        })
    }

    /// Ids of voters. During a joint change, of both sets.
    pub fn voters(&self) -> BTreeSet<MemberId> {
        self.configuration
            .voters
            .iter()
            .flatten()
            .copied()
            .collect()
    }
    /// Members that do not vote.
    pub fn learners(&self) -> BTreeSet<MemberId> {
        let voters = self.voters();
        self.configuration
            .members
            .keys()
            .copied()
            .filter(|id| !voters.contains(id))
            .collect()
    }
    /// The member of the configuration at this ordinal. While a lost member is being
    /// replaced there can be two with one address; `prefer` is named first then.
    pub fn member_at(&self, ordinal: Ordinal, prefer: Option<MemberId>) -> Option<MemberId> {
        if let Some(id) = prefer
            && self.ordinals.get(&id) == Some(&ordinal)
        {
            return Some(id);
        }
        self.ordinals
            .iter()
            .find(|(_, at)| **at == ordinal)
            .map(|(id, _)| *id)
    }
    /// In touch with the leader and holding about everything that is committed.
    pub fn caught_up(&self, id: MemberId) -> bool {
        if id == self.leader {
            return true;
        }
        self.alive.contains(&id)
            && self.followers.get(&id).is_some_and(|lag| {
                lag.image.is_none()
                    && lag.matched.is_some_and(|matched| {
                        matched.saturating_add(CAUGHT_UP_ENTRIES) >= self.committed
                    })
            })
    }
    /// Entries that a member is behind; the largest number when nothing is known.
    pub fn lag(&self, id: MemberId) -> u64 {
        if id == self.leader {
            return 0;
        }
        self.followers
            .get(&id)
            .filter(|lag| lag.matched.is_some())
            .map_or(u64::MAX, |lag| lag.lag_entries)
    }
    /// Whether, with `without` gone from the voters, those left that are caught up are a
    /// majority of those left.
    pub fn carries_without(&self, without: MemberId) -> bool {
        let left: Vec<MemberId> = self
            .voters()
            .into_iter()
            .filter(|id| *id != without)
            .collect();
        let good = left.iter().filter(|id| self.caught_up(**id)).count();
        !left.is_empty() && good > left.len() / 2
    }
    /// Whether a majority of the voters is caught up.
    pub fn quorum(&self) -> bool {
        let voters = self.voters();
        voters.iter().filter(|id| self.caught_up(**id)).count() > voters.len() / 2
    }
    /// Whether the quorum of the present voters holds while `paused` is away.
    pub fn quorum_while_away(&self, paused: MemberId) -> bool {
        let voters = self.voters();
        let good = voters
            .iter()
            .filter(|id| **id != paused && self.caught_up(**id))
            .count();
        good > voters.len() / 2
    }
}

/// The report of the one that leads. Since a recovery only members of the recovered group are
/// heard, whatever the term of the others is.
fn leader(group: GroupId, observed: &Observed) -> Result<(Ordinal, &Report), NoLeader> {
    let ours = observed.status.cluster_id.as_ref();
    let recovered = |report: &Report| report.recovery.map_or(0, |one| one.number);
    let known = observed.recoveries(group);
    let claims = |report: &Report| {
        recovered(report) >= known
            && (ours.is_none() || report.identity.cluster.as_ref() == ours)
            && report.role == Role::Leader
            && report.quorum_lease
    };
    let leaders: Vec<(Ordinal, &Report)> = observed
        .reports()
        .filter(|(_, report)| claims(report))
        .collect();
    let last = leaders.iter().map(|(_, report)| recovered(report)).max();
    let latest: Vec<(Ordinal, &Report)> = leaders
        .into_iter()
        .filter(|(_, report)| Some(recovered(report)) == last)
        .collect();
    let term = latest.iter().map(|(_, report)| report.term).max();
    // Two survivors that were recovered side by side are two groups, whatever their terms.
    let two = latest
        .windows(2)
        .any(|pair| pair[0].1.recovery != pair[1].1.recovery);
    let mut highest = latest
        .into_iter()
        .filter(|(_, report)| two || Some(report.term) == term);
    let Some((ordinal, report)) = highest.next() else {
        return Err(NoLeader::None);
    };
    let others: Vec<Ordinal> = highest.map(|(ordinal, _)| ordinal).collect();
    if others.is_empty() {
        return Ok((ordinal, report));
    }
    Err(NoLeader::Two {
        ordinals: [vec![ordinal], others].concat(),
        term: report.term,
    })
}

/// Members that follow this leader: by its own word, or by theirs.
fn alive(
    leader: MemberId,
    term: u64,
    followers: &BTreeMap<MemberId, FollowerLag>,
    observed: &Observed,
) -> BTreeSet<MemberId> {
    let by_contact = followers
        .values()
        .filter(|lag| lag.contact_ms.is_some_and(|ms| ms <= CONTACT_MS))
        .map(|lag| lag.member);
    let by_report = observed.reports().filter_map(|(_, report)| {
        let follows = report.leader == Some(leader) && report.term == term;
        let whole = report.identity.lifecycle != Lifecycle::Broken;
        report.identity.member.filter(|_| follows && whole)
    });
    by_contact.chain(by_report).chain([leader]).collect()
}
