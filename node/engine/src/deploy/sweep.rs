//! Entries that dropped indexes left behind because they were too many for one log entry.

use std::{collections::BTreeSet, ops::Bound};

use super::{Deployment, record as stored};
use crate::{
    codec,
    error::ViewError,
    key::Space,
    record,
    view::{Direction, Patch, PatchBuilder, View},
};

/// What begins the keys of the index that `key` belongs to: three parts that end in NUL.
fn prefix_of(key: &[u8]) -> &[u8] {
    let ends = key
        .iter()
        .enumerate()
        .filter(|(_, b)| **b == 0)
        .map(|(at, _)| at + 1);
    &key[..ends.into_iter().nth(2).unwrap_or(key.len())]
}

fn used(deployment: &Deployment) -> BTreeSet<Vec<u8>> {
    let mut out = BTreeSet::new();
    for (table, declared) in &deployment.manifest.tables {
        for index in declared.indexes.keys() {
            out.insert(record::index_prefix(
                table,
                deployment.stored_index(table, index),
            ));
        }
    }
    for (name, derived) in &deployment.manifest.derived {
        if let Some(index) = &derived.index {
            out.insert(record::index_prefix(name, index));
        }
    }
    out
}

/// The first key at or after `from`.
fn first(view: &dyn View, from: &[u8]) -> Result<Option<Vec<u8>>, ViewError> {
    let mut found = None;
    let from = Bound::Included(from);
    view.scan(
        Space::Index,
        from,
        Bound::Unbounded,
        Direction::Forward,
        &mut |key, _| {
            found = Some(key.to_vec());
            false
        },
    )?;
    Ok(found)
}

/// Visits one key an index, then skips to the next index.
pub(super) fn sweep(view: &dyn View, most: usize) -> Result<Option<Patch>, ViewError> {
    let Some((hash, _, _)) = stored::read_active(view)? else {
        return Ok(None);
    };
    let Some(deployment) = stored::read_bundle(view, &hash)? else {
        return Ok(None);
    };
    let used = used(&deployment);
    let mut patch = PatchBuilder::new();
    let mut from = Vec::new();
    while let Some(key) = first(view, &from)? {
        let prefix = prefix_of(&key).to_vec();
        let Some(end) = codec::after_prefix(&prefix) else {
            break;
        };
        if !used.contains(&prefix) {
            let bounds = (Bound::Included(&prefix[..]), Bound::Excluded(&end[..]));
            let mut take = |key: &[u8], _: &[u8]| {
                patch.delete(Space::Index, key.to_vec());
                patch.len() < most
            };
            view.scan(
                Space::Index,
                bounds.0,
                bounds.1,
                Direction::Forward,
                &mut take,
            )?;
            if patch.len() >= most {
                break;
            }
        }
        from = end;
    }
    Ok((!patch.is_empty()).then(|| patch.seal()))
}
