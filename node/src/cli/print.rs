//! Tables, sizes and JSON as the commands print them.

use std::{fmt::Display, io::Write};

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

use super::Failure;

/// Code of a program whose reader has gone, as the shell gives it for SIGPIPE.
const READER_GONE: i32 = 141;

/// A line on standard output. Ends the program, quietly, when nobody reads it any more.
pub(crate) fn line(text: impl Display) {
    let mut out = std::io::stdout().lock();
    let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush()) else {
        return;
    };
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        std::process::exit(READER_GONE);
    }
    complain(format_args!("the output cannot be written: {error}"));
    std::process::exit(i32::from(super::exit::FAILED));
}

/// A line on standard error. Whether somebody reads it makes no difference.
pub(crate) fn complain(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "flower: {text}");
}

/// A JSON document on standard output.
pub(super) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value);
    line(text.map_err(|e| Failure::here(format!("cannot be printed: {e}")))?);
    Ok(())
}

/// A table without lines; columns from `right` on hold numbers.
pub(super) fn table(head: &[&str], rows: Vec<Vec<String>>, right: usize) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(head.iter().copied());
    table.add_rows(
        rows.into_iter()
            .map(|row| row.into_iter().map(Cell::new).collect::<Vec<_>>()),
    );
    for (number, column) in table.column_iter_mut().enumerate() {
        if number >= right {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Bytes for people.
pub(super) fn bytes(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

/// Bytes for people; a dash for what is not known.
pub(super) fn known(value: Option<u64>) -> String {
    value.map_or_else(|| "-".to_owned(), bytes)
}
