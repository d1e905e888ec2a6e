//! Clients: each calls, one call after the other, whichever node it likes, and tries again
//! under the same key until it knows the outcome or gives up. What they were told goes into
//! the history; nothing is judged here.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use flower_api::wire::{Outcome as Effects, Problem};
use rand::{Rng, rngs::StdRng};
use serde_json::{Value, json};

use crate::{
    history::{Call, Class, History, Lists, Outcome, Snapshot},
    target::{self, Ended, NoAnswer, Target},
};

/// What each account begins with.
pub const MONEY: i64 = 100;

/// What the clients of a world do.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Clients.
    pub clients: u32,
    /// Clients that watch.
    pub watchers: u32,
    /// Registers.
    pub keys: u32,
    /// Lists.
    pub lists: u32,
    /// Accounts.
    pub accounts: u32,
    /// Longest wait between calls, milliseconds.
    pub think_ms: u64,
    /// A call is tried at most so often.
    pub tries: u32,
    /// Percent of calls that write.
    pub writes: u32,
    /// Behind this serial nothing is put at the end of a list any more: every reading of all
    /// lists is as long as they are.
    pub append_until: u64,
}

/// Shared by all clients.
#[derive(Clone)]
pub struct Clients {
    /// What they do.
    pub workload: Workload,
    /// Where nodes are.
    pub hosts: Vec<String>,
    /// What they saw.
    pub history: History,
    /// The last serial that was given out.
    pub serial: Arc<AtomicU64>,
    /// They end when it is set.
    pub stop: Arc<AtomicBool>,
}

impl Clients {
    fn serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Opens the accounts.
    pub async fn open(self, target: &impl Target) {
        for number in 0..self.workload.accounts {
            let serial = self.serial();
            let call = self.history.begin(0, Call::Transfer { serial });
            let args = json!({ "name": account(number), "balance": MONEY, "serial": serial });
            let key = format!("open-{number}");
            target::write(target, &self.hosts, "open", &key, &args).await;
            let (version, revision) = (0, 0);
            self.history
                .end(call, Outcome::Written { version, revision });
        }
    }

    /// One client, until it is told to stop.
    pub async fn run(self, number: u32, target: impl Target, rng: StdRng) {
        let mut client = Client {
            number,
            target,
            rng,
            seen: 0,
            all: self,
        };
        while !client.all.stop.load(Ordering::Relaxed) {
            client.call().await;
            let wait = client.rng.random_range(0..=client.all.workload.think_ms);
            tokio::time::sleep(Duration::from_millis(wait)).await;
        }
    }
}

fn account(number: u32) -> String {
    format!("account-{number}")
}

struct Client<T> {
    number: u32,
    target: T,
    rng: StdRng,
    /// The newest revision that it was told.
    seen: u64,
    all: Clients,
}

/// What is known of a mutation over several tries.
#[derive(Default)]
struct Known {
    value: Option<(Value, u64)>,
    maybe: bool,
}

impl<T: Target> Client<T> {
    fn host(&mut self) -> String {
        let at = self.rng.random_range(0..self.all.hosts.len());
        self.all.hosts[at].clone()
    }

    async fn call(&mut self) {
        let writes = self.all.workload.writes;
        match self.rng.random_range(0..100) {
            n if n < writes && n % 4 == 3 => self.transfer().await,
            n if n < writes && n % 4 == 2 => self.append().await,
            n if n < writes => self.put().await,
            n if n % 8 == 1 => self.catalogue().await,
            n if n % 4 == 0 => self.snapshot().await,
            _ => self.get().await,
        }
    }

    async fn put(&mut self) {
        let serial = self.all.serial();
        self.put_as(serial).await;
    }

    async fn put_as(&mut self, serial: u64) {
        let key = self.register();
        let args = json!({ "key": key, "serial": serial });
        let number = self
            .all
            .history
            .begin(self.number, Call::Put { key, serial });
        self.mutate(number, "put", serial, &args).await;
    }

    async fn transfer(&mut self) {
        let serial = self.all.serial();
        let accounts = self.all.workload.accounts;
        let from = self.rng.random_range(0..accounts);
        let to = (from + self.rng.random_range(1..accounts)) % accounts;
        let args = json!({
            "from": account(from), "to": account(to),
            "amount": self.rng.random_range(1..=40), "serial": serial,
        });
        let number = self
            .all
            .history
            .begin(self.number, Call::Transfer { serial });
        self.mutate(number, "transfer", serial, &args).await;
    }

    async fn append(&mut self) {
        let serial = self.all.serial();
        if serial > self.all.workload.append_until {
            return self.put_as(serial).await;
        }
        let list = format!("l{}", self.rng.random_range(0..self.all.workload.lists));
        let args = json!({ "name": list, "serial": serial });
        let call = Call::Append { list, serial };
        let number = self.all.history.begin(self.number, call);
        self.mutate(number, "append", serial, &args).await;
    }

    fn register(&mut self) -> String {
        format!("k{}", self.rng.random_range(0..self.all.workload.keys))
    }

    async fn mutate(&mut self, number: usize, name: &str, serial: u64, args: &Value) {
        let key = format!("key-{serial}");
        let mut known = Known::default();
        for _ in 0..self.all.workload.tries {
            let host = self.host();
            let ended = self.target.mutate(&host, name, &key, args).await;
            let history = self.all.history.clone();
            history.update(number, |op| {
                op.tries += 1;
                op.at.clone_from(&host);
                op.replays += u32::from(matches!(ended, Ended::Result { replayed: true, .. }));
            });
            if let Some(outcome) = self.judge(&mut known, ended) {
                return history.end(number, outcome);
            }
            // Now and then a client asks again although it knows.
            if known.value.is_some() && self.rng.random_range(0..10) > 0 {
                break;
            }
            let wait = self.rng.random_range(5..=150);
            tokio::time::sleep(Duration::from_millis(wait)).await;
        }
        let outcome = match known {
            Known {
                value: Some((value, revision)),
                ..
            } => Outcome::Written {
                version: value.as_u64().unwrap_or(0),
                revision,
            },
            Known { maybe: true, .. } => Outcome::Unknown,
            _ => Outcome::NotApplied,
        };
        self.all.history.end(number, outcome);
    }

    /// Takes an answer in; an outcome when there is nothing more to learn.
    fn judge(&mut self, known: &mut Known, ended: Ended) -> Option<Outcome> {
        match ended {
            Ended::Result {
                value, revision, ..
            } => {
                self.seen = self.seen.max(revision);
                match &known.value {
                    Some(first) if *first != (value.clone(), revision) => {
                        let told = format!("{first:?}, then {:?}", (value, revision));
                        return Some(Outcome::Forked(told));
                    }
                    _ => known.value = Some((value, revision)),
                }
                None
            }
            Ended::Problem(problem) if problem.code.starts_with("fault:") => {
                if let Some(first) = &known.value {
                    let told = format!("{first:?}, then {}", problem.code);
                    return Some(Outcome::Forked(told));
                }
                Some(Outcome::Fault)
            }
            Ended::Problem(problem) => {
                known.maybe |= problem.outcome == Effects::Unknown;
                self.refused(&problem)
            }
            Ended::None(NoAnswer::NotSent) => None,
            Ended::None(NoAnswer::Lost) => {
                known.maybe = true;
                None
            }
        }
    }

    /// A refusal for good is none that this workload asks for.
    fn refused(&self, problem: &Problem) -> Option<Outcome> {
        let told = || Outcome::Forked(format!("refused for good: {problem}"));
        (!problem.retryable && problem.status < 500).then(told)
    }

    fn class(&mut self) -> Class {
        match self.rng.random_range(0..3) {
            0 => Class::Local,
            1 => Class::Session(self.seen),
            _ => Class::Fresh,
        }
    }

    async fn get(&mut self) {
        let (key, class, host) = (self.register(), self.class(), self.host());
        let args = json!({ "key": key });
        let history = self.all.history.clone();
        let number = history.begin(self.number, Call::Get { key, class });
        history.update(number, |op| op.at.clone_from(&host));
        let told = self.target.query(&host, "get", &text(class), &args).await;
        let outcome = match told {
            Ended::Result {
                value, revision, ..
            } => {
                self.seen = self.seen.max(revision);
                let part = |name: &str| value[name].as_u64().unwrap_or(u64::MAX);
                let found = (part("serial"), part("version"));
                Outcome::Read { found, revision }
            }
            _ => Outcome::None,
        };
        history.end(number, outcome);
    }

    async fn snapshot(&mut self) {
        let class = self.class();
        self.read_all(
            Call::Snapshot { class },
            "snapshot",
            class,
            |value, revision| {
                let part = |name: &str| value[name].clone();
                Outcome::Snapshot(Box::new(Snapshot {
                    revision,
                    registers: serde_json::from_value(part("registers")).unwrap_or_default(),
                    accounts: serde_json::from_value(part("accounts")).unwrap_or_default(),
                }))
            },
        )
        .await;
    }

    async fn catalogue(&mut self) {
        let class = self.class();
        self.read_all(
            Call::Lists { class },
            "catalogue",
            class,
            |value, revision| {
                let lists = serde_json::from_value(value).unwrap_or_default();
                Outcome::Lists(Box::new(Lists { revision, lists }))
            },
        )
        .await;
    }

    async fn read_all(
        &mut self,
        call: Call,
        name: &str,
        class: Class,
        read: impl FnOnce(Value, u64) -> Outcome,
    ) {
        let host = self.host();
        let history = self.all.history.clone();
        let number = history.begin(self.number, call);
        history.update(number, |op| op.at.clone_from(&host));
        let (class, args) = (text(class), json!({}));
        let outcome = match self.target.query(&host, name, &class, &args).await {
            Ended::Result {
                value, revision, ..
            } => {
                self.seen = self.seen.max(revision);
                read(value, revision)
            }
            _ => Outcome::None,
        };
        history.end(number, outcome);
    }
}

fn text(class: Class) -> String {
    match class {
        Class::Local => "local".into(),
        Class::Session(min) => format!("session; min={min}"),
        Class::Fresh | Class::Watch => "fresh".into(),
    }
}
