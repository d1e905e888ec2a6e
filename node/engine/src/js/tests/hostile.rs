//! Hostile scripts: each ends its call, and the isolate's thread is free again. The builtins
//! that QuickJS does not interrupt must come back on their own within their caps.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::json;

use super::*;

fn tight() -> Limits {
    Limits {
        gas: 2_000,
        heap_bytes: 16 << 20,
        ..Limits::default()
    }
}

/// Runs a body: however it ends, it must end. Answers the code of its problem, or `done`.
fn ends(body: &str) -> (String, String) {
    println!("{body}");
    let mut world = function_with(body, tight());
    let flag = Arc::new(AtomicBool::new(false));
    world.deadline = Deadline::new(Arc::clone(&flag));
    // As the node does. What is stopped by it comes back soon after, or the test hangs.
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(250));
        flag.store(true, Ordering::Relaxed);
    });
    let (code, detail) = match world.mutate_raw("f", "{}") {
        Ok(_) => ("done".into(), String::new()),
        Err(CallError::Refused(problem)) => (problem.code, problem.detail),
        Err(other) => panic!("{body}: {other}"),
    };
    if code == "budget" {
        assert!(world.isolate.must_recycle(), "{body}");
    }
    (code, detail)
}

/// Runs bodies that must all fail with one of these codes.
fn all_end(codes: &[&str], bodies: &[&str]) {
    for body in bodies {
        let (code, detail) = ends(body);
        assert!(codes.contains(&code.as_str()), "{body}: {code} {detail}");
    }
}

#[test]
fn endless_loops_run_out_of_gas() {
    all_end(
        &["budget"],
        &[
            "for (;;) {}",
            "while (true) { try { for (;;) {} } catch {} finally { for (;;) {} } }",
            "for (;;) { try { null.x } catch {} }",
            "const f = () => { try { f() } finally { f() } }; for (;;) { try { f() } catch {} }",
            "function* g() { for (;;) yield 1 } for (const x of g()) {}",
            "new Array(1000).fill(0).forEach(() => { for (;;) {} })",
            "const a = { get x() { return this.x } }; for (;;) { try { a.x } catch {} }",
            "const o = { toString() { for (;;) {} } }; return `${o}`",
            "return { toJSON() { for (;;) {} } }",
            "throw { get message() { for (;;) {} } }",
            "let a = 1; for (;;) a = { a }",
        ],
    );
}

#[test]
fn the_deadline_ends_what_gas_would_allow() {
    let flag = Arc::new(AtomicBool::new(false));
    let mut world = function("for (;;) {}");
    world.deadline = Deadline::new(Arc::clone(&flag));
    flag.store(true, Ordering::Relaxed);
    let error = world.fails("f", json!({}));
    assert_eq!(error.setting.as_deref(), Some("FLOWER_LIMIT_WALL_MS"));
    assert!(world.isolate.must_recycle());
    // Growing a result asks for the deadline too.
    for body in [
        "return 'x'.repeat(1e6).split('')",
        "return new Array(1e5).fill(1).join()",
        "const big = (1n << 40000n) - 1n; for (;;) String(big)",
    ] {
        let mut world = function(body);
        world.deadline = Deadline::new(Arc::clone(&flag));
        let error = world.fails("f", json!({}));
        let setting = error.setting.as_deref();
        assert_eq!(setting, Some("FLOWER_LIMIT_WALL_MS"), "{body}");
    }
}

#[test]
fn recursion_ends_as_an_error() {
    all_end(
        &["internal", "budget"],
        &[
            "const f = () => f() + 1; return f()",
            "const o = { toString: () => `${o}` }; return `${o}`",
            "let a = []; for (let i = 0; i < 1e5; i++) a = [a]; return JSON.stringify(a)",
            "return JSON.parse('['.repeat(1e5))",
            "return new RegExp('('.repeat(1e5) + ')'.repeat(1e5)).test('x')",
            "let a = []; for (let i = 0; i < 1e4; i++) a = [a]; return a.flat(Infinity)",
            "let a = []; for (let i = 0; i < 1e4; i++) a = [a]; return String(a)",
            "class A { static #x = 1; static f() { return [1].map(A.f) } } return A.f()",
            "return [3, 2, 1].sort(function c(a, b) { return [a, b].sort(c).length })",
        ],
    );
}

#[test]
fn allocation_ends_at_the_heap() {
    all_end(
        &["internal", "budget"],
        &[
            "const a = []; for (;;) a.push({ a })",
            "let s = 'x'; for (;;) s += s; ",
            "let s = 'x'; for (;;) { s += s; s.charCodeAt(5); }",
            "return 'x'.repeat(1e9)",
            "return 'x'.padStart(1e9)",
            "const m = new Map(); for (let i = 0; ; i++) m.set(i, i)",
            "const a = []; for (;;) a.push('x'.repeat(1e5) + a.length)",
            "const a = []; for (;;) { try { a.push(new Array(1e6).fill(a.length)) } catch {} }",
            "return Array.from({ length: 1e9 })",
            "return [...Array(1e6).keys()].map((x) => ({ x }))",
            "const a = []; a.length = 4e9; return JSON.stringify(a)",
            "const a = []; a.length = 4e9; return [...a]",
            "return String.raw({ raw: { length: 1e15 } }, 1)",
            "const r = /(?:a?){100}/; return r.test('a'.repeat(1e6)) && (() => { for (;;) {} })()",
            "return Object.fromEntries(new Array(4e5).fill(0).map((_, i) => [i, {}])) && \
         (() => { const a = []; for (;;) a.push({}) })()",
        ],
    );
}

#[test]
fn catastrophic_expressions_are_interrupted() {
    all_end(
        &["internal", "budget", "done"],
        &[
            "return /^(a+)+$/.test('a'.repeat(40) + 'b')",
            "return /(a*)*b/.exec('a'.repeat(100000))",
            "return /(x+x+)+y/.test('x'.repeat(60))",
            "return 'a'.repeat(1e5).replace(/(a+)+b/g, '')",
            "return 'a'.repeat(1e6).split(/a{3000}b/)",
            "return 'a'.repeat(1e6).match(/(?=(a+))\\1b/g)",
            "return [...'a'.repeat(3e5).matchAll(/a{2000}b/g)]",
            "return 'a'.repeat(1e6).search(/a{3000}b/)",
            "return 'a'.repeat(3e5).replace(/.*?.*?.*?b/y, '')",
            "const r = /a/g; r.exec = () => ({ index: 0, 0: '' }); return 'x'.replace(r, 'y')",
            "return new RegExp('(?:a{1000}){1000}').test('a'.repeat(2e6)) && (() => { for (;;) {} })()",
        ],
    );
}

/// One haystack times needle search took minutes; an array of holes costs no memory.
const UNINTERRUPTED: &[&str] = &[
    "const h = 'a'.repeat(4e6), n = { toString: () => 'a'.repeat(4000) + 'b' }; return h.split(n)",
    "const h = 'a'.repeat(4e6), n = { toString: () => 'a'.repeat(4000) + 'b' }; return h.replaceAll(n, '')",
    "const h = 'a'.repeat(4e6), n = { toString: () => 'a'.repeat(4000) + 'b' }; return h.replace(n, '')",
    "const h = 'a'.repeat(4e6), n = { toString: () => 'a'.repeat(4000) + 'b' }; return h.indexOf(n)",
    "const a = []; a.length = 4e9; a.length = 0; return a.length",
    "const a = []; a[4e9] = 1; a[5] = 1; a.length = 3; return a.length",
    "const a = []; a.length = 4e9; return Object.keys(a).length",
    "const a = []; a.length = 4e9; for (const x in a) {} return 1",
    "const a = []; a.length = 4e9; return Object.freeze(a).length",
    "const a = []; a.length = 4e9; return Array.from(a.keys()).length",
    "const a = []; a.length = 4e9; return Object.fromEntries(a.entries())",
    "const a = []; a.length = 4e9; return Object.assign({}, a)",
    "const a = []; a.length = 4e9; return a.keys().reduce((n, x) => n + x, 0)",
    "return new RegExp('[' + 'a-z'.repeat(3e5) + ']', 'iu').test('x')",
    "return new RegExp('[\\u{1}-\\u{10ffff}]'.repeat(3e3), 'iu').test('x')",
    "return new RegExp('\\\\p{L}'.repeat(3e3), 'iu').test('x')",
    "for (;;) new RegExp('a{1000}'.repeat(1000))",
    "const s = 'x'.repeat(1e6); for (;;) new Function.prototype.constructor(s)",
    "const s = 'x,'.repeat(5e5); for (;;) s.split(',')",
    "const f = Object.keys; for (;;) f('x'.repeat(1e5))",
    "const k = 'x'.repeat(1e6); const o = {}; for (let i = 0; ; i++) o[k + i] = 1",
    "for (let i = 0; ; i++) Symbol(`s${i}`.repeat(1e4))",
    "for (let i = 0; ; i++) Symbol.for(`s${i}`)",
    "class A { static { for (;;) {} } }",
    "const a = new Array(1e6).fill(0); for (;;) a.includes(1)",
    "const a = new Array(1e6).fill(0); for (;;) [...a]",
    "const a = new Array(1e6).fill(0); for (;;) new Set(a)",
    "const a = new Array(1e5).fill([1, 2]); for (;;) new Map(a)",
    "const a = new Array(1e5).fill(0); for (;;) a.unshift(1)",
    "const a = new Array(1e5).fill(0); for (;;) a.splice(0, 1, 5)",
    "const s = new Set(Array(1e5).keys()); for (;;) s.union(s)",
    "const s = '\\u03a3.'.repeat(5e5); for (;;) s.toLowerCase()",
    "const d = new Date(0); for (;;) d.toLocaleString()",
    "for (;;) (1e300).toString(2).padStart(1e6)",
    "const h = 'a'.repeat(4e6), n = 'a'.repeat(4000) + 'b'; return h.indexOf(n)",
    "const h = 'a'.repeat(4e6), n = 'a'.repeat(4000) + 'b'; return h.includes(n)",
    "const h = 'a'.repeat(4e6), n = 'b' + 'a'.repeat(4000); return h.lastIndexOf(n)",
    "const h = 'a'.repeat(4e6), n = 'a'.repeat(4000) + 'b'; return h.split(n)",
    "const h = 'a'.repeat(4e6), n = 'a'.repeat(4000) + 'b'; return h.replaceAll(n, '')",
    "const h = 'a'.repeat(4e6), n = 'a'.repeat(4000) + 'b'; return h.replace(n, () => '')",
    "const h = 'a'.repeat(4e6); for (;;) h.indexOf('b')",
    "const h = 'a'.repeat(4e6); for (;;) h.endsWith(h)",
    "const h = 'a'.repeat(4e6); for (;;) h.trim()",
    "return new Array(3e8) + ''",
    "const a = []; a.length = 3e8; return a + ''",
    "const a = []; a.length = 4e9; return a.join()",
    "const a = []; a.length = 4e9; return a.fill(0)",
    "const a = []; a.length = 4e9; return a.reverse()",
    "const a = []; a.length = 4e9; return a.sort()",
    "const a = []; a.length = 4e9; return a.indexOf(1)",
    "const a = []; a.length = 4e9; return a.includes(1)",
    "const a = []; a.length = 4e9; return a.map((x) => x)",
    "const a = []; a.length = 4e9; return a.reduce((x) => x, 0), a.some((x) => x), (() => { for (;;) {} })()",
    "const a = []; a.length = 4e9; return a.concat([1])",
    "return [].concat({ length: 4e9, [Symbol.isConcatSpreadable]: true })",
    "const a = []; a.length = 4e9; return a.slice()",
    "const a = []; a.length = 4e9; return a.splice(1)",
    "const a = []; a.length = 4e9; a[5] = 1; return a.unshift(1)",
    "const a = []; a.length = 4e9; a[5] = 1; return a.shift()",
    "const a = []; a.length = 4e9; return a.copyWithin(0, 1)",
    "const a = []; a.length = 4e9; return a.flat()",
    "const a = []; a.length = 4e9; return [a].flat()",
    "const a = []; a.length = 4e9; return [1].flatMap(() => a)",
    "const a = []; a.length = 4e9; return a.toSorted()",
    "const a = []; a.length = 4e9; return a.with(0, 1)",
    "const a = []; a.length = 4e9; return a.lastIndexOf(1)",
    "const a = []; a.length = 4e9; return a.at(-1) ?? new Set(a)",
    "const a = []; a.length = 4e9; return new Set([1]).isSupersetOf({ size: 1, has: () => true, keys: () => a.keys() })",
    "const a = []; a.length = 4e9; return new Set([1]).union({ size: 1, has: () => true, keys: () => a.values() })",
    "const a = []; a.length = 4e9; return a.values().drop(3e9).next()",
    "const a = []; a.length = 4e9; const [x, ...y] = a; return y",
    "const a = []; a.length = 4e9; return JSON.stringify({}, a)",
    "return Array.prototype.indexOf.call({ length: 2 ** 53 - 1 }, 1)",
    "return Array.prototype.join.call({ get length() { return 2 ** 53 - 1 } })",
    "return Array.prototype.slice.call({ length: 2 ** 53 - 1 }, 5)",
    "return Array.prototype.every.call({ length: 2 ** 53 - 1 }, () => true)",
    "return Array.prototype.findLast.call({ length: 2 ** 53 - 1 }, () => false)",
    "return Math.max.apply(null, { length: 2 ** 32 })",
    "return Reflect.construct(Array, { length: 2 ** 32 })",
    "const a = new Array(1e6).fill('x'); for (;;) a.sort()",
    "const a = new Array(1e5).fill('x'); for (;;) a.join()",
    "const a = new Array(1e5).fill('x'); for (;;) a.indexOf('y')",
    "const a = new Array(1e5).fill('x'); for (;;) { a.shift(); a.push(1) }",
    "const a = new Array(1e5).fill('x'); for (;;) a.slice()",
    "const x = 'x'.repeat(2e6); const a = [...'ab'].flatMap((c) => new Array(50).fill(x + c)); for (;;) a.sort()",
    "return ('a' + '\\u0316\\u0301'.repeat(2e6)).normalize('NFD')",
    "const s = 'a' + '\\u0316\\u0301'.repeat(9000); for (;;) s.normalize('NFD')",
    "const s = 'a' + '\\u0316\\u0301'.repeat(9000); for (;;) s.localeCompare(s)",
    "let x = 3n; for (;;) x = x * x",
    "const x = 3n ** 300000n; for (;;) x * x",
    "const x = 3n ** 600000n; for (;;) String(x)",
    "const x = 7n ** 300000n, y = 3n ** 200000n; for (;;) x / y",
    "const s = '9'.repeat(300000); for (;;) BigInt(s)",
    "return 2n ** (2n ** 64n)",
    "const s = '[' + '1,'.repeat(1e6) + '1]'; for (;;) JSON.parse(s)",
    "const a = JSON.parse('[' + '1,'.repeat(3e5) + '1]'); for (;;) JSON.stringify(a)",
    "const s = 'x'.repeat(1e6); for (;;) encodeURIComponent(s)",
    "const s = 'x'.repeat(1e6); for (;;) s.toUpperCase()",
    "const s = 'x'.repeat(1e6); for (;;) [...s]",
    "const s = '1'.repeat(1e6); for (;;) parseInt(s)",
    "const s = '1'.repeat(1e6); for (;;) Number(s)",
    "const o = {}; for (let i = 0; i < 5e4; i++) o[`k${i}`] = i; for (;;) Object.keys(o)",
    "const o = {}; for (let i = 0; i < 5e4; i++) o[`k${i}`] = i; for (;;) ({ ...o })",
    "const m = new Map(); for (let i = 0; i < 5e4; i++) m.set(i, i); for (;;) new Map(m)",
    "const m = new Map(); for (let i = 0; i < 5e4; i++) m.set(i, i); for (;;) m.forEach(() => {})",
];

/// Each turn of these loops is capped or charged.
#[test]
fn builtins_that_ignore_interrupts_are_capped_or_charged() {
    all_end(&["internal", "budget", "done"], UNINTERRUPTED);
}

#[test]
fn a_script_that_catches_its_budget_fails_all_the_same() {
    let source = "
        import { mutation, query, t, table } from '@flower/sdk';
        table('rows', { n: t.int() });
        export const add = mutation({}, (tx) => {
          for (let i = 0; i < 50; i++) { try { tx.rows.insert({ n: i }) } catch {} }
          return 'fine';
        });
        export const scan = query({}, (db) => {
          for (;;) { try { db.rows.count(); } catch {} }
        });
        export const ranges = query({}, (db) => {
          for (let i = 0; i < 20; i++) { try { db.rows.all() } catch {} }
        });";
    let limits = Limits {
        rows_written: 10,
        rows_read: 9,
        ranges: 5,
        gas: 200,
        ..Limits::default()
    };
    let mut world = world_with(source, limits);
    let error = world.fails("add", json!({}));
    assert_eq!(error.setting.as_deref(), Some("FLOWER_LIMIT_ROWS_WRITTEN"));
    assert_eq!(world.view.entries().count(), 0);
    let error = problem(world.query_raw("ranges", "{}"));
    assert_eq!(error.setting.as_deref(), Some("FLOWER_LIMIT_RANGES"));
    let error = problem(world.query_raw("scan", "{}"));
    assert_eq!(error.code, "budget");
}

#[test]
fn a_long_walk_looks_at_the_deadline() {
    let source = "
        import { mutation, query, t, table } from '@flower/sdk';
        table('rows', { n: t.int() });
        export const fill = mutation({}, (tx) => {
          for (let i = 0; i < 600; i++) tx.rows.insert({ n: i });
        });
        export const count = query({}, (db) => db.rows.count());";
    let mut world = world(source);
    world.mutate("fill", json!({}));
    assert_eq!(world.query("count", json!({})), 600);
    world.deadline = Deadline::new(Arc::new(AtomicBool::new(true)));
    let error = problem(world.query_raw("count", "{}"));
    assert_eq!(error.setting.as_deref(), Some("FLOWER_LIMIT_WALL_MS"));
}

#[test]
fn prototype_games_reach_nothing() {
    for (body, expected) in [
        (
            "return Object.keys(tx)",
            json!(["now", "get", "random", "uuid"]),
        ),
        ("return tx.constructor", json!(null)),
        ("return tx.__proto__", json!(null)),
        (
            "return JSON.parse('{\"__proto__\": {\"x\": 1}}').x",
            json!(null),
        ),
        (
            "const o = JSON.parse('{\"__proto__\": 1}'); return Object.keys({ ...o })",
            json!(["__proto__"]),
        ),
        ("return this === undefined", json!(true)),
        (
            "return (function () { return this })() === undefined",
            json!(true),
        ),
        (
            "try { (function f() { return f.caller })() } catch (e) { return e.name }",
            json!("TypeError"),
        ),
        (
            "return typeof Function.prototype.constructor",
            json!("function"),
        ),
    ] {
        assert_eq!(function(body).f(), expected, "{body}");
    }
}

#[test]
fn an_isolate_is_recycled_after_many_calls() {
    let mut world = function("return 1");
    for _ in 0..9_999 {
        world.revision += 1;
        world.mutate_raw("f", "{}").unwrap();
    }
    assert!(!world.isolate.must_recycle());
    world.mutate_raw("f", "{}").unwrap();
    assert!(world.isolate.must_recycle());
}
