//! A cluster in memory: the API server, a StatefulSet controller and kubelet that make pods,
//! and the nodes in them. Time is a number of steps.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use flower_operator::{
    backoff::Backoff,
    context::{Ctx, Settings},
    controller::pass::{self, End},
    crd::{FlowerCluster, FlowerClusterStatus},
    events::Events,
    metrics::Metrics,
};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{IMAGE, apiserver::ApiServer, fake::Fake, flower_cluster};

/// The one cluster of the world.
pub const NAME: &str = "orders";
const ROOT: &str = "flowerdb.dev/v1alpha1/namespaces/shop/flowerclusters/orders";
/// Its StatefulSet.
pub const SET: &str = "apps/v1/namespaces/shop/statefulsets/orders-g0";

/// Everything.
pub struct World {
    /// Kubernetes.
    pub api: ApiServer,
    /// Nodes.
    pub nodes: Fake,
    /// The operator's process.
    pub ctx: Arc<Ctx>,
    /// Directories by claim uid: what a volume holds.
    volumes: BTreeMap<String, super::admin::Node>,
    /// Ordinals that cannot be scheduled.
    pub unschedulable: Vec<u32>,
}

impl World {
    /// A world with one FlowerCluster.
    pub fn new(spec: Value) -> Self {
        let api = ApiServer::default();
        let mut object = serde_json::to_value(flower_cluster(NAME, spec)).expect("JSON");
        object["metadata"]["creationTimestamp"] = json!("2026-01-02T03:04:05Z");
        api.put(ROOT, object);
        let nodes = Fake::default();
        let ctx = Arc::new(context(&api, &nodes));
        Self {
            api,
            nodes,
            ctx,
            volumes: BTreeMap::new(),
            unschedulable: Vec::new(),
        }
    }

    /// The operator's process ends and another begins.
    pub fn restart_operator(&mut self) {
        self.ctx = Arc::new(context(&self.api, &self.nodes));
    }

    /// The FlowerCluster.
    pub fn object(&self) -> FlowerCluster {
        let object = self.api.get(ROOT).expect("the FlowerCluster");
        serde_json::from_value(object).expect("a FlowerCluster")
    }
    /// Its status.
    pub fn status(&self) -> FlowerClusterStatus {
        self.object().status.unwrap_or_default()
    }
    /// Whether a condition is True.
    pub fn is(&self, type_: &str) -> bool {
        let status = self.status();
        status
            .conditions
            .iter()
            .any(|one| one.type_ == type_ && one.status == "True")
    }
    /// Changes the spec, as kubectl would.
    pub fn edit(&self, change: impl FnOnce(&mut Value)) {
        let mut object = self.api.get(ROOT).expect("the FlowerCluster");
        change(&mut object["spec"]);
        self.api.put(ROOT, object);
    }
    /// Changes the whole object, status included.
    pub fn edit_all(&self, change: impl FnOnce(&mut Value)) {
        let mut object = self.api.get(ROOT).expect("the FlowerCluster");
        change(&mut object);
        self.api.put(ROOT, object);
    }

    /// One pass of the operator.
    pub async fn pass(&self) -> End {
        let object = self.object();
        pass::run(&self.ctx, &object)
            .await
            .unwrap_or_else(|error| panic!("a pass failed: {error}"))
    }

    /// A pass, then the world goes on, until the cluster is settled.
    pub async fn settle(&mut self) -> usize {
        for count in 0..200 {
            let end = self.pass().await;
            self.turn();
            if end == End::Settled {
                return count;
            }
        }
        panic!(
            "not settled after 200 passes; status: {:#?}; calls: {:?}",
            self.status(),
            self.nodes.0.lock().log
        );
    }

    /// The rest of the world makes one step: pods follow the StatefulSet, nodes elect.
    pub fn turn(&mut self) {
        self.pods();
        let mut group = self.nodes.0.lock();
        group.tick();
        drop(group);
        self.readiness();
    }

    fn pods(&mut self) {
        let set = self.api.get(SET);
        let replicas = set
            .as_ref()
            .and_then(|set| set["spec"]["replicas"].as_u64())
            .unwrap_or(0);
        let mut state = self.api.0.lock();
        let present: Vec<(u32, String)> = state
            .objects
            .keys()
            .filter_map(|key| {
                let ordinal = key.strip_prefix("v1/namespaces/shop/pods/orders-g0-")?;
                Some((ordinal.parse().ok()?, key.clone()))
            })
            .collect();
        for (ordinal, key) in &present {
            if set.is_none() || u64::from(*ordinal) >= replicas {
                state.remove(key);
            }
        }
        let claims: Vec<String> = state
            .objects
            .iter()
            .filter(|(key, claim)| {
                key.contains("/persistentvolumeclaims/")
                    && claim["metadata"].get("deletionTimestamp").is_some()
            })
            .map(|(key, _)| key.clone())
            .collect();
        for key in claims {
            let pod = key.replace("/persistentvolumeclaims/data-", "/pods/");
            if !state.objects.contains_key(&pod) {
                state.remove(&key);
            }
        }
        drop(state);
        self.processes();
        let Some(set) = set else { return };
        for ordinal in 0..u32::try_from(replicas).expect("few") {
            self.pod(&set, ordinal);
        }
        self.processes();
    }

    fn pod(&mut self, set: &Value, ordinal: u32) {
        let pod = format!("v1/namespaces/shop/pods/orders-g0-{ordinal}");
        let claim = format!("v1/namespaces/shop/persistentvolumeclaims/data-orders-g0-{ordinal}");
        if self.api.get(&pod).is_some() {
            return;
        }
        let labels = set["spec"]["template"]["metadata"]["labels"].clone();
        if self.api.get(&claim).is_none() {
            self.api.put(
                &claim,
                json!({
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                    "metadata": { "name": format!("data-orders-g0-{ordinal}"), "namespace": "shop", "labels": labels },
                    "status": { "phase": "Bound" },
                }),
            );
        }
        let mut metadata = set["spec"]["template"]["metadata"].clone();
        metadata["name"] = json!(format!("orders-g0-{ordinal}"));
        metadata["namespace"] = json!("shop");
        let status = if self.unschedulable.contains(&ordinal) {
            json!({ "phase": "Pending" })
        } else {
            json!({
                "phase": "Running", "podIP": address(ordinal),
                "containerStatuses": [{
                    "name": "flower", "ready": false, "restartCount": 0, "image": "", "imageID": "",
                    "state": { "running": {} },
                }],
            })
        };
        self.api.put(
            &pod,
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}, "status": status }),
        );
    }

    /// Processes follow pods, and directories follow claims.
    fn processes(&mut self) {
        let running: BTreeMap<String, (String, String)> = self
            .ordinals()
            .into_iter()
            .filter_map(|ordinal| {
                let pod = self
                    .api
                    .get(&format!("v1/namespaces/shop/pods/orders-g0-{ordinal}"))?;
                let ip = pod["status"]["podIP"].as_str()?.to_owned();
                let uid = pod["metadata"]["uid"].as_str()?.to_owned();
                let claim = self.api.get(&format!(
                    "v1/namespaces/shop/persistentvolumeclaims/data-orders-g0-{ordinal}"
                ))?;
                Some((ip, (uid, claim["metadata"]["uid"].as_str()?.to_owned())))
            })
            .collect();
        let mut group = self.nodes.0.lock();
        let gone: Vec<String> = group
            .nodes
            .keys()
            .filter(|address| !running.contains_key(*address))
            .cloned()
            .collect();
        for address in gone {
            group.nodes.remove(&address);
        }
        for (address, (_, claim)) in running {
            let known = self.volumes.get(&claim).cloned();
            match (group.nodes.contains_key(&address), known) {
                (true, _) => {}
                (false, Some(node)) => {
                    group.nodes.insert(
                        address.clone(),
                        super::admin::Node {
                            up: true,
                            reachable: true,
                            ..node
                        },
                    );
                }
                (false, None) => {
                    group.start_fresh(&address);
                }
            }
            let node = group.nodes[&address].clone();
            self.volumes.insert(claim, node);
        }
    }

    /// What nodes know is on their volumes; pods are ready when their member is in.
    fn readiness(&mut self) {
        for ordinal in self.ordinals() {
            let key = format!("v1/namespaces/shop/pods/orders-g0-{ordinal}");
            let claim =
                format!("v1/namespaces/shop/persistentvolumeclaims/data-orders-g0-{ordinal}");
            let Some(mut pod) = self.api.get(&key) else {
                continue;
            };
            let node = self.nodes.0.lock().nodes.get(&address(ordinal)).cloned();
            if let (Some(node), Some(claim)) = (&node, self.api.get(&claim)) {
                let uid = claim["metadata"]["uid"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned();
                self.volumes.insert(uid, node.clone());
            }
            let ready = node.is_some_and(|node| {
                let member = node
                    .configuration
                    .as_ref()
                    .is_some_and(|known| known.members.contains_key(&node.member));
                node.up && !node.broken && member
            });
            if pod["status"]["containerStatuses"].is_array() {
                pod["status"]["containerStatuses"][0]["ready"] = json!(ready);
                self.api.put(&key, pod);
            }
        }
    }

    fn ordinals(&self) -> Vec<u32> {
        self.api
            .0
            .lock()
            .objects
            .keys()
            .filter_map(|key| {
                key.strip_prefix("v1/namespaces/shop/pods/orders-g0-")?
                    .parse()
                    .ok()
            })
            .collect()
    }

    /// Removes an object, as `kubectl delete` would.
    pub fn delete(&self, key: &str) {
        self.api.0.lock().remove(key);
    }
    /// A volume and its pod are lost.
    pub fn lose_volume(&mut self, ordinal: u32) {
        self.delete(&format!(
            "v1/namespaces/shop/persistentvolumeclaims/data-orders-g0-{ordinal}"
        ));
        self.delete(&format!("v1/namespaces/shop/pods/orders-g0-{ordinal}"));
        self.nodes.0.lock().nodes.remove(&address(ordinal));
    }
    /// Voters, by ordinal of their address.
    pub fn voters(&self) -> Vec<u32> {
        let group = self.nodes.0.lock();
        let Some(configuration) = group.configuration() else {
            return Vec::new();
        };
        let mut ordinals: Vec<u32> = configuration
            .voters
            .concat()
            .iter()
            .filter_map(|id| {
                let address = configuration.members.get(id)?;
                let pod = address.split('.').next()?;
                pod.strip_prefix("orders-g0-")?.parse().ok()
            })
            .collect();
        ordinals.sort_unstable();
        ordinals
    }
    /// The leader's ordinal.
    pub fn leader(&self) -> Option<u32> {
        let group = self.nodes.0.lock();
        group.leader.as_ref()?.strip_prefix("10.0.0.")?.parse().ok()
    }
}

/// Address of a pod.
pub fn address(ordinal: u32) -> String {
    format!("10.0.0.{ordinal}")
}

fn context(api: &ApiServer, nodes: &Fake) -> Ctx {
    Ctx {
        client: api.client(),
        connect: Arc::new(nodes.clone()),
        events: Events::new(api.client(), Some("test".to_owned())),
        metrics: Metrics::new().expect("metrics"),
        settings: Settings {
            default_image: IMAGE.to_owned(),
            report_timeout: Duration::from_millis(200),
            ..Settings::default()
        },
        backoff: Backoff::default(),
        refused: parking_lot::Mutex::default(),
        pod_monitors: parking_lot::Mutex::default(),
        now: || Timestamp::from_second(1_800_000_000).expect("a time"),
    }
}
