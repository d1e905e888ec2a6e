//! Drives the build of a deployment while this node leads: has the lane make page after page
//! until the bundle is active or has failed. What a page does is decided in the engine; where
//! the build stands is in the state, so that whoever leads next goes on from there.

use std::{sync::Arc, time::Duration};

use flower_api::wire::{Problem, code};
use flower_engine::{
    deploy::{self, PageEnd},
    derived::PAGE_ROWS,
    lane::{Reply, Work},
};
use tokio::sync::Notify;

use crate::{
    consensus::Consensus,
    env::{Env, Fatal},
    route::Router,
};

/// How long a page may wait for its place, and take.
const PAGE_LIMIT: Duration = Duration::from_secs(120);
/// Between two tries of a page that was refused for another reason than its size.
const RETRY: Duration = Duration::from_millis(250);
/// How much smaller the next page is after one that used up a budget.
const SMALLER: u64 = 8;
/// Rows of the first page.
const FIRST_ROWS: u64 = 250;
/// A page that took longer is followed by a smaller one, and only one that took less than half
/// of it by a larger one: mutations wait while a page is made.
const SHORT: Duration = Duration::from_millis(100);
/// Pages of one row that may use up a budget before the build is given up: time is one, and a
/// busy machine has little of it.
const HOPELESS: u32 = 3;

/// Drives builds. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Builder {
    work: Arc<Notify>,
}

impl Builder {
    /// Starts the task that drives builds, until the node stops.
    pub(crate) fn start(env: &Env, consensus: &Consensus, router: &Router) -> Self {
        let work = Arc::new(Notify::new());
        let task = Task {
            env: env.clone(),
            consensus: consensus.clone(),
            router: router.clone(),
            work: work.clone(),
            pace: Pace::default(),
        };
        env.tasks.spawn("builder", task.run());
        Self { work }
    }

    /// There is a build to drive.
    pub(crate) fn wake(&self) {
        self.work.notify_one();
    }
}

struct Task {
    env: Env,
    consensus: Consensus,
    router: Router,
    work: Arc<Notify>,
    pace: Pace,
}

impl Task {
    async fn run(mut self) -> Result<(), Fatal> {
        let mut leadership = self.consensus.leadership();
        let env = self.env.clone();
        loop {
            let leads = leadership.borrow_and_update().is_some();
            if leads && self.is_pending()? {
                tokio::select! {
                    biased;
                    () = env.tasks.stopping() => return Ok(()),
                    () = self.page() => {}
                }
                continue;
            }
            tokio::select! {
                biased;
                () = env.tasks.stopping() => return Ok(()),
                changed = leadership.changed() => if changed.is_err() {
                    env.tasks.stopping().await;
                    return Ok(());
                },
                () = self.work.notified() => {}
            }
        }
    }

    fn is_pending(&self) -> Result<bool, Fatal> {
        let pending = deploy::pending(&*self.consensus.view());
        let pending = pending.map_err(|error| Fatal::new(error.to_string()))?;
        Ok(pending.is_some())
    }

    /// Has one page made, and learns from what became of it.
    async fn page(&mut self) {
        let begun = self.env.clock.mono();
        let deadline = begun + PAGE_LIMIT;
        match self.router.lead(self.pace.work(), deadline).await {
            Ok(Reply::Built(end)) => {
                self.pace.made(self.env.clock.mono() - begun);
                match end {
                    Some(PageEnd::Active) => tracing::info!("the deployment is built and active"),
                    Some(PageEnd::Failed(why)) => tracing::warn!(why, "the build failed"),
                    Some(PageEnd::Going) => return,
                    None => {}
                }
                self.pace = Pace::default();
            }
            Ok(other) => tracing::error!(?other, "the lane gave another answer than a page's"),
            Err(problem) if is_budget(&problem) => {
                tracing::debug!(%problem, "a page of the build was too large");
                self.pace.too_large(&problem);
            }
            Err(problem) => {
                tracing::debug!(%problem, "a page of the build is tried again");
                self.env.sleep(RETRY).await;
            }
        }
    }
}

/// Such a problem may be one of the page's size: a smaller page may do.
fn is_budget(problem: &Problem) -> bool {
    problem.code == code::BUDGET
}

/// How large pages are: what the last ones could bear.
#[derive(Debug, PartialEq, Eq)]
struct Pace {
    rows: u64,
    /// Pages of one row, one after the other, that used up a budget.
    stuck: u32,
    /// Why there is no use in going on.
    hopeless: Option<String>,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            rows: FIRST_ROWS,
            stuck: 0,
            hopeless: None,
        }
    }
}

impl Pace {
    fn work(&self) -> Work {
        Work::Build {
            rows: self.rows,
            hopeless: self.hopeless.clone(),
        }
    }

    fn made(&mut self, took: Duration) {
        self.stuck = 0;
        if took > SHORT {
            self.rows = (self.rows / 2).max(1);
        } else if took < SHORT / 2 {
            self.rows = (self.rows * 2).min(PAGE_ROWS);
        }
    }

    fn too_large(&mut self, problem: &Problem) {
        if self.rows > 1 {
            self.rows = (self.rows / SMALLER).max(1);
            return;
        }
        self.stuck += 1;
        if self.stuck >= HOPELESS {
            let setting = problem.setting.as_ref();
            let setting = setting.map_or(String::new(), |name| format!("; {name} allows more"));
            let why = format!(
                "a single row is too much to build: {}{setting}",
                problem.detail
            );
            self.hopeless = Some(why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_become_as_large_as_they_may_be() {
        let over = Problem::new(422, code::BUDGET, "Too much", "it read too much")
            .setting("FLOWER_LIMIT_BUILD_ROWS_READ");
        let mut pace = Pace::default();
        for rows in [FIRST_ROWS, 31, 3, 1] {
            assert_eq!((pace.rows, &pace.hopeless), (rows, &None));
            pace.too_large(&over);
        }
        pace.made(SHORT / 4);
        assert_eq!((pace.rows, pace.stuck), (2, 0));
        (0..4).for_each(|_| pace.too_large(&over));
        let why = pace.hopeless.clone().unwrap();
        let expected = "it read too much; FLOWER_LIMIT_BUILD_ROWS_READ allows more";
        assert!(why.ends_with(expected), "{why}");
        (0..40).for_each(|_| pace.made(SHORT / 4));
        assert_eq!(pace.rows, PAGE_ROWS);
        pace.made(SHORT);
        assert_eq!(pace.rows, PAGE_ROWS);
        pace.made(SHORT * 2);
        assert_eq!(pace.rows, PAGE_ROWS / 2);
        (0..40).for_each(|_| pace.made(SHORT * 2));
        assert_eq!(pace.rows, 1);
    }
}
