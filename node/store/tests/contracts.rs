//! The contract suites over everything that implements them.
#![allow(missing_docs)]

mod common;

use std::sync::Arc;

use common::{at, open_state};
use flower_api::Revision;
use flower_engine::{Entry, EntryKind, Overlay, Patch, View, view::MemoryView};
use flower_store::{
    Disk, Payload, RealDisk, SimDisk,
    contract::{disk_contract, view_contract},
};

fn entry(patches: &[Arc<Patch>]) -> Payload {
    Payload::Entry(Arc::new(Entry {
        kind: EntryKind::Mutations,
        revision: Revision(1),
        stamp_ms: 1,
        patches: patches.to_vec(),
    }))
}

fn in_memory(patches: &[Arc<Patch>]) -> MemoryView {
    let mut view = MemoryView::default();
    for patch in patches {
        view.apply(patch);
    }
    view
}

#[test]
fn memory_view() {
    view_contract(|patches| Arc::new(in_memory(patches)));
}

#[test]
fn overlay_over_memory() {
    view_contract(|patches| {
        let (below, above) = patches.split_at(patches.len() / 2);
        Arc::new(Overlay::new(Arc::new(in_memory(below)), above.to_vec()))
    });
}

#[test]
fn state_view_with_one_patch_an_entry() {
    view_contract(|patches| {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
        let mut state = open_state(&disk);
        for (index, patch) in patches.iter().enumerate() {
            let payload = entry(std::slice::from_ref(patch));
            state.apply(at(1, index as u64), &payload).unwrap();
        }
        // The view outlives its writer.
        state.view()
    });
}

#[test]
fn state_view_with_all_patches_in_one_entry_under_an_overlay() {
    view_contract(|patches| {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
        let mut state = open_state(&disk);
        let (below, above) = patches.split_at(patches.len() / 3);
        state.apply(at(1, 0), &entry(below)).unwrap();
        let base: Arc<dyn View> = state.view();
        Arc::new(Overlay::new(base, above.to_vec()))
    });
}

#[test]
fn simulated_disk() {
    let disk = SimDisk::new(3);
    let again = disk.clone();
    disk_contract(Arc::new(disk), move |old| {
        drop(old);
        again.cut_power();
        Arc::new(again)
    });
}

#[test]
fn real_disk() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let disk = RealDisk::open(&path).unwrap();
    disk_contract(Arc::new(disk), |old| {
        let refused = RealDisk::open(&path).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::WouldBlock);
        assert!(
            refused.to_string().contains("used by another process"),
            "{refused}"
        );
        drop(old);
        Arc::new(RealDisk::open(&path).unwrap())
    });
}
