//! Faults strike, and the device grows, when the scenario says so.

use surgetank_cache::format::{BLOCK, Geometry};
use surgetank_cache::{Stage, Target};

use crate::content::SECTOR;
use crate::disk::{Faults, Ticket};
use crate::scenario::{BadRange, Victim};
use crate::world::{Happening, Step, World};

impl World<'_> {
    /// What is due by the number of events.
    pub(super) fn strike(&mut self) -> Step {
        self.vanish();
        self.get_stuck();
        self.rot();
        self.grow()
    }

    pub(super) fn is_forgetful(&self) -> bool {
        self.scenario.trouble.is_some_and(|trouble| trouble.forgetful)
    }

    fn is_due(&self, event: u32) -> bool {
        self.report.events >= u64::from(event)
    }

    /// Sets the faults that the scenario wants now.
    pub(super) fn apply_trouble(&mut self) {
        let trouble = self.scenario.trouble.filter(|_| self.faulty);
        let bad = |victim| match trouble.and_then(|trouble| trouble.bad_range) {
            Some(BadRange { victim: of, offset, length }) if of == victim => Some((offset, length)),
            _ => None,
        };
        self.disks.backing.set_faults(Faults {
            error_probability: trouble.map_or(0.0, |trouble| trouble.backing_errors),
            error_range: bad(Victim::Backing),
            forgetful: trouble.is_some_and(|trouble| trouble.forgetful),
            ..Faults::default()
        });
        if let Some(cache) = self.disks.cache.as_mut().filter(|_| !self.vanished) {
            cache.set_faults(Faults {
                error_probability: trouble.map_or(0.0, |trouble| trouble.cache_errors),
                error_range: bad(Victim::Cache),
                ..Faults::default()
            });
        }
    }

    /// The caching volume is pulled out.
    fn vanish(&mut self) {
        let due = self.scenario.trouble.and_then(|trouble| trouble.vanish_at);
        let due = due.is_some_and(|due| self.is_due(due));
        let Some(cache) = self.disks.cache.as_mut().filter(|_| due && !self.vanished) else { return };
        if self.vanishes_left == 0 {
            return;
        }
        self.vanishes_left -= 1;
        self.vanished = true;
        cache.set_faults(Faults { gone: true, ..Faults::default() });
        // The kernel says so sometimes; else the engine finds out by errors.
        if self.random.below(2) == 0 {
            self.engine.cache_gone(self.now);
        }
    }

    fn get_stuck(&mut self) {
        let Some(stuck) = self.scenario.trouble.and_then(|trouble| trouble.stuck) else { return };
        if self.was_stuck || !self.is_due(stuck.at_event) {
            return;
        }
        let target = match stuck.victim {
            Victim::Backing => Target::Backing,
            Victim::Cache => Target::Cache,
        };
        let Ok(disk) = self.disks.get(target) else { return };
        disk.set_stuck();
        self.was_stuck = true;
        self.report.stuck += 1;
        self.schedule(stuck.lasts, Happening::Unstick(target));
    }

    /// Stuck I/Os go on.
    pub(super) fn unstick(&mut self, target: Target) {
        let queued = self.queue.iter().filter_map(|happening| match *happening {
            Happening::Done(of, io) if of == target => Some(io),
            _ => None,
        });
        let queued: Vec<_> = queued.collect();
        let Ok(disk) = self.disks.get(target) else { return };
        for Ticket { io, effect_at, done_at } in disk.unstick(self.now, |io| queued.contains(&io)) {
            if effect_at < done_at {
                self.schedule_at(effect_at, Happening::Effect(target, io));
            }
            self.schedule_at(done_at, Happening::Done(target, io));
        }
    }

    /// One bit of something stored in the log flips.
    fn rot(&mut self) {
        let due = self.scenario.trouble.and_then(|trouble| trouble.rot_at);
        if self.rotten || !due.is_some_and(|due| self.is_due(due)) {
            return;
        }
        if !matches!(self.engine.status().stage, Stage::Absorb | Stage::Drain) {
            return;
        }
        let Some(disk) = self.disks.cache.as_mut() else { return };
        let Some(geometry) = Geometry::of_volume(disk.size()) else { return };
        let log = geometry.segment_offset(0);
        let blocks = (geometry.end() - log) / u64::from(BLOCK);
        let mut block = [0; BLOCK as usize];
        // Most of a young log is empty: look where something is.
        for _ in 0..64 {
            let at = log + self.random.below(blocks) * u64::from(BLOCK);
            disk.peek(at, &mut block);
            if block.iter().any(|&byte| byte != 0) {
                disk.rot(at + self.random.below(u64::from(BLOCK)), self.random.below(8) as u8);
                self.rotten = true;
                self.report.rotten += 1;
                return;
            }
        }
    }

    fn grow(&mut self) -> Step {
        while let Some(&(event, sectors)) = self.growths.front()
            && self.is_due(event)
        {
            self.growths.pop_front();
            self.size += u64::from(sectors) * SECTOR as u64;
            self.disks.backing.grow(self.size);
            self.engine.grow(self.size).map_err(|rejected| format!("the device did not grow: {rejected}"))?;
            self.oracle.grow((self.size / SECTOR as u64) as u32);
            self.workload.grow(self.size);
            self.report.growths += 1;
        }
        Ok(())
    }
}
