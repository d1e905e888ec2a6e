//! What clients call through: one try a call, and a clear word on whether it can have been
//! carried out. What is tried again, and how often, is decided by whoever calls.

use std::time::Duration;

use flower_api::wire::{Outcome, Problem, header};
use flower_node::{client::Stream, dial::Answer};
use serde_json::{Value, json};

/// Between two tries of a call that must succeed.
const AGAIN: Duration = Duration::from_millis(50);

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoAnswer {
    /// The request was not sent.
    NotSent,
    /// It may have been carried out.
    Lost,
}

/// How a call ended.
#[derive(Debug, Clone)]
pub enum Ended {
    /// The stored result.
    Result {
        /// JSON.
        value: Value,
        /// It came from the receipt.
        replayed: bool,
        /// Revision.
        revision: u64,
    },
    /// Refused or failed.
    Problem(Box<Problem>),
    /// No answer.
    None(NoAnswer),
}

impl Ended {
    /// What an answer says.
    pub fn of(answer: &Answer) -> Self {
        if !answer.status.is_success() {
            let problem = serde_json::from_slice(&answer.body).unwrap_or_else(|e| {
                Box::new(Problem {
                    outcome: Outcome::Unknown,
                    ..Problem::new(answer.status.as_u16(), "garbled", "Garbled", e.to_string())
                })
            });
            return Self::Problem(problem);
        }
        let revision = answer.header(header::REVISION);
        Self::Result {
            value: serde_json::from_slice(&answer.body).unwrap_or_default(),
            replayed: answer.header(header::REPLAYED) == Some("true"),
            revision: revision.and_then(|r| r.parse().ok()).unwrap_or(0),
        }
    }
}

/// Calls nodes by their hosts.
pub trait Target: Sync {
    /// Calls a mutation once.
    fn mutate(
        &self,
        host: &str,
        name: &str,
        key: &str,
        args: &Value,
    ) -> impl Future<Output = Ended> + Send;

    /// Calls a query once, with what `flower-read` is to say.
    fn query(
        &self,
        host: &str,
        name: &str,
        class: &str,
        args: &Value,
    ) -> impl Future<Output = Ended> + Send;

    /// Opens a watch with what its headers and body say; absent when it is refused, or there is
    /// no answer.
    fn watch(
        &self,
        host: &str,
        headers: &[(&'static str, &str)],
        body: Vec<u8>,
    ) -> impl Future<Output = Option<Stream>> + Send;
}

/// Calls a mutation under one key, at one host after the other, until its outcome is known.
///
/// # Panics
/// When it is refused for good.
pub async fn write(
    target: &impl Target,
    hosts: &[String],
    name: &str,
    key: &str,
    args: &Value,
) -> (Value, bool) {
    for host in hosts.iter().cycle() {
        match target.mutate(host, name, key, args).await {
            Ended::Result {
                value, replayed, ..
            } => return (value, replayed),
            Ended::Problem(problem) => assert!(problem.retryable, "{problem}"),
            Ended::None(_) => {}
        }
        tokio::time::sleep(AGAIN).await;
    }
    unreachable!("the cycle has no end")
}

/// Calls a query, at one host after the other, until there is an answer.
pub async fn read(
    target: &impl Target,
    hosts: &[String],
    name: &str,
    class: &str,
    args: &Value,
) -> Value {
    for host in hosts.iter().cycle() {
        if let Ended::Result { value, .. } = target.query(host, name, class, args).await {
            return value;
        }
        tokio::time::sleep(AGAIN).await;
    }
    unreachable!("the cycle has no end")
}

/// The serials of all traces, as a fresh read.
pub async fn traces(target: &impl Target, hosts: &[String]) -> Vec<u64> {
    let mut all: Vec<u64> = Vec::new();
    loop {
        let after = all.last().copied().unwrap_or(0);
        let args = json!({ "after": after });
        let page = read(target, hosts, "traces", "fresh", &args).await;
        let page: Vec<u64> = serde_json::from_value(page).unwrap_or_default();
        if page.is_empty() {
            return all;
        }
        all.extend(page);
    }
}
