//! Queries over HTTP: their arguments from a body or from the URL, their answers with a tag, or
//! 304 for what the client has already.

use axum::{
    body::Body,
    extract::{Request, State},
    response::Response,
};
use flower_api::wire::{Problem, ReadClass, header};
use http::{HeaderValue, StatusCode, header as standard};

use super::{
    Front, body,
    calls::{Answer, Call, decode, json, serve},
    problem::{malformed, set, too_large},
};
use crate::{
    metrics::CallKind,
    query::{canonical, is_named},
};

pub(super) async fn query(State(front): State<Front>, request: Request) -> Response {
    serve(front, Some(CallKind::Query), request, run_query).await
}

async fn run_query(call: Call, body: Body) -> Answer {
    let name = call.function()?;
    let class = match call.header(header::READ)? {
        Some(text) => text.parse::<ReadClass>().map_err(malformed)?,
        None => ReadClass::Local,
    };
    let (args, _share) = if call.parts.method == http::Method::POST {
        let (bytes, share) = call.body(body).await?;
        (body::arguments(&bytes)?, Some(share))
    } else {
        (body::arguments(args_parameter(&call)?.as_bytes())?, None)
    };
    let args =
        canonical(&args).map_err(|why| malformed(format!("the arguments are wrong: {why}")))?;
    let service = call.service()?;
    let answer = service
        .reader
        .query(&name, &args, class, call.deadline)
        .await?;
    // What is no printable text names no result.
    let named = call.parts.headers.get_all(standard::IF_NONE_MATCH).iter();
    let mut named = named.filter_map(|value| value.to_str().ok());
    let mut response = match named.any(|value| is_named(value, answer.etag)) {
        false => json(StatusCode::OK, answer.result),
        true => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        }
    };
    let headers = response.headers_mut();
    set(headers, header::REQUEST_ID, &call.id);
    set(headers, header::REVISION, answer.revision);
    set(headers, header::DEPLOYMENT, answer.deployment);
    set(headers, header::READ_SERVED, class);
    set(headers, standard::ETAG.as_str(), answer.etag);
    let vary = HeaderValue::from_static("authorization, flower-read");
    headers.insert(standard::VARY, vary);
    headers.insert(
        standard::CACHE_CONTROL,
        HeaderValue::from_static("private, no-cache"),
    );
    Ok(response)
}

/// The one parameter of a query by GET.
fn args_parameter(call: &Call) -> Result<String, Box<Problem>> {
    let mut args = None;
    for pair in call.parts.uri.query().unwrap_or_default().split('&') {
        match pair.split_once('=') {
            _ if pair.is_empty() => {}
            Some(("args", value)) if args.is_none() => {
                let decoded = decode(&value.replace('+', " "));
                args = Some(decoded.ok_or_else(|| malformed("'args' is not percent-encoded"))?);
            }
            _ => {
                let shown: String = pair.chars().take(64).collect();
                return Err(malformed(format!(
                    "'{shown}' is no parameter of a query; there is one, 'args'"
                )));
            }
        }
    }
    let args = args.unwrap_or_default();
    let bound = call.args_bound();
    if args.len() as u64 > bound.bytes {
        return Err(too_large(bound.what, bound.bytes, bound.setting));
    }
    Ok(args)
}
