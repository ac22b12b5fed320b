//! What reads take in this process beyond their read cache: from the moment at which requests are taken until they are queued, and from the
//! cache's answer until it is sent. The cache does not see that, and whoever reads waits for it as well. What waits in the queue for its turn is
//! not in it: there it waits for others, and not for this process.

use surgetank_device::Submission;
use surgetank_device::volume::read_cache::{ReadCacheHandle, Times};
use surgetank_model::{Instant, Operation};

/// See the module.
#[derive(Default)]
pub struct Overhead {
    /// The cache that is told; `None`: nothing is measured.
    cache: Option<ReadCacheHandle>,
    /// When the volumes were last asked what has ended; `None`: their answers are sent.
    ended_at: Option<Instant>,
    before: Times,
    /// Reads whose answers are not sent, and the sum of the times at which they ended.
    answered: Times,
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
            self.before.count += u64::from(reads);
            self.before.total += now().since(began) * reads;
        }
    }

    /// What ends now is what the volumes say next.
    pub(super) const fn polls(&mut self, now: Instant) {
        self.ended_at = Some(now);
    }

    /// A request was answered. What no volume had to do with is not looked at.
    pub(super) fn answered(&mut self, is_read: bool) {
        if let Some(ended_at) = self.ended_at.filter(|_| is_read && self.cache.is_some()) {
            self.answered.count += 1;
            self.answered.total += ended_at.since(Instant::ZERO);
        }
    }

    /// What was answered is sent; and if `is_all`, nothing that has ended is left.
    pub(super) fn sent(&mut self, is_all: bool, now: impl FnOnce() -> Instant) {
        if is_all {
            self.ended_at = None;
        }
        if let Some(cache) = self.cache.as_ref().filter(|_| self.answered.count > 0) {
            let Times { count, total } = std::mem::take(&mut self.answered);
            // No loop answers so many.
            let sent = now().since(Instant::ZERO) * u32::try_from(count).unwrap_or(u32::MAX);
            let after = Times { count, total: sent.saturating_sub(total) };
            cache.add_overhead(std::mem::take(&mut self.before), after);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        overhead.received(3, at(1000), || at(1010));
        // One is answered by nobody's volume, and one is no read.
        overhead.answered(true);
        overhead.polls(at(1100));
        for is_read in [true, false] {
            overhead.answered(is_read);
        }
        overhead.sent(false, || at(1130));
        // What ended in the same moment and is answered later.
        overhead.answered(true);
        overhead.sent(true, || at(1150));
        overhead.answered(true);
        overhead.sent(true, || unreachable!("nothing was answered"));
        let observing = handle.observe();
        cache.poll(at(1200), &mut Vec::new());
        let told = observing.wait(Duration::ZERO).unwrap().overhead.map(|times| (times.count, times.total));
        assert_eq!(told, [(3, Duration::from_micros(3 * 10)), (2, Duration::from_micros(30 + 50))]);
    }
}
