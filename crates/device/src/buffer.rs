//! Memory for I/O: page-aligned, shared by handle, kept alive until the last I/O on it has ended.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use crossbeam_queue::ArrayQueue;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Alignment that O_DIRECT asks for on every device we know, in bytes.
pub const ALIGNMENT: usize = 4096;

/// Page-aligned memory. Cloning gives another handle on the same memory.
///
/// The kernel may read or write the memory while an I/O is in flight, so ordinary references are handed out only
/// where the caller is alone ([`Buffer::unique`]) or promises it ([`Buffer::bytes`]).
#[derive(Clone, Debug)]
pub struct Buffer {
    memory: Arc<Allocation>,
    length: usize,
}

#[derive(Debug)]
struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
    /// Where the memory goes when the last handle is dropped; dangling for memory of no pool.
    pool: Weak<Classes>,
}

// SAFETY: the allocation is plain memory owned by this value; access rules are those of `Buffer`'s methods.
unsafe impl Send for Allocation {}
// SAFETY: as above; `Buffer` hands out references only under its documented contract.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade()
            && pool.put_back(self.start, self.layout)
        {
            return;
        }
        free(self.start, self.layout);
    }
}

/// Memory of this size and more is mapped: its pages exist once they are used, and go when it is freed.
const MAPPED_LEAST: usize = 256 << 10;

/// Zeroed pages; `length` is not zero.
fn allocate(length: usize) -> (NonNull<u8>, Layout) {
    let layout = Layout::from_size_align(length, ALIGNMENT).expect("I/O buffers are far below isize::MAX");
    assert!(layout.size() > 0, "an allocation of no bytes");
    if layout.size() >= MAPPED_LEAST {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place that the kernel chooses.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), layout.size(), protection, MapFlags::PRIVATE) };
        let start = mapped.ok().and_then(|start| NonNull::new(start.cast()));
        return (start.unwrap_or_else(|| handle_alloc_error(layout)), layout);
    }
    // SAFETY: the layout has a non-zero size.
    let start = unsafe { alloc_zeroed(layout) };
    (NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout)), layout)
}

/// Frees what `allocate` allocated.
fn free(start: NonNull<u8>, layout: Layout) {
    if layout.size() >= MAPPED_LEAST {
        // SAFETY: `allocate` mapped memory of this size, and it is unmapped once.
        let _ = unsafe { munmap(start.as_ptr().cast(), layout.size()) };
    } else {
        // SAFETY: `start` came from `alloc_zeroed` with this layout and is freed once.
        unsafe { dealloc(start.as_ptr(), layout) }
    }
}

impl Buffer {
    /// Zeroed memory of `length` bytes.
    #[must_use]
    pub fn zeroed(length: usize) -> Self {
        let (start, layout) = allocate(length.max(1).next_multiple_of(ALIGNMENT));
        Self { memory: Arc::new(Allocation { start, layout, pool: Weak::new() }), length }
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Makes this handle speak of the first `length` bytes of the memory.
    ///
    /// # Panics
    /// If the memory has fewer.
    pub fn set_len(&mut self, length: usize) {
        assert!(length <= self.memory.layout.size(), "more bytes than the memory has");
        self.length = length;
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The address of the first byte, for I/O.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.start.as_ptr()
    }

    /// The memory, if this is the only handle on it (so no I/O is in flight).
    pub fn unique(&mut self) -> Option<&mut [u8]> {
        let allocation = Arc::get_mut(&mut self.memory)?;
        // SAFETY: the only handle is borrowed mutably; the allocation has `length` initialised bytes.
        Some(unsafe { std::slice::from_raw_parts_mut(allocation.start.as_ptr(), self.length) })
    }

    /// The memory.
    ///
    /// # Safety
    /// While the reference lives, nothing may write to the memory: no read in flight into it, no `copy_from`.
    #[must_use]
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the allocation has `length` initialised bytes; the caller rules out writers.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.length) }
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

    /// A part of this range, as another handle.
    ///
    /// # Panics
    /// If the part does not lie in the range.
    #[must_use]
    pub fn slice(&self, offset: usize, length: usize) -> Self {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.length), "slice beyond the range");
        Self { buffer: self.buffer.clone(), offset: self.offset + offset, length }
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

/// The smallest size class, as a power of two: a page.
const CLASS_FIRST: u32 = ALIGNMENT.trailing_zeros();
/// The largest size class, as a power of two: 4 MiB. Longer buffers are allocated and freed each time.
const CLASS_LAST: u32 = 22;
/// Idle buffers that one class keeps, at most.
const CLASS_BUFFERS_MAX: usize = 1024;

/// Recycled buffers, so that I/O in a steady state neither allocates nor takes page faults.
///
/// The memory comes back when the last handle on a buffer is dropped, on whatever thread. Cloning gives another
/// handle on the same pool; buffers that outlive the pool are freed.
///
/// A buffer from the pool holds what its last user left there. That never reaches a client as long as reads are
/// answered only when they succeeded, since they overwrite the whole buffer, and as long as only requested bytes are
/// sent; whoever answers a read from memory that no I/O has filled takes [`Buffer::zeroed`].
#[derive(Clone, Debug)]
pub struct BufferPool(Arc<Classes>);

/// Idle memory by size class.
#[derive(Debug)]
struct Classes(Vec<ArrayQueue<Pages>>);

/// Idle memory; its class tells its layout.
#[derive(Debug)]
struct Pages(NonNull<u8>);

// SAFETY: idle memory belongs to whoever holds this value.
unsafe impl Send for Pages {}

impl Classes {
    /// Keeps the memory, or says that there is no place for it.
    fn put_back(&self, start: NonNull<u8>, layout: Layout) -> bool {
        let class = layout.size().trailing_zeros() - CLASS_FIRST;
        self.0.get(class as usize).is_some_and(|class| class.push(Pages(start)).is_ok())
    }
}

impl Drop for Classes {
    fn drop(&mut self) {
        for (class, pages) in (CLASS_FIRST..).zip(&self.0) {
            let layout = Layout::from_size_align(1 << class, ALIGNMENT).expect("it was allocated with this layout");
            while let Some(Pages(start)) = pages.pop() {
                free(start, layout);
            }
        }
    }
}

impl BufferPool {
    /// A pool that keeps at most `idle_bytes_max` bytes idle in each of its size classes (powers of two from 4 KiB
    /// to 4 MiB).
    #[must_use]
    pub fn new(idle_bytes_max: usize) -> Self {
        let classes = (CLASS_FIRST..=CLASS_LAST)
            .map(|class| ArrayQueue::new((idle_bytes_max >> class).clamp(1, CLASS_BUFFERS_MAX)))
            .collect();
        Self(Arc::new(Classes(classes)))
    }

    /// Memory of `length` bytes with any content (see the type).
    #[must_use]
    pub fn take(&self, length: usize) -> Buffer {
        let size = length.max(ALIGNMENT).next_power_of_two();
        let class = size.trailing_zeros() - CLASS_FIRST;
        let Some(idle) = self.0.0.get(class as usize) else { return Buffer::zeroed(length) };
        let (start, layout) = match idle.pop() {
            Some(Pages(start)) => {
                (start, Layout::from_size_align(size, ALIGNMENT).expect("it was allocated with this layout"))
            }
            None => allocate(size),
        };
        Buffer { memory: Arc::new(Allocation { start, layout, pool: Arc::downgrade(&self.0) }), length }
    }

    /// Bytes that wait for a user.
    #[must_use]
    pub fn idle_bytes(&self) -> usize {
        (CLASS_FIRST..).zip(&self.0.0).map(|(class, pages)| pages.len() << class).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_speaks_of_as_much_as_it_is_told() {
        let mut buffer = Buffer::zeroed(MAPPED_LEAST);
        buffer.set_len(512);
        assert_eq!(buffer.unique().map(|bytes| bytes.len()), Some(512));
        let other = buffer.clone();
        buffer.set_len(MAPPED_LEAST);
        assert_eq!((other.len(), buffer.len(), buffer.unique().is_some()), (512, MAPPED_LEAST, false));
        drop(other);
        assert!(buffer.unique().is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0)));
    }

    #[test]
    fn the_pool_recycles_on_the_last_drop_and_is_bounded() {
        let pool = BufferPool::new(8192);
        let mut first = pool.take(100);
        assert_eq!((first.len(), first.as_ptr() as usize % ALIGNMENT), (100, 0));
        first.unique().unwrap().fill(7);
        let (address, slice) = (first.as_ptr(), first.slice(10, 20));
        drop(first);
        assert_eq!(pool.idle_bytes(), 0, "a slice keeps it");
        drop(slice);
        assert_eq!(pool.idle_bytes(), 4096);
        let again = pool.take(4096);
        assert_eq!((again.as_ptr(), again.len()), (address, 4096));
        let many: Vec<_> = (0..10).map(|_| pool.take(4096)).collect();
        drop(many);
        assert_eq!(pool.idle_bytes(), 8192, "bounded");
        let large = pool.take(64 << 20);
        drop(large);
        assert_eq!(pool.idle_bytes(), 8192, "large buffers are not kept");
        drop(pool);
        drop(again);
    }
}
