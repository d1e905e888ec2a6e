//! Keys and values of rows and index entries. A row's key is partition NUL table NUL id NUL
//! `r`; an index entry's is partition NUL table NUL index NUL, the encoded fields, the id.
//! Values begin with the revision that wrote them. Pure.

use bytes::Bytes;
use flower_api::{
    PartitionId, Revision, limits,
    manifest::{FieldType, Table},
};
use serde_json::{Map, Value};

use crate::{
    codec,
    range::ROW_TAIL,
    types::{self, Errors},
};

/// A row: its fields without the id.
pub(crate) type Row = Map<String, Value>;

/// What begins the keys of all rows of a table.
pub(crate) fn table_prefix(table: &str) -> Vec<u8> {
    let parts: [&[u8]; 4] = [PartitionId::ROOT.as_bytes(), b"\0", table.as_bytes(), b"\0"];
    parts.concat()
}

/// The key of a row.
pub(crate) fn row_key(table: &str, id: &str) -> Vec<u8> {
    let mut key = table_prefix(table);
    key.extend_from_slice(id.as_bytes());
    key.extend_from_slice(ROW_TAIL);
    key
}

/// The id in the key of a row; absent for a key of another form.
pub(crate) fn id_of_row_key(key: &[u8]) -> Option<&str> {
    let body = key.strip_suffix(ROW_TAIL)?;
    let id = std::str::from_utf8(body.get(body.len().checked_sub(codec::ID_CHARS)?..)?).ok()?;
    codec::is_id(id).then_some(id)
}

/// The id at the end of an index entry's key; absent for a key of another form.
pub(crate) fn id_of_index_key(key: &[u8]) -> Option<&str> {
    let id = key.get(key.len().checked_sub(codec::ID_CHARS)?..)?;
    std::str::from_utf8(id).ok().filter(|id| codec::is_id(id))
}

/// What begins the keys of all entries of an index, `physical` being its stored name.
pub(crate) fn index_prefix(table: &str, physical: &str) -> Vec<u8> {
    let mut key = table_prefix(table);
    key.extend_from_slice(physical.as_bytes());
    key.push(0);
    key
}

/// The key of a row's entry in an index.
///
/// # Errors
/// When the key is too large, for the application's author.
pub(crate) fn index_key(
    table: &str,
    physical: &str,
    on: &[String],
    row: &Row,
    id: &str,
) -> Result<Vec<u8>, String> {
    let mut key = index_prefix(table, physical);
    for field in on {
        let value = row.get(field).unwrap_or(&Value::Null);
        if !codec::push(&mut key, value) {
            return Err(format!("field '{field}' of {table} cannot be indexed"));
        }
    }
    key.extend_from_slice(id.as_bytes());
    let (bytes, most) = (key.len() as u64, limits::KEY_BYTES);
    if bytes > most {
        return Err(format!(
            "the index on {} of table {table} would need a key of {bytes} bytes; at most {most}",
            on.join(", ")
        ));
    }
    Ok(key)
}

/// A value: the revision that wrote it, then the body.
pub(crate) fn value(revision: Revision, body: &str) -> Bytes {
    let mut out = Vec::with_capacity(8 + body.len());
    out.extend_from_slice(&revision.0.to_be_bytes());
    out.extend_from_slice(body.as_bytes());
    out.into()
}

/// The body of a value; absent when it is cut short or no text.
pub(crate) fn body(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value.get(8..)?).ok()
}

/// A stored body with its id as the first field: what a handler gets.
pub(crate) fn with_id(id: &str, body: &str) -> String {
    let rest = body.strip_prefix('{').unwrap_or(body);
    let comma = if rest == "}" { "" } else { "," };
    format!("{{\"id\":\"{id}\"{comma}{rest}")
}

/// Checks a row against its table and gives it its stored form: declared order, nothing
/// for fields that are absent.
///
/// # Errors
/// What is wrong, for the application's author.
pub(crate) fn canonical(name: &str, table: &Table, row: &mut Row) -> Result<String, String> {
    let mut errors = Errors::default();
    types::check_fields(&table.fields, row, "", &mut errors);
    if !errors.0.is_empty() {
        return Err(format!("a row of {name} does not fit: {}", errors.text()));
    }
    let mut ordered = Row::new();
    for (field, ty) in &table.fields {
        let optional = matches!(ty, FieldType::Optional { .. });
        if let Some(value) = row.remove(field).filter(|v| !(optional && v.is_null())) {
            ordered.insert(field.clone(), value);
        }
    }
    *row = ordered;
    serde_json::to_string(row).map_err(|e| format!("a row of {name} has no JSON form: {e}"))
}

/// Parses a row's JSON.
///
/// # Errors
/// When it is no object, or holds half of a surrogate pair.
pub(crate) fn parse(name: &str, json: &str) -> Result<Row, String> {
    serde_json::from_str(json).map_err(|error| {
        let why = match half_character(json) {
            Some(field) => format!(
                "its field '{field}' holds half of a character (a surrogate without its other half), as when a text is cut in the middle of one; only whole characters can be stored"
            ),
            None => error.to_string(),
        };
        format!("a row of {name} cannot be stored: {why}")
    })
}

/// Stands for half of a character while its field is looked for.
const HALF: &str = "\u{fffd}half\u{fffd}";

/// The first field of a row's JSON that holds a surrogate without its other half, if that is
/// what is wrong with it.
fn half_character(json: &str) -> Option<String> {
    let (whole, halves) = without_halves(json);
    let row: Row = serde_json::from_str(&whole).ok().filter(|_| halves)?;
    let holds = |value: &Value| value.to_string().contains(HALF);
    let found = row
        .iter()
        .find(|(name, value)| name.contains(HALF) || holds(value));
    found.map(|(name, _)| name.replace(HALF, "\u{fffd}"))
}

/// The JSON with each half of a character replaced, and whether there was one.
fn without_halves(json: &str) -> (String, bool) {
    let unit = |text: &str| {
        let hex = text.strip_prefix("\\u")?.get(..4)?;
        u32::from_str_radix(hex, 16).ok()
    };
    let (mut whole, mut halves, mut rest) = (String::new(), false, json);
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        whole.push_str(before);
        let low = || unit(&escape[6..]).is_some_and(|unit| (0xdc00..0xe000).contains(&unit));
        let (take, half) = match unit(escape) {
            Some(0xd800..0xdc00) if low() => (12, false),
            Some(0xd800..0xe000) => (6, true),
            Some(_) => (6, false),
            None => (escape.chars().take(2).map(char::len_utf8).sum(), false),
        };
        whole.push_str(if half { HALF } else { &escape[..take] });
        halves |= half;
        rest = &escape[take..];
    }
    whole.push_str(rest);
    (whole, halves)
}
