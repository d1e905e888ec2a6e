//! FlowerCluster → ValidatedCluster: everything a builder or the planner needs, with no
//! `Option` that they would have to unwrap. Pure. Repeats the CRD's rules, because an object
//! may be older than a rule, and adds what CEL cannot say.

use flower_api::{
    ids::GroupId,
    limits::MIB,
    sizing::{self, CachePolicy, MemoryPlan, Workload},
};
use k8s_openapi::{
    api::{apps::v1::StatefulSet, core::v1::ResourceRequirements},
    apimachinery::pkg::apis::meta::v1::{OwnerReference, Time},
};
use kube::ResourceExt;

use crate::{
    amount::{self, Amount},
    conditions::Reason,
    crd::{
        self, App, FlowerCluster, FlowerClusterSpec, Monitoring, Pod, Service, WhenDeleted,
        pod::{OPERATOR_ENV, is_object_name},
    },
    names::{CLAIM_TEMPLATE, ClusterName},
};

mod memory;

/// Smallest volume that can be worked with: the reserve, the log and some data.
const MIN_VOLUME_BYTES: u64 = 128 * MIB;

/// A spec that can be carried out.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidatedCluster {
    /// Name.
    pub name: ClusterName,
    /// Namespace.
    pub namespace: String,
    /// uid of the object.
    pub uid: String,
    /// Generation of the object.
    pub generation: i64,
    /// When the object was made.
    pub created: Option<Time>,
    /// The one group there is for now.
    pub group: GroupId,
    /// Voters wanted.
    pub replicas: u32,
    /// Image of the node.
    pub image: String,
    /// `Always`, `IfNotPresent` or `Never`.
    pub pull_policy: &'static str,
    /// Names of Secrets to pull with.
    pub pull_secrets: Vec<String>,
    /// Resources of the container, memory filled in.
    pub resources: ResourceRequirements,
    /// The memory limit, split.
    pub memory: MemoryPlan,
    /// Size of each volume.
    pub storage_size: Amount,
    /// StorageClass, when one is named.
    pub storage_class: Option<String>,
    /// How caches are sized.
    pub cache: CachePolicy,
    /// Bytes of log between snapshots.
    pub snapshot_after_log_bytes: u64,
    /// Milliseconds that receipts are kept.
    pub receipt_retention_ms: u64,
    /// The application, when the spec names one.
    pub app: Option<App>,
    /// Secret with the tokens, and whether the operator generates it.
    pub auth_secret: String,
    /// No Secret is named: generate it.
    pub generate_auth: bool,
    /// Client Service.
    pub service: Service,
    /// Monitoring objects.
    pub monitoring: Monitoring,
    /// Additions to the pods.
    pub pod: Pod,
    /// What becomes of claims when the object is deleted.
    pub when_deleted: WhenDeleted,
    /// Stop acting.
    pub paused: bool,
}

impl ValidatedCluster {
    /// Owner reference to the FlowerCluster. It does not block the owner's deletion: that
    /// would need a right on finalizers, and nothing here must be gone before the owner.
    pub fn owner(&self) -> OwnerReference {
        OwnerReference {
            api_version: crd::API_VERSION.to_owned(),
            kind: "FlowerCluster".to_owned(),
            name: self.name.as_str().to_owned(),
            uid: self.uid.clone(),
            controller: Some(true),
            block_owner_deletion: None,
        }
    }
    /// `namespace/name`.
    pub fn path(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// Why a spec cannot be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Reason of the condition.
    pub reason: Reason,
    /// What, which field, what to do.
    pub message: String,
}

fn refuse<T>(reason: Reason, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal {
        reason,
        message: message.into(),
    })
}

/// Checks a FlowerCluster. `default_image` is used when neither spec nor status names one.
///
/// # Errors
/// What is wrong, for the condition `Accepted`.
pub fn validate(object: &FlowerCluster, default_image: &str) -> Result<ValidatedCluster, Refusal> {
    let spec = &object.spec;
    let name = match ClusterName::new(&object.name_any()) {
        Ok(name) => name,
        Err(message) => return refuse(Reason::NameInvalid, message),
    };
    if ![1, 3, 5, 7].contains(&spec.replicas) {
        return refuse(
            Reason::ReplicasInvalid,
            format!(
                "spec.replicas is {}: set it to 1, 3, 5 or 7 (an even number of voters survives no more failures than one less)",
                spec.replicas
            ),
        );
    }
    let (resources, limit) = memory::resources(&spec.resources)?;
    let cache = memory::cache_policy(&spec.cache)?;
    let memory = match sizing::split(limit, cache, Workload::default()) {
        Ok(plan) => plan,
        Err(cannot) => return refuse(Reason::MemoryTooSmall, cannot.to_string()),
    };
    check_storage(&spec.storage.size)?;
    check_names(spec)?;
    check_pod(&spec.pod)?;
    let recorded = object
        .status
        .as_ref()
        .and_then(|status| status.image.clone());
    let image = spec.image.clone().or(recorded);
    let generated = name.auth_secret();
    Ok(ValidatedCluster {
        namespace: object.namespace().unwrap_or_default(),
        uid: object.uid().unwrap_or_default(),
        generation: object.metadata.generation.unwrap_or_default(),
        created: object.metadata.creation_timestamp.clone(),
        group: GroupId(0),
        replicas: u32::try_from(spec.replicas).unwrap_or(1),
        image: image.unwrap_or_else(|| default_image.to_owned()),
        pull_policy: spec.image_pull_policy.as_str(),
        pull_secrets: spec
            .image_pull_secrets
            .iter()
            .map(|one| one.name.clone())
            .collect(),
        resources,
        memory,
        storage_size: spec.storage.size.clone(),
        storage_class: spec.storage.storage_class_name.clone(),
        cache,
        snapshot_after_log_bytes: snapshot_bytes(spec)?,
        receipt_retention_ms: retention_ms(spec)?,
        app: spec.app.clone(),
        generate_auth: spec.auth.secret_name.is_none(),
        auth_secret: spec.auth.secret_name.clone().unwrap_or(generated),
        service: spec.service.clone(),
        monitoring: spec.monitoring.clone(),
        pod: spec.pod.clone(),
        when_deleted: spec.volume_claims.when_deleted,
        paused: spec.paused,
        name,
    })
}

/// Checks what only the live objects can tell: claims cannot change after they were made.
///
/// # Errors
/// What is wrong, for the condition `Accepted`.
pub fn validate_against(
    cluster: &ValidatedCluster,
    live: Option<&StatefulSet>,
) -> Result<(), Refusal> {
    auth_secret_is_kept(cluster, live)?;
    let template = live
        .and_then(|set| set.spec.as_ref())
        .and_then(|spec| spec.volume_claim_templates.as_ref())
        .and_then(|all| {
            all.iter()
                .find(|one| one.metadata.name.as_deref() == Some(CLAIM_TEMPLATE))
        })
        .and_then(|template| template.spec.as_ref());
    let Some(template) = template else {
        return Ok(());
    };
    let size = template
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.as_ref())
        .and_then(|requests| requests.get("storage"));
    if let Some(size) = size
        && !amount::same(&size.0, &cluster.storage_size.0)
    {
        return refuse(
            Reason::StorageImmutable,
            format!(
                "spec.storage.size is {} and the volumes were made with {}: set it back, volumes do not grow in this version",
                cluster.storage_size, size.0
            ),
        );
    }
    if let Some(class) = &cluster.storage_class
        && template.storage_class_name.as_ref() != Some(class)
    {
        return refuse(
            Reason::StorageImmutable,
            format!(
                "spec.storage.storageClassName is {class} and the volumes were made with {}: set it back",
                template
                    .storage_class_name
                    .as_deref()
                    .unwrap_or("the default class")
            ),
        );
    }
    Ok(())
}

fn check_storage(size: &Amount) -> Result<(), Refusal> {
    match size.bytes() {
        None => refuse(
            Reason::QuantityInvalid,
            format!("spec.storage.size is '{size}', which is no quantity such as 10Gi"),
        ),
        Some(bytes) if bytes < MIN_VOLUME_BYTES => refuse(
            Reason::QuantityInvalid,
            format!(
                "spec.storage.size is {size}: the reserve that keeps a full volume mendable and the log need at least {} MiB",
                MIN_VOLUME_BYTES / MIB
            ),
        ),
        Some(_) => Ok(()),
    }
}

/// Objects are asked for by these names: one with a slash would ask for something else.
fn check_names(spec: &FlowerClusterSpec) -> Result<(), Refusal> {
    let map = spec.app.as_ref().map(|app| &app.bundle.config_map_key_ref);
    let pulls = spec.image_pull_secrets.iter().map(|one| &one.name);
    let named = (spec
        .auth
        .secret_name
        .iter()
        .map(|name| ("auth.secretName", name)))
    .chain(map.map(|map| ("app.bundle.configMapKeyRef.name", &map.name)))
    .chain(pulls.map(|name| ("imagePullSecrets", name)));
    for (field, name) in named {
        if !is_object_name(name) {
            return refuse(
                Reason::NameInvalid,
                format!(
                    "spec.{field} is '{name}', which is no object's name: use lower-case letters, digits, '-' and '.'"
                ),
            );
        }
    }
    Ok(())
}

fn snapshot_bytes(spec: &FlowerClusterSpec) -> Result<u64, Refusal> {
    let amount = &spec.snapshot.after_log_bytes;
    match amount.bytes() {
        Some(bytes) if bytes >= MIB => Ok(bytes),
        _ => refuse(
            Reason::QuantityInvalid,
            format!("spec.snapshot.afterLogBytes is '{amount}': give a quantity of at least 1Mi"),
        ),
    }
}

fn retention_ms(spec: &FlowerClusterSpec) -> Result<u64, Refusal> {
    let text = &spec.receipts.retention;
    match amount::duration_ms(text) {
        Some(ms) if ms >= 1_000 => Ok(ms),
        _ => refuse(
            Reason::RetentionInvalid,
            format!(
                "spec.receipts.retention is '{text}': give hours, minutes and seconds of at least 1s, as in 24h or 1h30m"
            ),
        ),
    }
}

/// The pods hold the tokens of the Secret that they were made with. With those of another one
/// the operator could not speak to them, nor they to one another while they are restarted.
fn auth_secret_is_kept(
    cluster: &ValidatedCluster,
    live: Option<&StatefulSet>,
) -> Result<(), Refusal> {
    let mounted = live
        .and_then(|set| set.spec.as_ref()?.template.spec.as_ref()?.volumes.as_ref())
        .and_then(|all| all.iter().find(|one| one.name == "auth"))
        .and_then(|volume| volume.secret.as_ref()?.secret_name.as_ref());
    match mounted {
        Some(mounted) if *mounted != cluster.auth_secret => refuse(
            Reason::AuthSecretImmutable,
            format!(
                "spec.auth.secretName names {}, and the pods use the Secret {mounted}: another Secret would lock its members out from one another; name {mounted} again, and change tokens by adding new ones to it and removing the old ones later",
                cluster.auth_secret
            ),
        ),
        _ => Ok(()),
    }
}

fn check_pod(pod: &Pod) -> Result<(), Refusal> {
    let reserved =
        |key: &String| key.starts_with("flowerdb.dev/") || key.starts_with("app.kubernetes.io/");
    if let Some(key) = pod.labels.keys().find(|key| reserved(key)) {
        return refuse(
            Reason::LabelsReserved,
            format!(
                "spec.pod.labels has '{key}': labels under flowerdb.dev/ and app.kubernetes.io/ are the operator's; use another prefix"
            ),
        );
    }
    if let Some(key) = pod
        .annotations
        .keys()
        .find(|key| key.starts_with("flowerdb.dev/"))
    {
        return refuse(
            Reason::LabelsReserved,
            format!(
                "spec.pod.annotations has '{key}': annotations under flowerdb.dev/ are the operator's; use another prefix"
            ),
        );
    }
    if let Some(variable) = pod
        .env
        .iter()
        .find(|one| OPERATOR_ENV.contains(&one.name.as_str()))
    {
        return refuse(
            Reason::EnvironmentReserved,
            format!(
                "spec.pod.env has '{}', which is the operator's: it sets it from another field of the spec, or relies on its default; see the reference of FlowerCluster",
                variable.name
            ),
        );
    }
    Ok(())
}
