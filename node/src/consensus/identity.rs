//! Who this node is: member id, group, the cluster once there is one, the recovery that the
//! group has been through, and whether it has been in a configuration. Each is learned once,
//! made durable before anyone is told, and never changes.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwapOption;
use flower_api::{ClusterId, GroupId, MemberId, report::Recovery};
use flower_store::sabotage::{Break, is_broken};
use tokio::sync::Mutex;

use super::{
    handshake::{Hello, Refusal},
    wire::Purpose,
};
use crate::env::Fut;

/// What is to be made durable in the data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// The cluster, and the recovery that it has been through.
    Adopted(ClusterId, Option<Recovery>),
    /// It has been in a configuration.
    Admitted,
    /// The group goes on without this data.
    Outlived(Recovery),
}

/// Makes a note durable in the data directory.
pub type Persist = Box<dyn Fn(Note) -> Fut<'static, io::Result<()>> + Send + Sync>;

/// The cluster, as of a recovery.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Life {
    cluster: ClusterId,
    recovery: Option<Recovery>,
}

/// This node's identity.
pub struct Me {
    /// The data directory's life.
    pub member: MemberId,
    /// Its group.
    pub group: GroupId,
    /// `host:port` of its client API, as other members reach it.
    pub client_address: String,
    life: ArcSwapOption<Life>,
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
        recovery: Option<Recovery>,
        admitted: bool,
        client_address: String,
        persist: Persist,
    ) -> Arc<Self> {
        let life = cluster.map(|cluster| Life { cluster, recovery });
        Arc::new(Self {
            member,
            group,
            client_address,
            life: ArcSwapOption::from_pointee(life),
            admitted: AtomicBool::new(admitted),
            persist,
            adopting: Mutex::new(()),
        })
    }

    /// The cluster, once there is one.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.life.load().as_deref().map(|life| life.cluster.clone())
    }

    /// The last recovery that the group has been through, as this data knows it.
    pub fn recovery(&self) -> Option<Recovery> {
        self.life.load().as_deref().and_then(|life| life.recovery)
    }

    /// Takes on a cluster for good: durable when this returns. True when it is the node's
    /// cluster afterwards.
    ///
    /// # Errors
    /// When it cannot be made durable.
    pub(crate) async fn adopt(
        &self,
        cluster: &ClusterId,
        recovery: Option<Recovery>,
    ) -> io::Result<bool> {
        let _alone = self.adopting.lock().await;
        if let Some(mine) = self.cluster() {
            return Ok(mine == *cluster);
        }
        (self.persist)(Note::Adopted(cluster.clone(), recovery)).await?;
        let cluster = cluster.clone();
        self.life.store(Some(Arc::new(Life {
            cluster: cluster.clone(),
            recovery,
        })));
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
            (self.persist)(Note::Admitted).await?;
            self.admitted.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The group goes on without this data: durable when this returns.
    ///
    /// # Errors
    /// When it cannot be made durable.
    pub(crate) async fn outlived(&self, by: Recovery) -> io::Result<()> {
        let _alone = self.adopting.lock().await;
        (self.persist)(Note::Outlived(by)).await
    }

    /// Whether a peer that has proved the secret may talk to this node; a pure decision but
    /// for the cluster, which the caller adopts.
    pub(crate) fn judge(&self, hello: &Hello) -> Judgement {
        let let_in = is_broken(Break::WrongMemberAccepted)
            || hello.purpose == Purpose::Control && is_broken(Break::WipedNodeVotes);
        let mine = self.cluster().filter(|_| hello.group == self.group);
        if mine.is_some_and(|mine| mine == hello.cluster) && hello.recovery != self.recovery() {
            return other_life(self.recovery(), hello.recovery);
        }
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

/// Two members of one group that know different recoveries. Two that were made side by side
/// (which must not be) do not end each other: people have to choose.
fn other_life(ours: Option<Recovery>, theirs: Option<Recovery>) -> Judgement {
    match theirs.filter(|theirs| theirs.is_later(ours)) {
        Some(theirs) => Judgement::Outlived(theirs),
        None => Judgement::Refuse(Refusal::OtherLife(ours)),
    }
}

/// What to do with a peer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    LetIn,
    /// This node has no cluster yet: it takes on the peer's, then lets it in.
    Adopt,
    Refuse(Refusal),
    /// The group was recovered without this node's data, which must take no part any more.
    Outlived(Recovery),
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
            None,
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
            recovery: None,
        }
    }

    fn recovery(number: u32, by: u64) -> Recovery {
        Recovery {
            number,
            by: MemberId(by),
        }
    }

    #[tokio::test]
    async fn members_of_another_life_of_the_group_are_kept_apart() {
        let knows = async |mine: Option<Recovery>| {
            let me = me(None);
            assert!(me.adopt(&ClusterId("c".into()), mine).await.unwrap());
            me
        };
        let (first, second) = (Some(recovery(1, 7)), Some(recovery(2, 7)));
        let beside = Some(recovery(1, 8));
        let other = |ours| Judgement::Refuse(Refusal::OtherLife(ours));
        for (mine, theirs, verdict) in [
            (first, first, Judgement::LetIn),
            (None, first, Judgement::Outlived(recovery(1, 7))),
            (first, second, Judgement::Outlived(recovery(2, 7))),
            (first, None, other(first)),
            (second, first, other(second)),
            (first, beside, other(first)),
        ] {
            // Whomever it addresses: the members that were given up have the ids of before.
            for addressed in [2, 3] {
                if addressed == 3 && verdict == Judgement::LetIn {
                    continue;
                }
                let hello = Hello {
                    recovery: theirs,
                    ..hello("c", addressed, 0)
                };
                assert_eq!(
                    knows(mine).await.judge(&hello),
                    verdict,
                    "{mine:?} {theirs:?}"
                );
            }
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
        assert!(me.adopt(&ClusterId("c".into()), None).await.unwrap());
        assert!(me.adopt(&ClusterId("c".into()), None).await.unwrap());
        assert!(!me.adopt(&ClusterId("d".into()), None).await.unwrap());
        assert_eq!(me.cluster(), Some(ClusterId("c".into())));
    }
}
