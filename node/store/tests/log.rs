//! The log: what is readable when, what a flush costs and keeps, and readers on other threads.
#![allow(missing_docs)]

mod common;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use common::{at, open_log, padded};
use flower_store::{Checkpointed, Disk, FileName, LogPosition, LogRecord, SimDisk};

fn indexes(records: &[LogRecord]) -> Vec<u64> {
    records.iter().map(|r| r.position.index).collect()
}

fn disk() -> (SimDisk, Arc<dyn Disk>) {
    let sim = SimDisk::new(5);
    (sim.clone(), Arc::new(sim))
}

#[test]
fn what_is_appended_is_readable_at_once_and_durable_after_one_sync() {
    let (sim, disk) = disk();
    let log = open_log(&disk, 1 << 20);
    let before = sim.syncs();
    log.append((0..20).map(|i| padded(1, i, 100)));
    log.save_vote(Bytes::from_static(b"vote"));
    log.note_committed(Some(Bytes::from_static(b"committed")));
    let reader = log.reader();
    assert_eq!(indexes(&reader.get(3..6, u64::MAX).unwrap()), [3, 4, 5]);
    assert_eq!(sim.syncs(), before, "nothing is durable yet");

    let flushed = log.flush().unwrap();
    assert_eq!(sim.syncs(), before + 1, "one commit, one sync");
    assert_eq!(flushed.position(), Some(at(1, 19)));
    log.flush().unwrap();
    assert_eq!(sim.syncs(), before + 1, "nothing to write costs nothing");

    sim.cut_power();
    drop(log);
    let log = open_log(&disk, 1 << 20);
    let reader = log.reader();
    assert_eq!(reader.bounds().last, Some(at(1, 19)));
    assert_eq!(reader.get(0..100, u64::MAX).unwrap().len(), 20);
    assert_eq!(reader.vote().as_deref(), Some(&b"vote"[..]));
    assert_eq!(reader.committed().as_deref(), Some(&b"committed"[..]));
}

#[test]
fn what_was_not_flushed_is_gone_after_a_cut() {
    let (sim, disk) = disk();
    let log = open_log(&disk, 1 << 20);
    log.append((0..3).map(|i| padded(1, i, 10)));
    log.flush().unwrap();
    log.append((3..9).map(|i| padded(1, i, 10)));
    sim.cut_power();
    drop(log);
    let log = open_log(&disk, 1 << 20);
    assert_eq!(log.reader().bounds().last, Some(at(1, 2)));
}

#[test]
fn the_tail_is_bounded_and_older_records_come_from_the_file() {
    let (_, disk) = disk();
    let log = open_log(&disk, 5_000);
    for batch in 0..10 {
        log.append((batch * 10..batch * 10 + 10).map(|i| padded(1, i, 1_000)));
        let unflushed = log.stats().tail_bytes;
        assert!(unflushed >= 10_000, "what is not flushed is never dropped");
        log.flush().unwrap();
        assert!(log.stats().tail_bytes <= 5_000, "{:?}", log.stats());
    }
    let reader = log.reader();
    let all = reader.get(0..100, u64::MAX).unwrap();
    assert_eq!(indexes(&all), (0..100).collect::<Vec<_>>());
    assert!(all.iter().all(|r| *r == padded(1, r.position.index, 1_000)));
    assert!(log.stats().log_bytes > 100_000);

    let few = reader.get(90..100, 2_500).unwrap();
    assert_eq!(indexes(&few), [90, 91], "as many as fit");
    assert_eq!(reader.get(95..100, 1).unwrap().len(), 1, "at least one");
    assert_eq!(indexes(&reader.get(98..200, u64::MAX).unwrap()), [98, 99]);
    assert!(reader.get(200..300, u64::MAX).unwrap().is_empty());
}

#[test]
fn truncation_reaches_into_the_tail_and_into_the_file() {
    for (tail_bytes, cut) in [(1 << 20, 7), (0, 7), (2_500, 2), (2_500, 8)] {
        let (sim, disk) = disk();
        let log = open_log(&disk, tail_bytes);
        log.append((0..10).map(|i| padded(1, i, 1_000)));
        log.flush().unwrap();
        log.truncate_after(Some(cut)).unwrap();
        let reader = log.reader();
        assert_eq!(reader.bounds().last, Some(at(1, cut)));
        assert_eq!(reader.get(0..99, u64::MAX).unwrap().len() as u64, cut + 1);

        log.append((cut + 1..cut + 4).map(|i| padded(2, i, 10)));
        let expect = |records: Vec<LogRecord>| {
            let terms: Vec<u64> = records.iter().map(|r| r.position.term).collect();
            let ones = usize::try_from(cut).unwrap() + 1;
            assert_eq!(
                terms,
                [vec![1; ones], vec![2; 3]].concat(),
                "cut after {cut}"
            );
        };
        expect(log.reader().get(0..99, u64::MAX).unwrap());
        log.flush().unwrap();
        expect(log.reader().get(0..99, u64::MAX).unwrap());
        sim.cut_power();
        drop(log);
        let log = open_log(&disk, tail_bytes);
        expect(log.reader().get(0..99, u64::MAX).unwrap());
        assert!(log.stats().log_bytes < 12_000, "{:?}", log.stats());
    }
}

#[test]
fn everything_can_be_truncated() {
    let (_, disk) = disk();
    let log = open_log(&disk, 0);
    log.append((0..4).map(|i| padded(1, i, 10)));
    log.flush().unwrap();
    log.truncate_after(None).unwrap();
    assert_eq!(log.reader().bounds().last, None);
    log.flush().unwrap();
    log.append([padded(2, 0, 10)]);
    log.flush().unwrap();
    drop(log);
    assert_eq!(open_log(&disk, 0).reader().bounds().last, Some(at(2, 0)));
}

#[test]
fn purging_goes_as_far_as_the_checkpoint_and_no_further() {
    let (_, disk) = disk();
    let log = open_log(&disk, 3_000);
    log.append((0..10).map(|i| padded(1, i, 1_000)));
    log.flush().unwrap();
    let checkpoint = Checkpointed::pretend(at(1, 5));
    let refused = log.purge(at(1, 6), &checkpoint).unwrap_err();
    assert!(
        refused.to_string().contains("durable only up to 5"),
        "{refused}"
    );
    assert_eq!(log.reader().bounds().purged, None);

    log.purge(at(1, 5), &checkpoint).unwrap();
    let reader = log.reader();
    assert_eq!(reader.bounds().purged, Some(at(1, 5)));
    assert_eq!(indexes(&reader.get(0..99, u64::MAX).unwrap()), [6, 7, 8, 9]);
    let before = log.stats().log_bytes;
    log.flush().unwrap();
    assert!(log.stats().log_bytes < before / 2, "the file is freed too");
    log.purge(at(1, 3), &checkpoint).unwrap();
    assert_eq!(log.reader().bounds().purged, Some(at(1, 5)), "never back");
    drop(log);
    let reader = open_log(&disk, 0).reader();
    assert_eq!(reader.bounds().purged, Some(at(1, 5)));
    assert_eq!(indexes(&reader.get(0..99, u64::MAX).unwrap()), [6, 7, 8, 9]);
}

#[test]
fn an_image_purges_beyond_the_end_and_the_log_goes_on_behind_it() {
    let (_, disk) = disk();
    let log = open_log(&disk, 1 << 20);
    log.append((0..3).map(|i| padded(1, i, 10)));
    log.flush().unwrap();
    log.append([padded(1, 3, 10)]);
    log.purge(at(4, 50), &Checkpointed::pretend(at(4, 50)))
        .unwrap();
    assert_eq!(log.reader().bounds().last, Some(at(4, 50)));
    assert!(log.reader().get(0..99, u64::MAX).unwrap().is_empty());
    log.append([padded(4, 51, 10)]);
    let flushed = log.flush().unwrap();
    assert_eq!(flushed.position(), Some(at(4, 51)));
    drop(log);
    let reader = open_log(&disk, 0).reader();
    assert_eq!(reader.bounds().purged, Some(at(4, 50)));
    assert_eq!(indexes(&reader.get(0..99, u64::MAX).unwrap()), [51]);
}

#[test]
fn the_file_stays_as_large_as_what_the_log_keeps() {
    let (_, disk) = disk();
    let log = open_log(&disk, 100_000);
    let mut largest = 0;
    for batch in 0..200_u64 {
        log.append((batch * 10..batch * 10 + 10).map(|i| padded(1, i, 4_000)));
        log.flush().unwrap();
        if batch >= 20 {
            let upto = at(1, (batch - 20) * 10);
            log.purge(upto, &Checkpointed::pretend(upto)).unwrap();
        }
        let length = disk.len(FileName::Log).unwrap().unwrap();
        if batch == 60 {
            largest = length;
        }
        assert!(batch < 60 || length <= largest, "{length} after {largest}");
    }
    println!("800 kB kept of 8 MB, file of {largest}");
    assert!(largest < 4 << 20, "{largest}");
}

#[test]
fn a_log_may_begin_anywhere() {
    let (_, disk) = disk();
    let log = open_log(&disk, 0);
    log.append((5..8).map(|i| padded(1, i, 10)));
    let read = || indexes(&log.reader().get(0..99, u64::MAX).unwrap());
    assert_eq!(read(), [5, 6, 7]);
    log.flush().unwrap();
    assert_eq!(read(), [5, 6, 7]);
    drop(log);
    let reader = open_log(&disk, 0).reader();
    assert_eq!(indexes(&reader.get(0..99, u64::MAX).unwrap()), [5, 6, 7]);
}

#[test]
#[should_panic(expected = "record 5 cannot follow")]
fn a_hole_is_never_written() {
    let (_, disk) = disk();
    let log = open_log(&disk, 0);
    log.append([padded(1, 3, 10), padded(1, 5, 10)]);
}

#[test]
fn a_failed_write_says_what_to_do_and_ends_the_log() {
    let (sim, disk) = disk();
    let log = open_log(&disk, 0);
    sim.set_capacity(0);
    log.append((0..9).map(|i| padded(1, i, 100_000)));
    let full = log.flush().unwrap_err().to_string();
    assert!(
        full.contains("raft.redb") && full.contains("volume is full"),
        "{full}"
    );
    sim.set_capacity(1 << 40);
    assert!(
        log.flush().is_err(),
        "no second try on a file of unknown content"
    );
    drop(log);
    assert_eq!(open_log(&disk, 0).reader().bounds().last, None);
}

#[test]
fn readers_see_one_coherent_log_while_it_is_rewritten() {
    let (_, disk) = disk();
    let log = open_log(&disk, 2_000);
    log.append((0..40).map(|i| padded(1, i, 200)));
    log.flush().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (reader, stop) = (log.reader(), stop.clone());
            std::thread::spawn(move || {
                let mut reads = 0_u64;
                while !stop.load(Ordering::Relaxed) || reads < 2 {
                    let records = reader.get(0..1_000, u64::MAX).unwrap();
                    let steps = records.windows(2);
                    for pair in steps {
                        let (a, b) = (pair[0].position, pair[1].position);
                        assert_eq!(a.index + 1, b.index);
                        assert!(a.term <= b.term, "{a} before {b}: two logs mixed");
                    }
                    assert!(!records.is_empty());
                    reads += 1;
                }
                reads
            })
        })
        .collect();
    let mut purged = 0;
    for term in 2..80 {
        let last = log.reader().bounds().last.unwrap().index;
        let keep = last - term % 9;
        log.truncate_after(Some(keep)).unwrap();
        log.append((keep + 1..keep + 12).map(|i| padded(term, i, 200)));
        if term % 3 != 0 {
            log.flush().unwrap();
        }
        if term % 7 == 0 {
            purged += 10;
            let upto = log.reader().get(purged..purged + 1, 1).unwrap()[0].position;
            log.purge(upto, &Checkpointed::pretend(upto)).unwrap();
        }
    }
    stop.store(true, Ordering::Relaxed);
    let reads: u64 = readers.into_iter().map(|r| r.join().unwrap()).sum();
    assert!(reads > 2, "{reads}");
}

/// Appending while a flush runs: the flush promises what it took, the next one the rest.
#[test]
fn appending_goes_on_during_flushes() {
    for seed in 0..30 {
        let sim = SimDisk::new(seed);
        let disk: Arc<dyn Disk> = Arc::new(sim.clone());
        let log = Arc::new(open_log(&disk, 500));
        let stop = Arc::new(AtomicBool::new(false));
        let flusher = {
            let (log, stop) = (log.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut promised = None;
                while !stop.load(Ordering::Relaxed) {
                    let flushed = log.flush().unwrap().position();
                    // One less at most: the junk that was cut off in between.
                    let index = |p: Option<LogPosition>| p.map_or(0, |p| p.index + 1);
                    assert!(
                        index(flushed) + 1 >= index(promised),
                        "{flushed:?} after {promised:?}"
                    );
                    promised = flushed;
                }
                promised
            })
        };
        for index in 0..200_u64 {
            // Junk of the same term that is cut off again, now and then while it is written.
            log.append([padded(1, index, 100), padded(1, index + 1, 7)]);
            log.truncate_after(Some(index)).unwrap();
            let read = log.reader().get(0..1_000, u64::MAX).unwrap();
            assert_eq!(read.len() as u64, index + 1);
            assert_eq!(read.last(), Some(&padded(1, index, 100)));
        }
        stop.store(true, Ordering::Relaxed);
        let promised = flusher.join().unwrap();
        sim.cut_power();
        drop(log);
        let log = open_log(&disk, 500);
        let last = log.reader().bounds().last;
        assert!(last >= promised, "seed {seed}: {last:?} of {promised:?}");
        let kept = log.reader().get(0..1_000, u64::MAX).unwrap();
        assert_eq!(kept.len() as u64, last.map_or(0, |p| p.index + 1));
    }
}
