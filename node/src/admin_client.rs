//! The admin API over HTTP, for the commands. One try a call, each with a time limit; what to
//! do about a failure is the caller's.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use flower_api::{
    admin::{ActiveDeployment, AdminError, Done, Endpoint, Recover, Survey, path},
    explain::{AskCell, AskQuery, CellExplained, QueryExplained},
    export::{Import, Imported},
    transport::{AdminAnswer, AdminRequest, AdminTransport, Patience},
    wire::ReadClass,
};
use http::Method;

use crate::client::{Answer, Api, Chunks, NoAnswer};

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
#[derive(Clone, Default)]
pub struct AdminClient {
    token: Option<String>,
}

/// Without the token.
impl std::fmt::Debug for AdminClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdminClient").finish_non_exhaustive()
    }
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

    /// Where a cell's value comes from.
    ///
    /// # Errors
    /// As the calls of the admin API.
    pub async fn explain_cell(
        &self,
        at: &Endpoint,
        ask: &AskCell,
    ) -> Result<CellExplained, AdminError> {
        let request = AdminRequest::with(at, path::EXPLAIN_CELL, Patience::Long, ask)?;
        self.exchange(at, request).await?.decoded(at)
    }

    /// What a query costs.
    ///
    /// # Errors
    /// As the calls of the admin API.
    pub async fn explain_query(
        &self,
        at: &Endpoint,
        ask: &AskQuery,
    ) -> Result<QueryExplained, AdminError> {
        let request = AdminRequest::with(at, path::EXPLAIN_QUERY, Patience::Long, ask)?;
        self.exchange(at, request).await?.decoded(at)
    }

    /// Opens an export.
    ///
    /// # Errors
    /// As the calls of the admin API.
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
            Err(answer) => Err(whole(answer).refusal(at)),
        }
    }

    /// Does a step of an import with these lines.
    ///
    /// # Errors
    /// As the calls of the admin API.
    pub async fn import(
        &self,
        at: &Endpoint,
        call: &Import,
        lines: &str,
    ) -> Result<Imported, AdminError> {
        let mut request = AdminRequest::with(at, path::IMPORT, Patience::Long, call)?;
        if let Some(body) = &mut request.body {
            body.push(b'\n');
            body.extend_from_slice(lines.as_bytes());
        }
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

    /// What a recovery of a lost quorum on this node would keep and lose.
    ///
    /// # Errors
    /// As the calls of the admin API.
    pub async fn survey(&self, at: &Endpoint) -> Result<Survey, AdminError> {
        let mut request = AdminRequest::get(path::RECOVERY);
        // The node asks the other members first.
        request.patience = Patience::Change;
        self.exchange(at, request).await?.decoded(at)
    }

    /// Makes this node's data the whole group; the node starts anew for it.
    ///
    /// # Errors
    /// As the calls of the admin API.
    pub async fn recover(&self, at: &Endpoint, call: &Recover) -> Result<Done, AdminError> {
        let request = AdminRequest::with(at, path::RECOVER, Patience::Change, call)?;
        self.exchange(at, request).await?.decoded(at)
    }

    /// Hands over leadership and turns unready; returns when the node may be stopped.
    ///
    /// # Errors
    /// As the calls of the admin API.
    pub async fn prepare_stop(&self, at: &Endpoint) -> Result<(), AdminError> {
        let request = AdminRequest::post(path::PREPARE_STOP, Patience::Long);
        self.exchange(at, request).await?.accepted(at).map(drop)
    }

    fn api(&self, at: &Endpoint) -> Result<Api, AdminError> {
        Api::new(&at.0, self.token.as_deref()).map_err(|bad| AdminError::Unreachable {
            endpoint: at.0.clone(),
            why: bad.to_string(),
        })
    }
}

#[async_trait]
impl AdminTransport for AdminClient {
    async fn exchange(
        &self,
        at: &Endpoint,
        request: AdminRequest,
    ) -> Result<AdminAnswer, AdminError> {
        let method = match request.body {
            Some(_) => Method::POST,
            None => Method::GET,
        };
        let body = request.body.unwrap_or_default().into();
        let limit = limit(request.patience);
        let api = self.api(at)?;
        let sent = api.send(method, request.path, &[], body, limit).await;
        sent.map(whole).map_err(|why| unreachable(at, why))
    }
}

fn whole(answer: Answer) -> AdminAnswer {
    AdminAnswer {
        status: answer.status.as_u16(),
        body: answer.body.into(),
    }
}

fn unreachable(at: &Endpoint, why: NoAnswer) -> AdminError {
    let (NoAnswer::NotSent { why, .. } | NoAnswer::Lost { why, .. }) = why;
    AdminError::Unreachable {
        endpoint: at.0.clone(),
        why,
    }
}
