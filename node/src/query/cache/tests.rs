//! Tables: what is found at which position, and who makes room.

use flower_api::Revision;
use flower_engine::{Entry as LogEntry, EntryKind, PatchBuilder, ReadSetBuilder, Space};

use super::*;
use crate::recent::Written;

fn key(name: &str) -> Key {
    Key {
        name: name.into(),
        args: "{}".into(),
    }
}

fn outcome(key: &Key, result: &str, read: &[u8]) -> Arc<Outcome> {
    let mut reads = ReadSetBuilder::default();
    reads.record(Space::Data, read);
    Arc::new(Outcome::new(key, Ok(result.into()), Some(reads.finish())))
}

fn write(ring: &mut Ring, index: u64, written: &[u8]) {
    let mut patch = PatchBuilder::new();
    patch.delete(Space::Data, written.to_vec());
    let entry = LogEntry {
        kind: EntryKind::Mutations,
        revision: Revision(index),
        stamp_ms: 0,
        patches: vec![Arc::new(patch.seal())],
    };
    ring.note(Written::of(index, &entry));
}

fn value(found: Found) -> Option<String> {
    match found {
        Found::Valid(outcome, _) => {
            let json = outcome.result.as_ref().unwrap();
            Some(String::from_utf8(json.to_vec()).unwrap())
        }
        Found::Newer => Some("newer".into()),
        Found::Nothing => None,
    }
}

#[test]
fn a_result_holds_until_something_that_it_read_is_written() {
    let mut ring = Ring::new(1 << 20, 10);
    let mut cache = Cache::new(1 << 20);
    let (q, live) = (key("q"), Arc::<str>::from("live"));
    cache.put(&q, &live, 10, &outcome(&q, "1", b"a"), false);
    assert_eq!(value(cache.find(&q, "live", 10, &ring)), Some("1".into()));
    assert_eq!(
        value(cache.find(&q, "live", 9, &ring)),
        Some("newer".into())
    );
    write(&mut ring, 11, b"b");
    ring.pass(12);
    assert_eq!(value(cache.find(&q, "live", 12, &ring)), Some("1".into()));
    write(&mut ring, 13, b"a");
    assert_eq!(value(cache.find(&q, "live", 12, &ring)), Some("1".into()));
    assert_eq!(value(cache.find(&q, "live", 13, &ring)), None);
    assert_eq!(cache.stats().bytes, 0, "what no longer holds is gone");
}

#[test]
fn another_deployment_and_a_forgotten_past_are_misses() {
    let mut ring = Ring::new(1 << 20, 10);
    let mut cache = Cache::new(1 << 20);
    let (q, live) = (key("q"), Arc::<str>::from("live"));
    cache.put(&q, &live, 10, &outcome(&q, "1", b"a"), false);
    assert_eq!(value(cache.find(&q, "next", 10, &ring)), None);
    cache.put(&q, &live, 10, &outcome(&q, "1", b"a"), false);
    ring.reset(20);
    assert_eq!(value(cache.find(&q, "live", 20, &ring)), None);
    // Nobody knows what it read, or it is too large.
    let blind = Arc::new(Outcome::new(&q, Ok("1".into()), None));
    cache.put(&q, &live, 20, &blind, false);
    let large = outcome(&q, &"x".repeat(1 << 19), b"a");
    cache.put(&q, &live, 20, &large, false);
    assert_eq!(value(cache.find(&q, "live", 20, &ring)), None);
    // An older result does not take the place of a newer one.
    cache.put(&q, &live, 20, &outcome(&q, "2", b"a"), false);
    cache.put(&q, &live, 19, &outcome(&q, "1", b"a"), false);
    assert_eq!(value(cache.find(&q, "live", 20, &ring)), Some("2".into()));
}

#[test]
fn what_nobody_watches_goes_first_and_the_longest_unused_before_the_others() {
    let ring = Ring::new(1 << 20, 1);
    let mut cache = Cache::new(10_000);
    let live = Arc::<str>::from("live");
    let keys: Vec<Key> = ["a", "b", "c", "d", "e"].map(key).to_vec();
    let body = "x".repeat(2_000);
    let put = |cache: &mut Cache, k: &Key, watched| {
        cache.put(k, &live, 1, &outcome(k, &body, b"r"), watched)
    };
    assert_eq!(put(&mut cache, &keys[0], true), []);
    for key in &keys[1..4] {
        assert_eq!(put(&mut cache, key, false), []);
    }
    cache.find(&keys[1], "live", 1, &ring);
    cache.watch(&keys[2], true);
    let gone = put(&mut cache, &keys[4], false);
    assert_eq!(gone, [keys[3].clone()]);
    cache.watch(&keys[0], false);
    assert_eq!(put(&mut cache, &keys[3], false), [keys[1].clone()]);
    assert_eq!(put(&mut cache, &keys[1], false), [keys[4].clone()]);
    assert_eq!(cache.stats().evictions, 3);
    assert!(cache.stats().bytes <= 10_000);
}
