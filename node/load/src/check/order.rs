//! The order of one thing's calls by what it counts itself (a register's version, a place in a
//! list) against the clock: whoever begins after another has ended comes behind it.

use crate::history::{Op, Outcome};

/// A call with a place in the order.
pub struct Placed<'a> {
    /// The call.
    pub op: &'a Op,
    /// Its place; for a read the place of what it saw last.
    pub at: u64,
    /// It has the place for itself.
    pub writes: bool,
}

/// The first pair that is the wrong way round. A write of unknown outcome may have happened
/// long after its client gave up: nothing must come behind it.
pub fn ordered(what: &str, mut placed: Vec<Placed<'_>>) -> Option<String> {
    placed.sort_by_key(|one| one.op.begun);
    let known = |one: &&Placed<'_>| one.op.ended.is_some() && one.op.outcome != Outcome::Unknown;
    let mut ends: Vec<&Placed<'_>> = placed.iter().filter(known).collect();
    ends.sort_by_key(|one| one.op.ended);
    let mut next = 0;
    let mut newest: Option<&Placed<'_>> = None;
    for one in &placed {
        while let Some(ended) = ends.get(next)
            && ended.op.ended < Some(one.op.begun)
        {
            if newest.is_none_or(|newest| ended.at > newest.at) {
                newest = Some(ended);
            }
            next += 1;
        }
        let Some(before) = newest else { continue };
        let stale = if one.writes {
            one.at <= before.at
        } else {
            one.at < before.at
        };
        if stale {
            let of = |one: &Placed<'_>| {
                let op = one.op;
                let (client, at, begun, ended) = (op.client, &op.at, op.begun, op.ended);
                format!(
                    "{} by client {client} at {at} ({begun} to {ended:?})",
                    one.at
                )
            };
            return Some(format!(
                "{what}: not linearizable: {} after {}",
                of(one),
                of(before)
            ));
        }
    }
    None
}
