//! The admin API over the world's network, as the operator calls it.

use async_trait::async_trait;
use flower_api::{
    admin::{AdminError, Endpoint},
    transport::{AdminAnswer, AdminRequest, AdminTransport},
};
use flower_node::admin_client::limit;
use http::Method;

use crate::http::Http;

/// Calls admin APIs.
#[derive(Clone)]
pub struct SimAdmin(pub Http);

#[async_trait]
impl AdminTransport for SimAdmin {
    async fn exchange(
        &self,
        at: &Endpoint,
        request: AdminRequest,
    ) -> Result<AdminAnswer, AdminError> {
        let authority = at.0.trim_start_matches("http://");
        let method = match request.body {
            Some(_) => Method::POST,
            None => Method::GET,
        };
        let limit = limit(request.patience);
        let body = request.body.unwrap_or_default();
        let sent = self
            .0
            .send(authority, method, request.path, &[], body, limit);
        let answer = sent.await.map_err(|why| AdminError::Unreachable {
            endpoint: at.0.clone(),
            why: format!("{why:?}"),
        })?;
        Ok(AdminAnswer {
            status: answer.status.as_u16(),
            body: answer.body.into(),
        })
    }
}
