//! Readiness is this node's own verdict: in the committed configuration, recovered, and not
//! far behind what it heard is committed. Never whether the cluster is healthy. Liveness: the
//! core answers.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use flower_api::{limits::READY_LAG_MS, report::Lifecycle};

use super::{Front, Stage};
use crate::{
    consensus::ConsensusReport,
    env::{Fatal, Mono},
};

/// How often the verdict is made.
const EVERY: Duration = Duration::from_millis(200);
/// The core answers within this, or it is not alive.
const ALIVE_LIMIT: Duration = Duration::from_secs(5);

/// Whether the node is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is.
    Ready,
    /// It is not, and why.
    NotReady(String),
}

impl Verdict {
    /// Why it is not ready.
    pub fn reason(&self) -> Option<String> {
        match self {
            Self::Ready => None,
            Self::NotReady(why) => Some(why.clone()),
        }
    }
}

/// Whether two verdicts differ in more than a number: how far a node is behind changes every
/// second.
fn differ(one: &Verdict, other: &Verdict) -> bool {
    let words = |verdict: &Verdict| {
        let why = verdict.reason()?;
        Some(why.replace(|c: char| c.is_ascii_digit(), ""))
    };
    words(one) != words(other)
}

/// How long ago the node heard of commits that it has not applied.
#[derive(Debug, Default)]
pub struct Lag {
    heard: VecDeque<(Mono, u64)>,
}

impl Lag {
    /// Notes what is committed and applied now; returns the age of the oldest commit that is
    /// not applied.
    pub fn note(&mut self, now: Mono, committed: u64, applied: u64) -> Duration {
        if self.heard.back().is_none_or(|(_, last)| committed > *last) {
            self.heard.push_back((now, committed));
        }
        while self.heard.front().is_some_and(|(_, c)| *c <= applied) {
            self.heard.pop_front();
        }
        // Bounded: what lags for long is told by its oldest samples.
        self.heard.truncate(1_024);
        self.heard
            .front()
            .map_or(Duration::ZERO, |(at, _)| now - *at)
    }
}

/// The verdict of a node that serves. One that hears no leader keeps its last one, or all
/// nodes would leave the Service at once.
pub(super) fn judge(
    consensus: &ConsensusReport,
    lag: Duration,
    leaving: bool,
    last: &Verdict,
) -> Verdict {
    let not = |why: &str| Verdict::NotReady(why.to_owned());
    if leaving {
        return not("it is about to stop");
    }
    if !consensus.recovered {
        return not("it has not applied its log again yet");
    }
    match consensus.lifecycle {
        Lifecycle::Member => {}
        Lifecycle::Uninitialized => return not("it belongs to no cluster yet"),
        Lifecycle::Joining => return not("it is joining the group"),
        Lifecycle::Removed => return not("it was removed from the group"),
        Lifecycle::Broken => return not("its data cannot be read"),
    }
    if consensus.leader.is_none() {
        return match last {
            Verdict::Ready => Verdict::Ready,
            Verdict::NotReady(_) => not("it has heard of no leader yet"),
        };
    }
    if lag > Duration::from_millis(READY_LAG_MS) {
        return Verdict::NotReady(format!("it is {} s behind", lag.as_secs()));
    }
    Verdict::Ready
}

impl Front {
    /// Makes the verdict anew until the node stops.
    pub(super) async fn judge_readiness(self) -> Result<(), Fatal> {
        let inner = &self.0;
        let mut lag = Lag::default();
        loop {
            tokio::select! {
                () = inner.env.sleep(EVERY) => {}
                () = inner.env.tasks.stopping() => return Ok(()),
            }
            self.judge_now(&mut lag);
        }
    }

    fn judge_now(&self, lag: &mut Lag) {
        let inner = &self.0;
        let leaving = inner.leaving.load(std::sync::atomic::Ordering::Relaxed);
        let last = inner.verdict.load_full();
        let next = match &**inner.stage.load() {
            Stage::Opening => Verdict::NotReady("opening its data".into()),
            Stage::Broken(_) => Verdict::NotReady("its data cannot be read".into()),
            Stage::Running(service) => {
                let report = service.consensus.report();
                let now = inner.env.clock.mono();
                let at = report.positions;
                let behind = lag.note(now, at.committed, at.applied);
                *inner.lag_seconds.lock() = Some(behind.as_secs_f64());
                judge(&report, behind, leaving, &last)
            }
        };
        if differ(&next, &last) {
            tracing::info!(verdict = ?next, "readiness");
        }
        if next != *last {
            inner.verdict.store(Arc::new(next));
        }
    }

    /// The last verdict.
    pub fn verdict(&self) -> Verdict {
        Verdict::clone(&self.0.verdict.load())
    }

    /// Whether the core answers; a node that opens, repairs or installs is alive.
    pub(super) async fn is_alive(&self) -> Result<(), String> {
        if let Some(fatal) = self.0.env.tasks.failure() {
            return Err(fatal.to_string());
        }
        let Some(service) = self.running() else {
            return Ok(());
        };
        let asked = service.router.writer().in_flight(bytes::Bytes::new());
        match self.0.env.within(ALIVE_LIMIT, asked).await {
            Some(_) => Ok(()),
            None => Err(format!("the core has not answered within {ALIVE_LIMIT:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use flower_api::{
        MemberId,
        report::{Positions, Role},
    };

    use super::*;

    fn report(lifecycle: Lifecycle, recovered: bool, leader: bool) -> ConsensusReport {
        ConsensusReport {
            lifecycle,
            role: Role::Follower,
            term: 1,
            leader: leader.then_some(MemberId(1)),
            quorum_lease: false,
            configuration: None,
            positions: Positions::default(),
            followers: Vec::new(),
            images_received: 0,
            images_sent: 0,
            replayed_entries: 0,
            full_repairs: 0,
            state_checksum: String::new(),
            recovered,
            leader_changes: 0,
        }
    }

    #[test]
    fn the_verdict_is_local_and_kept_while_nobody_leads() {
        use Lifecycle::{Joining, Member, Removed, Uninitialized};
        let none = || Verdict::NotReady("before".into());
        let second = Duration::from_secs(1);
        for (lifecycle, recovered, leader, lag, leaving, last, ready) in [
            (Member, true, true, 0, false, none(), true),
            (Member, true, true, 5, false, none(), true),
            (Member, true, true, 6, false, Verdict::Ready, false),
            (Member, false, true, 0, false, Verdict::Ready, false),
            (Member, true, true, 0, true, Verdict::Ready, false),
            (Member, true, false, 6, false, Verdict::Ready, true),
            (Member, true, false, 0, false, none(), false),
            (Joining, true, true, 0, false, Verdict::Ready, false),
            (Removed, true, false, 0, false, Verdict::Ready, false),
            (Uninitialized, true, false, 0, false, none(), false),
        ] {
            let verdict = judge(
                &report(lifecycle, recovered, leader),
                second * lag,
                leaving,
                &last,
            );
            assert_eq!(
                verdict == Verdict::Ready,
                ready,
                "{lifecycle:?} {verdict:?}"
            );
        }
    }

    #[test]
    fn a_number_that_grows_is_no_other_verdict() {
        let behind = |n| Verdict::NotReady(format!("it is {n} s behind"));
        assert!(!differ(&behind(6), &behind(10)));
        assert!(!differ(&Verdict::Ready, &Verdict::Ready));
        assert!(differ(&behind(6), &Verdict::Ready));
        let joining = Verdict::NotReady("it is joining the group".into());
        assert!(differ(&behind(6), &joining));
    }

    #[test]
    fn lag_is_the_age_of_the_oldest_commit_that_is_not_applied() {
        let at = |s| Mono(Duration::from_secs(s));
        let mut lag = Lag::default();
        assert_eq!(lag.note(at(1), 10, 10), Duration::ZERO);
        assert_eq!(lag.note(at(2), 20, 10), Duration::ZERO);
        assert_eq!(lag.note(at(4), 30, 15), Duration::from_secs(2));
        assert_eq!(
            lag.note(at(5), 30, 20),
            Duration::from_secs(1),
            "the second is open since 4"
        );
        assert_eq!(lag.note(at(9), 30, 30), Duration::ZERO);
    }
}
