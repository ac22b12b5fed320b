//! Keeping a thread that serves a block device out of the memory reclaim that waits for that device.
//!
//! When memory is short the kernel writes dirty pages back, also from within an allocation. A thread that serves the
//! device those pages belong to would wait for itself.

use std::io;

/// `PR_SET_IO_FLUSHER` of linux/prctl.h (Linux ≥ 5.6).
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Tells the kernel that the calling thread, and every thread it starts from now on, serves a block device: its
/// allocations do no I/O and its writes are not throttled.
///
/// # Errors
/// EPERM without CAP_SYS_RESOURCE, EINVAL before Linux 5.6.
pub fn mark_io_flusher() -> io::Result<()> {
    // SAFETY: takes four integers and touches no memory of ours.
    let result = unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Keeps the process's pages in memory, those it has touched and those it will touch.
///
/// # Errors
/// EPERM or ENOMEM without CAP_IPC_LOCK and beyond RLIMIT_MEMLOCK.
pub fn lock_memory() -> io::Result<()> {
    // SAFETY: changes only whether our pages may be swapped out.
    let result = unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
