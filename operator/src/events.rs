//! Events about FlowerClusters: typed reasons, notes cut to the API's limit. A failed event is
//! logged and never fails a pass.

use kube::{
    Client, Resource,
    runtime::events::{Event, EventType, Recorder, Reporter},
};

use crate::{conditions::Reason, crd::FlowerCluster, labels};

/// The API refuses longer notes.
const NOTE_BYTES: usize = 1_000;

/// Publishes events.
#[derive(Clone)]
pub struct Events(Recorder);

impl Events {
    /// One for the process: it keeps what it has published, to count repeats.
    pub fn new(client: Client, instance: Option<String>) -> Self {
        let reporter = Reporter {
            controller: labels::MANAGER.to_owned(),
            instance,
        };
        Self(Recorder::new(client, reporter))
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
            note: Some(cut(note).to_owned()),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        if let Err(error) = self.0.publish(&event, &about.object_ref(&())).await {
            tracing::warn!(%error, reason = %reason.as_str(), "an event could not be published");
        }
    }
}

fn cut(note: &str) -> &str {
    let mut end = note.len().min(NOTE_BYTES);
    while !note.is_char_boundary(end) {
        end -= 1;
    }
    &note[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        let long = "é".repeat(600);
        assert_eq!(cut(&long).len(), 1_000);
        let odd = format!("a{long}");
        assert_eq!(cut(&odd).len(), 999);
    }
}
