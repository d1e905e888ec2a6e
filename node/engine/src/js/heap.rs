//! The allocator of an isolate: the process's own, counted by the [`Meter`], which may refuse.
//! It knows its blocks: QuickJS leaks some when an allocation fails, and they go with it.

use std::{
    alloc::{self, Layout},
    cell::Cell,
    ptr,
    rc::Rc,
};

use rquickjs::allocator::Allocator;

use super::meter::Meter;

/// What every block begins with. 32 bytes, so that what follows is aligned for any C type.
#[repr(C, align(16))]
struct Header {
    previous: *mut Header,
    next: *mut Header,
    /// Size of the whole block.
    whole: usize,
}

const HEADER: usize = size_of::<Header>();
const ALIGN: usize = align_of::<Header>();
const _: () = assert!(HEADER == 32 && ALIGN == 16);

/// The blocks of a heap.
pub(super) struct Blocks {
    meter: Rc<Meter>,
    /// The newest block. Invariant: the list holds every block that was given out and not yet
    /// freed, and nothing else.
    first: Cell<*mut Header>,
}

/// See the module's comment.
pub(super) struct Heap(Rc<Blocks>);

/// The layout of a block for `size` bytes; absent when that overflows.
fn layout(size: usize) -> Option<Layout> {
    let whole = size.checked_next_multiple_of(ALIGN)?.checked_add(HEADER)?;
    Layout::from_size_align(whole, ALIGN).ok()
}

impl Heap {
    pub fn new(blocks: &Rc<Blocks>) -> Self {
        Self(Rc::clone(blocks))
    }
}

impl Blocks {
    pub fn new(meter: Rc<Meter>) -> Rc<Self> {
        let first = Cell::new(ptr::null_mut());
        Rc::new(Self { meter, first })
    }

    /// Whether an allocation ever failed.
    pub fn exhausted(&self) -> bool {
        self.meter.exhausted()
    }

    fn make(&self, size: usize, zeroed: bool) -> *mut u8 {
        let Some(layout) = layout(size) else {
            return ptr::null_mut();
        };
        if !self.meter.admit(layout.size()) {
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
        if block.is_null() {
            return block;
        }
        // SAFETY: the block is new, has the layout's size and alignment, and is in no list.
        unsafe { self.link(block.cast(), layout.size()) }
    }

    /// Puts a block into the list; answers what the script may use of it.
    ///
    /// # Safety
    /// `block` has `whole` (at least HEADER) bytes, aligned to ALIGN, and is in no list.
    unsafe fn link(&self, block: *mut Header, whole: usize) -> *mut u8 {
        self.meter.allocated(whole);
        let header = Header {
            previous: ptr::null_mut(),
            next: self.first.get(),
            whole,
        };
        // SAFETY: by the contract the header fits at `block`; `first` is null or, by the
        // invariant, a living block. What follows the header lies within the block.
        unsafe {
            block.write(header);
            if !self.first.get().is_null() {
                (*self.first.get()).previous = block;
            }
            self.first.set(block);
            block.cast::<u8>().add(HEADER)
        }
    }

    /// Takes a block out of the list; answers its layout.
    ///
    /// # Safety
    /// `block` is in this list.
    unsafe fn unlink(&self, block: *mut Header) -> Layout {
        // SAFETY: by the contract `block` is a living block, and so are its neighbours unless
        // null; its size and alignment are those that it was allocated with.
        unsafe {
            let Header {
                previous,
                next,
                whole,
            } = block.read();
            if previous.is_null() {
                self.first.set(next);
            } else {
                (*previous).next = next;
            }
            if !next.is_null() {
                (*next).previous = previous;
            }
            self.meter.freed(whole);
            Layout::from_size_align_unchecked(whole, ALIGN)
        }
    }
}

/// The block that holds `pointer`.
///
/// # Safety
/// `pointer` came from [`Blocks::link`].
unsafe fn block_of(pointer: *mut u8) -> *mut Header {
    // SAFETY: by the contract HEADER bytes lie before `pointer`, in the same block.
    unsafe { pointer.sub(HEADER).cast() }
}

impl Blocks {
    /// Frees all blocks.
    ///
    /// # Safety
    /// Nothing uses any of them any more.
    pub unsafe fn release(&self) {
        while !self.first.get().is_null() {
            let block = self.first.get();
            // SAFETY: by the invariant `block` is a living block of this list, and by the
            // contract nobody uses it.
            unsafe {
                let layout = self.unlink(block);
                alloc::dealloc(block.cast(), layout);
            }
        }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: the runtime is freed before its allocator, so nothing uses what it leaked.
        unsafe { self.0.release() }
    }
}

// SAFETY: blocks come from the global allocator with ALIGN (16) as alignment, hold at least
// the size asked for behind the header, and `usable_size` reads back what the header holds.
unsafe impl Allocator for Heap {
    fn alloc(&mut self, size: usize) -> *mut u8 {
        self.0.make(size, false)
    }

    fn calloc(&mut self, count: usize, size: usize) -> *mut u8 {
        match count.checked_mul(size) {
            Some(total) => self.0.make(total, true),
            None => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&mut self, pointer: *mut u8) {
        // SAFETY: the caller hands back what this allocator gave out, so it is in the list.
        unsafe {
            let block = block_of(pointer);
            let layout = self.0.unlink(block);
            alloc::dealloc(block.cast(), layout);
        }
    }

    unsafe fn realloc(&mut self, pointer: *mut u8, new_size: usize) -> *mut u8 {
        let Some(new) = layout(new_size) else {
            return ptr::null_mut();
        };
        // SAFETY: the caller hands over what this allocator gave out, so it is in the list.
        // While it may move it is in no list; afterwards the block that lives, moved or not,
        // is put back with its size. `new.size()` is not zero and does not overflow.
        unsafe {
            let block = block_of(pointer);
            let whole = (*block).whole;
            if new.size() > whole && !self.0.meter.admit(new.size() - whole) {
                return ptr::null_mut();
            }
            let old = self.0.unlink(block);
            let moved = alloc::realloc(block.cast(), old, new.size());
            if moved.is_null() {
                self.0.link(block, whole);
                return ptr::null_mut();
            }
            self.0.link(moved.cast(), new.size())
        }
    }

    unsafe fn usable_size(pointer: *mut u8) -> usize {
        // SAFETY: the caller hands over what this allocator gave out.
        unsafe { (*block_of(pointer)).whole - HEADER }
    }
}
