//! What a new bundle means for those who use the one that runs: for the data, and for clients.
//! For people who look before they deploy; what a deployment may do is decided in `plan`.

use flower_api::manifest::{Derived, FieldType, Function, Manifest, Materialize};
use serde::Serialize;

use super::diff::{Change, diff, widens};

/// What a difference asks of whoever deploys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Impact {
    /// Nothing.
    Safe,
    /// Something is built over the rows that exist.
    NeedsBuild,
    /// Calls that are fine today may be refused, or answer something else.
    BreaksClients,
    /// Rows that exist would not fit or would be lost: refused while there are any.
    LosesData,
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// What it asks for.
    pub impact: Impact,
    /// What differs, for people.
    pub what: String,
}

/// All differences between what runs and what would, which is another bundle.
pub fn compare(before: &Manifest, after: &Manifest) -> Vec<Difference> {
    let mut out: Vec<Difference> = diff(before, after)
        .into_iter()
        .filter_map(of_data)
        .collect();
    for (name, function) in &after.functions {
        match before.functions.get(name) {
            None => push(&mut out, Impact::Safe, format!("adds function {name}")),
            Some(old) => of_function(name, old, function, &mut out),
        }
    }
    for name in before.functions.keys() {
        if !after.functions.contains_key(name) {
            push(
                &mut out,
                Impact::BreaksClients,
                format!("removes function {name}"),
            );
        }
    }
    derived(before, after, &mut out);
    out.sort_by_key(|difference| std::cmp::Reverse(difference.impact));
    out
}

/// Whatever a bundle changes, its derived values are computed anew.
fn derived(before: &Manifest, after: &Manifest, out: &mut Vec<Difference>) {
    let kept = |derived: &Derived| derived.materialize != Materialize::Demand;
    for (name, declared) in &after.derived {
        let what = match before.derived.get(name) {
            None => format!("adds derived value {name}"),
            Some(old) if old != declared => {
                format!("changes the declaration of derived value {name}")
            }
            Some(_) => format!("derived value {name} is computed anew"),
        };
        let impact = match kept(declared) {
            true => Impact::NeedsBuild,
            false => Impact::Safe,
        };
        push(out, impact, what);
    }
    for name in before
        .derived
        .keys()
        .filter(|name| !after.derived.contains_key(*name))
    {
        push(out, Impact::Safe, format!("removes derived value {name}"));
    }
}

fn push(out: &mut Vec<Difference>, impact: Impact, what: String) {
    out.push(Difference { impact, what });
}

fn of_data(change: Change) -> Option<Difference> {
    let (impact, what) = match change {
        Change::Code(_) => return None,
        Change::AddTable(table) => (Impact::Safe, format!("adds table {table}")),
        Change::Fits { table, what } => (Impact::Safe, format!("table {table}: {what}")),
        Change::DropIndex { table, index } => {
            (Impact::Safe, format!("drops index {table}.{index}"))
        }
        Change::AddIndex { table, index, on } => (
            Impact::NeedsBuild,
            format!("adds index {table}.{index} on {}", on.join(", ")),
        ),
        Change::Breaks { table, what } => (Impact::LosesData, format!("table {table}: {what}")),
        Change::DropTable(table) => (Impact::LosesData, format!("drops table {table}")),
    };
    Some(Difference { impact, what })
}

/// Whether every value of `from` is one of `to`; without a type it is any value.
fn fits(from: Option<&FieldType>, to: Option<&FieldType>) -> bool {
    match (from, to) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(from), Some(to)) => widens(from, to),
    }
}

fn of_function(name: &str, old: &Function, new: &Function, out: &mut Vec<Difference>) {
    if old == new {
        return;
    }
    let mut breaks = Vec::new();
    if old.kind != new.kind {
        breaks.push("becomes another kind of function".to_owned());
    }
    if !fits(old.args.as_ref(), new.args.as_ref()) {
        breaks.push("takes fewer arguments than before".to_owned());
    }
    if !fits(new.returns.as_ref(), old.returns.as_ref()) {
        breaks.push("may answer more than before".to_owned());
    }
    for (fault, status) in &new.errors {
        match old.errors.get(fault) {
            None => breaks.push(format!("may end with the new fault '{fault}'")),
            Some(before) if before != status => {
                breaks.push(format!("the status of fault '{fault}' changes"));
            }
            Some(_) => {}
        }
    }
    if breaks.is_empty() {
        push(
            out,
            Impact::Safe,
            format!("function {name}: its declaration changes, and every call still fits"),
        );
    }
    for why in breaks {
        push(
            out,
            Impact::BreaksClients,
            format!("function {name}: {why}"),
        );
    }
}

/// A place in the source that walks a whole table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WholeTable {
    /// Line of the source, from 1.
    pub line: usize,
    /// The table.
    pub table: String,
    /// As it is written.
    pub text: String,
}

/// Places that read a table without an index, as the text shows them: `….TABLE.all()`,
/// `.count()` and `.range()`. A name that is built at run time is not seen.
pub fn whole_tables(source: &str, manifest: &Manifest) -> Vec<WholeTable> {
    let mut out = Vec::new();
    for (number, line) in source.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        for table in manifest.tables.keys() {
            for method in ["all()", "count()", "range()"] {
                let text = format!(".{table}.{method}");
                if code.contains(&text) {
                    out.push(WholeTable {
                        line: number + 1,
                        table: table.clone(),
                        text: text[1..].to_owned(),
                    });
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::js;

    fn manifest(source: &str) -> Manifest {
        let source = format!(
            "import {{ derived, mutation, query, t, table }} from '@flower/sdk';\n{source}"
        );
        js::inspect(&source, &js::Limits::default(), &js::Deadline::never()).unwrap()
    }

    const BEFORE: &str = "
        table('a', { n: t.int(0, 9), s: t.text(5) }, { indexes: { byN: ['n'] } });
        table('old', { n: t.int() });
        export const q = query({ args: { n: t.int(0, 9) }, returns: t.int(0, 9) }, (db, a) => a.n);
        export const gone = query({ args: {} }, () => 1);
        export const m = mutation({ args: {}, errors: { full: 409 } }, () => 1);";

    #[test]
    fn differences_say_what_they_ask_for() {
        let after = "
            table('a', { n: t.int(0, 9), s: t.text(9), x: t.text().optional() }, { indexes: { byS: ['s'] } });
            table('fresh', { n: t.int() });
            export const q = query({ args: { n: t.int(0, 5) }, returns: t.int(0, 20) }, (db, a) => a.n);
            export const more = query({ args: {} }, () => 1);
            export const m = mutation({ args: { x: t.int().optional() }, errors: { full: 400, odd: 409 } }, () => 1);";
        let got: Vec<(Impact, String)> = compare(&manifest(BEFORE), &manifest(after))
            .into_iter()
            .map(|d| (d.impact, d.what))
            .collect();
        let of = |impact: Impact| -> Vec<&str> {
            let mut all: Vec<&str> = got
                .iter()
                .filter(|(i, _)| *i == impact)
                .map(|(_, w)| &w[..])
                .collect();
            all.sort_unstable();
            all
        };
        assert_eq!(of(Impact::LosesData), ["drops table old"]);
        assert_eq!(of(Impact::NeedsBuild), ["adds index a.byS on s"]);
        assert_eq!(
            of(Impact::BreaksClients),
            [
                "function m: may end with the new fault 'odd'",
                "function m: the status of fault 'full' changes",
                "function q: may answer more than before",
                "function q: takes fewer arguments than before",
                "removes function gone",
            ]
        );
        assert_eq!(
            of(Impact::Safe),
            [
                "adds function more",
                "adds table fresh",
                "drops index a.byN",
                "table a: adds the optional field 'x'",
                "table a: widens 's'",
            ]
        );
        assert_eq!(got[0].0, Impact::LosesData, "the worst comes first");
        let before = manifest(BEFORE);
        assert_eq!(compare(&before, &before), []);
        let values = manifest(&format!(
            "{BEFORE}
            derived('d', {{ s: t.text() }}, t.int(), () => 1, {{ materialize: 'always' }});"
        ));
        let told = |before: &Manifest| {
            let all = compare(before, &values).into_iter();
            all.map(|d| (d.impact, d.what)).collect::<Vec<_>>()
        };
        let built = |what: &str| [(Impact::NeedsBuild, what.to_owned())];
        assert_eq!(told(&before), built("adds derived value d"));
        assert_eq!(told(&values), built("derived value d is computed anew"));
    }

    #[test]
    fn scans_of_whole_tables_are_found_where_the_text_shows_them() {
        let source = "
            // db.a.all() in a comment
            const rows = db.a.all();
            const some = db.a.range({ id: { gt: 'x' } }).all();
            const n = tx.old.count() + db.a.byN.range().count();";
        let found: Vec<(usize, String)> = whole_tables(source, &manifest(BEFORE))
            .into_iter()
            .map(|w| (w.line, w.text))
            .collect();
        assert_eq!(
            found,
            [(3, "a.all()".to_owned()), (5, "old.count()".to_owned())]
        );
    }
}
