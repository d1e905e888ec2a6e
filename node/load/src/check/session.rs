//! `session` reads: a client sees its own writes, and never anything older than it has seen.

use std::collections::BTreeMap;

use crate::history::{Call, Class, Op, Outcome};

/// The first violation. Each client makes one call after the other, so the order of the
/// history is the client's.
pub fn judge(ops: &[Op]) -> Option<String> {
    let mut seen: BTreeMap<(u32, &str), u64> = BTreeMap::new();
    for op in ops {
        match (&op.call, &op.outcome) {
            (Call::Put { key, .. }, Outcome::Written { version, .. }) => {
                raise(&mut seen, op.client, key, *version);
            }
            (Call::Get { key, class }, Outcome::Read { found, revision }) => {
                if let Class::Session(min) = class {
                    let newest = seen.get(&(op.client, key.as_str())).copied().unwrap_or(0);
                    if found.1 < newest || revision < min {
                        return Some(format!(
                            "client {} has seen version {newest} of {key} and revision {min}, and \
                             was told version {} of revision {revision} at {} by a session read",
                            op.client, found.1, op.at
                        ));
                    }
                }
                // Whatever the class, what was told is what a session may not go behind: its
                // revision went into the client's minimum.
                raise(&mut seen, op.client, key, found.1);
            }
            _ => {}
        }
    }
    None
}

fn raise<'a>(seen: &mut BTreeMap<(u32, &'a str), u64>, client: u32, key: &'a str, version: u64) {
    let newest = seen.entry((client, key)).or_default();
    *newest = version.max(*newest);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(call: Call, outcome: Outcome) -> Op {
        Op {
            client: 1,
            at: String::new(),
            call,
            begun: 1,
            ended: Some(2),
            outcome,
            tries: 1,
            replays: 0,
        }
    }

    #[test]
    fn going_back_is_seen() {
        let key = || "k".to_owned();
        let wrote = op(
            Call::Put {
                key: key(),
                serial: 1,
            },
            Outcome::Written {
                version: 3,
                revision: 9,
            },
        );
        let read = |class, version, revision| {
            let found = (1, version);
            op(
                Call::Get { key: key(), class },
                Outcome::Read { found, revision },
            )
        };
        let session = Class::Session(9);
        for (ops, good) in [
            (vec![wrote.clone(), read(session, 3, 9)], true),
            (vec![wrote.clone(), read(session, 2, 9)], false),
            (vec![wrote.clone(), read(session, 3, 8)], false),
            (vec![wrote.clone(), read(Class::Local, 2, 8)], true),
            (
                vec![wrote, read(Class::Fresh, 5, 12), read(session, 4, 12)],
                false,
            ),
        ] {
            assert_eq!(judge(&ops).is_none(), good, "{ops:?}");
        }
    }
}
