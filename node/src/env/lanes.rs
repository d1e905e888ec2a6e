//! Lanes: the threads that may block. Jobs of one lane run one after another, in order.

use std::{any::Any, fmt};

/// Which thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LaneId {
    /// The one writer of log and vote.
    Log,
    /// The one writer of the state: apply, checkpoint, install.
    State,
    /// Reads and writes images.
    Image,
    /// Small files and other brief disk work that must not wait behind the writers.
    Files,
    /// A JavaScript worker.
    Worker(u32),
}

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log => f.write_str("log"),
            Self::State => f.write_str("state"),
            Self::Image => f.write_str("image"),
            Self::Files => f.write_str("files"),
            Self::Worker(n) => write!(f, "worker-{n}"),
        }
    }
}

/// The lane has been closed, or the job panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the thread '{0}' is gone or its job panicked")]
pub struct LaneGone(pub LaneId);

/// What a lane keeps between jobs: made and used on its thread only, so it need not be
/// `Send`. It is dropped when a job panics and when the lane is replaced.
#[derive(Default)]
pub struct LaneLocal(Option<Box<dyn Any>>);

impl LaneLocal {
    /// The kept value, made by `make` when there is none of this type.
    ///
    /// # Panics
    /// Never: the type was just checked.
    pub fn get_or_insert_with<T: 'static>(&mut self, make: impl FnOnce() -> T) -> &mut T {
        if !self.0.as_ref().is_some_and(|kept| kept.is::<T>()) {
            self.0 = Some(Box::new(make()));
        }
        self.0
            .as_mut()
            .and_then(|kept| kept.downcast_mut())
            .expect("just checked or made")
    }

    /// Forgets the kept value.
    pub fn clear(&mut self) {
        self.0 = None;
    }
}

/// Work for a lane.
pub type Job = Box<dyn FnOnce(&mut LaneLocal) + Send>;

/// The threads that may block. A lane starts with its first job.
pub trait Lanes: Send + Sync {
    /// Queues a job. The queue has no bound: its users have.
    ///
    /// # Errors
    /// `LaneGone` after `close`.
    fn submit(&self, lane: LaneId, job: Job) -> Result<(), LaneGone>;

    /// Abandons a thread that is stuck in a job: queued jobs go on, in order, on a new one.
    /// The abandoned thread ends when its job returns.
    fn replace(&self, stuck: LaneId);

    /// Threads abandoned so far whose job has not returned.
    fn abandoned(&self) -> usize;
}
