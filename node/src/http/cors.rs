//! Calls from pages of other origins (CORS): which may read the answers is a setting. Without
//! it nothing is added, and browsers keep other pages out.

use axum::{body::Body, extract::Request, middleware::Next, response::Response};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use crate::config::CorsOrigins;

const METHODS: &str = "GET, POST, PATCH";
const HEADERS: &str = "authorization, content-type, idempotency-key, if-none-match, \
                       last-event-id, flower-read, flower-request-id";
const EXPOSED: &str = "etag, retry-after, idempotency-key, flower-revision, flower-deployment, \
                       flower-read-served, flower-request-id, flower-replayed, flower-result, \
                       flower-receipt-expires";
/// How long a browser may remember what a preflight said, seconds.
const MAX_AGE: &str = "600";

/// Answers preflights, and says of every answer who may read it.
pub(super) async fn apply(origins: CorsOrigins, request: Request, next: Next) -> Response {
    let origin = request.headers().get(header::ORIGIN).cloned();
    let allowed = origin.filter(|o| o.to_str().is_ok_and(|o| origins.allows(o)));
    let asks = request
        .headers()
        .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let preflight = request.method() == Method::OPTIONS && asks;
    let mut response = match (&allowed, preflight) {
        (Some(_), true) => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            let headers = response.headers_mut();
            let set = |headers: &mut HeaderMap, name, value| {
                headers.insert(name, HeaderValue::from_static(value));
            };
            set(headers, header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
            set(headers, header::ACCESS_CONTROL_ALLOW_HEADERS, HEADERS);
            set(headers, header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
            response
        }
        _ => next.run(request).await,
    };
    let headers = response.headers_mut();
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    if let Some(origin) = allowed {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        let exposed = HeaderValue::from_static(EXPOSED);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
    response
}
