//! What must hold of a history, one property a file. A checker takes what clients were told and
//! gives the first violation in words; it decides nothing else.

pub mod lists;
pub mod once;
mod order;
pub mod registers;
pub mod revisions;
pub mod session;
pub mod snapshots;

use std::collections::BTreeSet;

use crate::history::Op;

/// What judges a history at its end.
pub struct Ending<'a> {
    /// All calls.
    pub ops: &'a [Op],
    /// Serials of all traces in the state at the end, in order.
    pub traces: &'a [u64],
    /// What an account begins with.
    pub each: i64,
}

/// The first violation that the history shows.
pub fn judge(ending: &Ending<'_>) -> Option<String> {
    once::judge(ending.ops, ending.traces)
        .or_else(|| registers::judge(ending.ops))
        .or_else(|| lists::judge(ending.ops))
        .or_else(|| revisions::judge(ending.ops))
        .or_else(|| session::judge(ending.ops))
        .or_else(|| snapshots::judge(ending.ops, ending.each))
}

/// For messages: a few of many.
fn few(serials: &BTreeSet<u64>) -> String {
    let shown: Vec<String> = serials.iter().take(8).map(ToString::to_string).collect();
    let more = serials.len().saturating_sub(shown.len());
    match more {
        0 => shown.join(", "),
        _ => format!("{} and {more} more", shown.join(", ")),
    }
}
