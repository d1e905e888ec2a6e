//! Running out of memory at any allocation ends the call, never the process, and gives back
//! every byte.

use serde_json::json;

use super::*;

const BUSY: &str = "
import { mutation, t, table } from '@flower/sdk';
table('rows', { n: t.int(), s: t.text() }, { indexes: { byN: ['n'] } });
export const f = mutation({}, (tx) => {
  const ids = [];
  for (let i = 0; i < 80; i++) ids.push(tx.rows.insert({ n: i % 7, s: 'x'.repeat(i * 10) }));
  const m = new Map(ids.map((id) => [id, tx.rows.get(id)]));
  for (const row of tx.rows.byN.range({ n: 3 })) tx.rows.patch(row.id, { n: 9 });
  const found = [...'abcabc'.matchAll(/b(c)/g)].map((x) => x[1]);
  class Odd extends Error { constructor(m) { super(m); this.name = 'Odd'; } }
  try { throw new Odd('x') } catch (e) { found.push(String(e)) }
  found.push(`${10n ** 400n}`.length, JSON.stringify([...m.values()]).length);
  return { found, sorted: [...ids].sort().length, n: tx.rows.byN.range({ n: 9 }).count() };
});";

/// Lets the nth allocation and all later ones fail, until there are not so many: for each of
/// the first ns, later for some.
fn fail_everywhere(mut run: impl FnMut(u64) -> bool) -> u64 {
    let (mut n, mut failed) = (0, 0);
    while run(n) {
        failed += 1;
        n += 1 + n / 12;
        assert!(n < 1_000_000, "it never ends well");
    }
    failed
}

/// Runs `f` with the nth allocation and all later ones failing, drops the isolate and sees
/// that every byte came back.
fn fail_at(mut world: World, n: u64) -> (Result<Evaluated, CallError>, bool) {
    world.isolate.meter().fail_from(Some(n));
    let result = world.mutate_raw("f", "{}");
    let recycle = world.isolate.must_recycle();
    let meter = world.isolate.meter_handle();
    meter.fail_from(None);
    drop(world.isolate);
    assert_eq!(
        meter.heap(),
        0,
        "every byte comes back after failing at {n}"
    );
    (result, recycle)
}

#[test]
fn any_allocation_may_fail() {
    let failed = fail_everywhere(|n| {
        let (result, recycle) = fail_at(world(BUSY), n);
        let failed = result.is_err();
        if failed {
            assert_eq!(
                problem(result).setting.as_deref(),
                Some("FLOWER_LIMIT_HEAP"),
                "{n}"
            );
            assert!(recycle);
        }
        failed
    });
    assert!(failed > 5, "only {failed} allocations could fail");
}

/// Scripts that need large blocks, which QuickJS allocates one by one.
const GREEDY: &[&str] = &[
    "return JSON.stringify(JSON.parse('[' + '{\"a\":[1,\"x\"]},'.repeat(3000) + '1]'))",
    "return 'ab'.repeat(9000).split('b').sort().join('-').replaceAll('a', 'xyz').toUpperCase()",
    "return 'abc'.repeat(3000).replace(/b(c)/g, (m, x) => x + x).match(/(?:c+)a?/g).length",
    "return `${(3n ** 50000n) * (7n ** 9000n) % 1000007n}`",
    "class A { #x = 1; get x() { return this.#x } } \
     return new Array(5000).fill(0).map(() => new A()).reduce((n, a) => n + a.x, 0)",
    "const m = new Map(), s = new Set(); for (let i = 0; i < 5000; i++) { m.set(`k${i}`, i); s.add({}) } \
     return [...m.entries()].flat().length + s.size",
    "function* g(n) { if (n > 0) { yield n; yield* g(n - 1) } } return [...g(40)].length",
    "const o = {}; for (let i = 0; i < 3000; i++) o[`k${i}`] = { i, o: [i] }; \
     return Object.entries({ ...o }).map(([k, v]) => k + v.i).join().length",
    "try { null.x } catch (e) { return e.stack.length + new Error('x'.repeat(9999)).message.length }",
    "return 'e\\u0301'.repeat(5000).normalize('NFC').length + encodeURIComponent('\\u00e9'.repeat(9000)).length",
    "const a = []; for (let i = 0; i < 3000; i++) a.push(() => a); return a.length",
    "return [...'x'.repeat(5000)].map((x, i) => new Date(i).toISOString()).length",
];

#[test]
fn any_large_allocation_may_fail() {
    for body in GREEDY {
        println!("{body}");
        fail_everywhere(|n| fail_at(function(body), n).0.is_err());
    }
}

#[test]
fn a_dropped_isolate_gives_back_its_memory() {
    let mut world = world(BUSY);
    world.mutate("f", json!({}));
    let meter = world.isolate.meter_handle();
    assert!(meter.heap() > 100_000);
    drop(world.isolate);
    assert_eq!(meter.heap(), 0);
    assert_eq!(std::rc::Rc::strong_count(&meter), 1, "nothing is abandoned");
}

#[test]
fn a_heap_too_small_for_the_engine_is_told() {
    for heap_bytes in [0, 1 << 10, 100 << 10, 500 << 10] {
        let limits = Limits {
            heap_bytes,
            ..Limits::default()
        };
        let error = inspect(BUSY, &limits, &Deadline::never()).expect_err("too small");
        assert!(error.to_string().contains("FLOWER_LIMIT_HEAP"), "{error}");
    }
}

#[test]
fn the_heap_does_not_grow_from_call_to_call() {
    let mut world = world(BUSY);
    for _ in 0..20 {
        world.mutate("f", json!({}));
    }
    let before = world.isolate.heap_bytes();
    for _ in 0..200 {
        world.mutate("f", json!({}));
    }
    let after = world.isolate.heap_bytes();
    assert!(after < before + (256 << 10), "{before} then {after}");
}

/// Collecting garbage may fall into the failure, in a stretch that the other tests miss.
#[test]
fn each_single_allocation_may_fail() {
    let failing = (0..)
        .find(|&n| fail_at(world(BUSY), n).0.is_ok())
        .expect("one that no longer fails");
    assert!(failing > 100, "only {failing} allocations could fail");
}
