//! What the node tells of itself as it happens, to whoever counts. Nothing is decided by it.

use std::time::Duration;

/// Hears of events. Never blocks.
pub trait Probe: Send + Sync {
    /// The log was made durable once.
    fn log_flushed(&self, took: Duration);
    /// The state was made durable once.
    fn checkpointed(&self, took: Duration);
    /// Another leader than before was seen.
    fn leader_changed(&self);
    /// An image was delivered whole.
    fn image_sent(&self, bytes: u64, took: Duration);
    /// An image was received whole and installed.
    fn image_received(&self, bytes: u64, took: Duration);
}

/// Counts nothing.
pub struct NoProbe;

impl Probe for NoProbe {
    fn log_flushed(&self, _: Duration) {}
    fn checkpointed(&self, _: Duration) {}
    fn leader_changed(&self) {}
    fn image_sent(&self, _: u64, _: Duration) {}
    fn image_received(&self, _: u64, _: Duration) {}
}
