//! Volumes: an image file of exactly the claimed size, a loop device, XFS, mounted and offered
//! as a `local` PersistentVolume. A full disk is a real one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::json;

use crate::paths::Paths;
use crate::run::run;

/// The provisioner's name in the StorageClass.
const PROVISIONER: &str = "flowerdb.dev/e2e-local";
const CLASS: &str = "flower-local";
const NODE: &str = "volume.kubernetes.io/selected-node";
/// The smallest XFS.
const LEAST: u64 = 300 << 20;

/// What makes and removes volumes.
pub struct Volumes {
    client: Client,
    paths: Paths,
    /// Claims that were refused, so that each is told once.
    refused: BTreeSet<String>,
}

impl Volumes {
    /// Over a client and the state folder.
    pub fn new(client: Client, paths: Paths) -> Self {
        Self {
            client,
            paths,
            refused: BTreeSet::new(),
        }
    }

    /// Makes what is claimed, mounts what is not, removes what is released.
    pub async fn pass(&mut self) -> Result<()> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let claims: Api<PersistentVolumeClaim> = Api::all(self.client.clone());
        let cached = ListParams::default().match_any();
        let volumes_now = volumes.list(&cached).await?;
        for volume in volumes_now
            .items
            .iter()
            .filter(|volume| provisioned_by_us(volume))
        {
            let name = volume.name_any();
            let phase = volume
                .status
                .as_ref()
                .and_then(|status| status.phase.as_deref());
            if volume.metadata.deletion_timestamp.is_none() && phase == Some("Released") {
                self.remove(&name).await?;
                volumes.delete(&name, &DeleteParams::default()).await?;
                println!("{} removed {name}", jiff::Timestamp::now());
            } else if phase != Some("Released") {
                self.mount(&name).await?;
            }
        }
        for claim in claims.list(&cached).await?.items {
            if let Some(node) = waiting(&claim)
                && let Err(error) = self.make(&volumes, &claim, node).await
            {
                self.refuse(&claim, &format!("{error:#}")).await?;
            }
        }
        Ok(())
    }

    /// Makes the volume of a claim.
    async fn make(
        &self,
        volumes: &Api<PersistentVolume>,
        claim: &PersistentVolumeClaim,
        node: &str,
    ) -> Result<()> {
        let name = format!("pvc-{}", claim.uid().context("a claim without uid")?);
        if volumes.get_opt(&name).await?.is_some() {
            return Ok(());
        }
        let requests = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
        let asked = &requests
            .and_then(|requests| requests.get("storage"))
            .context("no size is asked")?
            .0;
        let bytes = bytes(asked)?;
        ensure!(
            bytes >= LEAST,
            "{asked} is less than the smallest volume, 300Mi"
        );
        let image = self.image(&name)?;
        if !image.exists() {
            let part = image.with_extension("part");
            std::fs::File::create(&part)?.set_len(bytes)?;
            run("mkfs.xfs", &["-q", "-f", &part.display().to_string()]).await?;
            std::fs::rename(&part, &image)?;
        }
        let folder = self.mount(&name).await?;
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER}},
            "spec": {
                "capacity": {"storage": asked},
                "accessModes": claim.spec.as_ref().and_then(|spec| spec.access_modes.clone()),
                "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": CLASS,
                "local": {"path": folder},
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": claim.namespace(),
                    "name": claim.name_any(),
                    "uid": claim.uid(),
                },
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{
                    "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}],
                }]}},
            },
        }))?;
        volumes.create(&PostParams::default(), &volume).await?;
        println!("{} made {name}, {asked} on {node}", jiff::Timestamp::now());
        Ok(())
    }

    fn image(&self, name: &str) -> Result<PathBuf> {
        self.paths.at(format!("volumes/{name}.img"))
    }

    /// Mounts a volume's image where it is not mounted yet.
    async fn mount(&self, name: &str) -> Result<PathBuf> {
        let folder = self.paths.dir(format!("mounts/{name}"))?;
        if !is_mounted(&folder)? {
            let image = self.image(name)?.display().to_string();
            let device = match loop_device(&image).await? {
                Some(device) => device,
                None => run("losetup", &["--find", "--show", &image])
                    .await?
                    .trim()
                    .to_owned(),
            };
            run(
                "mount",
                &["-t", "xfs", &device, &folder.display().to_string()],
            )
            .await?;
        }
        Ok(folder)
    }

    /// Unmounts a volume and forgets its data.
    async fn remove(&self, name: &str) -> Result<()> {
        let folder = self.paths.state().join("mounts").join(name);
        if is_mounted(&folder)? {
            run("umount", &[&folder]).await?;
        }
        let image = self.image(name)?;
        if let Some(device) = loop_device(&image.display().to_string()).await? {
            run("losetup", &["-d", &device]).await?;
        }
        for path in [&image, &folder] {
            let gone = if path.is_dir() {
                std::fs::remove_dir(path)
            } else {
                std::fs::remove_file(path)
            };
            if let Err(error) = gone
                && error.kind() != std::io::ErrorKind::NotFound
            {
                return Err(error).with_context(|| format!("removing {}", path.display()));
            }
        }
        Ok(())
    }

    /// Tells the owner of a claim why it is not served.
    async fn refuse(&mut self, claim: &PersistentVolumeClaim, why: &str) -> Result<()> {
        let (Some(namespace), Some(uid)) = (claim.namespace(), claim.uid()) else {
            return Ok(());
        };
        if !self.refused.insert(format!("{uid} {why}")) {
            return Ok(());
        }
        println!(
            "{} {namespace}/{}: {why}",
            jiff::Timestamp::now(),
            claim.name_any()
        );
        let now = jiff::Timestamp::now().to_string();
        let event: Event = serde_json::from_value(json!({
            "metadata": {"generateName": format!("{}-", claim.name_any()), "namespace": namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": namespace,
                "name": claim.name_any(),
                "uid": uid,
            },
            "type": "Warning",
            "reason": "ProvisioningFailed",
            "message": why,
            "source": {"component": PROVISIONER},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }))?;
        Api::<Event>::namespaced(self.client.clone(), &namespace)
            .create(&PostParams::default(), &event)
            .await?;
        Ok(())
    }
}

fn provisioned_by_us(volume: &PersistentVolume) -> bool {
    volume
        .annotations()
        .get("pv.kubernetes.io/provisioned-by")
        .is_some_and(|by| by == PROVISIONER)
}

/// The node that a claim of our class waits for a volume on.
fn waiting(claim: &PersistentVolumeClaim) -> Option<&str> {
    let spec = claim.spec.as_ref()?;
    let unbound = spec.volume_name.is_none() && claim.metadata.deletion_timestamp.is_none();
    if spec.storage_class_name.as_deref() != Some(CLASS) || !unbound {
        return None;
    }
    claim.annotations().get(NODE).map(String::as_str)
}

fn is_mounted(folder: &Path) -> Result<bool> {
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let folder = folder.to_string_lossy();
    Ok(mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == Some(&folder)))
}

/// The loop device that shows a file, if there is one.
async fn loop_device(image: &str) -> Result<Option<String>> {
    let listed = run("losetup", &["-j", image]).await?;
    Ok(listed
        .split(':')
        .next()
        .filter(|device| !device.is_empty())
        .map(str::to_owned))
}

/// A Kubernetes quantity in bytes.
fn bytes(quantity: &str) -> Result<u64> {
    let split = quantity
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(quantity.len());
    let (number, unit) = quantity.split_at(split);
    let factor: u64 = match unit {
        "" => 1,
        "k" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => bail!("{quantity}: the unit {unit} is not known here"),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole
            .checked_mul(factor)
            .with_context(|| format!("{quantity} is too large"));
    }
    let part: f64 = number
        .parse()
        .with_context(|| format!("{quantity} is not a size"))?;
    // Fractions are of sizes far below 2^52.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss
    )]
    Ok((part * factor as f64) as u64)
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn quantities() {
        assert_eq!(bytes("300Mi").unwrap(), 300 << 20);
        assert_eq!(bytes("1.5Gi").unwrap(), 1536 << 20);
        assert_eq!(bytes("5G").unwrap(), 5_000_000_000);
        assert!(bytes("5X").is_err());
    }
}
