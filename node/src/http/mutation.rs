//! Mutations over HTTP, and the receipts that they leave.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    response::Response,
};
use flower_api::{
    PartitionId,
    wire::{Problem, code, header},
};
use flower_engine::{
    lane::{Mutation, Reply},
    receipt::{Ended, Fingerprint, IdempotencyKey, Receipt, Scope},
};
use http::StatusCode;

use super::{
    Front, body,
    calls::{Answer, Call, json, passed_on, serve},
    problem::{malformed, respond, set},
};
use crate::{
    metrics::CallKind,
    route::{KEY_MINTED, Routed, another_answer},
    service::Found,
};

/// Set, to `not-kept`, when the mutation happened and its result was too large to keep.
const RESULT: &str = "flower-result";

pub(super) async fn mutation(State(front): State<Front>, request: Request) -> Response {
    serve(front, Some(CallKind::Mutation), request, run_mutation).await
}

async fn run_mutation(call: Call, body: Body) -> Answer {
    let name = call.function()?;
    let given = call.header(header::IDEMPOTENCY_KEY)?;
    let minted = given.is_none() || call.parts.headers.contains_key(KEY_MINTED);
    let key: IdempotencyKey = match given {
        Some(key) => key.parse()?,
        None => call.front.mint_id().parse()?,
    };
    let (bytes, _share) = call.body(body).await?;
    let args = body::arguments(&bytes)?;
    let fingerprint = Fingerprint::of(&name, &args)
        .map_err(|e| malformed(format!("the arguments are not JSON: {e}")))?;
    let service = call.service()?;
    if service.router.leads()
        && let Some(full) = service.storage_full()
    {
        return Err(Box::new(full));
    }
    let wanted = Mutation {
        scope: Scope {
            partition: PartitionId::ROOT.to_owned(),
            subject: call.subject.to_owned(),
        },
        key: key.clone(),
        minted,
        name,
        args: Arc::from(args),
        fingerprint,
    };
    let routed = service.router.mutate(wanted, &call.origin()).await;
    let mut response = match routed {
        Ok(Routed::There(answer)) => passed_on(answer),
        Ok(Routed::Here(reply)) => mutated(*reply, &call.id)?,
        Err(problem) => respond(*problem, &call.id),
    };
    // Whatever came of it, a retry needs the key.
    set(response.headers_mut(), header::IDEMPOTENCY_KEY, &key);
    Ok(response)
}

fn mutated(reply: Reply, id: &str) -> Answer {
    let Reply::Mutated {
        receipt,
        unkept,
        replayed,
        deployment,
    } = reply
    else {
        return Err(another_answer("a mutation's", &reply));
    };
    let mut response = match (receipt.ended, unkept) {
        (Ended::Result(result), _) => json(StatusCode::OK, result),
        (Ended::ResultNotKept, Some(result)) => json(StatusCode::OK, result),
        (Ended::ResultNotKept, None) => {
            let mut response = json(StatusCode::OK, "null".to_owned());
            set(response.headers_mut(), RESULT, "not-kept");
            response
        }
        (Ended::Fault(mut problem), _) => {
            problem.revision = Some(receipt.revision);
            respond(*problem, id)
        }
    };
    let headers = response.headers_mut();
    set(headers, header::REQUEST_ID, id);
    set(headers, header::REVISION, receipt.revision);
    set(headers, header::REPLAYED, replayed);
    set(headers, header::RECEIPT_EXPIRES, rfc3339(receipt.until_ms));
    if let Some(deployment) = deployment {
        set(headers, header::DEPLOYMENT, deployment);
    }
    Ok(response)
}

pub(super) async fn receipt(State(front): State<Front>, request: Request) -> Response {
    serve(front, None, request, run_receipt).await
}

async fn run_receipt(call: Call, _: Body) -> Answer {
    let key: IdempotencyKey = call.last_segment()?.parse()?;
    let scope = Scope {
        partition: PartitionId::ROOT.to_owned(),
        subject: call.subject.to_owned(),
    };
    let service = call.service()?;
    let origin = call.origin();
    let deadline = origin.deadline;
    let (leader, asked) = (service.clone(), key.clone());
    let here = move || -> crate::env::Fut<'static, _> {
        let (service, scope, key) = (leader.clone(), scope.clone(), asked.clone());
        Box::pin(async move { service.receipt(&scope, &key, deadline).await })
    };
    let path = call.parts.uri.path();
    match service.router.read(path, &origin, here).await? {
        Err(answer) => Ok(passed_on(answer)),
        Ok(found) => {
            let mut response = match found {
                Found::Stored(receipt) => stored(&key, &receipt),
                Found::InFlight => json(
                    StatusCode::ACCEPTED,
                    serde_json::json!({ "key": key.as_str(), "state": "in-flight" }).to_string(),
                ),
                Found::Nothing => {
                    return Err(Box::new(Problem::new(
                        404,
                        code::UNKNOWN_RECEIPT,
                        "No such receipt",
                        format!(
                            "no mutation is known under key '{key}': it never ran, or its \
                                 receipt is no longer kept"
                        ),
                    )));
                }
            };
            set(response.headers_mut(), header::REQUEST_ID, &call.id);
            Ok(response)
        }
    }
}

fn stored(key: &IdempotencyKey, receipt: &Receipt) -> Response {
    let (status, result, problem) = match &receipt.ended {
        Ended::Result(json) => (200, serde_json::from_str(json).ok(), None),
        Ended::ResultNotKept => (200, None, None),
        Ended::Fault(problem) => (problem.status, None, Some(problem)),
    };
    let told = serde_json::json!({
        "key": key.as_str(),
        "state": "stored",
        "mutation": receipt.mutation,
        "status": status,
        "result": result.unwrap_or(serde_json::Value::Null),
        "resultKept": receipt.ended != Ended::ResultNotKept,
        "problem": problem,
        "revision": receipt.revision,
        "created": rfc3339(receipt.created_ms),
        "expires": rfc3339(receipt.until_ms),
    });
    let mut response = json(StatusCode::OK, told.to_string());
    let headers = response.headers_mut();
    set(headers, header::REVISION, receipt.revision);
    set(headers, header::RECEIPT_EXPIRES, rfc3339(receipt.until_ms));
    response
}

fn rfc3339(ms: u64) -> String {
    i64::try_from(ms)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
        .map_or_else(String::new, |at| format!("{at:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_rfc_3339() {
        assert_eq!(rfc3339(1_796_130_240_000), "2026-12-01T13:04:00.000Z");
    }
}
