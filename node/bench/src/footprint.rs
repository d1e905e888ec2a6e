//! The benchmark, step by step.

use std::{path::Path, time::Instant};

use anyhow::Result;
use flower_engine::Space;

use crate::{
    alloc::live_bytes,
    machine, ops, reads,
    run::{Class, Heap, Run, Start, Work, percentile, sorted},
    sizes::{each, samples, sizes},
    world::{Caches, World, micros},
};

/// Orders of one mutation while seeding.
const BATCH: u64 = 500;
/// While seeding, and for the mutations that are measured.
const ROOMY: Caches = Caches {
    page_mib: 4_096,
    value_mib: 64,
};
/// Smaller than the data at every size, so that they are full.
const TIGHT: Caches = Caches {
    page_mib: 8,
    value_mib: 4,
};
/// As a node of 512 MiB has them, nearly.
const USUAL: Caches = Caches {
    page_mib: 64,
    value_mib: 64,
};
/// Starts of a kind; the one with the median first mutation is told.
const STARTS: usize = 5;

fn seed(world: &mut World, orders: u64, say: &dyn Fn(&str)) -> Result<(f64, f64)> {
    world.deploy()?;
    let mut took = Vec::new();
    let mut from = 0;
    while from < orders {
        let count = BATCH.min(orders - from);
        let args = format!(r#"{{"from":{from},"count":{count}}}"#);
        let done = world.mutate("seed", &args)?;
        took.push((done.evaluate_us + done.apply_us) / 1e3);
        from += count;
        if from.is_multiple_of(50 * BATCH) {
            say(&format!("seeded {from} of {orders} orders"));
        }
    }
    world.checkpoint()?;
    let eighth = (took.len() / 8).max(1);
    let median = |part: &[f64]| percentile(&sorted(part.to_vec()), 50);
    Ok((
        median(&took[..eighth]),
        median(&took[took.len() - eighth..]),
    ))
}

/// Only what is the same on every machine, for a comparison with a run that was kept.
///
/// # Errors
/// When the folder cannot be used.
pub fn fixed(dir: &Path, orders: u64) -> Result<(Vec<Class>, Vec<Work>)> {
    let mut world = World::open(dir, ROOMY)?;
    seed(&mut world, orders, &|_| ())?;
    let sizes = sizes(&*world.view())?;
    let work = ops::work(&mut world, orders, &mut orders.clone())?;
    Ok((sizes, work))
}

/// The whole benchmark in an empty folder. `say` is told what is being done.
///
/// # Errors
/// When the folder cannot be used.
pub fn footprint(dir: &Path, orders: u64, say: &dyn Fn(&str)) -> Result<Run> {
    say("seeding");
    let mut world = World::open(dir, ROOMY)?;
    let seeding_ms = seed(&mut world, orders, say)?;
    let sizes = sizes(&*world.view())?;
    let file_bytes = world.state.stats().file_bytes;
    let mut next = orders;
    let work = ops::work(&mut world, orders, &mut next)?;
    let spread = samples(&*world.view(), orders, 2 * STARTS as u64)?;
    world.close(false)?;

    say("counting heap");
    let mut heap = heap(dir)?;
    say("starting");
    let mut starts = Vec::new();
    for kind in ["cold", "warm"] {
        starts.push(start(dir, &spread, kind)?);
    }
    say("mutating single orders");
    let mut mutations = Vec::new();
    for caches in [ROOMY, USUAL] {
        let mut world = World::open(dir, caches)?;
        world.load()?;
        // What the larger cache can hold is in it.
        for space in Space::ALL {
            each(&*world.view(), space, &mut |_, _| ())?;
        }
        let done = ops::mutations(&mut world, orders, caches.page_mib, &mut next)?;
        mutations.extend(done);
        world.close(false)?;
    }
    say("reading");
    let (reads, map) = reads::reads(dir)?;
    heap.map = map;
    Ok(Run {
        orders,
        commit: machine::commit(),
        build: machine::build(),
        machine: machine::machine(),
        sizes,
        work,
        file_bytes,
        seeding_ms,
        heap,
        starts,
        reads,
        mutations,
    })
}

fn heap(dir: &Path) -> Result<Heap> {
    let before = live_bytes();
    let mut world = World::open(dir, TIGHT)?;
    let opened = live_bytes() - before;
    let opened_pages = Some(world.state.stats().page_cache.bytes);
    world.load()?;
    let loaded = live_bytes() - before;
    let view = world.view();
    for space in Space::ALL {
        let mut keys = Vec::new();
        let get = |keys: &mut Vec<Vec<u8>>| {
            let got = keys
                .drain(..)
                .try_for_each(|key| flower_engine::View::get(&*view, space, &key).map(drop));
            got.is_ok()
        };
        each(&*view, space, &mut |key, _| {
            keys.push(key.to_vec());
            if keys.len() >= 1_000 {
                get(&mut keys);
            }
        })?;
        get(&mut keys);
    }
    drop(view);
    let all = live_bytes() - before;
    let stats = world.state.stats();
    let (page_cache, value_cache) = (stats.page_cache.bytes, stats.value_cache.bytes);
    world.close(false)?;
    Ok(Heap {
        opened,
        opened_pages,
        application: loaded - opened,
        read: all - loaded,
        page_cache,
        value_cache,
        rest: all - (page_cache + value_cache) as i64,
        map: 0,
    })
}

/// `spread` are lines and orders that no other start has touched.
fn start(dir: &Path, spread: &[(String, String)], kind: &str) -> Result<Start> {
    let mut all = Vec::new();
    let cold = kind == "cold";
    let mine = spread.iter().skip(if cold { 0 } else { STARTS });
    for (n, (line, order)) in mine.take(STARTS).enumerate() {
        World::open(dir, USUAL)?.close(cold)?;
        let begun = Instant::now();
        let mut world = World::open(dir, USUAL)?;
        let open_ms = micros(begun) / 1e3;
        let begun = Instant::now();
        world.load()?;
        let load_ms = micros(begun) / 1e3;
        let begun = Instant::now();
        world.query("totalOf", &format!(r#"{{"order":"{order}"}}"#))?;
        let query_ms = micros(begun) / 1e3;
        let args = format!(r#"{{"line":"{line}","qty":{}}}"#, 901 + n);
        let done = world.mutate("update", &args)?;
        let mutation_ms = (done.evaluate_us + done.apply_us) / 1e3;
        all.push(Start {
            kind: kind.to_owned(),
            open_ms,
            load_ms,
            query_ms,
            mutation_ms,
        });
        world.close(false)?;
    }
    all.sort_by(|a, b| a.mutation_ms.total_cmp(&b.mutation_ms));
    let middle = all.len() / 2;
    Ok(all.swap_remove(middle))
}
