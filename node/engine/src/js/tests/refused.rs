//! What is refused, and how: bundles and arguments.

use serde_json::json;

use super::*;

fn why_not(source: &str) -> String {
    let limits = Limits {
        gas: 200,
        ..Limits::default()
    };
    let error = inspect(source, &limits, &Deadline::never()).expect_err(source);
    error.problems.join("\n")
}

fn with_sdk(body: &str) -> String {
    format!("import {{ table, t, query, mutation, fault }} from '@flower/sdk';\n{body}")
}

/// Bundles without their import of the SDK, and what the refusal says.
const BUNDLES: &[(&str, &str)] = &[
    ("export const x = ;", "SyntaxError"),
    ("export const x = 1;", "exports no functions"),
    (
        "import y from './y.js'; export const q = query({}, () => y);",
        "npx esbuild app.js",
    ),
    (
        "import y from 'lodash'; export const q = query({}, () => y);",
        "'lodash'",
    ),
    ("throw new Error('at load');", "at load"),
    (
        "await Promise.resolve(); export const q = query({}, () => 1);",
        "awaits",
    ),
    (
        "for (;;) {} export const q = query({}, () => 1);",
        "FLOWER_LIMIT_GAS",
    ),
    (
        "const a = []; for (;;) a.push('x'.repeat(9999) + a.length);",
        "FLOWER_LIMIT_",
    ),
    ("export const q = query({}, async () => 1);", "'q' is async"),
    (
        "export const q = query({}, function* () {});",
        "a generator",
    ),
    ("export default query({}, () => 1);", "needs a name"),
    (
        "export const q = query({ arg: {} }, () => 1);",
        "does not know 'arg'",
    ),
    (
        "export const q = query({ args: { x: 1 } }, () => 1);",
        "args.x is not a type",
    ),
    (
        "export const q = query({ args: t.int() }, () => 1);",
        "must be an object of types",
    ),
    (
        "export const q = query({ errors: { x: 200 } }, () => 1);",
        "status 200",
    ),
    (
        "export const q = query({ errors: { 'No!': 400 } }, () => 1);",
        "lower-case",
    ),
    (
        "export const q = query({ args: { x: t.id('no') } }, () => 1);",
        "not declared",
    ),
    (
        "export const q = query({ args: { x: t.int(3, 1) } }, () => 1);",
        "allows no number",
    ),
    (
        "export const q = query({ args: { x: t.int('a') } }, () => 1);",
        "args.x: t.int(\"a\") is not allowed: least and greatest value are whole numbers",
    ),
    (
        "table('rows', { note: t.text(-1) });",
        "table rows.note: t.text(-1) is not allowed: the greatest number of characters is a whole",
    ),
    (
        "table('rows', { note: t.text(1.5).optional() });",
        "table rows.note: t.text(1.5) is not allowed",
    ),
    (
        "table('rows', { kind: t.oneOf({}) });",
        "table rows.kind: t.oneOf({}) is not allowed: it takes at least one text",
    ),
    (
        "table('rows', { tags: t.list(t.text(), -1) });",
        "table rows.tags: t.list(…, -1) is not allowed: the greatest number of items",
    ),
    (
        "table('rows', { deep: t.record({ in: t.list(t.text(-2)) }) });",
        "table rows.deep: in: t.text(-2) is not allowed",
    ),
    (
        "table('a', { x: t.int() }, { indexes: { 'i i': ['x'] } });",
        "is not a name for an index",
    ),
    (
        "table('a', { x: t.int() }, { indexes: { all: ['x'] } });",
        "an index cannot be called 'all'",
    ),
    ("table('a b', {}); ", "not a name for a table"),
    ("table('now', {}); ", "db has that name"),
    ("table('a', {}); table('a', {});", "declared twice"),
    ("table('a', { id: t.int() });", "has an id already"),
    (
        "table('a', { x: t.int() }, { index: {} });",
        "does not know 'index'",
    ),
    (
        "table('a', { x: t.int() }, { indexes: { all: ['x'] } });",
        "db has that name",
    ),
    (
        "table('a', { x: t.int() }, { indexes: { i: ['y'] } });",
        "no field 'y'",
    ),
    (
        "table('a', { x: t.json() }, { indexes: { i: ['x'] } });",
        "have no order",
    ),
    (
        "table('a', { x: t.int() }, { indexes: { i: ['x', 'x'] } });",
        "names 'x' twice",
    ),
    (
        "table('a', { x: t.int() }, { indexes: { i: [] } });",
        "1 to 16 fields",
    ),
    (
        "table('a', { x: t.int() }, { indexes: { i: 'x' } });",
        "list of field names",
    ),
    ("table('a', { x: t.oneOf() });", "at least one text"),
];

#[test]
fn bundles_are_refused_with_the_reason() {
    let fine = "export const q = query({}, () => 1);";
    for (body, expected) in BUNDLES {
        let body = if body.contains("query(") || body.contains("= ;") || body.contains("x = 1;") {
            (*body).to_owned()
        } else {
            format!("{body}\n{fine}")
        };
        let why = why_not(&with_sdk(&body));
        assert!(
            why.contains(expected),
            "{body}\n  expected: {expected}\n  got: {why}"
        );
    }
    let long = format!("table('{}', {{}}); {fine}", "n".repeat(5_000));
    let why = why_not(&with_sdk(&long));
    assert!(why.contains("n…' is not a name for a table"), "{why}");
    assert!(why.len() < 300, "{why}");
    let large = " ".repeat(2 * flower_api::limits::BUNDLE_BYTES as usize + 1);
    assert!(why_not(&large).contains("FLOWER_LIMIT_BUNDLE"));
}

#[test]
fn a_place_is_told_for_what_is_thrown_while_loading() {
    let why = why_not("import '@flower/sdk';\n\n\nnull.x;");
    assert!(why.contains("app.js:4"), "{why}");
}

#[test]
fn a_fault_that_no_receipt_can_keep_is_refused() {
    let mut world = world(
        "import { fault, mutation, t } from '@flower/sdk';
        export const f = mutation({ args: { n: t.int(0) }, errors: { big: 409 } },
          (tx, { n }) => { throw fault('big', { data: 'x'.repeat(n) }); });",
    );
    assert_eq!(world.fails("f", json!({ "n": 60_000 })).code, "fault:big");
    let refused = world.fails("f", json!({ "n": 65_536 }));
    assert_eq!((refused.status, &refused.code[..]), (413, "too-large"));
    assert!(refused.detail.contains("the limit is 65536"), "{refused}");
}

const TYPED: &str = "
import { mutation, query, t, table } from '@flower/sdk';
table('rows', { n: t.int(0, 9), s: t.text(3).optional() });
export const put = mutation({ args: { n: t.int(0, 9), list: t.list(t.bool()).optional() } },
  (tx, { n }) => tx.rows.insert({ n }));
export const any = mutation({}, (tx, args) => Object.keys(args));
export const wrong = query({ returns: t.record({ x: t.int() }) }, () => ({ x: 'no' }));
export const store = mutation({ args: { row: t.json() } }, (tx, { row }) => tx.rows.insert(row));
";

#[test]
fn arguments_are_checked_with_pointers() {
    let mut world = world(TYPED);
    let bad = world.fails("put", json!({"n": 10, "list": [true, 1], "x": 0}));
    assert_eq!((bad.status, bad.code.as_str()), (400, "invalid-args"));
    let pointers: Vec<_> = bad.errors.iter().map(|e| e.pointer.as_str()).collect();
    assert_eq!(pointers, ["/n", "/list/1", "/x"]);
    let half = world.fails("put", json!({"n": 1.5}));
    assert_eq!(half.errors[0].detail, "must be a whole number from 0 to 9");
    for text in [
        "",
        "[]",
        "nonsense",
        "{\"n\":1e999}",
        "{\"n\":\"\\ud800\"}",
        "null",
    ] {
        let error = problem(world.mutate_raw("put", text));
        assert_eq!(error.code, "invalid-args", "{text}");
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(
        problem(world.mutate_raw("any", &format!("{{\"a\":{deep}}}"))).code,
        "invalid-args"
    );
    assert_eq!(
        world.mutate("any", json!({"__proto__": 1, "b": 2})),
        json!(["__proto__", "b"])
    );
    let large = format!("{{\"s\":\"{}\"}}", "x".repeat(2 << 20));
    let error = problem(world.mutate_raw("any", &large));
    assert_eq!(
        (error.status, error.setting.as_deref()),
        (413, Some("FLOWER_LIMIT_ARGS"))
    );
}

#[test]
fn half_a_character_is_refused_and_its_field_named() {
    let mut world = world(
        r"import { mutation, t, table } from '@flower/sdk';
        table('rows', { name: t.text(), more: t.json() });
        export const store = mutation({ args: {} }, (tx) => [
          { name: '\ud83d\ude00', more: '\\ud800' },
          { name: '\ud83d\ude00'.slice(0, 1), more: 1 },
          { name: '\\', more: { deep: ['a\ude00b'] } },
        ].map((row) => {
          try { tx.rows.insert(row); return 'stored'; } catch (e) { return e.message; }
        }));",
    );
    let told = world.mutate("store", json!({}));
    assert_eq!(told[0], "stored");
    for (at, field) in [(1, "name"), (2, "more")] {
        let text = told[at].as_str().unwrap();
        let expected = format!(
            "a row of rows cannot be stored: its field '{field}' holds half of a character"
        );
        assert!(text.starts_with(&expected), "{text}");
    }
}

#[test]
fn unknown_functions_and_wrong_kinds_are_404() {
    let mut world = world(TYPED);
    let error = world.fails("nothing", json!({}));
    assert_eq!(
        (error.status, error.code.as_str()),
        (404, "unknown-function")
    );
    assert!(error.detail.contains("put"), "{}", error.detail);
    assert!(
        world
            .fails("wrong", json!({}))
            .detail
            .contains("is a query")
    );
    assert_eq!(
        problem(world.query_raw("put", "{}")).code,
        "unknown-function"
    );
    for name in ["__proto__", "constructor", "toString", ""] {
        assert_eq!(
            world.fails(name, json!({})).code,
            "unknown-function",
            "{name}"
        );
    }
}

#[test]
fn results_and_rows_that_do_not_fit_are_the_applications_fault() {
    let mut world = world(TYPED);
    let error = world.query_fails("wrong", json!({}));
    assert_eq!((error.status, error.code.as_str()), (500, "internal"));
    assert!(
        error.detail.contains("/x: must be a whole number"),
        "{}",
        error.detail
    );
    for (row, expected) in [
        (json!({"n": 10}), "/n: must be at most 9"),
        (json!({}), "/n: is missing"),
        (json!({"n": 1, "s": "long"}), "at most 3 characters"),
        (json!({"n": 1, "more": 1}), "/more: is not known"),
        (json!({"n": 1, "id": "x"}), "ids are generated"),
        (json!([1]), "a row is an object"),
    ] {
        let error = world.fails("store", json!({ "row": row }));
        assert_eq!(error.code, "internal");
        assert!(
            error.detail.contains(expected),
            "{expected}: {}",
            error.detail
        );
    }
    assert_eq!(world.view.entries().count(), 0);
}
