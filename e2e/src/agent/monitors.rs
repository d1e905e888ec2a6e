//! Prometheus's configuration from the PodMonitors and PrometheusRules in the API, as
//! Prometheus Operator would make it, for the fields that our charts use.

use std::collections::BTreeMap;

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
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
        let pods: Api<Pod> = Api::all(self.client.clone());
        let pods = pods.list(&ListParams::default().match_any()).await?.items;
        let jobs: Vec<_> = monitors
            .iter()
            .flat_map(|monitor| jobs(monitor, &pods))
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
fn jobs(monitor: &DynamicObject, pods: &[Pod]) -> Vec<Value> {
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
            "honor_labels": endpoint["honorLabels"].as_bool().unwrap_or(false),
            "scrape_interval": INTERVAL,
            "scrape_timeout": INTERVAL,
            "metrics_path": endpoint["path"].as_str().unwrap_or("/metrics"),
            "scheme": endpoint["scheme"].as_str().unwrap_or("http"),
            "static_configs": targets(spec, &namespace, endpoint, pods),
            "relabel_configs": relabel,
            "metric_relabel_configs": metric_relabel,
        })
    };
    endpoints.iter().enumerate().map(job).collect()
}

/// The targets of an endpoint. Debian's Prometheus knows no Kubernetes, so the pods are found
/// here; they carry the labels that its own discovery would give them.
fn targets(spec: &Value, own: &str, endpoint: &Value, pods: &[Pod]) -> Vec<Value> {
    let mut targets = Vec::new();
    for pod in pods.iter().filter(|pod| watched(spec, own, pod)) {
        let Some(status) = &pod.status else { continue };
        let Some(address) = &status.pod_ip else {
            continue;
        };
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        for container in containers {
            for port in container.ports.iter().flatten() {
                if endpoint["port"].as_str() != port.name.as_deref() {
                    continue;
                }
                let mut labels = json!({
                    "__meta_kubernetes_namespace": pod.namespace(),
                    "__meta_kubernetes_pod_name": pod.name_any(),
                    "__meta_kubernetes_pod_phase": status.phase,
                    "__meta_kubernetes_pod_ip": address,
                    "__meta_kubernetes_pod_container_name": container.name,
                    "__meta_kubernetes_pod_container_port_name": port.name,
                });
                for (name, value) in pod.labels() {
                    labels[format!("__meta_kubernetes_pod_label_{}", plain(name))] = json!(value);
                }
                let target = format!("{address}:{}", port.container_port);
                targets.push(json!({"targets": [target], "labels": labels}));
            }
        }
    }
    targets
}

/// Whether a monitor asks for a pod: by namespace, its own unless it says otherwise, and labels.
fn watched(spec: &Value, own: &str, pod: &Pod) -> bool {
    let namespaces = &spec["namespaceSelector"];
    let names: Vec<_> = texts(&namespaces["matchNames"]).collect();
    let namespace = pod.namespace().unwrap_or_default();
    let here = if names.is_empty() {
        namespace == own
    } else {
        names.contains(&namespace.as_str())
    };
    let labels = pod.labels();
    let wanted = spec["selector"]["matchLabels"].as_object();
    let equal = wanted
        .into_iter()
        .flatten()
        .all(|(key, value)| labels.get(key).map(String::as_str) == value.as_str());
    let rules = spec["selector"]["matchExpressions"].as_array();
    let fits = rules.into_iter().flatten().all(|rule| {
        let value = rule["key"].as_str().and_then(|key| labels.get(key));
        let listed = value.is_some_and(|value| texts(&rule["values"]).any(|one| one == value));
        match rule["operator"].as_str() {
            Some("In") => listed,
            Some("NotIn") => !listed,
            Some("DoesNotExist") => value.is_none(),
            _ => value.is_some(),
        }
    });
    (here || namespaces["any"] == true) && equal && fits
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
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
