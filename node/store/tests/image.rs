//! Images: whole or not at all, in bounded memory, while old views go on.
#![allow(missing_docs)]

mod common;

use std::sync::Arc;

use bytes::Bytes;
use common::{Chance, at, committed, entry, open_dir, open_state, put};
use flower_engine::{PatchBuilder, Space, View};
use flower_store::{
    Disk, FileName, ImageError, ImageReader, Received, Receiving, SimDisk, State, Verified,
};

fn disk(seed: u64) -> (SimDisk, Arc<dyn Disk>) {
    let sim = SimDisk::new(seed);
    (sim.clone(), Arc::new(sim))
}

fn state_of(upto: u64) -> State {
    let mut state = open_state(&disk(1).1);
    for index in 0..=upto {
        let record = committed(index);
        state.apply(record.position, &record.payload).unwrap();
    }
    state
}

fn frames(state: &State) -> Vec<Bytes> {
    ImageReader::new(state.view()).map(Result::unwrap).collect()
}

fn receive(disk: &Arc<dyn Disk>, frames: &[Bytes]) -> Result<Verified, ImageError> {
    let mut receiving = Receiving::start(disk.clone(), 1 << 20)?;
    for frame in frames {
        match receiving.accept(frame)? {
            Received::More(more) => receiving = *more,
            Received::Whole(verified) => return Ok(*verified),
        }
    }
    Err(ImageError::Refused("the stream ended".into()))
}

#[test]
fn an_image_carries_everything_and_replaces_the_state_at_once() {
    let leader = state_of(50);
    let (sim, disk) = disk(2);
    let mut open = open_dir(&disk);
    open.state
        .apply(at(1, 0), &put(&b"old"[..], &b"row"[..]))
        .unwrap();
    let (handle, old) = (open.state.views(), open.state.view());

    let verified = receive(&disk, &frames(&leader)).unwrap();
    assert_eq!(verified.applied(), leader.applied());
    assert_eq!(open.state.applied(), Some(at(1, 0)), "not before install");
    let checkpoint = verified.install(&mut open.state).unwrap();
    assert_eq!(checkpoint.position(), leader.applied());

    let (new, theirs) = (handle.newest(), leader.view());
    assert_eq!(new.applied(), theirs.applied());
    assert_eq!(new.totals(), theirs.totals());
    assert_eq!(new.recount().unwrap(), *theirs.totals());
    assert_eq!(new.membership(), theirs.membership());
    assert_eq!(new.membership_position(), theirs.membership_position());
    assert_eq!(new.revision(), theirs.revision());
    assert_eq!(new.get(Space::Data, b"old").unwrap(), None);
    assert_eq!(
        old.get(Space::Data, b"old").unwrap().as_deref(),
        Some(&b"row"[..])
    );
    assert_eq!(disk.len(FileName::Incoming).unwrap(), None);
    drop(old);

    // The log is purged behind it and both go on.
    open.log
        .purge(checkpoint.position().unwrap(), &checkpoint)
        .unwrap();
    let next = committed(51);
    open.log.append([next.clone()]);
    let flushed = open.log.flush().unwrap();
    open.state.apply(next.position, &next.payload).unwrap();
    open.state.checkpoint(flushed).unwrap();
    sim.cut_power();
    drop((open, new, handle));
    let open = open_dir(&disk);
    assert_eq!(open.state.view().totals(), state_of(51).view().totals());
    assert_eq!(open.report.full_repairs, 0);
}

#[test]
fn images_are_counted_over_the_directorys_life() {
    let (_, disk) = disk(3);
    let mut open = open_dir(&disk);
    for (count, upto) in [(1, 20), (2, 40)] {
        let verified = receive(&disk, &frames(&state_of(upto))).unwrap();
        let checkpoint = verified.install(&mut open.state).unwrap();
        open.log
            .purge(checkpoint.position().unwrap(), &checkpoint)
            .unwrap();
        open.log.flush().unwrap();
        assert_eq!(open.state.view().images_received(), count);
    }
    let next = committed(41);
    open.state.apply(next.position, &next.payload).unwrap();
    assert_eq!(open.state.view().images_received(), 2);
    drop(open);
    assert_eq!(open_dir(&disk).state.view().images_received(), 2);
}

#[test]
fn an_empty_state_is_an_image_too() {
    let leader = open_state(&disk(1).1);
    let (_, disk) = disk(2);
    let mut open = open_dir(&disk);
    receive(&disk, &frames(&leader))
        .unwrap()
        .install(&mut open.state)
        .unwrap();
    assert_eq!(open.state.applied(), None);
}

#[test]
fn frames_are_bounded_and_large_values_come_in_pieces() {
    let mut leader = open_state(&disk(1).1);
    let mut chance = Chance(5);
    let bundle: Vec<u8> = (0..8 << 20).map(|_| chance.next() as u8).collect();
    let mut patch = PatchBuilder::new();
    patch.put(Space::Deploy, &b"bundle"[..], bundle.clone());
    patch.put(Space::Deploy, &b"pointer"[..], &b"small"[..]);
    for n in 0..40_u64 {
        patch.put(
            Space::Data,
            n.to_be_bytes().to_vec(),
            vec![n as u8; 256 << 10],
        );
    }
    leader.apply(at(1, 0), &entry(1, vec![patch])).unwrap();
    let reader = ImageReader::new(leader.view());
    let (estimate, frames) = (reader.total_bytes(), frames(&leader));
    assert!(frames.len() > 18, "{}", frames.len());
    let bytes: u64 = frames.iter().map(|f| f.len() as u64).sum();
    assert!(frames.iter().all(|f| f.len() <= 1 << 20));
    assert!(
        bytes.abs_diff(estimate) < bytes / 20,
        "{bytes} against {estimate}"
    );

    let (_, disk) = disk(2);
    let mut state = open_state(&disk);
    receive(&disk, &frames)
        .unwrap()
        .install(&mut state)
        .unwrap();
    let view = state.view();
    assert_eq!(view.get(Space::Deploy, b"bundle").unwrap().unwrap(), bundle);
    assert_eq!(view.totals(), leader.view().totals());
}

#[test]
fn a_truncated_reordered_or_damaged_image_is_refused_and_the_state_kept() {
    let good = frames(&state_of(59));
    assert!(good.len() > 5, "{}", good.len());
    let (_, disk) = disk(2);
    let mut open = open_dir(&disk);
    open.state
        .apply(at(1, 0), &put(&b"old"[..], &b"row"[..]))
        .unwrap();
    let mut refuse = |what: &str, frames: &[Bytes]| {
        match receive(&disk, frames) {
            Err(ImageError::Refused(_)) => {}
            Err(other) => panic!("{what}: {other}"),
            Ok(_) => panic!("{what} was accepted"),
        }
        let view = open.state.view();
        assert_eq!(
            view.get(Space::Data, b"old").unwrap().as_deref(),
            Some(&b"row"[..])
        );
        let next = at(1, open.state.applied().unwrap().index + 1);
        open.state
            .apply(next, &put(&b"new"[..], &b"row"[..]))
            .unwrap();
    };
    for missing in 0..good.len() {
        let rest: Vec<Bytes> = [&good[..missing], &good[missing + 1..]].concat();
        refuse(&format!("without frame {missing}"), &rest);
    }
    refuse("nothing", &[]);
    refuse("a cut stream", &good[..good.len() / 2]);
    for at in 1..good.len() - 2 {
        let mut swapped = good.clone();
        swapped.swap(at, at + 1);
        refuse(&format!("frames {at} and the next swapped"), &swapped);
        let twice: Vec<Bytes> = [&good[..=at], &good[at..]].concat();
        refuse(&format!("frame {at} twice"), &twice);
    }
    let mut chance = Chance(77);
    for _ in 0..60 {
        let mut damaged = good.clone();
        let frame = chance.below(good.len() as u64) as usize;
        let mut bytes = damaged[frame].to_vec();
        let at = chance.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << chance.below(8);
        damaged[frame] = bytes.into();
        refuse(&format!("byte {at} of frame {frame} flipped"), &damaged);
        let mut cut = good.clone();
        cut[frame] = good[frame].slice(..at);
        refuse(&format!("frame {frame} cut at {at}"), &cut);
    }
    refuse("a frame too large", &[Bytes::from(vec![0; (1 << 20) + 1])]);
}

#[test]
fn another_format_is_refused_by_name() {
    let mut frames = frames(&state_of(3));
    let mut header = frames[0].to_vec();
    // Kind, then eight bytes of magic, then the format.
    header[9] = 200;
    let end = header.len() - 8;
    let hash = xxhash_rust::xxh3::xxh3_64(&header[..end]).to_be_bytes();
    header[end..].copy_from_slice(&hash);
    frames[0] = header.into();
    let refused = receive(&disk(2).1, &frames).err().unwrap().to_string();
    assert!(
        refused.contains("format 200") && refused.contains("only format 2"),
        "{refused}"
    );
}

#[test]
fn receiving_takes_bounded_memory() {
    let mut leader = open_state(&disk(1).1);
    for index in 0..64 {
        let mut patch = PatchBuilder::new();
        for n in 0..1_000_u64 {
            let key = (index * 1_000 + n).to_be_bytes().to_vec();
            patch.put(Space::Data, key, vec![n as u8; 700]);
        }
        leader
            .apply(at(1, index), &entry(index, vec![patch]))
            .unwrap();
    }
    let (sim, disk) = disk(2);
    let mut state = open_state(&disk);
    let before = sim.bytes_written();
    let verified = receive(&disk, &frames(&leader)).unwrap();
    let stored = leader.view().totals().stored_bytes();
    let spilled = sim.bytes_written() - before;
    assert!(
        spilled > stored * 8 / 10,
        "{spilled} of {stored} bytes are in the file before the last commit, not in memory"
    );
    verified.install(&mut state).unwrap();
    let file = disk.len(FileName::State).unwrap().unwrap();
    println!(
        "{stored} bytes stored, file of {file}, {} written",
        sim.bytes_written() - before
    );
    assert!(
        file < stored * 2,
        "sorted runs fill pages: {file} for {stored}"
    );
    assert_eq!(state.view().totals(), leader.view().totals());
}

#[test]
fn stray_images_are_removed_at_the_start() {
    let (_, disk) = disk(2);
    drop(open_dir(&disk));
    let frames = frames(&state_of(40));
    let receiving = Receiving::start(disk.clone(), 1 << 20).unwrap();
    let Received::More(receiving) = receiving.accept(&frames[0]).unwrap() else {
        panic!("whole")
    };
    assert!(disk.len(FileName::Incoming).unwrap().is_some());
    drop(receiving);
    let open = open_dir(&disk);
    assert_eq!(disk.len(FileName::Incoming).unwrap(), None);
    assert_eq!(open.state.applied(), None);
}

#[test]
fn a_full_disk_while_receiving_leaves_the_state_usable() {
    let (sim, disk) = disk(2);
    let mut open = open_dir(&disk);
    let mut leader = open_state(&self::disk(1).1);
    let mut patch = PatchBuilder::new();
    for n in 0..100_u64 {
        patch.put(Space::Data, n.to_be_bytes().to_vec(), vec![1; 200 << 10]);
    }
    leader.apply(at(1, 0), &entry(1, vec![patch])).unwrap();
    let free = disk.space().unwrap();
    sim.set_capacity(free.capacity - free.free + (6 << 20));
    let failed = receive(&disk, &frames(&leader)).err().unwrap();
    assert!(matches!(failed, ImageError::Fatal(_)), "{failed}");
    assert!(failed.to_string().contains("volume is full"), "{failed}");
    Receiving::remove_stray(&*disk).unwrap();
    open.state
        .apply(at(1, 0), &put(&b"k"[..], &b"v"[..]))
        .unwrap();
    open.log
        .append([common::record(1, 0, put(&b"k"[..], &b"v"[..]))]);
    let flushed = open.log.flush().unwrap();
    open.state.checkpoint(flushed).unwrap();
}

#[test]
fn a_power_cut_at_any_moment_of_an_install_leaves_the_old_state_or_the_new() {
    let leader = state_of(40);
    let frames = frames(&leader);
    let (mut old, mut new) = (0, 0);
    for seed in 0..120 {
        let (sim, disk) = disk(seed + 100);
        let mut open = open_dir(&disk);
        let first = committed(0);
        open.log.append([first.clone()]);
        let flushed = open.log.flush().unwrap();
        open.state.apply(first.position, &first.payload).unwrap();
        open.state.checkpoint(flushed).unwrap();
        let before = *open.state.view().totals();
        let verified = receive(&disk, &frames).unwrap();
        sim.fail_after(seed, flower_store::sim_disk::Fault::PowerCut);
        let installed = verified.install(&mut open.state);
        sim.cut_power();
        drop(open);
        let open = open_dir(&disk);
        assert_eq!(open.report.full_repairs, 0, "seed {seed}");
        let view = open.state.view();
        assert_eq!(view.recount().unwrap(), *view.totals(), "seed {seed}");
        if view.applied() == leader.applied() {
            assert_eq!(view.totals(), leader.view().totals());
            new += 1;
        } else {
            assert!(
                installed.is_err(),
                "seed {seed}: an installed image is gone"
            );
            assert_eq!(
                (view.applied(), *view.totals()),
                (Some(first.position), before)
            );
            old += 1;
        }
    }
    println!("{old} old, {new} new");
    assert!(old > 0 && new > 0, "{old} old, {new} new");
}
