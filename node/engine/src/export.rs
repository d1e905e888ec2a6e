//! Exports: the lines of a view, made page by page, so that whoever sends them holds one page.
//! Reads rows, receipts and cells; what can be made from them (entries of indexes, readers) is
//! left out. Pure over a [`View`].

use std::{ops::Bound, sync::Arc};

use bytes::Bytes;
use flower_api::{
    ClusterId, GroupId, Revision,
    export::{self as wire, Counts, Line},
    manifest::Materialize,
};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::{
    deploy::{self, Deployment},
    derived::{Cell, CellId},
    error::ViewError,
    key::Space,
    range::{KeyRange, ROW_TAIL},
    receipt::{self, Ended},
    record,
    view::{Direction, View},
};

/// What is exported besides the view.
#[derive(Debug, Clone)]
pub struct Source {
    /// The cluster.
    pub cluster: Option<ClusterId>,
    /// The group.
    pub group: GroupId,
    /// Version of the program.
    pub program: String,
    /// The revision that the view shows.
    pub revision: Revision,
    /// Whether stored cells are exported too.
    pub cells: bool,
}

/// What is read one after the other; each of a space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Rows,
    Receipts,
    Roots(Space),
    Cells(Space),
}

const PARTS: [Part; 6] = [
    Part::Rows,
    Part::Receipts,
    Part::Roots(Space::Data),
    Part::Roots(Space::Cells),
    Part::Cells(Space::Data),
    Part::Cells(Space::Cells),
];

/// Makes the lines of a view, in order.
pub struct Exporter {
    view: Arc<dyn View>,
    source: Source,
    deployment: Option<Arc<Deployment>>,
    /// The part that is being read, and the last key of it that was.
    at: Option<(usize, Option<Vec<u8>>)>,
    counts: Counts,
    hash: Sha256,
    ended: bool,
}

fn damaged(what: &str) -> ViewError {
    ViewError(format!("{what} is damaged"))
}

fn raw(json: &str) -> Result<Box<RawValue>, ViewError> {
    RawValue::from_string(json.to_owned()).map_err(|_| damaged("a stored value"))
}

fn push(out: &mut Vec<u8>, line: &Line) -> Result<(), ViewError> {
    serde_json::to_writer(&mut *out, line).map_err(|e| ViewError(e.to_string()))?;
    out.push(b'\n');
    Ok(())
}

impl Exporter {
    /// An export of `view`.
    pub fn new(view: Arc<dyn View>, source: Source) -> Self {
        Self {
            view,
            source,
            deployment: None,
            at: None,
            counts: Counts::default(),
            hash: Sha256::new(),
            ended: false,
        }
    }

    /// The next lines, about `bytes` of them; absent after the last.
    ///
    /// # Errors
    /// When the state cannot be read.
    pub fn page(&mut self, bytes: usize) -> Result<Option<Bytes>, ViewError> {
        if self.ended {
            return Ok(None);
        }
        let mut out = Vec::new();
        let Some((part, after)) = self.at.take() else {
            self.begin(&mut out)?;
            self.at = Some((0, None));
            return Ok(Some(self.hashed(out)));
        };
        let mut next = (part, after);
        while out.len() < bytes {
            let Some(part) = PARTS.get(next.0).copied() else {
                return self.end(out).map(Some);
            };
            match self.read(part, next.1, bytes, &mut out)? {
                // Long enough, perhaps without a line: a page of nothing is one too.
                Some(last) => {
                    next = (next.0, Some(last));
                    break;
                }
                None => next = (next.0 + 1, None),
            }
        }
        self.at = Some(next);
        Ok(Some(self.hashed(out)))
    }

    fn hashed(&mut self, out: Vec<u8>) -> Bytes {
        self.hash.update(&out);
        out.into()
    }

    fn begin(&mut self, out: &mut Vec<u8>) -> Result<(), ViewError> {
        let header = wire::Header {
            format: wire::FORMAT,
            program: self.source.program.clone(),
            cluster: self.source.cluster.clone(),
            group: self.source.group,
            revision: self.source.revision,
            trimmed_ms: receipt::trimmed_ms(&*self.view)?,
            cells: self.source.cells,
        };
        push(out, &Line::Header(header))?;
        let Some((hash, ..)) = deploy::active(&*self.view)? else {
            return Ok(());
        };
        let deployment = deploy::load(&*self.view, &hash)?;
        let deployment = deployment.ok_or_else(|| damaged("the active deployment"))?;
        let bundle = wire::Bundle {
            hash,
            manifest: deployment.manifest.clone(),
            source: deployment.source.to_string(),
        };
        self.deployment = Some(deployment);
        push(out, &Line::Bundle(bundle))
    }

    fn end(&mut self, mut out: Vec<u8>) -> Result<Bytes, ViewError> {
        self.ended = true;
        self.hash.update(&out);
        let end = wire::End {
            counts: self.counts,
            sha256: hex::encode(self.hash.finalize_reset()),
        };
        push(&mut out, &Line::End(end))?;
        Ok(out.into())
    }

    /// Appends lines of a part; answers the last key that was read, or nothing at its end.
    fn read(
        &mut self,
        part: Part,
        after: Option<Vec<u8>>,
        bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<Option<Vec<u8>>, ViewError> {
        let (space, wanted) = match part {
            Part::Rows => (Space::Data, true),
            Part::Receipts => (Space::Receipts, true),
            Part::Roots(space) => (space, self.has_always()),
            Part::Cells(space) => (space, self.source.cells),
        };
        if !wanted {
            return Ok(None);
        }
        let all = KeyRange::of_prefix(b"");
        let from = match &after {
            Some(key) => Bound::Excluded(&key[..]),
            None => Bound::Unbounded,
        };
        let to = all.to.as_ref().map(Vec::as_slice);
        let view = Arc::clone(&self.view);
        let (mut last, mut failed, mut passed) = (None, Ok(()), 0);
        view.scan(space, from, to, Direction::Forward, &mut |key, value| {
            failed = self.line(part, key, value, out);
            passed += key.len() + value.len();
            // What leads to no line takes time too.
            let full = failed.is_err() || out.len() >= bytes || passed >= 16 * bytes;
            if full {
                last = Some(key.to_vec());
            }
            !full
        })?;
        failed.map(|()| last)
    }

    fn has_always(&self) -> bool {
        let deployment = self.deployment.as_ref();
        deployment.is_some_and(|d| {
            let mut values = d.manifest.derived.values();
            values.any(|v| v.materialize == Materialize::Always)
        })
    }

    fn line(
        &mut self,
        part: Part,
        key: &[u8],
        value: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), ViewError> {
        let row = key.ends_with(ROW_TAIL);
        let line = match part {
            Part::Rows if row => {
                self.counts.rows += 1;
                Some(Line::Row(row_line(key, value)?))
            }
            Part::Rows => None,
            Part::Receipts => {
                self.counts.receipts += 1;
                Some(Line::Receipt(receipt_line(key, value)?))
            }
            Part::Roots(Space::Data) | Part::Cells(Space::Data) if row => None,
            Part::Roots(space) => self.root_line(space, key, value)?.map(Line::Root),
            Part::Cells(space) => self.cell_line(space, key, value)?.map(Line::Cell),
        };
        line.map_or(Ok(()), |line| push(out, &line))
    }

    fn key_of(&self, id: &CellId) -> Result<Option<Box<RawValue>>, ViewError> {
        let deployment = self.deployment.as_ref();
        let declared = deployment.and_then(|d| d.manifest.derived.get(id.name()));
        declared.map(|d| raw(&id.key_json(d))).transpose()
    }

    fn root_line(
        &mut self,
        space: Space,
        key: &[u8],
        value: &[u8],
    ) -> Result<Option<wire::Root>, ViewError> {
        let deployment = self.deployment.as_deref();
        let Some((id, cell)) = read_cell(deployment, space, key, value)? else {
            return Ok(None);
        };
        let declared = deployment.and_then(|d| d.manifest.derived.get(id.name()));
        let always = declared.is_some_and(|d| d.materialize == Materialize::Always);
        let Some(key) = self.key_of(&id)?.filter(|_| always && cell.root) else {
            return Ok(None);
        };
        self.counts.roots += 1;
        Ok(Some(wire::Root {
            derived: id.name().to_owned(),
            key,
        }))
    }

    fn cell_line(
        &mut self,
        space: Space,
        key: &[u8],
        value: &[u8],
    ) -> Result<Option<wire::Cell>, ViewError> {
        let deployment = self.deployment.as_deref();
        let Some((id, cell)) = read_cell(deployment, space, key, value)? else {
            return Ok(None);
        };
        let Some(key) = self.key_of(&id)? else {
            return Ok(None);
        };
        self.counts.cells += 1;
        let outcome = raw(&cell.outcome.json)?;
        let (value, error) = match cell.outcome.failed {
            false => (Some(outcome), None),
            true => (None, Some(outcome)),
        };
        Ok(Some(wire::Cell {
            derived: id.name().to_owned(),
            key,
            root: cell.root,
            height: cell.height,
            value,
            error,
        }))
    }
}

fn row_line(key: &[u8], value: &[u8]) -> Result<wire::Row, ViewError> {
    let bad = || damaged("a row");
    let table = key.split(|b| *b == 0).nth(1);
    let table = table.and_then(|table| std::str::from_utf8(table).ok());
    let (version, _) = value.split_first_chunk::<8>().ok_or_else(bad)?;
    Ok(wire::Row {
        table: table.ok_or_else(bad)?.to_owned(),
        id: record::id_of_row_key(key).ok_or_else(bad)?.to_owned(),
        version: Revision(u64::from_be_bytes(*version)),
        value: raw(record::body(value).ok_or_else(bad)?)?,
    })
}

fn receipt_line(key: &[u8], value: &[u8]) -> Result<wire::Receipt, ViewError> {
    let bad = || damaged("the key of a receipt");
    let text = std::str::from_utf8(key).map_err(|_| bad())?;
    let mut parts = text.splitn(3, '\0').skip(1);
    let (subject, key) = parts.next().zip(parts.next()).ok_or_else(bad)?;
    let receipt = receipt::Receipt::decode(value)?;
    Ok(wire::Receipt {
        subject: subject.to_owned(),
        key: key.to_owned(),
        mutation: receipt.mutation,
        fingerprint: receipt.fingerprint.to_string(),
        revision: receipt.revision,
        created_ms: receipt.created_ms,
        until_ms: receipt.until_ms,
        ended: match receipt.ended {
            Ended::Result(json) => wire::Ended::Result(raw(&json)?),
            Ended::ResultNotKept => wire::Ended::ResultNotKept,
            Ended::Fault(problem) => wire::Ended::Fault(problem),
        },
    })
}

/// A cell of the active deployment; absent for what an older one left, or a build begins.
fn read_cell(
    deployment: Option<&Deployment>,
    space: Space,
    key: &[u8],
    value: &[u8],
) -> Result<Option<(CellId, Cell)>, ViewError> {
    let (id, of) = CellId::at(space, key).ok_or_else(|| damaged("the key of a cell"))?;
    if deployment.is_none_or(|deployment| deployment.generation != of) {
        return Ok(None);
    }
    let cell = Cell::decode(value).ok_or_else(|| damaged("a cell"))?;
    Ok(Some((id, cell)))
}
