//! A node's life: its data directory is opened, minted or found broken; an uninitialized one
//! waits to be bootstrapped or addressed by a leader; a broken one answers, and takes no part.
//! Serving clients is not done here.

use std::sync::Arc;

use flower_api::{
    MemberId,
    report::{Identity, Lifecycle},
};
use flower_store::{
    DataDir, DirReport, DirSettings, OpenDir, Opened,
    sabotage::{Break, is_broken},
};
use rand::RngCore;

use crate::{
    consensus::{self, Consensus, ConsensusSettings, Me, Note, Persist},
    env::{Env, Fatal, LaneId},
};

/// What a node is started with.
#[derive(Clone)]
pub struct NodeSettings {
    /// The name it is started under (the pod's name in Kubernetes).
    pub name: String,
    /// `host:port` of its client API, as other members reach it.
    pub client_address: String,
    /// Caches and group.
    pub directory: DirSettings,
    /// Consensus.
    pub consensus: ConsensusSettings,
}

/// A node that has opened its data directory.
pub struct Node {
    name: String,
    stage: Stage,
}

/// What opening came to. Uninitialized, Joining, Member and Removed follow from the cluster's
/// configuration as it goes; consensus runs in all of them, and lets nobody in before there is
/// a cluster.
enum Stage {
    Running(Consensus),
    Broken {
        why: String,
        identity: Option<flower_store::Identity>,
        group: flower_api::GroupId,
    },
}

impl Node {
    /// Opens the data directory and starts consensus over it. A directory that cannot be read
    /// gives a node too: one that says why and takes no part.
    ///
    /// # Errors
    /// When the disk fails, the directory belongs to another group or version, or the peer
    /// port is taken.
    pub async fn open(env: &Env, settings: NodeSettings) -> Result<Self, Fatal> {
        let group = settings.directory.group;
        let mint = match is_broken(Break::MemberIdReused) {
            false => MemberId(env.seeds.child("member id").rng().next_u64()),
            true => named(&settings.name),
        };
        let stage = match open_directory(env, settings.directory, mint).await? {
            Opened::Fresh(open) | Opened::Member(open) => {
                Stage::Running(start(env, &settings, open).await?)
            }
            Opened::Broken { why, identity } => {
                tracing::error!(%why, "the data directory is broken; this node takes no part");
                Stage::Broken {
                    why,
                    identity,
                    group,
                }
            }
        };
        Ok(Self {
            name: settings.name,
            stage,
        })
    }

    /// Consensus; absent when the directory is broken.
    pub fn consensus(&self) -> Option<&Consensus> {
        match &self.stage {
            Stage::Running(consensus) => Some(consensus),
            Stage::Broken { .. } => None,
        }
    }

    /// Why the directory is broken, if it is.
    pub fn broken(&self) -> Option<&str> {
        match &self.stage {
            Stage::Running(_) => None,
            Stage::Broken { why, .. } => Some(why),
        }
    }

    /// Who the node is.
    pub fn identity(&self) -> Identity {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let name = self.name.clone();
        match &self.stage {
            Stage::Running(consensus) => Identity {
                cluster: consensus.me().cluster(),
                group: consensus.me().group,
                member: Some(consensus.me().member),
                lifecycle: consensus.lifecycle(),
                broken: None,
                version,
                name,
            },
            Stage::Broken {
                why,
                identity,
                group,
            } => Identity {
                cluster: identity.as_ref().and_then(|i| i.cluster.clone()),
                group: identity.as_ref().map_or(*group, |i| i.group),
                member: identity.as_ref().map(|i| i.member),
                lifecycle: Lifecycle::Broken,
                broken: Some(why.clone()),
                version,
                name,
            },
        }
    }
}

/// A member id that is the same for every volume; for [`Break::MemberIdReused`].
fn named(name: &str) -> MemberId {
    let bytes = name.bytes().map(u64::from);
    MemberId(bytes.fold(7, |id, byte| id.wrapping_mul(31).wrapping_add(byte)))
}

async fn open_directory(env: &Env, settings: DirSettings, mint: MemberId) -> Result<Opened, Fatal> {
    let disk = env.disk.clone();
    let open = move || {
        let opened = DataDir::open(disk, &settings, mint);
        let mut opened = opened.map_err(|e| Fatal::new(e.to_string()))?;
        if let Opened::Member(open) = &mut opened {
            consensus::carry_out(open)?;
        }
        Ok(opened)
    };
    env.run_on(LaneId::State, open)
        .await
        .map_err(|e| Fatal::new(e.to_string()))?
}

async fn start(env: &Env, settings: &NodeSettings, open: OpenDir) -> Result<Consensus, Fatal> {
    let OpenDir {
        dir,
        log,
        state,
        report,
    } = open;
    let identity = dir.identity().clone();
    let DirReport {
        full_repairs,
        replayable,
        ..
    } = report;
    tracing::info!(
        member = %identity.member,
        cluster = identity.cluster.as_ref().map(|c| c.0.as_str()),
        full_repairs,
        replayable,
        "the data directory is open"
    );
    let me = Me::new(
        identity.member,
        identity.group,
        identity.cluster,
        identity.recovery,
        identity.admitted,
        settings.client_address.clone(),
        persist(env, dir),
    );
    let settings = settings.consensus.clone();
    let consensus = Consensus::open(env, settings, me, log, state, full_repairs).await?;
    consensus::tell_given_up(env, &consensus, identity.given_up);
    Ok(consensus)
}

fn persist(env: &Env, dir: DataDir) -> Persist {
    let env = env.clone();
    let dir = Arc::new(parking_lot::Mutex::new(dir));
    Box::new(move |note| {
        let (env, dir) = (env.clone(), dir.clone());
        Box::pin(async move {
            let write = move || match note {
                Note::Adopted(cluster, recovery) => dir.lock().adopt(&cluster, recovery),
                Note::Admitted => Ok(dir.lock().admit()?),
                Note::Outlived(by) => Ok(dir.lock().outlived(by)?),
            };
            match env.run_on(LaneId::Files, write).await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(std::io::Error::other(error)),
                Err(gone) => Err(std::io::Error::other(gone)),
            }
        })
    })
}
