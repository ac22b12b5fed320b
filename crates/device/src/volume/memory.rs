//! A volume in memory: for tests, for benchmarks without a device, for diskless demos. Nothing survives the process.

use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use surgetank_model::Instant;

use super::{Completion, Failure, Operation, Volume, VolumeIo};
use crate::buffer::ALIGNMENT;

/// A volume in anonymous memory. Pages are used only where something was written; a discard frees them. (No huge
/// pages: scattered writes to a sparse volume would use, and first zero, 512 times the memory.)
///
/// I/Os are done in `submit` and passed on by the next `poll`.
#[derive(Debug)]
pub struct MemoryVolume {
    start: NonNull<u8>,
    size: u64,
    mapped: usize,
    logical_block: u32,
    completed: Vec<Completion>,
}

// SAFETY: the mapping is plain memory that belongs to this value alone.
unsafe impl Send for MemoryVolume {}

impl MemoryVolume {
    /// A volume of `size` bytes that reads as zeroes.
    ///
    /// # Errors
    /// Those of `mmap(2)`: the address space or its limit does not allow it.
    pub fn new(size: u64, logical_block: u32) -> io::Result<Self> {
        let mapped = usize::try_from(size)
            .ok()
            .and_then(|size| size.max(1).checked_next_multiple_of(ALIGNMENT))
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new private mapping at an address of the kernel's choice disturbs no other memory.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, size, mapped, logical_block, completed: Vec::new() })
    }

    fn address(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset <= self.size);
        // SAFETY: callers have checked that the offset lies in the mapping.
        unsafe { self.start.as_ptr().add(offset as usize) }
    }

    fn perform(&self, io: &VolumeIo) -> Result<(), Failure> {
        io.check(self.size, self.logical_block)?;
        let mut position = self.address(io.offset);
        match io.operation {
            Operation::Read => {
                for slice in &io.memory {
                    // SAFETY: `check` bounds the range by the mapping; buffers are other allocations.
                    unsafe {
                        std::ptr::copy_nonoverlapping(position, slice.as_ptr(), slice.len());
                        position = position.add(slice.len());
                    }
                }
            }
            Operation::Write { .. } => {
                for slice in &io.memory {
                    // SAFETY: as for reads.
                    unsafe {
                        std::ptr::copy_nonoverlapping(slice.as_ptr(), position, slice.len());
                        position = position.add(slice.len());
                    }
                }
            }
            Operation::Flush => {}
            Operation::Discard | Operation::WriteZeroes { .. } => self.zero(io.offset, io.length),
        }
        Ok(())
    }

    /// Zeroes a range that lies in the mapping: whole pages go back to the kernel.
    fn zero(&self, offset: u64, length: u64) {
        let end = offset + length;
        let page = ALIGNMENT as u64;
        let (pages_start, pages_end) = (offset.next_multiple_of(page), end / page * page);
        let fill = |from: u64, to: u64| {
            // SAFETY: `from..to` is part of the range, which lies in the mapping.
            unsafe { std::ptr::write_bytes(self.address(from), 0, (to - from) as usize) }
        };
        if pages_start >= pages_end {
            return fill(offset, end);
        }
        fill(offset, pages_start);
        fill(pages_end, end);
        let (pages, length) = (self.address(pages_start).cast::<c_void>(), (pages_end - pages_start) as usize);
        // SAFETY: the pages lie in this private anonymous mapping; they read as zeroes afterwards.
        if unsafe { madvise(pages, length, Advice::LinuxDontNeed) }.is_err() {
            fill(pages_start, pages_end);
        }
    }
}

impl Drop for MemoryVolume {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` and nothing refers to it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.mapped) };
    }
}

impl Volume for MemoryVolume {
    fn size(&self) -> u64 {
        self.size
    }

    fn logical_block(&self) -> u32 {
        self.logical_block
    }

    fn submit(&mut self, _now: Instant, io: VolumeIo) {
        let result = self.perform(&io);
        self.completed.push(Completion { token: io.token, result });
    }

    fn poll(&mut self, _now: Instant, completions: &mut Vec<Completion>) {
        completions.append(&mut self.completed);
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
