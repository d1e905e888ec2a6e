//! Linearizability of each register under writes and `fresh` reads. The versions that the
//! register itself counts order all its writes, so no search is needed: the history is
//! linearizable when versions and serials fit each other and no call that began after another
//! had ended is ordered before it.
//!
//! (Enough, because the versions give one order of the writes, a read belongs behind the write
//! whose version it tells, and what remains is that this order agrees with the clock in
//! pairs.)

use std::collections::BTreeMap;

use super::order::{Placed, ordered};
use crate::history::{Call, Class, Op, Outcome};

/// The first violation.
pub fn judge(ops: &[Op]) -> Option<String> {
    let mut keys: BTreeMap<&str, Vec<Placed<'_>>> = BTreeMap::new();
    let mut serials: BTreeMap<u64, &Op> = BTreeMap::new();
    let mut versions: BTreeMap<(&str, u64), u64> = BTreeMap::new();
    for op in ops {
        if let Call::Put { key, serial } = &op.call {
            serials.insert(*serial, op);
            if let Outcome::Written { version, .. } = &op.outcome {
                if let Some(other) = versions.insert((key, *version), *serial) {
                    return Some(format!(
                        "{key}: serials {other} and {serial} both made version {version}"
                    ));
                }
                keys.entry(key).or_default().push(Placed {
                    op,
                    at: *version,
                    writes: true,
                });
            }
        }
    }
    for op in ops {
        for (key, serial, version) in reads(op) {
            if let Some(why) = fits(op, key, serial, version, &serials, &mut versions) {
                return Some(why);
            }
            if fresh(op) {
                keys.entry(key).or_default().push(Placed {
                    op,
                    at: version,
                    writes: false,
                });
            }
        }
    }
    // A write of unknown outcome whose version somebody has seen has its place too.
    for ((key, version), serial) in &versions {
        if let Some(op) = serials.get(serial)
            && !matches!(op.outcome, Outcome::Written { .. })
        {
            keys.entry(key).or_default().push(Placed {
                op,
                at: *version,
                writes: true,
            });
        }
    }
    keys.into_iter()
        .find_map(|(key, placed)| ordered(key, placed))
}

fn fresh(op: &Op) -> bool {
    op.call.class() == Some(Class::Fresh)
}

/// What a read of any class told of registers.
fn reads(op: &Op) -> Vec<(&str, u64, u64)> {
    match (&op.call, &op.outcome) {
        (Call::Get { key, .. }, Outcome::Read { found, .. }) => vec![(key, found.0, found.1)],
        (Call::Snapshot { .. }, Outcome::Snapshot(told)) => told
            .registers
            .iter()
            .map(|(key, serial, version)| (key.as_str(), *serial, *version))
            .collect(),
        _ => Vec::new(),
    }
}

/// A serial that was read was being written there and then, and has one version for ever.
fn fits<'a>(
    op: &Op,
    key: &'a str,
    serial: u64,
    version: u64,
    serials: &BTreeMap<u64, &'a Op>,
    versions: &mut BTreeMap<(&'a str, u64), u64>,
) -> Option<String> {
    if (serial, version) == (0, 0) {
        return None;
    }
    let Some(write) = serials.get(&serial) else {
        return Some(format!("{key}: serial {serial} was read and never written"));
    };
    if !matches!(&write.call, Call::Put { key: of, .. } if of == key) {
        return Some(format!(
            "{key}: serial {serial} of another register was read"
        ));
    }
    if op.ended.is_some_and(|ended| ended < write.begun) {
        return Some(format!(
            "{key}: serial {serial} was read before it was written"
        ));
    }
    match versions.insert((key, version), serial) {
        Some(other) if other != serial => Some(format!(
            "{key}: version {version} is serial {other} and serial {serial}"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Class::{Fresh, Local};

    fn put(serial: u64, version: u64, begun: u64, ended: u64) -> Op {
        Op {
            client: 1,
            at: String::new(),
            call: Call::Put {
                key: "k".into(),
                serial,
            },
            begun,
            ended: Some(ended),
            outcome: Outcome::Written {
                version,
                revision: version,
            },
            tries: 1,
            replays: 0,
        }
    }

    fn get(found: (u64, u64), class: Class, begun: u64, ended: u64) -> Op {
        Op {
            call: Call::Get {
                key: "k".into(),
                class,
            },
            outcome: Outcome::Read { found, revision: 1 },
            ..put(0, 0, begun, ended)
        }
    }

    fn unknown() -> Op {
        Op {
            outcome: Outcome::Unknown,
            ended: None,
            ..put(7, 0, 3, 0)
        }
    }

    #[test]
    fn what_may_be_is_let_be() {
        for (what, ops) in [
            (
                "in turn",
                vec![
                    put(1, 1, 1, 2),
                    get((1, 1), Fresh, 3, 4),
                    put(2, 2, 5, 6),
                    get((2, 2), Fresh, 7, 8),
                ],
            ),
            (
                "together",
                vec![
                    put(1, 1, 1, 9),
                    get((0, 0), Fresh, 2, 3),
                    get((1, 1), Fresh, 4, 5),
                ],
            ),
            (
                "unknown and there",
                vec![unknown(), get((7, 1), Fresh, 10, 11)],
            ),
            (
                "stale is local's right",
                vec![put(1, 1, 1, 2), get((0, 0), Local, 3, 4)],
            ),
        ] {
            assert_eq!(judge(&ops), None, "{what}");
        }
    }

    #[test]
    fn each_way_of_going_wrong_is_seen() {
        for (what, ops) in [
            ("stale", vec![put(1, 1, 1, 2), get((0, 0), Fresh, 3, 4)]),
            (
                "back in time",
                vec![
                    unknown(),
                    get((7, 1), Fresh, 4, 5),
                    get((0, 0), Fresh, 6, 7),
                ],
            ),
            (
                "unknown and before what was there",
                vec![
                    put(1, 2, 1, 2),
                    Op {
                        begun: 5,
                        ended: Some(6),
                        ..unknown()
                    },
                    get((7, 1), Local, 8, 9),
                ],
            ),
            ("phantom", vec![get((9, 1), Local, 1, 2)]),
            (
                "before it was written",
                vec![get((1, 1), Local, 1, 2), put(1, 1, 3, 4)],
            ),
            ("two of one version", vec![put(1, 1, 1, 2), put(2, 1, 3, 4)]),
            (
                "forked",
                vec![put(1, 1, 1, 2), put(2, 2, 3, 4), get((1, 2), Local, 5, 6)],
            ),
            ("overtaken write", vec![put(1, 2, 1, 2), put(2, 1, 3, 4)]),
        ] {
            assert!(judge(&ops).is_some(), "{what}");
        }
    }
}
