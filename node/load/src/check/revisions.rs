//! Revisions are the one order of everything: a read of any class, and every step of a watch,
//! shows of each register and list exactly the writes up to the revision that it names. With
//! that the transactions have one order that all of them agree with, so none of them form a
//! cycle.

use std::collections::BTreeMap;

use crate::history::{Call, Op, Outcome};

/// Acknowledged writes of one register or list: place by revision.
type Writes = BTreeMap<u64, u64>;

/// The first violation.
pub fn judge(ops: &[Op]) -> Option<String> {
    let mut writes: BTreeMap<&str, Writes> = BTreeMap::new();
    let mut owners: BTreeMap<u64, u64> = BTreeMap::new();
    for op in ops {
        let (Some(serial), Outcome::Written { version, revision }) =
            (op.call.serial(), &op.outcome)
        else {
            continue;
        };
        // Accounts are opened without a word on their revisions.
        if *revision > 0
            && let Some(other) = owners.insert(*revision, serial)
        {
            return Some(format!("revision {revision} is of {other} and of {serial}"));
        }
        if let Some(name) = name(&op.call) {
            writes.entry(name).or_default().insert(*revision, *version);
        }
    }
    let backwards = writes.iter().find_map(|(name, writes)| {
        let places: Vec<_> = writes.iter().collect();
        let pair = places.windows(2).find(|pair| pair[0].1 >= pair[1].1)?;
        Some(format!(
            "{name}: revision and place go different ways: {pair:?}"
        ))
    });
    backwards.or_else(|| ops.iter().find_map(|op| read(op, &writes)))
}

fn name(call: &Call) -> Option<&str> {
    match call {
        Call::Put { key, .. } => Some(key),
        Call::Append { list, .. } => Some(list),
        _ => None,
    }
}

fn read(op: &Op, writes: &BTreeMap<&str, Writes>) -> Option<String> {
    let shows = |name: &str, revision: u64, place: u64| {
        let writes = writes.get(name)?;
        let (at, last) = writes.range(..=revision).next_back().unwrap_or((&0, &0));
        let next = writes.range(revision + 1..).next();
        let late = next.filter(|(_, next)| **next <= place);
        let missed = (*last > place).then_some((at, last));
        let (at, wrong) = missed.or(late)?;
        Some(format!(
            "{name}: {place} was told at revision {revision} at {}, and {wrong} was written at {at}",
            op.at
        ))
    };
    match (&op.call, &op.outcome) {
        (Call::Get { key, .. }, Outcome::Read { found, revision }) => {
            shows(key, *revision, found.1)
        }
        (_, Outcome::Snapshot(told)) => told
            .registers
            .iter()
            .find_map(|(key, _, version)| shows(key, told.revision, *version)),
        (_, Outcome::Lists(told)) => told
            .lists
            .iter()
            .find_map(|list| shows(&list.name, told.revision, list.items.len() as u64)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Class;

    #[test]
    fn a_read_shows_its_revision_and_nothing_else() {
        let put = |version, revision| Op {
            client: 1,
            at: String::new(),
            call: Call::Put {
                key: "k".into(),
                serial: version,
            },
            begun: 1,
            ended: Some(2),
            outcome: Outcome::Written { version, revision },
            tries: 1,
            replays: 0,
        };
        let get = |version, revision| Op {
            call: Call::Get {
                key: "k".into(),
                class: Class::Watch,
            },
            outcome: Outcome::Read {
                found: (version, version),
                revision,
            },
            ..put(0, 0)
        };
        for (what, told, good) in [
            ("before all", get(0, 4), true),
            ("at the first", get(1, 5), true),
            ("between", get(1, 7), true),
            ("one of unknown outcome between", get(2, 8), true),
            ("too old", get(0, 5), false),
            ("too old, later", get(2, 9), false),
            ("too new", get(3, 8), false),
        ] {
            let ops = [put(1, 5), put(3, 9), told];
            assert_eq!(judge(&ops).is_none(), good, "{what}: {:?}", judge(&ops));
        }
        assert!(judge(&[put(1, 5), put(2, 5)]).is_some(), "one revision");
        assert!(judge(&[put(2, 5), put(1, 6)]).is_some(), "two orders");
    }
}
