//! A block device as a client of its own: every request goes past the page cache.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use surgetank_device::Buffer;

use super::writers::Requests;

/// `_IO(0x12, 119)`: discard a range.
const BLKDISCARD: libc::Ioctl = 0x1277;
/// `_IO(0x12, 127)`: let a range read as zeroes.
const BLKZEROOUT: libc::Ioctl = 0x127f;

pub struct Block {
    file: File,
    forced: File,
}

impl Block {
    pub fn open(path: &Path) -> io::Result<Self> {
        let open = |flags| OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT | flags).open(path);
        Ok(Self { file: open(0)?, forced: open(libc::O_DSYNC)? })
    }

    fn range(&self, request: libc::Ioctl, offset: u64, length: u32) -> io::Result<()> {
        let range = [offset, length.into()];
        // SAFETY: both requests read two 64-bit numbers.
        let result = unsafe { libc::ioctl(self.file.as_raw_fd(), request, range.as_ptr()) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn aligned(data: &[u8]) -> Buffer {
    let mut buffer = Buffer::zeroed(data.len());
    buffer.unique().unwrap().copy_from_slice(data);
    buffer
}

impl Requests for Block {
    fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut buffer = Buffer::zeroed(length);
        self.file.read_exact_at(buffer.unique().unwrap(), offset)?;
        Ok(buffer.unique().unwrap().to_vec())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(aligned(data).unique().unwrap(), offset)
    }

    fn write_fua(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.forced.write_all_at(aligned(data).unique().unwrap(), offset)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn trim(&mut self, offset: u64, length: u32) -> io::Result<()> {
        self.range(BLKDISCARD, offset, length)
    }

    fn write_zeroes(&mut self, offset: u64, length: u32) -> io::Result<()> {
        self.range(BLKZEROOUT, offset, length)
    }
}
