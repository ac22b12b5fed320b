//! Memory for I/O: page-aligned, shared by handle, kept alive until the last I/O on it has ended.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

/// Alignment that O_DIRECT asks for on every device we know, in bytes.
pub const ALIGNMENT: usize = 4096;

/// Page-aligned memory. Cloning gives another handle on the same memory.
///
/// The kernel may read or write the memory while an I/O is in flight, so ordinary references are handed out only
/// where the caller is alone ([`Buffer::unique`]) or promises it ([`Buffer::bytes`]).
#[derive(Clone, Debug)]
pub struct Buffer(Arc<Allocation>);

#[derive(Debug)]
struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
    length: usize,
}

// SAFETY: the allocation is plain memory owned by this value; access rules are those of `Buffer`'s methods.
unsafe impl Send for Allocation {}
// SAFETY: as above; `Buffer` hands out references only under its documented contract.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: `start` came from `alloc_zeroed` with this layout and is freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

impl Buffer {
    /// Zeroed memory of `length` bytes.
    #[must_use]
    pub fn zeroed(length: usize) -> Self {
        let layout = Layout::from_size_align(length.max(1).next_multiple_of(ALIGNMENT), ALIGNMENT)
            .expect("I/O buffers are far below isize::MAX");
        // SAFETY: the layout has a non-zero size.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Self(Arc::new(Allocation { start, layout, length }))
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.length
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.length == 0
    }

    /// The address of the first byte, for I/O.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }

    /// The memory, if this is the only handle on it (so no I/O is in flight).
    pub fn unique(&mut self) -> Option<&mut [u8]> {
        let allocation = Arc::get_mut(&mut self.0)?;
        // SAFETY: the only handle is borrowed mutably; the allocation has `length` initialised bytes.
        Some(unsafe { std::slice::from_raw_parts_mut(allocation.start.as_ptr(), allocation.length) })
    }

    /// The memory.
    ///
    /// # Safety
    /// While the reference lives, nothing may write to the memory: no read in flight into it, no `copy_from`.
    #[must_use]
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the allocation has `length` initialised bytes; the caller rules out writers.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.0.length) }
    }

    /// A range of this buffer as a handle that keeps it alive.
    ///
    /// # Panics
    /// If the range does not lie in the buffer.
    #[must_use]
    pub fn slice(&self, offset: usize, length: usize) -> BufferSlice {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.len()), "slice beyond the buffer");
        BufferSlice { buffer: self.clone(), offset, length }
    }
}

/// A range of a [`Buffer`] that keeps it alive.
#[derive(Clone, Debug)]
pub struct BufferSlice {
    buffer: Buffer,
    offset: usize,
    length: usize,
}

impl BufferSlice {
    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The address of the first byte, for I/O of at most `len` bytes.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: `Buffer::slice` checked that the range lies in the allocation.
        unsafe { self.buffer.as_ptr().add(self.offset) }
    }

    /// The bytes.
    ///
    /// # Safety
    /// As for [`Buffer::bytes`], for this range.
    #[must_use]
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the range lies in the allocation; the caller rules out writers.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.length) }
    }

    /// Copies `source` into this range, byte for byte.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy_from(&self, source: &Self) {
        assert_eq!(self.length, source.length, "copy between ranges of different lengths");
        // SAFETY: both ranges lie in live allocations; `copy` allows overlap.
        unsafe { std::ptr::copy(source.as_ptr(), self.as_ptr(), self.length) }
    }

    /// Fills the range with zeroes.
    pub fn zero(&self) {
        // SAFETY: the range lies in a live allocation.
        unsafe { std::ptr::write_bytes(self.as_ptr(), 0, self.length) }
    }
}
