//! `flower export` and `flower import` from one node to another, and what is refused.

mod common;
mod support;

use std::{collections::BTreeMap, path::Path};

use common::{json, run};
use flower_api::{
    admin::path,
    export::{Import, Step},
};
use http::Method;
use serde_json::{Value, json};
use support::{TestNode, no_fence, quick};

/// All kinds of derived values, among them one that fails for some keys.
const SHOP: &str = r#"
import { derived, fault, mutation, query, t, table } from "@flower/sdk";
const orders = table("orders", { customer: t.text(40), note: t.text().optional() }, { indexes: { byCustomer: ["customer"] } });
const lines = table("lines", { order: t.id("orders"), qty: t.int(), cents: t.int() }, { indexes: { byOrder: ["order"] } });
const subtotal = derived("subtotal", { order: t.id("orders") }, t.int(),
  (db, key) => db.lines.byOrder.range(key).sum((l) => l.qty * l.cents));
const total = derived("total", { order: t.id("orders") }, t.int(),
  (db, key, get) => { const s = get(subtotal, key); if (s === 0) throw new Error("no lines"); return s + 490; },
  { materialize: { each: orders }, index: "byValue" });
const spent = derived("spent", { customer: t.text(40) }, t.int(),
  (db, key, get) => db.orders.byCustomer.range(key).sum((o) => get(subtotal, { order: o.id })),
  { materialize: "always" });
export const place = mutation(
  { args: { customer: t.text(40), cents: t.list(t.int()) }, errors: { "too-many": 409 } },
  (tx, { customer, cents }) => {
    if (cents.length > 9) throw fault("too-many", { data: { most: 9 } });
    const order = tx.orders.insert({ customer });
    for (const c of cents) tx.lines.insert({ order, qty: 2, cents: c });
    return { order, spent: tx.get(spent, { customer }) };
  });
export const spentBy = query({ args: { customer: t.text(40) } }, (db, key) => db.get(spent, key));
export const dearest = query({ args: {} }, (db) => db.total.byValue.range().desc().take(3).all());
"#;

fn flower(args: &[&str], node: &TestNode) -> (i32, String, String) {
    let admin = format!("http://{}", node.http.admin);
    run(&[args, &["--admin-url", &admin]].concat())
}

fn export(node: &TestNode, file: &Path) -> Value {
    let admin = format!("http://{}", node.http.admin);
    let file = file.to_str().unwrap();
    json(&["export", "--cells", file, "--admin-url", &admin])
}

/// Rows, receipts, roots and cells by kind, in order.
fn lines(file: &Path) -> BTreeMap<String, Vec<Value>> {
    let mut found = BTreeMap::<_, Vec<_>>::new();
    for line in std::fs::read_to_string(file).unwrap().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let (kind, body) = line.as_object().unwrap().iter().next().unwrap();
        found.entry(kind.clone()).or_default().push(body.clone());
    }
    found
}

async fn place(node: &TestNode, key: &str, customer: &str, cents: &[u64]) -> support::Got {
    let args = json!({ "customer": customer, "cents": cents });
    node.http.mutate("place", key, args).await
}

async fn shop(orders: usize) -> TestNode {
    let node = TestNode::serving(SHOP, quick()).await;
    for n in 0..orders {
        let customer = format!("c{}", n % 3);
        let cents: Vec<u64> = (0..n as u64 % 4).map(|c| 100 * c + n as u64).collect();
        let placed = place(&node, &format!("key-{n}"), &customer, &cents).await;
        placed.ok();
    }
    let fault = place(&node, "faulty", "c0", &[1; 10]).await;
    assert_eq!(fault.problem().1, "fault:too-many");
    node
}

async fn empty() -> TestNode {
    let node = TestNode::fresh(quick()).await;
    node.bootstrap(1).await.ok();
    node
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_exported_is_imported_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    let from = shop(20).await;
    let summary = export(&from, &first);
    let file = first.to_str().unwrap();
    assert_eq!(
        (&summary["rows"], &summary["receipts"], &summary["roots"]),
        (&json!(50), &json!(21), &json!(3)),
        "{summary}"
    );
    assert_eq!(summary["cells"], 20 + 20 + 3);
    let to = empty().await;
    let (code, said, wrong) = flower(&["import", file], &to);
    assert_eq!(code, 0, "{said}{wrong}");
    assert!(said.contains("50 rows"), "{said}");

    export(&to, &second);
    let (before, after) = (lines(&first), lines(&second));
    for kind in ["bundle", "row", "receipt", "root", "cell"] {
        assert_eq!(before[kind], after[kind], "{kind}");
    }
    let failed = after["cell"]
        .iter()
        .filter(|cell| cell.get("error").is_some());
    assert_eq!(failed.count(), 5, "every fourth order has no lines");

    // A key from before is known; a new call comes after everything imported.
    let known = place(&to, "key-3", "c0", &[3, 103, 203]).await;
    assert_eq!(
        (&known.ok()["spent"], known.header("flower-replayed")),
        (&json!(618), "true")
    );
    let faulty = place(&to, "faulty", "c0", &[1; 10]).await;
    assert_eq!(faulty.problem().1, "fault:too-many");
    assert_eq!(faulty.header("flower-replayed"), "true");
    let fresh = place(&to, "new", "c0", &[7]).await.ok();
    let id = fresh["order"].as_str().unwrap();
    assert!(
        before["row"]
            .iter()
            .all(|row| row["id"].as_str() < Some(id)),
        "{id}"
    );
    // What was imported is kept up to date from now on.
    for node in [&from, &to] {
        place(node, "more", "c1", &[9_000]).await.ok();
    }
    let ask = |node: &TestNode| node.http.clone();
    let dearest = ask(&to).query("dearest", "fresh", json!({})).await.ok();
    assert_eq!(dearest[0]["value"], 18_490, "{dearest}");
    let spent = |http: support::Http| async move {
        http.query("spentBy", "fresh", json!({ "customer": "c1" }))
            .await
            .ok()
    };
    assert_eq!(spent(ask(&from)).await, spent(ask(&to)).await);

    let (code, _, said) = flower(&["import", file], &to);
    assert_eq!(code, 3);
    assert!(
        said.contains("not-empty") && said.contains("make a new cluster"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_damaged_or_foreign_file_is_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    export(&shop(6).await, &whole);
    let text = std::fs::read_to_string(&whole).unwrap();
    let to = empty().await;
    let (end, _) = text.rmatch_indices('\n').nth(1).unwrap();
    for (name, bad, why) in [
        ("cut", text[..end].to_owned(), "cut short"),
        ("damaged", text.replace("\"qty\":2", "\"qty\":3"), "damaged"),
        (
            "later",
            text.replace("\"format\":1", "\"format\":9"),
            "format 9",
        ),
        ("other", "{\"rows\":[]}\n".to_owned(), "header of an export"),
    ] {
        let file = dir.path().join(name);
        std::fs::write(&file, bad).unwrap();
        let (code, _, said) = flower(&["import", file.to_str().unwrap()], &to);
        assert_eq!(code, 1, "{said}");
        assert!(said.contains(why) && said.contains(name), "{said}");
    }
    assert_eq!(to.http.admin_get(path::DEPLOYMENT).await.ok(), Value::Null);
    // A file that is no export is not left half written either.
    let missing = dir.path().join("no/such/folder");
    let (code, _, said) = flower(&["export", missing.to_str().unwrap()], &to);
    assert_eq!(code, 1, "{said}");
}

async fn step(node: &TestNode, import: &str, step: Step, lines: &str) -> support::Got {
    let call = Import {
        fence: no_fence(),
        import: import.to_owned(),
        step,
    };
    let body = format!("{}\n{lines}", serde_json::to_string(&call).unwrap());
    node.http
        .send(node.http.admin, Method::POST, path::IMPORT, &[], body)
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_import_that_broke_off_goes_on_and_nothing_else_is_written_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    export(&shop(8).await, &first);
    let text = std::fs::read_to_string(&first).unwrap();
    let all: Vec<&str> = text.lines().collect();
    let found = lines(&first);
    let import = found["end"][0]["sha256"].as_str().unwrap();
    let header = serde_json::from_value(found["header"][0].clone()).unwrap();
    let to = empty().await;
    let begun = step(&to, import, Step::Begin(header), all[1]).await.ok();
    assert_eq!(begun["written"]["rows"], 0, "{begun}");
    let page = Step::Page { at: 0 };
    let rows = all[2..6].join("\n");
    for _ in 0..2 {
        // Sent again, because its answer was lost.
        let got = step(&to, import, page.clone(), &rows).await.ok();
        assert_eq!(got["written"]["rows"], 4, "{got}");
    }
    let refused = place(&to, "k", "c0", &[1]).await;
    assert_eq!(refused.problem(), (503, "importing".into()));
    let deployed = to.http.deploy(SHOP).await;
    assert_eq!(deployed.problem(), (503, "importing".into()));
    // A line that does not fit, and one that is there already.
    let bad = all[6].replace("\"row\":{\"table\":\"", "\"row\":{\"table\":\"no");
    for line in [&bad[..], all[2], "{\"end\":1}"] {
        let got = step(&to, import, Step::Page { at: 4 }, line).await;
        assert_eq!(got.problem(), (422, "bad-export".into()), "{line}");
    }
    let early = step(&to, import, Step::Finish(Default::default()), "").await;
    assert_eq!(early.problem(), (409, "import-position".into()));
    let stranger = step(&to, "another", Step::Page { at: 4 }, all[6]).await;
    assert_eq!(stranger.problem(), (409, "import-position".into()));

    let (code, said, wrong) = flower(&["import", first.to_str().unwrap()], &to);
    assert_eq!(code, 0, "{said}{wrong}");
    let again = step(&to, import, Step::Build { most: 1 }, "").await.ok();
    assert_eq!(again["finished"], true, "{again}");
    export(&to, &second);
    let after = lines(&second);
    for kind in ["row", "receipt", "root", "cell"] {
        assert_eq!(found[kind], after[kind], "{kind}");
    }
}

/// The verdict of the reference: exit code and what it said.
fn check(file: &Path) -> (i32, String) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk/reference/check.mjs");
    let mut command = std::process::Command::new("node");
    let done = command.arg(script).arg(file).output();
    let done = done.expect("node is on PATH (Debian package nodejs, 20 or later)");
    let said = [done.stdout, done.stderr].concat();
    let said = String::from_utf8(said).unwrap();
    (done.status.code().unwrap_or(-1), said)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_reference_agrees_with_every_cell_and_finds_one_that_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    export(&shop(20).await, &whole);
    let (code, said) = check(&whole);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("43 cells, 0 disagreements"), "{said}");
    let text = std::fs::read_to_string(&whole).unwrap();
    let cell = |name: &str, holding: &str| {
        let begin = format!("{{\"cell\":{{\"derived\":\"{name}\"");
        let mut lines = text.lines().filter(|l| l.starts_with(&begin));
        lines.find(|line| line.contains(holding)).unwrap()
    };
    let (value, failed) = (cell("spent", "\"value\":"), cell("total", "\"error\":"));
    for (bad, why) in [
        (
            text.replace(value, &value.replace("\"value\":", "\"value\":1")),
            "the values differ",
        ),
        (
            text.replace(failed, &failed.replace("no lines", "no line")),
            "the errors differ",
        ),
        (
            text.replace(value, &value.replace("\"height\":2", "\"height\":3")),
            "height is 3",
        ),
        (
            text.replace(value, &value.replace("\"root\":true", "\"root\":false")),
            "it is a root",
        ),
        (
            text.replace(&format!("{value}\n"), ""),
            "is not stored, and must be",
        ),
        (
            text.replace(value, &value.replace("\"c0\"", "\"nobody\"")),
            "nothing needs it",
        ),
    ] {
        assert_ne!(bad, text);
        let file = dir.path().join("bad");
        std::fs::write(&file, bad).unwrap();
        let (code, said) = check(&file);
        assert_eq!(code, 1, "{why}: {said}");
        assert!(said.contains(why), "{why}: {said}");
    }
    let cut = dir.path().join("cut");
    std::fs::write(&cut, &text[..text.len() / 2]).unwrap();
    assert_eq!(check(&cut).0, 2);
}

const ENDLESS: &str = r#"
import { derived, mutation, t, table } from "@flower/sdk";
const items = table("items", { n: t.int() });
const half = derived("half", { item: t.id("items") }, t.int(), (db, key) => db.items.get(key.item).n / 2,
  { materialize: { each: items } });
const search = derived("search", { item: t.id("items") }, t.int(),
  (db, key, get) => { const h = get(half, key); for (let i = 0; ; i += 1) if (i === h) return i; },
  { materialize: { each: items } });
const found = derived("found", { item: t.id("items") }, t.int(), (db, key, get) => get(search, key) + 1,
  { materialize: { each: items } });
export const add = mutation({ args: { n: t.int() } }, (tx, { n }) => { tx.items.insert({ n }); });
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_function_that_does_not_end_is_left_alone_and_the_rest_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    // It is its gas that ends it, however slow the machine.
    let mut serve = quick();
    serve.limits.wall_ms = 15_000;
    let node = TestNode::serving(ENDLESS, serve).await;
    // A half below zero is never found.
    for n in [2, -2, 8] {
        let key = format!("key{n}");
        node.http.mutate("add", &key, json!({ "n": n })).await.ok();
    }
    let file = dir.path().join("whole");
    export(&node, &file);
    let (code, said) = check(&file);
    let expected =
        "9 cells, 0 disagreements; 2 ended at a limit of the node and were not recomputed";
    assert_eq!((code, said.trim()), (0, expected));
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("\"value\":5", "\"value\":6")).unwrap();
    let (code, said) = check(&file);
    assert_eq!(code, 1, "{said}");
}
