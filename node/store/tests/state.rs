//! The state: sums, snapshots, caches, checkpoints; and what held views cost.
#![allow(missing_docs)]

mod common;

use std::sync::Arc;

use bytes::Bytes;
use common::{at, committed, entry, open_dir, open_log, open_state, padded, put};
use flower_api::Revision;
use flower_engine::{PatchBuilder, Space, View, view::MemoryView};
use flower_store::{Disk, FileName, Payload, SimDisk, Totals};

fn disk() -> (SimDisk, Arc<dyn Disk>) {
    let sim = SimDisk::new(9);
    (sim.clone(), Arc::new(sim))
}

#[test]
fn sums_are_those_of_a_count_from_nothing_at_every_entry() {
    let (_, disk) = disk();
    let mut state = open_state(&disk);
    let mut model = MemoryView::default();
    let mut checksums = std::collections::BTreeSet::new();
    for index in 0..60 {
        let record = committed(index);
        let applied = state.apply(record.position, &record.payload).unwrap();
        assert_eq!(applied.position, record.position);
        if let Payload::Entry(entry) = &record.payload {
            entry.patches.iter().for_each(|p| model.apply(p));
        }
        let view = state.view();
        assert_eq!(view.applied(), Some(record.position));
        assert_eq!(view.recount().unwrap(), *view.totals(), "at {index}");
        let (mut bytes, mut records) = (0, 0);
        for (space, key, value) in model.entries() {
            assert_eq!(view.get(space, key).unwrap().as_ref(), Some(value));
            bytes += (key.len() + value.len()) as u64;
            records += 1;
        }
        assert_eq!(view.totals().stored_bytes(), bytes);
        assert_eq!(view.totals().all_records(), records);
        checksums.insert(view.checksum());
    }
    assert!(checksums.len() > 40, "it moves with the state");
    let stats = state.stats();
    assert_eq!(stats.receipts, stats.totals.records_in(Space::Receipts));
    assert!(stats.receipts > 0 && stats.receipt_bytes > 0);
}

#[test]
fn the_same_content_by_another_way_has_the_same_checksum() {
    let sum = |payloads: &[Payload]| {
        let (_, disk) = disk();
        let mut state = open_state(&disk);
        for (index, payload) in payloads.iter().enumerate() {
            state.apply(at(1, index as u64), payload).unwrap();
        }
        *state.view().totals()
    };
    let mut gone = PatchBuilder::new();
    gone.delete(Space::Data, &b"b"[..]);
    let direct = sum(&[put(&b"a"[..], &b"1"[..])]);
    let detour = sum(&[
        put(&b"b"[..], &b"9"[..]),
        put(&b"a"[..], &b"0"[..]),
        entry(2, vec![gone]),
        put(&b"a"[..], &b"1"[..]),
    ]);
    assert_eq!(direct, detour);
    assert_ne!(
        direct,
        sum(&[put(&b"a1"[..], &b""[..])]),
        "key and value are kept apart"
    );
    assert_eq!(sum(&[Payload::Blank]), Totals::default());
}

#[test]
fn later_patches_of_an_entry_win_and_configurations_are_kept() {
    let (_, disk) = disk();
    let mut state = open_state(&disk);
    let patches = [&b"1"[..], b"2", b"3"].map(|value| {
        let mut patch = PatchBuilder::new();
        patch.put(Space::Meta, &b"k"[..], value);
        patch
    });
    state.apply(at(1, 0), &entry(41, patches.to_vec())).unwrap();
    let members = Payload::Membership(Bytes::from_static(b"members"));
    state.apply(at(1, 1), &members).unwrap();
    state.apply(at(2, 2), &Payload::Blank).unwrap();
    let view = state.view();
    assert_eq!(
        view.get(Space::Meta, b"k").unwrap().as_deref(),
        Some(&b"3"[..])
    );
    assert_eq!(view.membership().as_deref(), Some(&b"members"[..]));
    assert_eq!(view.membership_position(), Some(at(1, 1)));
    assert_eq!(view.applied(), Some(at(2, 2)));
    assert_eq!(view.revision(), Revision(41));
}

#[test]
fn a_view_goes_on_showing_what_it_did() {
    let (_, disk) = disk();
    let mut state = open_state(&disk);
    let mut views = Vec::new();
    for index in 0..50 {
        let value = Bytes::from(format!("value {index}"));
        state.apply(at(1, index), &put(&b"k"[..], value)).unwrap();
        views.push(state.view());
        // Reading old and new ones in turn fills the cache from both sides.
        for (age, view) in views.iter().enumerate().rev() {
            let found = view.get(Space::Data, b"k").unwrap().unwrap();
            assert_eq!(found, format!("value {age}"));
            assert_eq!(view.get(Space::Data, b"k").unwrap(), Some(found));
        }
    }
    let stats = state.stats();
    assert_eq!(stats.held_views, 49);
    assert!(stats.value_cache.hits > 0 && stats.value_cache.misses > 0);
    let handle = state.views();
    assert_eq!(handle.oldest_age_ms(1_000), 0, "first seen now");
    assert_eq!(handle.oldest_age_ms(3_500), 2_500);
    views.truncate(1);
    assert_eq!(handle.oldest_age_ms(4_000), 3_000);
    views.clear();
    assert_eq!(handle.oldest_age_ms(9_000), 0);
    drop(state);
    assert_eq!(
        handle.newest().get(Space::Data, b"k").unwrap().as_deref(),
        Some(&b"value 49"[..])
    );
}

#[test]
fn only_a_checkpoint_survives_and_no_file_is_walked() {
    let (sim, disk) = disk();
    let mut open = open_dir(&disk);
    let append = |open: &mut flower_store::OpenDir, upto: std::ops::Range<u64>| {
        for index in upto {
            let record = committed(index);
            open.log.append([record.clone()]);
            open.state.apply(record.position, &record.payload).unwrap();
        }
    };
    append(&mut open, 0..30);
    let flushed = open.log.flush().unwrap();
    let syncs = sim.syncs();
    open.state.checkpoint(flushed).unwrap();
    assert_eq!(sim.syncs(), syncs + 2, "quick repair takes two");
    open.state.checkpoint(flushed).unwrap();
    assert_eq!(sim.syncs(), syncs + 2, "nothing new, nothing written");
    append(&mut open, 30..45);
    // At most for growing the file, which redb makes durable before it uses the room.
    assert!(sim.syncs() <= syncs + 3, "applying waits for no disk");
    open.log.flush().unwrap();
    sim.cut_power();
    drop(open);

    let open = open_dir(&disk);
    assert_eq!(open.report.full_repairs, 0);
    assert_eq!(open.report.replayable, 15);
    assert_eq!(open.state.applied(), Some(committed(29).position));
    assert_eq!(
        open.state.view().recount().unwrap(),
        *open.state.view().totals()
    );
}

#[test]
fn dropping_the_writer_makes_nothing_durable() {
    let (_, disk) = disk();
    let mut state = open_state(&disk);
    for index in 0..20 {
        state
            .apply(at(1, index), &put(&b"k"[..], &b"v"[..]))
            .unwrap();
    }
    let view = state.view();
    drop(state);
    drop(view);
    let (state, report) = flower_store::State::open(disk, 1 << 20, 0).unwrap();
    assert_eq!(
        state.applied(),
        None,
        "the log that covers it may not be flushed"
    );
    assert!(!report.full_repair);
}

#[test]
#[should_panic(expected = "a checkpoint at 1 of term 2")]
fn a_checkpoint_asks_for_a_log_that_covers_it() {
    let (_, disk) = disk();
    let log = open_log(&disk, 0);
    log.append((0..9).map(|i| padded(1, i, 10)));
    let flushed = log.flush().unwrap();
    let mut state = open_state(&disk);
    state.apply(at(1, 0), &Payload::Blank).unwrap();
    state.checkpoint(flushed).unwrap();
    // The flushed log was longer, but of an older leader: this entry is not in it.
    state.apply(at(2, 1), &Payload::Blank).unwrap();
    let _ = state.checkpoint(flushed);
}

#[test]
#[should_panic(expected = "entry 3 of term 1 after")]
fn an_entry_is_applied_once() {
    let (_, disk) = disk();
    let mut state = open_state(&disk);
    state.apply(at(1, 3), &Payload::Blank).unwrap();
    let _ = state.apply(at(1, 3), &Payload::Blank);
}

#[test]
fn many_keys_and_large_records() {
    let (_, disk) = disk();
    let mut open = open_dir(&disk);
    let big = vec![7; 256 << 10];
    for index in 0..10_u64 {
        let mut patch = PatchBuilder::new();
        for n in 0..1_000_u64 {
            let key = (index * 1_000 + n).to_be_bytes().to_vec();
            patch.put(Space::Data, key, vec![index as u8; 100]);
        }
        patch.put(Space::Data, format!("big {index}"), big.clone());
        let payload = entry(index, vec![patch]);
        open.log.append([common::record(1, index, payload.clone())]);
        open.state.apply(at(1, index), &payload).unwrap();
    }
    let flushed = open.log.flush().unwrap();
    open.state.checkpoint(flushed).unwrap();
    drop(open);
    let open = open_dir(&disk);
    let view = open.state.view();
    assert_eq!(view.totals().records_in(Space::Data), 10_010);
    assert_eq!(view.recount().unwrap(), *view.totals());
    assert_eq!(
        view.get(Space::Data, b"big 4").unwrap().unwrap().len(),
        big.len()
    );
    let stats = open.state.stats();
    assert!(stats.file_bytes > stats.totals.stored_bytes(), "{stats:?}");
    assert!(stats.page_cache.misses > 0, "{stats:?}");
}

/// Rows overwritten at random, with a view that is held or renewed; the file's size after it.
fn file_after_overwrites(held: bool) -> u64 {
    let (_, disk) = disk();
    let mut open = open_dir(&disk);
    let mut chance = common::Chance(4);
    let mut kept = open.state.view();
    for index in 0..150_u64 {
        let mut patch = PatchBuilder::new();
        for _ in 0..200 {
            let key = chance.below(2_000).to_be_bytes().to_vec();
            patch.put(Space::Data, key, vec![index as u8; 200]);
        }
        let payload = entry(index, vec![patch]);
        open.log.append([common::record(1, index, payload.clone())]);
        open.state.apply(at(1, index), &payload).unwrap();
        if index % 10 == 9 {
            let flushed = open.log.flush().unwrap();
            open.state.checkpoint(flushed).unwrap();
        }
        if index == 20 || !held {
            kept = open.state.view();
        }
    }
    drop(kept);
    disk.len(FileName::State).unwrap().unwrap()
}

#[test]
fn a_held_view_makes_the_file_grow_and_short_ones_do_not() {
    let (short, held) = (file_after_overwrites(false), file_after_overwrites(true));
    println!("state.redb: {short} bytes with short views, {held} with one held");
    assert!(short < 8 << 20, "{short}");
    assert!(held > 2 * short, "{held} against {short}");
}

#[test]
fn a_failed_write_ends_the_state_and_says_what_to_do() {
    let (sim, disk) = disk();
    let mut open = open_dir(&disk);
    open.log.append((0..4).map(committed));
    let flushed = open.log.flush().unwrap();
    for index in 0..4 {
        let record = committed(index);
        open.state.apply(record.position, &record.payload).unwrap();
    }
    sim.fail_after(0, flower_store::sim_disk::Fault::Eio);
    let failed = open.state.checkpoint(flushed).unwrap_err().to_string();
    assert!(
        failed.contains("state.redb: a checkpoint failed"),
        "{failed}"
    );
    sim.heal();
    let record = committed(4);
    assert!(open.state.apply(record.position, &record.payload).is_err());
    assert_eq!(
        open.state.view().applied(),
        Some(committed(3).position),
        "reads go on"
    );
}
