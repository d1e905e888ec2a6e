//! Checks JSON values against declared types; says where and what is wrong. For an optional
//! type null is the same as absent. Pure.

use flower_api::{manifest::FieldType, wire::FieldError};
use serde_json::{Map, Value};

use crate::codec;

/// More than so many errors of one value are not told.
const MOST_ERRORS: usize = 20;
/// The largest whole number that JavaScript holds exactly.
pub(crate) const MAX_SAFE: f64 = 9_007_199_254_740_991.0;

/// What is wrong with a value, with JSON pointers.
#[derive(Debug, Default)]
pub(crate) struct Errors(pub Vec<FieldError>);

impl Errors {
    pub fn add(&mut self, pointer: &str, detail: impl Into<String>) {
        if self.0.len() < MOST_ERRORS {
            self.0.push(FieldError {
                pointer: pointer.to_owned(),
                detail: detail.into(),
            });
        }
    }
    /// For one line of text.
    pub fn text(&self) -> String {
        let show = |e: &FieldError| match e.pointer.as_str() {
            "" => e.detail.clone(),
            pointer => format!("{pointer}: {}", e.detail),
        };
        self.0.iter().map(show).collect::<Vec<_>>().join("; ")
    }
}

fn child(pointer: &str, name: &str) -> String {
    format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Appends what is wrong with `value` under `pointer`.
pub(crate) fn check(ty: &FieldType, value: &Value, pointer: &str, errors: &mut Errors) {
    match (ty, value) {
        (FieldType::Optional { .. }, Value::Null) => {}
        (FieldType::Optional { inner }, _) => check(inner, value, pointer, errors),
        (FieldType::Json, _) => {}
        (FieldType::Bool, Value::Bool(_)) => {}
        (FieldType::Number, Value::Number(_)) => {}
        (FieldType::Int { min, max }, Value::Number(n)) => {
            check_int(n.as_f64(), *min, *max, pointer, errors);
        }
        (FieldType::Time, Value::Number(n)) => {
            check_int(n.as_f64(), None, None, pointer, errors);
        }
        (FieldType::Id { table }, Value::String(id)) => {
            if !codec::is_id(id) {
                errors.add(pointer, format!("is not an id of a row of {table}"));
            }
        }
        (FieldType::Text { max }, Value::String(text)) => check_text(text, *max, pointer, errors),
        (FieldType::OneOf { values }, Value::String(text)) => {
            if !values.contains(text) {
                errors.add(pointer, format!("must be one of {}", values.join(", ")));
            }
        }
        (FieldType::List { item, max }, Value::Array(items)) => {
            if max.is_some_and(|max| items.len() as u64 > max) {
                let (max, n) = (max.unwrap_or(0), items.len());
                errors.add(pointer, format!("must have at most {max} items, not {n}"));
            }
            for (at, value) in items.iter().enumerate() {
                check(item, value, &format!("{pointer}/{at}"), errors);
            }
        }
        (FieldType::Record { fields }, Value::Object(object)) => {
            check_fields(fields, object, pointer, errors);
        }
        _ => errors.add(
            pointer,
            format!("must be {}, not {}", name(ty), kind(value)),
        ),
    }
}

/// What a type is called in errors.
pub(crate) fn name(ty: &FieldType) -> String {
    match ty {
        FieldType::Id { table } => format!("an id of {table}"),
        FieldType::Text { .. } => "a text".into(),
        FieldType::Int { .. } => "a whole number".into(),
        FieldType::Number => "a number".into(),
        FieldType::Bool => "true or false".into(),
        FieldType::Time => "a time in milliseconds".into(),
        FieldType::Json => "any JSON".into(),
        FieldType::OneOf { values } => format!("one of {}", values.join(", ")),
        FieldType::List { item, .. } => format!("a list of {}", name(item)),
        FieldType::Record { .. } => "an object".into(),
        FieldType::Optional { inner } => format!("{} or absent", name(inner)),
    }
}

fn check_int(
    number: Option<f64>,
    min: Option<i64>,
    max: Option<i64>,
    pointer: &str,
    errors: &mut Errors,
) {
    let number = number.unwrap_or(f64::NAN);
    if number.fract() != 0.0 || number.abs() > MAX_SAFE {
        let range = match (min, max) {
            (Some(min), Some(max)) => format!("from {min} to {max}"),
            (Some(min), None) => format!("of at least {min}"),
            (None, Some(max)) => format!("of at most {max}"),
            (None, None) => "within ±(2^53 - 1)".to_owned(),
        };
        errors.add(pointer, format!("must be a whole number {range}"));
        return;
    }
    let whole = number as i64;
    if let Some(min) = min.filter(|min| whole < *min) {
        errors.add(pointer, format!("must be at least {min}, not {whole}"));
    }
    if let Some(max) = max.filter(|max| whole > *max) {
        errors.add(pointer, format!("must be at most {max}, not {whole}"));
    }
}

fn check_text(text: &str, max: Option<u64>, pointer: &str, errors: &mut Errors) {
    let Some(max) = max else { return };
    // UTF-16 never has more units than UTF-8 has bytes.
    if text.len() as u64 <= max {
        return;
    }
    let units = text.encode_utf16().count() as u64;
    if units > max {
        errors.add(
            pointer,
            format!("must have at most {max} characters, not {units}"),
        );
    }
}

/// Checks the fields of an object: unknown and missing ones, and each value.
pub(crate) fn check_fields(
    fields: &[(String, FieldType)],
    object: &Map<String, Value>,
    pointer: &str,
    errors: &mut Errors,
) {
    for (field, ty) in fields {
        match object.get(field) {
            Some(value) => check(ty, value, &child(pointer, field), errors),
            None if matches!(ty, FieldType::Optional { .. }) => {}
            None => errors.add(
                &child(pointer, field),
                format!("is missing; it is {}", name(ty)),
            ),
        }
    }
    for unknown in object
        .keys()
        .filter(|k| fields.iter().all(|(f, _)| f != *k))
    {
        let known: Vec<&str> = fields.iter().map(|(f, _)| f.as_str()).collect();
        let detail = match known.as_slice() {
            [] => "is not known; nothing is expected here".to_owned(),
            known => format!("is not known; known are {}", known.join(", ")),
        };
        errors.add(&child(pointer, unknown), detail);
    }
}

#[cfg(test)]
mod tests;
