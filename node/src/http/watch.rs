//! `POST /watch` and `PATCH /watch/{id}`: what a client may ask for is checked here; what it
//! is told comes from `crate::watch`.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Request, State},
    response::Response,
};
use bytes::Bytes;
use flower_api::{
    Revision,
    watch::{Change, Open, Patched, Query, WatchId},
    wire::{Problem, ReadClass, code, header},
};
use http::{HeaderValue, Method, StatusCode, header as standard};

use super::{
    Front, body,
    calls::{Answer, Call, function_name, json, passed_on, serve},
    problem::{malformed, respond, set},
};
use crate::{
    auth::Api,
    query::{Key, canonical},
    watch::{self, Allowed, Wanted, hub::Ask},
};

/// Longest id of a query within a watch.
const ID_CHARS: usize = 128;
/// Longest etag that is looked at.
const ETAG_CHARS: usize = 128;

pub(super) async fn open(State(front): State<Front>, request: Request) -> Response {
    serve(front, None, request, run_open).await
}

pub(super) async fn change(State(front): State<Front>, request: Request) -> Response {
    serve(front, None, request, run_change).await
}

async fn run_open(call: Call, body: Body) -> Answer {
    let service = call.service()?;
    if service.watches.is_closing() {
        return Err(Box::new(watch::stopping()));
    }
    if let Err(wait) = service.watches.admit() {
        return Ok(too_many(wait, &call.id));
    }
    let from = last_event(&call)?;
    let (bytes, _share) = call.body(body).await?;
    let wanted: Open = body::json(&bytes)?;
    let asks = asks(&wanted.queries, true)?;
    // Whoever was told a revision never goes back behind it, on whichever node.
    let class = ReadClass::Session { min: from };
    let view = service.reader.view(class, call.deadline).await?;
    service.queries.deployment(&view)?;
    drop(view);
    let (id, stream) = service.watches.open(Wanted {
        asks,
        from,
        allowed: allowed(&call),
    })?;
    let mut response = Response::new(Body::new(stream));
    let headers = response.headers_mut();
    let plain = |value| HeaderValue::from_static(value);
    headers.insert(standard::CONTENT_TYPE, plain("text/event-stream"));
    headers.insert(standard::CACHE_CONTROL, plain("no-store"));
    // nginx would keep the frames until it has a page of them.
    headers.insert("x-accel-buffering", plain("no"));
    set(headers, header::REQUEST_ID, &call.id);
    tracing::debug!(watch = %id, queries = wanted.queries.len(), "a watch is open");
    Ok(response)
}

async fn run_change(call: Call, body: Body) -> Answer {
    let id = call.last_segment()?;
    let id: WatchId = id.parse().map_err(|_| Box::new(watch::gone()))?;
    let (bytes, _share) = call.body(body).await?;
    let change: Change = body::json(&bytes)?;
    let add = asks(&change.add, false)?;
    let service = call.service()?;
    if id.member != service.consensus.me().member {
        return pass_on(&call, id, bytes).await;
    }
    let remove: Vec<Arc<str>> = change.remove.iter().map(|id| id.as_str().into()).collect();
    let queries = service.watches.change(id, &remove, &add)?;
    let patched = Patched {
        watch: id.to_string(),
        queries,
    };
    let text = serde_json::to_string(&patched).unwrap_or_default();
    let mut response = json(StatusCode::OK, text);
    set(response.headers_mut(), header::REQUEST_ID, &call.id);
    Ok(response)
}

/// To the member that serves the watch, one hop.
async fn pass_on(call: &Call, id: WatchId, bytes: Bytes) -> Answer {
    let origin = call.origin();
    let service = call.service()?;
    if origin.forwarded {
        return Err(Box::new(watch::gone()));
    }
    let Some(address) = service.consensus.client_address(id.member).await else {
        return Err(Box::new(watch::gone()));
    };
    let path = call.parts.uri.path();
    let sent = service
        .router
        .pass_on(&Method::PATCH, path, &origin, &address, bytes)
        .await;
    match sent {
        Ok(answer) => Ok(passed_on(answer)),
        Err(_) => Err(Box::new(
            Problem::new(
                503,
                code::NOT_READY,
                "Not reached",
                format!(
                    "member {}, which serves this watch, does not answer; try again, or open a \
                     new watch",
                    id.member
                ),
            )
            .unknown(),
        )),
    }
}

/// Asked for as long as the watch is open: a token that is taken back ends it.
fn allowed(call: &Call) -> Allowed {
    let (front, given) = (call.front.clone(), call.parts.headers.clone());
    Arc::new(move || front.authenticate(Api::Client, &given).map(drop))
}

/// The revision up to which the client has everything.
fn last_event(call: &Call) -> Result<Revision, Box<Problem>> {
    let Some(text) = call.header("last-event-id")? else {
        return Ok(Revision(0));
    };
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let parsed = text.parse().ok().filter(|_| digits);
    parsed.map(Revision).ok_or_else(|| {
        let shown: String = text.chars().take(64).collect();
        malformed(format!(
            "Last-Event-ID is '{shown}', which is not the id of a frame: a revision"
        ))
    })
}

/// The queries, checked. Without an id they have their place, where `placed`.
fn asks(queries: &[Query], placed: bool) -> Result<Vec<Ask>, Box<Problem>> {
    let ask = |(at, query): (usize, &Query)| {
        let id = match &query.id {
            Some(id) if (1..=ID_CHARS).contains(&id.len()) => id.clone(),
            Some(_) => {
                let why = format!("query {at}: an id has 1 to {ID_CHARS} bytes");
                return Err(malformed(why));
            }
            None if placed => at.to_string(),
            None => return Err(malformed(format!("query {at} to add has no id"))),
        };
        let args = query.args.as_ref().map_or("{}", |args| args.get());
        let args = canonical(args)
            .map_err(|why| malformed(format!("query {at}: the arguments are wrong: {why}")))?;
        let has = query.etag.as_ref().filter(|tag| tag.len() <= ETAG_CHARS);
        Ok(Ask {
            id: id.into(),
            key: Key {
                name: function_name(&query.name)?.into(),
                args: args.into(),
            },
            // What is no tag of ours is a result that the client does not have.
            has: has.and_then(|tag| tag.parse().ok()),
        })
    };
    queries.iter().enumerate().map(ask).collect()
}

/// 429: too many come at once.
fn too_many(wait: Duration, request_id: &str) -> Response {
    let problem = Problem::new(
        429,
        code::OVERLOADED,
        "Overloaded",
        format!(
            "too many watches are being opened on this node; come back in {:.1} s, or ask \
             another one",
            wait.as_secs_f64()
        ),
    )
    .retryable()
    .setting("FLOWER_LIMIT_WATCH_OPENS");
    let mut response = respond(problem, request_id);
    let seconds = wait.as_secs_f64().ceil().max(1.0);
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::try_from(format!("{seconds}")) {
        headers.insert(standard::RETRY_AFTER, value);
    }
    response
}
