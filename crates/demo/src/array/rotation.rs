//! The production rotation policy over the demo's array: fed with what the daemon says of the members, it decides which is replaced,
//! and the daemon replaces it.
//!
//! The daemon's own rotation would be too slow for scaled credits: until it has learned better it takes creating and deleting a volume
//! for 10 s each, so ten members for 200 s, and credits last for 12 to 20 s here; and it looks once a second, which is a twelfth of that.

use serde::Serialize;
use surgetank_daemon::arrays::status::{ArrayStatus, VolumeStatus};
use surgetank_model::{Bytes, Instant};
use surgetank_policy::budget::Budget;
use surgetank_policy::rotation::{Config, Learned, Progress, Rotation, Sample, Served};

const GIB: f64 = (1u64 << 30) as f64;

/// What a volume has done since it came.
#[derive(Clone, Debug, Default, PartialEq)]
struct Seen {
    volume: String,
    operations: f64,
    bytes: f64,
}

impl Seen {
    fn of(status: &VolumeStatus) -> Option<Self> {
        let bytes = (status.read_gib.unwrap_or_default() + status.written_gib.unwrap_or_default()) * GIB;
        let operations = status.ios.unwrap_or_default() as f64;
        Some(Self { volume: status.volume.clone()?, operations, bytes })
    }

    /// What it has done since another look, which may have been at another volume.
    fn since(&self, before: Option<&Self>) -> Served {
        let before = before.filter(|before| before.volume == self.volume).cloned().unwrap_or_default();
        Served {
            operations: (self.operations - before.operations).max(0.0),
            bytes: (self.bytes - before.bytes).max(0.0),
        }
    }
}

/// Where the replacement of a slot's member is.
#[derive(Clone, Debug, Default, PartialEq)]
enum Stage {
    /// There is none.
    #[default]
    Alone,
    /// Asked for.
    Asked,
    /// The new member is being copied to.
    Copying,
    /// The old member, of this name, is still rented.
    Leaving(String),
}

#[derive(Clone, Debug, Default)]
struct Slot {
    active: Option<Seen>,
    joining: Option<Seen>,
    /// Bytes that the joining member was sent.
    copied: f64,
    /// The share of credits that the active member has left.
    credits: f64,
    stage: Stage,
}

/// A member that was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Replacement {
    /// When its successor had the slot, in seconds since the begin of the run.
    pub at_s: f64,
    /// Its slot.
    pub slot: u32,
    /// The share of credits that it had left.
    pub credits_left_ratio: f64,
    /// What was copied.
    pub copied_gib: f64,
}

/// See the module.
#[derive(Debug)]
pub struct Rotator {
    policy: Rotation,
    slots: Vec<Slot>,
    replaced: Vec<Replacement>,
}

impl Rotator {
    /// Of an array whose members are new.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let slots = vec![Slot::default(); config.slots as usize];
        let policy = Rotation::new(Instant::ZERO, config, Budget::default(), &Learned::default());
        Self { policy, slots, replaced: Vec::new() }
    }

    /// Takes in how the array stands at a moment of the run.
    pub fn look(&mut self, now: Instant, status: &ArrayStatus) {
        let holds = status.written_gib.unwrap_or_default() * GIB / self.slots.len().max(1) as f64;
        let (mut samples, mut told) = (Vec::with_capacity(self.slots.len()), Vec::new());
        for (number, slot) in (0..).zip(&mut self.slots) {
            let before = slot.active.as_ref().map(|seen| seen.volume.clone());
            let (sample, replaced) = slot.look(number, status, holds);
            samples.push(sample);
            if replaced {
                self.replaced.push(Replacement {
                    at_s: now.since(Instant::ZERO).as_secs_f64(),
                    slot: number,
                    credits_left_ratio: slot.credits,
                    copied_gib: holds / GIB,
                });
            }
            slot.credits = slot.credits_left(number, status);
            told.extend(
                slot.advance(number, status, before.filter(|_| replaced)).into_iter().map(|what| (number, what)),
            );
        }
        self.policy.observe(now, &samples);
        for (slot, progress) in told {
            self.policy.tell(now, slot, progress);
        }
    }

    /// The next slot whose member is to be replaced; ask again until there is none.
    pub fn next(&mut self, now: Instant) -> Option<u32> {
        let number = self.policy.next(now)?;
        if let Some(slot) = self.slots.get_mut(number as usize) {
            slot.stage = Stage::Asked;
        }
        Some(number)
    }

    /// The members that were replaced, in order.
    #[must_use]
    pub fn replaced(&self) -> &[Replacement] {
        &self.replaced
    }
}

impl Slot {
    /// What its members have done since the last look, and whether the joining one has the slot now. A member that has the slot holds
    /// `holds` bytes.
    fn look(&mut self, number: u32, status: &ArrayStatus, holds: f64) -> (Sample, bool) {
        let active = part(status, number, "active").and_then(Seen::of);
        let joining = part(status, number, "joining");
        let copied = joining.and_then(|joining| joining.copied_gib).unwrap_or_default() * GIB;
        let joining = joining.and_then(Seen::of);
        let known = active.as_ref().zip(self.active.as_ref());
        let replaced = known.is_some_and(|(now, before)| now.volume != before.volume);
        let since = |seen: &Option<Seen>, before: &Option<Seen>| seen.as_ref().map(|seen| seen.since(before.as_ref()));
        let (served, by_joining, copied) = match replaced {
            // What the new member did since the last look it did as the joining one.
            true => (None, since(&active, &self.joining), holds),
            false => (since(&active, &self.active), since(&joining, &self.joining), copied),
        };
        let more = (copied - self.copied).max(0.0);
        self.copied = if joining.is_some() { copied } else { 0.0 };
        (self.active, self.joining) = (active.or_else(|| self.active.take()), joining);
        let sample = Sample {
            served: served.unwrap_or_default(),
            joining: by_joining.unwrap_or_default(),
            copied: Bytes::new(more as u64),
            holds: Bytes::new(holds as u64),
        };
        (sample, replaced)
    }

    fn credits_left(&self, number: u32, status: &ArrayStatus) -> f64 {
        part(status, number, "active").and_then(|active| active.credits_share).unwrap_or(self.credits)
    }

    /// What the policy is told of its replacement; `old` is the member that has just lost the slot.
    fn advance(&mut self, number: u32, status: &ArrayStatus, old: Option<String>) -> Vec<Progress> {
        let joins = self.joining.is_some();
        let is_wanted = joins || status.replacing.contains(&number);
        let (stage, told) = match (std::mem::take(&mut self.stage), old) {
            // Between two looks it came and was copied.
            (Stage::Asked, Some(old)) => (Stage::Leaving(old), vec![Progress::Attached, Progress::Replaced]),
            (_, Some(old)) => (Stage::Leaving(old), vec![Progress::Replaced]),
            (Stage::Asked, None) if joins => (Stage::Copying, vec![Progress::Attached]),
            (Stage::Asked | Stage::Copying, None) if !is_wanted => {
                let reason = status.reason.clone().unwrap_or_else(|| "the replacement ended without effect".to_owned());
                (Stage::Alone, vec![Progress::Failed(reason)])
            }
            (Stage::Leaving(old), None) if status.volumes.iter().all(|volume| volume.volume.as_ref() != Some(&old)) => {
                (Stage::Alone, vec![Progress::Deleted])
            }
            (stage, None) => (stage, Vec::new()),
        };
        self.stage = stage;
        told
    }
}

/// The volume that is something to a slot.
fn part<'a>(status: &'a ArrayStatus, slot: u32, part: &str) -> Option<&'a VolumeStatus> {
    status.volumes.iter().find(|volume| volume.slot == Some(slot) && volume.part == part)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::plan::ArrayPlan;
    use super::*;

    /// An array whose members each serve so many requests a second, and are replaced within a second of being asked for.
    struct World {
        members: Vec<(u32, u64)>,
        leaving: Option<u32>,
        joining: Option<(u32, u32)>,
        next: u32,
    }

    impl World {
        fn status(&self) -> ArrayStatus {
            let volume = |slot: Option<u32>, number: u32, part: &str, ios: u64| VolumeStatus {
                slot,
                volume: Some(format!("vol-{number}")),
                part: part.to_owned(),
                size_gib: 1.0,
                age_s: 0.0,
                copied_share: None,
                copied_gib: (part == "joining").then_some(0.01),
                read_gib: Some(0.0),
                written_gib: Some(0.0),
                ios: Some(ios),
                credits_share: Some(0.5),
                credits_end_s: None,
                held_s: None,
            };
            let active =
                (0..).zip(&self.members).map(|(slot, (number, ios))| volume(Some(slot), *number, "active", *ios));
            let joining = self.joining.map(|(slot, number)| volume(Some(slot), number, "joining", 20));
            let leaving = self.leaving.map(|number| volume(None, number, "leaving", 0));
            ArrayStatus {
                volumes: active.chain(joining).chain(leaving).collect(),
                replacing: self.joining.iter().map(|(slot, _)| *slot).collect(),
                written_gib: Some(0.2),
                ..ArrayStatus::refused("demo", String::new())
            }
        }
    }

    #[test]
    fn every_member_is_replaced_in_turn_before_its_credits_end() {
        let plan = ArrayPlan::standard(1).unwrap();
        let bucket = plan.credits(super::super::plan::Mode::Rotated)[0].bucket as f64;
        let mut rotator = Rotator::new(plan.rotation());
        let mut world =
            World { members: (0..10).map(|slot| (slot, 0)).collect(), leaving: None, joining: None, next: 10 };
        let mut spent = [0.0; 10];
        for tenth in 1..=800u64 {
            let now = Instant::ZERO + Duration::from_millis(tenth * 100);
            for ((_, ios), spent) in world.members.iter_mut().zip(&mut spent) {
                *ios += 12;
                *spent += 11.5;
            }
            assert!(spent.iter().all(|spent| *spent < bucket), "{tenth}: {spent:?}");
            rotator.look(now, &world.status());
            if let Some(slot) = rotator.next(now) {
                assert!(world.joining.is_none() && world.leaving.is_none(), "one at a time");
                world.joining = Some((slot, world.next));
                world.next += 1;
            } else if tenth % 8 == 0 {
                world.leaving = None;
                if let Some((slot, number)) = world.joining.take() {
                    world.leaving = Some(std::mem::replace(&mut world.members[slot as usize], (number, 20)).0);
                    spent[slot as usize] = 20.0;
                }
            }
        }
        let slots: std::collections::BTreeSet<u32> = rotator.replaced().iter().map(|replaced| replaced.slot).collect();
        assert_eq!(slots.len(), 10);
        assert!((30..=60).contains(&rotator.replaced().len()), "{}", rotator.replaced().len());
    }

    #[test]
    fn a_replacement_that_ends_without_effect_is_tried_again() {
        let plan = ArrayPlan::standard(1).unwrap();
        let mut rotator = Rotator::new(plan.rotation());
        let mut world =
            World { members: (0..10).map(|slot| (slot, 0)).collect(), leaving: None, joining: None, next: 10 };
        let mut asked = 0;
        for tenth in 1..=250u64 {
            let now = Instant::ZERO + Duration::from_millis(tenth * 100);
            world.members.iter_mut().for_each(|(_, ios)| *ios += 12);
            rotator.look(now, &world.status());
            asked += u32::from(rotator.next(now).is_some());
        }
        assert!(asked > 1, "{asked}");
        assert_eq!(rotator.replaced(), []);
    }
}
