//! Decoders of what lies on disk and comes from peers: whatever the bytes, they are refused or
//! taken, and nothing panics; an image that is not whole never becomes one.
#![allow(missing_docs)]

mod common;

use std::sync::Arc;

use common::{at, committed, open_state};
use flower_engine::{Entry, entry::BadEntry};
use flower_store::{
    BadRecord, Disk, ImageError, ImageReader, LogRecord, Payload, Received, Receiving, SimDisk,
    fuzz::{Depth, Dice, fuzz},
};
use xxhash_rust::xxh3::xxh3_64;

const COUNT: u32 = 6_000;
const IMAGES: u32 = 300;

/// Writes the checksum that the content has now behind it.
fn seal(bytes: &mut Vec<u8>) {
    let content = bytes.len().saturating_sub(8);
    bytes.truncate(content);
    let sum = xxh3_64(bytes);
    bytes.extend_from_slice(&sum.to_be_bytes());
}

fn records() -> Vec<LogRecord> {
    let mut records: Vec<LogRecord> = (0..40).map(committed).collect();
    records.push(LogRecord {
        position: at(3, 41),
        payload: Payload::Blank,
    });
    records.push(LogRecord {
        position: at(3, 42),
        payload: Payload::Membership(b"a configuration".as_slice().into()),
    });
    records
}

#[test]
fn log_records() {
    let valid: Vec<Vec<u8>> = records().iter().map(|r| r.encode().to_vec()).collect();
    let format = valid[0][0];
    let mend = |bytes: &mut Vec<u8>| {
        if let Some(first) = bytes.first_mut() {
            *first = format;
        }
        seal(bytes);
    };
    let tally = fuzz(1, &valid, COUNT, mend, |bytes| {
        match LogRecord::decode(bytes) {
            // What is taken says the same again.
            Ok(record) => {
                assert_eq!(LogRecord::decode(&record.encode()).as_ref(), Ok(&record));
                Depth::Whole
            }
            Err(BadRecord::UnknownFormat(_)) => Depth::Header,
            Err(BadRecord::Damaged(why)) => {
                let header = ["empty", "cut short", "checksum"];
                match header.iter().any(|word| why.contains(word)) {
                    true => Depth::Header,
                    false => Depth::Body,
                }
            }
        }
    });
    tally.must_be_deep();
}

#[test]
fn entries() {
    let entry = |record: &LogRecord| match &record.payload {
        Payload::Entry(entry) => Some(entry.encode()),
        Payload::Blank | Payload::Membership(_) => None,
    };
    let valid: Vec<Vec<u8>> = records().iter().filter_map(entry).collect();
    let format = valid[0][0];
    let mend = |bytes: &mut Vec<u8>| {
        if let Some(first) = bytes.first_mut() {
            *first = format;
        }
    };
    let tally = fuzz(2, &valid, COUNT, mend, |bytes| match Entry::decode(bytes) {
        Ok(entry) => {
            assert!(entry.patches.iter().all(|patch| patch.is_well_formed()));
            Depth::Whole
        }
        Err(BadEntry::UnknownFormat(_)) => Depth::Header,
        Err(BadEntry::Damaged(why)) if why.contains("empty") => Depth::Header,
        Err(BadEntry::Damaged(_)) => Depth::Body,
    });
    tally.must_be_deep();
}

fn receive(frames: &[Vec<u8>]) -> Result<bool, String> {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(9));
    let mut receiving = Receiving::start(disk, 1 << 20).unwrap();
    for frame in frames {
        match receiving.accept(frame) {
            Ok(Received::More(more)) => receiving = *more,
            Ok(Received::Whole(_)) => return Ok(true),
            Err(ImageError::Refused(why)) => return Err(why),
            Err(ImageError::Fatal(fatal)) => {
                panic!("bad bytes are no failure of the disk: {fatal}")
            }
        }
    }
    Ok(false)
}

#[test]
fn images() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let mut state = open_state(&disk);
    for index in 0..=60 {
        let record = committed(index);
        state.apply(record.position, &record.payload).unwrap();
    }
    let frames: Vec<Vec<u8>> = ImageReader::new(state.view())
        .map(|frame| frame.unwrap().to_vec())
        .collect();
    assert_eq!(receive(&frames), Ok(true));
    let mut dice = Dice::new(3);
    let (mut damaged, mut deep) = (0, 0);
    for _ in 0..IMAGES {
        let mut sent = frames.clone();
        match dice.below(8) {
            0 => {
                let (a, b) = (dice.below(sent.len()), dice.below(sent.len()));
                sent.swap(a, b);
            }
            1 => {
                sent.remove(dice.below(frames.len()));
            }
            2 => sent.insert(dice.below(frames.len()), dice.bytes()),
            _ => {
                let which = dice.below(sent.len());
                let mut frame = std::mem::take(&mut sent[which]);
                dice.damage(&mut frame, &frames);
                if dice.below(3) > 0 {
                    seal(&mut frame);
                }
                sent[which] = frame;
            }
        }
        let got = receive(&sent);
        if sent == frames {
            continue;
        }
        damaged += 1;
        match got {
            Err(why) => {
                deep += u32::from(!why.contains("checksum does") && !why.contains("cut short"))
            }
            // It ended early: no trailer.
            Ok(false) => deep += 1,
            Ok(true) => panic!("another image than the one that was sent became whole"),
        }
    }
    assert!(
        damaged > IMAGES / 2 && deep * 10 >= damaged,
        "{deep} of {damaged}"
    );
}
