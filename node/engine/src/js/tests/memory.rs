//! Running out of memory at any allocation ends the call, never the process, and gives back
//! every byte.

use serde_json::json;

use super::*;

const BUSY: &str = "
import { mutation, t, table } from '@flower/sdk';
table('rows', { n: t.int(), s: t.text() }, { indexes: { byN: ['n'] } });
export const f = mutation({}, (tx) => {
  const ids = [];
  for (let i = 0; i < 40; i++) ids.push(tx.rows.insert({ n: i % 7, s: 'x'.repeat(i * 10) }));
  const m = new Map(ids.map((id) => [id, tx.rows.get(id)]));
  for (const row of tx.rows.byN.range({ n: 3 })) tx.rows.patch(row.id, { n: 9 });
  const found = [...'abcabc'.matchAll(/b(c)/g)].map((x) => x[1]);
  class Odd extends Error { constructor(m) { super(m); this.name = 'Odd'; } }
  try { throw new Odd('x') } catch (e) { found.push(String(e)) }
  found.push(`${10n ** 400n}`.length, JSON.stringify([...m.values()]).length);
  return { found, sorted: [...ids].sort().length, n: tx.rows.byN.range({ n: 9 }).count() };
});";

#[test]
fn any_allocation_may_fail() {
    let mut failed = 0;
    for n in 0..400 {
        let mut world = world(BUSY);
        world.isolate.meter().fail_from(Some(n));
        let result = world.mutate_raw("f", "{}");
        world.isolate.meter().fail_from(None);
        if result.is_ok() {
            break;
        }
        failed += 1;
        assert_eq!(
            problem(result).setting.as_deref(),
            Some("FLOWER_LIMIT_HEAP"),
            "{n}"
        );
        assert!(world.isolate.must_recycle());
    }
    assert!(failed > 5, "only {failed} allocations could fail");
}

#[test]
fn a_dropped_isolate_gives_back_its_memory() {
    let mut world = world(BUSY);
    world.mutate("f", json!({}));
    let meter = world.isolate.meter_handle();
    assert!(meter.heap() > 100_000);
    drop(world.isolate);
    assert_eq!(meter.heap(), 0);
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
