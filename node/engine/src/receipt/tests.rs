use super::*;
use crate::view::MemoryView;

const RETENTION: u64 = 1_000;

fn scope() -> Scope {
    Scope {
        partition: "_".into(),
        subject: "client".into(),
    }
}

fn key(text: &str) -> IdempotencyKey {
    text.parse().unwrap()
}

/// A UUIDv7 of this time.
fn timed(ms: u64, tail: u64) -> IdempotencyKey {
    let at = uuid::Timestamp::from_unix_time(ms / 1_000, (ms % 1_000) as u32 * 1_000_000, 0, 0);
    let mut bytes = *uuid::Uuid::new_v7(at).as_bytes();
    bytes[9..16].copy_from_slice(&tail.to_be_bytes()[1..]);
    key(&uuid::Uuid::from_bytes(bytes).to_string())
}

fn write(view: &mut MemoryView, key: &IdempotencyKey, args: &str, now: u64, ended: Ended) {
    let mut patch = PatchBuilder::new();
    let receipt = Receipt {
        revision: Revision(now),
        mutation: "add".into(),
        fingerprint: Fingerprint::of("add", args).unwrap(),
        ended,
        created_ms: now,
        until_ms: until_ms(key, now, RETENTION),
    };
    record(&mut patch, &scope(), key, &receipt);
    view.apply(&patch.seal());
    assert_eq!(find(view, &scope(), key).unwrap().unwrap(), receipt);
}

fn judged(view: &MemoryView, key: &IdempotencyKey, args: &str, now: u64) -> String {
    let print = Fingerprint::of("add", args).unwrap();
    match judge(view, &scope(), key, print, now, RETENTION).unwrap() {
        Judged::New => "new".into(),
        Judged::Replay(_) => "replay".into(),
        Judged::Refuse(problem) => format!("{} {}", problem.status, problem.code),
    }
}

#[test]
fn keys_are_printable_ascii() {
    for bad in ["", "a b", "ä", "a\n", &"x".repeat(256)] {
        let problem = bad.parse::<IdempotencyKey>().unwrap_err();
        assert_eq!((problem.status, &problem.code[..]), (400, "malformed"));
    }
    assert_eq!(key(&"x".repeat(255)).as_str().len(), 255);
    assert_eq!(key("order-7").time_ms(), None);
    assert_eq!(
        timed(1_700_000_000_123, 0).time_ms(),
        Some(1_700_000_000_123)
    );
    // Version 4, and a UUID without hyphens: plain text.
    assert_eq!(key("9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d").time_ms(), None);
    assert_eq!(key("0190163d8694739baea5966c26f8ad91").time_ms(), None);
}

#[test]
fn a_fingerprint_ignores_order_and_space_but_no_value() {
    let of = |args| Fingerprint::of("add", args).unwrap();
    assert_eq!(
        of(r#"{"a":1,"b":[1,{"c":2,"d":3}]}"#),
        of("{ \"b\": [1,{\"d\":3,\"c\":2}], \"a\": 1 }")
    );
    assert_ne!(of(r#"{"a":1}"#), of(r#"{"a":2}"#));
    assert_ne!(of(r#"{"a":[1,2]}"#), of(r#"{"a":[2,1]}"#));
    assert_ne!(of("{}"), Fingerprint::of("sub", "{}").unwrap());
    assert!(Fingerprint::of("add", "{").is_err());
}

#[test]
fn the_same_call_is_replayed_and_another_one_refused() {
    let mut view = MemoryView::default();
    let k = key("k1");
    assert_eq!(judged(&view, &k, "{}", 10), "new");
    write(&mut view, &k, "{}", 10, keep("7"));
    assert_eq!(judged(&view, &k, "{}", 11), "replay");
    assert_eq!(judged(&view, &k, r#"{"x":1}"#, 11), "422 key-reused");
    assert_eq!(judged(&view, &key("k2"), "{}", 11), "new");
    let other = Scope {
        subject: "other".into(),
        ..scope()
    };
    assert_eq!(find(&view, &other, &k).unwrap(), None);
}

#[test]
fn faults_and_large_results_are_told_apart() {
    let mut view = MemoryView::default();
    let mut fault = Problem::new(409, "fault:sold-out", "Sold out", "none left");
    fault.data = Some(serde_json::json!({"left": 0}));
    write(&mut view, &key("f"), "{}", 1, Ended::Fault(Box::new(fault)));
    let large = "x".repeat(RECEIPT_RESULT_BYTES as usize + 1);
    assert_eq!(keep(&large), Ended::ResultNotKept);
    write(&mut view, &key("l"), "{}", 1, keep(&large));
}

#[test]
fn old_uuids_are_refused_by_retention_and_by_the_watermark() {
    let mut view = MemoryView::default();
    let old = timed(5_000, 1);
    assert_eq!(judged(&view, &old, "{}", 6_000), "new");
    assert_eq!(judged(&view, &old, "{}", 6_001), "410 key-expired");
    // Kept, it answers whatever its age.
    write(&mut view, &old, "{}", 5_900, keep("1"));
    assert_eq!(judged(&view, &old, "{}", 6_899), "replay");
    // Trimmed, it is refused even when the retention has been raised since.
    let before = trim(&view, 6_899, 100).unwrap();
    assert_eq!((before.trimmed, before.next_due_ms), (0, Some(6_900)));
    assert!(before.patch.is_empty());
    let after = trim(&view, 6_900, 100).unwrap();
    assert_eq!((after.trimmed, after.next_due_ms), (1, None));
    view.apply(&after.patch.seal());
    let print = Fingerprint::of("add", "{}").unwrap();
    let raised = judge(&view, &scope(), &old, print, 7_000, 1_000_000).unwrap();
    assert!(matches!(raised, Judged::Refuse(p) if p.code == "key-expired"));
    let younger = judge(&view, &scope(), &timed(5_901, 2), print, 7_000, 1_000_000).unwrap();
    assert_eq!(younger, Judged::New);
}

#[test]
fn a_key_of_a_fast_clock_is_kept_until_its_own_time_plus_retention() {
    let mut view = MemoryView::default();
    let fast = timed(50_000, 1);
    write(&mut view, &fast, "{}", 1_000, keep("1"));
    assert_eq!(trim(&view, 50_999, 100).unwrap().trimmed, 0);
    assert_eq!(trim(&view, 51_000, 100).unwrap().trimmed, 1);
}

#[test]
fn a_trim_takes_the_oldest_first_and_at_most_its_limit() {
    let mut view = MemoryView::default();
    for i in 0..10 {
        write(&mut view, &key(&format!("k{i}")), "{}", 100 + i, keep("1"));
    }
    let first = trim(&view, 10_000, 4).unwrap();
    assert_eq!((first.trimmed, first.next_due_ms), (4, Some(1_104)));
    view.apply(&first.patch.seal());
    assert_eq!(find(&view, &scope(), &key("k3")).unwrap(), None);
    assert!(find(&view, &scope(), &key("k4")).unwrap().is_some());
    let rest = trim(&view, 10_000, 100).unwrap();
    assert_eq!((rest.trimmed, rest.next_due_ms), (6, None));
    view.apply(&rest.patch.seal());
    let left: Vec<_> = view.entries().map(|(space, ..)| space).collect();
    assert_eq!(left, [Space::Meta]);
}
