//! What consensus is started with, and how its timing becomes the library's configuration.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use flower_api::limits;
use flower_store::sabotage::{Break, is_broken};
use openraft::{Config, SnapshotPolicy};

use super::{handshake::PeerSecrets, identity::Me};
use crate::env::Fatal;

/// Settings of consensus.
#[derive(Clone)]
pub struct ConsensusSettings {
    /// Where the peer port listens.
    pub listen: SocketAddr,
    /// The peer secret.
    pub secrets: Arc<dyn PeerSecrets>,
    /// Elections.
    pub timing: Timing,
    /// Announce a snapshot and purge the log after so many bytes of log.
    pub snapshot_after_log_bytes: u64,
    /// A checkpoint after so many applied bytes …
    pub checkpoint_bytes: u64,
    /// … or so long after something was applied.
    pub checkpoint_every: Duration,
    /// Keys written lately that are kept in memory, bytes.
    pub recent_bytes: u64,
}

impl ConsensusSettings {
    /// The defaults.
    pub fn new(listen: SocketAddr, secrets: Arc<dyn PeerSecrets>) -> Self {
        Self {
            listen,
            secrets,
            timing: Timing::default(),
            snapshot_after_log_bytes: limits::SNAPSHOT_AFTER_LOG_BYTES,
            checkpoint_bytes: limits::CHECKPOINT_BYTES,
            checkpoint_every: Duration::from_millis(limits::CHECKPOINT_MS),
            recent_bytes: limits::RECENT_BYTES,
        }
    }
}

/// Timing of elections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// The leader gives a sign of life this often.
    pub heartbeat: Duration,
    /// A follower that hears nothing for a random time between this …
    pub election_min: Duration,
    /// … and this asks for votes.
    pub election_max: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(100),
            election_min: Duration::from_millis(500),
            election_max: Duration::from_millis(1_000),
        }
    }
}

impl Timing {
    /// The library's configuration. What differs from its defaults has a reason:
    /// a restarted leader must not take up its term again (`enable_leader_restore`); a node
    /// that cannot win must not raise the term (`enable_pre_vote`); a leader without a quorum
    /// must let its followers go (`quorum_loss_probe_interval`); the log is purged by
    /// `upkeep` alone (snapshots never by policy, nothing purged with them, no follower
    /// given an image for mere lag).
    pub(crate) fn config(&self, me: &Me) -> Result<Arc<Config>, Fatal> {
        let ms = |d: Duration| d.as_millis() as u64;
        let config = Config {
            cluster_name: format!("group-{}", me.group),
            heartbeat_interval: ms(self.heartbeat),
            election_timeout_min: ms(self.election_min),
            election_timeout_max: ms(self.election_max),
            heartbeat_min_interval: Some(ms(self.heartbeat) / 4),
            quorum_loss_probe_interval: Some(2 * ms(self.election_max)),
            enable_leader_restore: Some(is_broken(Break::LeaderRestore)),
            enable_pre_vote: Some(true),
            allow_log_reversion: Some(false),
            snapshot_policy: SnapshotPolicy::Never,
            replication_lag_threshold: u64::MAX / 4,
            max_in_snapshot_log_to_keep: u64::MAX / 4,
            max_payload_entries: 64,
            install_snapshot_timeout: 60_000,
            ..Config::default()
        };
        config
            .validate()
            .map(Arc::new)
            .map_err(|e| Fatal::new(format!("the timing of elections cannot be: {e}")))
    }
}
