//! The admin API over the world's network, as the operator calls it.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use flower_api::{
    admin::{
        AddLearner, AdminApi, AdminError, Bootstrap, Deploy, Deployed, Done, Endpoint, Fence,
        OfMember, path,
    },
    report::{Identity, Report},
};
use http::Method;
use serde::{Serialize, de::DeserializeOwned};

use crate::http::Http;

/// Reads answer at once or not at all.
const READ_LIMIT: Duration = Duration::from_secs(2);
/// A change waits for the group.
const CHANGE_LIMIT: Duration = Duration::from_secs(15);
/// A deployment may take longer.
const LONG_LIMIT: Duration = Duration::from_secs(60);

/// Calls admin APIs.
#[derive(Clone)]
pub struct SimAdmin(pub Http);

impl SimAdmin {
    async fn call<T: DeserializeOwned>(
        &self,
        at: &Endpoint,
        method: Method,
        path: &str,
        body: impl Into<Bytes>,
        limit: Duration,
    ) -> Result<T, AdminError> {
        let garbled = |why: String| AdminError::Garbled {
            endpoint: at.0.clone(),
            why,
        };
        let authority = at.0.trim_start_matches("http://");
        let answer = self
            .0
            .send(authority, method, path, &[], body, limit)
            .await
            .map_err(|why| AdminError::Unreachable {
                endpoint: at.0.clone(),
                why: format!("{why:?}"),
            })?;
        if answer.status.is_success() {
            return serde_json::from_slice(&answer.body).map_err(|e| garbled(e.to_string()));
        }
        let problem = serde_json::from_slice(&answer.body);
        Err(problem.map_or_else(|e| garbled(e.to_string()), AdminError::Refused))
    }

    async fn post<T: DeserializeOwned>(
        &self,
        at: &Endpoint,
        path: &str,
        call: &impl Serialize,
        limit: Duration,
    ) -> Result<T, AdminError> {
        let body = serde_json::to_vec(call).unwrap_or_default();
        self.call(at, Method::POST, path, body, limit).await
    }
}

#[async_trait]
impl AdminApi for SimAdmin {
    async fn identity(&self, at: &Endpoint) -> Result<Identity, AdminError> {
        self.call(at, Method::GET, path::IDENTITY, "", READ_LIMIT)
            .await
    }
    async fn report(&self, at: &Endpoint) -> Result<Report, AdminError> {
        self.call(at, Method::GET, path::REPORT, "", READ_LIMIT)
            .await
    }
    async fn bootstrap(&self, at: &Endpoint, call: &Bootstrap) -> Result<Done, AdminError> {
        self.post(at, path::BOOTSTRAP, call, CHANGE_LIMIT).await
    }
    async fn add_learner(&self, at: &Endpoint, call: &AddLearner) -> Result<Done, AdminError> {
        self.post(at, path::ADD_LEARNER, call, CHANGE_LIMIT).await
    }
    async fn promote(&self, at: &Endpoint, call: &OfMember) -> Result<Done, AdminError> {
        self.post(at, path::PROMOTE, call, CHANGE_LIMIT).await
    }
    async fn remove(&self, at: &Endpoint, call: &OfMember) -> Result<Done, AdminError> {
        self.post(at, path::REMOVE, call, CHANGE_LIMIT).await
    }
    async fn transfer(&self, at: &Endpoint, call: &OfMember) -> Result<Done, AdminError> {
        self.post(at, path::TRANSFER, call, CHANGE_LIMIT).await
    }
    async fn formed(&self, at: &Endpoint, fence: &Fence) -> Result<Done, AdminError> {
        self.post(at, path::FORMED, fence, CHANGE_LIMIT).await
    }
    async fn deploy(&self, at: &Endpoint, call: &Deploy) -> Result<Deployed, AdminError> {
        self.post(at, path::DEPLOY, call, LONG_LIMIT).await
    }
}
