//! What derived values may not do, and what happens when they do.

use super::*;

fn app(body: &str, options: &str) -> String {
    format!(
        "import {{ derived, fault, mutation, query, t, table }} from '@flower/sdk';
         table('pets', {{ owner: t.text(), n: t.int() }}, {{ indexes: {{ byOwner: ['owner'] }} }});
         let leaked;
         const d = derived('d', {{ owner: t.text() }}, t.int().optional(), (db, key, get) => {{ {body} }},
           {{ materialize: 'always' {options} }});
         const above = derived('above', {{ owner: t.text() }}, t.json(), (db, key, get) => get(d, key),
           {{ materialize: 'always' }});
         export const pet = mutation({{}}, (tx, {{ owner, n }}) => {{ tx.pets.insert({{ owner, n }}); }});
         export const change = mutation({{}}, (tx, {{ owner, n }}) => {{
           tx.pets.patch(tx.pets.byOwner.range({{ owner }}).first().id, {{ n }}); }});
         export const keep = mutation({{ errors: {{ sold: 410 }} }}, (tx, {{ owner }}) => {{
           leaked = tx;
           try {{ return tx.get(d, {{ owner }}) ?? 'absent' }} catch (e) {{
             if (e.code !== undefined) throw e;
             return `${{e.name}}: ${{e.message}}` }} }});
         export const top = mutation({{}}, (tx, key) => {{
           try {{ return tx.get(above, key) }} catch (e) {{ return e.message }} }});
         export const bare = mutation({{}}, (tx, key) => tx.get(above, key));
         export const see = query({{}}, (db, key) => {{
           try {{ return db.get(d, key) ?? 'absent' }} catch (e) {{ return `${{e.name}}: ${{e.message}}` }} }});
         export const wrong = query({{}}, (db, {{ key }}) => {{
           try {{ return db.d.get(key) }} catch (e) {{ return `${{e.name}}: ${{e.message}}` }} }});
         export const odd = query({{}}, (db) => db.get({{ name: 'd' }}, {{ owner: 'x' }}));"
    )
}

const KEY: &str = "d({\"owner\":\"ann\"})";

const MISTAKES: [(&str, &str); 24] = [
    (
        "return db.pets.count()",
        "pets.range: inside a derived value: name an index",
    ),
    (
        "return db.pets.all().length",
        "pets.range: inside a derived value: name an index",
    ),
    (
        "return db.pets.range().count()",
        "inside a derived value: name an index",
    ),
    (
        "return leaked.pets.count()",
        "inside a derived value: name an index",
    ),
    ("return db.now", "a derived value has no clock"),
    ("return leaked.now", "a derived value has no clock"),
    ("return Date.now()", "a derived value has no clock"),
    (
        "return new Date().getTime()",
        "a derived value has no clock",
    ),
    (
        "return Math.random()",
        "a derived value has no random numbers",
    ),
    (
        "return leaked.uuid()",
        "a derived value has no random numbers",
    ),
    ("db.pets.insert({})", "a derived value cannot write"),
    (
        "leaked.pets.insert({ owner: 'x', n: 1 })",
        "a derived value cannot write",
    ),
    ("return db.d.nope.range()", "undefined"),
    (
        "return 'text'",
        "d: it returned what it does not declare: must be a whole number, not a text",
    ),
    (
        "return 1.5",
        "d: it returned what it does not declare: must be a whole number",
    ),
    ("return () => 1", "it returned a function"),
    ("return 1n", "BigInt"),
    ("return Promise.resolve(1)", "it returned a promise"),
    ("throw null", "it threw null"),
    ("throw { get message() { throw 1 } }", "cannot be shown"),
    (
        "for (;;);",
        "it used up its gas (limit 2000, a tenth of FLOWER_LIMIT_GAS)",
    ),
    (
        "try { for (;;); } catch { return 1 } finally { return 2 }",
        "FLOWER_LIMIT_GAS",
    ),
    (
        "const f = () => f() + 1; return f()",
        "it used up its stack (limit 262144 bytes, which no setting changes)",
    ),
    (
        "return 'x'.repeat(300000)",
        "the limit is 262144 (FLOWER_LIMIT_RECORD)",
    ),
];

#[test]
fn what_has_no_place_inside_is_an_error_of_the_cell() {
    for (body, expected) in MISTAKES {
        let mut world = world(&app(body, ""));
        let kept = world.mutate("keep", json!({"owner": "ann"}));
        let text = kept.as_str().unwrap();
        assert!(
            text.starts_with(&format!("DerivedError: {KEY}: ")),
            "{body}: {text}"
        );
        assert!(text.contains(expected), "{body}: {text}");
        let seen = world.query("see", json!({"owner": "ann"}));
        assert_eq!(seen, kept, "{body}: as stored");
        assert_eq!(world.cells(), 1, "{body}: an error is stored");
    }
}

#[test]
fn a_limit_that_ends_a_cell_and_then_the_call_is_named() {
    for (body, limits, setting) in [
        ("for (;;);", Limits::default(), "FLOWER_LIMIT_GAS"),
        (
            "return 'x'.repeat(300000)",
            Limits::default(),
            "FLOWER_LIMIT_RECORD",
        ),
    ] {
        let mut world = world_with(&app(body, ""), limits);
        let error = world.fails("bare", json!({"owner": "ann"}));
        let told = (error.status, error.code.as_str(), error.setting.as_deref());
        assert_eq!(told, (500, "budget", Some(setting)), "{body}");
        assert!(error.detail.starts_with(KEY), "{body}: {}", error.detail);
    }
    // No setting helps, and what an application throws is its own.
    for body in [
        "const f = () => f() + 1; return f()",
        "throw new Error('(FLOWER_LIMIT_GAS')",
    ] {
        let mut world = world(&app(body, ""));
        let error = world.fails("bare", json!({"owner": "ann"}));
        let told = (error.status, error.code.as_str(), error.setting.as_deref());
        assert_eq!(told, (500, "internal", None), "{body}");
    }
}

#[test]
fn what_it_may_do() {
    for (body, expected) in [
        ("return undefined", json!("absent")),
        ("return null", json!("absent")),
        ("return new Date(5).getTime()", json!(5)),
        ("return Object.isFrozen(key) ? 1 : 0", json!(1)),
        (
            "return db.pets.get('0000000000000000') === null ? 1 : 0",
            json!(1),
        ),
        ("return [...db.pets.byOwner.range(key)].length", json!(0)),
        ("try { db.now } catch (e) { return 3 }", json!(3)),
    ] {
        let mut world = world(&app(body, ""));
        let kept = world.mutate("keep", json!({"owner": "ann"}));
        assert_eq!(kept, expected, "{body}");
    }
}

#[test]
fn a_function_that_fails_and_recovers() {
    let body = "const p = db.pets.byOwner.range(key).first();
        if (p?.n === 1) for (;;);
        if (p?.n === 2) throw fault('sold', { data: { n: 2 }, message: 'gone' });
        return p?.n";
    let mut world = world(&app(body, ""));
    world.mutate("pet", json!({"owner": "ann", "n": 1}));
    let gas = world.mutate("keep", json!({"owner": "ann"}));
    assert!(gas.as_str().unwrap().contains("FLOWER_LIMIT_GAS"));
    let above = world.mutate("top", json!({"owner": "ann"}));
    assert!(above.as_str().unwrap().starts_with(KEY), "{above}");
    // What it read before it was stopped is known.
    let cost = world.cost("change", json!({"owner": "ann", "n": 2}));
    assert_eq!(cost.cells, 2);
    let error = world.fails("keep", json!({"owner": "ann"}));
    assert_eq!((error.status, error.code.as_str()), (410, "fault:sold"));
    let told = (error.detail.as_str(), error.data);
    assert_eq!(told, ("gone", Some(json!({"n": 2}))));
    world.mutate("change", json!({"owner": "ann", "n": 5}));
    assert_eq!(world.query("see", json!({"owner": "ann"})), 5);
}

#[test]
fn an_error_can_refuse_the_mutation() {
    let body = "const n = db.pets.byOwner.range(key).sum('n');
        if (n > 9) throw new Error('too much'); return n";
    let mut world = world(&app(body, ", onError: 'reject'"));
    world.mutate("pet", json!({"owner": "ann", "n": 5}));
    world.mutate("keep", json!({"owner": "ann"}));
    world.mutate("pet", json!({"owner": "ann", "n": 4}));
    let before = world.view.entries().count();
    let error = world.fails("pet", json!({"owner": "ann", "n": 1}));
    let told = (error.status, error.code.as_str());
    assert_eq!(told, (409, "derived-rejected"));
    assert_eq!(error.detail, format!("{KEY}: too much"));
    assert_eq!(world.view.entries().count(), before);
    // At creation and read by a handler, caught or not.
    world.mutate("pet", json!({"owner": "bob", "n": 50}));
    for name in ["keep", "top"] {
        let error = world.fails(name, json!({"owner": "bob"}));
        assert_eq!(error.code, "derived-rejected", "{name}");
        assert_eq!(error.detail, "d({\"owner\":\"bob\"}): too much");
    }
    let seen = world.query("see", json!({"owner": "bob"}));
    assert_eq!(seen, "DerivedError: d({\"owner\":\"bob\"}): too much");
}

#[test]
fn keys_are_checked_where_they_are_read() {
    let mut world = world(&app("return 1", ""));
    for (key, expected) in [
        (
            json!({}),
            "the key does not fit: /owner: is missing; it is a text",
        ),
        (
            json!({"owner": 1}),
            "the key does not fit: /owner: must be a text, not a number",
        ),
        (
            json!({"owner": "x", "y": 1}),
            "the key does not fit: /y: is not known; known are owner",
        ),
        (json!("x"), "the key is an object of fields"),
        (
            json!({"owner": "x".repeat(5000)}),
            "the key does not fit: it has 5005 bytes; at most 4096",
        ),
    ] {
        let told = world.query("wrong", json!({ "key": key }));
        assert_eq!(told, format!("TypeError: d: {expected}"));
    }
    let error = world.query_fails("odd", json!({}));
    let expected = "the first argument is what derived(…) answered";
    assert!(error.detail.contains(expected), "{}", error.detail);
}

#[test]
fn evaluations_and_what_they_read_are_charged() {
    let source = app("return db.pets.byOwner.range(key).count()", "").replace(
        "get(d, key)",
        "get(d, key) + get(d, { owner: key.owner + '2' })",
    );
    let cells = Limits {
        cells: 2,
        ..Limits::default()
    };
    let rows = Limits {
        rows_read: 8,
        ..Limits::default()
    };
    let named = [
        (cells, "FLOWER_LIMIT_CELLS"),
        (rows, "FLOWER_LIMIT_ROWS_READ"),
    ];
    for (limits, setting) in named {
        let mut world = world_with(&source, limits);
        for _ in 0..4 {
            world.mutate("pet", json!({"owner": "ann", "n": 1}));
        }
        world.mutate("keep", json!({"owner": "bob"}));
        let error = world.fails("top", json!({"owner": "ann"}));
        assert_eq!(error.setting.as_deref(), Some(setting));
    }
}

#[test]
fn declarations_are_checked() {
    for (declaration, expected) in [
        ("'pets', { a: t.int() }, t.int(), f", "share one namespace"),
        (
            "'get', { a: t.int() }, t.int(), f",
            "cannot be called 'get'",
        ),
        ("'x', {}, t.int(), f", "must have a key of 1 to 8 fields"),
        (
            "'x', { value: t.int() }, t.int(), f",
            "'value' is not a name for a field of its key",
        ),
        (
            "'x', { a: t.int().optional() }, t.int(), f",
            "field 'a' of its key must be",
        ),
        (
            "'x', { a: t.json() }, t.int(), f",
            "field 'a' of its key must be",
        ),
        (
            "'x', { a: t.id('nope') }, t.int(), f",
            "names a table that is not declared",
        ),
        (
            "'x', { a: t.int() }, t.int(), f, { materialize: { each: pets } }",
            "its key must be one field",
        ),
        (
            "'x', { a: t.int() }, t.int(), f, { index: 'byValue' }",
            "has an index: materialize must be",
        ),
        (
            "'x', { a: t.int() }, t.json(), f, { index: 'i', materialize: 'always' }",
            "which have no order",
        ),
        (
            "'x', { a: t.int() }, t.int(), f, { indexes: 'i' }",
            "does not know 'indexes'",
        ),
        (
            "'x', { a: t.int() }, t.int(), f, { onError: 'ignore' }",
            "onError is",
        ),
        (
            "'x', { a: t.int() }, t.int(), f, { materialize: 'sometimes' }",
            "materialize is",
        ),
        ("'x', { a: t.int() }, t.int(), async () => 1", "is async"),
        (
            "'x', { a: t.int() }, t.int()",
            "derived(name, key, type, handler, options)",
        ),
        (
            "'x', { a: t.int() }, t.int(), f); derived('x', { a: t.int() }, t.int(), f",
            "declared twice",
        ),
    ] {
        let source = format!(
            "import {{ derived, query, t, table }} from '@flower/sdk';
             const pets = table('pets', {{}});
             const f = () => 1;
             derived({declaration});
             export const q = query({{}}, () => 1);"
        );
        let error = inspect(&source, &Limits::default(), &Deadline::never()).unwrap_err();
        let text = error.problems.join("; ");
        assert!(text.contains(expected), "{declaration}: {text}");
    }
}
