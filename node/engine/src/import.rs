//! Imports: what each step of one writes. First rows with their entries of indexes, and
//! receipts; when all rows are there, their derived values, so that none is ever evaluated over
//! half of the rows; then the roots. A mark says how far it is, so that every step may be sent
//! again. Decides and builds patches; runs no JavaScript.

use flower_api::{
    Revision,
    export::{Counts, Header, Imported, Line, Receipt as ReceiptLine, Root, Row as RowLine},
    limits,
    manifest::Materialize,
};
use serde::{Deserialize, Serialize};

use crate::{
    codec,
    deploy::Deployment,
    derived::CellId,
    error::ViewError,
    key::{Space, meta},
    range::{KeyRange, ROW_TAIL},
    receipt::{self, Ended, IdempotencyKey, Receipt, Scope},
    record,
    view::{Direction, PatchBuilder, View},
};

/// Revisions above this one cannot be told from each other by JavaScript.
pub const LAST_REVISION: Revision = Revision(1 << 53);

/// Why a step is not done.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ImportError {
    /// The lines are not those of an export that fits; which and why.
    #[error("{0}")]
    Bad(String),
    /// The state cannot be read.
    #[error(transparent)]
    Storage(#[from] ViewError),
}

/// How far an import is; the record under `meta::IMPORTING`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mark {
    /// Checksum of the export.
    pub import: String,
    /// Revision of the export.
    pub revision: Revision,
    /// Lines written.
    pub written: Counts,
    /// Rows whose derived values are evaluated.
    pub built: u64,
    /// The last of them: derived value and row; absent before the first.
    pub last_built: Option<(String, String)>,
    /// Whether those of all rows are.
    pub all_built: bool,
}

impl Mark {
    /// An import that begins.
    pub fn begin(import: &str, header: &Header) -> Self {
        Self {
            import: import.to_owned(),
            revision: header.revision,
            written: Counts::default(),
            built: 0,
            last_built: None,
            all_built: false,
        }
    }

    /// The import under way.
    ///
    /// # Errors
    /// When the state cannot be read.
    pub fn read(view: &dyn View) -> Result<Option<Self>, ViewError> {
        let mark = view.get(Space::Meta, meta::IMPORTING)?;
        let parsed = mark.map(|bytes| serde_json::from_slice(&bytes));
        parsed
            .transpose()
            .map_err(|e| ViewError(format!("the mark of the import is damaged: {e}")))
    }

    /// Writes it.
    pub fn put(&self, patch: &mut PatchBuilder) {
        // These types always have a JSON form.
        let json = serde_json::to_vec(self).unwrap_or_default();
        patch.put(Space::Meta, meta::IMPORTING, json);
    }

    /// Removes it: the import is done.
    pub fn finish(&self, patch: &mut PatchBuilder) {
        patch.delete(Space::Meta, meta::IMPORTING);
        let import = self.import.clone().into_bytes();
        patch.put(Space::Meta, meta::IMPORTED, import);
    }

    /// For whoever sends the steps.
    pub fn told(&self, finished: bool) -> Imported {
        Imported {
            written: self.written,
            built: self.built,
            all_built: self.all_built,
            finished,
        }
    }
}

/// Checksum of the export that was imported last.
///
/// # Errors
/// When the state cannot be read.
pub fn imported(view: &dyn View) -> Result<Option<String>, ViewError> {
    let found = view.get(Space::Meta, meta::IMPORTED)?;
    Ok(found.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

/// Whether a database holds neither rows nor receipts.
///
/// # Errors
/// When the state cannot be read.
pub fn is_empty(view: &dyn View) -> Result<bool, ViewError> {
    for space in [Space::Data, Space::Receipts] {
        let all = KeyRange::of_prefix(b"");
        let mut found = false;
        let (from, to) = (all.from.as_ref(), all.to.as_ref());
        let (from, to) = (from.map(Vec::as_slice), to.map(Vec::as_slice));
        view.scan(space, from, to, Direction::Forward, &mut |_, _| {
            found = true;
            false
        })?;
        if found {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Carries over up to which time receipts may be gone.
///
/// # Errors
/// When the state cannot be read.
pub fn trimmed(view: &dyn View, header: &Header, out: &mut PatchBuilder) -> Result<(), ViewError> {
    let theirs = header.trimmed_ms;
    if let Some(ms) = theirs.max(receipt::trimmed_ms(view)?) {
        out.put(Space::Meta, meta::TRIMMED, ms.to_be_bytes().to_vec());
    }
    Ok(())
}

/// The lines of a page.
///
/// # Errors
/// What is no line of an export.
pub fn parse(text: &str) -> Result<Vec<Line>, String> {
    let lines = text.lines().enumerate();
    let parsed = lines.map(|(at, line)| {
        serde_json::from_str(line).map_err(|e| format!("line {} of the page: {e}", at + 1))
    });
    parsed.collect()
}

/// The roots of a page that holds nothing else; absent for a page of rows and receipts.
pub fn only_roots(lines: &[Line]) -> Option<Vec<&Root>> {
    let roots = lines.iter().map(|line| match line {
        Line::Root(root) => Some(root),
        _ => None,
    });
    roots.collect::<Option<Vec<_>>>().filter(|r| !r.is_empty())
}

/// Writes rows and receipts, and what was written into the mark.
///
/// # Errors
/// `Bad` for a line that does not fit the application, or that is there already.
pub fn write(
    view: &dyn View,
    deployment: &Deployment,
    mark: &mut Mark,
    lines: &[Line],
) -> Result<PatchBuilder, ImportError> {
    let mut patch = PatchBuilder::new();
    for line in lines {
        match line {
            Line::Row(row) => {
                let bad = |why| ImportError::Bad(format!("row {} of {}: {why}", row.id, row.table));
                write_row(view, deployment, mark.revision, row, &mut patch)?.map_err(bad)?;
                mark.written.rows += 1;
            }
            Line::Receipt(line) => {
                let bad = |why| ImportError::Bad(format!("receipt {}: {why}", line.key));
                write_receipt(line, &mut patch).map_err(bad)?;
                mark.written.receipts += 1;
            }
            _ => {
                let why = "a page holds rows and receipts, or roots, and nothing else";
                return Err(ImportError::Bad(why.into()));
            }
        }
    }
    let (bytes, most) = (patch.size(), limits::PATCH_BYTES);
    if bytes > most {
        return Err(ImportError::Bad(format!(
            "the page becomes {bytes} bytes with its indexes; at most {most}: send fewer lines"
        )));
    }
    Ok(patch)
}

/// The inner error is for people.
fn write_row(
    view: &dyn View,
    deployment: &Deployment,
    last: Revision,
    line: &RowLine,
    patch: &mut PatchBuilder,
) -> Result<Result<(), String>, ViewError> {
    if !codec::is_id(&line.id) {
        return Ok(Err("its id is none".into()));
    }
    let key = record::row_key(&line.table, &line.id);
    if view.get(Space::Data, &key)?.is_some() || patch.get(Space::Data, &key).is_some() {
        return Ok(Err("it is there already".into()));
    }
    Ok(put_row(deployment, last, line, key, patch))
}

fn put_row(
    deployment: &Deployment,
    last: Revision,
    line: &RowLine,
    key: Vec<u8>,
    patch: &mut PatchBuilder,
) -> Result<(), String> {
    let RowLine { table, id, .. } = line;
    // Ids are made of revisions: one of a later revision would be made again.
    let next = codec::mint_id(Revision(last.0 + 1), 0).unwrap_or_default();
    if line.version > last || *id >= next {
        return Err(format!("it is of a later revision than the export, {last}"));
    }
    let declared = deployment.manifest.tables.get(table);
    let declared = declared.ok_or("the application declares no such table")?;
    let mut row = record::parse(table, line.value.get())?;
    let body = record::canonical(table, declared, &mut row)?;
    for (name, index) in &declared.indexes {
        let physical = deployment.stored_index(table, name);
        let key = record::index_key(table, physical, &index.on, &row, id)?;
        patch.put(Space::Index, key, record::value(line.version, ""));
    }
    patch.put(Space::Data, key, record::value(line.version, &body));
    Ok(())
}

fn write_receipt(line: &ReceiptLine, patch: &mut PatchBuilder) -> Result<(), String> {
    let key: IdempotencyKey = line.key.parse().map_err(|_| "its key is none")?;
    if line.subject.contains('\0') {
        return Err("its subject is none".into());
    }
    let scope = Scope {
        partition: flower_api::PartitionId::ROOT.to_string(),
        subject: line.subject.clone(),
    };
    use flower_api::export::Ended as Wire;
    let receipt = Receipt {
        revision: line.revision,
        mutation: line.mutation.clone(),
        fingerprint: line.fingerprint.parse().map_err(|_| "bad fingerprint")?,
        ended: match &line.ended {
            Wire::Result(json) => Ended::Result(json.get().to_owned()),
            Wire::ResultNotKept => Ended::ResultNotKept,
            Wire::Fault(problem) => Ended::Fault(problem.clone()),
        },
        created_ms: line.created_ms,
        until_ms: line.until_ms,
    };
    receipt::record(patch, &scope, &key, &receipt);
    Ok(())
}

/// Cells to be made roots and evaluated.
#[derive(Debug, Clone, Default)]
pub struct Roots(pub(crate) Vec<CellId>);

impl Roots {
    /// Those of a page.
    ///
    /// # Errors
    /// What is wrong with one.
    pub fn of_lines(deployment: &Deployment, lines: &[&Root]) -> Result<Self, String> {
        let cells = lines.iter().map(|line| {
            let name = &line.derived;
            let declared = deployment.manifest.derived.get(name);
            match declared.filter(|d| d.materialize == Materialize::Always) {
                Some(declared) => CellId::new(name, declared, line.key.get()),
                None => Err(format!("the application keeps no cells of '{name}' so")),
            }
        });
        Ok(Self(cells.collect::<Result<_, _>>()?))
    }

    /// Those of the next rows, at most `most`; moves the mark behind them.
    ///
    /// # Errors
    /// When the state cannot be read.
    pub fn of_next_rows(
        view: &dyn View,
        deployment: &Deployment,
        mark: &mut Mark,
        most: usize,
    ) -> Result<Self, ViewError> {
        let mut cells = Vec::new();
        let last = mark.last_built.clone();
        for (name, declared) in &deployment.manifest.derived {
            let Materialize::Each(table) = &declared.materialize else {
                continue;
            };
            let after = match &last {
                Some((at, _)) if name < at => continue,
                Some((at, id)) if name == at => Some(id.as_str()),
                _ => None,
            };
            for id in rows_after(view, table, after, most - cells.len())? {
                cells.push(CellId::of_row(name, &id));
                mark.last_built = Some((name.clone(), id));
            }
            if cells.len() >= most {
                break;
            }
        }
        mark.built += cells.len() as u64;
        mark.all_built = cells.len() < most;
        Ok(Self(cells))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Ids of a table's rows after one, in order.
fn rows_after(
    view: &dyn View,
    table: &str,
    after: Option<&str>,
    most: usize,
) -> Result<Vec<String>, ViewError> {
    let range = KeyRange::of_prefix(&record::table_prefix(table));
    let after = after.map(|id| record::row_key(table, id));
    let from = match &after {
        Some(key) => std::ops::Bound::Excluded(&key[..]),
        None => range.from.as_ref().map(Vec::as_slice),
    };
    let to = range.to.as_ref().map(Vec::as_slice);
    let mut found = Vec::new();
    if most == 0 {
        return Ok(found);
    }
    view.scan(Space::Data, from, to, Direction::Forward, &mut |key, _| {
        if key.ends_with(ROW_TAIL) {
            found.extend(record::id_of_row_key(key).map(str::to_owned));
        }
        found.len() < most
    })?;
    Ok(found)
}
