//! The allocator of an isolate: the process's own, counted by the [`Meter`], which may refuse.

use std::{
    alloc::{self, Layout},
    ptr,
    rc::Rc,
};

use rquickjs::allocator::Allocator;

use super::meter::Meter;

/// Every block begins with a header that holds its size; 16 keeps what follows aligned for
/// any C type.
const HEADER: usize = 16;

/// See the module's comment.
pub(super) struct Heap(pub Rc<Meter>);

/// The layout of a block for `size` bytes; absent when that overflows.
fn layout(size: usize) -> Option<Layout> {
    let whole = size.checked_next_multiple_of(HEADER)?.checked_add(HEADER)?;
    Layout::from_size_align(whole, HEADER).ok()
}

impl Heap {
    fn make(&mut self, size: usize, zeroed: bool) -> *mut u8 {
        let Some(layout) = layout(size) else {
            return ptr::null_mut();
        };
        if !self.0.admit(layout.size()) {
            return ptr::null_mut();
        }
        // SAFETY: the layout's size is at least HEADER, so it is not zero.
        let block = unsafe {
            if zeroed {
                alloc::alloc_zeroed(layout)
            } else {
                alloc::alloc(layout)
            }
        };
        self.finish(block, layout.size())
    }

    /// Writes the header; answers what the script may use.
    fn finish(&mut self, block: *mut u8, whole: usize) -> *mut u8 {
        if block.is_null() {
            return block;
        }
        self.0.allocated(whole);
        // SAFETY: `block` has at least HEADER bytes, aligned to HEADER, which is enough for a
        // usize; what follows the header lies within the block.
        unsafe {
            block.cast::<usize>().write(whole);
            block.add(HEADER)
        }
    }
}

/// The block that holds `pointer`, and its whole size.
///
/// # Safety
/// `pointer` came from [`Heap::finish`] and has not been freed.
unsafe fn block_of(pointer: *mut u8) -> (*mut u8, usize) {
    // SAFETY: by the contract HEADER bytes with the size lie before `pointer`.
    unsafe {
        let block = pointer.sub(HEADER);
        (block, block.cast::<usize>().read())
    }
}

// SAFETY: blocks come from the global allocator with HEADER (16) as alignment, hold at least
// the size asked for behind the header, and `usable_size` reads back what the header holds.
unsafe impl Allocator for Heap {
    fn alloc(&mut self, size: usize) -> *mut u8 {
        self.make(size, false)
    }

    fn calloc(&mut self, count: usize, size: usize) -> *mut u8 {
        match count.checked_mul(size) {
            Some(total) => self.make(total, true),
            None => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&mut self, pointer: *mut u8) {
        // SAFETY: the caller hands back what this allocator gave out; the size in the header
        // is the one it was allocated with.
        unsafe {
            let (block, whole) = block_of(pointer);
            self.0.freed(whole);
            alloc::dealloc(block, Layout::from_size_align_unchecked(whole, HEADER));
        }
    }

    unsafe fn realloc(&mut self, pointer: *mut u8, new_size: usize) -> *mut u8 {
        let Some(new) = layout(new_size) else {
            return ptr::null_mut();
        };
        // SAFETY: as in `dealloc`; `new.size()` is not zero and does not overflow.
        unsafe {
            let (block, whole) = block_of(pointer);
            if new.size() > whole && !self.0.admit(new.size() - whole) {
                return ptr::null_mut();
            }
            let old = Layout::from_size_align_unchecked(whole, HEADER);
            let moved = alloc::realloc(block, old, new.size());
            if moved.is_null() {
                return moved;
            }
            self.0.freed(whole);
            self.finish(moved, new.size())
        }
    }

    unsafe fn usable_size(pointer: *mut u8) -> usize {
        // SAFETY: the caller hands over what this allocator gave out.
        unsafe { block_of(pointer).1 - HEADER }
    }
}
