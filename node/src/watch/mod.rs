//! Watches: clients that see every change of the queries that they name. Each is a session of
//! its own that goes from revision to revision as fast as its client takes the steps; the
//! hub tells it when there is news, and each distinct query is evaluated once for all. What a
//! step holds is decided by the pure `hub`; HTTP is `http::watch`.

mod admission;
mod frame;
pub mod hub;
mod index;
mod outbox;
mod session;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use flower_api::{
    Revision,
    limits::MIB,
    watch::WatchId,
    wire::{Problem, code},
};
use parking_lot::Mutex;
use rand::{Rng, RngCore, rngs::StdRng};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::{
    config::WatchLimits,
    consensus::Consensus,
    env::{Env, Fatal, Mono},
    query::Queries,
};
use admission::Admission;
use hub::{Ask, Bounds, Number, Refused};
use outbox::Outbox;
pub use outbox::Stream;
use session::Session;

/// Names, arguments and what belongs to them, of all watches together.
const NAMES_BYTES: u64 = 16 * MIB;
/// How often the hub looks whether a failed query may be tried again.
const TICK: Duration = Duration::from_secs(1);
/// While others wait for room, a client that takes nothing may hold it for this long.
const STUCK: Duration = Duration::from_millis(500);
/// Clients of a node that stops come back within this, for each hundred of them.
const SPREAD_MS: u64 = 250;

/// The watches of this node. Cheap to clone.
#[derive(Clone)]
pub struct Watches(Arc<Inner>);

struct Inner {
    env: Env,
    consensus: Consensus,
    queries: Queries,
    limits: WatchLimits,
    admission: Mutex<Admission>,
    /// For the frames of all watches that wait or are being written, in KiB.
    room: Arc<Semaphore>,
    room_kib: u32,
    rng: Mutex<StdRng>,
    closing: CancellationToken,
    outboxes: Mutex<BTreeMap<Number, Outbox>>,
    steps: AtomicU64,
}

/// Counts of the watches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WatchStats {
    /// Open.
    pub open: u64,
    /// Distinct queries that are watched.
    pub queries: u64,
    /// Steps put on their way since the start.
    pub steps: u64,
    /// Bytes of names, arguments and frames.
    pub bytes: u64,
}

/// Whether the client may still see what it watches; asked again and again.
pub type Allowed = Arc<dyn Fn() -> Result<(), Box<Problem>> + Send + Sync>;

/// What a client asks for.
pub struct Wanted {
    /// The queries.
    pub asks: Vec<Ask>,
    /// What it has up to where; 0 when nothing.
    pub from: Revision,
    /// Whether it may.
    pub allowed: Allowed,
}

/// Bounds of the hub.
pub fn bounds(limits: &WatchLimits) -> Bounds {
    let most = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    Bounds {
        watches: most(limits.watches),
        queries: most(limits.queries),
        bytes: NAMES_BYTES,
    }
}

impl Watches {
    /// Starts following what is applied.
    pub fn start(env: &Env, consensus: &Consensus, queries: &Queries, limits: WatchLimits) -> Self {
        // Two of the largest steps at a time: one slow client never keeps the others waiting.
        let room_kib = u32::try_from(limits.step.div_ceil(1024) * 2).unwrap_or(u32::MAX >> 4);
        let watches = Self(Arc::new(Inner {
            env: env.clone(),
            consensus: consensus.clone(),
            queries: queries.clone(),
            limits,
            admission: Mutex::new(Admission::new(limits.opens)),
            room: Arc::new(Semaphore::new(room_kib as usize)),
            room_kib,
            rng: Mutex::new(env.seeds.child("watches").rng()),
            closing: CancellationToken::new(),
            outboxes: Mutex::default(),
            steps: AtomicU64::new(0),
        }));
        let follower = watches.clone();
        env.tasks
            .spawn("watch hub", async move { follower.follow().await });
        watches
    }

    async fn follow(self) -> Result<(), Fatal> {
        let inner = &self.0;
        let mut applied = inner.consensus.applied();
        loop {
            inner.queries.catch_up();
            tokio::select! {
                () = inner.env.tasks.stopping() => return Ok(()),
                changed = applied.changed() => if changed.is_err() {
                    inner.env.tasks.stopping().await;
                    return Ok(());
                },
                () = inner.env.sleep(TICK) => inner.queries.tick(),
            }
        }
    }

    /// Lets a client in, or says when it may come back.
    ///
    /// # Errors
    /// How long to wait; nothing when the node stops.
    pub fn admit(&self) -> Result<(), Duration> {
        let now_ms = self.0.env.clock.mono().ms();
        self.0.admission.lock().admit(now_ms)
    }

    /// Whether the watches of this node end.
    pub fn is_closing(&self) -> bool {
        self.0.closing.is_cancelled()
    }

    /// Opens a watch; its frames come out of the stream.
    ///
    /// # Errors
    /// `too-large`, `overloaded`, `malformed` as the hub refuses; `not-ready` on a node that
    /// stops.
    pub fn open(&self, wanted: Wanted) -> Result<(WatchId, Stream), Box<Problem>> {
        let inner = &self.0;
        if self.is_closing() {
            return Err(Box::new(stopping()));
        }
        let id = WatchId {
            member: inner.consensus.me().member,
            number: self.draw(),
        };
        let news = Arc::new(Notify::new());
        inner.queries.catch_up();
        {
            let mut board = inner.queries.board();
            let opened = board.hub.open(id.number, &wanted.asks, wanted.from);
            opened.map_err(|why| Box::new(refused(&why)))?;
            board.watch(wanted.asks.iter().map(|ask| ask.key.clone()));
            board.wakes(id.number, news.clone());
        }
        let (outbox, stream) = outbox::outbox(inner.env.clock.clone());
        inner.outboxes.lock().insert(id.number, outbox.clone());
        let session = Session::new(self.clone(), id, news, outbox, wanted);
        inner.env.tasks.spawn_brief("watch", session.run());
        Ok((id, stream))
    }

    /// Adds and removes queries; returns how many there are then.
    ///
    /// # Errors
    /// `watch-gone`; as the hub refuses.
    pub fn change(
        &self,
        id: WatchId,
        remove: &[Arc<str>],
        add: &[Ask],
    ) -> Result<usize, Box<Problem>> {
        let mut board = self.0.queries.board();
        let size = board.hub.change(id.number, remove, add);
        let size = size.map_err(|why| Box::new(refused(&why)))?;
        board.watch(add.iter().map(|ask| ask.key.clone()));
        board.wake_one(id.number);
        Ok(size)
    }

    /// Ends all watches: their clients go on at other nodes, not all at once.
    pub fn end(&self) {
        self.0.closing.cancel();
    }

    /// Counts.
    pub fn stats(&self) -> WatchStats {
        let inner = &self.0;
        let used = inner.room_kib as usize - inner.room.available_permits();
        let board = inner.queries.board();
        WatchStats {
            open: board.hub.watches() as u64,
            queries: board.hub.queries() as u64,
            steps: inner.steps.load(Ordering::Relaxed),
            bytes: board.hub.bytes() + used as u64 * 1024,
        }
    }

    /// The watch is over.
    fn close(&self, number: Number) {
        self.0.outboxes.lock().remove(&number);
        self.0.queries.board().close(number);
    }

    /// Room for a frame of so many KiB. While there is none, the client that has taken nothing
    /// for the longest is let go, so that a slow one costs nobody more than a moment.
    async fn room(&self, kib: u32) -> Option<OwnedSemaphorePermit> {
        loop {
            let wait = self.0.room.clone().acquire_many_owned(kib);
            if let Some(room) = self.0.env.within(STUCK, wait).await {
                return room.ok();
            }
            self.cut_longest();
        }
    }

    fn cut_longest(&self) {
        let now = self.now();
        let outboxes = self.0.outboxes.lock();
        let stuck = outboxes
            .values()
            .filter_map(|o| Some((o.holds_room_since()?, o)));
        let longest = stuck.min_by_key(|(since, _)| *since);
        if let Some((since, outbox)) = longest
            && now - since >= STUCK
        {
            outbox.cut();
        }
    }

    fn draw(&self) -> u128 {
        let mut number = [0; 16];
        self.0.rng.lock().fill_bytes(&mut number);
        u128::from_be_bytes(number)
    }

    /// When a client of a node that stops comes back.
    fn retry_ms(&self) -> u64 {
        let open = self.0.queries.board().hub.watches() as u64;
        let most = SPREAD_MS * open.div_ceil(100);
        self.0.rng.lock().random_range(0..=most.min(30_000))
    }

    fn now(&self) -> Mono {
        self.0.env.clock.mono()
    }
}

/// The words for a refusal of the hub.
fn refused(why: &Refused) -> Problem {
    let shown = |id: &str| id.chars().take(64).collect::<String>();
    let bad = |detail| Problem::new(400, code::MALFORMED, "Malformed request", detail);
    let busy = |detail| Problem::new(429, code::OVERLOADED, "Overloaded", detail).retryable();
    match why {
        Refused::Watches(most) => busy(format!(
            "this node serves {most} watches already; ask another one, or again in a moment"
        ))
        .setting("FLOWER_LIMIT_WATCHES"),
        Refused::Queries(most) => Problem::new(
            413,
            code::TOO_LARGE,
            "Too large",
            format!("a watch has at most {most} queries; open another one for more"),
        )
        .setting("FLOWER_LIMIT_WATCH_QUERIES"),
        Refused::Bytes(most) => busy(format!(
            "the names and arguments of all watches of this node would take more than {} MiB; \
             ask another node, or watch less",
            most / MIB
        )),
        Refused::Twice(id) => bad(format!("two queries have the id '{}'", shown(id))),
        Refused::Unknown(id) => bad(format!("no query has the id '{}'", shown(id))),
        Refused::Gone => gone(),
    }
}

/// 410: nobody serves this watch.
pub fn gone() -> Problem {
    Problem::new(
        410,
        code::WATCH_GONE,
        "Watch gone",
        "no node serves this watch any more; open a new one with the queries, their etags and \
         the last event id",
    )
}

/// 503: the node stops.
pub fn stopping() -> Problem {
    Problem::new(
        503,
        code::NOT_READY,
        "Not ready",
        "this node stops; ask another one",
    )
    .retryable()
}
