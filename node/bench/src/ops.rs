//! Creates, updates and deletes single orders, spread over all of them.

use anyhow::Result;

use crate::{
    run::{Mutation, Work, percentile, sorted},
    sizes::samples,
    world::{Done, World},
};

/// Orders that are updated, and as many that are deleted and created.
const SAMPLES: u64 = 400;
/// Not measured: the first ones meet caches as the seeding left them.
const WARM_UP: usize = 50;

/// What one kind came to.
struct Kind {
    name: &'static str,
    done: Vec<Done>,
}

fn all(world: &mut World, orders: u64, count: u64, next: &mut u64) -> Result<Vec<Kind>> {
    let mut spread = samples(&*world.view(), orders, count)?;
    // Neighbours share pages: take them in another order than that of their keys.
    let half = spread.split_off(spread.len() / 2);
    spread = half
        .into_iter()
        .zip(spread)
        .flat_map(|(a, b)| [a, b])
        .collect();
    let (mut create, mut update, mut remove) = (Vec::new(), Vec::new(), Vec::new());
    for (n, (line, _)) in spread.iter().enumerate() {
        let qty = 101 + n % 800;
        update.push(world.mutate("update", &format!(r#"{{"line":"{line}","qty":{qty}}}"#))?);
    }
    for _ in &spread {
        create.push(world.mutate("create", &format!(r#"{{"n":{next}}}"#))?);
        *next += 1;
    }
    for (_, order) in &spread {
        remove.push(world.mutate("remove", &format!(r#"{{"order":"{order}"}}"#))?);
    }
    Ok(vec![
        Kind {
            name: "create",
            done: create,
        },
        Kind {
            name: "update",
            done: update,
        },
        Kind {
            name: "delete",
            done: remove,
        },
    ])
}

/// What they read and write: the same on every machine.
pub(crate) fn work(world: &mut World, orders: u64, next: &mut u64) -> Result<Vec<Work>> {
    let kinds = all(world, orders, 50, next)?;
    let work = kinds.iter().map(|kind| {
        let mean = |of: fn(&Done) -> u64| {
            let sum: u64 = kind.done.iter().map(of).sum();
            (sum as f64 / kind.done.len() as f64 * 10.0).round() / 10.0
        };
        Work {
            mutation: kind.name.to_owned(),
            rows_read: mean(|d| d.cost.rows_read),
            cells: mean(|d| d.cost.cells),
            keys_written: mean(|d| d.keys),
            bytes_written: mean(|d| d.bytes),
        }
    });
    Ok(work.collect())
}

/// How long they take.
pub(crate) fn mutations(
    world: &mut World,
    orders: u64,
    page_cache_mib: u64,
    next: &mut u64,
) -> Result<Vec<Mutation>> {
    let kinds = all(world, orders, SAMPLES + WARM_UP as u64, next)?;
    let told = kinds.iter().map(|kind| {
        let done = kind.done.get(WARM_UP..).unwrap_or(&kind.done);
        let of = |of: fn(&Done) -> f64| sorted(done.iter().map(of).collect());
        let whole = of(|d| d.evaluate_us + d.apply_us);
        Mutation {
            mutation: kind.name.to_owned(),
            page_cache_mib,
            samples: done.len() as u64,
            evaluate_p50: percentile(&of(|d| d.evaluate_us), 50),
            p50: percentile(&whole, 50),
            p99: percentile(&whole, 99),
            flush_p50: percentile(&of(|d| d.flush_us), 50),
        }
    });
    Ok(told.collect())
}
