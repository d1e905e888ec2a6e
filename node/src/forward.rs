//! Sends a call on to the leader's client port, over pooled HTTP/2 connections. Tells apart
//! what was never sent from what may have happened; retries nothing.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioTimer},
};

use crate::{
    dial::{Answer, Dialer},
    env::{Env, Mono},
};

/// A connection is asked for a sign of life this often, and dropped when none comes: a call
/// must not hang on a leader that is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoAnswer {
    /// The call was never sent.
    NotSent,
    /// It was sent: it may have happened.
    Broken,
}

/// The pool of connections. Cheap to clone.
#[derive(Clone)]
pub struct Forwarder {
    env: Env,
    client: Client<Dialer, Full<Bytes>>,
    answer_bytes: usize,
}

impl Forwarder {
    /// A pool that reads answers of at most so many bytes.
    pub fn new(env: &Env, answer_bytes: usize) -> Self {
        let dialer = Dialer::new(env.net.clone(), env.clock.clone());
        let client = Client::builder(TokioExecutor::new())
            .http2_only(true)
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(60))
            .http2_keep_alive_interval(KEEP_ALIVE)
            .http2_keep_alive_timeout(2 * KEEP_ALIVE)
            .http2_keep_alive_while_idle(true)
            .build(dialer);
        Self {
            env: env.clone(),
            client,
            answer_bytes,
        }
    }

    /// Sends one request, whose URI names the leader.
    ///
    /// # Errors
    /// See [`NoAnswer`]; `Broken` when the deadline comes first.
    pub async fn send(
        &self,
        request: Request<Full<Bytes>>,
        deadline: Mono,
    ) -> Result<Answer, NoAnswer> {
        let answer = async {
            let response = self.client.request(request).await.map_err(|error| {
                tracing::debug!(%error, "a call could not be sent on");
                if error.is_connect() {
                    NoAnswer::NotSent
                } else {
                    NoAnswer::Broken
                }
            })?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, self.answer_bytes);
            let body = body.collect().await.map_err(|_| NoAnswer::Broken)?;
            Ok(Answer {
                status: head.status,
                headers: head.headers,
                body: body.to_bytes(),
            })
        };
        let late = Err(NoAnswer::Broken);
        self.env.until(deadline, answer).await.unwrap_or(late)
    }
}
