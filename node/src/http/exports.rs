//! `GET /v1/admin/export` and `POST /v1/admin/import`: lines of JSON in both directions. What
//! they mean is decided elsewhere.

use axum::{
    body::Body,
    extract::{Query, Request, State},
    response::Response,
};
use bytes::Bytes;
use flower_api::{
    explain,
    export::{Import, PAGE_BYTES},
    limits,
    wire::{Problem, header},
};
use http::{HeaderValue, header as standard};
use serde::Deserialize;

use super::{
    Front,
    admin::{BODY, ESCAPED, LIMIT, led},
    body::{self, Bound},
    problem::{malformed, respond, set},
};
use crate::auth::Api;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    #[serde(default)]
    cells: bool,
    #[serde(default)]
    read: Option<String>,
}

pub(super) async fn export(State(front): State<Front>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let id = front.request_id(&parts);
    let deadline = front.0.env.clock.mono() + LIMIT;
    let opened = async {
        front.authenticate(Api::Admin, &parts.headers)?;
        let Query(wanted): Query<Wanted> =
            Query::try_from_uri(&parts.uri).map_err(|e| malformed(e.to_string()))?;
        let class = explain::class(wanted.read.as_deref()).map_err(malformed)?;
        front.service()?.export(wanted.cells, class, deadline).await
    };
    match opened.await {
        Err(problem) => respond(*problem, &id),
        Ok(pages) => {
            let mut response = Response::new(Body::from_stream(pages));
            let headers = response.headers_mut();
            let kind = HeaderValue::from_static("application/x-ndjson");
            headers.insert(standard::CONTENT_TYPE, kind);
            set(headers, header::REQUEST_ID, &id);
            response
        }
    }
}

pub(super) async fn import(State(front): State<Front>, request: Request) -> Response {
    let bundle = front.0.settings.bundle_bytes * ESCAPED;
    // A page is over its size by one line at most; the manifest lies beside the bundle.
    let page = PAGE_BYTES as u64 + ESCAPED * limits::RECORD_BYTES;
    let bound = Bound {
        what: "a step of an import",
        bytes: bundle.max(page) + limits::MIB + BODY.bytes,
        setting: "FLOWER_LIMIT_BUNDLE",
    };
    led(
        front,
        request,
        bound,
        |service, bytes, deadline| async move {
            let (call, lines) = split(&bytes)?;
            service.import(call, lines.into(), deadline).await
        },
    )
    .await
}

/// The call on the first line, and the lines after it.
fn split(bytes: &Bytes) -> Result<(Import, &str), Box<Problem>> {
    let text = std::str::from_utf8(bytes).map_err(|_| malformed("the body is not UTF-8"))?;
    let (first, lines) = text.split_once('\n').unwrap_or((text, ""));
    Ok((body::json(first.as_bytes())?, lines))
}
