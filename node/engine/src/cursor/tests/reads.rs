//! What a transaction records as read: whenever a later write changes what a program of reads
//! answers, that write touches the set.

use super::*;
use crate::reads::ReadSet;

#[derive(Debug, Clone)]
enum Read {
    Get(usize),
    Range(Ask, usize),
    Count(Ask),
    Page(Ask, u64),
}

fn read() -> impl Strategy<Value = Read> {
    prop_oneof![
        2 => any::<usize>().prop_map(Read::Get),
        4 => (ask(), 0..12usize).prop_map(|(ask, most)| Read::Range(ask, most)),
        2 => ask().prop_map(Read::Count),
        2 => (ask(), 1..4u64).prop_map(|(ask, size)| Read::Page(ask, size)),
    ]
}

/// Runs reads in `view`, some writes before them; answers what they saw and what was recorded.
/// `known` are the rows that picks choose from: the same whatever `view` holds.
fn run(view: &MemoryView, known: &Rows, own: &[Op], reads: &[Read]) -> (String, ReadSet) {
    let mut tx = transaction(view, 100);
    let ids: Vec<&String> = known.keys().collect();
    let pick = |at: &usize| ids.get(at % (ids.len() + 1)).map(|id| (*id).clone());
    let mut seen = String::new();
    for op in own {
        let done = match op {
            Op::Insert(row) => tx.insert("rows", &row.to_string()).map(|_| ()),
            Op::Patch(at, row) => match pick(at) {
                Some(id) => tx.patch("rows", &id, &row.to_string(), &[]),
                None => Ok(()),
            },
            Op::Delete(at) => match pick(at) {
                Some(id) => tx.delete("rows", &id).map(|_| ()),
                None => Ok(()),
            },
            Op::Commit => Ok(()),
        };
        seen.push_str(&format!("{done:?}\n"));
    }
    for read in reads {
        let answer = match read {
            Read::Get(at) => {
                let id = pick(at).unwrap_or_else(|| "v".repeat(16));
                format!("{:?}", tx.get("rows", &id).unwrap())
            }
            Read::Range(ask, most) => first(&mut tx, &wanted(ask, &ask.json(known)), *most),
            Read::Count(ask) => tx
                .count(&wanted(ask, &ask.json(known)))
                .unwrap()
                .to_string(),
            Read::Page(ask, size) => tx.page(&wanted(ask, &ask.json(known)), "", *size).unwrap(),
        };
        seen.push_str(&answer);
        seen.push('\n');
    }
    let set = std::mem::take(&mut tx.reads).finish();
    (seen, set)
}

fn wanted<'a>(ask: &Ask, range: &'a str) -> Wanted<'a> {
    Wanted {
        table: "rows",
        index: INDEXES[ask.index].0,
        range,
        descending: ask.descending,
        limit: ask.limit,
    }
}

/// The first rows of a range, in chunks of two.
fn first(tx: &mut Transaction, wanted: &Wanted, most: usize) -> String {
    let cursor = tx.open(wanted).unwrap();
    let mut rows = Vec::new();
    while rows.len() < most {
        let more = parse(&tx.next(cursor, 2).unwrap());
        if more.is_empty() {
            break;
        }
        rows.extend(more);
    }
    format!("{rows:?}")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]
    #[test]
    fn a_write_that_changes_what_was_seen_touches_the_set(
        rows in prop::collection::vec(row(), 0..12),
        own in prop::collection::vec(op(), 0..4),
        reads in prop::collection::vec(read(), 1..5),
        later in prop::collection::vec(op(), 1..4),
    ) {
        let mut twins = Twins::new();
        for row in rows {
            twins.run(Op::Insert(row));
        }
        twins.run(Op::Commit);
        let (known, before) = (twins.rows.clone(), twins.view.clone());
        let (seen, set) = run(&before, &known, &own, &reads);
        for op in later {
            if matches!(op, Op::Commit) {
                continue;
            }
            // Each write for itself, so that one cannot hide behind another.
            let mut writer = Twins {
                view: before.clone(),
                tx: transaction(&before, 50),
                rows: known.clone(),
                revision: 50,
            };
            writer.run(op);
            let next = transaction(&before, 51);
            let patch = std::mem::replace(&mut writer.tx, next).finish().1.seal();
            writer.view.apply(&patch);
            if run(&writer.view, &known, &own, &reads).0 != seen {
                prop_assert!(set.touched_by(&patch), "{:?}", set);
            }
        }
    }
}

/// A reader that stopped early does not see what happens further on.
#[test]
fn a_window_ends_where_the_reader_stopped() {
    let mut twins = Twins::new();
    for n in 0..6 {
        twins.run(Op::Insert(json!({"a": "a", "b": n, "c": null})));
    }
    twins.run(Op::Commit);
    let ids: Vec<String> = twins.rows.keys().cloned().collect();
    let entry = |n: i64, id: &str| {
        let row = json!({"a": "a", "b": n});
        let on = ["a".to_owned(), "b".to_owned()];
        record::index_key("rows", "two", &on, row.as_object().unwrap(), id).unwrap()
    };
    for (descending, inside, outside) in [(false, 0, 3), (true, 5, 2)] {
        let wanted = Wanted {
            table: "rows",
            index: "two",
            range: "{\"a\":\"a\"}",
            descending,
            limit: Some(2),
        };
        twins.tx = transaction(&twins.view, 9);
        assert_eq!(twins.tx.count(&wanted).unwrap(), 2);
        let cursor = twins.tx.open(&wanted).unwrap();
        assert_eq!(parse(&twins.tx.next(cursor, 9).unwrap()).len(), 2);
        let set = std::mem::take(&mut twins.tx.reads).finish();
        assert!(set.touched_by_key(Space::Index, &entry(inside, &ids[inside as usize])));
        assert!(!set.touched_by_key(Space::Index, &entry(outside, &ids[outside as usize])));
        assert!(!set.touched_by_key(Space::Index, &entry(outside, "0")));
        assert_eq!(set.windows().count(), 1, "chunks are merged: {set:?}");
    }
    let mut absent = transaction(&twins.view, 9);
    assert_eq!(absent.get("rows", &"v".repeat(16)).unwrap(), None);
    let set = std::mem::take(&mut absent.reads).finish();
    assert!(set.touched_by_key(Space::Data, &record::row_key("rows", &"v".repeat(16))));
    assert!(set.touched_by_key(Space::Meta, crate::key::meta::ACTIVE));
}
