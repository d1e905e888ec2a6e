//! What is known of queries, and what is under way for them: one structure behind one lock,
//! so that cache, hub and evaluations never disagree. Pure but for the channels that it keeps.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use flower_api::{Revision, wire::Problem};
use tokio::sync::watch;

use super::{
    Answered, News, Teller, Wakers,
    cache::{Cache, Found},
    key::{Key, Outcome},
};
use crate::{
    recent::Ring,
    watch::hub::{Hub, Number},
};

/// Functions remembered as volatile; an application that has more begins anew.
const VOLATILE: usize = 10_000;

/// Tells of an evaluation's end.
pub(super) type Landing = watch::Receiver<Option<Result<Landed, Box<Problem>>>>;

/// An evaluation that has ended.
#[derive(Debug, Clone)]
pub struct Landed {
    /// Position of its view.
    pub at: u64,
    /// What it came to.
    pub answered: Answered,
}

impl Landed {
    /// Whether a call that came meanwhile, and needs a state at `at` or later, may have it.
    pub(super) fn serves(&self, at: u64) -> bool {
        self.at >= at && !self.answered.outcome.is_volatile()
    }
}

/// The board.
pub struct Board {
    cache: Cache,
    /// What is watched.
    pub hub: Hub,
    /// Evaluations that calls may share.
    flights: BTreeMap<Key, Flight>,
    /// Evaluations for watches, by the position of their view.
    queue: BTreeMap<(Key, u64), Landing>,
    /// Functions into whose results the time or a random number went.
    volatile: BTreeSet<Arc<str>>,
    last_flight: u64,
    wakers: Wakers,
}

struct Flight {
    number: u64,
    at: u64,
    tell: Teller,
}

/// What a call does next.
pub(super) enum Next {
    /// It is known.
    Known(Arc<Outcome>),
    /// A later state is: take a newer view.
    Renew,
    /// Evaluate for this call alone.
    Alone,
    /// Wait for an evaluation under way.
    Join(Landing),
    /// Evaluate for all who come meanwhile, under this number, and wait for it.
    Fly(u64, Landing),
}

impl Board {
    pub(super) fn new(cache_bytes: u64, hub: Hub) -> Self {
        Self {
            cache: Cache::new(cache_bytes),
            hub,
            flights: BTreeMap::new(),
            queue: BTreeMap::new(),
            volatile: BTreeSet::new(),
            last_flight: 0,
            wakers: Wakers::new(),
        }
    }

    /// Counts of the cache.
    pub fn cache_stats(&self) -> super::CacheStats {
        self.cache.stats()
    }

    /// What a call does that needs the outcome at `at` or later.
    pub(super) fn next(&mut self, key: &Key, deployment: &str, at: u64, ring: &Ring) -> Next {
        if self.volatile.contains(&key.name) {
            return Next::Alone;
        }
        match self.cache.find(key, deployment, at, ring) {
            Found::Valid(outcome, _) if !outcome.is_logged() => {
                self.cache.count(true);
                return Next::Known(outcome);
            }
            Found::Newer => return Next::Renew,
            Found::Valid(..) | Found::Nothing => {}
        }
        if let Some(flight) = self.flights.get(key) {
            return Next::Join(flight.tell.subscribe());
        }
        self.cache.count(false);
        match self.take_off(key, at) {
            Some(number) => Next::Fly(number, self.flights[key].tell.subscribe()),
            None => Next::Alone,
        }
    }

    /// Calls that come from now on share an evaluation at `at`, unless one is under way.
    pub(super) fn take_off(&mut self, key: &Key, at: u64) -> Option<u64> {
        if self.flights.contains_key(key) {
            return None;
        }
        self.last_flight += 1;
        let flight = Flight {
            number: self.last_flight,
            at,
            tell: watch::Sender::new(None),
        };
        self.flights.insert(key.clone(), flight);
        Some(self.last_flight)
    }

    /// A shared evaluation has ended.
    pub(super) fn land(&mut self, key: &Key, number: u64, landed: Result<Landed, Box<Problem>>) {
        let ended = self.flights.get(key).is_some_and(|f| f.number == number);
        if ended && let Some(flight) = self.flights.remove(key) {
            debug_assert!(landed.as_ref().map_or(true, |l| l.at == flight.at));
            flight.tell.send_replace(Some(landed));
        }
    }

    /// The evaluation for watches at `at`; or, when there is none, what tells of the one that
    /// the caller begins.
    pub(super) fn queued(&mut self, key: &Key, at: u64) -> Result<Landing, (Teller, Landing)> {
        let place = (key.clone(), at);
        if let Some(landing) = self.queue.get(&place) {
            return Ok(landing.clone());
        }
        let (tell, landing) = watch::channel(None);
        self.queue.insert(place, landing.clone());
        Err((tell, landing))
    }

    /// An evaluation for watches has ended.
    pub(super) fn dequeue(&mut self, key: &Key, at: u64) {
        self.queue.remove(&(key.clone(), at));
    }

    /// Evaluations for watches that wait or run.
    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// The outcome at exactly `at`, for a watch.
    pub(super) fn known(
        &mut self,
        key: &Key,
        deployment: &str,
        at: u64,
        ring: &Ring,
        now_ms: u64,
    ) -> Option<Arc<Outcome>> {
        let Found::Valid(outcome, holds) = self.cache.find(key, deployment, at, ring) else {
            return None;
        };
        self.hub.learn(key, holds, &outcome, ring, now_ms);
        Some(outcome)
    }

    /// Remembers an outcome.
    pub(super) fn keep(&mut self, key: &Key, landed: &Landed, ring: &Ring, now_ms: u64) {
        let Answered {
            outcome,
            deployment,
            ..
        } = &landed.answered;
        if outcome.is_volatile() {
            if self.volatile.len() >= VOLATILE {
                self.volatile.clear();
            }
            self.volatile.insert(key.name.clone());
        }
        let watched = self.hub.watched(key);
        self.hub.learn(key, landed.at, outcome, ring, now_ms);
        // What only the moment made so is of no use to anybody but watches, and what may end
        // otherwise next time of none at all.
        if outcome.is_shaky() || (outcome.is_volatile() && !watched) {
            return;
        }
        for gone in self.cache.put(key, deployment, landed.at, outcome, watched) {
            self.hub.forget(&gone);
        }
    }

    /// A watch is to be woken when it has news.
    pub fn wakes(&mut self, number: Number, waker: Arc<tokio::sync::Notify>) {
        self.wakers.insert(number, waker);
    }

    /// What a watch asks for changes in the cache's order too.
    pub fn watch(&mut self, keys: impl IntoIterator<Item = Key>) {
        for key in keys {
            self.cache.watch(&key, true);
        }
    }

    /// Ends a watch.
    pub fn close(&mut self, number: Number) {
        self.wakers.remove(&number);
        for key in self.hub.close(number) {
            self.cache.watch(&key, false);
        }
    }

    /// Marks everything noted; wakes those that have news.
    pub(super) fn catch_up(&mut self, ring: &Ring, applied: Revision, now_ms: u64) {
        let last = ring.last();
        let revision = ring.revision().max(applied);
        let news = match self.hub.queries() {
            // Nobody to tell: what was written is of no interest.
            0 => self.hub.mark(Some(&[]), last, revision, now_ms),
            _ => {
                let written = ring.since(self.hub.marked());
                self.hub.mark(written.as_deref(), last, revision, now_ms)
            }
        };
        self.wake(&news);
    }

    pub(super) fn tick(&mut self, now_ms: u64) {
        let news = self.hub.tick(now_ms);
        self.wake(&news);
    }

    /// A watch has news.
    pub fn wake_one(&self, number: Number) {
        self.wake(&News::from([number]));
    }

    fn wake(&self, news: &News) {
        for number in news {
            if let Some(waker) = self.wakers.get(number) {
                waker.notify_one();
            }
        }
    }
}
