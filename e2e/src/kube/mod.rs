//! The programs of a Kubernetes, one file each, and the order in which they start.

use anyhow::{Context, Result, ensure};

use crate::net::Node;
use crate::paths::Paths;
use crate::progress::step;
use crate::run::{run, run_with_input};
use crate::{image, programs};

pub mod apiserver;
pub mod containerd;
pub mod controllers;
pub mod coredns;
pub mod etcd;
pub mod failure;
pub mod kubelet;
pub mod network;
pub mod pki;
pub mod prometheus;
pub mod proxy;

/// Brings everything up that is not up yet.
pub async fn up(paths: &Paths) -> Result<()> {
    step("certificates", async {
        pki::make(paths)?;
        pki::kubeconfigs(paths)
    })
    .await?;
    step("network", network::up(paths)).await?;
    step("etcd and API server", async {
        etcd::up(paths).await?;
        apiserver::up(paths).await?;
        for node in Node::ALL {
            containerd::up(paths, node).await?;
        }
        apiserver::ready(paths).await
    })
    .await?;
    step("controllers and scheduler", controllers::up(paths)).await?;
    step("containerd, one a node", async {
        let archive = paths.at("images/pause.tar")?;
        image::pause(&programs::path("pause")?, containerd::PAUSE_IMAGE, &archive)?;
        for node in Node::ALL {
            containerd::ready(paths, node).await?;
            containerd::import(paths, node, &archive).await?;
        }
        Ok(())
    })
    .await?;
    step(
        "base objects",
        kubectl_apply(paths, include_str!("../../manifests/base.yaml")),
    )
    .await?;
    step("three nodes", async {
        for node in Node::ALL {
            kubelet::up(paths, node).await?;
        }
        kubelet::ready(paths).await
    })
    .await?;
    step("Services and DNS", async {
        proxy::up(paths).await?;
        coredns::up(paths).await?;
        coredns::ready(paths).await
    })
    .await?;
    step("volumes", crate::agent::up(paths)).await
}

/// Runs kubectl as the administrator.
pub async fn kubectl(paths: &Paths, args: &[&str]) -> Result<String> {
    let config = format!("--kubeconfig={}", paths.kubeconfig("admin").display());
    run(
        programs::path("kubectl")?,
        &[&[config.as_str()], args].concat(),
    )
    .await
}

/// Applies a manifest.
pub async fn kubectl_apply(paths: &Paths, manifest: &str) -> Result<()> {
    let config = format!("--kubeconfig={}", paths.kubeconfig("admin").display());
    let args = [
        config.as_str(),
        "apply",
        "--server-side",
        "--force-conflicts",
        "--field-manager=flower-e2e",
        "-f",
        "-",
    ];
    run_with_input(programs::path("kubectl")?, &args, manifest)
        .await
        .map(drop)
}

/// A client of the cluster's API, as the administrator.
pub async fn client(paths: &Paths) -> Result<kube::Client> {
    let file = paths.kubeconfig("admin");
    ensure!(
        file.exists(),
        "there is no cluster; `cargo e2e up` makes one"
    );
    let kubeconfig = kube::config::Kubeconfig::read_from(&file)?;
    let options = kube::config::KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    kube::Client::try_from(config).context("making a client of the API server")
}
