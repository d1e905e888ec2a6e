//! Tells when the text of a file has changed. Watches its folder, because editors replace
//! files, and looks every second too, because some file systems tell nothing.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;

/// Editors write in several steps.
const SETTLE: Duration = Duration::from_millis(60);
const LOOK: Duration = Duration::from_secs(1);

pub(super) struct Changes {
    path: PathBuf,
    seen: Option<Vec<u8>>,
    events: mpsc::Receiver<()>,
    _watcher: Option<RecommendedWatcher>,
}

impl Changes {
    /// Changes of `path` from now on.
    pub(super) fn of(path: &Path) -> Result<Self, String> {
        let path = path
            .canonicalize()
            .map_err(|e| format!("{}: {e}", path.display()))?;
        let (tell, events) = mpsc::channel(1);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Reading is an event too: looking at the file must not be a reason to look again.
            if event.is_ok_and(|event| event.kind.is_access()) {
                return;
            }
            // Full: somebody will look anyway.
            let _ = tell.try_send(());
        });
        let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
        let watcher = watcher.and_then(|mut watcher| {
            watcher.watch(&folder, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        let seen = std::fs::read(&path).ok();
        Ok(Self {
            path,
            seen,
            events,
            _watcher: watcher.ok(),
        })
    }

    /// Waits for another text than the one seen last.
    pub(super) async fn next(&mut self) -> Result<(), String> {
        loop {
            // A watcher that ended leaves the looking.
            let event = tokio::time::timeout(LOOK, self.events.recv()).await;
            if matches!(event, Ok(None)) {
                tokio::time::sleep(LOOK).await;
            }
            let before = std::fs::read(&self.path).ok();
            if before.is_none() || before == self.seen {
                continue;
            }
            tokio::time::sleep(SETTLE).await;
            let text = std::fs::read(&self.path).ok();
            if text.is_some() && text == before {
                self.seen = text;
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_is_written_or_replaced_has_changed() {
        let dir = tempfile::tempdir().unwrap();
        let app = dir.path().join("app.js");
        std::fs::write(&app, "1").unwrap();
        let mut changes = Changes::of(&app).unwrap();
        std::fs::write(&app, "22").unwrap();
        changes.next().await.unwrap();
        let next = dir.path().join("app.js.tmp");
        std::fs::write(&next, "333").unwrap();
        std::fs::rename(&next, &app).unwrap();
        changes.next().await.unwrap();
        assert_eq!(changes.seen.as_deref(), Some(&b"333"[..]));
    }

    #[tokio::test]
    async fn reading_the_file_is_no_reason_to_look_again() {
        let dir = tempfile::tempdir().unwrap();
        let app = dir.path().join("app.js");
        std::fs::write(&app, "1").unwrap();
        let mut changes = Changes::of(&app).unwrap();
        for _ in 0..20 {
            std::fs::read(&app).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(changes.events.try_recv().is_err());
        std::fs::write(&app, "22").unwrap();
        assert!(changes.events.recv().await.is_some());
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        assert!(
            Changes::of(Path::new("/no/such/app.js"))
                .err()
                .unwrap()
                .contains("/no/such/app.js")
        );
    }
}
