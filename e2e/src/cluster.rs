//! What tests have in hand: the cluster's API, a namespace of their own, and Flower clusters in it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::paths::Paths;
use crate::progress::wait_for;

/// The cluster that `up` made.
#[derive(Clone)]
pub struct Cluster {
    /// The state folder.
    pub paths: Paths,
    /// The API, as the administrator.
    pub client: Client,
}

/// A kind of object, as `Kind` or `Kind.version.group`.
fn resource(kind: &str) -> ApiResource {
    let (group, version) = match kind {
        "StatefulSet" | "Deployment" | "ControllerRevision" | "ReplicaSet" => ("apps", "v1"),
        "PodDisruptionBudget" => ("policy", "v1"),
        "FlowerCluster" => ("flowerdb.dev", "v1alpha1"),
        "PodMonitor" | "PrometheusRule" => ("monitoring.coreos.com", "v1"),
        "Lease" => ("coordination.k8s.io", "v1"),
        "ClusterRole" | "ClusterRoleBinding" | "Role" | "RoleBinding" => {
            ("rbac.authorization.k8s.io", "v1")
        }
        _ => ("", "v1"),
    };
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

impl Cluster {
    /// Connects to the cluster of a state folder.
    pub async fn connect(paths: &Paths) -> Result<Self> {
        Ok(Self {
            paths: paths.clone(),
            client: crate::kube::client(paths).await?,
        })
    }

    /// Objects of a kind in a namespace.
    pub fn api(&self, namespace: &str, kind: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &resource(kind))
    }

    /// Objects of a kind that lie in no namespace, or in all of them.
    pub fn all(&self, kind: &str) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &resource(kind))
    }

    /// Runs kubectl as the administrator.
    pub async fn kubectl(&self, args: &[&str]) -> Result<String> {
        crate::kube::kubectl(&self.paths, args).await
    }
}

/// A namespace that belongs to one test.
#[derive(Clone)]
pub struct Scene {
    /// The cluster.
    pub cluster: Cluster,
    /// The namespace.
    pub namespace: String,
}

impl Scene {
    /// Makes the namespace, under the restricted Pod Security level.
    pub async fn open(cluster: &Cluster, namespace: &str) -> Result<Self> {
        let scene = Self {
            cluster: cluster.clone(),
            namespace: namespace.to_owned(),
        };
        scene.close().await?;
        let object = serde_json::from_value(json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": namespace, "labels": {
                "flowerdb.dev/e2e": "true",
                "pod-security.kubernetes.io/enforce": "restricted",
                "pod-security.kubernetes.io/enforce-version": "latest",
            }},
        }))?;
        cluster
            .all("Namespace")
            .create(&kube::api::PostParams::default(), &object)
            .await?;
        // Pods need the namespace's service account, which a controller makes.
        wait_for(
            "the namespace is usable",
            Duration::from_secs(30),
            || async {
                scene.api("ServiceAccount").get("default").await?;
                Ok(())
            },
        )
        .await?;
        Ok(scene)
    }

    /// Deletes everything in the namespace and waits until it is gone, volumes included.
    pub async fn close(&self) -> Result<()> {
        let namespaces = self.cluster.all("Namespace");
        if namespaces.get_opt(&self.namespace).await?.is_none() {
            return Ok(());
        }
        // The operator acts on deletion while its FlowerCluster's namespace still is whole.
        if let Ok(clusters) = self.api("FlowerCluster").list(&ListParams::default()).await {
            for cluster in clusters {
                self.delete("FlowerCluster", &cluster.name_any()).await?;
            }
            wait_for(
                "FlowerClusters are gone",
                Duration::from_secs(60),
                || async {
                    let left = self
                        .api("FlowerCluster")
                        .list(&ListParams::default())
                        .await?
                        .items
                        .len();
                    ensure!(left == 0, "{left} are left");
                    Ok(())
                },
            )
            .await?;
        }
        // Nobody waits for a graceful end of what a test leaves.
        let at_once = DeleteParams::default().grace_period(1);
        self.api("Pod")
            .delete_collection(&at_once, &ListParams::default())
            .await?;
        namespaces
            .delete(&self.namespace, &DeleteParams::default())
            .await?;
        wait_for(
            &format!("namespace {} is gone", self.namespace),
            Duration::from_secs(120),
            || async {
                ensure!(
                    namespaces.get_opt(&self.namespace).await?.is_none(),
                    "it is still there"
                );
                let volumes = self
                    .cluster
                    .all("PersistentVolume")
                    .list(&ListParams::default())
                    .await?;
                let left = volumes.iter().filter(|volume| {
                    volume.data["spec"]["claimRef"]["namespace"] == self.namespace
                });
                ensure!(left.count() == 0, "its volumes are still there");
                Ok(())
            },
        )
        .await
    }

    /// Objects of a kind in the namespace.
    pub fn api(&self, kind: &str) -> Api<DynamicObject> {
        self.cluster.api(&self.namespace, kind)
    }

    /// Applies an object as a person would, with strict validation.
    pub async fn apply(&self, object: &Value) -> Result<Value> {
        let kind = object["kind"].as_str().context("an object without kind")?;
        let name = object["metadata"]["name"]
            .as_str()
            .context("an object without name")?;
        let mut params = PatchParams::apply("flower-e2e-test").force();
        params.field_validation = Some(kube::api::ValidationDirective::Strict);
        let applied = self
            .api(kind)
            .patch(name, &params, &Patch::Apply(object))
            .await?;
        Ok(serde_json::to_value(applied)?)
    }

    /// Merges a change into an object.
    pub async fn merge(&self, kind: &str, name: &str, change: &Value) -> Result<Value> {
        let patched = self
            .api(kind)
            .patch(name, &PatchParams::default(), &Patch::Merge(change))
            .await?;
        Ok(serde_json::to_value(patched)?)
    }

    /// An object, if it is there.
    pub async fn find(&self, kind: &str, name: &str) -> Result<Option<Value>> {
        let found = self.api(kind).get_opt(name).await?;
        Ok(found.map(serde_json::to_value).transpose()?)
    }

    /// An object that must be there.
    pub async fn get(&self, kind: &str, name: &str) -> Result<Value> {
        self.find(kind, name)
            .await?
            .with_context(|| format!("there is no {kind} {name}"))
    }

    /// Objects of a kind with labels, in order of their names.
    pub async fn list(&self, kind: &str, labels: &str) -> Result<Vec<Value>> {
        let mut list = self
            .api(kind)
            .list(&ListParams::default().labels(labels))
            .await?
            .items;
        list.sort_by_key(ResourceExt::name_any);
        Ok(list
            .into_iter()
            .map(serde_json::to_value)
            .collect::<Result<_, _>>()?)
    }

    /// Deletes an object; one that is not there is fine.
    pub async fn delete(&self, kind: &str, name: &str) -> Result<()> {
        match self.api(kind).delete(name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => Ok(()),
        }
    }
}

/// A condition of an object.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"]
        .as_array()?
        .iter()
        .find(|condition| condition["type"] == kind)
}

/// An error unless a condition is `True`, with what it says.
pub fn ensure_condition(object: &Value, kind: &str) -> Result<()> {
    let condition = condition(object, kind).with_context(|| format!("no condition {kind} yet"))?;
    ensure!(
        condition["status"] == "True",
        "{kind} is {}: {} {}",
        condition["status"],
        condition["reason"],
        condition["message"]
    );
    Ok(())
}
