use std::collections::BTreeSet;

use flower_api::manifest::FieldType;
use serde_json::{Value, json};

use super::*;
use crate::{
    js::{Deadline, Isolate, Limits, Stamp, inspect},
    key::Space,
    record,
    view::{MemoryView, PatchBuilder},
};

fn bundle(tables: &str) -> String {
    format!(
        "import {{ mutation, query, t, table }} from '@flower/sdk';\n{tables}\n\
         export const fill = mutation({{}}, (tx, {{ rows }}) => \
           rows.map((row) => tx.things.insert(row)));\n\
         export const byN = query({{}}, (db) => db.things.byN.range().all().map((r) => r.n));\n\
         export const all = query({{}}, (db) => db.things.all());"
    )
}

struct Site {
    view: MemoryView,
    revision: u64,
}

impl Site {
    fn new(tables: &str) -> Self {
        let mut site = Self {
            view: MemoryView::default(),
            revision: 0,
        };
        site.deploy(tables).unwrap();
        site
    }

    fn plan(&mut self, tables: &str, by: Option<&str>) -> Result<PlannedDeployment, DeployError> {
        self.revision += 1;
        let source = bundle(tables);
        let manifest = inspect(&source, &Limits::default(), &Deadline::never()).unwrap();
        plan_deployment(&self.view, &source, manifest, by, Revision(self.revision))
    }

    fn deploy(&mut self, tables: &str) -> Result<Vec<String>, String> {
        let planned = self.plan(tables, None).map_err(|e| e.to_string())?;
        self.view.apply(&planned.patch);
        let mut end = if planned.building {
            PageEnd::Going
        } else {
            PageEnd::Active
        };
        while end == PageEnd::Going {
            end = self.page(1_000);
        }
        if let PageEnd::Failed(why) = end {
            return Err(why);
        }
        self.sweep();
        assert_eq!(active(&self.view).unwrap().unwrap().0, planned.hash);
        Ok(planned.changes)
    }

    /// Makes the next page of a build.
    fn page(&mut self, rows: u64) -> PageEnd {
        self.revision += 1;
        let revision = Revision(self.revision);
        let view: Arc<dyn View> = Arc::new(self.view.clone());
        let mut evaluate = |_: PageTask| panic!("there are no derived values");
        let page = page(&view, rows, None, revision, &mut evaluate).unwrap();
        let page = page.unwrap();
        self.view.apply(&page.patch);
        page.end
    }

    fn sweep(&mut self) {
        while let Some(patch) = sweep(&self.view, 100).unwrap() {
            self.view.apply(&patch);
        }
    }

    fn current(&self) -> Arc<Deployment> {
        let (hash, _, _) = active(&self.view).unwrap().unwrap();
        load(&self.view, &hash).unwrap().unwrap()
    }

    fn isolate(&mut self) -> (Isolate, Stamp) {
        self.revision += 1;
        let stamp = Stamp {
            now_ms: 1,
            revision: Revision(self.revision),
            seed: 1,
        };
        (
            Isolate::new(self.current(), &Limits::default()).unwrap(),
            stamp,
        )
    }

    fn fill(&mut self, rows: Value) {
        let (mut isolate, stamp) = self.isolate();
        let (view, never) = (Arc::new(self.view.clone()), Deadline::never());
        let args = json!({ "rows": rows }).to_string();
        let done = isolate.mutate("fill", &args, view, stamp, &never).unwrap();
        self.view.apply(&done.patch.unwrap().seal());
    }

    fn query(&mut self, name: &str) -> Value {
        let (mut isolate, stamp) = self.isolate();
        let (view, never) = (Arc::new(self.view.clone()), Deadline::never());
        let done = isolate.query(name, "{}", view, stamp, &never).unwrap();
        serde_json::from_str(&done.result).unwrap()
    }

    fn index_entries(&self) -> usize {
        self.view
            .entries()
            .filter(|(space, ..)| *space == Space::Index)
            .count()
    }
}

const PLAIN: &str = "table('things', { n: t.int(0, 9) });";
const INDEXED: &str = "table('things', { n: t.int(0, 9) }, { indexes: { byN: ['n'] } });";

#[test]
fn the_first_deployment_and_the_same_again() {
    let mut site = Site::new(PLAIN);
    let again = site.plan(PLAIN, None).unwrap();
    assert!(!again.changed && again.patch.is_empty() && again.changes.is_empty());
    let (_, since, _) = active(&site.view).unwrap().unwrap();
    let managed = site.plan(PLAIN, Some("ns/app")).unwrap();
    assert!(!managed.changed && !managed.patch.is_empty());
    site.view.apply(&managed.patch);
    let (hash, still, by) = active(&site.view).unwrap().unwrap();
    assert_eq!((still, by.as_deref()), (since, Some("ns/app")));
    assert_eq!(hash.len(), 64);
    assert_eq!(site.current().source.as_ref(), bundle(PLAIN));
}

#[test]
fn old_bundles_are_removed_and_can_come_back() {
    let mut site = Site::new(PLAIN);
    site.deploy(INDEXED).unwrap();
    site.deploy(PLAIN).unwrap();
    let bundles = site
        .view
        .entries()
        .filter(|(space, ..)| *space == Space::Deploy);
    assert_eq!(bundles.count(), 1);
    assert!(load(&site.view, "other").unwrap().is_none());
}

#[test]
fn an_index_is_built_over_the_rows_that_exist() {
    let mut site = Site::new(PLAIN);
    site.fill(json!([{"n": 5}, {"n": 1}, {"n": 3}]));
    let changes = site.deploy(INDEXED).unwrap();
    assert_eq!(changes, ["adds index things.byN on n (3 rows)"]);
    assert_eq!(site.query("byN"), json!([1, 3, 5]));
    site.fill(json!([{"n": 2}]));
    assert_eq!(site.query("byN"), json!([1, 2, 3, 5]));
    // Dropped, changed behind its back, declared again: nothing stale is read.
    assert_eq!(site.deploy(PLAIN).unwrap(), ["drops index things.byN"]);
    assert_eq!(site.index_entries(), 0);
    site.fill(json!([{"n": 4}]));
    site.deploy(INDEXED).unwrap();
    assert_eq!(site.query("byN"), json!([1, 2, 3, 4, 5]));
    // Another definition under the same name.
    let reversed = "table('things', { n: t.int(0, 9), m: t.int().optional() },
        { indexes: { byN: ['m', 'n'] } });";
    let changes = site.deploy(reversed).unwrap();
    assert!(
        changes.contains(&"drops index things.byN".into()),
        "{changes:?}"
    );
    assert_eq!(site.query("byN"), json!([1, 2, 3, 4, 5]));
    assert_eq!(site.index_entries(), 5);
}

#[test]
fn entries_that_are_left_over_are_never_read() {
    let mut site = Site::new(INDEXED);
    site.fill(json!([{"n": 1}]));
    let stale: Vec<_> = site
        .view
        .entries()
        .map(|(s, k, v)| (s, k.clone(), v.clone()))
        .collect();
    site.deploy(PLAIN).unwrap();
    let mut left = PatchBuilder::new();
    for (space, key, value) in stale.into_iter().filter(|(s, ..)| *s == Space::Index) {
        left.put(space, key, value);
    }
    site.view.apply(&left.seal());
    site.deploy(INDEXED).unwrap();
    assert_eq!(site.query("byN"), json!([1]));
    assert_eq!(site.index_entries(), 1, "and are swept");
}

/// Rows written past the isolate, to be quick.
fn crowd(site: &mut Site, rows: u64) {
    let mut patch = PatchBuilder::new();
    for n in 0..rows {
        let id = crate::codec::mint_id(Revision(1_000), n as u32).unwrap();
        patch.put(
            Space::Data,
            record::row_key("things", &id),
            record::value(Revision(1_000), &format!("{{\"n\":{}}}", n % 10)),
        );
    }
    site.view.apply(&patch.seal());
}

#[test]
fn an_index_over_many_rows_is_built_in_pages_while_they_change() {
    let mut site = Site::new(PLAIN);
    let rows = 12_345;
    crowd(&mut site, rows);
    let before = site.current();
    let planned = site.plan(INDEXED, None).unwrap();
    assert!(planned.building, "{:?}", planned.changes);
    assert!(
        planned.changes[0].contains("about 12"),
        "{:?}",
        planned.changes
    );
    site.view.apply(&planned.patch);
    let mut pages = 0;
    loop {
        pages += 1;
        match site.page(1_000) {
            PageEnd::Going => {}
            end => {
                assert_eq!(end, PageEnd::Active);
                break;
            }
        }
        assert_eq!(site.current().hash, before.hash, "the old one serves");
        let build = pending(&site.view).unwrap().unwrap();
        assert_eq!(build.done, (pages * 1_000).min(rows));
        assert!(build.total.abs_diff(rows) < rows / 10, "{}", build.total);
        // One more row in each gap, entered by the mutation itself.
        site.fill(json!([{"n": 7}]));
    }
    assert_eq!(pages, 13);
    let all = site.query("byN");
    assert_eq!(all.as_array().unwrap().len() as u64, rows + pages - 1);
    assert!(pending(&site.view).unwrap().is_none());
}

#[test]
fn a_newer_deployment_takes_the_place_of_a_build() {
    let mut site = Site::new(PLAIN);
    crowd(&mut site, 3_000);
    let first = site.plan(INDEXED, None).unwrap();
    site.view.apply(&first.patch);
    assert_eq!(site.page(1_000), PageEnd::Going);
    // The same again goes on where it is.
    let again = site.plan(INDEXED, None).unwrap();
    assert!(again.building && again.patch.is_empty());
    let twice = "table('things', { n: t.int(0, 9) }, { indexes: { byN: ['n'], more: ['n'] } });";
    site.deploy(twice).unwrap();
    assert_eq!(
        site.index_entries(),
        6_000,
        "what the first one made is swept"
    );
    assert!(load(&site.view, &first.hash).unwrap().is_none());
    // What runs, again, gives a build up.
    let plain = site.plan(PLAIN, None).unwrap();
    assert!(!plain.building, "dropping indexes needs none");
    site.view.apply(&plain.patch);
    let other = site.plan(INDEXED, None).unwrap();
    site.view.apply(&other.patch);
    assert_eq!(site.page(10), PageEnd::Going);
    let back = site.plan(PLAIN, None).unwrap();
    assert!(!back.changed && !back.building);
    site.view.apply(&back.patch);
    assert!(pending(&site.view).unwrap().is_none());
    site.sweep();
    assert_eq!(site.index_entries(), 0);
    assert_eq!(site.current().source.as_ref(), bundle(PLAIN));
}

#[test]
fn a_row_without_an_entry_fails_the_build_and_no_mutation() {
    let base = "table('things', { n: t.int(), s: t.text() });";
    let indexed = "table('things', { n: t.int(), s: t.text() }, { indexes: { byN: ['s'] } });";
    let long = json!([{"n": 1, "s": "x".repeat(9_000)}]);
    let mut site = Site::new(base);
    site.fill(json!([{"n": 1, "s": "x"}]));
    let planned = site.plan(indexed, None).unwrap();
    site.view.apply(&planned.patch);
    site.fill(long.clone());
    let PageEnd::Failed(why) = site.page(10) else {
        panic!("it failed")
    };
    assert!(why.contains("index on s of table things"), "{why}");
    let told = failed(&site.view).unwrap().unwrap();
    assert_eq!((told.hash, told.why), (planned.hash, why));
    assert_eq!(site.current().source.as_ref(), bundle(base));
    // Over the row that is there now, too; then without it.
    assert!(site.deploy(indexed).unwrap_err().contains("index on s"));
    site.sweep();
    assert_eq!(site.index_entries(), 0);
}

#[test]
fn what_rows_would_not_survive_is_refused_with_the_reason() {
    let base = "table('things', { n: t.int(0, 9), s: t.text(9), e: t.oneOf('a', 'b') });";
    let row = json!([{"n": 1, "s": "x", "e": "a"}]);
    let with = |fields: &str| format!("table('things', {{ {fields} }});");
    for (fields, why) in [
        (
            "n: t.int(0, 9), s: t.text(9), e: t.oneOf('a', 'b'), x: t.int()",
            "required field 'x'",
        ),
        (
            "n: t.text(), s: t.text(9), e: t.oneOf('a', 'b')",
            "'n' from a whole number to a text",
        ),
        (
            "n: t.int(1, 9), s: t.text(9), e: t.oneOf('a', 'b')",
            "narrows 'n'",
        ),
        (
            "n: t.int(0, 9), s: t.text(8), e: t.oneOf('a', 'b')",
            "narrows 's'",
        ),
        (
            "n: t.int(0, 9), s: t.text(9), e: t.oneOf('a')",
            "'e' from one of a, b to one of a",
        ),
        ("n: t.int(0, 9), s: t.text(9)", "removes the field 'e'"),
        ("", "removes the field 'n'"),
    ] {
        let mut site = Site::new(base);
        assert!(
            site.deploy(&with(fields)).is_ok(),
            "no rows, so {fields} is fine"
        );
        let mut site = Site::new(base);
        site.fill(row.clone());
        let error = site.deploy(&with(fields)).unwrap_err();
        assert!(error.contains(why), "{fields}: {error}");
        assert!(error.contains("things has 1 rows"), "{error}");
    }
    let mut site = Site::new(base);
    site.fill(row);
    let error = site.deploy("table('other', {});").unwrap_err();
    assert!(error.contains("would be dropped"), "{error}");
}

#[test]
fn what_rows_survive_is_allowed() {
    let base = "table('things', { n: t.int(0, 9), s: t.text(9), e: t.oneOf('a', 'b') });";
    for fields in [
        "n: t.int(0, 10), s: t.text(9), e: t.oneOf('a', 'b'), x: t.int().optional()",
        "n: t.int(), s: t.text(), e: t.oneOf('b', 'c', 'a')",
        "n: t.number(), s: t.text(9).optional(), e: t.text()",
        "e: t.oneOf('a', 'b'), n: t.int(0, 9), s: t.text(9)",
    ] {
        let mut site = Site::new(base);
        site.fill(json!([{"n": 1, "s": "x", "e": "a"}]));
        site.deploy(&format!(
            "table('things', {{ {fields} }}); table('more', {{}});"
        ))
        .unwrap();
        assert_eq!(site.query("all")[0]["s"], "x");
    }
}

#[test]
fn damaged_records_are_told() {
    let mut site = Site::new(PLAIN);
    let (hash, ..) = active(&site.view).unwrap().unwrap();
    for value in [
        &b"short"[..],
        b"12345678",
        b"12345678\x02{}",
        b"12345678\x01{",
    ] {
        let mut patch = PatchBuilder::new();
        patch.put(Space::Deploy, hash.clone().into_bytes(), value.to_vec());
        site.view.apply(&patch.seal());
        assert!(load(&site.view, &hash).is_err());
    }
    let mut patch = PatchBuilder::new();
    patch.put(Space::Meta, crate::key::meta::ACTIVE, &b"{"[..]);
    site.view.apply(&patch.seal());
    assert!(active(&site.view).is_err());
    assert!(matches!(
        site.plan(PLAIN, None),
        Err(DeployError::Storage(_))
    ));
}

#[test]
fn leftovers_are_swept_a_little_at_a_time() {
    let mut site = Site::new(INDEXED);
    site.fill(json!([{"n": 1}, {"n": 2}]));
    let used: BTreeSet<Vec<u8>> = site
        .view
        .entries()
        .filter(|(space, ..)| *space == Space::Index)
        .map(|(_, key, _)| key.to_vec())
        .collect();
    let mut left = PatchBuilder::new();
    for n in 0..7u8 {
        for (table, index) in [("things", "byN.900"), ("gone", "x.1"), ("things", "a.1")] {
            let mut key = record::index_prefix(table, index);
            key.push(n);
            left.put(Space::Index, key, record::value(Revision(1), ""));
        }
    }
    site.view.apply(&left.seal());
    let mut rounds = 0;
    while let Some(patch) = sweep(&site.view, 5).unwrap() {
        assert!(patch.writes().len() <= 5);
        site.view.apply(&patch);
        rounds += 1;
    }
    assert_eq!(rounds, 5);
    let rest = site
        .view
        .entries()
        .filter(|(space, ..)| *space == Space::Index);
    assert_eq!(
        rest.map(|(_, key, _)| key.to_vec())
            .collect::<BTreeSet<_>>(),
        used
    );
}

#[test]
fn optional_is_what_the_manifest_says() {
    let site = Site::new("table('things', { n: t.optional(t.int()) });");
    let ty = &site.current().manifest.tables["things"].fields[0].1;
    assert!(matches!(ty, FieldType::Optional { .. }));
}
