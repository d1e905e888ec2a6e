//! What consensus says of itself, for the node's report and metrics. Reads the library's
//! metrics and changes nothing.

use std::{collections::BTreeMap, time::Duration};

use flower_api::{
    MemberId,
    report::{ConfigVersion, Configuration, FollowerLag, Lifecycle, Positions, Role},
};
use openraft::{Instant, RaftMetrics, ServerState};

use super::{
    Consensus,
    types::{LogId, StoredMembership, Types},
};

/// What the node's report needs of consensus.
#[derive(Debug, Clone, PartialEq)]
pub struct ConsensusReport {
    /// Where in its life the directory is, as far as consensus knows.
    pub lifecycle: Lifecycle,
    /// Its role.
    pub role: Role,
    /// Its term.
    pub term: u64,
    /// Whom it takes for the leader.
    pub leader: Option<MemberId>,
    /// For a leader: a quorum has answered it within the election timeout.
    pub quorum_lease: bool,
    /// The configuration that it knows; absent while there is none.
    pub configuration: Option<Configuration>,
    /// Positions.
    pub positions: Positions,
    /// For a leader: the other members.
    pub followers: Vec<FollowerLag>,
    /// Images received by the directory in its life.
    pub images_received: u64,
    /// Images delivered to others since the start.
    pub images_sent: u64,
    /// Log entries applied again by the last start.
    pub replayed_entries: u64,
    /// Full repairs of a file by the last start.
    pub full_repairs: u64,
    /// Rolling checksum of the state at `positions.applied`, hex.
    pub state_checksum: String,
    /// Everything that the log held at the start is applied again.
    pub recovered: bool,
    /// How often another leader was seen since the start.
    pub leader_changes: u64,
}

impl Consensus {
    /// Whether it takes part in a group, or is about to.
    pub fn takes_part(&self) -> bool {
        matches!(self.lifecycle(), Lifecycle::Joining | Lifecycle::Member)
    }

    /// Where in its life the directory is, as far as consensus knows.
    pub fn lifecycle(&self) -> Lifecycle {
        lifecycle(
            self.0.me.cluster().is_some(),
            self.0.me.member,
            configuration(&self.metrics()).as_ref(),
            self.0.me.was_admitted(),
        )
    }

    /// What consensus says of itself now.
    pub fn report(&self) -> ConsensusReport {
        let metrics = self.metrics();
        let view = self.view();
        let index = |id: &Option<LogId>| id.as_ref().map_or(0, |id| id.index);
        let applied = view.applied().map_or(0, |p| p.index);
        let configuration = configuration(&metrics);
        ConsensusReport {
            lifecycle: lifecycle(
                self.0.me.cluster().is_some(),
                self.0.me.member,
                configuration.as_ref(),
                self.0.me.was_admitted(),
            ),
            role: role(&metrics, configuration.as_ref()),
            term: metrics.current_term,
            leader: metrics.current_leader.map(MemberId),
            quorum_lease: has_lease(&metrics, self.0.settings.timing.election_max),
            configuration,
            positions: Positions {
                last_log: metrics.last_log_index.unwrap_or(0),
                committed: index(&metrics.cluster_committed)
                    .max(index(&metrics.local_committed))
                    .max(applied),
                applied,
                checkpoint: self.0.state.checkpoint_position().map_or(0, |p| p.index),
                purged: index(&metrics.purged),
                revision: view.revision(),
            },
            followers: self.followers(&metrics),
            images_received: view.images_received(),
            images_sent: self.0.outgoing.sent(),
            replayed_entries: self.0.state.replayed(),
            full_repairs: self.0.full_repairs,
            state_checksum: format!("{:032x}", view.checksum()),
            recovered: *self.recovered().borrow(),
            leader_changes: self.0.counters.leader_changes(),
        }
    }

    /// The other members, as the leader sees them; none when this node does not lead.
    pub(super) fn followers(&self, metrics: &RaftMetrics<Types>) -> Vec<FollowerLag> {
        let Some(replication) = &metrics.replication else {
            return Vec::new();
        };
        let last = metrics.last_log_index.map_or(0, |last| last + 1);
        let image = self.0.outgoing.current();
        replication
            .iter()
            .filter(|(id, _)| **id != metrics.id)
            .map(|(id, matched)| {
                let member = MemberId(*id);
                let matched = matched.as_ref().map(|id| id.index);
                FollowerLag {
                    member,
                    matched,
                    lag_entries: last.saturating_sub(matched.map_or(0, |m| m + 1)),
                    contact_ms: contact(metrics, *id).map(|age| age.as_millis() as u64),
                    image: image.filter(|(to, _)| *to == member).map(|(_, p)| p),
                }
            })
            .collect()
    }
}

/// How long ago a member last answered the leader.
pub(super) fn contact(metrics: &RaftMetrics<Types>, id: u64) -> Option<Duration> {
    let heard = metrics.heartbeat.as_ref()?.get(&id)?.as_ref()?;
    Some(heard.elapsed())
}

pub(super) fn version(id: &Option<LogId>) -> ConfigVersion {
    id.as_ref()
        .map_or_else(ConfigVersion::default, |id| ConfigVersion {
            term: id.committed_leader_id().term,
            index: id.index,
        })
}

/// The configuration in force; absent before the first one.
pub(super) fn configuration(metrics: &RaftMetrics<Types>) -> Option<Configuration> {
    let stored: &StoredMembership = &metrics.membership_config;
    stored.log_id().as_ref()?;
    let members: BTreeMap<MemberId, String> = stored
        .nodes()
        .map(|(id, peer)| (MemberId(*id), peer.address.clone()))
        .collect();
    Some(Configuration {
        version: version(stored.log_id()),
        committed: metrics.committed_membership_config.log_id() == stored.log_id(),
        voters: stored
            .get_joint_config()
            .iter()
            .map(|set| set.iter().map(|id| MemberId(*id)).collect())
            .collect(),
        members,
    })
}

fn role(metrics: &RaftMetrics<Types>, configuration: Option<&Configuration>) -> Role {
    let me = MemberId(metrics.id);
    if !configuration.is_some_and(|c| c.members.contains_key(&me)) {
        return Role::None;
    }
    match metrics.state {
        ServerState::Leader => Role::Leader,
        ServerState::Candidate => Role::Candidate,
        ServerState::Follower => Role::Follower,
        ServerState::Learner => Role::Learner,
        ServerState::Shutdown => Role::None,
    }
}

fn has_lease(metrics: &RaftMetrics<Types>, limit: Duration) -> bool {
    let heard = metrics.last_quorum_acked.as_ref().map(|at| at.elapsed());
    metrics.state == ServerState::Leader && in_touch(is_alone(metrics), heard, limit)
}

/// The only voter is its own quorum. Nobody answers it, so the time of its last answer stands
/// still while it is idle.
fn in_touch(alone: bool, heard: Option<Duration>, limit: Duration) -> bool {
    alone || heard.is_some_and(|age| age < limit)
}

pub(super) fn is_alone(metrics: &RaftMetrics<Types>) -> bool {
    let mut voters = metrics.membership_config.voter_ids();
    voters.next() == Some(metrics.id) && voters.next().is_none()
}

/// A member that finds itself in no configuration is joining, unless it has been in one: the
/// configurations that a new member receives first were written before it was added. One that
/// has been is removed once that is known to be committed, and a member until then: it may be
/// the last thing that it hears, and it must never look as if it could be added once more.
fn lifecycle(
    has_cluster: bool,
    me: MemberId,
    configuration: Option<&Configuration>,
    was_member: bool,
) -> Lifecycle {
    match configuration {
        _ if !has_cluster => Lifecycle::Uninitialized,
        None => Lifecycle::Joining,
        Some(known) if known.members.contains_key(&me) => Lifecycle::Member,
        Some(_) if !was_member => Lifecycle::Joining,
        Some(known) if known.committed => Lifecycle::Removed,
        Some(_) => Lifecycle::Member,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_is_in_touch_while_a_quorum_answers_or_when_it_is_alone() {
        let (limit, late) = (Duration::from_secs(1), Duration::from_secs(2));
        for (alone, heard, expected) in [
            (true, None, true),
            (true, Some(late), true),
            (false, None, false),
            (false, Some(late), false),
            (false, Some(limit / 2), true),
        ] {
            assert_eq!(in_touch(alone, heard, limit), expected);
        }
    }

    #[test]
    fn the_life_of_a_directory_follows_from_cluster_and_configuration() {
        let me = MemberId(2);
        let configuration = |members: &[u64], committed| Configuration {
            version: ConfigVersion::default(),
            committed,
            voters: vec![members.iter().map(|m| MemberId(*m)).collect()],
            members: members
                .iter()
                .map(|m| (MemberId(*m), String::new()))
                .collect(),
        };
        let with = configuration(&[1, 2], true);
        let without = configuration(&[1], true);
        let pending = configuration(&[1], false);
        for (cluster, known, was_member, expected) in [
            (false, None, false, Lifecycle::Uninitialized),
            (true, None, false, Lifecycle::Joining),
            (true, Some(&without), false, Lifecycle::Joining),
            (true, Some(&with), false, Lifecycle::Member),
            (true, Some(&with), true, Lifecycle::Member),
            (true, Some(&pending), true, Lifecycle::Member),
            (true, Some(&pending), false, Lifecycle::Joining),
            (true, Some(&without), true, Lifecycle::Removed),
        ] {
            assert_eq!(lifecycle(cluster, me, known, was_member), expected);
        }
    }
}
