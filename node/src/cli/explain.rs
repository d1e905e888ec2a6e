//! `flower explain`: where a derived value comes from, and what a query reads and uses.

use clap::{Args, Subcommand};
use flower_api::{
    explain::{AskCell, AskQuery, Budget, CellExplained, CellName, QueryExplained, Read},
    wire::ReadClass,
};
use serde_json::{Map, Value};

use super::{AdminTarget, Failure, Output, call::check_json, print, progress::showing};

#[derive(Debug, Subcommand)]
pub(super) enum Explain {
    /// A derived value for one key: its value or error, what it read, who reads it.
    Cell(CellArgs),
    /// A query: what it reads and how much of its budgets it uses. It is evaluated for this.
    Query(QueryArgs),
}

#[derive(Debug, Args)]
pub(super) struct CellArgs {
    /// Name of the derived value.
    name: String,
    /// Its key, JSON; of a key with one field the value is enough.
    key: String,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Args)]
pub(super) struct QueryArgs {
    /// Name of the query.
    name: String,
    /// Its arguments, JSON.
    #[arg(default_value = "{}")]
    args: String,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Args)]
struct How {
    /// How fresh the answer must be: fresh, local, 'bounded; ms=AGE' or 'session; min=REVISION'.
    #[arg(long, value_name = "CLASS", default_value = "fresh")]
    read: ReadClass,
    #[command(flatten)]
    at: AdminTarget,
}

pub(super) async fn explain(what: Explain, output: Output) -> Result<(), Failure> {
    match what {
        Explain::Cell(args) => {
            let (client, at) = args.how.at.client()?;
            let ask = AskCell {
                name: args.name,
                // What is no JSON is a text: ids need no quotes within quotes.
                key: serde_json::from_str(&args.key).unwrap_or_else(|_| args.key.into()),
                read: Some(args.how.read.to_string()),
            };
            let found = showing("asking the node", client.explain_cell(&at, &ask)).await?;
            show(&found, cell_text, output)
        }
        Explain::Query(args) => {
            check_json(&args.args)?;
            let (client, at) = args.how.at.client()?;
            let ask = AskQuery {
                name: args.name,
                args: serde_json::from_str(&args.args).unwrap_or_default(),
                read: Some(args.how.read.to_string()),
            };
            let found = showing("asking the node", client.explain_query(&at, &ask)).await?;
            show(&found, query_text, output)
        }
    }
}

fn show<T: serde::Serialize>(
    found: &T,
    text: fn(&T) -> String,
    output: Output,
) -> Result<(), Failure> {
    match output {
        Output::Json => print::json(found),
        Output::Text => {
            print::line(text(found));
            Ok(())
        }
    }
}

fn shown(cell: &CellName) -> String {
    format!("{}({})", cell.derived, Value::from(cell.key.clone()))
}

fn read_text(read: &Read) -> String {
    match read {
        Read::Row { table, id } => format!("row {id} of {table}"),
        Read::Rows { table } => format!("rows of {table}, without an index"),
        Read::Cell(cell) => format!("derived value {}", shown(cell)),
        Read::Entries {
            table,
            index,
            equal,
            from,
            to,
        } => format!("entries of {table}.{index}{}", bounds(equal, from, to)),
    }
}

fn bounds(equal: &Map<String, Value>, from: &[Value], to: &[Value]) -> String {
    let list = |values: &[Value]| {
        let values: Vec<String> = values.iter().map(Value::to_string).collect();
        values.join(", ")
    };
    let mut parts: Vec<String> = equal
        .iter()
        .map(|(field, value)| format!("{field} = {value}"))
        .collect();
    if !from.is_empty() {
        parts.push(format!("from {}", list(from)));
    }
    if !to.is_empty() {
        parts.push(format!("to {}", list(to)));
    }
    match parts.is_empty() {
        true => ", all".into(),
        false => format!(", {}", parts.join(", ")),
    }
}

/// A heading and indented lines.
fn section(heading: &str, lines: impl IntoIterator<Item = String>) -> String {
    let lines: Vec<String> = lines
        .into_iter()
        .map(|line| format!("\n  {line}"))
        .collect();
    match lines.is_empty() {
        true => format!("\n{heading}: nothing"),
        false => format!("\n{heading}:{}", lines.concat()),
    }
}

fn cell_text(found: &CellExplained) -> String {
    let mut text = format!("{} at revision {}", shown(&found.cell), found.revision);
    let Some(content) = &found.content else {
        return format!("{text}\nnot stored: {}", found.why);
    };
    text += &match (&content.value, &content.error) {
        (_, Some(error)) => format!("\nerror: {error}"),
        (value, None) => format!("\nvalue: {}", value.clone().unwrap_or_default()),
    };
    text += &format!(
        "\nstored: {}; height {}; changed by revision {}",
        found.why, content.height, content.changed
    );
    text += &section("reads", content.reads.iter().map(read_text));
    let more = content.more_readers.then(|| "… and more".to_owned());
    let readers = content.readers.iter().map(shown).chain(more);
    text + &section("read by", readers)
}

fn query_text(found: &QueryExplained) -> String {
    let mut text = match (&found.problem, found.result_bytes) {
        (Some(problem), _) => format!("refused: {problem}\n"),
        (None, bytes) => format!("a result of {} bytes, ", bytes.unwrap_or(0)),
    };
    text += &format!("at revision {} in {} µs", found.revision, found.micros);
    if found.volatile {
        text += "\nit reads the time or random numbers: its result is never kept";
    }
    if !found.budgets.is_empty() {
        let row = |budget: &Budget| {
            let Budget {
                what,
                used,
                limit,
                setting,
            } = budget.clone();
            vec![what, used.to_string(), limit.to_string(), setting]
        };
        let rows = found.budgets.iter().map(row).collect();
        let table = print::table(&["BUDGET", "USED", "LIMIT", "SETTING"], rows, 1);
        text += &format!("\n\n{}\n", table.trim_fmt());
    }
    let more = (found.more_reads > 0).then(|| format!("… and {} more", found.more_reads));
    text + &section("reads", found.reads.iter().map(read_text).chain(more))
}
