//! Prometheus's configuration from the PodMonitors and PrometheusRules in the API, as
//! Prometheus Operator would make it, for the fields that our charts use.

use std::collections::BTreeMap;

use anyhow::Result;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::net::PROMETHEUS_PORT;
use crate::paths::Paths;
use crate::process::running;

/// The longest time between two scrapes; a PodMonitor's own, longer interval is shortened for the tests.
const INTERVAL: &str = "5s";

/// What keeps the configuration.
pub struct Monitors {
    client: Client,
    paths: Paths,
    written: String,
}

impl Monitors {
    /// Over a client and the state folder.
    pub fn new(client: Client, paths: Paths) -> Self {
        Self {
            client,
            paths,
            written: String::new(),
        }
    }

    /// Writes the configuration when it differs from what was last written, and has Prometheus read it.
    pub async fn pass(&mut self) -> Result<()> {
        if running(&self.paths, "prometheus").is_none() {
            self.written.clear();
            return Ok(());
        }
        let monitors = self.list("PodMonitor", "podmonitors").await?;
        let jobs: Vec<_> = monitors
            .iter()
            .flat_map(|monitor| jobs(monitor, &self.paths))
            .collect();
        let rules: BTreeMap<_, _> = self
            .list("PrometheusRule", "prometheusrules")
            .await?
            .iter()
            .map(|rule| {
                (
                    format!(
                        "{}-{}",
                        rule.namespace().unwrap_or_default(),
                        rule.name_any()
                    ),
                    rule.data["spec"].clone(),
                )
            })
            .collect();
        let content = format!("{}{}", json!(jobs), json!(rules));
        if content == self.written {
            return Ok(());
        }
        let folder = self.paths.dir("prometheus/rules")?;
        for old in std::fs::read_dir(&folder)?.flatten() {
            std::fs::remove_file(old.path())?;
        }
        for (name, spec) in rules {
            self.paths
                .write(format!("prometheus/rules/{name}.yaml"), &spec.to_string())?;
        }
        self.paths
            .write("prometheus/config.yaml", &config(&self.paths, &jobs))?;
        reload().await?;
        self.written = content;
        println!(
            "{} Prometheus scrapes {} jobs",
            jiff::Timestamp::now(),
            jobs.len()
        );
        Ok(())
    }

    /// All objects of a kind; none where the kind is not installed.
    async fn list(&self, kind: &str, plural: &str) -> Result<Vec<DynamicObject>> {
        let gvk = GroupVersionKind::gvk("monitoring.coreos.com", "v1", kind);
        let api: Api<DynamicObject> = Api::all_with(
            self.client.clone(),
            &ApiResource::from_gvk_with_plural(&gvk, plural),
        );
        match api.list(&ListParams::default().match_any()).await {
            Ok(list) => Ok(list.items),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The whole configuration; JSON is YAML.
pub fn config(paths: &Paths, jobs: &[Value]) -> String {
    json!({
        "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
        "rule_files": [paths.state().join("prometheus/rules/*.yaml")],
        "scrape_configs": jobs,
    })
    .to_string()
}

async fn reload() -> Result<()> {
    let url = format!("http://127.0.0.1:{PROMETHEUS_PORT}/-/reload");
    let request = http::Request::post(&url).body(http_body_util::Full::default())?;
    let (status, body) = crate::http::send(
        &crate::http::http1(),
        request,
        std::time::Duration::from_secs(10),
    )
    .await?;
    anyhow::ensure!(
        status.is_success(),
        "Prometheus refuses its configuration: {body}"
    );
    Ok(())
}

/// One scrape job for each endpoint of a PodMonitor.
fn jobs(monitor: &DynamicObject, paths: &Paths) -> Vec<Value> {
    let spec = &monitor.data["spec"];
    let namespace = monitor.namespace().unwrap_or_default();
    let own = format!("podMonitor/{namespace}/{}", monitor.name_any());
    let endpoints = spec["podMetricsEndpoints"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let job = |(index, endpoint): (usize, &Value)| {
        let mut relabel = vec![
            json!({"action": "drop", "source_labels": ["__meta_kubernetes_pod_phase"], "regex": "Failed|Succeeded"}),
            json!({"action": "keep", "source_labels": ["__meta_kubernetes_pod_container_port_name"], "regex": endpoint["port"]}),
            json!({"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"}),
            json!({"source_labels": ["__meta_kubernetes_pod_container_name"], "target_label": "container"}),
            json!({"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"}),
            json!({"target_label": "job", "replacement": format!("{namespace}/{}", monitor.name_any())}),
            json!({"target_label": "endpoint", "replacement": endpoint["port"]}),
        ];
        for label in spec["podTargetLabels"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
        {
            let source = format!("__meta_kubernetes_pod_label_{}", plain(label));
            relabel.push(json!({"source_labels": [source], "target_label": plain(label)}));
        }
        if let Some(label) = spec["jobLabel"].as_str() {
            let source = format!("__meta_kubernetes_pod_label_{}", plain(label));
            relabel
                .push(json!({"source_labels": [source], "regex": "(.+)", "target_label": "job"}));
        }
        relabel.extend(
            endpoint["relabelings"]
                .as_array()
                .into_iter()
                .flatten()
                .map(snake),
        );
        let metric_relabel: Vec<_> = endpoint["metricRelabelings"]
            .as_array()
            .into_iter()
            .flatten()
            .map(snake)
            .collect();
        json!({
            "job_name": format!("{own}/{index}"),
            "scrape_interval": INTERVAL,
            "scrape_timeout": INTERVAL,
            "metrics_path": endpoint["path"].as_str().unwrap_or("/metrics"),
            "scheme": endpoint["scheme"].as_str().unwrap_or("http"),
            "kubernetes_sd_configs": [{
                "role": "pod",
                "kubeconfig_file": paths.kubeconfig("admin"),
                "namespaces": namespaces(spec, &namespace),
                "selectors": [{"role": "pod", "label": selector(&spec["selector"])}],
            }],
            "relabel_configs": relabel,
            "metric_relabel_configs": metric_relabel,
        })
    };
    endpoints.iter().enumerate().map(job).collect()
}

/// The namespaces that a monitor looks in; its own unless it says otherwise.
fn namespaces(spec: &Value, own: &str) -> Value {
    let selector = &spec["namespaceSelector"];
    if selector["any"] == json!(true) {
        return json!({"names": []});
    }
    let names = selector["matchNames"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    if names.is_empty() {
        json!({"names": [own]})
    } else {
        json!({"names": names})
    }
}

/// A label selector as the API's query language has it.
fn selector(selector: &Value) -> String {
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let mut parts: Vec<_> = labels
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    for rule in selector["matchExpressions"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let key = rule["key"].as_str().unwrap_or_default();
        let values: Vec<_> = rule["values"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        parts.push(match rule["operator"].as_str() {
            Some("In") => format!("{key} in ({})", values.join(",")),
            Some("NotIn") => format!("{key} notin ({})", values.join(",")),
            Some("DoesNotExist") => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    parts.join(",")
}

/// A label's name in Prometheus.
fn plain(label: &str) -> String {
    label
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect()
}

/// The names of a relabeling's fields in Prometheus's own configuration.
fn snake(relabeling: &Value) -> Value {
    let fields = relabeling
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| {
            let key = match key.as_str() {
                "sourceLabels" => "source_labels",
                "targetLabel" => "target_label",
                other => other,
            };
            (key.to_owned(), value.clone())
        });
    Value::Object(fields.collect())
}
