//! Contract suites: what every view and every disk must do, whoever implements it. For tests.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use bytes::Bytes;
use flower_engine::{Direction, Patch, PatchBuilder, Space, View};

use crate::disk::{Disk, FileName};

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

/// Runs over a view made by `build`, which gets patches (oldest first) and returns a view of
/// their result.
///
/// # Panics
/// When the view breaks the contract.
pub fn view_contract(build: impl Fn(&[Arc<Patch>]) -> Arc<dyn View>) {
    let empty = build(&[]);
    assert_eq!(empty.get(Space::Data, b"a").unwrap(), None);
    assert!(rows(&*empty, Space::Data, (Bound::Unbounded, Bound::Unbounded)).is_empty());

    let (patches, model) = history();
    for length in 0..=patches.len() {
        let view = build(&patches[..length]);
        check(&*view, &model[length]);
    }
}

type Model = BTreeMap<(Space, Vec<u8>), Vec<u8>>;

/// Patches that write, overwrite, delete and write again, in several spaces; and what is there
/// after each.
fn history() -> (Vec<Arc<Patch>>, Vec<Model>) {
    let mut patches = Vec::new();
    let mut models = vec![Model::new()];
    let mut model = Model::new();
    let mut number = 7_u32;
    for round in 0..12_u32 {
        let mut patch = PatchBuilder::new();
        for _ in 0..6 {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let space = Space::ALL[(number >> 8) as usize % 4];
            let key = vec![(number >> 16) as u8 % 8; 1 + (number >> 24) as usize % 3];
            if number >> 30 == 0 {
                model.remove(&(space, key.clone()));
                patch.delete(space, key);
            } else {
                let value = vec![round as u8; (number >> 12) as usize % 40];
                model.insert((space, key.clone()), value.clone());
                patch.put(space, key, value);
            }
        }
        patches.push(Arc::new(patch.seal()));
        models.push(model.clone());
    }
    (patches, models)
}

fn check(view: &dyn View, model: &Model) {
    let keys = (0..8_u8).flat_map(|b| (1..4).map(move |n| vec![b; n]));
    let keys: Vec<Vec<u8>> = keys.chain([vec![], vec![9]]).collect();
    for space in Space::ALL {
        for key in &keys {
            let expected = model.get(&(space, key.clone())).cloned();
            // Twice: the second answer may come from a cache.
            for _ in 0..2 {
                let found = view.get(space, key).unwrap();
                assert_eq!(
                    found.map(|b: Bytes| b.to_vec()),
                    expected,
                    "{space} {key:?}"
                );
            }
        }
        for from in bounds(&keys) {
            for to in bounds(&keys) {
                let expected: Rows = model
                    .iter()
                    .filter(|((s, k), _)| *s == space && flower_engine::view::within(k, from, to))
                    .map(|((_, k), v)| (k.clone(), v.clone()))
                    .collect();
                assert_eq!(rows(view, space, (from, to)), expected, "{from:?} {to:?}");
            }
        }
    }
}

fn bounds(keys: &[Vec<u8>]) -> Vec<Bound<&[u8]>> {
    let some = keys.iter().step_by(5);
    let mut all: Vec<Bound<&[u8]>> = some
        .flat_map(|k| [Bound::Included(&k[..]), Bound::Excluded(&k[..])])
        .collect();
    all.push(Bound::Unbounded);
    all
}

/// The rows of a range, read forwards, backwards and cut short; all must agree.
fn rows(view: &dyn View, space: Space, (from, to): (Bound<&[u8]>, Bound<&[u8]>)) -> Rows {
    let read = |direction, limit: usize| {
        let mut found = Rows::new();
        if limit > 0 {
            view.scan(space, from, to, direction, &mut |key, value| {
                found.push((key.to_vec(), value.to_vec()));
                found.len() < limit
            })
            .unwrap();
        }
        found
    };
    let all = read(Direction::Forward, usize::MAX);
    let mut backwards = read(Direction::Backward, usize::MAX);
    backwards.reverse();
    assert_eq!(all, backwards, "{space} {from:?} {to:?}");
    let first = read(Direction::Forward, 2);
    assert_eq!(first[..], all[..all.len().min(2)]);
    all
}

/// Runs over an empty disk; `reopen` makes a new handle on the same disk after the old ones
/// are gone.
///
/// # Panics
/// When the disk breaks the contract.
pub fn disk_contract(disk: Arc<dyn Disk>, reopen: impl FnOnce(Arc<dyn Disk>) -> Arc<dyn Disk>) {
    assert_eq!(disk.list().unwrap(), []);
    assert_eq!(disk.len(FileName::State).unwrap(), None);
    assert_eq!(disk.read_small(FileName::Identity).unwrap(), None);
    disk.remove(FileName::State).unwrap();
    assert!(disk.rename(FileName::Incoming, FileName::State).is_err());

    let file = disk.open(FileName::Incoming).unwrap();
    file.set_len(10_000).unwrap();
    file.write(5_000, b"hello").unwrap();
    let mut read = [1; 7];
    file.read(4_999, &mut read).unwrap();
    assert_eq!(&read, b"\0hello\0");
    assert!(file.read(9_999, &mut read).is_err(), "behind the end");
    file.sync_data().unwrap();
    assert_eq!(disk.len(FileName::Incoming).unwrap(), Some(10_000));

    let old = disk.open(FileName::State).unwrap();
    old.set_len(3).unwrap();
    old.write(0, b"old").unwrap();
    disk.rename(FileName::Incoming, FileName::State).unwrap();
    disk.sync_dir().unwrap();
    let mut kept = [0; 3];
    old.read(0, &mut kept).unwrap();
    assert_eq!(
        &kept, b"old",
        "a replaced file is readable through its handle"
    );
    assert_eq!(disk.len(FileName::Incoming).unwrap(), None);
    assert_eq!(disk.len(FileName::State).unwrap(), Some(10_000));

    for text in [&b"first"[..], b"a second, longer one", b"3"] {
        disk.write_small_atomically(FileName::Identity, text)
            .unwrap();
        let found = disk.read_small(FileName::Identity).unwrap();
        assert_eq!(found.as_deref(), Some(text));
    }
    let there = [FileName::State, FileName::Identity];
    assert_eq!(disk.list().unwrap(), there);
    let space = disk.space().unwrap();
    assert!(space.capacity >= space.free && space.free > 0, "{space:?}");

    drop((file, old));
    let disk = reopen(disk);
    assert_eq!(disk.list().unwrap(), there);
    let file = disk.open(FileName::State).unwrap();
    file.read(5_000, &mut read[..5]).unwrap();
    assert_eq!(&read[..5], b"hello");
    disk.remove(FileName::State).unwrap();
    assert_eq!(disk.list().unwrap(), [FileName::Identity]);
}
