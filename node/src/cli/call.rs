//! `flower call` and `flower query`. A call goes on under its key until its outcome is known;
//! what to do after each answer is decided by the pure [`judge`].

use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Args;
use flower_api::wire::{Outcome, Problem, ReadClass, code, header};
use http::Method;
use serde_json::{Value, json};

use super::{ClientTarget, Failure, Output, print, progress::showing};
use crate::client::{Answer, Api, NoAnswer};

/// One attempt; a node answers a call within its own limit, which is shorter.
const ATTEMPT: Duration = Duration::from_secs(15);
/// Between attempts.
const PAUSE: Duration = Duration::from_millis(250);
/// How long a node that was never reached is tried for: a wrong address is told soon.
const REACH: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(super) struct CallArgs {
    /// Name of the mutation.
    name: String,
    /// Its arguments, JSON.
    #[arg(default_value = "{}")]
    args: String,
    /// Idempotency key; a new UUIDv7 when not given.
    #[arg(long)]
    key: Option<String>,
    /// Give up after so many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
    #[command(flatten)]
    at: ClientTarget,
}

#[derive(Debug, Args)]
pub(super) struct QueryArgs {
    /// Name of the query.
    name: String,
    /// Its arguments, JSON.
    #[arg(default_value = "{}")]
    args: String,
    /// How fresh the answer must be: fresh, local, 'bounded; ms=AGE' or 'session; min=REVISION'.
    #[arg(long, value_name = "CLASS", default_value = "fresh")]
    read: ReadClass,
    /// Give up after so many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 15)]
    timeout: u64,
    #[command(flatten)]
    at: ClientTarget,
}

/// What an attempt means for the next one.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// A result.
    Done,
    /// Final: another attempt would say the same.
    Final(Box<Problem>),
    /// Nothing happened; it may go better later.
    Again(Box<Problem>),
    /// It may have happened.
    Unknown(String),
    /// Nothing was sent.
    NotReached(NoAnswer),
}

/// Judges one attempt.
fn judge(attempt: &Result<Answer, NoAnswer>) -> Verdict {
    let answer = match attempt {
        Ok(answer) => answer,
        Err(lost @ NoAnswer::Lost { .. }) => return Verdict::Unknown(lost.to_string()),
        Err(not_sent) => return Verdict::NotReached(not_sent.clone()),
    };
    if answer.status.is_success() {
        return Verdict::Done;
    }
    match serde_json::from_slice::<Problem>(&answer.body) {
        Ok(problem) if problem.outcome == Outcome::Unknown => Verdict::Unknown(problem.to_string()),
        // The first attempt is still under way: its outcome comes.
        Ok(problem) if problem.code == code::IN_FLIGHT => Verdict::Unknown(problem.to_string()),
        // Somebody has to deploy first: waiting here would only look stuck.
        Ok(problem) if problem.code == code::NO_APPLICATION => Verdict::Final(Box::new(problem)),
        Ok(problem) if problem.retryable => Verdict::Again(Box::new(problem)),
        Ok(problem) => Verdict::Final(Box::new(problem)),
        Err(_) => Verdict::Unknown(format!(
            "HTTP status {} without a problem of Flower",
            answer.status
        )),
    }
}

/// Sends until there is a final answer or the time is up.
async fn persist(
    api: &Api,
    path: &str,
    headers: &[(&'static str, String)],
    args: &str,
    limit: Duration,
    unknown: impl Fn(&str) -> Failure,
) -> Result<Answer, Failure> {
    let start = Instant::now();
    let mut doubt: Option<String> = None;
    loop {
        let left = limit
            .saturating_sub(start.elapsed())
            .max(Duration::from_millis(100));
        let body = Bytes::copy_from_slice(args.as_bytes());
        let attempt = api
            .send(Method::POST, path, headers, body, left.min(ATTEMPT))
            .await;
        let (patience, failure) = match judge(&attempt) {
            Verdict::Done => return attempt.map_err(Failure::from),
            Verdict::Final(problem) => return Err((*problem).into()),
            Verdict::Again(problem) => (limit, Failure::from(*problem)),
            Verdict::NotReached(why) => (limit.min(REACH), Failure::from(why)),
            Verdict::Unknown(why) => {
                doubt = Some(why.clone());
                (limit, unknown(&why))
            }
        };
        let patience = if doubt.is_some() { limit } else { patience };
        if start.elapsed() + PAUSE >= patience {
            return Err(doubt.map_or(failure, |why| unknown(&why)));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

pub(super) fn check_json(args: &str) -> Result<(), Failure> {
    let parsed = serde_json::from_str::<serde::de::IgnoredAny>(args);
    parsed
        .map(drop)
        .map_err(|e| Failure::here(format!("the arguments are no JSON: {e}")))
}

/// A function's name as a part of a path.
fn part(name: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
    name.bytes()
        .map(|b| {
            if plain(b) {
                char::from(b).to_string()
            } else {
                format!("%{b:02X}")
            }
        })
        .collect()
}

pub(super) async fn call(args: CallArgs, output: Output) -> Result<(), Failure> {
    check_json(&args.args)?;
    let api = args.at.api()?;
    let key = args.key.unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
    let path = format!("/v1/p/_/m/{}", part(&args.name));
    let headers = [(header::IDEMPOTENCY_KEY, key.clone())];
    let limit = Duration::from_secs(args.timeout);
    let unknown = |why: &str| Failure::unknown(&key, why);
    let sending = persist(&api, &path, &headers, &args.args, limit, unknown);
    let answer = showing(
        &format!("calling {} under the key {key}", args.name),
        sending,
    )
    .await?;
    match output {
        Output::Text => print::json(&result(&answer)?),
        Output::Json => print::json(&json!({
            "result": result(&answer)?,
            "key": key,
            "revision": number(&answer, header::REVISION),
            "replayed": answer.header(header::REPLAYED) == Some("true"),
            "receiptExpires": answer.header(header::RECEIPT_EXPIRES),
        })),
    }
}

pub(super) async fn query(args: QueryArgs, output: Output) -> Result<(), Failure> {
    check_json(&args.args)?;
    let api = args.at.api()?;
    let path = format!("/v1/p/_/q/{}", part(&args.name));
    let headers = [(header::READ, args.read.to_string())];
    let limit = Duration::from_secs(args.timeout);
    // A query changes nothing: an answer that is lost is a node that does not answer.
    let unknown = |why: &str| {
        Failure::from(NoAnswer::Lost {
            url: api.base().to_owned(),
            why: why.to_owned(),
        })
    };
    let sending = persist(&api, &path, &headers, &args.args, limit, unknown);
    let answer = showing(&format!("asking {}", args.name), sending).await?;
    match output {
        Output::Text => print::json(&result(&answer)?),
        Output::Json => print::json(&json!({
            "result": result(&answer)?,
            "revision": number(&answer, header::REVISION),
            "served": answer.header(header::READ_SERVED),
        })),
    }
}

fn result(answer: &Answer) -> Result<Value, Failure> {
    let body: &[u8] = if answer.body.is_empty() {
        b"null"
    } else {
        &answer.body
    };
    serde_json::from_slice(body).map_err(|e| Failure::here(format!("the answer is no JSON: {e}")))
}

fn number(answer: &Answer, name: &str) -> Option<u64> {
    answer.header(name)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16, problem: Option<Problem>) -> Result<Answer, NoAnswer> {
        let body = problem.map_or_else(|| "7".to_owned(), |p| serde_json::to_string(&p).unwrap());
        let status = http::StatusCode::from_u16(status).unwrap();
        Ok(Answer {
            status,
            headers: http::HeaderMap::new(),
            body: body.into(),
        })
    }

    #[test]
    fn each_answer_has_its_verdict() {
        let problem = |status, code: &str| Problem::new(status, code, "t", "d");
        assert_eq!(judge(&answered(200, None)), Verdict::Done);
        let fault = problem(409, "fault:sold-out");
        assert_eq!(
            judge(&answered(409, Some(fault.clone()))),
            Verdict::Final(fault.into())
        );
        let busy = problem(429, code::OVERLOADED).retryable();
        assert_eq!(
            judge(&answered(429, Some(busy.clone()))),
            Verdict::Again(busy.into())
        );
        let nothing = problem(503, code::NO_APPLICATION).retryable();
        let verdict = judge(&answered(503, Some(nothing.clone())));
        assert_eq!(verdict, Verdict::Final(nothing.into()));
        let unknown = |verdict| matches!(verdict, Verdict::Unknown(_));
        assert!(unknown(judge(&answered(
            504,
            Some(problem(504, code::TIMEOUT).unknown())
        ))));
        assert!(unknown(judge(&answered(
            409,
            Some(problem(409, code::IN_FLIGHT))
        ))));
        assert!(
            unknown(judge(&answered(502, None))),
            "a proxy's answer says nothing"
        );
        let lost = NoAnswer::Lost {
            url: "u".into(),
            why: "w".into(),
        };
        assert!(unknown(judge(&Err(lost))));
        let not_sent = NoAnswer::NotSent {
            url: "u".into(),
            why: "w".into(),
        };
        assert_eq!(judge(&Err(not_sent.clone())), Verdict::NotReached(not_sent));
    }

    #[test]
    fn names_are_one_part_of_the_path() {
        assert_eq!(part("orders.place"), "orders.place");
        assert_eq!(part("a/../b?c"), "a%2F..%2Fb%3Fc");
    }
}
