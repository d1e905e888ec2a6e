//! What is stored, by class of key. The same in every run.

use std::{collections::BTreeMap, ops::Bound};

use anyhow::{Context, Result};
use flower_engine::{Direction, Space, View};

use crate::run::Class;

/// The version before every value.
const VERSION_BYTES: usize = 8;

/// Visits every record of a space.
pub(crate) fn each(
    view: &dyn View,
    space: Space,
    visit: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<()> {
    let (from, to) = (Bound::Unbounded, Bound::Unbounded);
    view.scan(space, from, to, Direction::Forward, &mut |key, value| {
        visit(key, value);
        true
    })?;
    Ok(())
}

fn part(key: &[u8], at: usize) -> String {
    let part = key.split(|b| *b == 0).nth(at).unwrap_or_default();
    String::from_utf8_lossy(part).into_owned()
}

fn class(space: Space, key: &[u8]) -> String {
    match space {
        Space::Data if key.ends_with(b"\0r") => format!("rows of {}", part(key, 1)),
        Space::Data => {
            let name = key.rsplit(|b| *b == 0).next().unwrap_or_default();
            let name = String::from_utf8_lossy(name.get(1..).unwrap_or_default());
            format!("cells of {name}")
        }
        Space::Index => format!("entries of {}.{}", part(key, 1), index(key)),
        Space::Readers => "reader records".into(),
        Space::Receipts | Space::ReceiptsByAge => "receipts".into(),
        Space::Cells => "cells beside no row".into(),
        Space::Meta | Space::Deploy => "application and marks".into(),
    }
}

/// The name of an index, without what tells its stored generations apart.
fn index(key: &[u8]) -> String {
    let name = part(key, 2);
    name.split('.').next().unwrap_or_default().to_owned()
}

/// All classes, in the order of their names.
pub(crate) fn sizes(view: &dyn View) -> Result<Vec<Class>> {
    let mut classes = BTreeMap::<String, Class>::new();
    for space in Space::ALL {
        each(view, space, &mut |key, value| {
            let class = class(space, key);
            let entry = classes.entry(class.clone()).or_insert_with(|| Class {
                class,
                ..Class::default()
            });
            entry.keys += 1;
            entry.key_bytes += key.len() as u64;
            entry.value_bytes += value.len().saturating_sub(VERSION_BYTES) as u64;
        })?;
    }
    Ok(classes.into_values().collect())
}

/// Ids of `count` lines and of their orders, evenly spread, each order once at most.
pub(crate) fn samples(view: &dyn View, orders: u64, count: u64) -> Result<Vec<(String, String)>> {
    let every = (orders / count).max(1);
    let (mut seen, mut last, mut found) = (0, String::new(), Vec::new());
    each(view, Space::Index, &mut |key, _| {
        let (Some(line), Some(rest)) = (key.last_chunk::<16>(), key.get(..key.len() - 16)) else {
            return;
        };
        // The order's id as a text of the index: before the two NULs that end it.
        let order = rest
            .strip_suffix(b"\0\0")
            .and_then(|r| r.last_chunk::<16>());
        let text = |id: &[u8; 16]| String::from_utf8_lossy(id).into_owned();
        let Some(order) = order.map(text).filter(|order| *order != last) else {
            return;
        };
        last.clone_from(&order);
        if seen % every == every / 2 && (found.len() as u64) < count {
            found.push((text(line), order));
        }
        seen += 1;
    })?;
    found.first().context("there are no orders")?;
    Ok(found)
}
