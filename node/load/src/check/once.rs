//! Exactly once for each key: an acknowledged write has left one trace, one of unknown outcome
//! at most one, one that was refused or never made none; every retry was answered alike.

use std::collections::BTreeSet;

use super::few;
use crate::history::{Op, Outcome};

/// Compares the calls with the traces that are in the state at the end.
pub fn judge(ops: &[Op], traces: &[u64]) -> Option<String> {
    let found: BTreeSet<u64> = traces.iter().copied().collect();
    let twice: BTreeSet<u64> = traces
        .windows(2)
        .filter(|pair| pair[0] == pair[1])
        .map(|pair| pair[0])
        .collect();
    if !twice.is_empty() {
        return Some(format!("written twice: serials {}", few(&twice)));
    }
    let (mut acknowledged, mut maybe, mut refused) =
        (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for op in ops {
        let Some(serial) = op.call.serial() else {
            continue;
        };
        match &op.outcome {
            Outcome::Forked(told) => {
                return Some(format!("serial {serial}: answered differently: {told}"));
            }
            Outcome::Written { .. } => acknowledged.insert(serial),
            Outcome::Unknown => maybe.insert(serial),
            _ => refused.insert(serial),
        };
    }
    let lost: BTreeSet<u64> = acknowledged.difference(&found).copied().collect();
    if !lost.is_empty() {
        return Some(format!("acknowledged and lost: serials {}", few(&lost)));
    }
    let lied: BTreeSet<u64> = refused.intersection(&found).copied().collect();
    if !lied.is_empty() {
        return Some(format!(
            "written, though the client was told that nothing happened: serials {}",
            few(&lied)
        ));
    }
    let phantoms: BTreeSet<u64> = found
        .iter()
        .filter(|serial| !acknowledged.contains(serial) && !maybe.contains(serial))
        .copied()
        .collect();
    (!phantoms.is_empty()).then(|| format!("never written: serials {}", few(&phantoms)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Call;

    fn op(serial: u64, outcome: Outcome) -> Op {
        Op {
            client: 1,
            at: String::new(),
            call: Call::Transfer { serial },
            begun: 1,
            ended: Some(2),
            outcome,
            tries: 1,
            replays: 0,
        }
    }

    #[test]
    fn each_way_of_going_wrong_is_seen() {
        let written = || Outcome::Written {
            version: 1,
            revision: 1,
        };
        let ops = [
            op(1, written()),
            op(2, Outcome::Unknown),
            op(3, Outcome::NotApplied),
            op(4, Outcome::Fault),
        ];
        for (traces, good) in [
            (&[1][..], true),
            (&[1, 2], true),
            (&[2], false),
            (&[1, 1], false),
            (&[1, 2, 2], false),
            (&[1, 3], false),
            (&[1, 4], false),
            (&[1, 9], false),
        ] {
            assert_eq!(judge(&ops, traces).is_none(), good, "{traces:?}");
        }
        let forked = [op(1, Outcome::Forked("1, then 2".into()))];
        assert!(judge(&forked, &[1]).is_some());
    }
}
