//! What a bundle declares: from the texts of the SDK to a checked [`Manifest`].

use std::collections::{BTreeMap, BTreeSet};

use flower_api::{
    limits,
    manifest::{Derived, FieldType, Function, Index, Manifest, Materialize, Table},
};
use serde::Deserialize;

use super::BundleError;

/// Names that a table or index cannot have, because `db` has them.
const TAKEN: [&str; 11] = [
    "now", "random", "uuid", "get", "insert", "patch", "replace", "delete", "range", "all", "count",
];
/// Characters of a name.
const NAME_CHARS: usize = 64;
/// Depth of a type.
const DEPTH: usize = 16;

#[derive(Deserialize)]
struct Described {
    tables: Vec<(String, Table)>,
    derived: Vec<(String, Derived)>,
    functions: Vec<(String, Function)>,
    problems: Vec<String>,
}

/// The manifest in what `describe` answered.
pub(super) fn manifest(described: &str) -> Result<Manifest, BundleError> {
    let described: Described = serde_json::from_str(described)
        .map_err(|e| BundleError::one(format!("a declaration is malformed: {e}")))?;
    let mut problems = described.problems;
    let mut manifest = Manifest::default();
    for (name, table) in described.tables {
        if manifest.tables.insert(name.clone(), table).is_some() {
            let name = cut(&name);
            problems.push(format!("table '{name}' is declared twice"));
        }
    }
    for (name, derived) in described.derived {
        if manifest.tables.contains_key(&name) {
            problems.push(format!(
                "'{name}' is declared as a table and as a derived value; they share one namespace"
            ));
        }
        if manifest.derived.insert(name.clone(), derived).is_some() {
            problems.push(format!("derived value '{name}' is declared twice"));
        }
    }
    manifest.functions = described.functions.into_iter().collect::<BTreeMap<_, _>>();
    check(&manifest, &mut problems);
    if problems.is_empty() {
        Ok(manifest)
    } else {
        Err(BundleError { problems })
    }
}

fn check(manifest: &Manifest, problems: &mut Vec<String>) {
    if manifest.functions.is_empty() {
        problems.push(
            "it exports no functions: write `export const name = query({…}, (db, args) => …)`"
                .into(),
        );
    }
    if manifest.tables.len() > limits::TABLES {
        let (n, most) = (manifest.tables.len(), limits::TABLES);
        problems.push(format!("it declares {n} tables; at most {most}"));
    }
    for (name, table) in &manifest.tables {
        check_name("a table", name, problems);
        check_table(manifest, name, table, problems);
    }
    if manifest.derived.len() > limits::TABLES {
        let (n, most) = (manifest.derived.len(), limits::TABLES);
        problems.push(format!("it declares {n} derived values; at most {most}"));
    }
    for (name, derived) in &manifest.derived {
        check_name("derived value", name, problems);
        check_derived(manifest, name, derived, problems);
    }
    for (name, function) in &manifest.functions {
        if name == "default" {
            problems.push("a function needs a name: export it as `export const name = …`".into());
        } else if !is_name(name) {
            let name = cut(name);
            problems.push(format!("'{name}' is not a name for a function"));
        }
        check_function(manifest, name, function, problems);
    }
}

fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
        && name.len() <= NAME_CHARS
        && !name.starts_with("__")
}

/// A name as a message shows it: none is so long, but what stands in its place may be.
fn cut(name: &str) -> String {
    match name.char_indices().nth(NAME_CHARS) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// `what` with its article.
fn check_name(what: &str, name: &str, problems: &mut Vec<String>) {
    if !is_name(name) {
        problems.push(format!(
            "'{}' is not a name for {what}: letters, digits and _, a letter first, at most {NAME_CHARS}",
            cut(name)
        ));
    } else if TAKEN.contains(&name) {
        problems.push(format!(
            "{what} cannot be called '{name}': db has that name already"
        ));
    }
}

fn check_table(manifest: &Manifest, name: &str, table: &Table, problems: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for (field, ty) in &table.fields {
        let at = format!("{}.{}", cut(name), cut(field));
        if !is_name(field) {
            problems.push(format!("'{at}' is not a name for a field"));
        }
        if field == "id" {
            problems.push(format!("'{at}': every row has an id already"));
        }
        if !seen.insert(field) {
            problems.push(format!("field '{at}' is declared twice"));
        }
        check_type(manifest, &at, ty, 0, problems);
    }
    if table.indexes.len() > limits::INDEXES {
        let (n, most) = (table.indexes.len(), limits::INDEXES);
        problems.push(format!("table '{name}' has {n} indexes; at most {most}"));
    }
    for (index, declared) in &table.indexes {
        check_name("an index", index, problems);
        check_index(name, index, declared, table, problems);
    }
}

fn check_index(
    name: &str,
    index: &str,
    declared: &Index,
    table: &Table,
    problems: &mut Vec<String>,
) {
    let at = format!("index {name}.{index}");
    if declared.on.is_empty() || declared.on.len() > limits::INDEX_FIELDS {
        problems.push(format!(
            "{at} must name 1 to {} fields",
            limits::INDEX_FIELDS
        ));
    }
    let mut seen = BTreeSet::new();
    for field in &declared.on {
        if !seen.insert(field) {
            problems.push(format!("{at} names '{field}' twice"));
        }
        match table.fields.iter().find(|(f, _)| f == field) {
            None if field == "id" => {
                problems.push(format!(
                    "{at}: the id is the last field of every index already"
                ));
            }
            None => problems.push(format!("{at}: table {name} has no field '{field}'")),
            Some((_, ty)) if !indexable(ty) => problems.push(format!(
                "{at}: '{field}' is a list, a record or any JSON, which have no order"
            )),
            Some(_) => {}
        }
    }
}

/// Whether values of a type have a place in an index.
fn indexable(ty: &FieldType) -> bool {
    match ty {
        FieldType::Optional { inner } => indexable(inner),
        FieldType::Json | FieldType::List { .. } | FieldType::Record { .. } => false,
        _ => true,
    }
}

fn check_derived(manifest: &Manifest, name: &str, derived: &Derived, problems: &mut Vec<String>) {
    let at = format!("derived value '{name}'");
    if derived.key.is_empty() || derived.key.len() > limits::KEY_FIELDS {
        let most = limits::KEY_FIELDS;
        problems.push(format!("{at} must have a key of 1 to {most} fields"));
    }
    for (field, ty) in &derived.key {
        if field == "value" || !is_name(field) {
            problems.push(format!(
                "{at}: '{field}' is not a name for a field of its key"
            ));
        }
        if matches!(ty, FieldType::Optional { .. }) || !indexable(ty) {
            problems.push(format!(
                "{at}: field '{field}' of its key must be an id, a text, a number, a time, true or false, or one of some texts"
            ));
        }
        check_type(manifest, &format!("{name}({field})"), ty, 0, problems);
    }
    check_type(
        manifest,
        &format!("the value of {name}"),
        &derived.value,
        0,
        problems,
    );
    if let Materialize::Each(table) = &derived.materialize
        && derived.home() != Some(table)
    {
        problems.push(format!(
            "{at} is stored for each row of {table}: its key must be one field, t.id(\"{table}\")"
        ));
    }
    if let Some(index) = &derived.index {
        check_name("index", index, problems);
        if derived.materialize == Materialize::Demand {
            problems.push(format!(
                "{at} has an index: materialize must be \"always\" or {{ each: table }}"
            ));
        }
        if !indexable(&derived.value) {
            problems.push(format!(
                "{at} has an index: its value is a list, a record or any JSON, which have no order"
            ));
        }
    }
}

fn check_function(
    manifest: &Manifest,
    name: &str,
    function: &Function,
    problems: &mut Vec<String>,
) {
    if let Some(args) = &function.args {
        if !matches!(args, FieldType::Record { .. }) {
            problems.push(format!("the args of '{name}' must be an object of types"));
        }
        check_type(manifest, &format!("args of {name}"), args, 0, problems);
    }
    if let Some(returns) = &function.returns {
        check_type(
            manifest,
            &format!("returns of {name}"),
            returns,
            0,
            problems,
        );
    }
    for (fault, status) in &function.errors {
        if !(400..600).contains(status) {
            problems.push(format!(
                "fault '{fault}' of '{name}' has status {status}; it must be 400 to 599"
            ));
        }
        let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if fault.is_empty() || fault.len() > NAME_CHARS || !fault.chars().all(fine) {
            problems.push(format!(
                "fault '{fault}' of '{name}': lower-case letters, digits and '-', at most {NAME_CHARS}"
            ));
        }
    }
}

fn check_type(
    manifest: &Manifest,
    at: &str,
    ty: &FieldType,
    depth: usize,
    problems: &mut Vec<String>,
) {
    if depth > DEPTH {
        problems.push(format!("{at}: types nest at most {DEPTH} deep"));
        return;
    }
    let below = depth + 1;
    match ty {
        FieldType::Id { table } if !manifest.tables.contains_key(table) => {
            problems.push(format!(
                "{at}: t.id(\"{table}\") names a table that is not declared"
            ));
        }
        FieldType::Int {
            min: Some(min),
            max: Some(max),
        } if min > max => {
            problems.push(format!("{at}: t.int({min}, {max}) allows no number"));
        }
        FieldType::OneOf { values } if values.is_empty() => {
            problems.push(format!("{at}: t.oneOf() needs at least one text"));
        }
        FieldType::Optional { inner } => check_type(manifest, at, inner, below, problems),
        FieldType::List { item, .. } => {
            check_type(manifest, &format!("{at}[]"), item, below, problems);
        }
        FieldType::Record { fields } => {
            for (field, ty) in fields {
                check_type(manifest, &format!("{at}.{field}"), ty, below, problems);
            }
        }
        _ => {}
    }
}
