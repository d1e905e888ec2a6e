//! Prometheus, configured from the PodMonitors, has every metric that the docs promise, every
//! panel of every dashboard shows data, and the names are well formed.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::api::ListParams;
use serde_json::{Value, json};

use super::Test;
use crate::cluster::Scene;
use crate::deploy::OPERATOR_NAMESPACE;
use crate::flower::Flower;
use crate::net::PROMETHEUS_PORT;
use crate::paths::root;
use crate::progress::wait_for;
use crate::run::run_with_input;
use crate::workload::Workload;

/// See the file's head.
pub const TEST: Test = Test {
    name: "metrics",
    in_ci: true,
    what: "every promised metric is in Prometheus, every dashboard panel has data, names pass promtool",
    run: |scene| Box::pin(run(scene)),
};

async fn run(scene: Scene) -> Result<String> {
    let flower = Flower::new(&scene, "db");
    flower
        .apply(json!({"replicas": 3, "monitoring": {"podMonitor": true}}))
        .await?;
    flower.ready(Duration::from_secs(180)).await?;
    let work = Workload::start(&flower, 2, Duration::from_millis(20)).await?;
    let promised = promised()?;
    let count = wait_for(
        "every promised metric",
        Duration::from_secs(120),
        || async {
            let known = query("label/__name__/values", &[]).await?;
            let known: BTreeSet<_> = known
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            let there = |name: &String| {
                known.contains(name.as_str()) || known.contains(format!("{name}_bucket").as_str())
            };
            let missing: Vec<_> = promised.iter().filter(|name| !there(name)).collect();
            ensure!(missing.is_empty(), "Prometheus does not have {missing:?}");
            Ok(promised.len())
        },
    )
    .await?;
    let panels = panels(&scene).await?;
    for (title, expression) in &panels {
        wait_for(
            &format!("the panel {title} shows data"),
            Duration::from_secs(60),
            || async {
                let expression = filled(expression, &scene.namespace, &flower.name);
                let result = query("query", &[("query", &expression)]).await?;
                ensure!(
                    result["result"]
                        .as_array()
                        .is_some_and(|rows| !rows.is_empty()),
                    "{expression} returns nothing"
                );
                Ok(())
            },
        )
        .await?;
    }
    let names = well_formed(&scene, &flower).await?;
    let history = work.finish().await?;
    flower
        .change(json!({"monitoring": {"podMonitor": false}}))
        .await?;
    wait_for(
        "the PodMonitor is gone",
        Duration::from_secs(30),
        || async {
            let left = scene.list("PodMonitor", "").await?;
            ensure!(left.is_empty(), "{} are there", left.len());
            Ok(())
        },
    )
    .await?;
    Ok(format!(
        "{count} promised metrics, {} panel queries with data, {names} exporters pass promtool; {} mutations meanwhile",
        panels.len(),
        history.acknowledged()
    ))
}

/// The metrics that the reference names.
fn promised() -> Result<BTreeSet<String>> {
    let file = root().join("docs/reference/metrics.md");
    let text =
        std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let quoted = text
        .split('`')
        .skip(1)
        .step_by(2)
        .map(|name| name.split('{').next().unwrap_or_default());
    // A node that has neither sent nor received an image does not know the size of its last.
    let names: BTreeSet<_> = quoted
        .filter(|name| name.starts_with("flower_") && *name != "flower_image_bytes")
        .map(str::to_owned)
        .collect();
    ensure!(!names.is_empty(), "{} names no metric", file.display());
    Ok(names)
}

/// Asks Prometheus.
async fn query(path: &str, parameters: &[(&str, &str)]) -> Result<Value> {
    let text: Vec<_> = parameters
        .iter()
        .map(|(name, value)| format!("{name}={}", escaped(value)))
        .collect();
    let body = crate::http::get(&format!(
        "http://127.0.0.1:{PROMETHEUS_PORT}/api/v1/{path}?{}",
        text.join("&")
    ))
    .await?;
    let answer: Value = serde_json::from_str(&body)?;
    ensure!(answer["status"] == "success", "{body}");
    Ok(answer["data"].clone())
}

fn escaped(text: &str) -> String {
    text.bytes()
        .map(|byte| {
            if byte.is_ascii_alphanumeric() {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

/// Every query of every panel of the dashboards in the operator's namespace.
async fn panels(scene: &Scene) -> Result<Vec<(String, String)>> {
    let labelled = ListParams::default().labels("grafana_dashboard");
    let maps = scene
        .cluster
        .api(OPERATOR_NAMESPACE, "ConfigMap")
        .list(&labelled)
        .await?
        .items;
    let mut found = Vec::new();
    for map in &maps {
        for text in map.data["data"]
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(_, text)| text.as_str())
        {
            let dashboard: Value = serde_json::from_str(text).context("a dashboard is not JSON")?;
            let mut open = vec![&dashboard];
            while let Some(part) = open.pop() {
                open.extend(part["panels"].as_array().into_iter().flatten());
                for target in part["targets"].as_array().into_iter().flatten() {
                    let title = part["title"].as_str().unwrap_or("untitled").to_owned();
                    found.push((
                        title,
                        target["expr"]
                            .as_str()
                            .context("a target without a query")?
                            .to_owned(),
                    ));
                }
            }
        }
    }
    ensure!(
        !found.is_empty(),
        "there are no panels in {} dashboards",
        maps.len()
    );
    Ok(found)
}

/// A panel's query with the dashboard's variables filled in.
fn filled(expression: &str, namespace: &str, cluster: &str) -> String {
    let known = [
        ("$__rate_interval", "1m"),
        ("$__interval", "30s"),
        ("$__range", "5m"),
        ("${namespace}", namespace),
        ("$namespace", namespace),
        ("${cluster}", cluster),
        ("$cluster", cluster),
        ("${pod}", ".*"),
        ("$pod", ".*"),
    ];
    known
        .iter()
        .fold(expression.to_owned(), |text, (name, value)| {
            text.replace(name, value)
        })
}

/// Passes what each exporter serves to promtool; returns how many there are.
async fn well_formed(scene: &Scene, flower: &Flower) -> Result<usize> {
    let node = flower.pods().await?.first().cloned().context("no pod")?;
    let operator = scene
        .cluster
        .api(OPERATOR_NAMESPACE, "Pod")
        .list(&ListParams::default())
        .await?
        .items;
    let operator = serde_json::to_value(operator.first().context("no operator")?)?;
    let mut checked = 0;
    for pod in [&node, &operator] {
        let address = pod["status"]["podIP"]
            .as_str()
            .context("a pod without address")?;
        let containers = pod["spec"]["containers"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let ports: Vec<_> = containers
            .iter()
            .flat_map(|container| container["ports"].as_array().cloned().unwrap_or_default())
            .collect();
        let named = |port: &&Value| {
            ["metrics", "admin", "http"]
                .iter()
                .any(|name| port["name"] == *name)
        };
        let port = ports
            .iter()
            .find(named)
            .with_context(|| format!("no port for metrics among {ports:?}"))?;
        let text = crate::http::get(&format!(
            "http://{address}:{}/metrics",
            port["containerPort"]
        ))
        .await?;
        run_with_input("promtool", &["check", "metrics"], &text).await?;
        checked += 1;
    }
    Ok(checked)
}
