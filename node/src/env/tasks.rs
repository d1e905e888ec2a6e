//! Tasks, and the two ways in which a node ends: it is asked to stop, or something that it
//! cannot do without has failed (`Fatal`). The first fatal error is kept.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The node cannot go on: the process ends, and a restart goes on from the disk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Fatal(pub Arc<str>);

impl Fatal {
    /// For people: what happened, to what, what to do.
    pub fn new(why: impl Into<Arc<str>>) -> Self {
        Self(why.into())
    }
}

/// Spawns tasks and remembers why the node must end. Cheap to clone.
#[derive(Clone)]
pub struct Tasks {
    fatal: Arc<watch::Sender<Option<Fatal>>>,
    stop: CancellationToken,
    tracker: TaskTracker,
}

impl Default for Tasks {
    fn default() -> Self {
        Self::new()
    }
}

impl Tasks {
    /// No tasks yet.
    pub fn new() -> Self {
        Self {
            fatal: Arc::new(watch::Sender::new(None)),
            stop: CancellationToken::new(),
            tracker: TaskTracker::new(),
        }
    }

    /// Spawns a task that lives as long as the node. An error, a panic, or an end before
    /// the node was asked to stop is fatal.
    pub fn spawn(
        &self,
        role: &'static str,
        future: impl Future<Output = Result<(), Fatal>> + Send + 'static,
    ) {
        let tasks = self.clone();
        self.tracker.spawn(async move {
            match AssertUnwindSafe(future).catch_unwind().await {
                Ok(Ok(())) if tasks.stop.is_cancelled() => {}
                Ok(Ok(())) => tasks.fail(Fatal::new(format!("task '{role}' ended unasked"))),
                Ok(Err(fatal)) => tasks.fail(fatal),
                Err(_) => tasks.fail(Fatal::new(format!("task '{role}' panicked"))),
            }
        });
    }

    /// Spawns a task that may end at any time (one connection, one request). A panic is
    /// fatal.
    pub fn spawn_brief(
        &self,
        role: &'static str,
        future: impl Future<Output = ()> + Send + 'static,
    ) {
        let tasks = self.clone();
        self.tracker.spawn(async move {
            if AssertUnwindSafe(future).catch_unwind().await.is_err() {
                tasks.fail(Fatal::new(format!("task '{role}' panicked")));
            }
        });
    }

    /// The node cannot go on. Only the first reason is kept.
    pub fn fail(&self, why: Fatal) {
        self.fatal.send_if_modified(|kept| {
            if kept.is_some() {
                return false;
            }
            tracing::error!(reason = %why, "the node cannot go on");
            *kept = Some(why);
            true
        });
    }

    /// Resolves with the first fatal error; never when there is none.
    pub async fn fatal(&self) -> Fatal {
        let mut seen = self.fatal.subscribe();
        match seen.wait_for(Option::is_some).await {
            Ok(fatal) => fatal.clone().expect("waited for it"),
            // The sender lives in `self`.
            Err(_) => std::future::pending().await,
        }
    }

    /// The first fatal error, if there is one.
    pub fn failure(&self) -> Option<Fatal> {
        self.fatal.borrow().clone()
    }

    /// Asks every task to end.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Whether `stop` was called.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Resolves when the node was asked to stop.
    pub async fn stopping(&self) {
        self.stop.cancelled().await;
    }

    /// Resolves when `stop` was called and every task has ended.
    pub async fn ended(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_end_unasked_is_fatal_and_the_first_reason_is_kept() {
        let tasks = Tasks::new();
        tasks.spawn("early", async { Ok(()) });
        assert_eq!(
            tasks.fatal().await.to_string(),
            "task 'early' ended unasked"
        );
        tasks.fail(Fatal::new("later"));
        assert_eq!(
            tasks.fatal().await.to_string(),
            "task 'early' ended unasked"
        );
    }

    #[tokio::test]
    async fn an_end_when_asked_is_none() {
        let tasks = Tasks::new();
        let inner = tasks.clone();
        tasks.spawn("steady", async move {
            inner.stopping().await;
            Ok(())
        });
        tasks.stop();
        tasks.ended().await;
        assert_eq!(tasks.failure(), None);
    }

    #[tokio::test]
    async fn a_panic_is_fatal() {
        let tasks = Tasks::new();
        tasks.spawn_brief("brief", async { panic!("on purpose") });
        assert_eq!(tasks.fatal().await.to_string(), "task 'brief' panicked");
    }
}
