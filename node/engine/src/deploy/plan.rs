//! What a deployment does to the rows that exist: pure over a view.

use flower_api::{Revision, manifest::Manifest};

use super::{
    DeployError, PlannedDeployment,
    record::{self, Active},
};
use crate::{
    key::{Space, meta},
    view::{PatchBuilder, View},
};

pub(super) fn plan(
    view: &dyn View,
    source: &str,
    manifest: Manifest,
    managed_by: Option<&str>,
    revision: Revision,
) -> Result<PlannedDeployment, DeployError> {
    let hash = record::hash(source);
    let before = record::read_active(view)?;
    let mut patch = PatchBuilder::new();
    let changed = before.as_ref().is_none_or(|(old, _, _)| *old != hash);
    if changed {
        let bundle = record::encode_bundle(revision, source, &manifest);
        patch.put(Space::Deploy, hash.clone().into_bytes(), bundle);
    }
    let active = Active {
        hash: hash.clone(),
        revision,
        managed_by: managed_by.map(str::to_owned),
    };
    patch.put(Space::Meta, meta::ACTIVE, record::encode_active(&active));
    Ok(PlannedDeployment {
        patch: patch.seal(),
        hash,
        changes: Vec::new(),
        changed,
    })
}
