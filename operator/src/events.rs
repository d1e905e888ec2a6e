//! Events about FlowerClusters, with typed reasons. A failed event is logged and never fails
//! a pass.

use std::sync::Arc;

use k8s_controller::events::{Event, EventRecorder, EventType, Reporter};
use kube::Client;

use crate::{conditions::Reason, crd::FlowerCluster, labels};

/// Publishes events; an identical one within minutes is counted, not repeated.
#[derive(Clone)]
pub struct Events(Arc<EventRecorder>);

impl Events {
    /// One for the process: it keeps what it has published, to count repeats.
    pub fn new(client: Client, instance: Option<String>) -> Self {
        let reporter = Reporter {
            controller: labels::MANAGER.to_owned(),
            instance,
        };
        Self(Arc::new(EventRecorder::new(client, reporter)))
    }
    /// Something was done.
    pub async fn normal(&self, about: &FlowerCluster, reason: Reason, note: &str) {
        self.publish(about, EventType::Normal, reason, note).await;
    }
    /// Something needs attention.
    pub async fn warning(&self, about: &FlowerCluster, reason: Reason, note: &str) {
        self.publish(about, EventType::Warning, reason, note).await;
    }
    async fn publish(&self, about: &FlowerCluster, type_: EventType, reason: Reason, note: &str) {
        let event = Event {
            type_,
            reason: reason.as_str(),
            note: Some(note.to_owned()),
            action: "Reconcile".to_owned(),
            related: None,
        };
        if let Err(error) = self.0.publish(about, &event).await {
            tracing::warn!(%error, reason = reason.name(), "an event could not be published");
        }
    }
}
