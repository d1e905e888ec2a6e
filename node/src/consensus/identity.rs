//! Who this node is: member id, group, and the cluster once there is one. The cluster is
//! adopted once, made durable before anyone is told, and never changes.

use std::{io, sync::Arc};

use arc_swap::ArcSwapOption;
use flower_api::{ClusterId, GroupId, MemberId};
use flower_store::sabotage::{Break, is_broken};
use tokio::sync::Mutex;

use super::{
    handshake::{Hello, Refusal},
    wire::Purpose,
};
use crate::env::Fut;

/// Makes the cluster id durable in the data directory.
pub type PersistCluster = Box<dyn Fn(ClusterId) -> Fut<'static, io::Result<()>> + Send + Sync>;

/// This node's identity.
pub struct Me {
    /// The data directory's life.
    pub member: MemberId,
    /// Its group.
    pub group: GroupId,
    /// `host:port` of its client API, as other members reach it.
    pub client_address: String,
    cluster: ArcSwapOption<ClusterId>,
    persist: PersistCluster,
    adopting: Mutex<()>,
}

impl Me {
    /// An identity read from the volume, or just minted.
    pub fn new(
        member: MemberId,
        group: GroupId,
        cluster: Option<ClusterId>,
        client_address: String,
        persist: PersistCluster,
    ) -> Arc<Self> {
        Arc::new(Self {
            member,
            group,
            client_address,
            cluster: ArcSwapOption::from_pointee(cluster),
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
        (self.persist)(cluster.clone()).await?;
        self.cluster.store(Some(Arc::new(cluster.clone())));
        tracing::info!(%cluster, member = %self.member, "joined a cluster");
        Ok(true)
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
