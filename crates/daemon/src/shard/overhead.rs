//! What reads take in this process beyond their read cache: from the moment at which requests are taken until the engine has them, and from the
//! cache's answer until it is sent. The cache does not see that, and whoever reads waits for it as well.

use std::time::Duration;

use surgetank_device::Submission;
use surgetank_device::volume::read_cache::ReadCacheHandle;
use surgetank_model::{Instant, Operation};

/// See the module.
#[derive(Default)]
pub struct Overhead {
    /// The cache that is told; `None`: nothing is measured.
    cache: Option<ReadCacheHandle>,
    /// When the volumes were last asked what has ended, since answers were sent.
    ended_at: Option<Instant>,
    /// Reads whose answers are not sent, and the sum of the times at which they ended.
    answered: u32,
    ends: Duration,
    /// What reads have taken before the engine had them.
    before: Duration,
}

/// How many of them are reads.
pub(super) fn reads(submissions: &[Submission]) -> u32 {
    submissions.iter().map(|submission| u32::from(submission.operation == Operation::Read)).sum()
}

impl Overhead {
    /// Of a device over this cache.
    pub fn of(cache: Option<ReadCacheHandle>) -> Self {
        Self { cache, ..Self::default() }
    }

    /// So many reads were taken from the front since `began`.
    pub(super) fn received(&mut self, reads: u32, began: Instant, now: impl FnOnce() -> Instant) {
        if self.cache.is_some() && reads > 0 {
            self.before += now().since(began) * reads;
        }
    }

    /// What ends now is what the volumes say next.
    pub(super) const fn polls(&mut self, now: Instant) {
        self.ended_at = Some(now);
    }

    /// A request was answered. What no volume had to do with is not looked at.
    pub(super) fn answered(&mut self, is_read: bool) {
        if let Some(ended_at) = self.ended_at.filter(|_| is_read && self.cache.is_some()) {
            self.answered += 1;
            self.ends += ended_at.since(Instant::ZERO);
        }
    }

    /// What was answered is sent.
    pub(super) fn sent(&mut self, now: impl FnOnce() -> Instant) {
        self.ended_at = None;
        if let Some(cache) = self.cache.as_ref().filter(|_| self.answered > 0) {
            let after = (now().since(Instant::ZERO) * self.answered).saturating_sub(self.ends);
            cache.add_overhead(self.answered.into(), self.before + after);
            (self.answered, self.ends, self.before) = (0, Duration::ZERO, Duration::ZERO);
        }
    }
}

#[cfg(test)]
mod tests {
    use surgetank_device::Volume;
    use surgetank_device::volume::MemoryVolume;
    use surgetank_device::volume::read_cache::ReadCacheVolume;
    use surgetank_readcache::Config;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_cache_is_told_what_reads_take_before_it_and_after_it() {
        let backing = MemoryVolume::new(8 * MIB, 512).unwrap();
        let (mut cache, handle) = ReadCacheVolume::new(Box::new(backing), Config::new(8 * MIB, 512)).unwrap();
        let at = |microseconds| Instant::ZERO + Duration::from_micros(microseconds);
        let mut overhead = Overhead::of(Some(handle.clone()));
        overhead.received(2, at(1000), || at(1010));
        // One is answered by nobody's volume, and one is no read.
        overhead.answered(true);
        overhead.polls(at(1100));
        for is_read in [true, false, true] {
            overhead.answered(is_read);
        }
        overhead.sent(|| at(1130));
        overhead.sent(|| unreachable!("nothing was answered"));
        let observing = handle.observe();
        cache.poll(at(1200), &mut Vec::new());
        let told = observing.wait(Duration::ZERO).unwrap().overhead;
        assert_eq!((told.count, told.total), (2, Duration::from_micros(2 * 10 + 2 * 30)));
    }
}
