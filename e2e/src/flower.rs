//! A Flower cluster under test: how it is applied, waited for, looked into and hurt.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use flower_api::ids::MemberId;
use flower_api::report::{Report, Role};
use http_body_util::Full;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::cluster::{Scene, ensure_condition};
use crate::http::{http1, send};
use crate::progress::wait_for;

/// The application that the tests deploy.
pub const LEDGER: &str = include_str!("../apps/ledger.js");

/// The same with derived values and an index over them.
pub const BOARD: &str = include_str!("../apps/board.js");

/// One FlowerCluster in a test's namespace.
#[derive(Clone)]
pub struct Flower {
    /// Where it lives.
    pub scene: Scene,
    /// Its name.
    pub name: String,
}

impl Flower {
    /// A handle of a cluster in a test's namespace.
    pub fn new(scene: &Scene, name: &str) -> Self {
        Self {
            scene: scene.clone(),
            name: name.to_owned(),
        }
    }

    /// Applies it with the ledger application, small volumes, and changes to its spec.
    pub async fn apply(&self, spec: Value) -> Result<()> {
        self.apply_app(LEDGER, spec).await
    }

    /// The same with another application.
    pub async fn apply_app(&self, source: &str, spec: Value) -> Result<()> {
        self.bundle(source).await?;
        let mut whole = json!({
            "storage": {"size": "400Mi"},
            "app": {"bundle": {"configMapKeyRef": {"name": "ledger", "key": "app.js"}}},
            "volumeClaims": {"whenDeleted": "Delete"},
        });
        merge(&mut whole, spec);
        self.scene
            .apply(&json!({
                "apiVersion": "flowerdb.dev/v1alpha1",
                "kind": "FlowerCluster",
                "metadata": {"name": self.name},
                "spec": whole,
            }))
            .await?;
        Ok(())
    }

    /// Applies the ConfigMap that its application comes from.
    pub async fn bundle(&self, source: &str) -> Result<()> {
        self.scene
            .apply(&json!({
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "ledger"},
                "data": {"app.js": source},
            }))
            .await
            .map(drop)
    }

    /// Merges a change into its spec.
    pub async fn change(&self, spec: Value) -> Result<()> {
        self.scene
            .merge("FlowerCluster", &self.name, &json!({"spec": spec}))
            .await?;
        Ok(())
    }

    /// The object.
    pub async fn object(&self) -> Result<Value> {
        self.scene.get("FlowerCluster", &self.name).await
    }

    /// Waits until it is Ready at its newest generation, and runs the application that it names.
    pub async fn ready(&self, limit: Duration) -> Result<Value> {
        wait_for(&format!("{} is Ready", self.name), limit, || async {
            let object = self.object().await?;
            ensure!(
                object["status"]["observedGeneration"] == object["metadata"]["generation"],
                "generation {} is not yet observed",
                object["metadata"]["generation"]
            );
            ensure_condition(&object, "Ready")?;
            if !object["spec"]["app"].is_null() {
                ensure_condition(&object, "AppDeployed")?;
            }
            Ok(object)
        })
        .await
    }

    /// The StatefulSet's name.
    pub fn set(&self) -> String {
        format!("{}-g0", self.name)
    }

    /// A pod's name.
    pub fn pod(&self, ordinal: usize) -> String {
        format!("{}-{ordinal}", self.set())
    }

    /// A pod's claim.
    pub async fn claim_of(&self, pod: &str) -> Result<String> {
        let pod = self.scene.get("Pod", pod).await?;
        let volumes = pod["spec"]["volumes"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let claim = volumes
            .iter()
            .find_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str());
        Ok(claim.context("the pod has no claim")?.to_owned())
    }

    /// Where the files of a pod's volume are on this machine.
    pub async fn volume_folder(&self, pod: &str) -> Result<PathBuf> {
        let claim = self.claim_of(pod).await?;
        let claim = self.scene.get("PersistentVolumeClaim", &claim).await?;
        let volume = claim["spec"]["volumeName"]
            .as_str()
            .context("the claim has no volume")?;
        self.scene.cluster.paths.at(format!("mounts/{volume}"))
    }

    /// The pods of the group, by name.
    pub async fn pods(&self) -> Result<Vec<Value>> {
        let all = self.scene.list("Pod", "").await?;
        let prefix = format!("{}-", self.set());
        Ok(all
            .into_iter()
            .filter(|pod| {
                pod["metadata"]["name"]
                    .as_str()
                    .is_some_and(|n| n.starts_with(&prefix))
            })
            .collect())
    }

    /// The first token of a kind: `client`, `admin` or `peer`.
    pub async fn token(&self, kind: &str) -> Result<String> {
        let secret = self
            .scene
            .get("Secret", &format!("{}-auth", self.name))
            .await?;
        let text = secret["data"][kind]
            .as_str()
            .with_context(|| format!("no key {kind} in the Secret"))?;
        let bytes = base64::engine::general_purpose::STANDARD.decode(text)?;
        let text = String::from_utf8(bytes)?;
        Ok(text
            .lines()
            .next()
            .context("an empty list of tokens")?
            .trim()
            .to_owned())
    }

    /// The address of the client Service.
    pub async fn service(&self) -> Result<Ipv4Addr> {
        let service = self.scene.get("Service", &self.name).await?;
        Ok(service["spec"]["clusterIP"]
            .as_str()
            .context("the Service has no address")?
            .parse()?)
    }

    /// What every pod that answers says of itself, by the pod's name.
    pub async fn reports(&self) -> Result<BTreeMap<String, Report>> {
        let token = self.token("admin").await?;
        let mut reports = BTreeMap::new();
        for pod in self.pods().await? {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let Some(address) = pod["status"]["podIP"].as_str() else {
                continue;
            };
            if let Ok(report) = report(address, &token).await {
                reports.insert(name.to_owned(), report);
            }
        }
        Ok(reports)
    }

    /// The pod that leads, as most of the answers say, with its report.
    pub async fn leader(&self) -> Result<(String, Report)> {
        let leaders = self
            .reports()
            .await?
            .into_iter()
            .filter(|(_, report)| report.role == Role::Leader);
        leaders
            .max_by_key(|(_, report)| report.term)
            .context("nobody says that it leads")
    }

    /// Waits for a leader.
    pub async fn wait_leader(&self) -> Result<(String, Report)> {
        wait_for("there is a leader", Duration::from_secs(30), || {
            self.leader()
        })
        .await
    }

    /// The member id of a pod, once it answers.
    pub async fn member(&self, pod: &str) -> Result<MemberId> {
        let reports = self.reports().await?;
        let report = reports
            .get(pod)
            .with_context(|| format!("{pod} does not answer"))?;
        report
            .identity
            .member
            .with_context(|| format!("{pod} has no member id"))
    }

    /// Deletes a pod with its claim; returns the member id that is lost with them.
    pub async fn lose_volume(&self, pod: &str) -> Result<MemberId> {
        let lost = self.member(pod).await?;
        let claim = self.claim_of(pod).await?;
        self.scene.delete("PersistentVolumeClaim", &claim).await?;
        self.scene.delete("Pod", pod).await?;
        Ok(lost)
    }

    /// Waits until another member than the lost one votes in a pod; returns its report.
    pub async fn replaced(&self, pod: &str, lost: MemberId, limit: Duration) -> Result<Report> {
        wait_for(&format!("a new member votes in {pod}"), limit, || async {
            let (_, leads) = self.leader().await?;
            let configuration = leads
                .configuration
                .context("the leader knows no configuration")?;
            ensure!(
                !configuration.members.contains_key(&lost),
                "{lost} is still in the configuration"
            );
            let report = self
                .reports()
                .await?
                .remove(pod)
                .context("the pod does not answer")?;
            let id = report.identity.member.context("the pod has no member id")?;
            ensure!(id != lost, "the pod still has the id {lost}");
            ensure!(
                !configuration.is_joint() && configuration.is_voter(id),
                "{id} does not vote yet"
            );
            Ok(report)
        })
        .await
    }

    /// Kills a pod's node at once, from outside; returns the processes killed.
    pub async fn kill(&self, pod: &str) -> Result<Vec<i32>> {
        self.signal(pod, Signal::SIGKILL).await
    }

    /// Sends a signal to a pod's processes, from outside; returns them.
    pub async fn signal(&self, pod: &str, signal: Signal) -> Result<Vec<i32>> {
        let object = self.scene.get("Pod", pod).await?;
        let statuses = object["status"]["containerStatuses"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let mut killed = Vec::new();
        for status in statuses {
            let Some((_, id)) = status["containerID"]
                .as_str()
                .and_then(|id| id.split_once("://"))
            else {
                continue;
            };
            for pid in processes_of(id)? {
                kill(Pid::from_raw(pid), signal)?;
                killed.push(pid);
            }
        }
        if killed.is_empty() {
            bail!("{pod} has no process to signal");
        }
        Ok(killed)
    }
}

/// What a node says of itself.
pub async fn report(address: &str, token: &str) -> Result<Report> {
    let url = format!(
        "http://{address}:{}{}",
        flower_api::ports::ADMIN,
        flower_api::admin::path::REPORT
    );
    let request = http::Request::get(&url)
        .header("authorization", format!("Bearer {token}"))
        .body(Full::default())?;
    let (status, body) = send(&http1(), request, Duration::from_secs(3)).await?;
    ensure!(status.is_success(), "{url}: {status}: {body}");
    Ok(serde_json::from_str(&body)?)
}

/// The processes of a container, by its cgroup.
fn processes_of(container: &str) -> Result<Vec<i32>> {
    let base = PathBuf::from("/sys/fs/cgroup");
    let tree = if base.join("pids").is_dir() {
        base.join("pids")
    } else {
        base
    };
    let mut folders = vec![tree.join("flower-e2e")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)?
            .flatten()
            .filter(|entry| entry.path().is_dir())
        {
            if entry.file_name().to_string_lossy().contains(container) {
                let text = std::fs::read_to_string(entry.path().join("cgroup.procs"))?;
                return Ok(text.lines().filter_map(|line| line.parse().ok()).collect());
            }
            folders.push(entry.path());
        }
    }
    Ok(Vec::new())
}

/// Lays one JSON object over another; null removes.
fn merge(under: &mut Value, over: Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (key, value) in over {
                if value.is_null() {
                    under.remove(&key);
                } else {
                    merge(under.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (under, over) => *under = over,
    }
}
