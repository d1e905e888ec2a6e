//! The client API: its routes, and what all its calls have in common: an id, a deadline,
//! credentials, a partition, a log line, metrics. What the calls answer is made elsewhere.

use std::{sync::atomic::Ordering, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    middleware::{self, Next},
    response::Response,
    routing::{get, patch, post},
};
use flower_api::{
    PartitionId,
    wire::{Outcome, Problem, code, header},
};
use http::{
    HeaderMap, HeaderValue, StatusCode, Version,
    header::{self as standard, CONNECTION},
    request::Parts,
};
use tracing::Instrument;

use super::{
    Front,
    body::{self, Bound},
    cors, mutation,
    problem::{malformed, method_not_allowed, not_found, only, respond},
    query, watch,
};
use crate::{
    auth::Api,
    dial,
    env::Mono,
    metrics::{CallKind, CallOutcome},
    route::{DEADLINE_MS, Origin},
    service::Service,
};

/// Longest name of a function.
const NAME_CHARS: usize = 128;

pub(super) type Answer = Result<Response, Box<Problem>>;

/// The routes of the client port.
pub(super) fn router(front: Front) -> Router {
    let origins = front.0.settings.cors.clone();
    let leaving = middleware::from_fn_with_state(front.clone(), last_answer);
    let routes = routes(front).layer(leaving);
    match origins.is_none() {
        true => routes,
        false => routes.layer(middleware::from_fn(move |request, next| {
            cors::apply(origins.clone(), request, next)
        })),
    }
}

/// A node that is about to stop tells each HTTP/1.1 connection with its answer that it was the
/// last: a connection that is closed while it waits may be closed under the next call. HTTP/2
/// has GOAWAY for this.
async fn last_answer(State(front): State<Front>, request: Request, next: Next) -> Response {
    let old = request.version() < Version::HTTP_2;
    let mut response = next.run(request).await;
    if old && front.0.leaving.load(Ordering::Relaxed) {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
    }
    response
}

fn routes(front: Front) -> Router {
    Router::new()
        .route(
            "/v1/p/{partition}/q/{name}",
            get(query::query).post(query::query),
        )
        .route("/v1/p/{partition}/m/{name}", post(mutation::mutation))
        .route("/v1/p/{partition}/receipts/{key}", get(mutation::receipt))
        .route("/v1/p/{partition}/watch", post(watch::open))
        .route("/v1/p/{partition}/watch/{id}", patch(watch::change))
        .fallback(nothing)
        .method_not_allowed_fallback(wrong_method)
        .with_state(front)
}

async fn nothing(State(front): State<Front>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    respond(not_found(parts.uri.path()), &front.request_id(&parts))
}

async fn wrong_method(State(front): State<Front>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let problem = method_not_allowed(&parts.method, parts.uri.path());
    respond(problem, &front.request_id(&parts))
}

/// One call.
pub(super) struct Call {
    pub(super) front: Front,
    pub(super) parts: Parts,
    pub(super) id: String,
    pub(super) subject: &'static str,
    pub(super) deadline: Mono,
}

impl Call {
    /// What the path names behind `/v1/p/{partition}/x/`, decoded.
    pub(super) fn last_segment(&self) -> Result<String, Box<Problem>> {
        let segment = self.parts.uri.path().rsplit('/').next().unwrap_or_default();
        decode(segment).ok_or_else(|| malformed("the path is not percent-encoded UTF-8"))
    }

    pub(super) fn function(&self) -> Result<String, Box<Problem>> {
        let name = self.last_segment()?;
        function_name(&name).map(str::to_owned)
    }

    pub(super) fn header(&self, name: &str) -> Result<Option<&str>, Box<Problem>> {
        only(&self.parts.headers, name)?
            .map(|value| {
                value
                    .to_str()
                    .map_err(|_| malformed(format!("header {name} is not printable ASCII")))
            })
            .transpose()
    }

    /// The service of a node that takes part in a group.
    pub(super) fn service(&self) -> Result<Service, Box<Problem>> {
        let service = self.front.service()?;
        service.takes_part()?;
        Ok(service)
    }

    pub(super) fn origin(&self) -> Origin {
        Origin {
            request_id: self.id.clone(),
            authorization: self.parts.headers.get(standard::AUTHORIZATION).cloned(),
            forwarded: self.parts.headers.contains_key(header::FORWARDED_BY),
            deadline: self.deadline,
        }
    }

    pub(super) async fn body(
        &self,
        body: Body,
    ) -> Result<(bytes::Bytes, body::Share), Box<Problem>> {
        let inner = &self.front.0;
        let bound = self.args_bound();
        inner
            .bodies
            .read(&inner.env, body, bound, self.deadline)
            .await
    }

    pub(super) fn args_bound(&self) -> Bound {
        Bound {
            what: "the arguments",
            bytes: self.front.0.settings.limits.args_bytes,
            setting: "FLOWER_LIMIT_ARGS",
        }
    }
}

/// A name that a function can have.
pub(super) fn function_name(name: &str) -> Result<&str, Box<Problem>> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_$.-".contains(&b);
    if (1..=NAME_CHARS).contains(&name.len()) && name.bytes().all(plain) {
        return Ok(name);
    }
    Err(Box::new(Problem::new(
        404,
        code::UNKNOWN_FUNCTION,
        "No such function",
        format!("a function's name has 1 to {NAME_CHARS} letters, digits, '_', '$', '.' or '-'"),
    )))
}

/// What every call has: an id, its time, credentials, a partition, a log line, metrics.
pub(super) async fn serve(
    front: Front,
    kind: Option<CallKind>,
    request: Request,
    run: impl AsyncFnOnceSend,
) -> Response {
    let (parts, body) = request.into_parts();
    let id = front.request_id(&parts);
    let begun = front.0.env.clock.mono();
    // A span of the highest level: whatever lines a filter leaves have their request id.
    let span = tracing::error_span!("call", request_id = %id, path = parts.uri.path());
    let answer = async {
        let answer = match prepare(&front, parts, &id) {
            Ok(call) => run.run(call, body).await,
            Err(problem) => Err(problem),
        };
        if let Err(problem) = &answer
            && problem.status >= 500
        {
            tracing::warn!(
                code = problem.code,
                status = problem.status,
                detail = problem.detail
            );
        }
        answer
    }
    .instrument(span)
    .await;
    let took = (front.0.env.clock.mono() - begun).as_secs_f64();
    if let Some(kind) = kind {
        front.0.metrics.call(kind, outcome(&answer), took);
    }
    answer.unwrap_or_else(|problem| respond(*problem, &id))
}

/// A handler whose future can cross threads.
pub(super) trait AsyncFnOnceSend: Send {
    fn run(self, call: Call, body: Body) -> impl Future<Output = Answer> + Send;
}

impl<F, R> AsyncFnOnceSend for F
where
    F: FnOnce(Call, Body) -> R + Send,
    R: Future<Output = Answer> + Send,
{
    fn run(self, call: Call, body: Body) -> impl Future<Output = Answer> + Send {
        self(call, body)
    }
}

fn prepare(front: &Front, parts: Parts, id: &str) -> Result<Call, Box<Problem>> {
    let subject = front.authenticate(Api::Client, &parts.headers)?;
    let partition = parts.uri.path().split('/').nth(3).unwrap_or_default();
    if partition != PartitionId::ROOT {
        let shown: String = partition.chars().take(64).collect();
        return Err(Box::new(Problem::new(
            404,
            code::UNKNOWN_PARTITION,
            "No such partition",
            format!("there is no partition '{shown}'; the only one is '_'"),
        )));
    }
    let mut deadline = front.deadline();
    let left = parts.headers.get(DEADLINE_MS);
    if let Some(left) = left
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.parse().ok())
    {
        deadline = deadline.min(front.0.env.clock.mono() + Duration::from_millis(left));
    }
    Ok(Call {
        front: front.clone(),
        parts,
        id: id.to_owned(),
        subject: subject.0,
        deadline,
    })
}

fn outcome(answer: &Answer) -> CallOutcome {
    match answer {
        Err(problem) => told(problem),
        Ok(response)
            if response
                .headers()
                .get(header::REPLAYED)
                .is_some_and(|v| v == "true") =>
        {
            CallOutcome::Replayed
        }
        Ok(response) => match response.status() {
            status if status.is_success() => CallOutcome::Ok,
            StatusCode::NOT_MODIFIED => CallOutcome::Ok,
            // A fault that became a receipt, or the leader's own refusal.
            status if status.is_client_error() => CallOutcome::Fault,
            _ => CallOutcome::Failed,
        },
    }
}

fn told(problem: &Problem) -> CallOutcome {
    match problem {
        p if p.outcome == Outcome::Unknown => CallOutcome::Unknown,
        p if p.code.starts_with("fault:") => CallOutcome::Fault,
        p if p.status < 500 => CallOutcome::Refused,
        _ => CallOutcome::Failed,
    }
}

pub(super) fn json(status: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(standard::CONTENT_TYPE, kind);
    response
}

/// The leader's answer, with the headers that are of this API.
pub(super) fn passed_on(answer: dial::Answer) -> Response {
    let mut response = Response::new(Body::from(answer.body));
    *response.status_mut() = answer.status;
    let ours = |name: &str| {
        name.starts_with("flower-")
            || ["content-type", "retry-after", header::IDEMPOTENCY_KEY].contains(&name)
    };
    let headers: &mut HeaderMap = response.headers_mut();
    for (name, value) in &answer.headers {
        if ours(name.as_str()) {
            headers.insert(name.clone(), value.clone());
        }
    }
    response
}

/// Percent-decoded; `None` when that is no UTF-8.
pub(super) fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digit = |b: Option<u8>| char::from(b?).to_digit(16);
        let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
        out.push((high * 16 + low) as u8);
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_codes_are_decoded_or_refused() {
        assert_eq!(decode("a%2Fb%20c"), Some("a/b c".into()));
        assert_eq!(decode("%C3%A4"), Some("ä".into()));
        for bad in ["%", "%2", "%zz", "%ff"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
