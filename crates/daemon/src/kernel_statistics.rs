//! What the kernel counts of a block device's requests: for devices whose requests do not pass through the daemon.
//!
//! Source: Documentation/block/stat.rst of Linux.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Counters of one block device since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelStatistics {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written, without discards.
    pub written_bytes: u64,
    /// Requests that have ended: reads, writes, discards and flushes.
    pub requests: u64,
    /// The time in which there was a request in the device.
    pub busy: Duration,
    /// The time that requests have spent in the device, summed over them.
    pub in_queue: Duration,
}

/// Where the kernel counts them. It stays open: who looks every second would otherwise walk there each time.
#[derive(Debug)]
pub struct KernelCounters(File);

impl KernelCounters {
    /// Those of the device with this major and minor number.
    ///
    /// # Errors
    /// There is no such device.
    pub fn open((major, minor): (u32, u32)) -> io::Result<Self> {
        File::open(format!("/sys/dev/block/{major}:{minor}/stat")).map(Self)
    }

    /// What has been counted so far. `None`: the device is gone.
    #[must_use]
    pub fn read(&self) -> Option<KernelStatistics> {
        // Seventeen numbers of at most twenty digits.
        let mut text = [0; 512];
        let length = self.0.read_at(&mut text, 0).ok()?;
        KernelStatistics::parse(std::str::from_utf8(text.get(..length)?).ok()?)
    }
}

impl KernelStatistics {
    fn parse(text: &str) -> Option<Self> {
        const SECTOR: u64 = 512;
        let fields: Vec<u64> = text.split_whitespace().map(|field| field.parse().ok()).collect::<Option<_>>()?;
        let field = |index: usize| fields.get(index).copied();
        // Discards since Linux 4.18, flushes since 5.5.
        let later = |index: usize| field(index).unwrap_or(0);
        Some(Self {
            read_bytes: field(2)?.checked_mul(SECTOR)?,
            written_bytes: field(6)?.checked_mul(SECTOR)?,
            requests: [field(0)?, field(4)?, later(11), later(15)].into_iter().fold(0, u64::saturating_add),
            busy: Duration::from_millis(field(9)?),
            in_queue: Duration::from_millis(field(10)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_anew_each_time() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let counters = KernelCounters(File::open(file.path()).unwrap());
        assert_eq!(counters.read(), None);
        for requests in [1, 2] {
            std::fs::write(file.path(), format!("{requests} 0 0 0 0 0 0 0 0 0 0\n")).unwrap();
            assert_eq!(counters.read().unwrap().requests, requests);
        }
        assert!(KernelCounters::open((4095, 1_048_575)).is_err());
    }

    #[test]
    fn the_kernels_counters_are_read() {
        let text = "  1  2 8 3   10 20 16 30  0  40 123  5 0 999 6 7 8\n";
        let expected = KernelStatistics {
            read_bytes: 4096,
            written_bytes: 8192,
            requests: 23,
            busy: Duration::from_millis(40),
            in_queue: Duration::from_millis(123),
        };
        assert_eq!(KernelStatistics::parse(text), Some(expected));
        assert_eq!(KernelStatistics::parse("1 2 8 3 10 20 16 30 0 40 123").unwrap().requests, 11, "an older kernel");
        for text in ["", "1 2 3", "1 2 x 3 10 20 16 30 0 40 123", "1 2 18446744073709551615 3 10 20 16 30 0 40 123"] {
            assert_eq!(KernelStatistics::parse(text), None, "{text}");
        }
    }
}
