//! What stands on the cluster: images, charts, Prometheus, the example. Each is done when its
//! folder exists; what is missing is said.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::kube::{containerd, kubectl, kubectl_apply, prometheus};
use crate::net::{Node, PROMETHEUS_PORT};
use crate::paths::{Paths, root, target};
use crate::progress::{note, step, wait_for};
use crate::run::run;
use crate::{image, programs};

/// The namespace of the operator.
pub const OPERATOR_NAMESPACE: &str = "flower-system";
/// The release and Deployment of the operator.
pub const OPERATOR: &str = "flower-operator";

/// Installs everything on a running Kubernetes; says whether the example runs.
pub async fn up(paths: &Paths) -> Result<bool> {
    let archives = image::build_all().await?;
    import(paths, &archives).await?;
    step("Prometheus", async {
        kubectl_apply(paths, include_str!("../manifests/monitoring.yaml")).await?;
        kubectl(
            paths,
            &[
                "wait",
                "--for=condition=Established",
                "crd",
                "--all",
                "--timeout=60s",
            ],
        )
        .await?;
        prometheus::up(paths).await
    })
    .await?;
    if chart_exists("flower-crds") && chart_exists("flower-operator") {
        step("charts", charts(paths)).await?;
    } else {
        note(
            "charts/flower-crds and charts/flower-operator are not both there: no operator is installed",
        );
    }
    restart_clusters(paths).await?;
    example(paths).await
}

/// Asks the operator to restart clusters whose image changed under the same tag since they
/// were started: a spec that does not change restarts nothing.
async fn restart_clusters(paths: &Paths) -> Result<()> {
    let now = digest("flower")?;
    let file = paths.at("running-image")?;
    let before = std::fs::read_to_string(&file).unwrap_or_default();
    if !before.is_empty() && before != now {
        let columns = "custom-columns=:metadata.namespace,:metadata.name";
        let label = "app.kubernetes.io/name=flower";
        let args = ["get", "statefulsets", "-A", "-l", label, "-o", columns];
        let sets = kubectl(paths, &args).await?;
        for line in sets.lines() {
            if let [namespace, name] = line.split_whitespace().collect::<Vec<_>>()[..] {
                let set = format!("statefulset/{name}");
                kubectl(paths, &["-n", namespace, "rollout", "restart", &set]).await?;
                note(&format!(
                    "{namespace}/{name} runs another image: it is restarted"
                ));
            }
        }
    }
    Ok(std::fs::write(file, now)?)
}

/// The digest of an image's archive.
fn digest(name: &str) -> Result<String> {
    let archive = target().join("images").join(format!("{name}.tar"));
    let content =
        std::fs::read(&archive).with_context(|| format!("reading {}", archive.display()))?;
    Ok(crate::hex(&Sha256::digest(&content))[..16].to_owned())
}

/// Brings the images into every node that has others.
pub async fn import(paths: &Paths, archives: &[std::path::PathBuf]) -> Result<()> {
    step("importing the images", async {
        for archive in archives {
            for node in Node::ALL {
                containerd::import(paths, node, archive).await?;
            }
        }
        Ok(())
    })
    .await
}

fn chart_exists(name: &str) -> bool {
    root().join("charts").join(name).join("Chart.yaml").exists()
}

/// Runs helm as the administrator.
pub async fn helm(paths: &Paths, args: &[&str]) -> Result<String> {
    let config = paths.kubeconfig("admin").display().to_string();
    let folder = programs::home("helm")?.display().to_string();
    // A folder of the harness keeps helm from the user's own settings and caches.
    let own = [
        format!("HELM_CACHE_HOME={folder}"),
        format!("HELM_CONFIG_HOME={folder}"),
        format!("HELM_DATA_HOME={folder}"),
    ];
    let program = programs::path("helm")?.display().to_string();
    let mut all: Vec<&str> = own.iter().map(String::as_str).collect();
    all.extend([program.as_str(), "--kubeconfig", &config]);
    all.extend(args);
    run("env", &all).await
}

/// Installs or updates both charts; the image's digest on the pods restarts an operator whose
/// image changed under the same tag.
pub async fn charts(paths: &Paths) -> Result<()> {
    install(paths, "flower-crds", &[]).await?;
    let label = format!(
        "label --overwrite namespace {OPERATOR_NAMESPACE} pod-security.kubernetes.io/enforce=restricted"
    );
    kubectl(paths, &label.split(' ').collect::<Vec<_>>()).await?;
    let image = format!(
        "podAnnotations.e2e\\.flowerdb\\.dev/image={}",
        digest(OPERATOR)?
    );
    install(
        paths,
        OPERATOR,
        &["--wait", "--timeout", "3m", "--set-string", &image],
    )
    .await
}

/// Installs or updates one chart under its own name.
async fn install(paths: &Paths, chart: &str, more: &[&str]) -> Result<()> {
    let folder = root().join("charts").join(chart).display().to_string();
    let line = format!(
        "upgrade --install {chart} {folder} --namespace {OPERATOR_NAMESPACE} --create-namespace"
    );
    let args: Vec<_> = line.split(' ').chain(more.iter().copied()).collect();
    helm(paths, &args).await.map(drop)
}

/// An error unless the operator stands.
pub async fn installed(paths: &Paths) -> Result<()> {
    let args = [
        "-n",
        OPERATOR_NAMESPACE,
        "get",
        "deployment",
        OPERATOR,
        "-o",
        "name",
    ];
    kubectl(paths, &args)
        .await
        .map(drop)
        .context("the operator is not installed")
}

/// Applies the example and waits until it is Available.
async fn example(paths: &Paths) -> Result<bool> {
    let file = root().join("docs/examples/orders.yaml");
    if !file.exists() || !chart_exists("flower-operator") {
        note(
            "docs/examples/orders.yaml or the operator's chart is not there: no example is running",
        );
        return Ok(false);
    }
    step("example: docs/examples/orders.yaml", async {
        kubectl(
            paths,
            &["apply", "--server-side", "-f", &file.display().to_string()],
        )
        .await?;
        wait_for(
            "the example is Available",
            Duration::from_secs(180),
            || async {
                let list = kubectl(paths, &["get", "flowerclusters", "-o", "json"]).await?;
                let list: Value = serde_json::from_str(&list)?;
                let clusters = list["items"].as_array().cloned().unwrap_or_default();
                ensure!(!clusters.is_empty(), "there is no FlowerCluster");
                for cluster in clusters {
                    let conditions = cluster["status"]["conditions"]
                        .as_array()
                        .cloned()
                        .unwrap_or_default();
                    let available = conditions
                        .iter()
                        .find(|condition| condition["type"] == "Available");
                    ensure!(
                        available.is_some_and(|condition| condition["status"] == "True"),
                        "{}: {}",
                        cluster["metadata"]["name"],
                        available.map_or("no condition Available yet".to_owned(), |condition| {
                            condition["message"].to_string()
                        })
                    );
                }
                Ok(())
            },
        )
        .await
    })
    .await?;
    Ok(true)
}

/// What a person may try now; every line works when pasted.
pub fn try_next(paths: &Paths, example: bool) -> Result<()> {
    let programs = programs::link_for_people()?;
    println!("\nTo try:\n");
    println!(
        "export KUBECONFIG={} PATH={}:$PATH",
        paths.kubeconfig("admin").display(),
        programs.display()
    );
    println!("kubectl get nodes");
    if example {
        println!("kubectl get flower orders");
        println!("kubectl get pods -l flowerdb.dev/cluster=orders -o wide");
        println!(
            "export FLOWER_TOKEN=$(kubectl get secret orders-auth -o jsonpath='{{.data.client}}' | base64 -d | head -n1)"
        );
        println!(
            "export FLOWER_URL=http://$(kubectl get service orders -o jsonpath='{{.spec.clusterIP}}'):7700"
        );
        println!("flower call addCustomer '{{\"name\": \"Ada\"}}'");
        println!("flower query listCustomers");
        println!("kubectl get flower orders -o yaml");
        println!("curl -s 'http://127.0.0.1:{PROMETHEUS_PORT}/api/v1/query?query=up'");
    }
    println!("cargo e2e status");
    println!("cargo e2e down");
    Ok(())
}
