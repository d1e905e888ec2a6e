//! The records of deployments: [`Space::Deploy`] holds bundles by hash, `meta::ACTIVE` names
//! the one that runs. Formats only; no decisions.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use flower_api::{Revision, manifest::Manifest};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Deployment;
use crate::{
    derived::Generation,
    error::ViewError,
    key::{Space, meta},
    view::View,
};

/// Format of bundle records; the first byte after the revision.
const FORMAT: u8 = 1;

/// The value of `meta::ACTIVE`, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Active {
    pub hash: String,
    pub revision: Revision,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    manifest: Manifest,
    #[serde(default)]
    index_names: BTreeMap<String, String>,
    #[serde(default)]
    generation: Generation,
    source: String,
}

/// The hash under which a source is stored.
pub(super) fn hash(source: &str) -> String {
    hex::encode(Sha256::digest(source.as_bytes()))
}

pub(super) fn damaged(what: &str, why: impl std::fmt::Display) -> ViewError {
    ViewError(format!("{what} is damaged: {why}"))
}

pub(super) fn read_active(
    view: &dyn View,
) -> Result<Option<(String, Revision, Option<String>)>, ViewError> {
    let Some(value) = view.get(Space::Meta, meta::ACTIVE)? else {
        return Ok(None);
    };
    let active: Active = serde_json::from_slice(&value)
        .map_err(|e| damaged("the record of the active deployment", e))?;
    Ok(Some((active.hash, active.revision, active.managed_by)))
}

pub(super) fn encode_active(active: &Active) -> Bytes {
    // These types always have a JSON form.
    serde_json::to_vec(active).unwrap_or_default().into()
}

/// Value of a bundle record: revision (8 bytes, big endian), format, JSON.
pub(super) fn encode_bundle(
    revision: Revision,
    source: &str,
    manifest: &Manifest,
    index_names: &BTreeMap<String, String>,
    generation: Generation,
) -> Bytes {
    let stored = Stored {
        manifest: manifest.clone(),
        index_names: index_names.clone(),
        generation,
        source: source.to_owned(),
    };
    let mut out = revision.0.to_be_bytes().to_vec();
    out.push(FORMAT);
    out.extend(serde_json::to_vec(&stored).unwrap_or_default());
    out.into()
}

pub(super) fn read_bundle(
    view: &dyn View,
    hash: &str,
) -> Result<Option<Arc<Deployment>>, ViewError> {
    let Some(value) = view.get(Space::Deploy, hash.as_bytes())? else {
        return Ok(None);
    };
    let what = format!("the bundle {hash}");
    let (revision, body) = value
        .split_first_chunk::<8>()
        .ok_or_else(|| damaged(&what, "it is cut short"))?;
    let json = match body.split_first() {
        Some((&FORMAT, json)) => json,
        Some((other, _)) => {
            return Err(damaged(&what, format!("format {other} is not known")));
        }
        None => return Err(damaged(&what, "it is cut short")),
    };
    let stored: Stored = serde_json::from_slice(json).map_err(|e| damaged(&what, e))?;
    Ok(Some(Arc::new(Deployment {
        hash: hash.to_owned(),
        source: stored.source.into(),
        manifest: stored.manifest,
        index_names: stored.index_names,
        generation: stored.generation,
        planted: None,
        revision: Revision(u64::from_be_bytes(*revision)),
    })))
}
