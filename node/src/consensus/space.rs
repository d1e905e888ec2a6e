//! Free space of the volume, looked at once a second off the tokio workers. The leader takes
//! no more mutations when its volume, or those of a majority, have less free than the reserve;
//! trims and reads go on. Below half of it a follower takes no entries at all.

use std::time::Duration;

use std::collections::BTreeSet;

use flower_api::{MemberId, limits, report::Disk};
use tokio::sync::watch;

use crate::env::{Env, Fatal, LaneId};

const EVERY: Duration = Duration::from_secs(1);

/// The last look; cheap to clone.
#[derive(Clone)]
pub(crate) struct Space(watch::Receiver<Disk>);

impl Space {
    /// Looks once, then goes on looking in a task until the node stops.
    pub(crate) async fn watch(env: &Env) -> Self {
        let (send, seen) = watch::channel(look(env).await.unwrap_or_default());
        let task_env = env.clone();
        env.tasks.spawn("space", async move {
            keep_looking(&task_env, &send).await;
            Ok::<(), Fatal>(())
        });
        Self(seen)
    }

    pub(crate) fn disk(&self) -> Disk {
        *self.0.borrow()
    }

    /// Whether less is free than the reserve; false when nobody knows.
    pub(crate) fn is_low(&self) -> bool {
        is_low(&self.disk())
    }

    /// Why a follower takes no entries; `None` while there is room, or when nobody knows.
    pub(crate) fn refuses_entries(&self) -> Option<String> {
        let disk = self.disk();
        refuses_entries(&disk).then(|| {
            format!(
                "the volume has {} MiB free, less than half of the reserve of {} MiB; enlarge it or free space on it",
                disk.free_bytes >> 20,
                disk.reserve_bytes >> 20
            )
        })
    }
}

fn is_low(disk: &Disk) -> bool {
    disk.capacity_bytes > 0 && disk.free_bytes < disk.reserve_bytes
}

/// The other half is for what is on its way when the leader stops taking mutations, and for
/// trims, which make room.
fn refuses_entries(disk: &Disk) -> bool {
    is_low(disk) && disk.free_bytes < disk.reserve_bytes / 2
}

/// Members without room for mutations: the leader, or a majority of the voters.
pub(crate) fn without_room(
    leader: MemberId,
    voters: &BTreeSet<MemberId>,
    low: &BTreeSet<MemberId>,
) -> BTreeSet<MemberId> {
    let low: BTreeSet<MemberId> = voters.intersection(low).copied().collect();
    if low.contains(&leader) || low.len() * 2 > voters.len() {
        low
    } else {
        BTreeSet::new()
    }
}

async fn keep_looking(env: &Env, send: &watch::Sender<Disk>) {
    loop {
        tokio::select! {
            () = env.sleep(EVERY) => {}
            () = env.tasks.stopping() => return,
        }
        if let Some(disk) = look(env).await {
            send.send_replace(disk);
        }
    }
}

async fn look(env: &Env) -> Option<Disk> {
    let disk = env.disk.clone();
    match env.run_on(LaneId::Files, move || disk.space()).await {
        Ok(Ok(space)) => Some(Disk {
            capacity_bytes: space.capacity,
            free_bytes: space.free,
            reserve_bytes: limits::reserve(space.capacity),
        }),
        Ok(Err(error)) => {
            tracing::warn!(%error, "the free space cannot be read");
            None
        }
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_known_volume_can_have_too_little() {
        let disk = |capacity_bytes, free_bytes| Disk {
            capacity_bytes,
            free_bytes,
            reserve_bytes: limits::reserve(capacity_bytes),
        };
        assert!(!is_low(&disk(0, 0)) && !refuses_entries(&disk(0, 0)));
        assert!(!is_low(&disk(limits::GIB, limits::GIB / 2)));
        let low = disk(limits::GIB, 50 * limits::MIB);
        assert!(is_low(&low) && !refuses_entries(&low));
        assert!(refuses_entries(&disk(limits::GIB, 25 * limits::MIB)));
    }

    #[test]
    fn mutations_need_room_at_the_leader_and_at_a_majority() {
        let set = |ids: &[u64]| ids.iter().map(|id| MemberId(*id)).collect();
        for (voters, low, expected) in [
            (&[1, 2, 3][..], &[][..], &[][..]),
            (&[1, 2, 3], &[2], &[]),
            (&[1, 2, 3], &[2, 9], &[]),
            (&[1, 2, 3], &[2, 3], &[2, 3]),
            (&[1, 2, 3], &[1], &[1]),
            (&[1, 2, 3, 4, 5], &[2, 3], &[]),
            (&[1], &[1], &[1]),
        ] {
            let got = without_room(MemberId(1), &set(voters), &set(low));
            assert_eq!(got, set(expected), "{voters:?} {low:?}");
        }
    }
}
