//! Boosts come and go: what the controller and its driver would do, at random.

use std::time::Duration;

use surgetank_cache::format::{self, LogState};
use surgetank_cache::{Attach, CacheMode, Engine, EngineStage, Epoch, Event, Owner};
use surgetank_model::{Bandwidth, Iops, Limits, Operation, RequestId};

use crate::content::SECTOR;
use crate::disk::{Disk, Latency};
use crate::oracle::Moment;
use crate::scenario::division;
use crate::workload::Wish;
use crate::world::judge::{BLOCK_SECTORS, RECOVERY_PAUSE};
use crate::world::{SWEEP, SimEvent, Step, World, WorldPhase, config};

impl World<'_> {
    /// A control action at random.
    pub(super) fn control(&mut self) -> Step {
        if self.phase != WorldPhase::Work {
            return Ok(());
        }
        let choice = self.random.below(10);
        match self.engine.status().stage {
            EngineStage::PassThrough if choice < 7 => self.adopt()?,
            EngineStage::PassThrough | EngineStage::Adopting | EngineStage::Recovering | EngineStage::Failing => {}
            _ if self.release_wanted => match choice {
                0..=3 => self.set_mode(CacheMode::Absorb),
                4 => self.set_mode(CacheMode::Finish),
                _ => {}
            },
            EngineStage::Absorb | EngineStage::Drain => match choice {
                0..=1 => self.set_mode(CacheMode::Drain),
                2 => self.set_mode(CacheMode::Finish),
                3..=5 => self.release()?,
                6..=7 => self.set_mode(CacheMode::Absorb),
                _ => {}
            },
            EngineStage::Releasing => {}
            EngineStage::Lost => {
                let accepts = self.vanished || self.scenario.trouble.is_some_and(|trouble| trouble.accepts);
                if choice == 0 && accepts && !self.accepting && !self.restoring {
                    self.accept_loss()?;
                }
            }
        }
        self.schedule_control();
        Ok(())
    }

    pub(super) fn attach(&self) -> Attach {
        Attach {
            epoch: self.epoch,
            cache_size: self.cache_size,
            cache_limits: Limits {
                bandwidth: Some(Bandwidth::from_mib_s(self.scenario.cache_mib_s)),
                iops: Some(Iops::new(10_000)),
            },
            split: self.scenario.split,
            read_fill: self.scenario.read_fill,
            indexes: division(self.cache_size).is_some_and(|geometry| geometry.indexed),
        }
    }

    pub(super) fn adopt(&mut self) -> Step {
        if self.disks.cache.is_none() {
            let reuse = self.random.below(2) == 0;
            let disk = match self.spare.take() {
                Some(spare) if reuse => spare,
                _ => Disk::new(self.cache_size, Latency::default(), self.random.next_u64()),
            };
            self.disks.cache = Some(disk);
            self.apply_trouble();
        }
        let epoch = Epoch(self.draw());
        self.adopt_as(epoch)
    }

    /// 128 random bits.
    pub(super) fn draw(&mut self) -> [u8; 16] {
        let (high, low) = (self.random.next_u64(), self.random.next_u64());
        let mut bits = [0; 16];
        bits[..8].copy_from_slice(&high.to_le_bytes());
        bits[8..].copy_from_slice(&low.to_le_bytes());
        bits
    }

    /// The same of the caching volume that is attached.
    pub(super) fn adopt_as(&mut self, epoch: Epoch) -> Step {
        self.note_outage_at_hand();
        self.epoch = epoch;
        self.begin_growing(false);
        self.books.adopt(epoch);
        self.deceived = false;
        let attach = self.attach();
        self.engine.adopt(self.now, attach).map_err(|rejected| format!("adopt was rejected: {rejected}"))
    }

    fn release(&mut self) -> Step {
        self.release_wanted = true;
        self.engine.release(self.now).map_err(|rejected| format!("release was rejected: {rejected}"))
    }

    fn accept_loss(&mut self) -> Step {
        self.accepting = true;
        // Whoever accepts a loss knows of it.
        self.oracle.tell_loss(Moment::MAX);
        self.engine.accept_loss(self.now).map_err(|rejected| format!("accept_loss was rejected: {rejected}"))
    }

    pub(super) fn recover(&mut self) -> Step {
        self.books.all_failures = 0;
        self.recover_began = self.now;
        let attach = self.attach();
        self.engine.recover(self.now, attach).map_err(|rejected| format!("recover was rejected: {rejected}"))
    }

    /// What the engine tells the controller's driver.
    pub(super) fn hear(&mut self, event: Event) -> Step {
        self.note(&event)?;
        self.tell_rental(&event)
    }

    fn note(&mut self, event: &Event) -> Step {
        match *event {
            Event::Adopted => {
                self.report.adoptions += 1;
                if self.owner != (Owner::Cache { epoch: self.epoch }) {
                    return Err("the cache is adopted, but the owner is not persisted".into());
                }
            }
            Event::AdoptFailed => {
                if self.books.all_failures == 0 {
                    return Err("adopt failed without a fault".into());
                }
                self.detach()?;
            }
            Event::Recovered { dirty_bytes: _ } => {
                self.recovering = false;
                self.recover_failures = 0;
                self.recover_failed = None;
                self.unknown_recoveries = 0;
                self.report.recoveries += 1;
                if self.random.below(2) == 0 {
                    self.set_mode(CacheMode::Absorb);
                }
            }
            Event::RecoverFailed { reason } => self.recover_failed(reason)?,
            Event::Released => {
                self.report.releases += 1;
                self.release_wanted = false;
                self.check_clean()?;
                self.detach()?;
            }
            Event::CacheGrown { .. } | Event::CacheGrowFailed => self.note_growth(event)?,
            Event::ReleaseCancelled => {
                self.report.cancels += 1;
                self.release_wanted = false;
            }
            Event::CacheFailing => {
                self.note_failing(event)?;
            }
            Event::CacheDropped => {
                self.release_wanted = false;
                self.recovering = false;
                self.report.failures += u32::from(self.disks.cache.is_some() && !self.lost);
                self.end_loss();
                if self.disks.cache.is_some() {
                    self.detach()?;
                }
            }
            Event::RestoreFailed { reason } => self.restore_failed(reason)?,
            Event::Stopped => self.engine_stopped(),
            Event::CacheLost { lost_bytes } => self.cache_lost(lost_bytes)?,
        }
        Ok(())
    }

    fn recover_failed(&mut self, reason: &str) -> Step {
        if self.books.all_failures == 0 && !self.disks.cache.as_ref().is_some_and(|disk| disk.is_bad(0, disk.size())) {
            return Err(format!("recover failed without a fault: {reason}"));
        }
        if !self.may_fail_to_recover() {
            return Err(format!("recover fails again and again, without a reason that lasts: {reason}"));
        }
        self.recover_failures += 1;
        self.recover_failed.get_or_insert(self.now);
        if self.recover_failures >= 3 && (self.vanished || self.is_header_unreadable()) {
            // Nobody can say what was on it: the user discards all of it.
            self.report.losses += 1;
            self.oracle.begin_loss();
            let dirty: Vec<u64> = self.books.possibly_dirty().collect();
            for block in dirty {
                let first = (block as u32 * BLOCK_SECTORS).min(self.oracle.sectors());
                self.oracle.lose(first, BLOCK_SECTORS.min(self.oracle.sectors() - first));
            }
            self.lost = true;
            return self.accept_loss();
        }
        if !self.rents() {
            let after = Duration::from_nanos(self.random.below(RECOVERY_PAUSE.as_nanos() as u64));
            self.schedule(after, SimEvent::Recover);
        }
        Ok(())
    }

    /// Whether both copies of the superblock or of a page of the segment table cannot be read.
    pub(super) fn is_header_unreadable(&self) -> bool {
        let Some(disk) = &self.disks.cache else { return false };
        let Some(geometry) = self.books.geometry() else { return false };
        let is_bad = |offset: u64| disk.is_bad(offset, u64::from(format::BLOCK));
        let pages = (0..geometry.table_pages())
            .map(|page| format::TableCopy::ALL.map(|copy| geometry.table_offset(page, copy)));
        let both = std::iter::once([0, u64::from(format::BLOCK)]).chain(pages);
        both.into_iter().any(|copies| copies.into_iter().all(is_bad))
    }

    /// A caching volume may be deleted only when it says CLEAN, durably.
    fn check_clean(&self) -> Step {
        if self.owner != Owner::Backing {
            return Err("the cache is released, but the owner is not the backing volume".into());
        }
        let Some(disk) = &self.disks.cache else { return Err("a cache is released that is not attached".into()) };
        let mut area = [0; format::SUPERBLOCKS_LENGTH as usize];
        if disk.has_forgotten() {
            // Nobody knows that CLEAN was forgotten if the daemon crashed then; the owner record does without.
            disk.peek(0, &mut area);
        } else {
            disk.peek_durable(0, &mut area);
        }
        match format::choose_superblock(&area) {
            Some(superblock) if superblock.state == LogState::Clean && superblock.epoch == self.epoch => Ok(()),
            other => Err(format!("the cache is released, but its superblock is {other:?}")),
        }
    }

    fn detach(&mut self) -> Step {
        let disk = self.release_cache()?;
        self.return_disk(disk);
        Ok(())
    }

    /// The application has ended: flush, release, read everything back; one thing at a time. True if it did one.
    pub(super) fn settle(&mut self) -> Step<bool> {
        if !self.outstanding.is_empty() || self.recovering || !self.is_up() {
            return Ok(false);
        }
        if self.now < self.settle_at {
            return Ok(false);
        }
        if !self.flushed {
            self.final_flush = Some(RequestId(self.next_request));
            self.submit(Wish { operation: Operation::Flush, offset: 0, length: 0 });
            return self.pump().map(|()| true);
        }
        match self.engine.status().stage {
            EngineStage::Lost if self.accepting || self.restoring || self.may_come_back() => return Ok(false),
            EngineStage::Lost if self.scenario.seed.is_multiple_of(2) => self.accept_loss()?,
            EngineStage::Lost if self.healed => {
                return Err("everything was overwritten and flushed, but something is still lost".into());
            }
            EngineStage::Lost => {
                // A write that fails heals nothing.
                self.healed = !self.faulty;
                self.flushed = false;
                self.submit_all(Operation::Write { fua: false });
            }
            // The controller ends the boost, and deletes everything, because the application is quiet.
            _ if self.renting.as_ref().is_some_and(|renting| !renting.is_idle()) => return Ok(false),
            EngineStage::Absorb | EngineStage::Drain if !self.release_wanted => self.release()?,
            // The map follows, once the application has been told what it is owed.
            EngineStage::PassThrough if !self.is_mapped_for_calm() => {
                self.flushed = !self.engine.owes_flush_failure();
                return Ok(!self.flushed);
            }
            EngineStage::PassThrough if !self.swept => {
                self.swept = true;
                self.submit_all(Operation::Read);
            }
            EngineStage::PassThrough => self.phase = WorldPhase::Done,
            _ => return Ok(false),
        }
        self.pump().map(|()| true)
    }

    /// One operation over the whole device.
    fn submit_all(&mut self, operation: Operation) {
        let size = self.size;
        for offset in (0..size).step_by(SWEEP as usize) {
            self.submit(Wish { operation, offset, length: SWEEP.min(size - offset) });
        }
    }

    /// At the end the backing volume alone holds everything, and durably.
    pub(super) fn check_volumes(&mut self) -> Step {
        if self.owner != Owner::Backing || self.disks.cache.is_some() {
            return Err(format!("the run ends with the owner {:?}", self.owner));
        }
        if self.driver.scratch_buffers() > 0 {
            return Err(format!("an idle engine keeps {} scratch buffers", self.driver.scratch_buffers()));
        }
        let mut bytes = vec![0; self.oracle.sectors() as usize * SECTOR];
        self.disks.backing.peek(0, &mut bytes);
        self.oracle.check_now(0, &bytes).map_err(|wrong| format!("on the backing volume: {wrong}"))?;
        if self.is_forgetful() {
            // What a failed flush left behind is durable only as far as a later flush promised it.
            self.oracle.power_cut();
        }
        self.disks.backing.peek_durable(0, &mut bytes);
        self.oracle.check_now(0, &bytes).map_err(|wrong| format!("durably on the backing volume: {wrong}"))
    }

    /// A device as a starting daemon finds it.
    pub(super) fn start_engine(&mut self) -> Step {
        let config = config(self.scenario, self.size);
        self.engine = match self.owner.clone() {
            Owner::Backing => {
                self.kept = self.kept.take().or(self.disks.cache.take());
                self.end_loss();
                Engine::new(config)
            }
            Owner::Cache { epoch } => {
                if self.disks.cache.is_none() || epoch != self.epoch {
                    return Err("the owner record names a cache that was released".into());
                }
                self.recovering = true;
                self.books.restart(self.now, self.disks.cache.as_ref());
                self.begin_growing(true);
                self.accepting = false;
                if !self.rents() {
                    let after = Duration::from_micros(self.random.below(2_000));
                    self.schedule(after, SimEvent::Recover);
                }
                Engine::awaiting_recovery(config)
            }
            Owner::Lost { epoch, ranges } => {
                self.kept = self.kept.take().or(self.disks.cache.take());
                self.books.restart(self.now, self.kept.as_ref());
                self.accepting = false;
                self.schedule_restore();
                Engine::with_lost(config, epoch, &ranges)
            }
        };
        Ok(())
    }
}
