//! The admin API over HTTP, for the commands. One try a call, each with a time limit; what to
//! do about a failure is the caller's.

use std::time::Duration;

use async_trait::async_trait;
use flower_api::{
    admin::{ActiveDeployment, AdminError, Endpoint, path},
    transport::{AdminAnswer, AdminRequest, AdminTransport, Patience},
};
use http::Method;

use crate::client::{Api, NoAnswer};

/// Reads answer at once or not at all.
const READ_LIMIT: Duration = Duration::from_secs(2);
/// A change waits for the group.
const CHANGE_LIMIT: Duration = Duration::from_secs(15);
/// A deployment may build indexes, and a stop waits for the leadership to go.
const LONG_LIMIT: Duration = Duration::from_secs(60);

/// How long a call may take, from the commands and in the simulation.
pub fn limit(patience: Patience) -> Duration {
    match patience {
        Patience::Read => READ_LIMIT,
        Patience::Change => CHANGE_LIMIT,
        Patience::Long => LONG_LIMIT,
    }
}

/// Calls admin APIs with one token.
#[derive(Debug, Clone, Default)]
pub struct AdminClient {
    token: Option<String>,
}

impl AdminClient {
    /// Calls with `token`, if there is one.
    pub fn new(token: Option<String>) -> Self {
        Self { token }
    }

    /// What is deployed; nothing while nothing is.
    ///
    /// # Errors
    /// As the calls of the admin API.
    pub async fn deployment(&self, at: &Endpoint) -> Result<Option<ActiveDeployment>, AdminError> {
        let request = AdminRequest::get(path::DEPLOYMENT);
        self.exchange(at, request).await?.decoded(at)
    }

    /// Makes the state durable now.
    ///
    /// # Errors
    /// As the calls of the admin API.
    pub async fn checkpoint(&self, at: &Endpoint) -> Result<(), AdminError> {
        let request = AdminRequest::post(path::CHECKPOINT, Patience::Change);
        self.exchange(at, request).await?.accepted(at).map(drop)
    }

    /// Hands over leadership and turns unready; returns when the node may be stopped.
    ///
    /// # Errors
    /// As the calls of the admin API.
    pub async fn prepare_stop(&self, at: &Endpoint) -> Result<(), AdminError> {
        let request = AdminRequest::post(path::PREPARE_STOP, Patience::Long);
        self.exchange(at, request).await?.accepted(at).map(drop)
    }
}

#[async_trait]
impl AdminTransport for AdminClient {
    async fn exchange(
        &self,
        at: &Endpoint,
        request: AdminRequest,
    ) -> Result<AdminAnswer, AdminError> {
        let unreachable = |why: String| AdminError::Unreachable {
            endpoint: at.0.clone(),
            why,
        };
        let api = Api::new(&at.0, self.token.as_deref()).map_err(|e| unreachable(e.to_string()))?;
        let method = match request.body {
            Some(_) => Method::POST,
            None => Method::GET,
        };
        let body = request.body.unwrap_or_default().into();
        let limit = limit(request.patience);
        let sent = api.send(method, request.path, &[], body, limit).await;
        let answer = sent.map_err(|e| match e {
            NoAnswer::NotSent { why, .. } | NoAnswer::Lost { why, .. } => unreachable(why),
        })?;
        Ok(AdminAnswer {
            status: answer.status.as_u16(),
            body: answer.body.into(),
        })
    }
}
