//! Problems as HTTP answers (RFC 9457), and those of HTTP itself: bad bodies, headers, paths.

use std::fmt::Display;

use axum::{body::Body, response::Response};
use flower_api::wire::{Problem, code, header};
use http::{HeaderValue, StatusCode, header as standard};

/// The answer that carries a problem.
pub(super) fn respond(mut problem: Problem, request_id: &str) -> Response {
    request_id.clone_into(&mut problem.request_id);
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = serde_json::to_vec(&problem).unwrap_or_default();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        standard::CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    if status == StatusCode::UNAUTHORIZED {
        let scheme = HeaderValue::from_static("Bearer");
        headers.insert(standard::WWW_AUTHENTICATE, scheme);
    }
    let busy = [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::SERVICE_UNAVAILABLE,
    ];
    if problem.retryable && busy.contains(&status) {
        headers.insert(standard::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    set(headers, header::REQUEST_ID, request_id);
    if let Some(revision) = problem.revision {
        set(headers, header::REVISION, revision);
    }
    response
}

/// Sets a header; a value that cannot be one is left out.
pub(super) fn set(headers: &mut http::HeaderMap, name: &'static str, value: impl Display) {
    if let Ok(value) = HeaderValue::try_from(value.to_string()) {
        headers.insert(name, value);
    }
}

/// The value of a header that may be given once.
pub(super) fn only<'a>(
    headers: &'a http::HeaderMap,
    name: &str,
) -> Result<Option<&'a HeaderValue>, Box<Problem>> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    match values.next() {
        None => Ok(first),
        Some(_) => Err(malformed(format!(
            "header {name} is given more than once; send one"
        ))),
    }
}

/// 400: no request of this API.
pub(super) fn malformed(detail: impl Into<String>) -> Box<Problem> {
    Box::new(Problem::new(
        400,
        code::MALFORMED,
        "Malformed request",
        detail,
    ))
}

/// 404: no such path.
pub(super) fn not_found(path: &str) -> Problem {
    let path: String = path.chars().take(128).collect();
    Problem::new(
        404,
        code::NOT_FOUND,
        "Not found",
        format!("there is nothing at {path}; the API begins at /v1"),
    )
}

/// 405: another method.
pub(super) fn method_not_allowed(method: &http::Method, path: &str) -> Problem {
    let path: String = path.chars().take(128).collect();
    Problem::new(
        405,
        code::METHOD_NOT_ALLOWED,
        "Method not allowed",
        format!("{path} does not answer {method}"),
    )
}

/// 413: a body over its limit.
pub(super) fn too_large(what: &str, limit: u64, setting: &str) -> Box<Problem> {
    Box::new(
        Problem::new(
            413,
            code::TOO_LARGE,
            "Too large",
            format!("{what} may have at most {limit} bytes"),
        )
        .setting(setting),
    )
}

/// 503: the node is starting, or its data is lost.
pub(super) fn not_ready(why: impl Into<String>) -> Box<Problem> {
    Box::new(Problem::new(503, code::NOT_READY, "Not ready", why).retryable())
}
