//! What a world did, as one hash: every frame, disk operation and lane job with its time. Two
//! runs of one seed must give the same. Beside it the last events, for people.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Events kept for the message of a failure.
const KEPT: usize = 400;

/// Shared by everything in one world.
#[derive(Clone, Default)]
pub struct Audit(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    hash: u64,
    counted: u64,
    events: VecDeque<String>,
    /// Everything that went into the hash, when that is wanted.
    trace: Option<Vec<(u64, String)>>,
}

/// Of a frame, so much is shown in a trace.
const SHOWN: usize = 600;

impl Audit {
    /// From now on keeps what goes into the hash, for [`Audit::take_trace`].
    pub fn trace(&self) {
        self.inner().trace = Some(Vec::new());
    }

    /// The hash after each step, and the step in words.
    pub fn take_trace(&self) -> Vec<(u64, String)> {
        self.inner().trace.take().unwrap_or_default()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something happened at `host` now.
    pub fn record(&self, kind: &str, host: &str, data: &[u8]) {
        let now = now().as_micros() as u64;
        let mut inner = self.inner();
        let mut hash = xxh3_64_with_seed(kind.as_bytes(), inner.hash);
        hash = xxh3_64_with_seed(host.as_bytes(), hash);
        hash = xxh3_64_with_seed(&now.to_le_bytes(), hash);
        inner.hash = xxh3_64_with_seed(data, hash);
        inner.counted += 1;
        let hash = inner.hash;
        if let Some(trace) = &mut inner.trace {
            let shown = String::from_utf8_lossy(&data[..data.len().min(SHOWN)]);
            let bytes = data.len();
            trace.push((
                hash,
                format!("{now} us, {kind} of {host}, {bytes} bytes: {shown:?}"),
            ));
        }
    }

    /// The hash so far, and how much went into it.
    pub fn hash(&self) -> (u64, u64) {
        let inner = self.inner();
        (inner.hash, inner.counted)
    }

    /// A line for people; part of the hash too.
    pub fn say(&self, line: impl Into<String>) {
        let line = line.into();
        self.record("event", "", line.as_bytes());
        self.note(line);
    }

    /// A line for people that is no part of the hash.
    pub fn note(&self, line: impl AsRef<str>) {
        let line = format!("{:>10.3} {}", now().as_secs_f64(), line.as_ref());
        let mut inner = self.inner();
        if inner.events.len() == KEPT {
            inner.events.pop_front();
        }
        inner.events.push_back(line);
    }

    /// The last lines, oldest first.
    pub fn last(&self, count: usize) -> Vec<String> {
        let inner = self.inner();
        let skip = inner.events.len().saturating_sub(count);
        inner.events.iter().skip(skip).cloned().collect()
    }
}

/// The world's time; zero outside of one.
pub fn now() -> Duration {
    turmoil::sim_elapsed().unwrap_or_else(crate::entropy::clock)
}
