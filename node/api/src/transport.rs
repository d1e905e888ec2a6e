//! The admin API over whatever carries requests: paths, encodings and what an answer means are
//! here once; a transport only sends bytes and keeps to its own time limits. No I/O here.

use async_trait::async_trait;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    admin::{
        AddLearner, AdminApi, AdminError, Bootstrap, Deploy, Deployed, Done, Endpoint, Fence,
        OfMember, path,
    },
    report::{Identity, Report},
    wire::Problem,
};

/// Of an answer that is none, so many characters are shown.
const SHOWN: usize = 200;

/// How long an answer may take; a transport says how much time that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Reads answer at once or the node is in trouble.
    Read,
    /// A change waits for a commit.
    Change,
    /// A deployment may build indexes, and a stop waits for the leadership to go.
    Long,
}

/// One request.
#[derive(Debug, Clone)]
pub struct AdminRequest {
    /// One of [`path`].
    pub path: &'static str,
    /// JSON, to be posted; without it the path is read.
    pub body: Option<Vec<u8>>,
    /// How long the answer may take.
    pub patience: Patience,
}

impl AdminRequest {
    /// Reads a path.
    pub fn get(path: &'static str) -> Self {
        Self {
            path,
            body: None,
            patience: Patience::Read,
        }
    }

    /// Posts to a path without anything to say.
    pub fn post(path: &'static str, patience: Patience) -> Self {
        Self {
            path,
            body: Some(Vec::new()),
            patience,
        }
    }

    /// Posts what a call says.
    ///
    /// # Errors
    /// `Garbled`, when it cannot be written as JSON.
    pub fn with(
        at: &Endpoint,
        path: &'static str,
        patience: Patience,
        call: &impl Serialize,
    ) -> Result<Self, AdminError> {
        let body = serde_json::to_vec(call).map_err(|error| garbled(at, error.to_string()))?;
        Ok(Self {
            path,
            body: Some(body),
            patience,
        })
    }
}

/// A whole answer.
#[derive(Debug, Clone)]
pub struct AdminAnswer {
    /// HTTP status.
    pub status: u16,
    /// Body.
    pub body: Vec<u8>,
}

impl AdminAnswer {
    /// Nothing but whether the call was accepted.
    ///
    /// # Errors
    /// The refusal, or that the answer is none.
    pub fn accepted(self, at: &Endpoint) -> Result<Vec<u8>, AdminError> {
        if (200..300).contains(&self.status) {
            return Ok(self.body);
        }
        Err(self.refusal(at))
    }

    /// What an answer that is no acceptance says.
    pub fn refusal(&self, at: &Endpoint) -> AdminError {
        match serde_json::from_slice::<Problem>(&self.body) {
            Ok(problem) => AdminError::Refused(Box::new(problem)),
            Err(_) => {
                let text = String::from_utf8_lossy(&self.body);
                let shown: String = text.chars().take(SHOWN).collect();
                garbled(at, format!("HTTP status {}: {shown}", self.status))
            }
        }
    }

    /// The result of an accepted call.
    ///
    /// # Errors
    /// The refusal, or that the answer is none.
    pub fn decoded<T: DeserializeOwned>(self, at: &Endpoint) -> Result<T, AdminError> {
        let body = self.accepted(at)?;
        serde_json::from_slice(&body).map_err(|error| garbled(at, error.to_string()))
    }
}

fn garbled(at: &Endpoint, why: String) -> AdminError {
    AdminError::Garbled {
        endpoint: at.0.clone(),
        why,
    }
}

/// Carries requests to nodes, with whatever proves the right to make them. One try a request.
#[async_trait]
pub trait AdminTransport: Send + Sync {
    /// Sends one request and reads the whole answer, whatever its status.
    async fn exchange(
        &self,
        at: &Endpoint,
        request: AdminRequest,
    ) -> Result<AdminAnswer, AdminError>;
}

async fn ask<T: DeserializeOwned>(
    over: &(impl AdminTransport + ?Sized),
    at: &Endpoint,
    path: &'static str,
) -> Result<T, AdminError> {
    over.exchange(at, AdminRequest::get(path))
        .await?
        .decoded(at)
}

async fn tell<T: DeserializeOwned>(
    over: &(impl AdminTransport + ?Sized),
    at: &Endpoint,
    path: &'static str,
    patience: Patience,
    call: &(impl Serialize + Sync),
) -> Result<T, AdminError> {
    let request = AdminRequest::with(at, path, patience, call)?;
    over.exchange(at, request).await?.decoded(at)
}

#[async_trait]
impl<O: AdminTransport + ?Sized> AdminApi for O {
    async fn identity(&self, at: &Endpoint) -> Result<Identity, AdminError> {
        ask(self, at, path::IDENTITY).await
    }
    async fn report(&self, at: &Endpoint) -> Result<Report, AdminError> {
        ask(self, at, path::REPORT).await
    }
    async fn bootstrap(&self, at: &Endpoint, call: &Bootstrap) -> Result<Done, AdminError> {
        tell(self, at, path::BOOTSTRAP, Patience::Change, call).await
    }
    async fn add_learner(&self, at: &Endpoint, call: &AddLearner) -> Result<Done, AdminError> {
        tell(self, at, path::ADD_LEARNER, Patience::Change, call).await
    }
    async fn promote(&self, at: &Endpoint, call: &OfMember) -> Result<Done, AdminError> {
        tell(self, at, path::PROMOTE, Patience::Change, call).await
    }
    async fn remove(&self, at: &Endpoint, call: &OfMember) -> Result<Done, AdminError> {
        tell(self, at, path::REMOVE, Patience::Change, call).await
    }
    async fn transfer(&self, at: &Endpoint, call: &OfMember) -> Result<Done, AdminError> {
        tell(self, at, path::TRANSFER, Patience::Change, call).await
    }
    async fn formed(&self, at: &Endpoint, fence: &Fence) -> Result<Done, AdminError> {
        tell(self, at, path::FORMED, Patience::Change, fence).await
    }
    async fn deploy(&self, at: &Endpoint, call: &Deploy) -> Result<Deployed, AdminError> {
        tell(self, at, path::DEPLOY, Patience::Long, call).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str) -> AdminAnswer {
        AdminAnswer {
            status,
            body: body.into(),
        }
    }

    #[test]
    fn refusals_are_told_from_what_is_no_answer() {
        let at = Endpoint("http://h:1".into());
        let done = answer(200, r#"{"configuration":null}"#).decoded::<Done>(&at);
        assert!(done.is_ok(), "{done:?}");
        let problem = Problem::new(409, "stale-configuration", "Stale", "planned long ago");
        let text = serde_json::to_string(&problem).unwrap();
        let refused = answer(409, &text).decoded::<Done>(&at).unwrap_err();
        assert_eq!(refused.code(), Some("stale-configuration"));
        let page = answer(502, "<html>").accepted(&at).unwrap_err();
        assert!(matches!(page, AdminError::Garbled { .. }), "{page}");
        assert!(page.to_string().contains("502"), "{page}");
        let short = answer(200, "{").decoded::<Done>(&at).unwrap_err();
        assert!(matches!(short, AdminError::Garbled { .. }), "{short}");
    }
}
