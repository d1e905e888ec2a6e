//! A whole node, put together and taken apart: ports first, so that health is told while the
//! data is opened; then the data, consensus, and what serves clients. Reads no settings.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use flower_api::sizing::MemoryPlan;

use crate::{
    auth::{Api, Tokens},
    env::{Env, Fatal},
    footprint::Meter,
    http::Front,
    metrics::Metrics,
    node::{Node, NodeSettings},
    service::{ServeSettings, Service},
};

/// How long calls may still run once the ports are closing.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// What a node is put together from.
pub struct Parts {
    /// The world.
    pub env: Env,
    /// Directory, peers, name. Without a client address, peers are told where the client port
    /// listens.
    pub node: NodeSettings,
    /// Calls.
    pub serve: ServeSettings,
    /// Where the client port listens.
    pub client: SocketAddr,
    /// Where the admin port listens.
    pub admin: SocketAddr,
    /// Who may call.
    pub tokens: Arc<Tokens>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Measures the process.
    pub meter: Meter,
    /// How the memory limit was split, if there is one.
    pub plan: Option<MemoryPlan>,
}

/// A node that runs.
pub struct Running {
    env: Env,
    front: Front,
    node: Node,
    service: Option<Service>,
    client: SocketAddr,
    admin: SocketAddr,
}

impl Running {
    /// Starts a node. Returns when its data is open; whether it serves depends on what was
    /// found there.
    ///
    /// # Errors
    /// When a port is taken, the disk fails, or the directory is of another group or version.
    pub async fn start(mut parts: Parts) -> Result<Self, Fatal> {
        parts.env.probe = parts.metrics.clone();
        let env = &parts.env.clone();
        let front = Front::new(
            env,
            parts.tokens,
            parts.metrics.clone(),
            parts.serve.clone(),
        );
        let admin = front.listen(Api::Admin, parts.admin).await?;
        let client = front.listen(Api::Client, parts.client).await?;
        let name = parts.node.name.clone();
        if parts.node.client_address.is_empty() {
            parts.node.client_address = client.to_string();
        }
        let node = Node::open(env, parts.node).await?;
        let service = node.consensus().map(|consensus| {
            let (metrics, meter) = (&parts.metrics, parts.meter);
            let (serve, plan) = (parts.serve, parts.plan);
            Service::start(env, consensus, serve, &name, metrics, meter, plan)
        });
        match &service {
            Some(service) => front.run(service.clone()),
            None => front.break_down(node.identity()),
        }
        tracing::info!(%client, %admin, name, "listening");
        Ok(Self {
            env: parts.env,
            front,
            node,
            service,
            client,
            admin,
        })
    }

    /// The node's face.
    pub fn front(&self) -> &Front {
        &self.front
    }

    /// The node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// What serves; absent when the data is broken.
    pub fn service(&self) -> Option<&Service> {
        self.service.as_ref()
    }

    /// Where the client port listens.
    pub fn client(&self) -> SocketAddr {
        self.client
    }

    /// Where the admin port listens.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Stops in order: leadership is handed over, clients leave, calls end, and everything
    /// applied is made durable.
    ///
    /// # Errors
    /// When the node had failed, or the disk fails at the end.
    pub async fn stop(self) -> Result<(), Fatal> {
        self.front.prepare_stop().await;
        self.front.close(CLOSE_LIMIT).await;
        match self.node.consensus() {
            Some(consensus) => consensus.shutdown().await?,
            None => self.env.tasks.stop(),
        }
        self.env.tasks.failure().map_or(Ok(()), Err)
    }
}
