//! The admin API, health and metrics. Every call that changes something is fenced: by the
//! FlowerCluster that it acts for (stored through the lane) and by the configuration that it
//! was planned against (checked by consensus).

use std::time::Duration;

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    response::Response,
    routing::{get, post},
};
use flower_api::{
    admin::{AddLearner, Bootstrap, Deploy, Done, Fence, OfMember, Recover, path},
    report::Report,
    wire::{Problem, code, header},
};
use http::{HeaderValue, StatusCode, header as standard};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    Front, Stage, Verdict,
    body::{self, Bound},
    explain, exports,
    problem::{method_not_allowed, not_found, respond, set},
};
use crate::{auth::Api, env::Mono, route::Origin, service::Service};

/// Bodies but for a bundle.
pub(super) const BODY: Bound = Bound {
    what: "the body",
    bytes: 64 * 1024,
    setting: "",
};
/// A bundle as a JSON string may take so many times its bytes, and a little around it.
pub(super) const ESCAPED: u64 = 2;
/// How long an admin call may take: a transfer and its waits fit.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// The routes of the admin port.
pub(super) fn router(front: Front) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route(path::IDENTITY, get(identity))
        .route(path::REPORT, get(report))
        .route(path::BOOTSTRAP, post(bootstrap))
        .route(path::ADD_LEARNER, post(add_learner))
        .route(path::PROMOTE, post(promote))
        .route(path::REMOVE, post(remove))
        .route(path::TRANSFER, post(transfer))
        .route(path::FORMED, post(formed))
        .route(path::DEPLOY, post(deploy))
        .route(path::DEPLOYMENT, get(deployment))
        .route(path::EXPLAIN_CELL, post(explain::cell))
        .route(path::EXPLAIN_QUERY, post(explain::query))
        .route(path::EXPORT, get(exports::export))
        .route(path::IMPORT, post(exports::import))
        .route(path::CHECKPOINT, post(checkpoint))
        .route(path::RECOVERY, get(recovery))
        .route(path::RECOVER, post(recover))
        .route(path::PREPARE_STOP, post(prepare_stop))
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

/// A line of text with a status.
fn text(status: StatusCode, line: impl Into<String>) -> Response {
    let mut response = Response::new(Body::from(line.into() + "\n"));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(standard::CONTENT_TYPE, kind);
    response
}

async fn livez(State(front): State<Front>) -> Response {
    match front.is_alive().await {
        Ok(()) => text(StatusCode::OK, "alive"),
        Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, why),
    }
}

async fn readyz(State(front): State<Front>) -> Response {
    match front.verdict() {
        Verdict::Ready => text(StatusCode::OK, "ready"),
        Verdict::NotReady(why) => text(StatusCode::SERVICE_UNAVAILABLE, why),
    }
}

async fn metrics(State(front): State<Front>) -> Response {
    let Some(service) = front.running() else {
        return text(
            StatusCode::SERVICE_UNAVAILABLE,
            "the node does not serve yet",
        );
    };
    match service.report(front.verdict().reason()) {
        Err(fatal) => text(StatusCode::INTERNAL_SERVER_ERROR, fatal.to_string()),
        Ok(report) => {
            let mut observed = service.observed();
            observed.apply_lag_seconds = *front.0.lag_seconds.lock();
            let mut response = text(StatusCode::OK, "");
            let exposition = front.0.metrics.exposition(&report, &observed);
            *response.body_mut() = Body::from(exposition);
            let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            response.headers_mut().insert(standard::CONTENT_TYPE, kind);
            response
        }
    }
}

/// Answers one call of the admin API: id, token, body, log line.
pub(super) async fn answer<T: Serialize, R: Future<Output = Result<T, Box<Problem>>> + Send>(
    front: Front,
    request: Request,
    bound: Bound,
    run: impl FnOnce(Front, bytes::Bytes, Mono) -> R + Send,
) -> Response {
    let (parts, body) = request.into_parts();
    let id = front.request_id(&parts);
    let deadline = front.0.env.clock.mono() + LIMIT;
    let changes = parts.method != http::Method::GET;
    let result = async {
        front.authenticate(Api::Admin, &parts.headers)?;
        let body = body::read(&front.0.env, body, bound, deadline).await?;
        run(front.clone(), body, deadline).await
    }
    .await;
    let call = parts.uri.path();
    match result {
        Ok(value) => {
            if changes {
                tracing::info!(request_id = %id, call, "done");
            }
            let body = serde_json::to_vec(&value).unwrap_or_default();
            let mut response = Response::new(Body::from(body));
            let headers = response.headers_mut();
            let kind = HeaderValue::from_static("application/json");
            headers.insert(standard::CONTENT_TYPE, kind);
            set(headers, header::REQUEST_ID, &id);
            response
        }
        Err(problem) => {
            let (code, detail) = (&problem.code, &problem.detail);
            tracing::warn!(request_id = %id, call, code, detail, "refused");
            respond(*problem, &id)
        }
    }
}

async fn identity(State(front): State<Front>, request: Request) -> Response {
    answer(front, request, BODY, |front, _, _| async move {
        match &**front.0.stage.load() {
            Stage::Broken(identity) => Ok((**identity).clone()),
            Stage::Running(service) => Ok(service.identity()),
            Stage::Opening => Err(super::problem::not_ready("this node is opening its data")),
        }
    })
    .await
}

async fn report(State(front): State<Front>, request: Request) -> Response {
    answer(front, request, BODY, |front, _, _| async move {
        // The operator replaces a member whose data is lost; it must hear of it.
        if let Stage::Broken(identity) = &**front.0.stage.load() {
            let why = front.verdict().reason().unwrap_or_default();
            return Ok(Report::bare((**identity).clone(), why));
        }
        let service = front.service()?;
        service
            .report(front.verdict().reason())
            .map_err(|fatal| Box::new(internal(fatal.to_string())))
    })
    .await
}

/// A fenced call of consensus: its body parsed, the FlowerCluster checked, then done.
async fn fenced<C: DeserializeOwned + Send, R>(
    front: Front,
    request: Request,
    fence: impl Fn(&C) -> &Fence + Send,
    run: impl FnOnce(Service, C) -> R + Send,
) -> Response
where
    R: Future<Output = Result<Done, Box<Problem>>> + Send,
{
    answer(front, request, BODY, |front, bytes, deadline| async move {
        let call: C = body::json(&bytes)?;
        let service = front.service()?;
        service.act_for(fence(&call), deadline).await?;
        run(service, call).await
    })
    .await
}

async fn add_learner(State(front): State<Front>, request: Request) -> Response {
    fenced(
        front,
        request,
        |c: &AddLearner| &c.fence,
        |service, call| async move {
            service
                .consensus
                .add_learner(&call)
                .await
                .map_err(Into::into)
        },
    )
    .await
}

async fn promote(State(front): State<Front>, request: Request) -> Response {
    fenced(
        front,
        request,
        |c: &OfMember| &c.fence,
        |service, call| async move { service.consensus.promote(&call).await.map_err(Into::into) },
    )
    .await
}

async fn remove(State(front): State<Front>, request: Request) -> Response {
    fenced(
        front,
        request,
        |c: &OfMember| &c.fence,
        |service, call| async move { service.consensus.remove(&call).await.map_err(Into::into) },
    )
    .await
}

async fn transfer(State(front): State<Front>, request: Request) -> Response {
    fenced(
        front,
        request,
        |c: &OfMember| &c.fence,
        |service, call| async move { service.consensus.transfer(&call).await.map_err(Into::into) },
    )
    .await
}

async fn formed(State(front): State<Front>, request: Request) -> Response {
    answer(front, request, BODY, |front, bytes, deadline| async move {
        let fence: Fence = body::json(&bytes)?;
        let service = front.service()?;
        service.act_for(&fence, deadline).await?;
        service.form(deadline).await
    })
    .await
}

async fn bootstrap(State(front): State<Front>, request: Request) -> Response {
    answer(front, request, BODY, |front, bytes, deadline| async move {
        let call: Bootstrap = body::json(&bytes)?;
        front.service()?.bootstrap(&call, deadline).await
    })
    .await
}

async fn deploy(State(front): State<Front>, request: Request) -> Response {
    let bound = Bound {
        what: "the call with its bundle",
        bytes: front.0.settings.bundle_bytes * ESCAPED + BODY.bytes,
        setting: "FLOWER_LIMIT_BUNDLE",
    };
    led(
        front,
        request,
        bound,
        |service, bytes, deadline| async move {
            let call: Deploy = body::json(&bytes)?;
            service.deploy(call, deadline).await
        },
    )
    .await
}

/// A call that the leader answers: sent on to it from another node.
pub(super) async fn led<T, R>(
    front: Front,
    request: Request,
    bound: Bound,
    run: impl FnOnce(Service, bytes::Bytes, Mono) -> R + Send,
) -> Response
where
    T: Serialize + DeserializeOwned + Send,
    R: Future<Output = Result<T, Box<Problem>>> + Send,
{
    let (mut parts, body) = request.into_parts();
    // One id here and at the leader.
    let request_id = front.request_id(&parts);
    set(&mut parts.headers, header::REQUEST_ID, &request_id);
    let origin = Origin {
        request_id,
        authorization: parts.headers.get(standard::AUTHORIZATION).cloned(),
        forwarded: parts.headers.contains_key(header::FORWARDED_BY),
        deadline: front.0.env.clock.mono() + LIMIT,
    };
    let path = parts.uri.path().to_owned();
    let request = Request::from_parts(parts, body);
    answer(front, request, bound, |front, bytes, deadline| async move {
        let service = front.service()?;
        let above = front.0.settings.admin_above_peer;
        let there = service.router.admin_there(&path, &bytes, &origin, above);
        if let Some(answer) = there.await {
            return answer;
        }
        run(service, bytes, deadline).await
    })
    .await
}

async fn deployment(State(front): State<Front>, request: Request) -> Response {
    answer(front, request, BODY, |front, _, _| async move {
        front.service()?.active_deployment()
    })
    .await
}

async fn checkpoint(State(front): State<Front>, request: Request) -> Response {
    answer(front, request, BODY, |front, _, _| async move {
        let service = front.service()?;
        let made = service.consensus.checkpoint().await;
        made.map_err(|fatal| Box::new(internal(fatal.to_string())))?;
        Ok(service.done())
    })
    .await
}

async fn recovery(State(front): State<Front>, request: Request) -> Response {
    answer(front, request, BODY, |front, _, _| async move {
        let service = front.service()?;
        Ok(service.consensus.survey(service.identity()).await)
    })
    .await
}

async fn recover(State(front): State<Front>, request: Request) -> Response {
    answer(front, request, BODY, |front, bytes, _| async move {
        let call: Recover = body::json(&bytes)?;
        let service = front.service()?;
        let identity = service.identity();
        service.consensus.recover(&call, identity).await?;
        Ok(service.done())
    })
    .await
}

async fn prepare_stop(State(front): State<Front>, request: Request) -> Response {
    answer(front, request, BODY, |front, _, _| async move {
        front.prepare_stop().await;
        Ok(front.running().map_or(
            Done {
                configuration: None,
            },
            |service| service.done(),
        ))
    })
    .await
}

fn internal(detail: impl Into<String>) -> Problem {
    Problem::new(500, code::INTERNAL, "Internal error", detail)
}
