//! What holds of an engine between two events. Debug builds alone have it: the crash simulation checks it after every event.

use std::collections::BTreeMap;

use surgetank_model::{Request, RequestId};

use super::change::Hold;
use super::membership::Phase;
use super::requests::is_change;
use super::{Engine, Pending};
use crate::effect::Target;
use crate::port::Waiter;

/// What does not hold.
type Check = Result<(), String>;

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, kept: T, counted: T) -> Check {
    if kept == counted { Ok(()) } else { Err(format!("{what}: {kept:?} kept, {counted:?} counted")) }
}

fn holds(what: &str, does: bool) -> Check {
    if does { Ok(()) } else { Err(format!("this does not hold: {what}")) }
}

impl Engine {
    /// Whether what the engine keeps agrees with itself.
    ///
    /// # Errors
    /// The first thing that does not hold.
    pub fn check(&self) -> Result<(), String> {
        self.check_requests()?;
        self.check_members()?;
        for slot in 0..self.slots.len() as u32 {
            self.check_slot(slot)?;
        }
        holds("the bits of every bitmap mean what its member needs", self.kinds_are_right())?;
        let Some(transition) = &self.transition else { return Ok(()) };
        let awaited = transition.waiting.iter().all(|target| {
            self.members.get(target).is_some_and(|m| m.record_wanted || m.record != super::member::Record::Idle)
        });
        holds("a change of the membership awaits superblocks that are being written", awaited)?;
        let told = matches!(transition.phase, Phase::Activate | Phase::Spread);
        holds("a phase that tells members awaits one", told != transition.waiting.is_empty())
    }

    fn check_requests(&self) -> Check {
        let mut parts: BTreeMap<RequestId, u32> = BTreeMap::new();
        for pending in self.pending.values() {
            match pending {
                Pending::Part(part) => *parts.entry(part.request).or_insert(0) += 1,
                Pending::Read(read) => *parts.entry(read.request()).or_insert(0) += 1,
                _ => {}
            }
        }
        for member in self.members.values() {
            for waiter in member.port.flushes.waiters() {
                if let Waiter::Request(request) = waiter {
                    *parts.entry(request).or_insert(0) += 1;
                }
            }
        }
        for id in &self.bit_waiters {
            *parts.entry(*id).or_insert(0) += 1;
        }
        let kept: BTreeMap<RequestId, u32> =
            self.requests.iter().filter(|(_, active)| !active.parked).map(|(id, active)| (*id, active.parts)).collect();
        equal("parts of requests", kept, parts)?;
        let changes = self.requests.values().filter(|active| is_change(active.request.operation));
        let locks = changes.map(|active| (active.request.offset, active.request.offset + active.request.length));
        equal("locks", self.locks.clone(), locks.collect())
    }

    fn check_members(&self) -> Check {
        let mut counted: BTreeMap<Target, (u32, bool)> = BTreeMap::new();
        for pending in self.pending.values() {
            let (target, flush) = match pending {
                Pending::Part(part) => (part.target, false),
                Pending::Read(read) => (read.target, false),
                Pending::Page { target, .. } | Pending::Superblock { target, .. } | Pending::Bitmap(target) => {
                    (*target, false)
                }
                Pending::CopyRead { from, .. } => (*from, false),
                Pending::CopyWrite { to, .. } => (*to, false),
                Pending::Flush(target) => (*target, true),
            };
            let entry = counted.entry(target).or_insert((0, false));
            if flush { entry.1 = true } else { entry.0 += 1 }
        }
        for (_, _, target) in self.singles.all() {
            counted.entry(target).or_insert((0, false)).0 += 1;
        }
        let kept = |member: &super::Member| (member.port.effects_in_flight, member.port.flushes.is_flushing());
        let idle = |(_, kept): &(Target, (u32, bool))| *kept != (0, false);
        let kept: BTreeMap<_, _> = self.members.iter().map(|(target, m)| (*target, kept(m))).filter(idle).collect();
        equal("in flight on the members", kept, counted)
    }

    fn check_slot(&self, number: u32) -> Check {
        let slot = &self.slots[number as usize];
        let of_slot = |active: &&super::Active| {
            is_change(active.request.operation) && active.runs.iter().any(|run| run.slot == number)
        };
        let mut regions = BTreeMap::new();
        for active in self.requests.values().filter(of_slot) {
            for run in active.runs.iter().filter(|run| run.slot == number) {
                self.geometry.regions_of(run).for_each(|region| *regions.entry(region).or_insert(0) += 1);
            }
        }
        equal("changes of regions", slot.regions.clone(), regions)?;
        let unparked = self.requests.values().filter(of_slot).filter(|active| !active.parked).count();
        let single = |(request, slot, _): &(&Request, u32, Target)| *slot == number && is_change(request.operation);
        let singles = self.singles.all().filter(single).count();
        equal("changes of a slot", slot.changes as usize, unparked + singles)?;
        let changes = self.transition.as_ref().and_then(|transition| transition.purpose.slot()) == Some(number);
        holds("changes of a slot wait for its own membership alone", (slot.hold != Hold::No) == changes)?;
        holds("a slot has an active member", self.members.contains_key(&slot.active))?;
        let Some(join) = &slot.join else {
            return holds(
                "without a joining member nothing is dropped or parked",
                !slot.dropping && slot.parked.is_empty(),
            );
        };
        holds("a joining member is a member", self.members.contains_key(&join.target))?;
        equal("regions that differ", join.unsynced, self.geometry.regions() - join.synced.count())
    }
}
