//! The consensus library's types as configured for Flower, and the way between them and our
//! own types, which alone go on the wire and on disk. No decisions here.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    sync::Arc,
};

use bytes::Bytes;
use flower_api::MemberId;
use flower_engine::Entry;
use flower_store::{LogPosition, LogRecord, Payload};
use openraft::{
    EntryPayload,
    alias::{CommittedLeaderIdOf, LogIdOf, StoredMembershipOf, VoteOf},
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

openraft::declare_raft_types!(
    /// How the consensus library is configured.
    pub(crate) Types:
        D = Proposed,
        R = (),
        NodeId = u64,
        Node = Peer,
        AsyncRuntime = Runtime,
);

/// The library draws its timeouts from a seed of ours and not from the thread, so that one
/// number replays a simulated world. See [`seeded`].
type Runtime = openraft::rt::deterministic_rng::DeterministicRng<openraft_rt_tokio::TokioRuntime>;

/// Runs `start`, which starts the library's tasks: they, and those that they start, draw from
/// `seed`.
pub(crate) async fn seeded<F: Future>(seed: u64, start: F) -> F::Output {
    Runtime::scope(seed, start).await
}

pub(crate) type LeaderId = CommittedLeaderIdOf<Types>;
pub(crate) type LogId = LogIdOf<Types>;
pub(crate) type Vote = VoteOf<Types>;
pub(crate) type RaftEntry = <Types as openraft::RaftTypeConfig>::Entry;
pub(crate) type Membership = openraft::Membership<u64, Peer>;
pub(crate) type StoredMembership = StoredMembershipOf<Types>;
pub(crate) type SnapshotMeta = openraft::alias::SnapshotMetaOf<Types>;

/// What the configuration knows of a member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Peer {
    /// `host:port` of its peer port.
    pub(crate) address: String,
}

/// An entry on its way through consensus. The stages exist on the proposing node only.
#[derive(Clone)]
pub(crate) struct Proposed {
    pub(crate) entry: Arc<Entry>,
    pub(crate) stages: Option<Arc<Stages>>,
}

impl fmt::Debug for Proposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Proposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} at revision {}",
            self.entry.kind, self.entry.revision
        )
    }
}

impl PartialEq for Proposed {
    fn eq(&self, other: &Self) -> bool {
        self.entry == other.entry
    }
}

/// Tells the proposer how far its entry has come in the local log.
#[derive(Default)]
pub(crate) struct Stages {
    appended: Mutex<Option<oneshot::Sender<LogPosition>>>,
    flushed: Mutex<Option<oneshot::Sender<()>>>,
}

impl Stages {
    /// The stages, and what resolves when each is reached.
    pub(crate) fn new() -> (
        Arc<Self>,
        oneshot::Receiver<LogPosition>,
        oneshot::Receiver<()>,
    ) {
        let (appended, is_appended) = oneshot::channel();
        let (flushed, is_flushed) = oneshot::channel();
        let stages = Self {
            appended: Mutex::new(Some(appended)),
            flushed: Mutex::new(Some(flushed)),
        };
        (Arc::new(stages), is_appended, is_flushed)
    }

    /// The entry is in the log, not yet durable.
    pub(crate) fn set_appended(&self, at: LogPosition) {
        if let Some(tell) = self.appended.lock().take() {
            let _ = tell.send(at);
        }
    }

    /// The entry is durable on this node.
    pub(crate) fn set_flushed(&self) {
        if let Some(tell) = self.flushed.lock().take() {
            let _ = tell.send(());
        }
    }
}

/// Ours for theirs.
pub(crate) fn position(id: &LogId) -> LogPosition {
    LogPosition {
        term: id.committed_leader_id().term,
        leader: id.committed_leader_id().node_id,
        index: id.index(),
    }
}

/// Theirs for ours.
pub(crate) fn log_id(position: LogPosition) -> LogId {
    LogId::new(
        LeaderId {
            term: position.term,
            node_id: position.leader,
        },
        position.index,
    )
}

/// A vote on the wire and on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireVote {
    pub(crate) term: u64,
    pub(crate) candidate: u64,
    pub(crate) committed: bool,
}

impl WireVote {
    /// Term, candidate, and whether it leads.
    pub(crate) fn parts(&self) -> (u64, u64, bool) {
        (self.term, self.candidate, self.committed)
    }
}

impl From<&Vote> for WireVote {
    fn from(vote: &Vote) -> Self {
        Self {
            term: vote.leader_id.term,
            candidate: vote.leader_id.node_id,
            committed: vote.committed,
        }
    }
}

impl From<WireVote> for Vote {
    fn from(vote: WireVote) -> Self {
        if vote.committed {
            Self::new_committed(vote.term, vote.candidate)
        } else {
            Self::new(vote.term, vote.candidate)
        }
    }
}

/// A configuration on the wire and on disk, with the position at which it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireMembership {
    pub(crate) position: Option<LogPosition>,
    pub(crate) voters: Vec<BTreeSet<u64>>,
    pub(crate) members: BTreeMap<u64, Peer>,
}

impl WireMembership {
    pub(crate) fn new(position: Option<LogPosition>, membership: &Membership) -> Self {
        Self {
            position,
            voters: membership.get_joint_config().clone(),
            members: membership
                .nodes()
                .map(|(id, peer)| (*id, peer.clone()))
                .collect(),
        }
    }

    pub(crate) fn membership(&self) -> io::Result<Membership> {
        if self.voters.is_empty() && self.members.is_empty() {
            return Ok(Membership::default());
        }
        Membership::new(self.voters.clone(), self.members.clone())
            .map_err(|e| bad_data(format!("a configuration that cannot be: {e}")))
    }

    pub(crate) fn stored(&self) -> io::Result<StoredMembership> {
        Ok(StoredMembership::new(
            self.position.map(log_id),
            self.membership()?,
        ))
    }

    pub(crate) fn encode(&self) -> Bytes {
        encode(self)
    }
}

/// The configuration in bytes of [`WireMembership::encode`].
pub(crate) fn stored_membership(bytes: Option<Bytes>) -> io::Result<StoredMembership> {
    match bytes {
        None => Ok(StoredMembership::default()),
        Some(bytes) => decode::<WireMembership>(&bytes)?.stored(),
    }
}

/// Format of everything that this module encodes; a node refuses another one.
const FORMAT: u8 = 1;

/// Format byte, then postcard.
///
/// # Panics
/// Never: postcard into a growing vector does not fail for these types.
pub(crate) fn encode<T: Serialize>(value: &T) -> Bytes {
    postcard::to_extend(value, vec![FORMAT])
        .expect("postcard into a vector")
        .into()
}

/// What an encoded value begins with, whatever follows.
pub(crate) fn decode_first<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    let body = bytes.strip_prefix(&[FORMAT]);
    let body = body.ok_or_else(|| bad_data("an unknown format"))?;
    let first = postcard::take_from_bytes(body);
    first
        .map(|(value, _)| value)
        .map_err(|e| bad_data(format!("a damaged message: {e}")))
}

/// The inverse of [`encode`].
pub(crate) fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    match bytes.split_first() {
        None => Err(bad_data("an empty message")),
        Some((&FORMAT, body)) => match postcard::take_from_bytes(body) {
            Ok((value, [])) => Ok(value),
            Ok(_) => Err(bad_data("bytes behind the end of a message")),
            Err(e) => Err(bad_data(format!("a damaged message: {e}"))),
        },
        Some((&other, _)) => Err(bad_data(format!(
            "format {other}; this version knows only format {FORMAT}"
        ))),
    }
}

pub(crate) fn bad_data(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

/// An entry as the log keeps it.
pub(crate) fn record(entry: &RaftEntry) -> LogRecord {
    let position = position(&entry.log_id);
    let payload = match &entry.payload {
        EntryPayload::Blank => Payload::Blank,
        EntryPayload::Normal(proposed) => Payload::Entry(proposed.entry.clone()),
        EntryPayload::Membership(membership) => {
            Payload::Membership(WireMembership::new(Some(position), membership).encode())
        }
    };
    LogRecord { position, payload }
}

/// The inverse of [`record`].
pub(crate) fn entry(record: LogRecord) -> io::Result<RaftEntry> {
    let payload = match record.payload {
        Payload::Blank => EntryPayload::Blank,
        Payload::Entry(entry) => EntryPayload::Normal(Proposed {
            entry,
            stages: None,
        }),
        Payload::Membership(bytes) => {
            EntryPayload::Membership(decode::<WireMembership>(&bytes)?.membership()?)
        }
    };
    Ok(RaftEntry {
        log_id: log_id(record.position),
        payload,
    })
}

/// The library's id for a member.
pub(crate) fn raw(member: MemberId) -> u64 {
    member.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn votes_and_configurations_round_trip_and_other_formats_are_refused() {
        let vote = Vote::new_committed(3, u64::MAX);
        assert_eq!(Vote::from(WireVote::from(&vote)), vote);
        let peer = |n: u64| {
            (
                n,
                Peer {
                    address: format!("host-{n}:7701"),
                },
            )
        };
        let membership = Membership::new(
            vec![BTreeSet::from([1, 2]), BTreeSet::from([2, 3])],
            BTreeMap::from([peer(1), peer(2), peer(3), peer(9)]),
        )
        .unwrap();
        let at = LogPosition {
            term: 2,
            leader: 1,
            index: 7,
        };
        let bytes = WireMembership::new(Some(at), &membership).encode();
        let back = stored_membership(Some(bytes.clone())).unwrap();
        assert_eq!(back.membership(), &membership);
        assert_eq!(back.log_id().as_ref().map(position), Some(at));
        let mut newer = bytes.to_vec();
        newer[0] = 2;
        let why = stored_membership(Some(newer.into()))
            .unwrap_err()
            .to_string();
        assert!(why.contains("format 2"), "{why}");
        assert!(stored_membership(Some(bytes.slice(..bytes.len() - 1))).is_err());
    }
}
