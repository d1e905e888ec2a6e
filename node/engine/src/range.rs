//! From `{ customer, placedAt: { gte, lt } }` to the bounds of a key range: an equality
//! prefix of the fields and at most one range, the row's id being the implicit last field.

use std::ops::Bound;

use flower_api::manifest::FieldType;
use serde_json::{Map, Value};

use crate::{codec, types};

/// How the id ends a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdTail {
    /// An index entry: the id ends the key.
    Bare,
    /// A row: NUL and the kind follow the id.
    Row,
    /// There is none: the fields are all.
    None,
}

/// What follows the id in the key of a row: NUL and the kind.
pub(crate) const ROW_TAIL: &[u8] = b"\0r";

/// A range of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub from: Bound<Vec<u8>>,
    pub to: Bound<Vec<u8>>,
}

impl KeyRange {
    /// Everything that begins with `prefix`.
    pub fn of_prefix(prefix: &[u8]) -> Self {
        Self {
            from: Bound::Included(prefix.to_vec()),
            to: end_of(prefix),
        }
    }
    /// Whether no key can lie within.
    pub fn is_empty(&self) -> bool {
        match (&self.from, &self.to) {
            (Bound::Included(f), Bound::Included(t)) => f > t,
            (Bound::Included(f) | Bound::Excluded(f), Bound::Included(t) | Bound::Excluded(t)) => {
                f >= t
            }
            _ => false,
        }
    }
}

fn end_of(prefix: &[u8]) -> Bound<Vec<u8>> {
    codec::after_prefix(prefix).map_or(Bound::Unbounded, Bound::Excluded)
}

/// Bounds of the keys that begin with `prefix` and satisfy `wanted`. `fields` are those of
/// the index, in order; none for a table itself.
///
/// # Errors
/// What is wrong with `wanted`, for the application's author.
pub(crate) fn bounds(
    prefix: &[u8],
    fields: &[(&str, &FieldType)],
    tail: IdTail,
    wanted: &Map<String, Value>,
) -> Result<KeyRange, String> {
    let mut key = prefix.to_vec();
    let mut used = 0;
    for (field, ty) in fields {
        match wanted.get(*field) {
            None => return finish(KeyRange::of_prefix(&key), used, fields, tail, wanted),
            Some(Value::Object(ops)) => {
                let range = between(&key, field, ty, ops)?;
                return finish(range, used + 1, fields, tail, wanted);
            }
            Some(value) => {
                push_checked(&mut key, field, ty, value)?;
                used += 1;
            }
        }
    }
    let range = match wanted.get("id").filter(|_| tail != IdTail::None) {
        None => return finish(KeyRange::of_prefix(&key), used, fields, tail, wanted),
        Some(Value::Object(ops)) => between_ids(&key, tail, ops)?,
        Some(id) => {
            let whole = id_key(&key, tail, id_text(id)?);
            KeyRange {
                from: Bound::Included(whole.clone()),
                to: Bound::Included(whole),
            }
        }
    };
    finish(range, used + 1, fields, tail, wanted)
}

/// Every field of `wanted` must have been used.
fn finish(
    range: KeyRange,
    used: usize,
    fields: &[(&str, &FieldType)],
    tail: IdTail,
    wanted: &Map<String, Value>,
) -> Result<KeyRange, String> {
    if used == wanted.len() {
        return Ok(range);
    }
    let id = (tail != IdTail::None).then_some("id");
    let order: Vec<&str> = fields.iter().map(|(f, _)| *f).chain(id).collect();
    let unknown = wanted.keys().find(|k| !order.contains(&k.as_str()));
    Err(match unknown {
        Some(field) => format!(
            "'{field}' is not a field here; they are {}",
            order.join(", ")
        ),
        None => format!(
            "a range gives values for the first fields of {} in order, and at most one range, the last",
            order.join(", ")
        ),
    })
}

fn push_checked(
    key: &mut Vec<u8>,
    field: &str,
    ty: &FieldType,
    value: &Value,
) -> Result<(), String> {
    let fits = match (ty, value) {
        (FieldType::Optional { .. }, Value::Null) => true,
        (FieldType::Optional { inner }, value) => return push_checked(key, field, inner, value),
        (FieldType::Id { .. } | FieldType::Text { .. } | FieldType::OneOf { .. }, v) => {
            v.is_string()
        }
        (FieldType::Int { .. } | FieldType::Number | FieldType::Time, v) => v.is_number(),
        (FieldType::Bool, v) => v.is_boolean(),
        _ => false,
    };
    if !fits || !codec::push(key, value) {
        return Err(format!("'{field}' must be {}", types::name(ty)));
    }
    Ok(())
}

const OPS: [&str; 4] = ["gt", "gte", "lt", "lte"];

fn check_ops(field: &str, ops: &Map<String, Value>) -> Result<(), String> {
    if let Some(op) = ops.keys().find(|k| !OPS.contains(&k.as_str())) {
        return Err(format!(
            "'{field}' does not know '{op}'; it knows gt, gte, lt, lte"
        ));
    }
    let both = |a: &str, b: &str| ops.contains_key(a) && ops.contains_key(b);
    if both("gt", "gte") || both("lt", "lte") {
        return Err(format!("'{field}' has two bounds on one side"));
    }
    Ok(())
}

fn between(
    base: &[u8],
    field: &str,
    ty: &FieldType,
    ops: &Map<String, Value>,
) -> Result<KeyRange, String> {
    check_ops(field, ops)?;
    let mut range = KeyRange::of_prefix(base);
    for (op, value) in ops {
        let mut key = base.to_vec();
        push_checked(&mut key, field, ty, value)?;
        // Encoded values are prefix-free: what begins with `key` has exactly this value.
        match op.as_str() {
            "gte" => range.from = Bound::Included(key),
            "lt" => range.to = Bound::Excluded(key),
            "lte" => range.to = end_of(&key),
            _ => {
                range.from = match end_of(&key) {
                    Bound::Excluded(end) => Bound::Included(end),
                    other => other,
                }
            }
        }
    }
    Ok(range)
}

fn id_text(value: &Value) -> Result<&str, String> {
    value
        .as_str()
        .filter(|id| !id.contains('\0'))
        .ok_or_else(|| "'id' must be an id".to_owned())
}

fn id_key(base: &[u8], tail: IdTail, id: &str) -> Vec<u8> {
    let mut key = [base, id.as_bytes()].concat();
    if tail == IdTail::Row {
        key.extend_from_slice(ROW_TAIL);
    }
    key
}

fn between_ids(base: &[u8], tail: IdTail, ops: &Map<String, Value>) -> Result<KeyRange, String> {
    check_ops("id", ops)?;
    let mut range = KeyRange::of_prefix(base);
    for (op, value) in ops {
        let id = id_text(value)?;
        let begin = [base, id.as_bytes()].concat();
        match op.as_str() {
            "gt" => range.from = Bound::Excluded(id_key(base, tail, id)),
            "gte" => range.from = Bound::Included(begin),
            "lt" => range.to = Bound::Excluded(begin),
            _ => range.to = Bound::Included(id_key(base, tail, id)),
        }
    }
    Ok(range)
}
