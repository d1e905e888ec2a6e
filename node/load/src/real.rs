//! Real nodes as a target, by their URLs, with the time that each call took. An edge of the
//! program: it reads the clock.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use flower_api::wire::header;
use flower_node::client::{self, Api, BadUrl, Stream};
use http::Method;
use serde_json::Value;

use crate::target::{Ended, NoAnswer, Target};

/// One try of a call.
const CALL_LIMIT: Duration = Duration::from_secs(12);
/// Times kept of each function: what comes later only counts.
const TIMES_MAX: usize = 1 << 20;

/// Times by function, microseconds, and how many calls there were.
type Times = BTreeMap<String, (u64, Vec<u32>)>;

/// Nodes, or the Service before them. Clones share their connections and times.
#[derive(Clone)]
pub struct Real {
    apis: Arc<BTreeMap<String, Api>>,
    times: Arc<Mutex<Times>>,
}

/// How long the tries of one function took.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Took {
    /// The function.
    pub function: String,
    /// Tries.
    pub tries: u64,
    /// Half of them took no longer, milliseconds.
    pub p50_ms: u64,
    /// 99 of 100 took no longer.
    pub p99_ms: u64,
    /// The longest.
    pub max_ms: u64,
}

impl Real {
    /// Nodes at `urls`, called with `token`.
    ///
    /// # Errors
    /// `BadUrl` for anything but a scheme, a host and a port.
    pub fn new(urls: &[String], token: Option<&str>) -> Result<Self, BadUrl> {
        let apis = urls
            .iter()
            .map(|url| Ok((url.clone(), Api::new(url, token)?)));
        Ok(Self {
            apis: Arc::new(apis.collect::<Result<_, BadUrl>>()?),
            times: Arc::default(),
        })
    }

    /// How long the tries took so far.
    pub fn took(&self) -> Vec<Took> {
        let times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let took = times.iter().map(|(function, (tries, micros))| {
            let mut sorted = micros.clone();
            sorted.sort_unstable();
            let at = |percent: usize| {
                let place = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
                u64::from(sorted.get(place).copied().unwrap_or(0)) / 1_000
            };
            Took {
                function: function.clone(),
                tries: *tries,
                p50_ms: at(50),
                p99_ms: at(99),
                max_ms: at(100),
            }
        });
        took.collect()
    }

    async fn send(
        &self,
        host: &str,
        path: &str,
        header: (&'static str, &str),
        args: &Value,
    ) -> Ended {
        let Some(api) = self.apis.get(host) else {
            return Ended::None(NoAnswer::NotSent);
        };
        let begun = Instant::now();
        let headers = [(header.0, header.1.to_owned())];
        let body = Bytes::from(args.to_string());
        let sent = api
            .send(Method::POST, path, &headers, body, CALL_LIMIT)
            .await;
        self.note(path, begun.elapsed());
        match sent {
            Ok(answer) => Ended::of(&answer),
            Err(client::NoAnswer::NotSent { .. }) => Ended::None(NoAnswer::NotSent),
            Err(client::NoAnswer::Lost { .. }) => Ended::None(NoAnswer::Lost),
        }
    }

    fn note(&self, path: &str, took: Duration) {
        let function = path.rsplit('/').next().unwrap_or(path);
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let (tries, kept) = times.entry(function.to_owned()).or_default();
        *tries += 1;
        if kept.len() < TIMES_MAX {
            kept.push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
        }
    }
}

impl Target for Real {
    async fn mutate(&self, host: &str, name: &str, key: &str, args: &Value) -> Ended {
        let path = format!("/v1/p/_/m/{name}");
        self.send(host, &path, (header::IDEMPOTENCY_KEY, key), args)
            .await
    }

    async fn query(&self, host: &str, name: &str, class: &str, args: &Value) -> Ended {
        let path = format!("/v1/p/_/q/{name}");
        self.send(host, &path, (header::READ, class), args).await
    }

    async fn watch(
        &self,
        host: &str,
        headers: &[(&'static str, &str)],
        body: Vec<u8>,
    ) -> Option<Stream> {
        let api = self.apis.get(host)?;
        let owned = headers
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()));
        let headers: Vec<_> = owned.collect();
        let opened = api.stream("/v1/p/_/watch", &headers, body.into(), CALL_LIMIT);
        opened.await.ok()?.ok()
    }
}
