//! The little of Kubernetes that an operator needs: the object's spec and status, pods that a
//! StatefulSet makes, and volume claims. Data only; `kubelet` in the driver makes it happen.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use flower_api::admin::Fence;
use flower_operator::{controller::plan::Step, crd::FlowerClusterStatus, names::Ordinal};

/// The API server's objects. Clones are the same server.
#[derive(Clone, Default)]
pub struct Kube(Arc<Mutex<Objects>>);

/// All objects of the world's one FlowerCluster.
#[derive(Default)]
pub struct Objects {
    /// `spec.replicas`.
    pub replicas: u32,
    /// Generation of the object.
    pub generation: i64,
    /// Stands for the pod template's content.
    pub template: u64,
    /// The application, one ES module.
    pub bundle: String,
    /// Replicas of the StatefulSet, once it is applied.
    pub set_replicas: Option<u32>,
    /// The object's status.
    pub status: FlowerClusterStatus,
    /// Pods.
    pub pods: BTreeMap<Ordinal, Pod>,
    /// Volume claims.
    pub claims: BTreeMap<Ordinal, Claim>,
    /// Calls that were made: what a network could deliver twice or late.
    pub sent: Vec<(Step, Fence)>,
    next_uid: u64,
}

/// A pod.
#[derive(Debug, Clone, Default)]
pub struct Pod {
    /// uid.
    pub uid: String,
    /// Template that it was made from.
    pub template: u64,
    /// Deleted; its process has been asked to stop.
    pub terminating: bool,
    /// When a process that does not stop is killed, or one that ended is started again.
    pub due: Option<Duration>,
}

/// A volume claim.
#[derive(Debug, Clone, Default)]
pub struct Claim {
    /// uid.
    pub uid: String,
    /// Deleted; goes with its pod.
    pub terminating: bool,
}

impl Kube {
    /// The objects.
    pub fn objects(&self) -> MutexGuard<'_, Objects> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Objects {
    /// A uid that nothing else has.
    pub fn uid(&mut self) -> String {
        self.next_uid += 1;
        format!("uid-{}", self.next_uid)
    }
}
