//! The operator's service account: bound to the chart's role alone, never refused, and every
//! permission used. It runs last, over the audit log of all that went before.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use kube::api::ListParams;
use serde_json::{Value, json};

use super::Test;
use crate::cluster::{Cluster, Scene};
use crate::deploy::{OPERATOR, OPERATOR_NAMESPACE};
use crate::flower::Flower;
use crate::progress::wait_for;

/// See the file's head.
pub const TEST: Test = Test {
    name: "rbac",
    in_ci: true,
    what: "the operator's role: the only one, never too small, nothing in it unused; restricted Pod Security",
    run: |scene| Box::pin(run(scene)),
};

/// A verb on a resource of a group.
type Permission = (String, String, String);

async fn run(scene: Scene) -> Result<String> {
    let cluster = &scene.cluster;
    say_twice(&scene).await?;
    let account = account(cluster).await?;
    let user = format!("system:serviceaccount:{OPERATOR_NAMESPACE}:{account}");
    let (granted, roles) = granted(cluster, &account).await?;
    let (used, refused) = audit(cluster, &user)?;
    ensure!(refused.is_empty(), "calls that were refused: {refused:?}");
    let unused: Vec<_> = granted.difference(&used).collect();
    ensure!(
        unused.is_empty(),
        "permissions that nobody used: {unused:?}"
    );
    let namespace = cluster.all("Namespace").get(OPERATOR_NAMESPACE).await?;
    let labels = namespace.metadata.labels.unwrap_or_default();
    let level = labels
        .get("pod-security.kubernetes.io/enforce")
        .map(String::as_str);
    ensure!(
        level == Some("restricted"),
        "the operator's namespace is under the level {level:?}"
    );
    Ok(format!(
        "{roles:?}: {} permissions, all used, no call refused",
        granted.len()
    ))
}

/// Has the operator tell the same event twice, which no other test is sure to do.
async fn say_twice(scene: &Scene) -> Result<()> {
    let flower = Flower::new(scene, "db");
    flower.apply(json!({"replicas": 1})).await?;
    flower.ready(Duration::from_secs(120)).await?;
    let (set, pod) = (format!("statefulset/{}", flower.set()), flower.pod(0));
    for _ in 0..2 {
        let before = scene.get("Pod", &pod).await?["metadata"]["uid"].clone();
        let restart = ["-n", &scene.namespace, "rollout", "restart", &set];
        scene.cluster.kubectl(&restart).await?;
        wait_for("another pod", Duration::from_secs(60), || async {
            let now = scene.get("Pod", &pod).await?["metadata"]["uid"].clone();
            ensure!(now != before, "it is the same");
            Ok(())
        })
        .await?;
        flower.ready(Duration::from_secs(120)).await?;
    }
    Ok(())
}

/// The operator's service account.
pub async fn account(cluster: &Cluster) -> Result<String> {
    let deployment = cluster
        .api(OPERATOR_NAMESPACE, "Deployment")
        .get(OPERATOR)
        .await?;
    let name = &deployment.data["spec"]["template"]["spec"]["serviceAccountName"];
    Ok(name
        .as_str()
        .context("the Deployment names no service account")?
        .to_owned())
}

/// What the account may do, and by which roles.
async fn granted(cluster: &Cluster, account: &str) -> Result<(BTreeSet<Permission>, Vec<String>)> {
    let mut permissions = BTreeSet::new();
    let mut roles = Vec::new();
    for (binding_kind, role_kind) in [
        ("ClusterRoleBinding", "ClusterRole"),
        ("RoleBinding", "Role"),
    ] {
        for binding in cluster
            .all(binding_kind)
            .list(&ListParams::default())
            .await?
        {
            let subjects = binding.data["subjects"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let ours = |subject: &Value| {
                subject["name"] == account && subject["namespace"] == OPERATOR_NAMESPACE
            };
            if !subjects.iter().any(ours) {
                continue;
            }
            let by = binding.metadata.labels.unwrap_or_default();
            let managed = by.get("app.kubernetes.io/managed-by").map(String::as_str);
            ensure!(
                managed == Some("Helm"),
                "a binding that the chart did not make: {:?}",
                binding.metadata.name
            );
            let name = binding.data["roleRef"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            let role = if binding.data["roleRef"]["kind"] == "ClusterRole" {
                cluster.all("ClusterRole").get(&name).await?
            } else {
                let namespace = binding.metadata.namespace.unwrap_or_default();
                cluster.api(&namespace, role_kind).get(&name).await?
            };
            roles.push(name);
            for rule in role.data["rules"].as_array().into_iter().flatten() {
                let texts = |field: &str| rule[field].as_array().cloned().unwrap_or_default();
                for group in texts("apiGroups") {
                    for resource in texts("resources") {
                        for verb in texts("verbs") {
                            let text =
                                |value: &Value| value.as_str().unwrap_or_default().to_owned();
                            permissions.insert((text(&group), text(&resource), text(&verb)));
                        }
                    }
                }
            }
        }
    }
    ensure!(!permissions.is_empty(), "{account} may do nothing");
    Ok((permissions, roles))
}

/// What a user did, and what it was refused while the chart was installed, by the audit log.
fn audit(cluster: &Cluster, user: &str) -> Result<(BTreeSet<Permission>, BTreeSet<Permission>)> {
    let (mut used, mut refused) = (BTreeSet::new(), BTreeSet::new());
    let absent = without_the_chart(cluster)?;
    for event in events(cluster, user)? {
        let at = time(&event)?;
        let object = &event["objectRef"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let resource = match object["subresource"].as_str() {
            Some(sub) => format!("{}/{sub}", text(&object["resource"])),
            None => text(&object["resource"]),
        };
        let permission = (text(&object["apiGroup"]), resource, text(&event["verb"]));
        // An apply that makes the object is a patch in the log, and asks for create as well.
        if text(&event["verb"]) == "patch" && event["responseStatus"]["code"] == 201 {
            let (group, resource, _) = permission.clone();
            used.insert((group, resource, "create".to_owned()));
        }
        if event["annotations"]["authorization.k8s.io/decision"] == "forbid" {
            // An operator whose chart is being uninstalled loses its roles before it ends.
            if !absent.iter().any(|(from, to)| (*from..=*to).contains(&at)) {
                refused.insert(permission);
            }
        } else if !object.is_null() {
            used.insert(permission);
        }
    }
    Ok((used, refused))
}

/// Times in which a binding of the chart did not exist. Authorizers hear of one that was made
/// a moment later.
fn without_the_chart(cluster: &Cluster) -> Result<Vec<(Timestamp, Timestamp)>> {
    let mut gone: BTreeMap<String, Timestamp> = BTreeMap::new();
    let mut times = Vec::new();
    for event in lines(cluster, "rolebindings")? {
        let object = &event["objectRef"];
        let name = object["name"].as_str().unwrap_or_default();
        if !name.starts_with(OPERATOR) {
            continue;
        }
        let (key, at) = (format!("{} {name}", object["resource"]), time(&event)?);
        if event["verb"] == "delete" {
            gone.insert(key, at);
        } else if let Some(from) = gone.remove(&key) {
            times.push((from, at.checked_add(jiff::SignedDuration::from_secs(5))?));
        }
    }
    times.extend(gone.into_values().map(|from| (from, Timestamp::MAX)));
    Ok(times)
}

fn time(event: &Value) -> Result<Timestamp> {
    let text = event["requestReceivedTimestamp"].as_str();
    Ok(text.context("an event without a time")?.parse()?)
}

/// The audit log's events of a user.
pub fn events(cluster: &Cluster, user: &str) -> Result<Vec<Value>> {
    let all = lines(cluster, user)?;
    let of_user = |event: &Value| event["user"]["username"] == user;
    Ok(all.into_iter().filter(of_user).collect())
}

/// The audit log's events whose text contains a word, oldest first.
fn lines(cluster: &Cluster, word: &str) -> Result<Vec<Value>> {
    let folder = cluster.paths.dir("audit")?;
    let mut events = Vec::new();
    for file in std::fs::read_dir(folder)?
        .flatten()
        .filter(|file| file.path().extension().is_some_and(|e| e == "log"))
    {
        let text = std::fs::read_to_string(file.path())?;
        let lines = text.lines().filter(|line| line.contains(word));
        events.extend(lines.filter_map(|line| serde_json::from_str::<Value>(line).ok()));
    }
    events.sort_by_key(|event| event["requestReceivedTimestamp"].to_string());
    Ok(events)
}
