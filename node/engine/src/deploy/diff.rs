//! What differs between two manifests, and what of it rows would not survive. Pure.

use flower_api::manifest::{FieldType, Index, Manifest, Table};

use crate::types;

/// One difference. Names are `table` or `table.index` or `table.field`.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change {
    AddTable(String),
    DropTable(String),
    /// The rows that exist fit the new declaration.
    Fits {
        table: String,
        what: String,
    },
    /// Rows would not fit; allowed only while there are none.
    Breaks {
        table: String,
        what: String,
    },
    AddIndex {
        table: String,
        index: String,
        on: Vec<String>,
    },
    DropIndex {
        table: String,
        index: String,
    },
    /// Functions only; no row is touched.
    Code(String),
}

/// Whether every value of `old` is one of `new`.
pub(super) fn widens(old: &FieldType, new: &FieldType) -> bool {
    use FieldType as T;
    let at_most = |old: &Option<u64>, new: &Option<u64>| match (old, new) {
        (_, None) => true,
        (Some(old), Some(new)) => old <= new,
        (None, Some(_)) => false,
    };
    match (old, new) {
        (old, new) if old == new => true,
        (T::Optional { inner: old }, T::Optional { inner: new }) => widens(old, new),
        (old, T::Optional { inner }) => widens(old, inner),
        (T::Text { max: old }, T::Text { max: new }) => at_most(old, new),
        (T::OneOf { .. }, T::Text { max: None }) => true,
        (T::OneOf { values: old }, T::OneOf { values: new }) => {
            old.iter().all(|value| new.contains(value))
        }
        (T::Int { .. } | T::Time, T::Number) => true,
        (T::Int { min: a, max: b }, T::Int { min: c, max: d }) => {
            let below = c.is_none_or(|c| a.is_some_and(|a| c <= a));
            let above = d.is_none_or(|d| b.is_some_and(|b| d >= b));
            below && above
        }
        (T::List { item: old, max: a }, T::List { item: new, max: b }) => {
            widens(old, new) && at_most(a, b)
        }
        (T::Record { fields: old }, T::Record { fields: new }) => {
            let kept = old.iter().all(|(name, ty)| {
                new.iter()
                    .any(|(other, new)| other == name && widens(ty, new))
            });
            let optional = |ty: &FieldType| matches!(ty, T::Optional { .. });
            let added = new
                .iter()
                .filter(|(name, _)| old.iter().all(|(other, _)| other != name));
            kept && added.into_iter().all(|(_, ty)| optional(ty))
        }
        _ => false,
    }
}

fn fields(name: &str, old: &Table, new: &Table, out: &mut Vec<Change>) {
    let find = |table: &Table, field: &str| {
        table
            .fields
            .iter()
            .find(|(f, _)| f == field)
            .map(|(_, ty)| ty.clone())
    };
    let mut add = |fits: bool, what: String| {
        let table = name.to_owned();
        out.push(match fits {
            true => Change::Fits { table, what },
            false => Change::Breaks { table, what },
        });
    };
    for (field, ty) in &new.fields {
        match find(old, field) {
            None if matches!(ty, FieldType::Optional { .. }) => {
                add(true, format!("adds the optional field '{field}'"));
            }
            None => add(
                false,
                format!("adds the required field '{field}'; make it optional"),
            ),
            Some(before) if before == *ty => {}
            Some(before) if widens(&before, ty) => add(true, format!("widens '{field}'")),
            Some(before) => {
                let (before, after) = (types::name(&before), types::name(ty));
                let what = if before == after {
                    format!("narrows '{field}' ({after})")
                } else {
                    format!("changes '{field}' from {before} to {after}")
                };
                add(false, what);
            }
        }
    }
    for (field, _) in old.fields.iter().filter(|(f, _)| find(new, f).is_none()) {
        add(false, format!("removes the field '{field}'"));
    }
}

fn indexes(name: &str, old: Option<&Table>, new: &Table, out: &mut Vec<Change>) {
    let table = name.to_owned();
    let before = |index: &str| old.and_then(|old| old.indexes.get(index));
    if let Some(old) = old {
        for (index, declared) in &old.indexes {
            if new.indexes.get(index) != Some(declared) {
                let (table, index) = (table.clone(), index.clone());
                out.push(Change::DropIndex { table, index });
            }
        }
    }
    for (index, declared) in &new.indexes {
        if before(index) != Some(declared) {
            let Index { on } = declared.clone();
            let (table, index) = (table.clone(), index.clone());
            out.push(Change::AddIndex { table, index, on });
        }
    }
}

fn derived(old: &Manifest, new: &Manifest, out: &mut Vec<Change>) {
    for (name, derived) in &new.derived {
        let what = match old.derived.get(name) {
            None => "adds",
            Some(before) if before != derived => "changes the declaration of",
            Some(_) => continue,
        };
        out.push(Change::Code(format!("{what} derived value {name}")));
    }
    for name in old.derived.keys() {
        if !new.derived.contains_key(name) {
            out.push(Change::Code(format!("removes derived value {name}")));
        }
    }
}

fn code(old: &Manifest, new: &Manifest, out: &mut Vec<Change>) {
    for (name, function) in &new.functions {
        match old.functions.get(name) {
            None => out.push(Change::Code(format!("adds function {name}"))),
            Some(before) if before != function => {
                out.push(Change::Code(format!(
                    "changes the declaration of function {name}"
                )));
            }
            Some(_) => {}
        }
    }
    for name in old
        .functions
        .keys()
        .filter(|name| !new.functions.contains_key(*name))
    {
        out.push(Change::Code(format!("removes function {name}")));
    }
}

/// All differences from `old` to `new`.
pub(super) fn diff(old: &Manifest, new: &Manifest) -> Vec<Change> {
    let mut out = Vec::new();
    for (name, table) in &new.tables {
        match old.tables.get(name) {
            None => {
                out.push(Change::AddTable(name.clone()));
                indexes(name, None, table, &mut out);
            }
            Some(before) => {
                fields(name, before, table, &mut out);
                indexes(name, Some(before), table, &mut out);
            }
        }
    }
    for name in old
        .tables
        .keys()
        .filter(|name| !new.tables.contains_key(*name))
    {
        out.push(Change::DropTable(name.clone()));
    }
    derived(old, new, &mut out);
    code(old, new, &mut out);
    out
}
