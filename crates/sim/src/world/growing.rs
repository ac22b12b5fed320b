//! The caching volume grows, and the log on it takes that in use, also what a crash or a fault has left half done.

use std::collections::VecDeque;

use surgetank_cache::format::BLOCK;
use surgetank_cache::{EngineStage, Event};

use crate::scenario::{CrashScenario, Trigger};
use crate::world::{Step, World};

/// What the engine was told of the caching volume's size, or is to be told.
#[derive(Debug, Default)]
pub(super) struct Growing {
    /// Growths to come: the event, and the blocks. Only where nobody rents.
    due: VecDeque<(u32, u32)>,
    /// The volume may be larger than the log on it: the engine is to be told.
    is_open: bool,
    /// What the engine was told and has not answered, oldest first.
    told: VecDeque<Told>,
}

#[derive(Clone, Copy, Debug)]
struct Told {
    size: u64,
    /// There was room for another segment, and it had been asked for before.
    again: bool,
}

impl Growing {
    pub(super) fn new(scenario: &CrashScenario) -> Self {
        Self { due: scenario.cache_growths.iter().copied().collect(), ..Self::default() }
    }
}

impl World<'_> {
    /// The caching volume grows, and the engine is told.
    pub(super) fn grow_cache(&mut self) {
        let in_use = matches!(self.engine.status().stage, EngineStage::Absorb | EngineStage::Drain);
        let Some(disk) = self.disks.cache.as_mut().filter(|_| in_use) else { return };
        let again = self.growing.is_open;
        if let Some(&(event, blocks)) = self.growing.due.front()
            && self.report.events >= u64::from(event)
        {
            self.cache_size = disk.size() + u64::from(blocks) * u64::from(BLOCK);
            disk.grow(self.cache_size);
            self.growing.due.pop_front();
            self.growing.is_open = true;
        }
        // It is told later if the growth before is still under way.
        if self.growing.is_open && self.tell_growth(self.cache_size, again).is_ok() {
            self.growing.is_open = false;
        }
    }

    /// The engine is told of a volume's size; `again`: not for the first time.
    pub(super) fn tell_growth(&mut self, size: u64, again: bool) -> Result<(), String> {
        let room = self.books.geometry().is_some_and(|geometry| geometry.grown(size).is_some());
        self.engine.grow_cache(self.now, size).map_err(|rejected| rejected.to_string())?;
        self.growing.told.push_back(Told { size, again: again && room });
        self.report.cache_growths += 1;
        self.triggers(Trigger::CacheGrowth);
        Ok(())
    }

    /// An engine is about to use a volume. After a crash nobody knows how far the last one's growth had come.
    pub(super) fn begin_growing(&mut self, after_crash: bool) {
        self.growing.told.clear();
        self.growing.is_open = after_crash && !self.rents() && self.cache_size > self.scenario.cache_size;
    }

    /// What the engine says of a growth.
    pub(super) fn note_growth(&mut self, event: &Event) -> Step {
        let told = self.growing.told.pop_front();
        match *event {
            Event::CacheGrown { cache_bytes } if cache_bytes > self.cache_size => {
                Err(format!("a cache of {} bytes claims {cache_bytes}", self.cache_size))
            }
            Event::CacheGrown { .. } => {
                self.report.caches_grown += 1;
                let Some(Told { size, again }) = told else { return Ok(()) };
                self.report.growths_taken_up += u32::from(again);
                match self.books.geometry().and_then(|geometry| geometry.grown(size)) {
                    Some(left) => Err(format!("a log that has grown on {size} bytes has room for {left:?}")),
                    None => Ok(()),
                }
            }
            // Nothing but its writes can fail.
            Event::CacheGrowFailed if self.books.all_failures == 0 => {
                Err("the log did not grow, without a fault".to_owned())
            }
            _ => {
                self.growing.is_open = !self.rents();
                Ok(())
            }
        }
    }
}
