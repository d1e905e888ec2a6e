//! Nothing ambient: clock and random numbers come from the stamp, and nothing that a call
//! leaves behind reaches the next.

use serde_json::{Value, json};

use super::*;

#[test]
fn clock_and_random_numbers_come_from_the_stamp() {
    let body = "return [tx.now, Date.now(), new Date().getTime(), +new Date, Date(),
        Math.random(), tx.random(), tx.uuid(), new Date().getTimezoneOffset()]";
    let (mut one, mut two) = (function(body), function(body));
    let first = one.f();
    assert_eq!(first, two.f());
    assert_ne!(first, one.f());
    let now = 1_700_000_000_001u64;
    assert_eq!(
        [&first[0], &first[1], &first[2], &first[3]],
        [&json!(now); 4]
    );
    assert_eq!(first[4], "Tue Nov 14 2023 22:13:20 GMT+0000 (UTC)");
    let (x, y) = (first[5].as_f64().unwrap(), first[6].as_f64().unwrap());
    assert!(x != y && (0.0..1.0).contains(&x) && (0.0..1.0).contains(&y));
    let uuid: uuid::Uuid = first[7].as_str().unwrap().parse().unwrap();
    assert_eq!(uuid.get_version_num(), 4);
    assert_eq!(first[8], 0);
}

#[test]
fn dates_know_no_local_zone() {
    let mut world = function(
        "const d = new Date(2024, 1, 29, 12, 30);
         const e = new Date('2024-02-29T12:30');
         return [d.toISOString(), e.toISOString(), Date.parse('2024-02-29'),
           new Date('2024-02-29').getDate(), new Date(NaN).toString(), new Date(e).getHours(),
           new Date('2024-02-29T12:30:00+02:00').toISOString(), d.toLocaleTimeString(),
           d instanceof Date, d.constructor === Date, new (d.constructor)().getTime() === tx.now,
           Object.prototype.toString.call(d), JSON.stringify(d), new Date(0).getDay()]",
    );
    let day = 1_709_164_800_000u64;
    assert_eq!(
        world.f(),
        json!([
            "2024-02-29T12:30:00.000Z",
            "2024-02-29T12:30:00.000Z",
            day,
            29,
            "Invalid Date",
            12,
            "2024-02-29T10:30:00.000Z",
            "12:30:00 GMT+0000 (UTC)",
            true,
            true,
            true,
            "[object Date]",
            "\"2024-02-29T12:30:00.000Z\"",
            4
        ])
    );
}

#[test]
fn ambient_names_are_gone() {
    let mut world = function(
        "return ['eval', 'Proxy', 'WeakRef', 'FinalizationRegistry', 'SharedArrayBuffer',
           'Atomics', 'performance', 'Uint8Array', 'ArrayBuffer', 'queueMicrotask', 'setTimeout',
           'require', 'process', 'fetch', 'std', 'os', 'print'].filter((n) => n in globalThis)",
    );
    assert_eq!(world.f(), json!([]));
}

#[test]
fn what_a_call_leaves_on_builtins_does_not_stay() {
    for attempt in [
        "globalThis.leak = 1",
        "Object.prototype.leak = 1",
        "Array.prototype.push = () => 0",
        "Array.leak = 1",
        "Math.random = () => 4",
        "Date.now = () => 0",
        "Error.prototype.name = 'x'",
        "Object.prototype.toString = null",
        "JSON.parse = null",
        "(function* () {}).constructor.prototype.leak = 1",
        "Object.getPrototypeOf([][Symbol.iterator]()).next = null",
        "Object.getPrototypeOf(new Map().entries()).next = null",
        "Object.getPrototypeOf(function* () {}()).next = null",
        "Object.getPrototypeOf(async function () {}).leak = 1",
        "Object.setPrototypeOf(Array.prototype, null)",
        "Object.defineProperty(Object.prototype, 'x', { get() { return 1 } })",
        "tx.rows = 1",
        "delete Map.prototype.get",
        "RegExp.prototype.exec = null",
        "Symbol.prototype.leak = 1",
        "tx.__proto__.leak = 1",
    ] {
        let mut world = function(&format!("{attempt}; return 'done'"));
        let error = world.fails("f", json!({}));
        assert_eq!(error.code, "internal", "{attempt}");
        assert!(
            error.detail.contains("TypeError"),
            "{attempt}: {}",
            error.detail
        );
    }
}

#[test]
fn heirs_of_builtins_may_shadow_them() {
    let mut world = function(
        "class Sold extends Error { constructor() { super('sold'); this.name = 'Sold'; } }
         const e = new Sold(); e.message = 'out';
         const o = {}; o.toString = () => 'mine'; o.constructor = 1;
         class List extends Array { last() { return this[this.length - 1]; } }
         const l = new List(); l.push(1, 2);
         return [`${e}`, `${o}`, o.constructor, l.last(), l.map((x) => x * 2).last(),
           e instanceof Sold, e instanceof Error, l instanceof Array, [] instanceof Array,
           (() => 1) instanceof Function, new Set([1, 1, 2]).size]",
    );
    assert_eq!(
        world.f(),
        json!([
            "Sold: out",
            "mine",
            1,
            2,
            4,
            true,
            true,
            true,
            true,
            true,
            2
        ])
    );
}

/// Builtins that the prelude replaces behave as the language says.
#[test]
fn replaced_builtins_keep_their_meaning() {
    for (code, expected) in texts().into_iter().chain(lists()) {
        assert_eq!(function(&format!("return {code}")).f(), expected, "{code}");
    }
}

fn texts() -> Vec<(&'static str, Value)> {
    vec![
        ("'abcabc'.indexOf('c', 3)", json!(5)),
        ("'abc'.indexOf('', 9)", json!(3)),
        ("'abc'.indexOf('b', -5)", json!(1)),
        ("'abcabc'.lastIndexOf('b')", json!(4)),
        ("'abcabc'.lastIndexOf('b', 3)", json!(1)),
        ("'abc'.lastIndexOf('')", json!(3)),
        ("'undefined'.indexOf()", json!(0)),
        ("'abc'.includes('b', 2)", json!(false)),
        ("'a-b-c'.split('-', 2)", json!(["a", "b"])),
        ("'abc'.split('')", json!(["a", "b", "c"])),
        ("'a1b2'.split(/\\d/)", json!(["a", "b", ""])),
        ("'abc'.split()", json!(["abc"])),
        ("'a1b1'.split(1)", json!(["a", "b", ""])),
        ("'aXbX'.replace('X', '[$&]')", json!("a[X]bX")),
        ("'aXbX'.replaceAll('X', (m, at) => at)", json!("a1b3")),
        ("'a1b2'.replace(/\\d/g, (d) => d * 2)", json!("a2b4")),
        ("'a1b2'.match(/\\d/g)", json!(["1", "2"])),
        ("[...'a1b2'.matchAll('[0-9]')].length", json!(2)),
        ("'a1'.search('1')", json!(1)),
        (
            "'ab'.repeat(2) + 'x'.padStart(3, '-') + 'x'.padEnd(2)",
            json!("abab--xx "),
        ),
        (
            "[3, 1, 10, undefined, 2].sort()",
            json!([1, 10, 2, 3, null]),
        ),
        ("[3, 1, 10].toSorted((a, b) => a - b)", json!([1, 3, 10])),
    ]
}

fn lists() -> Vec<(&'static str, Value)> {
    vec![
        ("[1, [2, [3, [4]]]].flat(2)", json!([1, 2, 3, [4]])),
        ("[1, 2].flatMap((x) => [x, [x]])", json!([1, [1], 2, [2]])),
        ("[1].concat([2], 3, [[4]])", json!([1, 2, 3, [4]])),
        ("[1, null, 2].join('-') + [1, [2, 3]]", json!("1--21,2,3")),
        ("Array.prototype.slice.call('abc', 1)", json!(["b", "c"])),
        (
            "(function () { return Array.prototype.slice.call(arguments, 1) })(1, 2)",
            json!([2]),
        ),
        ("Array.from({ length: 2 }, (_, i) => i)", json!([0, 1])),
        (
            "Array(3).length + new Array(1, 2).length + Array.of(7).length",
            json!(6),
        ),
        (
            "new RegExp('A', 'i').test('a') && RegExp(/x/) instanceof RegExp",
            json!(true),
        ),
        (
            "new RegExp(/a/g, 'i').flags + /a/y.constructor.name",
            json!("iRegExp"),
        ),
        ("[...new Set([1, 2]).union(new Set([3]))]", json!([1, 2, 3])),
        ("new Set([1]).isSubsetOf(new Map([[1, 2]]))", json!(true)),
        (
            "[...[1, 2, 3].values().drop(1).map((x) => x * 2)]",
            json!([4, 6]),
        ),
        ("String.raw`a${1}\\n`", json!("a1\\n")),
        (
            "JSON.stringify({ a: 1, b: [undefined, NaN] })",
            json!("{\"a\":1,\"b\":[null,null]}"),
        ),
        ("JSON.parse('[1]', (k, v) => v === 1 ? 2 : v)", json!([2])),
        (
            "'e\\u0301'.normalize('NFC').length + 'a'.localeCompare('b')",
            json!(0),
        ),
        ("class extends Array {}.name", json!("")),
        (
            "Object.prototype.toString.call(new Date()) + typeof Date()",
            json!("[object Date]string"),
        ),
    ]
}

#[test]
fn code_from_text_is_not_run() {
    for attempt in [
        "eval('1')",
        "new Function('return 1')()",
        "Function('return 1')()",
        "(() => 1).constructor('return 1')()",
        "(async () => 1).constructor('return 1')()",
        "(function* () {}).constructor('yield 1')()",
        "(async function* () {}).constructor('yield 1')()",
        "(0, globalThis['ev' + 'al'])('1')",
    ] {
        let error = function(&format!("return {attempt}")).fails("f", json!({}));
        assert_eq!(error.code, "internal", "{attempt}");
    }
}

#[test]
fn promises_are_refused_and_their_jobs_never_run() {
    let mut world = function("return Promise.resolve(1)");
    assert!(world.fails("f", json!({})).detail.contains("synchronous"));
    let mut world = function("Promise.resolve().then(() => tx.now); return 1");
    assert_eq!(world.f(), 1);
    assert!(world.isolate.must_recycle(), "a job waits");
    let mut world = function("import('x').catch(() => 0); return 2");
    assert_eq!(world.f(), 2);
}

#[test]
fn nothing_is_declared_by_a_handler() {
    let source = "import { mutation, table } from '@flower/sdk';
        export const f = mutation({}, () => { table('late', {}); });";
    let error = world(source).fails("f", json!({}));
    assert!(
        error.detail.contains("while the module loads"),
        "{}",
        error.detail
    );
}

#[test]
fn values_without_a_json_form_are_told() {
    assert_eq!(function("").f(), Value::Null);
    assert!(
        function("return () => 1")
            .fails("f", json!({}))
            .detail
            .contains("function")
    );
    assert!(
        function("return 1n")
            .fails("f", json!({}))
            .detail
            .contains("BigInt")
    );
    assert!(
        function("const a = []; a[0] = a; return a")
            .fails("f", json!({}))
            .code
            == "internal"
    );
    assert!(
        function("throw null")
            .fails("f", json!({}))
            .detail
            .contains("it threw null")
    );
    let odd = "throw { get message() { throw 1 } }";
    assert!(
        function(odd)
            .fails("f", json!({}))
            .detail
            .contains("something odd")
    );
    let at = function("\n\nnull.x").fails("f", json!({}));
    assert!(at.detail.contains("app.js:4"), "{}", at.detail);
}

/// A result that the time or a random number went into is marked: nothing that is written
/// later makes it stale, the time itself does.
#[test]
fn reading_the_clock_or_a_random_number_is_noted() {
    for (code, expected) in [
        ("db.now", true),
        ("Date.now()", true),
        ("new Date().getTime()", true),
        ("Date()", true),
        ("Math.random()", true),
        ("new Date(5).getTime()", false),
        ("Date.UTC(2020, 1)", false),
        ("1", false),
    ] {
        let source = format!(
            "import {{ query }} from '@flower/sdk';
             export const q = query({{}}, (db) => {code});"
        );
        let mut world = world(&source);
        for _ in 0..2 {
            let done = world.query_raw("q", "{}").unwrap();
            assert_eq!(done.reads.clock, expected, "{code}");
        }
    }
}

#[test]
fn a_call_that_fails_tells_what_it_read() {
    let source = "import { mutation, fault, table } from '@flower/sdk';
        table('pets', {});
        export const f = mutation({ errors: { gone: 404 } }, (tx, { id }) => {
          tx.pets.get(id) ?? fault.throw('gone');
        });";
    let mut world = world(source);
    let id = "0".repeat(16);
    let error = world.fails("f", json!({ "id": id }));
    assert_eq!(error.code, "fault:gone");
    let reads = world.isolate.take_failed_reads().unwrap();
    let row = crate::record::row_key("pets", &id);
    assert!(reads.touched_by_key(crate::key::Space::Data, &row));
}
