//! One I/O of a file volume on its way through the kernel: which entries it takes, and what follows each of them.

use io_uring::{opcode, squeue, types};

use super::{Failure, Operation, VolumeIo};
use crate::buffer::{Buffer, BufferSlice};

/// Ranges of memory that one kernel request may name (IOV_MAX).
const RANGES_MAX: usize = 1024;
/// Bytes of one kernel request: below the kernel's limit of 2 GiB less a page.
const TRANSFER_MAX: usize = 1 << 30;
/// Bytes written per step where zeroes have to be written.
const ZEROES_STEP: u64 = 1 << 20;
/// How often an I/O that the kernel returned with EAGAIN or EINTR is tried again.
const TRIES_MAX: u32 = 64;

/// How a range can be zeroed, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Zeroing {
    /// Free the blocks; on a device, zero with unmap.
    Punch,
    /// Keep the blocks, as zeroes.
    ZeroRange,
    /// Write zeroes.
    Write,
}

const DISCARD_WAYS: [Zeroing; 3] = [Zeroing::Punch, Zeroing::ZeroRange, Zeroing::Write];
const ZERO_WAYS: [Zeroing; 3] = [Zeroing::ZeroRange, Zeroing::Punch, Zeroing::Write];

/// What is known about the file or device.
#[derive(Debug)]
pub(super) struct Support {
    /// What addresses and lengths of memory must be multiples of, in bytes.
    alignment: u32,
    punch: bool,
    zero_range: bool,
}

impl Support {
    pub fn new(alignment: u32) -> Self {
        Self { alignment, punch: true, zero_range: true }
    }

    fn has(&self, way: Zeroing) -> bool {
        match way {
            Zeroing::Punch => self.punch,
            Zeroing::ZeroRange => self.zero_range,
            Zeroing::Write => true,
        }
    }

    fn lacks(&mut self, way: Zeroing) {
        match way {
            Zeroing::Punch => self.punch = false,
            Zeroing::ZeroRange => self.zero_range = false,
            Zeroing::Write => {}
        }
    }
}

/// What follows a kernel completion.
#[derive(Debug)]
pub(super) enum Progress {
    /// The request goes to the kernel again.
    Again,
    /// The I/O has ended.
    Ended(Result<(), Failure>),
}

/// What the kernel is asked to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Transfer,
    Zero(Zeroing),
    Sync,
}

/// An I/O and how far it has got.
#[derive(Debug)]
pub(super) struct Request {
    io: VolumeIo,
    step: Step,
    /// Bytes done in the present step.
    done: u64,
    /// Memory in the kernel's form; it must stay where it is until the kernel has completed the entry.
    ranges: Vec<libc::iovec>,
    /// Aligned memory in place of the I/O's own, or the zeroes to write.
    bounce: Option<Buffer>,
    tries: u32,
}

// SAFETY: the addresses in `ranges` point into memory that `io` and `bounce` keep alive and that may be used from
// any thread.
unsafe impl Send for Request {}

impl Request {
    /// An I/O that has not begun. `ranges` is room from an earlier request.
    pub fn new(io: VolumeIo, support: &Support, ranges: Vec<libc::iovec>) -> Self {
        let step = match io.operation {
            Operation::Read | Operation::Write { .. } => Step::Transfer,
            Operation::Flush => Step::Sync,
            Operation::Discard | Operation::WriteZeroes { .. } => Step::Zero(first_way(io.operation, support)),
        };
        let misaligned = |slice: &BufferSlice| {
            (slice.as_ptr() as usize | slice.len()) & (support.alignment.max(1) as usize - 1) != 0
        };
        let bounce = io.memory.iter().any(misaligned).then(|| {
            let bounce = Buffer::zeroed(io.length as usize);
            if matches!(io.operation, Operation::Write { .. }) {
                each_part(&io.memory, &bounce, |own, bounce| bounce.copy_from(own));
            }
            bounce
        });
        Self { io, step, done: 0, ranges, bounce, tries: 0 }
    }

    /// Takes another I/O after this one has ended: its memory is released, its room is used again.
    pub fn renew(&mut self, io: VolumeIo, support: &Support) {
        let ranges = std::mem::take(&mut self.ranges);
        *self = Self::new(io, support, ranges);
    }

    /// Lets the memory of an I/O that has ended go.
    pub fn release_cache(&mut self) {
        self.bounce = None;
        self.io.memory.clear();
    }

    pub fn token(&self) -> u64 {
        self.io.token
    }

    /// The entry for the present step.
    pub fn entry(&mut self, file: types::Fd, support: &Support) -> squeue::Entry {
        if let Step::Zero(way) = self.step
            && !support.has(way)
        {
            // Learnt since this I/O was queued.
            self.step = Step::Zero(first_way(self.io.operation, support));
        }
        let offset = self.io.offset + self.done;
        match self.step {
            Step::Transfer => {
                self.gather();
                self.transfer(file, offset)
            }
            Step::Zero(Zeroing::Write) => {
                let step = ZEROES_STEP.min(self.io.length - self.done) as usize;
                let zeroes = self.bounce.get_or_insert_with(|| Buffer::zeroed(step));
                self.ranges = vec![libc::iovec { iov_base: zeroes.as_ptr().cast(), iov_len: step }];
                self.transfer(file, offset)
            }
            Step::Zero(way) => {
                let how = if way == Zeroing::Punch { libc::FALLOC_FL_PUNCH_HOLE } else { libc::FALLOC_FL_ZERO_RANGE };
                let mode = how | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(file, self.io.length).offset(offset).mode(mode).build()
            }
            Step::Sync => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
        }
    }

    fn transfer(&self, file: types::Fd, offset: u64) -> squeue::Entry {
        let (ranges, count) = (self.ranges.as_ptr(), self.ranges.len() as u32);
        match self.io.operation {
            Operation::Read => opcode::Readv::new(file, ranges, count).offset(offset).build(),
            operation => {
                let flags = if operation == (Operation::Write { fua: true }) { libc::RWF_DSYNC } else { 0 };
                opcode::Writev::new(file, ranges, count).offset(offset).rw_flags(flags).build()
            }
        }
    }

    /// Lists the memory that is still to transfer, as much as one kernel request may name.
    fn gather(&mut self) {
        let (mut skip, mut room) = (self.done as usize, TRANSFER_MAX);
        self.ranges.clear();
        let whole = self.bounce.as_ref().map(|bounce| [bounce.slice(0, bounce.len())]);
        for slice in whole.as_ref().map_or(self.io.memory.as_slice(), |whole| whole) {
            if skip >= slice.len() {
                skip -= slice.len();
                continue;
            }
            let length = (slice.len() - skip).min(room);
            // SAFETY: `skip` is less than the slice's length.
            let start = unsafe { slice.as_ptr().add(skip) };
            self.ranges.push(libc::iovec { iov_base: start.cast(), iov_len: length });
            (skip, room) = (0, room - length);
            if room == 0 || self.ranges.len() == RANGES_MAX {
                return;
            }
        }
    }

    /// Takes the kernel's result for the present step.
    pub fn advance(&mut self, result: i32, support: &mut Support) -> Progress {
        if result < 0 {
            return self.failed(-result, support);
        }
        match self.step {
            Step::Transfer | Step::Zero(Zeroing::Write) => {
                self.done += u64::from(result.unsigned_abs());
                if result == 0 {
                    // The end of the file, though the range was checked: it was truncated.
                    return Progress::Ended(Err(Failure::Io));
                }
                if self.done < self.io.length {
                    return Progress::Again;
                }
            }
            Step::Zero(_) | Step::Sync => {}
        }
        if self.io.operation == (Operation::WriteZeroes { fua: true }) && self.step != Step::Sync {
            self.step = Step::Sync;
            return Progress::Again;
        }
        if self.io.operation == Operation::Read
            && let Some(bounce) = &self.bounce
        {
            each_part(&self.io.memory, bounce, BufferSlice::copy_from);
        }
        Progress::Ended(Ok(()))
    }

    fn failed(&mut self, errno: i32, support: &mut Support) -> Progress {
        match (self.step, errno) {
            (_, libc::EAGAIN | libc::EINTR) if self.tries < TRIES_MAX => {
                self.tries += 1;
                Progress::Again
            }
            // EINVAL: some devices and file systems say so of a mode that they do not know.
            (Step::Zero(way), libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) if way != Zeroing::Write => {
                support.lacks(way);
                self.step = Step::Zero(first_way(self.io.operation, support));
                Progress::Again
            }
            _ => Progress::Ended(Err(Failure::from_errno(errno))),
        }
    }
}

fn first_way(operation: Operation, support: &Support) -> Zeroing {
    let ways = if operation == Operation::Discard { DISCARD_WAYS } else { ZERO_WAYS };
    ways.into_iter().find(|way| support.has(*way)).unwrap_or(Zeroing::Write)
}

/// Pairs each slice with the part of the bounce buffer that stands for it.
fn each_part(memory: &[BufferSlice], bounce: &Buffer, pair: impl Fn(&BufferSlice, &BufferSlice)) {
    let mut position = 0;
    for slice in memory {
        pair(slice, &bounce.slice(position, slice.len()));
        position += slice.len();
    }
}

impl Failure {
    /// What the errno (positive) means for a volume.
    pub(crate) fn from_errno(errno: i32) -> Self {
        match errno {
            libc::ENOSPC | libc::EDQUOT => Self::NoSpace,
            libc::EOPNOTSUPP => Self::Unsupported,
            libc::ENODEV | libc::ENXIO | libc::ENOMEDIUM | libc::ESHUTDOWN => Self::Gone,
            _ => Self::Io,
        }
    }
}
