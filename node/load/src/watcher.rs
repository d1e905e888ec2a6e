//! Clients that watch: each keeps one watch of a register and of all lists, goes on at another
//! node when its stream ends, and writes what it was told into the history as reads at the
//! revisions of the steps. Nothing is judged here.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use flower_api::{
    Revision,
    watch::{Changed, Failed, Moved, Open, Opened, Query, Same, Step, frame},
};
use flower_node::client::{Stream, sse::Event};
use rand::{Rng, rngs::StdRng};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::{
    history::{Call, Class, List, Lists, Outcome},
    target::Target,
    workload::Clients,
};

/// Numbers of watchers among clients begin here.
const FIRST: u32 = 1_000;
/// The watched register.
pub const KEY: &str = "k0";
/// A stream without any sign of life for so long is given up.
const SILENCE: Duration = Duration::from_secs(25);
/// A watch that is not open within this is asked for elsewhere.
const OPENS: Duration = Duration::from_secs(10);

/// What a watcher was told last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Current {
    /// Serial and version of the register.
    pub register: Option<(u64, u64)>,
    /// The lists.
    pub lists: Option<Vec<List>>,
}

/// What all watchers were told last, and what was wrong with it.
#[derive(Clone, Default)]
pub struct Watched(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    current: BTreeMap<u32, Current>,
    wrong: Option<String>,
    resumed: u64,
    steps: u64,
}

impl Watched {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What every watcher was told last.
    pub fn current(&self) -> Vec<Current> {
        self.inner().current.values().cloned().collect()
    }

    /// What a stream did that none may do.
    pub fn wrong(&self) -> Option<String> {
        self.inner().wrong.clone()
    }

    /// States that were reached.
    pub fn reached(&self) -> [(&'static str, u64); 2] {
        let inner = self.inner();
        [
            ("watch told", inner.steps),
            ("watch resumed", inner.resumed),
        ]
    }
}

/// Watches until it is dropped.
pub async fn run(
    number: u32,
    target: impl Target,
    mut rng: StdRng,
    clients: Clients,
    watched: Watched,
) {
    let mut watcher = Watcher {
        number: FIRST + number,
        target,
        at: String::new(),
        revision: None,
        etags: BTreeMap::new(),
        clients,
        watched: watched.clone(),
    };
    let current = Current::default();
    watched.inner().current.insert(watcher.number, current);
    loop {
        let at = rng.random_range(0..watcher.clients.hosts.len());
        watcher.at = watcher.clients.hosts[at].clone();
        let wait = watcher.once().await;
        if let Err(why) = &wait {
            watched.inner().wrong.get_or_insert_with(|| why.clone());
        }
        let pause = rng.random_range(5..=300);
        tokio::time::sleep(wait.unwrap_or_default() + Duration::from_millis(pause)).await;
    }
}

struct Watcher<T> {
    number: u32,
    target: T,
    at: String,
    /// Of the last frame; a watch that was told nothing yet has none.
    revision: Option<Revision>,
    etags: BTreeMap<String, String>,
    clients: Clients,
    watched: Watched,
}

impl<T: Target> Watcher<T> {
    /// One stream from its opening to its end; how long to wait before the next.
    async fn once(&mut self) -> Result<Duration, String> {
        let Some(mut stream) = self.open().await else {
            return Ok(Duration::ZERO);
        };
        let mut at = self.revision.unwrap_or(Revision(0));
        let mut wait = Duration::ZERO;
        while let Ok(Some(event)) = tokio::time::timeout(SILENCE, stream.next()).await {
            match event.name.as_str() {
                frame::OPEN => {
                    let opened: Opened = read(&event)?;
                    self.follows("a stream begins", at, opened.revision)?;
                }
                frame::STEP => {
                    let step: Step = read(&event)?;
                    self.follows("a step begins", at, step.from)?;
                    at = self.told(at, step.to, step.changes)?;
                }
                frame::SAME => {
                    let same: Same = read(&event)?;
                    at = self.told(at, same.to, Vec::new())?;
                }
                frame::ERROR => {
                    let failed: Failed = read(&event)?;
                    if let Some(q) = failed.q {
                        self.etags.remove(&q);
                        self.change(|current| match q.as_str() {
                            "r" => current.register = None,
                            _ => current.lists = None,
                        });
                    }
                }
                frame::MOVED => {
                    let moved: Moved = read(&event)?;
                    wait = Duration::from_millis(moved.retry_ms);
                }
                _ => {}
            }
        }
        Ok(wait)
    }

    async fn open(&mut self) -> Option<Stream> {
        let query = |id: &str, name: &str, args: Option<&str>| Query {
            id: Some(id.to_owned()),
            name: name.to_owned(),
            args: args.and_then(|args| RawValue::from_string(args.to_owned()).ok()),
            etag: self.etags.get(id).cloned(),
        };
        let open = Open {
            queries: vec![
                query("r", "get", Some(&format!(r#"{{"key":"{KEY}"}}"#))),
                query("l", "catalogue", None),
            ],
        };
        let body = serde_json::to_vec(&open).unwrap_or_default();
        let revision = self.revision.map(|revision| revision.0.to_string());
        let headers: Vec<_> = revision
            .iter()
            .map(|r| ("last-event-id", r.as_str()))
            .collect();
        let opening = self.target.watch(&self.at, &headers, body);
        let stream = tokio::time::timeout(OPENS, opening).await.ok()??;
        if self.revision.is_some() {
            self.watched.inner().resumed += 1;
        }
        Some(stream)
    }

    fn follows(&self, what: &str, at: Revision, from: Revision) -> Result<(), String> {
        if at == from {
            return Ok(());
        }
        Err(format!(
            "{what} at revision {from} at {}, and the watcher is at {at}",
            self.at
        ))
    }

    /// Everything watched is as of `to` now.
    fn told(
        &mut self,
        at: Revision,
        to: Revision,
        changes: Vec<Changed>,
    ) -> Result<Revision, String> {
        if to < at {
            return Err(format!(
                "a watch at {} goes back from {at} to {to}",
                self.at
            ));
        }
        self.revision = Some(to);
        self.watched.inner().steps += 1;
        for change in changes {
            let value: serde_json::Value =
                serde_json::from_str(change.value.get()).map_err(|e| e.to_string())?;
            match change.q.as_str() {
                "r" => {
                    let part = |name: &str| value[name].as_u64().unwrap_or(u64::MAX);
                    let found = (part("serial"), part("version"));
                    self.change(|current| current.register = Some(found));
                }
                _ => {
                    let lists = serde_json::from_value(value).map_err(|e| e.to_string())?;
                    self.change(|current| current.lists = Some(lists));
                }
            }
            self.etags.insert(change.q, change.etag);
        }
        self.note(to.0);
        Ok(to)
    }

    fn change(&self, change: impl FnOnce(&mut Current)) {
        let mut inner = self.watched.inner();
        change(inner.current.entry(self.number).or_default());
    }

    /// As reads, which they are.
    fn note(&self, revision: u64) {
        let known = self.watched.inner().current.get(&self.number).cloned();
        let Current { register, lists } = known.unwrap_or_default();
        let class = Class::Watch;
        let history = &self.clients.history;
        let end = |call: Call, outcome: Outcome| {
            let number = history.begin(self.number, call);
            history.update(number, |op| op.at.clone_from(&self.at));
            history.end(number, outcome);
        };
        if let Some(found) = register {
            let key = KEY.to_owned();
            end(Call::Get { key, class }, Outcome::Read { found, revision });
        }
        if let Some(lists) = lists {
            let told = Lists { revision, lists };
            end(Call::Lists { class }, Outcome::Lists(Box::new(told)));
        }
    }
}

fn read<T: DeserializeOwned>(event: &Event) -> Result<T, String> {
    let told = serde_json::from_str(&event.data);
    told.map_err(|error| format!("the frame {} is none: {error}", event.name))
}
