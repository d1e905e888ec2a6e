//! What the store's tests share: a committed history to append and apply, and small helpers.
#![allow(dead_code, missing_docs)]

use std::sync::Arc;

use bytes::Bytes;
use flower_api::{GroupId, MemberId, Revision};
use flower_engine::{Entry, EntryKind, PatchBuilder, Space};
use flower_store::{
    DataDir, DirSettings, Disk, Log, LogPosition, LogRecord, OpenDir, Opened, Payload, State,
};

pub const MEMBER: MemberId = MemberId(7);

pub fn settings() -> DirSettings {
    DirSettings {
        log_cache_bytes: 1 << 20,
        log_tail_bytes: 2_000,
        page_cache_bytes: 2 << 20,
        value_cache_bytes: 64 << 10,
        group: GroupId(0),
    }
}

pub fn open_dir(disk: &Arc<dyn Disk>) -> OpenDir {
    match DataDir::open(disk.clone(), &settings(), MEMBER).unwrap() {
        Opened::Fresh(open) | Opened::Member(open) => open,
        Opened::Broken { why, .. } => panic!("broken: {why}"),
    }
}

pub fn open_state(disk: &Arc<dyn Disk>) -> State {
    State::open(disk.clone(), 2 << 20, 64 << 10).unwrap().0
}

pub fn open_log(disk: &Arc<dyn Disk>, tail_bytes: u64) -> Log {
    Log::open(&**disk, 1 << 20, tail_bytes).unwrap()
}

/// A generator, so that a failing seed can be run again.
pub struct Chance(pub u64);

impl Chance {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

pub fn at(term: u64, index: u64) -> LogPosition {
    LogPosition {
        term,
        leader: 1,
        index,
    }
}

pub fn entry(revision: u64, patches: Vec<PatchBuilder>) -> Payload {
    Payload::Entry(Arc::new(Entry {
        kind: EntryKind::Mutations,
        revision: Revision(revision),
        stamp_ms: revision,
        patches: patches.into_iter().map(|p| Arc::new(p.seal())).collect(),
    }))
}

pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Payload {
    let mut patch = PatchBuilder::new();
    patch.put(Space::Data, key, value);
    entry(1, vec![patch])
}

pub fn record(term: u64, index: u64, payload: Payload) -> LogRecord {
    LogRecord {
        position: at(term, index),
        payload,
    }
}

/// A record of `bytes` bytes or a little more.
pub fn padded(term: u64, index: u64, bytes: usize) -> LogRecord {
    record(term, index, put(&b"k"[..], vec![index as u8; bytes]))
}

/// The record that the group committed at `index`: blank, configuration or patches over a few
/// hundred keys, with deletions and now and then a large value.
pub fn committed(index: u64) -> LogRecord {
    let mut chance = Chance(index * 2 + 1);
    chance.next();
    let payload = match chance.below(10) {
        0 => Payload::Blank,
        1 => Payload::Membership(Bytes::from(format!("members at {index}"))),
        _ => {
            let patches = 1 + chance.below(3);
            let patches = (0..patches).map(|_| random_patch(&mut chance)).collect();
            entry(index, patches)
        }
    };
    record(10 + index / 20, index, payload)
}

fn random_patch(chance: &mut Chance) -> PatchBuilder {
    let mut patch = PatchBuilder::new();
    for _ in 0..1 + chance.below(8) {
        let space = Space::ALL[chance.below(6) as usize];
        let key = chance.below(300).to_be_bytes().to_vec();
        if chance.below(5) == 0 {
            patch.delete(space, key);
        } else {
            let size = if chance.below(40) == 0 { 60_000 } else { 120 };
            patch.put(
                space,
                key,
                vec![chance.next() as u8; chance.below(size) as usize],
            );
        }
    }
    patch
}
