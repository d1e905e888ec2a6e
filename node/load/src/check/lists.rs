//! Lists that only grow: what one read shows of a list is the beginning of what any later one
//! shows, without holes, each serial where it was put. The value that is kept of a list is what
//! evaluating it anew over the same snapshot gives.

use std::collections::BTreeMap;

use super::order::{Placed, ordered};
use crate::history::{Call, Class, List, Op, Outcome};

/// Of the application: what a list of so many serials, with this sum, is to hold.
const LONG: u64 = 1_000_000;

/// What is known of all lists.
#[derive(Default)]
struct Known<'a> {
    writes: BTreeMap<u64, &'a Op>,
    places: BTreeMap<(&'a str, u64), u64>,
    placed: BTreeMap<&'a str, Vec<Placed<'a>>>,
}

/// The first violation.
pub fn judge(ops: &[Op]) -> Option<String> {
    let mut known = Known::default();
    for op in ops {
        if let Some(why) = known.write(op) {
            return Some(why);
        }
    }
    for op in ops {
        if let Outcome::Lists(told) = &op.outcome {
            for list in &told.lists {
                if let Some(why) = known.read(op, list) {
                    return Some(format!("{why}, at revision {} at {}", told.revision, op.at));
                }
            }
        }
    }
    known
        .placed
        .into_iter()
        .find_map(|(list, placed)| ordered(list, placed))
}

impl<'a> Known<'a> {
    fn write(&mut self, op: &'a Op) -> Option<String> {
        let Call::Append { list, serial } = &op.call else {
            return None;
        };
        self.writes.insert(*serial, op);
        let Outcome::Written { version: at, .. } = op.outcome else {
            return None;
        };
        self.placed.entry(list).or_default().push(Placed {
            op,
            at,
            writes: true,
        });
        self.place(list, at, *serial)
    }

    fn place(&mut self, list: &'a str, at: u64, serial: u64) -> Option<String> {
        let there = *self.places.entry((list, at)).or_insert(serial);
        (there != serial).then(|| format!("{list}: place {at} is of {there} and of {serial}"))
    }

    fn read(&mut self, op: &'a Op, list: &'a List) -> Option<String> {
        let name = list.name.as_str();
        let sum: u64 = list.items.iter().map(|(_, serial)| serial).sum();
        let holds = list.items.len() as u64 * LONG + sum;
        if list.holds != holds {
            return Some(format!(
                "{name}: the value kept is {}, and evaluated anew {holds}",
                list.holds
            ));
        }
        for (number, (at, serial)) in list.items.iter().enumerate() {
            if *at != number as u64 + 1 {
                return Some(format!("{name}: place {at} follows {number}"));
            }
            let write = self.writes.get(serial);
            let real = write.is_some_and(|write| {
                let here = matches!(&write.call, Call::Append { list, .. } if list == name);
                here && op.ended.is_none_or(|ended| ended > write.begun)
            });
            if !real {
                return Some(format!("{name}: serial {serial} was never put there"));
            }
            if let Some(why) = self.place(name, *at, *serial) {
                return Some(why);
            }
        }
        if op.call.class() == Some(Class::Fresh) {
            self.placed.entry(name).or_default().push(Placed {
                op,
                at: list.items.len() as u64,
                writes: false,
            });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Lists;

    fn append(serial: u64, place: u64, begun: u64) -> Op {
        Op {
            client: 1,
            at: String::new(),
            call: Call::Append {
                list: "l".into(),
                serial,
            },
            begun,
            ended: Some(begun + 1),
            outcome: Outcome::Written {
                version: place,
                revision: place,
            },
            tries: 1,
            replays: 0,
        }
    }

    fn read(items: &[(u64, u64)], begun: u64) -> Op {
        let sum: u64 = items.iter().map(|(_, serial)| serial).sum();
        let list = List {
            name: "l".into(),
            items: items.to_vec(),
            holds: items.len() as u64 * LONG + sum,
        };
        Op {
            call: Call::Lists {
                class: Class::Fresh,
            },
            outcome: Outcome::Lists(Box::new(Lists {
                revision: 1,
                lists: vec![list],
            })),
            ..append(0, 0, begun)
        }
    }

    #[test]
    fn each_way_of_going_wrong_is_seen() {
        let (one, two) = (|| append(1, 1, 1), || append(2, 2, 3));
        let mut forgotten = read(&[(1, 1)], 5);
        if let Outcome::Lists(told) = &mut forgotten.outcome {
            told.lists[0].holds -= 1;
        }
        for (what, ops, good) in [
            (
                "in turn",
                vec![one(), two(), read(&[(1, 1), (2, 2)], 5)],
                true,
            ),
            ("one place for two", vec![one(), append(2, 1, 3)], false),
            ("a hole", vec![one(), two(), read(&[(2, 2)], 5)], false),
            ("stale", vec![one(), two(), read(&[(1, 1)], 5)], false),
            ("of nobody", vec![one(), read(&[(1, 1), (2, 9)], 5)], false),
            (
                "another order",
                vec![one(), two(), read(&[(1, 2), (2, 1)], 5)],
                false,
            ),
            ("overtaken", vec![append(1, 2, 1), append(2, 1, 3)], false),
            ("a value kept too long", vec![one(), forgotten], false),
        ] {
            assert_eq!(judge(&ops).is_none(), good, "{what}: {:?}", judge(&ops));
        }
    }
}
