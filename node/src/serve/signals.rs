//! The two signals that ask a process to end.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::env::Fatal;

/// SIGTERM and SIGINT.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From now on neither ends the process by itself.
    pub(crate) fn new() -> Result<Self, Fatal> {
        let listen = |kind| {
            signal(kind).map_err(|e| Fatal::new(format!("signals cannot be listened to: {e}")))
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// Waits for one of them.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
