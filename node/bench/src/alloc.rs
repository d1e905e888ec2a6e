//! An allocator that counts what is live, around the one that nodes use. Only the benchmark's
//! program has it; elsewhere the count stays 0.

use std::{
    alloc::{GlobalAlloc, Layout},
    sync::atomic::{AtomicI64, Ordering},
};

use mimalloc::MiMalloc;

static LIVE: AtomicI64 = AtomicI64::new(0);

/// See the module.
pub struct Counting;

fn add(bytes: usize) {
    LIVE.fetch_add(bytes as i64, Ordering::Relaxed);
}

fn subtract(bytes: usize) {
    LIVE.fetch_sub(bytes as i64, Ordering::Relaxed);
}

// SAFETY: every call goes to the allocator inside with the same arguments; counting beside it
// touches no memory that it hands out.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller's promise.
        unsafe { MiMalloc.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller's promise.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        subtract(layout.size());
        // SAFETY: the caller's promise.
        unsafe { MiMalloc.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        subtract(layout.size());
        add(size);
        // SAFETY: the caller's promise.
        unsafe { MiMalloc.realloc(ptr, layout, size) }
    }
}

/// Bytes that were asked for and not given back.
pub fn live_bytes() -> i64 {
    LIVE.load(Ordering::Relaxed)
}
