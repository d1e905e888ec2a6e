//! Free space of the volume, looked at once a second off the tokio workers. Below the reserve
//! a follower takes no more entries and the leader no more mutations; reads go on.

use std::time::Duration;

use flower_api::{limits, report::Disk};
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

    /// Why no more may be written; `None` while there is room, or when nobody knows.
    pub(crate) fn too_little(&self) -> Option<String> {
        let disk = self.disk();
        is_too_little(&disk).then(|| {
            format!(
                "the volume has {} MiB free, less than the reserve of {} MiB; enlarge it or free space on it",
                disk.free_bytes >> 20,
                disk.reserve_bytes >> 20
            )
        })
    }
}

fn is_too_little(disk: &Disk) -> bool {
    disk.capacity_bytes > 0 && disk.free_bytes < disk.reserve_bytes
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
        assert!(!is_too_little(&disk(0, 0)));
        assert!(!is_too_little(&disk(limits::GIB, limits::GIB / 2)));
        assert!(is_too_little(&disk(limits::GIB, 63 * limits::MIB)));
    }
}
