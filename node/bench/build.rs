//! Tells the program how it was built: a benchmark that was not optimised must say so.

fn main() {
    let level = std::env::var("OPT_LEVEL").unwrap_or_default();
    println!("cargo::rustc-env=FLOWER_OPT_LEVEL={level}");
    println!("cargo::rerun-if-changed=build.rs");
}
