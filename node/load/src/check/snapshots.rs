//! One snapshot: whatever node and class, a read of everything shows one state. Transfers keep
//! the sum of all accounts, and a revision has one content for ever, everywhere.

use std::collections::BTreeMap;

use crate::history::{Op, Outcome, Snapshot};

/// The first violation; `each` is what an account begins with.
pub fn judge(ops: &[Op], each: i64) -> Option<String> {
    let mut known: BTreeMap<u64, (&Snapshot, &str)> = BTreeMap::new();
    for op in ops {
        let Outcome::Snapshot(told) = &op.outcome else {
            continue;
        };
        let sum: i64 = told.accounts.iter().map(|(_, balance)| balance).sum();
        let money = each * told.accounts.len() as i64;
        if sum != money {
            return Some(format!(
                "the accounts hold {sum} instead of {money} at revision {} at {}",
                told.revision, op.at
            ));
        }
        let (other, at) = known.entry(told.revision).or_insert((told, &op.at));
        if *other != &**told {
            return Some(format!(
                "revision {} is not the same at {at} and at {}: {other:?} and {told:?}",
                told.revision, op.at
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Call, Class};

    #[test]
    fn torn_and_forked_snapshots_are_seen() {
        let snapshot = |revision, balances: [i64; 2], serial| Op {
            client: 1,
            at: String::new(),
            call: Call::Snapshot {
                class: Class::Local,
            },
            begun: 1,
            ended: Some(2),
            outcome: Outcome::Snapshot(Box::new(Snapshot {
                revision,
                registers: vec![("k".into(), serial, 1)],
                accounts: vec![("a".into(), balances[0]), ("b".into(), balances[1])],
            })),
            tries: 1,
            replays: 0,
        };
        for (ops, good) in [
            (
                vec![snapshot(1, [50, 150], 1), snapshot(2, [60, 140], 2)],
                true,
            ),
            (vec![snapshot(1, [50, 140], 1)], false),
            (
                vec![snapshot(1, [50, 150], 1), snapshot(1, [50, 150], 2)],
                false,
            ),
        ] {
            assert_eq!(judge(&ops, 100).is_none(), good, "{ops:?}");
        }
    }
}
