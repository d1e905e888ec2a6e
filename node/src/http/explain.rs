//! `POST /v1/admin/explain/…`: asks, and changes nothing.

use axum::{
    extract::{Request, State},
    response::Response,
};

use super::{
    Front,
    admin::{BODY, answer},
    body::{self, Bound},
};

pub(super) async fn cell(State(front): State<Front>, request: Request) -> Response {
    answer(front, request, BODY, |front, bytes, deadline| async move {
        let ask = body::json(&bytes)?;
        front.service()?.explain_cell(ask, deadline).await
    })
    .await
}

pub(super) async fn query(State(front): State<Front>, request: Request) -> Response {
    let bound = Bound {
        what: "the question",
        bytes: front.0.settings.limits.args_bytes + BODY.bytes,
        setting: "FLOWER_LIMIT_ARGS",
    };
    answer(front, request, bound, |front, bytes, deadline| async move {
        let ask = body::json(&bytes)?;
        front.service()?.explain_query(ask, deadline).await
    })
    .await
}
