//! The admin API over HTTP, for the commands. One try a call, each with a time limit; what to
//! do about a failure is the caller's.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use flower_api::{
    admin::{
        ActiveDeployment, AddLearner, AdminApi, AdminError, Bootstrap, Deploy, Deployed, Done,
        Endpoint, Fence, OfMember, path,
    },
    explain::{AskCell, AskQuery, CellExplained, QueryExplained},
    export::{Import, Imported},
    report::{Identity, Report},
    wire::{Problem, ReadClass},
};
use http::Method;
use serde::{Serialize, de::DeserializeOwned};

use crate::client::{Answer, Api, Chunks, NoAnswer};

/// Reads answer at once or not at all.
const READ_LIMIT: Duration = Duration::from_secs(2);
/// A change waits for the group.
const CHANGE_LIMIT: Duration = Duration::from_secs(15);
/// A deployment may build indexes, and a stop waits for the leadership to go.
const LONG_LIMIT: Duration = Duration::from_secs(60);

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
    /// As the calls of [`AdminApi`].
    pub async fn deployment(&self, at: &Endpoint) -> Result<Option<ActiveDeployment>, AdminError> {
        self.get(at, path::DEPLOYMENT).await
    }

    /// Where a cell's value comes from.
    ///
    /// # Errors
    /// As the calls of [`AdminApi`].
    pub async fn explain_cell(
        &self,
        at: &Endpoint,
        ask: &AskCell,
    ) -> Result<CellExplained, AdminError> {
        self.post(at, path::EXPLAIN_CELL, ask, LONG_LIMIT).await
    }

    /// What a query costs.
    ///
    /// # Errors
    /// As the calls of [`AdminApi`].
    pub async fn explain_query(
        &self,
        at: &Endpoint,
        ask: &AskQuery,
    ) -> Result<QueryExplained, AdminError> {
        self.post(at, path::EXPLAIN_QUERY, ask, LONG_LIMIT).await
    }

    /// Opens an export.
    ///
    /// # Errors
    /// As the calls of [`AdminApi`].
    pub async fn export(
        &self,
        at: &Endpoint,
        cells: bool,
        read: ReadClass,
    ) -> Result<Chunks, AdminError> {
        let read = read.to_string().replace(' ', "").replace(';', "%3B");
        let path = format!("{}?cells={cells}&read={read}", path::EXPORT);
        let api = self.api(at)?;
        let opened = api.open(Method::GET, &path, &[], Bytes::new(), LONG_LIMIT);
        match opened.await.map_err(|why| unreachable(at, why))? {
            Ok(chunks) => Ok(chunks),
            Err(answer) => Err(refused(at, &answer)),
        }
    }

    /// Does a step of an import with these lines.
    ///
    /// # Errors
    /// As the calls of [`AdminApi`].
    pub async fn import(
        &self,
        at: &Endpoint,
        call: &Import,
        lines: &str,
    ) -> Result<Imported, AdminError> {
        let head = serde_json::to_string(call).map_err(|e| garbled(at, e.to_string()))?;
        let body = format!("{head}\n{lines}").into();
        let sent = self.send(at, Method::POST, path::IMPORT, body, LONG_LIMIT);
        decode(at, sent.await?)
    }

    /// Makes the state durable now.
    ///
    /// # Errors
    /// As the calls of [`AdminApi`].
    pub async fn checkpoint(&self, at: &Endpoint) -> Result<(), AdminError> {
        let answer = self
            .send(
                at,
                Method::POST,
                path::CHECKPOINT,
                Bytes::new(),
                CHANGE_LIMIT,
            )
            .await?;
        accepted(at, answer).map(drop)
    }

    /// Hands over leadership and turns unready; returns when the node may be stopped.
    ///
    /// # Errors
    /// As the calls of [`AdminApi`].
    pub async fn prepare_stop(&self, at: &Endpoint) -> Result<(), AdminError> {
        let answer = self
            .send(
                at,
                Method::POST,
                path::PREPARE_STOP,
                Bytes::new(),
                LONG_LIMIT,
            )
            .await?;
        accepted(at, answer).map(drop)
    }

    async fn get<T: DeserializeOwned>(&self, at: &Endpoint, path: &str) -> Result<T, AdminError> {
        decode(
            at,
            self.send(at, Method::GET, path, Bytes::new(), READ_LIMIT)
                .await?,
        )
    }

    async fn post<T: DeserializeOwned>(
        &self,
        at: &Endpoint,
        path: &str,
        call: &impl Serialize,
        limit: Duration,
    ) -> Result<T, AdminError> {
        let body = serde_json::to_vec(call).map_err(|e| garbled(at, e.to_string()))?;
        decode(
            at,
            self.send(at, Method::POST, path, body.into(), limit)
                .await?,
        )
    }

    async fn send(
        &self,
        at: &Endpoint,
        method: Method,
        path: &str,
        body: Bytes,
        limit: Duration,
    ) -> Result<Answer, AdminError> {
        let sent = self.api(at)?.send(method, path, &[], body, limit).await;
        sent.map_err(|why| unreachable(at, why))
    }

    fn api(&self, at: &Endpoint) -> Result<Api, AdminError> {
        Api::new(&at.0, self.token.as_deref()).map_err(|bad| AdminError::Unreachable {
            endpoint: at.0.clone(),
            why: bad.to_string(),
        })
    }
}

fn unreachable(at: &Endpoint, why: NoAnswer) -> AdminError {
    let (NoAnswer::NotSent { why, .. } | NoAnswer::Lost { why, .. }) = why;
    AdminError::Unreachable {
        endpoint: at.0.clone(),
        why,
    }
}

fn refused(at: &Endpoint, answer: &Answer) -> AdminError {
    match serde_json::from_slice::<Problem>(&answer.body) {
        Ok(problem) => AdminError::Refused(Box::new(problem)),
        Err(_) => garbled(at, format!("HTTP status {}", answer.status)),
    }
}

fn garbled(at: &Endpoint, why: String) -> AdminError {
    AdminError::Garbled {
        endpoint: at.0.clone(),
        why,
    }
}

fn accepted(at: &Endpoint, answer: Answer) -> Result<Bytes, AdminError> {
    match answer.status.is_success() {
        true => Ok(answer.body),
        false => Err(refused(at, &answer)),
    }
}

fn decode<T: DeserializeOwned>(at: &Endpoint, answer: Answer) -> Result<T, AdminError> {
    let body = accepted(at, answer)?;
    serde_json::from_slice(&body).map_err(|e| garbled(at, e.to_string()))
}

#[async_trait]
impl AdminApi for AdminClient {
    async fn identity(&self, at: &Endpoint) -> Result<Identity, AdminError> {
        self.get(at, path::IDENTITY).await
    }
    async fn report(&self, at: &Endpoint) -> Result<Report, AdminError> {
        self.get(at, path::REPORT).await
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
