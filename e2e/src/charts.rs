//! Checks of the charts and the generated files without a cluster: drift, lint, goldens, alert rules.

use anyhow::{Context, Result, ensure};
use futures::future::BoxFuture;

use crate::deploy::helm;
use crate::paths::{Paths, root, target};
use crate::programs;
use crate::run::{run, run_in};
use crate::suite::golden;

/// The checks by name.
pub fn checks(paths: &Paths) -> Vec<(&'static str, BoxFuture<'_, Result<String>>)> {
    vec![
        ("crd-drift", Box::pin(crd_drift()) as BoxFuture<'_, _>),
        ("helm-lint", Box::pin(lint(paths))),
        ("helm-templates", Box::pin(templates(paths))),
        ("alert-rules", Box::pin(alert_rules())),
    ]
}

/// The charts that are there.
fn charts() -> Vec<String> {
    let folders = std::fs::read_dir(root().join("charts"))
        .into_iter()
        .flatten()
        .flatten();
    let mut names: Vec<_> = folders
        .filter(|folder| folder.path().join("Chart.yaml").exists())
        .map(|folder| folder.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// What the operator prints is what is committed.
async fn crd_drift() -> Result<String> {
    // The whole workspace: with another selection, features and so all builds would differ.
    let build = ["build", "--quiet", "--workspace", "--bins"];
    run_in(&root(), &[], "cargo", &build).await?;
    let operator = target().join("debug/flower-operator").display().to_string();
    let printed = run_in(&root(), &[], &operator, &["crds"]).await?;
    ensure!(
        printed.contains("FlowerCluster"),
        "`flower-operator crds` prints no FlowerCluster yet"
    );
    let files: Vec<_> = std::fs::read_dir(root().join("crds"))?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    let committed: Vec<_> = files
        .iter()
        .filter(|file| file.extension().is_some_and(|ext| ext == "yaml"))
        .collect();
    ensure!(
        committed.len() == 1,
        "crds/ must hold one file, it holds {committed:?}"
    );
    golden(committed[0], &printed)?;
    Ok(String::new())
}

async fn lint(paths: &Paths) -> Result<String> {
    prepare().await?;
    let charts = charts();
    ensure!(!charts.is_empty(), "there are no charts yet");
    for chart in &charts {
        helm(
            paths,
            &[
                "lint",
                "--strict",
                &root().join("charts").join(chart).display().to_string(),
            ],
        )
        .await?;
    }
    Ok(charts.join(", "))
}

/// What each chart makes, with its own values and with each of `e2e/golden/CHART/CASE.values.yaml`.
async fn templates(paths: &Paths) -> Result<String> {
    prepare().await?;
    let charts = charts();
    ensure!(!charts.is_empty(), "there are no charts yet");
    let mut count = 0;
    for chart in &charts {
        let folder = root().join("e2e/golden").join(chart);
        let files = std::fs::read_dir(&folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name());
        let cases = files.filter_map(|name| {
            name.to_str()?
                .strip_suffix(".values.yaml")
                .map(str::to_owned)
        });
        let mut cases: Vec<_> = cases.collect();
        cases.sort();
        for case in [None].into_iter().chain(cases.iter().map(Some)) {
            let source = root().join("charts").join(chart).display().to_string();
            let mut args = vec![
                "template",
                chart,
                &source,
                "--namespace",
                "flower-system",
                "--api-versions",
                "monitoring.coreos.com/v1/PodMonitor,monitoring.coreos.com/v1/PrometheusRule",
            ];
            let values = case.map(|case| {
                folder
                    .join(format!("{case}.values.yaml"))
                    .display()
                    .to_string()
            });
            if let Some(values) = &values {
                args.extend(["--values", values]);
            }
            let text = helm(paths, &args).await?;
            golden(
                &folder.join(format!("{}.yaml", case.map_or("default", String::as_str))),
                &text,
            )?;
            count += 1;
        }
    }
    Ok(format!("{count} renderings"))
}

/// The alert rules' own tests, with the rules as the chart makes them.
async fn alert_rules() -> Result<String> {
    let folder = root().join("charts/flower-operator/tests");
    let files: Vec<_> = std::fs::read_dir(&folder)
        .with_context(|| format!("there are no rule tests in {}", folder.display()))?
        .flatten()
        .map(|entry| entry.path().display().to_string())
        .filter(|file| file.ends_with(".yaml"))
        .collect();
    ensure!(
        !files.is_empty(),
        "there are no rule tests in {}",
        folder.display()
    );
    let mut args = vec!["test".to_owned(), "rules".to_owned()];
    args.extend(files.iter().cloned());
    run("promtool", &args).await?;
    Ok(format!("{} files of rule tests", files.len()))
}

/// The programs must be there, also when no cluster is up.
async fn prepare() -> Result<()> {
    crate::host::packages().await?;
    programs::build_missing().await
}
