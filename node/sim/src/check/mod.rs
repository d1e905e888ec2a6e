//! What must hold, one property a file. A checker takes what was seen and gives the first
//! violation in words; it decides nothing else. `Observer` looks at the nodes as the world goes
//! on, the others judge the history at its end.

pub mod derived;
pub mod leaders;
pub mod lists;
pub mod members;
pub mod observer;
pub mod once;
pub mod order;
pub mod registers;
pub mod revisions;
pub mod session;
pub mod snapshots;
pub mod states;

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
