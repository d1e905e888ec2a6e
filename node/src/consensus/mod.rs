//! Consensus: the only module that names openraft. Entries are proposed under a leadership,
//! replicated, applied; members are added, promoted and removed; images are sent to those that
//! the log no longer reaches. Our own types go on the wire and on disk.

mod contact;
mod fence;
mod handshake;
mod identity;
mod leadership;
mod links;
mod log;
mod membership;
mod peers;
mod plan;
mod propose;
mod receive;
mod recover;
mod report;
mod revive;
mod server;
mod settings;
mod space;
mod state;
mod transfer;
mod types;
mod upkeep;
mod wire;

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc};

use flower_api::{MemberId, Revision, report::Disk};
use flower_store::{LogPosition, StateStats, StateView};
use rand::RngCore;
use tokio::sync::watch;

pub use contact::Contact;
pub use fence::FenceError;
pub use handshake::{FixedSecrets, PeerSecrets};
pub use identity::{Me, Note, Persist};
pub use leadership::Leadership;
pub use propose::{AppliedSignal, FlushedSignal, Proposal, ProposeError};
pub use report::ConsensusReport;
pub(crate) use revive::{carry_out, tell_given_up};
pub use settings::{ConsensusSettings, Timing};
pub use state::AppliedAt;

use crate::env::{Env, Fatal, Mono};
use contact::Contacts;
use fence::Fences;
use links::Links;
use log::{FlushedLog, LogStore};
use server::Server;
use space::Space;
use state::StateStore;
use transfer::Outgoing;
use types::Types;

pub(crate) type Raft = openraft::Raft<Types, StateStore>;

/// This node's part in its group. Cheap to clone.
#[derive(Clone)]
pub struct Consensus(Arc<Inner>);

struct Inner {
    env: Env,
    me: Arc<Me>,
    settings: ConsensusSettings,
    raft: Raft,
    links: Arc<Links>,
    outgoing: Arc<Outgoing>,
    log: FlushedLog,
    state: StateStore,
    space: Space,
    fences: Fences,
    contacts: contact::Shared,
    leadership: watch::Receiver<Option<Leadership>>,
    recovered: watch::Receiver<bool>,
    counters: Arc<leadership::Counters>,
    full_repairs: u64,
    /// One entry is on its way into the log at a time, so that their order is the caller's.
    proposing: tokio::sync::Mutex<()>,
    /// One change of the configuration at a time.
    changing: tokio::sync::Mutex<()>,
    listening: std::net::SocketAddr,
}

/// Where the leader is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderInfo {
    /// Its member id.
    pub member: MemberId,
    /// `host:port` of its peer port.
    pub address: String,
    /// `host:port` of its client API.
    pub client_address: String,
}

impl Consensus {
    /// Starts the node's part: opens the peer port, replays the log, takes part in elections
    /// when it is a voter. Returns before it has recovered, see [`Consensus::recovered`].
    ///
    /// # Errors
    /// When the port is taken or the disk fails.
    pub async fn open(
        env: &Env,
        settings: ConsensusSettings,
        me: Arc<Me>,
        log: flower_store::Log,
        state: flower_store::State,
        full_repairs: u64,
    ) -> Result<Self, Fatal> {
        let listener = env.net.listen(settings.listen).await.map_err(|e| {
            Fatal::new(format!(
                "the peer port {} cannot be opened: {e} [setting: FLOWER_PEER_PORT]",
                settings.listen
            ))
        })?;
        let listening = listener
            .local_addr()
            .map_err(|e| Fatal::new(format!("the peer port does not say where it is: {e}")))?;
        let log = FlushedLog::new(env, me.member, log);
        let state = StateStore::new(env, state, log.clone(), settings.recent_bytes)
            .await
            .map_err(|e| Fatal::new(format!("the state cannot be used: {e}")))?;
        let contacts = Arc::new(Contacts::new(env));
        let links = Links::new(env, me.clone(), settings.secrets.clone());
        let outgoing = Arc::new(Outgoing::default());
        let space = Space::watch(env).await;
        let config = settings.timing.config(&me)?;
        let network = peers::Network {
            links: links.clone(),
            outgoing: outgoing.clone(),
            contacts: contacts.clone(),
        };
        let store = LogStore::new(log.clone(), state.clone());
        let start = Raft::new(me.member.0, config, network, store, state.clone());
        let seed = env.seeds.child("elections").rng().next_u64();
        let raft = types::seeded(seed, start)
            .await
            .map_err(|e| Fatal::new(format!("consensus cannot start: {e}")))?;
        contacts.begin(&raft);
        let server = Server {
            env: env.clone(),
            raft: raft.clone(),
            links: links.clone(),
            space: space.clone(),
            contacts: contacts.clone(),
            receiving: Arc::default(),
            complaints: Arc::default(),
        };
        env.tasks.spawn("peer port", server.run(listener));
        let watched = leadership::watch(env, &raft, &state, &me);
        upkeep::start(env, &raft, &state, &log, &outgoing, &settings);
        Ok(Self(Arc::new(Inner {
            env: env.clone(),
            fences: Fences::new(env, &raft, &links),
            me,
            settings,
            raft,
            links,
            outgoing,
            log,
            state,
            space,
            contacts,
            leadership: watched.leadership,
            recovered: watched.recovered,
            counters: watched.counters,
            full_repairs,
            proposing: tokio::sync::Mutex::new(()),
            changing: tokio::sync::Mutex::new(()),
            listening,
        })))
    }

    /// The leadership that this node holds, once everything before its own first entry is
    /// applied; absent while it does not lead.
    pub fn leadership(&self) -> watch::Receiver<Option<Leadership>> {
        self.0.leadership.clone()
    }

    /// The term that this node was elected in, while the library takes it for the leader:
    /// earlier than [`Consensus::leadership`].
    pub fn elected(&self) -> Option<u64> {
        use openraft::async_runtime::watch::WatchReceiver;
        let metrics = self.0.raft.metrics();
        let metrics = metrics.borrow_watched();
        // The term of its own election: that of the metrics may be a later one already, which
        // another node asks for.
        let vote = &metrics.vote;
        let own = vote.committed && vote.leader_id.node_id == metrics.id;
        let leads = metrics.state == openraft::ServerState::Leader;
        (leads && own).then_some(vote.leader_id.term)
    }

    /// A position of the log such that a view that has applied it reflects everything that was
    /// acknowledged before this call. Arrivals share fences: one is under way, later ones join
    /// the next.
    ///
    /// # Errors
    /// Why there was none before `deadline`, for people.
    pub async fn fence(&self, deadline: Mono) -> Result<u64, FenceError> {
        self.0.fences.fence(deadline).await
    }

    /// Waits until the entry at `index` is applied here; false when `deadline` comes first.
    pub async fn wait_applied(&self, index: u64, deadline: Mono) -> bool {
        let reached = |at: &AppliedAt| at.position.is_some_and(|p| p.index >= index);
        self.wait_state(reached, deadline).await
    }

    /// Waits until `revision` is applied here; false when `deadline` comes first.
    pub async fn wait_revision(&self, revision: Revision, deadline: Mono) -> bool {
        self.wait_state(|at| at.revision >= revision, deadline)
            .await
    }

    async fn wait_state(&self, reached: impl Fn(&AppliedAt) -> bool, deadline: Mono) -> bool {
        let mut applied = self.0.state.applied();
        let wait = applied.wait_for(|at| reached(at));
        matches!(self.0.env.until(deadline, wait).await, Some(Ok(_)))
    }

    /// How far the state has come, and every change of it.
    pub fn applied(&self) -> watch::Receiver<AppliedAt> {
        self.0.state.applied()
    }

    /// The newest view. Hold it for one call only.
    pub fn view(&self) -> Arc<StateView> {
        self.0.state.view()
    }

    /// What was written lately.
    pub fn recent(&self) -> &crate::recent::Recent {
        self.0.state.recent()
    }

    /// Age of the oldest view that is still held, milliseconds.
    pub fn oldest_view_ms(&self) -> u64 {
        self.0.state.oldest_view_ms()
    }

    /// Sizes and counters of the state.
    pub fn state_stats(&self) -> StateStats {
        self.0.state.stats()
    }

    /// Sizes of the log.
    pub fn log_stats(&self) -> flower_store::log::LogStats {
        self.0.log.reader().stats()
    }

    /// Free space of the volume, as of the last second.
    pub fn disk(&self) -> Disk {
        self.0.space.disk()
    }

    /// Members whose volumes stand in the way of more mutations, for a leader: its own, or those
    /// of a majority. Empty while there is room.
    pub fn without_room(&self) -> BTreeSet<MemberId> {
        let me = self.0.me.member;
        let mut low = self.0.links.low_on_space();
        if self.0.space.is_low() {
            low.insert(me);
        }
        // Asked for every mutation: the voters matter only when somebody is low.
        if low.is_empty() {
            return low;
        }
        let metrics = self.metrics();
        let voters = metrics.membership_config.voter_ids().map(MemberId);
        space::without_room(me, &voters.collect(), &low)
    }

    /// Whether everything that was in the log when the node started has been applied again.
    /// Nothing is to be served before that.
    pub fn recovered(&self) -> watch::Receiver<bool> {
        self.0.recovered.clone()
    }

    /// Who leads, as far as this node knows.
    pub fn leader(&self) -> Option<LeaderInfo> {
        let metrics = self.metrics();
        let id = metrics.current_leader?;
        let member = MemberId(id);
        let address = metrics.membership_config.get_node(&id)?.address.clone();
        let client_address = if member == self.0.me.member {
            self.0.me.client_address.clone()
        } else {
            self.0
                .links
                .client_address(member)
                .unwrap_or_else(|| default_client_address(&address))
        };
        Some(LeaderInfo {
            member,
            address,
            client_address,
        })
    }

    /// Where the client API of a member of the configuration is. Followers do not talk to each
    /// other: one that has not said so yet is asked.
    pub async fn client_address(&self, member: MemberId) -> Option<String> {
        let metrics = self.metrics();
        let address = &metrics.membership_config.get_node(&member.0)?.address;
        if let Some(said) = self.0.links.client_address(member) {
            return Some(said);
        }
        // Its greeting tells, whatever it answers.
        let (purpose, question) = (wire::Purpose::Fence, wire::Request::Fence);
        let asked = self
            .0
            .links
            .call(member, address, purpose, &question, ASK_LIMIT);
        let _ = asked.await;
        let said = self.0.links.client_address(member);
        Some(said.unwrap_or_else(|| default_client_address(address)))
    }

    /// The last contact with a leader that had a quorum: of a leader, with the quorum itself.
    pub fn contact(&self) -> Option<Contact> {
        self.0.contacts.last()
    }

    /// Changes with every such contact.
    pub fn contacts(&self) -> watch::Receiver<Option<Contact>> {
        self.0.contacts.changes()
    }

    /// This node's identity.
    pub fn me(&self) -> &Arc<Me> {
        &self.0.me
    }

    /// Where the peer port listens.
    pub fn listening(&self) -> std::net::SocketAddr {
        self.0.listening
    }

    /// Makes everything applied durable now.
    ///
    /// # Errors
    /// When the disk fails; the node stops then.
    pub async fn checkpoint(&self) -> Result<Option<LogPosition>, Fatal> {
        match self.0.state.checkpoint().await {
            Ok(made) => Ok(made.position()),
            Err(error) => Err(self.fail(error.to_string())),
        }
    }

    /// Stops taking part, then makes everything applied durable. Leadership should have been
    /// handed over before.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn shutdown(&self) -> Result<(), Fatal> {
        self.0.env.tasks.stop();
        if let Err(error) = self.0.raft.shutdown().await {
            tracing::warn!(%error, "consensus did not stop in order");
        }
        match self.0.env.tasks.failure() {
            Some(fatal) => Err(fatal),
            None => self.checkpoint().await.map(drop),
        }
    }

    /// Resolves when the node cannot go on.
    pub async fn fatal(&self) -> Fatal {
        self.0.env.tasks.fatal().await
    }

    fn fail(&self, why: String) -> Fatal {
        let fatal = Fatal::new(why);
        self.0.env.tasks.fail(fatal.clone());
        self.0.env.tasks.failure().unwrap_or(fatal)
    }

    /// The library's metrics, copied at once: its guard must not be held.
    fn metrics(&self) -> openraft::RaftMetrics<Types> {
        use openraft::async_runtime::watch::WatchReceiver;
        self.0.raft.metrics().borrow_watched().clone()
    }
}

/// How long a member is asked where its client API is.
const ASK_LIMIT: std::time::Duration = std::time::Duration::from_secs(2);

/// The client API of a member that has not said where its own is: the same host, the default
/// port.
fn default_client_address(peer_address: &str) -> String {
    let host = peer_address
        .rsplit_once(':')
        .map_or(peer_address, |(host, _)| host);
    format!("{host}:{}", flower_api::ports::CLIENT)
}
