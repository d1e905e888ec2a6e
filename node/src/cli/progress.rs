//! A sign of life for whatever takes longer than a second, on a terminal only.

use std::{pin::pin, time::Duration};

use indicatif::ProgressBar;

/// Waits for `work`; after a second says what is being waited for.
pub(super) async fn showing<T>(what: &str, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    if let Ok(done) = tokio::time::timeout(Duration::from_secs(1), &mut work).await {
        return done;
    }
    // Draws to standard error, and only when that is a terminal.
    let bar = ProgressBar::new_spinner().with_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(120));
    let done = work.await;
    bar.finish_and_clear();
    done
}
