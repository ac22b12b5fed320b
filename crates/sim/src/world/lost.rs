//! A lost caching volume is kept, and tried again and again, until it is back, its loss accepted, or all of it overwritten.

use std::time::Duration;

use surgetank_cache::{EngineStage, Event, Owner};

use crate::content::SECTOR;
use crate::disk::Disk;
use crate::scenario::Trigger;
use crate::world::{SimEvent, Step, World};

/// Longest pause before a lost volume is opened again.
const PAUSE_MAX: Duration = Duration::from_secs(10);

impl World<'_> {
    pub(super) fn cache_lost(&mut self, lost_bytes: u64) -> Step {
        self.release_wanted = false;
        let again = std::mem::take(&mut self.restoring);
        if !again {
            self.report.failures += 1;
            self.report.losses += 1;
        }
        let Owner::Lost { ranges, .. } = &self.owner else {
            return Err("the cache is lost, but the owner record does not say so".into());
        };
        let recorded: u64 = ranges.iter().map(|(_, length)| length).sum();
        // What was overwritten while the volume was read again is recorded a little later.
        if recorded < lost_bytes || recorded > lost_bytes && !again {
            return Err(format!("{lost_bytes} bytes are lost, but the owner record has {recorded}"));
        }
        self.note_loss()?;
        self.triggers(Trigger::Lost);
        self.keep()
    }

    /// The engine released a volume that may still come back.
    fn keep(&mut self) -> Step {
        let disk = self.release_cache()?;
        self.kept = Some(disk);
        self.schedule_restore();
        Ok(())
    }

    pub(super) fn schedule_restore(&mut self) {
        if self.rents() {
            return;
        }
        let after = Duration::from_nanos(self.random.below(PAUSE_MAX.as_nanos() as u64));
        self.schedule(after, SimEvent::Restore);
    }

    /// The daemon opens a lost volume again.
    pub(super) fn restore(&mut self) -> Step {
        if self.engine.status().stage != EngineStage::Lost || self.restoring {
            return Ok(());
        }
        if self.accepting || self.vanished || self.outages.is_cache_gone() {
            self.schedule_restore();
            return Ok(());
        }
        let Some(disk) = self.kept.take() else { return Ok(()) };
        self.disks.cache = Some(disk);
        let attach = self.attach();
        if self.engine.restore(self.now, attach).is_ok() {
            self.restoring = true;
        } else {
            self.kept = self.disks.cache.take();
            self.schedule_restore();
        }
        Ok(())
    }

    pub(super) fn restore_failed(&mut self, reason: &str) -> Step {
        if !std::mem::take(&mut self.restoring) {
            return Err(format!("a restore failed that nobody asked for: {reason}"));
        }
        self.keep()
    }

    /// The oracle hears which ranges the owner record discards.
    pub(super) fn note_loss(&mut self) -> Step {
        let Owner::Lost { ranges, .. } = &self.owner else {
            return Err("the cache is lost, but the owner record does not say so".into());
        };
        if !self.lost {
            self.oracle.begin_loss();
        }
        let before: Vec<u32> = if self.lost { self.oracle.lost().collect() } else { Vec::new() };
        for &(offset, length) in ranges {
            let (first, count) = ((offset / SECTOR as u64) as u32, length.div_ceil(SECTOR as u64) as u32);
            let count = count.min(self.oracle.sectors() - first);
            if self.lost {
                self.oracle.lose_again(first, count).map_err(|wrong| wrong.0)?;
            } else {
                self.oracle.lose(first, count);
            }
        }
        let still = |sector: u32| {
            let at = u64::from(sector) * SECTOR as u64;
            ranges.iter().any(|&(offset, length)| (offset..offset + length).contains(&at))
        };
        before.into_iter().filter(|&sector| !still(sector)).for_each(|sector| self.oracle.restore(sector, 1));
        self.oracle.absolve();
        self.lost = true;
        Ok(())
    }

    /// Nothing is lost any more: it was accepted, or else everything has come back or was overwritten.
    pub(super) fn end_loss(&mut self) {
        if std::mem::take(&mut self.accepting) {
            self.oracle.accept_loss();
        } else if self.lost {
            self.report.restored += u32::from(self.oracle.is_any_lost());
            self.oracle.restore(0, self.oracle.sectors());
        }
        self.oracle.absolve();
        self.lost = false;
        self.restoring = false;
        if let Some(disk) = self.kept.take() {
            self.return_disk(disk);
        }
    }

    /// A volume is not needed any more.
    pub(super) fn return_disk(&mut self, disk: Disk) {
        self.books.release_cache();
        self.books.forget_outage();
        let vanished = std::mem::take(&mut self.vanished);
        match &mut self.renting {
            Some(renting) => renting.return_disk(disk),
            None => self.spare = (!vanished).then_some(disk),
        }
    }

    /// The engine releases its caching volume.
    pub(super) fn release_cache(&mut self) -> Step<Disk> {
        let Some(disk) = self.disks.cache.take() else { return Err("a cache is released that is not attached".into()) };
        if disk.in_flight() > 0 {
            return Err(format!("the cache is released with {} I/Os in flight on it", disk.in_flight()));
        }
        Ok(disk)
    }

    /// What the engine says of a caching volume that fails.
    pub(super) fn note_failing(&mut self, event: &Event) -> Step {
        let bad = self.disks.cache.as_ref().is_some_and(|disk| disk.is_bad(0, disk.size()));
        if self.books.cache_failures == 0 && !bad && !self.rotten && !self.deceived {
            return Err(format!("{event:?} without a fault of the caching volume"));
        }
        self.triggers(Trigger::Failing);
        Ok(())
    }
}
