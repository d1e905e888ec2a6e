//! Carries files of the format before over to this one, in one durable transaction: a power
//! cut leaves the file in the one format or the other.

use flower_engine::Space;
use redb::{ReadableTable, WriteTransaction};
use serde::Deserialize;

use crate::{
    disk::FileName,
    record::LogPosition,
    state,
    tables::{self, FORMAT, OWN, own},
    view::{Standing, Totals},
};

/// Spaces of format 1.
const OLD_SPACES: usize = 6;

/// [`Standing`] of format 1.
#[derive(Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
struct OldStanding {
    applied: Option<LogPosition>,
    revision: u64,
    checksum: u128,
    records: [u64; OLD_SPACES],
    bytes: [u64; OLD_SPACES],
    installed: Option<LogPosition>,
    images: u64,
}

impl From<OldStanding> for Standing {
    fn from(old: OldStanding) -> Self {
        let mut totals = Totals {
            checksum: old.checksum,
            ..Totals::default()
        };
        totals.records[..OLD_SPACES].copy_from_slice(&old.records);
        totals.bytes[..OLD_SPACES].copy_from_slice(&old.bytes);
        Self {
            applied: old.applied,
            revision: old.revision,
            totals,
            installed: old.installed,
            images: old.images,
        }
    }
}

/// From format 1, which had no derived values: the spaces of format 2 are added, empty.
pub(crate) fn from_old(db: &redb::Database, file: FileName) -> Result<(), redb::Error> {
    let mut txn = db.begin_write()?;
    txn.set_quick_repair(true);
    if file == FileName::State {
        carry_over(&txn)?;
    }
    txn.open_table(OWN)?
        .insert(own::FORMAT, &FORMAT.to_be_bytes()[..])?;
    txn.commit()?;
    Ok(())
}

fn carry_over(txn: &WriteTransaction) -> Result<(), redb::Error> {
    for space in Space::ALL {
        txn.open_table(tables::of_space(space))?;
    }
    let old = match txn.open_table(OWN)?.get(own::STANDING)? {
        Some(raw) => postcard::from_bytes::<OldStanding>(raw.value())
            .map_err(|_| redb::Error::Corrupted("the standing is damaged".into()))?,
        None => return Ok(()),
    };
    state::put_standing(txn, &old.into())
}

#[cfg(test)]
mod tests {
    use redb::{ReadableDatabase, ReadableTableMetadata};

    use super::*;

    #[test]
    fn a_file_of_the_format_before_keeps_what_it_holds() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let db = redb::Database::create(file.path()).unwrap();
        let position = LogPosition {
            index: 70_000,
            ..LogPosition::default()
        };
        let old = OldStanding {
            applied: Some(position),
            revision: 900,
            checksum: 1 << 100,
            records: [1, 2, 3, 4, 5, 6],
            bytes: [10, 20, 30, 40, 50, 60],
            installed: Some(position),
            images: 3,
        };
        let txn = db.begin_write().unwrap();
        for space in &Space::ALL[..OLD_SPACES] {
            let mut table = txn.open_table(tables::of_space(*space)).unwrap();
            table.insert(&b"k"[..], &b"v"[..]).unwrap();
        }
        let bytes = postcard::to_stdvec(&old).unwrap();
        let mut table = txn.open_table(OWN).unwrap();
        table.insert(own::STANDING, &bytes[..]).unwrap();
        drop(table);
        txn.commit().unwrap();
        from_old(&db, FileName::State).unwrap();
        let txn = db.begin_read().unwrap();
        for space in Space::ALL {
            let table = txn.open_table(tables::of_space(space)).unwrap();
            let kept = u64::from((space as usize) < OLD_SPACES);
            assert_eq!(table.len().unwrap(), kept, "{space}");
        }
        let table = txn.open_table(OWN).unwrap();
        let raw = table.get(own::STANDING).unwrap().unwrap();
        let standing: Standing = postcard::from_bytes(raw.value()).unwrap();
        assert_eq!(standing, Standing::from(old));
        assert_eq!(standing.totals.records, [1, 2, 3, 4, 5, 6, 0, 0]);
        let format = table.get(own::FORMAT).unwrap().unwrap();
        assert_eq!(format.value(), FORMAT.to_be_bytes());
    }
}
