//! What mutations do for a build that is under way: they keep its indexes, and note what they
//! write so that a later page follows. Never refuses a mutation, and charges it nothing.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    build::{ALWAYS, ROW},
    cell::CellId,
};
use crate::{
    deploy::{self, Build},
    key::{Space, meta},
    limits::setting,
    record::{self, Row},
    transaction::{Result, Transaction},
    view::PatchBuilder,
};

/// What a mutation of the application that runs writes for a build: outside its own budgets.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    patch: PatchBuilder,
    bytes: u64,
    build: Option<Option<Arc<Build>>>,
}

impl Aside {
    /// All that it writes.
    pub fn into_patch(self) -> PatchBuilder {
        self.patch
    }

    fn put(&mut self, space: Space, key: Vec<u8>, value: Option<Bytes>) {
        self.bytes += (key.len() + value.as_ref().map_or(0, Bytes::len)) as u64;
        match value {
            Some(value) => self.patch.put(space, key, value),
            None => self.patch.delete(space, key),
        }
    }
}

impl Transaction {
    /// The build that is under way, as long as nothing has ended it.
    fn pending(&mut self) -> Result<Option<Arc<Build>>> {
        if let Some(known) = &self.aside.build {
            return Ok(known.clone());
        }
        self.reads.record(Space::Meta, meta::BUILD);
        let found = deploy::pending(&*self.view)?.filter(|build| build.failed.is_none());
        let found = found.map(Arc::new);
        self.aside.build = Some(found.clone());
        Ok(found)
    }

    /// Keeps a build up to date with the write of a row. Never refuses the write: what cannot
    /// be built ends the build.
    pub(crate) fn write_aside(
        &mut self,
        table: &str,
        id: &str,
        old: Option<&Row>,
        new: Option<&Row>,
    ) -> Result<()> {
        if self.building.is_some() {
            return Ok(());
        }
        let Some(build) = self.pending()? else {
            return Ok(());
        };
        for index in build.indexes.iter().filter(|index| index.table == table) {
            let key = |row: &Row| record::index_key(table, &index.physical, &index.on, row, id);
            if let Some(Ok(key)) = old.map(key) {
                self.aside.put(Space::Index, key, None);
            }
            match new.map(key) {
                Some(Ok(key)) => {
                    let value = record::value(self.stamp.revision, "");
                    self.aside.put(Space::Index, key, Some(value));
                }
                Some(Err(why)) => return self.fail_build(&build, why),
                None => {}
            }
        }
        if build.logging && old != new {
            let key = [table.as_bytes(), b"\0", id.as_bytes()].concat();
            let before = old.map(|row| serde_json::to_vec(row).unwrap_or_default());
            self.note(&build, ROW, &key, before.unwrap_or_default().into())?;
        }
        if self.aside.bytes > self.limits.patch_bytes {
            let (setting, most) = (setting::BYTES_WRITTEN, self.limits.patch_bytes);
            let why = format!(
                "a mutation wrote so much while it was built that its share for the build is \
                 above {most} bytes ({setting})"
            );
            return self.fail_build(&build, why);
        }
        Ok(())
    }

    /// Tells a build that an `always` cell became a root, or is none any more.
    pub(super) fn root_aside(&mut self, id: &CellId) -> Result<()> {
        if self.building.is_some() {
            return Ok(());
        }
        match self.pending()? {
            Some(build) if build.logging => self.note(&build, ALWAYS, id.as_bytes(), Bytes::new()),
            _ => Ok(()),
        }
    }

    /// Notes something for the next page, unless it is noted already.
    fn note(&mut self, build: &Build, kind: u8, what: &[u8], value: Bytes) -> Result<()> {
        let key = [&build.generation.log()[..], &[kind], what].concat();
        let known = self.aside.patch.get(Space::Readers, &key).is_some() || {
            self.reads.record(Space::Readers, &key);
            self.view.get(Space::Readers, &key)?.is_some()
        };
        if !known {
            self.aside.put(Space::Readers, key, Some(value));
        }
        Ok(())
    }

    fn fail_build(&mut self, build: &Build, why: String) -> Result<()> {
        let failed = Build {
            failed: Some(why),
            ..build.clone()
        };
        let key = meta::BUILD.to_vec();
        self.aside.put(Space::Meta, key, Some(failed.encode()));
        self.aside.build = Some(None);
        Ok(())
    }
}
