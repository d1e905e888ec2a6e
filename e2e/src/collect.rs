//! What a failing test leaves behind: every log, object, event and report, in one folder.

use std::path::PathBuf;

use anyhow::Result;
use futures::future::join_all;
use serde_json::Value;

use crate::cluster::Scene;
use crate::deploy::OPERATOR_NAMESPACE;
use crate::flower::{Flower, report};
use crate::paths::target;

/// Writes the folder; what cannot be had says so in its place.
pub async fn collect(scene: &Scene, test: &str, error: &anyhow::Error) -> Result<PathBuf> {
    let folder = target().join("e2e-failures").join(test);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("error.txt"), format!("{error:#}\n"))?;
    let save = |name: String, args: Vec<String>| {
        let (scene, folder) = (scene.clone(), folder.clone());
        async move {
            let args: Vec<_> = args.iter().map(String::as_str).collect();
            let text = scene
                .cluster
                .kubectl(&args)
                .await
                .unwrap_or_else(|error| format!("not to be had: {error:#}\n"));
            std::fs::write(folder.join(name), text)
        }
    };
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let kinds = "flowerclusters,statefulsets,pods,services,endpointslices,configmaps,persistentvolumeclaims,poddisruptionbudgets,leases,events";
    let mut jobs = Vec::new();
    for namespace in [scene.namespace.as_str(), OPERATOR_NAMESPACE] {
        jobs.push(save(
            format!("{namespace}.objects.yaml"),
            words(&format!("-n {namespace} get {kinds} -o yaml")),
        ));
        jobs.push(save(
            format!("{namespace}.events.txt"),
            words(&format!(
                "-n {namespace} get events --sort-by=.lastTimestamp"
            )),
        ));
        jobs.push(save(
            format!("{namespace}.pods.txt"),
            words(&format!("-n {namespace} get pods -o wide")),
        ));
        for pod in scene
            .cluster
            .api(namespace, "Pod")
            .list(&Default::default())
            .await?
            .items
        {
            let pod = pod.metadata.name.unwrap_or_default();
            let logs = format!("-n {namespace} logs {pod} --all-containers --timestamps");
            jobs.push(save(format!("{namespace}.{pod}.log"), words(&logs)));
            jobs.push(save(
                format!("{namespace}.{pod}.previous.log"),
                words(&format!("{logs} --previous")),
            ));
        }
    }
    jobs.push(save("nodes.txt".to_owned(), words("describe nodes")));
    jobs.push(save(
        "volumes.yaml".to_owned(),
        words("get persistentvolumes -o yaml"),
    ));
    for result in join_all(jobs).await {
        result?;
    }
    reports(scene, &folder).await?;
    for program in crate::status::programs() {
        let log = scene.cluster.paths.log(&program);
        if let Ok(text) = std::fs::read(&log) {
            let from = text.len().saturating_sub(1 << 20);
            std::fs::write(folder.join(format!("harness.{program}.log")), &text[from..])?;
        }
    }
    Ok(folder)
}

/// The admin report of every pod of every FlowerCluster in the namespace.
async fn reports(scene: &Scene, folder: &std::path::Path) -> Result<()> {
    for cluster in scene.list("FlowerCluster", "").await.unwrap_or_default() {
        let flower = Flower::new(
            scene,
            cluster["metadata"]["name"].as_str().unwrap_or_default(),
        );
        let token = flower.token("admin").await.unwrap_or_default();
        for pod in flower.pods().await.unwrap_or_default() {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let text = match &pod["status"]["podIP"] {
                Value::String(address) => match report(address, &token).await {
                    Ok(report) => serde_json::to_string_pretty(&report)?,
                    Err(error) => format!("not to be had: {error:#}"),
                },
                _ => "the pod has no address".to_owned(),
            };
            std::fs::write(folder.join(format!("report.{name}.json")), text)?;
        }
    }
    Ok(())
}
