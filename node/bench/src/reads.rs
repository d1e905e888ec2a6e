//! Point reads of rows and cells, by what answers them.

use std::{collections::BTreeMap, path::Path};

use anyhow::Result;
use bytes::Bytes;
use flower_engine::{Space, View};

use crate::{
    alloc::live_bytes,
    run::Reads,
    sizes::each,
    world::{Caches, World, processor_us},
};

/// Keys that are read, and reads.
const KEYS: usize = 200_000;

/// Page and value caches that are tried, MiB.
const CACHES: [(u64, u64); 5] = [(4, 0), (64, 0), (2_048, 0), (64, 64), (64, 1_024)];

/// A generator that is the same everywhere.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }
}

/// Up to [`KEYS`] keys of rows and cells, each as likely as any other, in no order.
fn sample(view: &dyn View) -> Result<Vec<Vec<u8>>> {
    let (mut chance, mut seen, mut keys) = (Chance(0x9e37_79b9), 0, Vec::new());
    each(view, Space::Data, &mut |key, _| {
        seen += 1;
        if keys.len() < KEYS {
            keys.push(key.to_vec());
        } else if let Some(kept) = keys.get_mut(chance.below(seen)) {
            *kept = key.to_vec();
        }
    })?;
    for at in (1..keys.len()).rev() {
        keys.swap(at, chance.below(at + 1));
    }
    Ok(keys)
}

fn timed(keys: &[Vec<u8>], read: impl Fn(&[u8]) -> Result<bool>) -> Result<f64> {
    let pass = || -> Result<usize> {
        let mut found = 0;
        for n in 0..KEYS {
            found += usize::from(read(&keys[n % keys.len()])?);
        }
        Ok(found)
    };
    anyhow::ensure!(pass()? == KEYS, "a key is missing");
    let begun = processor_us();
    anyhow::ensure!(pass()? == KEYS, "a key is missing");
    Ok(((processor_us() - begun) * 1e3 / KEYS as f64).round())
}

fn name(page_mib: u64, value_mib: u64) -> String {
    match value_mib {
        0 => format!("redb alone, page cache of {page_mib} MiB"),
        _ => format!("value cache of {value_mib} MiB over a page cache of {page_mib} MiB"),
    }
}

/// Reads through the store with each pair of caches, and from a map; also the map's heap.
pub(crate) fn reads(dir: &Path) -> Result<(Vec<Reads>, i64)> {
    let mut out = Vec::new();
    let mut keys = Vec::new();
    for (page_mib, value_mib) in CACHES {
        let world = World::open(
            dir,
            Caches {
                page_mib,
                value_mib,
            },
        )?;
        let view = world.view();
        if keys.is_empty() {
            keys = sample(&*view)?;
        }
        let ns = timed(&keys, |key| Ok(view.get(Space::Data, key)?.is_some()))?;
        let from = name(page_mib, value_mib);
        out.push(Reads { from, ns });
    }
    let world = World::open(
        dir,
        Caches {
            page_mib: 4,
            value_mib: 0,
        },
    )?;
    let before = live_bytes();
    let mut map = BTreeMap::<Vec<u8>, Bytes>::new();
    let mut rest = Vec::<BTreeMap<Vec<u8>, Bytes>>::new();
    for space in Space::ALL {
        let mut of = BTreeMap::new();
        each(&*world.view(), space, &mut |key, value| {
            of.insert(key.to_vec(), Bytes::copy_from_slice(value));
        })?;
        match space {
            Space::Data => map = of,
            _ => rest.push(of),
        }
    }
    let cache = world.state.stats().page_cache.bytes;
    let heap = live_bytes() - before - cache as i64;
    let ns = timed(&keys, |key| Ok(map.get(key).is_some_and(|v| !v.is_empty())))?;
    let from = "a map of keys and values in memory".to_owned();
    out.push(Reads { from, ns });
    Ok((out, heap))
}
