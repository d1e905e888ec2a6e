//! What indexes, deployments and builds of the past left behind: it may be more than fits one
//! log entry. It lies under names that are never used again, so that nothing waits for this.

use std::{collections::BTreeSet, ops::Bound, sync::Arc};

use super::{Deployment, build, record as stored, walk};
use crate::{
    codec,
    derived::{CellId, Generation},
    error::ViewError,
    key::{Space, meta},
    range::ROW_TAIL,
    record,
    view::{Direction, Patch, PatchBuilder, View},
};

/// Names in use: of the application that runs, and of the one that is being built.
struct Used {
    indexes: BTreeSet<Vec<u8>>,
    generations: BTreeSet<Generation>,
    /// Prefixes of cells that lie beside no row.
    cells: BTreeSet<Vec<u8>>,
    /// Derived values with the generation of their cells.
    values: BTreeSet<(String, Generation)>,
}

impl Used {
    fn of(deployments: &[Arc<Deployment>]) -> Self {
        let mut used = Self {
            indexes: BTreeSet::new(),
            generations: BTreeSet::new(),
            cells: BTreeSet::new(),
            values: BTreeSet::new(),
        };
        for deployment in deployments {
            let of = deployment.generation;
            used.generations.insert(of);
            for (table, declared) in &deployment.manifest.tables {
                for index in declared.indexes.keys() {
                    let stored = deployment.stored_index(table, index);
                    used.indexes.insert(record::index_prefix(table, stored));
                }
            }
            for (name, derived) in &deployment.manifest.derived {
                if let Some(index) = &derived.index {
                    let stored = record::index_prefix(name, &of.named(index));
                    used.indexes.insert(stored);
                }
                used.cells.insert(of.cells(name));
                used.values.insert((name.clone(), of));
            }
        }
        used
    }

    /// Whether what begins with `prefix` stays.
    fn keeps(&self, space: Space, prefix: &[u8]) -> bool {
        match space {
            Space::Index => self.indexes.contains(prefix),
            Space::Cells => self.cells.contains(prefix),
            _ => Generation::of_reader(prefix).is_some_and(|of| self.generations.contains(&of)),
        }
    }
}

/// What begins the keys of the index, the cells or the reader records that `key` belongs to:
/// so many parts that end in NUL. In place of their generation, reader records of the first
/// one have the kind of what is read, a byte.
fn prefix_of(space: Space, key: &[u8]) -> &[u8] {
    let first = space == Space::Readers && Generation::of_reader(key) == Some(Generation(0));
    let (parts, more) = match space {
        Space::Index => (3, 0),
        _ if first => (1, 1),
        _ => (2, 0),
    };
    let nuls = key.iter().enumerate().filter(|(_, b)| **b == 0);
    let end = nuls.map(|(at, _)| at + 1).nth(parts - 1);
    key.get(..end.unwrap_or(key.len()) + more).unwrap_or(key)
}

/// The first key at or after `from`.
fn first(view: &dyn View, space: Space, from: &[u8]) -> Result<Option<Vec<u8>>, ViewError> {
    let mut found = None;
    view.scan(
        space,
        Bound::Included(from),
        Bound::Unbounded,
        Direction::Forward,
        &mut |key, _| {
            found = Some(key.to_vec());
            false
        },
    )?;
    Ok(found)
}

/// Visits one key of each prefix, then skips to the next.
fn by_prefix(
    view: &dyn View,
    space: Space,
    used: &Used,
    patch: &mut PatchBuilder,
    most: usize,
) -> Result<(), ViewError> {
    let mut from = Vec::new();
    while patch.len() < most
        && let Some(key) = first(view, space, &from)?
    {
        let prefix = prefix_of(space, &key).to_vec();
        let Some(end) = codec::after_prefix(&prefix) else {
            break;
        };
        if !used.keeps(space, &prefix) {
            take(view, space, &prefix, Some(&end), patch, most)?;
        }
        from = end;
    }
    Ok(())
}

fn take(
    view: &dyn View,
    space: Space,
    from: &[u8],
    to: Option<&[u8]>,
    patch: &mut PatchBuilder,
    most: usize,
) -> Result<(), ViewError> {
    view.scan(
        space,
        Bound::Included(from),
        to.map_or(Bound::Unbounded, Bound::Excluded),
        Direction::Forward,
        &mut |key, _| {
            if patch.len() < most {
                patch.delete(space, key.to_vec());
            }
            patch.len() < most
        },
    )
}

/// Walks on over rows, for cells beside them.
fn beside_rows(
    view: &dyn View,
    used: &Used,
    patch: &mut PatchBuilder,
    most: usize,
) -> Result<(), ViewError> {
    let Some(after) = view.get(Space::Meta, meta::SWEEP)? else {
        return Ok(());
    };
    let room = most.saturating_sub(patch.len());
    if room == 0 {
        return Ok(());
    }
    let needless = |key: &[u8]| {
        !key.ends_with(ROW_TAIL)
            && CellId::at(Space::Data, key)
                .is_some_and(|(id, of)| !used.values.contains(&(id.name().to_owned(), of)))
    };
    let found = walk::stretch(view, Space::Data, &[], &after, room, &needless)?;
    for (key, _) in found.found {
        patch.delete(Space::Data, key);
    }
    match found.last {
        Some(last) if !found.end => patch.put(Space::Meta, meta::SWEEP, last),
        _ => patch.delete(Space::Meta, meta::SWEEP),
    }
    Ok(())
}

/// See [`super::sweep`].
pub(super) fn sweep(view: &dyn View, most: usize) -> Result<Option<Patch>, ViewError> {
    let Some((hash, _, _)) = stored::read_active(view)? else {
        return Ok(None);
    };
    let pending = build::pending(view)?.map(|build| build.hash);
    let mut deployments = Vec::new();
    for hash in [Some(hash), pending].into_iter().flatten() {
        deployments.extend(stored::read_bundle(view, &hash)?);
    }
    let used = Used::of(&deployments);
    let mut patch = PatchBuilder::new();
    for space in [Space::Index, Space::Cells, Space::Readers] {
        by_prefix(view, space, &used, &mut patch, most)?;
    }
    beside_rows(view, &used, &mut patch, most)?;
    Ok((!patch.is_empty()).then(|| patch.seal()))
}
