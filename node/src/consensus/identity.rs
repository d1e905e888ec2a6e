//! Who this node is: member id, group, the cluster once there is one, and whether it has been
//! in a configuration of it. Both are learned once, and made durable before anyone is told.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwapOption;
use flower_api::{ClusterId, GroupId, MemberId};
use flower_store::sabotage::{Break, is_broken};
use tokio::sync::Mutex;

use super::{
    handshake::{Hello, Refusal},
    wire::Purpose,
};
use crate::env::Fut;

/// What a node learns of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Learned {
    /// The cluster that it belongs to.
    Cluster(ClusterId),
    /// It has been in a configuration.
    Admitted,
}

/// Makes it durable in the data directory.
pub type Persist = Box<dyn Fn(Learned) -> Fut<'static, io::Result<()>> + Send + Sync>;

/// This node's identity.
pub struct Me {
    /// The data directory's life.
    pub member: MemberId,
    /// Its group.
    pub group: GroupId,
    /// `host:port` of its client API, as other members reach it.
    pub client_address: String,
    cluster: ArcSwapOption<ClusterId>,
    admitted: AtomicBool,
    persist: Persist,
    adopting: Mutex<()>,
}

impl Me {
    /// An identity read from the volume, or just minted.
    pub fn new(
        member: MemberId,
        group: GroupId,
        cluster: Option<ClusterId>,
        admitted: bool,
        client_address: String,
        persist: Persist,
    ) -> Arc<Self> {
        Arc::new(Self {
            member,
            group,
            client_address,
            cluster: ArcSwapOption::from_pointee(cluster),
            admitted: AtomicBool::new(admitted),
            persist,
            adopting: Mutex::new(()),
        })
    }

    /// The cluster, once there is one.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.cluster.load().as_deref().cloned()
    }

    /// Takes on a cluster for good: durable when this returns. True when it is the node's
    /// cluster afterwards.
    ///
    /// # Errors
    /// When it cannot be made durable.
    pub(crate) async fn adopt(&self, cluster: &ClusterId) -> io::Result<bool> {
        let _alone = self.adopting.lock().await;
        if let Some(mine) = self.cluster() {
            return Ok(mine == *cluster);
        }
        (self.persist)(Learned::Cluster(cluster.clone())).await?;
        self.cluster.store(Some(Arc::new(cluster.clone())));
        tracing::info!(%cluster, member = %self.member, "joined a cluster");
        Ok(true)
    }

    /// Whether it has been in a configuration, now or before a restart.
    pub(crate) fn was_admitted(&self) -> bool {
        self.admitted.load(Ordering::Relaxed)
    }

    /// Remembers that it is in a configuration; durable when this returns.
    ///
    /// # Errors
    /// When it cannot be made durable.
    pub(crate) async fn admit(&self) -> io::Result<()> {
        if !self.was_admitted() {
            (self.persist)(Learned::Admitted).await?;
            self.admitted.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether a peer that has proved the secret may talk to this node; a pure decision but
    /// for the cluster, which the caller adopts.
    pub(crate) fn judge(&self, hello: &Hello) -> Judgement {
        let let_in = is_broken(Break::WrongMemberAccepted)
            || hello.purpose == Purpose::Control && is_broken(Break::WipedNodeVotes);
        if hello.addressed != self.member && !let_in {
            return Judgement::Refuse(Refusal::Member(self.member));
        }
        if hello.group != self.group {
            return Judgement::Refuse(Refusal::Group(self.group));
        }
        match self.cluster() {
            Some(mine) if mine == hello.cluster => Judgement::LetIn,
            Some(mine) => Judgement::Refuse(Refusal::Cluster(mine)),
            None => Judgement::Adopt,
        }
    }
}

/// What to do with a peer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    LetIn,
    /// This node has no cluster yet: it takes on the peer's, then lets it in.
    Adopt,
    Refuse(Refusal),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consensus::wire::Purpose;

    fn me(cluster: Option<&str>) -> Arc<Me> {
        Me::new(
            MemberId(2),
            GroupId(0),
            cluster.map(|c| ClusterId(c.into())),
            false,
            String::new(),
            Box::new(|_| Box::pin(async { Ok(()) })),
        )
    }

    fn hello(cluster: &str, addressed: u64, group: u32) -> Hello {
        Hello {
            protocol: crate::consensus::handshake::PROTOCOL,
            sender: MemberId(1),
            cluster: ClusterId(cluster.into()),
            group: GroupId(group),
            addressed: MemberId(addressed),
            purpose: Purpose::Append,
            client_address: String::new(),
        }
    }

    #[test]
    fn only_the_addressed_member_of_the_same_cluster_and_group_lets_in() {
        let refuse = Judgement::Refuse;
        for (mine, hello, verdict) in [
            (Some("c"), hello("c", 2, 0), Judgement::LetIn),
            (
                Some("c"),
                hello("d", 2, 0),
                refuse(Refusal::Cluster(ClusterId("c".into()))),
            ),
            (
                Some("c"),
                hello("c", 3, 0),
                refuse(Refusal::Member(MemberId(2))),
            ),
            (
                Some("c"),
                hello("c", 2, 1),
                refuse(Refusal::Group(GroupId(0))),
            ),
            (None, hello("c", 2, 0), Judgement::Adopt),
            (None, hello("c", 3, 0), refuse(Refusal::Member(MemberId(2)))),
            (None, hello("c", 2, 1), refuse(Refusal::Group(GroupId(0)))),
        ] {
            assert_eq!(me(mine).judge(&hello), verdict, "{hello:?}");
        }
    }

    #[tokio::test]
    async fn a_cluster_is_adopted_once() {
        let me = me(None);
        assert!(me.adopt(&ClusterId("c".into())).await.unwrap());
        assert!(me.adopt(&ClusterId("c".into())).await.unwrap());
        assert!(!me.adopt(&ClusterId("d".into())).await.unwrap());
        assert_eq!(me.cluster(), Some(ClusterId("c".into())));
    }
}
