//! Faults strike, and the device grows, when the scenario says so.

use std::time::Duration;

use surgetank_cache::format::BLOCK;
use surgetank_cache::{EngineStage, IoFailure, Target};
use surgetank_model::Instant;

use crate::content::SECTOR;
use crate::disk::{Faults, Ticket};
use crate::scenario::{BadRange, CrashScenario, Latent, Outage, Trigger, Victim};
use crate::world::{SimEvent, Step, World};

/// How far a fault has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    ToCome,
    /// Until then; `None`: for good.
    On(Option<Instant>),
    Over,
}

/// The faults that come and go by themselves.
#[derive(Debug)]
pub(super) struct Outages {
    outages: Vec<(Outage, Course)>,
    latent: Vec<(Latent, Course)>,
}

impl Outages {
    pub(super) fn new(scenario: &CrashScenario) -> Self {
        let trouble = scenario.trouble.iter();
        let outages = trouble.clone().flat_map(|trouble| trouble.outages).flatten();
        let latent = trouble.flat_map(|trouble| trouble.latent).flatten();
        Self {
            outages: outages.map(|outage| (outage, Course::ToCome)).collect(),
            latent: latent.map(|latent| (latent, Course::ToCome)).collect(),
        }
    }

    /// Whether something is on that will pass.
    pub(super) fn is_any_passing(&self) -> bool {
        let outages = self.outages.iter().map(|(_, course)| course);
        outages.chain(self.latent.iter().map(|(_, course)| course)).any(|course| matches!(course, Course::On(Some(_))))
    }

    /// Whether no volume is out.
    pub(super) fn is_calm(&self) -> bool {
        self.outages.iter().all(|(_, course)| !matches!(course, Course::On(_)))
    }

    /// How the I/Os of a volume fail now.
    fn failure(&self, victim: Victim) -> Option<IoFailure> {
        let on = |(outage, course): &&(Outage, Course)| {
            matches!(course, Course::On(_)) && outage.victim.is_none_or(|of| of == victim)
        };
        self.outages.iter().find(on).map(|(outage, _)| if outage.gone { IoFailure::Gone } else { IoFailure::Io })
    }

    /// Whether the caching volume cannot even be opened.
    pub(super) fn is_cache_gone(&self) -> bool {
        self.failure(Victim::Cache) == Some(IoFailure::Gone)
    }
}

impl World<'_> {
    /// What is due by the number of events.
    pub(super) fn strike(&mut self) -> Step {
        self.vanish();
        self.begin_outages();
        self.damage();
        self.get_stuck();
        self.rot();
        self.grow_cache();
        self.grow()
    }

    pub(super) fn is_forgetful(&self) -> bool {
        self.scenario.trouble.is_some_and(|trouble| trouble.forgetful)
    }

    /// Whether a flush of a volume that fails forgets what it covered.
    pub(super) fn forgets(&self, target: Target) -> bool {
        match target {
            Target::Backing => self.is_forgetful(),
            Target::Cache => self.scenario.trouble.is_some_and(|trouble| trouble.cache_flush_errors > 0.0),
        }
    }

    pub(super) fn is_due(&self, event: u32) -> bool {
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
            flush_error_probability: trouble.map_or(0.0, |trouble| trouble.backing_flush_errors),
            error_range: bad(Victim::Backing),
            forgetful: trouble.is_some_and(|trouble| trouble.forgetful),
            no_space_probability: trouble.map_or(0.0, |trouble| trouble.no_space),
            outage: self.outages.failure(Victim::Backing),
            ..Faults::default()
        });
        let caches = self.disks.cache.iter_mut().chain(&mut self.kept);
        for cache in caches.filter(|_| !self.vanished) {
            cache.set_faults(Faults {
                error_probability: trouble.map_or(0.0, |trouble| trouble.cache_errors),
                flush_error_probability: trouble.map_or(0.0, |trouble| trouble.cache_flush_errors),
                forgetful: trouble.is_some_and(|trouble| trouble.cache_flush_errors > 0.0),
                no_space_probability: trouble.map_or(0.0, |trouble| trouble.no_space),
                error_range: bad(Victim::Cache),
                outage: self.outages.failure(Victim::Cache),
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
        self.report.vanished += 1;
        cache.set_faults(Faults { outage: Some(IoFailure::Gone), ..Faults::default() });
        self.books.begin_outage(self.now);
        self.disturb();
        self.tell_gone();
    }

    /// The kernel says that the caching volume is gone, sometimes; else the engine finds out by errors.
    fn tell_gone(&mut self) {
        if self.random.below(2) == 0 {
            if self.rents() {
                return self.schedule(Duration::ZERO, SimEvent::DiskChanged);
            }
            self.books.cache_failures += 1;
            self.books.notice_outage(self.now);
            self.engine.cache_gone(self.now);
        }
    }

    /// Whether the fault of a caching volume finds one in use.
    fn is_cache_in_use(&self) -> bool {
        self.disks.cache.is_some() && matches!(self.engine.status().stage, EngineStage::Absorb | EngineStage::Drain)
    }

    /// A volume is attached in the middle of an outage.
    pub(super) fn note_outage_at_hand(&mut self) {
        if self.outages.failure(Victim::Cache).is_some() {
            self.books.begin_outage(self.now);
        }
    }

    fn begin_outages(&mut self) {
        for index in 0..self.outages.outages.len() {
            let (outage, course) = self.outages.outages[index];
            let backing_alone = outage.victim == Some(Victim::Backing);
            let free = self.outages.is_calm() && !self.vanished;
            if course != Course::ToCome || !self.is_due(outage.at_event) || !free {
                continue;
            }
            if !backing_alone && !self.is_cache_in_use() {
                continue;
            }
            self.outages.outages[index].1 = Course::On(Some(self.now + outage.lasts));
            self.report.outages += 1;
            self.apply_trouble();
            self.schedule(outage.lasts, SimEvent::OutageEnds);
            self.triggers(Trigger::Outage);
            self.disturb();
            if !backing_alone {
                self.books.begin_outage(self.now);
                let ails = self.renting.as_mut().is_some_and(|renting| renting.set_ailing(true));
                self.report.failed_in_use += u32::from(ails);
                if outage.gone {
                    self.tell_gone();
                }
            }
        }
    }

    /// Ranges become unreadable.
    fn damage(&mut self) {
        for index in 0..self.outages.latent.len() {
            let (latent, course) = self.outages.latent[index];
            if course != Course::ToCome || !self.is_due(latent.at_event) {
                continue;
            }
            match latent.victim {
                Victim::Cache if !self.is_cache_in_use() => continue,
                Victim::Backing => self.disks.backing.damage(latent.offset, latent.length),
                Victim::Cache => {
                    self.disks.cache.iter_mut().for_each(|disk| disk.damage(latent.offset, latent.length));
                }
            }
            self.outages.latent[index].1 = Course::On(latent.lasts.map(|lasts| self.now + lasts));
            self.report.latent += 1;
            self.disturb();
            if let Some(lasts) = latent.lasts {
                self.schedule(lasts, SimEvent::OutageEnds);
            }
        }
    }

    /// Ends what is over.
    pub(super) fn end_outages(&mut self) {
        let now = self.now;
        let is_over = |course: Course| matches!(course, Course::On(Some(until)) if until <= now);
        for index in 0..self.outages.outages.len() {
            let (outage, course) = self.outages.outages[index];
            if !is_over(course) {
                continue;
            }
            self.outages.outages[index].1 = Course::Over;
            self.apply_trouble();
            self.disturb();
            if outage.victim != Some(Victim::Backing) && !self.vanished {
                self.books.end_outage(now);
                if let Some(renting) = &mut self.renting {
                    renting.set_ailing(false);
                }
                if outage.gone && self.disks.cache.is_some() && !self.recovering && !self.rents() {
                    self.engine.cache_returned(now);
                }
            }
        }
        for index in 0..self.outages.latent.len() {
            let (latent, course) = self.outages.latent[index];
            if is_over(course) {
                self.outages.latent[index].1 = Course::Over;
                self.disturb();
                match latent.victim {
                    Victim::Backing => self.disks.backing.repair(),
                    Victim::Cache => self.disks.cache.iter_mut().chain(&mut self.kept).for_each(|disk| disk.repair()),
                }
            }
        }
    }

    /// After a restart: what is on still ends.
    pub(super) fn schedule_ends_of_outages(&mut self) {
        let outages = self.outages.outages.iter().map(|(_, course)| *course);
        let courses: Vec<_> = outages.chain(self.outages.latent.iter().map(|(_, course)| *course)).collect();
        for course in courses {
            if let Course::On(Some(until)) = course {
                self.schedule_at(until, SimEvent::OutageEnds);
            }
        }
    }

    /// Whether a lost caching volume may still come back by itself.
    pub(super) fn may_come_back(&self) -> bool {
        let Some(kept) = self.kept.as_ref().filter(|_| !self.vanished) else { return false };
        let readable = !self.deceived && self.readable_loss(kept).is_some();
        self.faulty || self.outages.is_any_passing() || readable
    }

    /// What has rotted and was not read before a crash cannot always be told from what never arrived.
    pub(super) fn doubt_rot(&mut self) {
        if !self.rotten {
            return;
        }
        let Some(disk) = &self.disks.cache else { return };
        let rotten: Vec<u64> =
            self.books.possibly_dirty().filter(|&block| !self.books.is_readable(block, disk)).collect();
        for block in rotten {
            let first = (block as u32 * 8).min(self.oracle.sectors());
            self.oracle.doubt(first, 8.min(self.oracle.sectors() - first));
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
        self.disturb();
        self.report.stuck += 1;
        self.schedule(stuck.lasts, SimEvent::Unstick(target));
    }

    /// Stuck I/Os go on.
    pub(super) fn unstick(&mut self, target: Target) {
        self.disturb();
        let queued = self.queue.iter().filter_map(|event| match *event {
            SimEvent::Done(of, io) if of == target => Some(io),
            _ => None,
        });
        let queued: Vec<_> = queued.collect();
        let Ok(disk) = self.disks.get(target) else { return };
        for Ticket { io, effect_at, done_at } in disk.unstick(self.now, |io| queued.contains(&io)) {
            if effect_at < done_at {
                self.schedule_at(effect_at, SimEvent::Effect(target, io));
            }
            self.schedule_at(done_at, SimEvent::Done(target, io));
        }
    }

    /// One bit of something stored in the log flips.
    fn rot(&mut self) {
        let due = self.scenario.trouble.and_then(|trouble| trouble.rot_at);
        if self.rotten || !due.is_some_and(|due| self.is_due(due)) {
            return;
        }
        if !matches!(self.engine.status().stage, EngineStage::Absorb | EngineStage::Drain) {
            return;
        }
        self.rot_stored();
    }

    /// One bit of something stored in the log flips now.
    pub(super) fn rot_stored(&mut self) {
        let Some(disk) = self.disks.cache.as_mut() else { return };
        let Some(geometry) = self.books.geometry() else { return };
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
                self.disturb();
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
