//! What goes wrong on a volume.

use surgetank_cache::IoFailure;

use super::{Disk, Io};

/// Faults of a volume, all off by default.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Probability that an I/O of any kind fails with EIO.
    pub error_probability: f64,
    /// Probability that a flush fails with EIO, besides.
    pub flush_error_probability: f64,
    /// Probability that a write finds no space.
    pub no_space_probability: f64,
    /// I/Os that touch this byte range (offset, length) fail with EIO, writes too.
    pub error_range: Option<(u64, u64)>,
    /// All I/Os after this many fail with EIO.
    pub fail_after: Option<u64>,
    /// A flush that fails forgets: what it covered is visible until the power fails, and no later flush saves it.
    pub forgetful: bool,
    /// I/Os never finish; [`Disk::unstick`] lets them go on.
    pub stuck: bool,
    /// Nothing can be read or written: every I/O fails with this, also what is in flight.
    pub outage: Option<IoFailure>,
}

impl Disk {
    /// From now on this range cannot be read, until it is written.
    pub fn damage(&mut self, offset: u64, length: u64) {
        self.damaged.push((offset, length));
    }

    /// Damaged ranges can be read again.
    pub fn repair(&mut self) {
        self.damaged.clear();
    }

    /// Whether anything of a range cannot be read, or is not what was written, whatever the time: bad ranges, damage, rot.
    #[must_use]
    pub fn is_bad(&self, offset: u64, length: u64) -> bool {
        let meets = |&(other, other_length): &(u64, u64)| offset < other + other_length && other < offset + length;
        self.faults.error_range.as_ref().is_some_and(meets)
            || self.damaged.iter().any(meets)
            || self.rotten.iter().any(|&(byte, _)| (offset..offset + length).contains(&byte))
    }

    /// Whether every I/O fails now.
    #[must_use]
    pub fn is_out(&self) -> bool {
        self.faults.outage.is_some()
    }

    /// What a read would see had nothing rotted.
    pub fn peek_sound(&self, offset: u64, out: &mut [u8]) {
        self.view.read(offset, out);
        let end = offset + out.len() as u64;
        for &(byte, bit) in self.rotten.iter().filter(|(byte, _)| (offset..end).contains(byte)) {
            out[(byte - offset) as usize] ^= 1 << (bit % 8);
        }
    }

    pub(super) fn fate(&mut self, io: &Io) -> Result<(), IoFailure> {
        let faults = &self.faults;
        if let Some(failure) = faults.outage {
            return Err(failure);
        }
        let meets = |&(bad, bad_length): &(u64, u64)| {
            io.range().is_some_and(|(offset, length)| offset < bad + bad_length && bad < offset + length)
        };
        let in_range = faults.error_range.as_ref().is_some_and(meets)
            || matches!(io, Io::Read { .. }) && self.damaged.iter().any(meets);
        let worn = faults.fail_after.is_some_and(|after| self.submitted_count > after);
        let mut chance = |probability: f64| probability > 0.0 && self.random.chance(probability);
        let unlucky =
            chance(faults.error_probability) || matches!(io, Io::Flush) && chance(faults.flush_error_probability);
        if in_range || worn || unlucky {
            return Err(IoFailure::Io);
        }
        let full = matches!(io, Io::Write { .. }) && chance(faults.no_space_probability);
        if full { Err(IoFailure::NoSpace) } else { Ok(()) }
    }

    /// A write makes a damaged range readable.
    pub(super) fn repair_range(&mut self, written: &std::ops::Range<u64>) {
        for (offset, length) in std::mem::take(&mut self.damaged) {
            let end = offset + length;
            for rest in [offset..end.min(written.start), offset.max(written.end)..end] {
                if rest.start < rest.end {
                    self.damaged.push((rest.start, rest.end - rest.start));
                }
            }
        }
    }
}
