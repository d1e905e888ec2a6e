//! `flower watch`: one query, followed over reconnections without a gap. What a frame means is
//! decided by the pure [`Follower`].

use std::time::{Duration, Instant};

use clap::Args;
use flower_api::{
    watch::{Changed, Failed, Moved, Open, Query, Reload, Step, frame},
    wire::{Problem, code},
};
use serde_json::{json, value::RawValue};

use super::{ClientTarget, Failure, Output, call::check_json, print};
use crate::client::{Answer, Api, NoAnswer, Stream, sse::Event};

/// A node answers within its own limit, which is shorter.
const ATTEMPT: Duration = Duration::from_secs(15);
/// A node says every 15 s at least that there is nothing new; twice that, and it is gone.
const SILENCE: Duration = Duration::from_secs(35);
/// How long a node that was never reached is tried for: a wrong address is told soon.
const REACH: Duration = Duration::from_secs(5);
/// Between attempts: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

#[derive(Debug, Args)]
pub(super) struct WatchArgs {
    /// Name of the query.
    name: String,
    /// Its arguments, JSON.
    #[arg(default_value = "{}")]
    args: String,
    /// End after so many results; a fault that the query declares counts as one.
    #[arg(long, value_name = "NUMBER")]
    steps: Option<u64>,
    #[command(flatten)]
    at: ClientTarget,
}

/// What is known so far.
#[derive(Debug, Default)]
struct Follower {
    etag: Option<String>,
    revision: Option<String>,
    steps: u64,
}

/// What a frame means.
#[derive(Debug)]
enum Meaning {
    /// Another result.
    Result(Box<RawValue>),
    /// The query has no result now.
    NoResult(Box<Problem>),
    /// Another deployment answers.
    Reload(String),
    /// Go on elsewhere, after a while.
    Moved(Duration),
    /// The watch has ended.
    Ended(Box<Problem>),
    /// Nothing to show.
    Nothing,
}

impl Follower {
    fn take(&mut self, event: &Event) -> Result<Meaning, serde_json::Error> {
        let meaning = match event.name.as_str() {
            frame::STEP => {
                let step: Step = serde_json::from_str(&event.data)?;
                match step.changes.into_iter().next() {
                    Some(Changed { etag, value, .. }) => {
                        self.etag = Some(etag);
                        self.steps += 1;
                        Meaning::Result(value)
                    }
                    None => Meaning::Nothing,
                }
            }
            frame::ERROR => {
                let failed: Failed = serde_json::from_str(&event.data)?;
                match failed.q {
                    // Nothing that is written later makes another answer of such a call.
                    Some(_) if self.steps == 0 && is_wrong_call(&failed.problem) => {
                        Meaning::Ended(Box::new(failed.problem))
                    }
                    Some(_) => {
                        self.etag = None;
                        self.steps += 1;
                        Meaning::NoResult(Box::new(failed.problem))
                    }
                    None => Meaning::Ended(Box::new(failed.problem)),
                }
            }
            frame::RELOAD => {
                let reload: Reload = serde_json::from_str(&event.data)?;
                Meaning::Reload(reload.deployment)
            }
            frame::MOVED => {
                let moved: Moved = serde_json::from_str(&event.data)?;
                Meaning::Moved(Duration::from_millis(moved.retry_ms))
            }
            _ => Meaning::Nothing,
        };
        if let Some(id) = &event.id {
            self.revision = Some(id.clone());
        }
        Ok(meaning)
    }

    fn body(&self, name: &str, args: &RawValue) -> Vec<u8> {
        let open = Open {
            queries: vec![Query {
                id: Some("q".into()),
                name: name.to_owned(),
                args: Some(args.to_owned()),
                etag: self.etag.clone(),
            }],
        };
        serde_json::to_vec(&open).unwrap_or_default()
    }
}

/// Whether the call itself is wrong, not what it found.
fn is_wrong_call(problem: &Problem) -> bool {
    [code::INVALID_ARGS, code::UNKNOWN_FUNCTION].contains(&problem.code.as_str())
}

/// What a refusal means for the next attempt: how long to wait, or the end.
fn refused(answer: &Answer, pause: Duration) -> Result<Duration, Failure> {
    let told = answer.header("retry-after").and_then(|s| s.parse().ok());
    let pause = told.map_or(pause, Duration::from_secs);
    match serde_json::from_slice::<Problem>(&answer.body) {
        // Somebody has to deploy first: waiting here would only look stuck.
        Ok(problem) if problem.code == code::NO_APPLICATION => Err(problem.into()),
        Ok(problem) if !problem.retryable => Err(problem.into()),
        _ => Ok(pause),
    }
}

pub(super) async fn watch(args: WatchArgs, output: Output) -> Result<(), Failure> {
    check_json(&args.args)?;
    let given = RawValue::from_string(args.args.clone());
    let given = given.map_err(|e| Failure::here(format!("the arguments are no JSON: {e}")))?;
    let api = args.at.api()?;
    let mut follower = Follower::default();
    let (begun, mut reached) = (Instant::now(), false);
    let mut pause = PAUSES.0;
    loop {
        let mut wait = pause;
        match open(&api, &follower, &args.name, &given).await {
            Ok(Ok(mut stream)) => {
                reached = true;
                pause = PAUSES.0;
                match follow(&mut stream, &mut follower, &args, output).await? {
                    Next::Done => return Ok(()),
                    Next::After(told) => wait = told,
                }
            }
            Ok(Err(answer)) => {
                reached = true;
                wait = refused(&answer, pause)?;
            }
            Err(why) if !reached && begun.elapsed() >= REACH => return Err(why.into()),
            Err(why) => told_lost(&why, reached),
        }
        pause = (pause * 2).min(PAUSES.1);
        tokio::time::sleep(wait).await;
    }
}

/// A connection that was lost is told once it was there.
fn told_lost(why: &NoAnswer, reached: bool) {
    if reached {
        print::complain(format_args!("{why}; trying again"));
    }
}

async fn open(
    api: &Api,
    follower: &Follower,
    name: &str,
    args: &RawValue,
) -> Result<Result<Stream, Answer>, NoAnswer> {
    let revision = follower.revision.clone();
    let headers: Vec<_> = revision
        .map(|id| ("last-event-id", id))
        .into_iter()
        .collect();
    let body = follower.body(name, args).into();
    api.stream("/v1/p/_/watch", &headers, body, ATTEMPT).await
}

enum Next {
    Done,
    After(Duration),
}

/// Prints what a stream tells until it ends.
async fn follow(
    stream: &mut Stream,
    follower: &mut Follower,
    args: &WatchArgs,
    output: Output,
) -> Result<Next, Failure> {
    loop {
        let next = tokio::time::timeout(SILENCE, stream.next()).await;
        let Ok(Some(event)) = next else {
            return Ok(Next::After(PAUSES.0));
        };
        let meaning = follower.take(&event);
        let meaning = meaning.map_err(|e| Failure::here(format!("a frame makes no sense: {e}")))?;
        let revision = follower
            .revision
            .as_deref()
            .and_then(|r| r.parse::<u64>().ok());
        match (meaning, output) {
            (Meaning::Result(value), Output::Text) => print::line(value),
            (Meaning::Result(value), Output::Json) => {
                let etag = &follower.etag;
                print::line(json!({ "revision": revision, "etag": etag, "value": value }));
            }
            (Meaning::NoResult(problem), Output::Text) => print::complain(problem),
            (Meaning::NoResult(problem), Output::Json) => {
                let at = problem.revision;
                print::line(json!({ "revision": at, "problem": problem }));
            }
            (Meaning::Reload(hash), _) => {
                print::complain(format_args!("deployment {hash} answers now"))
            }
            (Meaning::Moved(after), _) => return Ok(Next::After(after)),
            (Meaning::Ended(problem), _) => return Err((*problem).into()),
            (Meaning::Nothing, _) => {}
        }
        if args.steps.is_some_and(|steps| follower.steps >= steps) {
            return Ok(Next::Done);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, id: Option<&str>, data: &str) -> Event {
        Event {
            name: name.into(),
            id: id.map(str::to_owned),
            data: data.into(),
        }
    }

    #[test]
    fn a_follower_goes_on_from_what_it_was_told_last() {
        let mut follower = Follower::default();
        let args = RawValue::from_string("{\"x\":1.0}".into()).unwrap();
        let body = |f: &Follower| String::from_utf8(f.body("q", &args)).unwrap();
        assert_eq!(
            body(&follower),
            r#"{"queries":[{"id":"q","name":"q","args":{"x":1.0}}]}"#
        );
        let open = event("open", None, "{\"watch\":\"w\",\"revision\":0}");
        assert!(matches!(follower.take(&open), Ok(Meaning::Nothing)));
        let step = r#"{"from":0,"to":7,"changes":[{"q":"q","etag":"\"e\"","value":[1.0]}]}"#;
        let result = follower.take(&event("step", Some("7"), step)).unwrap();
        assert!(matches!(result, Meaning::Result(value) if value.get() == "[1.0]"));
        let same = event("same", Some("9"), "{\"to\":9}");
        assert!(matches!(follower.take(&same), Ok(Meaning::Nothing)));
        assert_eq!(follower.revision.as_deref(), Some("9"));
        assert!(body(&follower).contains(r#""etag":"\"e\"""#));
        // Without a result there is none to go on from.
        let problem = serde_json::to_string(&Problem::new(404, "fault:gone", "Gone", "g")).unwrap();
        let error = format!("{{\"q\":\"q\",\"to\":9,\"problem\":{problem}}}");
        let failed = follower.take(&event("error", None, &error)).unwrap();
        assert!(matches!(failed, Meaning::NoResult(_)));
        assert_eq!(follower.steps, 2);
        let wrong = Problem::new(400, code::INVALID_ARGS, "Wrong", "w");
        let wrong = serde_json::to_string(&wrong).unwrap();
        let wrong = event(
            "error",
            None,
            &format!("{{\"q\":\"q\",\"problem\":{wrong}}}"),
        );
        let later = follower.take(&wrong).unwrap();
        assert!(
            matches!(later, Meaning::NoResult(_)),
            "another deployment may take it"
        );
        let at_once = Follower::default().take(&wrong).unwrap();
        assert!(matches!(at_once, Meaning::Ended(_)));
        assert!(!body(&follower).contains("etag"));
        let ended = format!("{{\"problem\":{problem}}}");
        let ended = follower.take(&event("error", None, &ended)).unwrap();
        assert!(matches!(ended, Meaning::Ended(_)));
        let moved = event("moved", None, "{\"why\":\"w\",\"retryMs\":5}");
        let moved = follower.take(&moved).unwrap();
        assert!(matches!(moved, Meaning::Moved(after) if after.as_millis() == 5));
        assert!(follower.take(&event("step", None, "{")).is_err());
    }
}
