//! Disks with queues: a request waits for those before it.

use crate::planted::{Bug, planted};

/// What a disk is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskType {
    /// The shortest move of the head.
    pub seek_ms_min: f64,
    /// What a move over all of the disk takes beyond that; others by the square root of their distance.
    pub seek_ms_range: f64,
    /// Half a rotation.
    pub rotation_ms: f64,
    /// Reading one block.
    pub transfer_ms: f64,
}

impl DiskType {
    /// The paper's: 10,045 rotations a minute, 5 ms for a seek on average (PSKP10, table 1), 16 KiB at 20 MB/s.
    pub const PAPER: Self =
        Self { seek_ms_min: 0.8, seek_ms_range: 7.9, rotation_ms: 60_000.0 / 10_045.0 / 2.0, transfer_ms: 0.8 };

    /// What a read takes whose block is that far from where the head is.
    fn service_ms(&self, head: u64, block: u64) -> f64 {
        let distance = block.abs_diff(head);
        let sought = self.seek_ms_min
            + self.seek_ms_range * (distance as f64 / BLOCKS as f64).min(1.0).sqrt()
            + self.rotation_ms;
        // The platter turns past blocks ahead.
        let ahead = block.checked_sub(head + 1).map_or(f64::INFINITY, |between| between as f64 * self.transfer_ms);
        self.transfer_ms + sought.min(ahead)
    }
}

/// Blocks of a disk that are in use.
const BLOCKS: u64 = 1 << 19;
/// Neighbours on one disk: 64 KiB of 16 KiB blocks, so that a sequential reader keeps many disks busy.
const STRIPE_BLOCKS: u64 = 4;

/// The disks of one server.
#[derive(Clone, Debug)]
pub struct Disks {
    of_type: DiskType,
    disks: Vec<Disk>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Disk {
    free_at_ms: f64,
    head: u64,
}

impl Disks {
    /// So many idle ones, at least one.
    #[must_use]
    pub fn new(of_type: DiskType, count: usize) -> Self {
        Self { of_type, disks: vec![Disk::default(); count.max(1)] }
    }

    /// Reads a block at this time, which never falls: how long that takes, with the wait for requests before it. `spread` says which disk: the hash of the
    /// block's stripe.
    pub fn read(&mut self, block: u64, spread: u64, at_ms: f64) -> f64 {
        let count = self.disks.len() as u64;
        let disk = &mut self.disks[(spread % count) as usize];
        let begins_ms = if planted(Bug::NoQueue) { at_ms } else { disk.free_at_ms.max(at_ms) };
        let place = block % BLOCKS;
        disk.free_at_ms = begins_ms + self.of_type.service_ms(disk.head, place);
        disk.head = place;
        disk.free_at_ms - at_ms
    }
}

/// The stripe of a block.
pub(crate) fn stripe(block: u64) -> u64 {
    block / STRIPE_BLOCKS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_take_a_transfer_and_others_a_seek() {
        let mut disks = Disks::new(DiskType::PAPER, 1);
        disks.read(1000, 0, 0.0);
        assert!((disks.read(1001, 0, 100.0) - 0.8).abs() < 1e-9);
        let far = disks.read(1001 + BLOCKS / 4, 0, 200.0);
        assert!((far - (0.8 + 0.8 + 7.9 / 2.0 + 2.986)).abs() < 0.01, "{far}");
        // Back is never past the head.
        assert!(disks.read(1000, 0, 300.0) > 4.0);
    }

    #[test]
    fn latency_grows_with_the_load() {
        let mean_ms = |gap_ms: f64| {
            let mut disks = Disks::new(DiskType::PAPER, 1);
            let mut sum = 0.0;
            for request in 0..10_000_u64 {
                let jitter = crate::place::spread(request) % 1000;
                let at_ms = request as f64 * gap_ms + jitter as f64 / 1000.0 * gap_ms;
                sum += disks.read(crate::place::spread(request) % BLOCKS, 0, at_ms);
            }
            sum / 10_000.0
        };
        let (idle, busy, full) = (mean_ms(100.0), mean_ms(11.0), mean_ms(9.0));
        assert!((8.0..9.5).contains(&idle), "{idle}");
        assert!(busy > 1.1 * idle && full > 1.5 * busy, "{idle} {busy} {full}");
    }
}
