//! The committed runs: the page is made of them, and what does not depend on the machine comes
//! out again.

use std::{fs, path::PathBuf};

use flower_bench::{
    footprint, page,
    run::{Class, Run},
};

const SIZES: [u64; 3] = [10_000, 100_000, 300_000];

fn docs() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/benchmarks")
}

fn kept(orders: u64) -> Run {
    let path = docs().join(format!("footprint-{orders}.json"));
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn the_page_is_made_of_the_runs_beside_it() {
    let expected = page::page(&SIZES.map(kept));
    let path = docs().join("footprint.md");
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::write(&path, expected).unwrap();
        return;
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "docs/benchmarks/footprint.md is not what the runs say; run \
         UPDATE_REFERENCE=1 cargo test --workspace --test footprint"
    );
}

#[test]
fn ten_thousand_orders_take_what_they_took() {
    let dir = tempfile::tempdir().unwrap();
    let (sizes, work) = footprint::fixed(dir.path(), SIZES[0]).unwrap();
    let kept = kept(SIZES[0]);
    // What there is once, whatever the number of orders: the bundle and its manifest as the
    // engine keeps them, which change with each of them.
    let of_orders = |mut sizes: Vec<Class>| {
        sizes.retain(|one| one.class != "application and marks");
        sizes
    };
    assert_eq!(
        (of_orders(sizes), work),
        (of_orders(kept.sizes), kept.work),
        "what is stored has changed: repeat the runs of docs/benchmarks when that is wanted"
    );
}
