//! The members of an array, their replacements under the production policy, and the bill.

use std::time::Duration;

use surgetank_model::random::Random;
use surgetank_model::{Bytes, Instant, VolumeType};
use surgetank_planner::scenario::{Array, ArrayScenario, Latencies, Role};
use surgetank_policy::Refusal;
use surgetank_policy::budget::Budget;
use surgetank_policy::rotation::{Config, Copying, Learned, Progress, Rotation, Sample, Way};

use super::member::{Kind, Member, Work};

/// A step of the simulation, after which the policy looks.
pub const STEP: Duration = Duration::from_secs(1);

/// Of what a member with credits can do, a copy takes no more than this share.
const COPY_SHARE_MAX: f64 = 0.9;
/// Of what a member without credits still does, whose requests queue, it takes this.
const COPY_SHARE_HURRIED: f64 = 1.0 / surgetank_array::HURRIED_SHARE as f64;

/// A member that takes another's place.
#[derive(Clone, Debug)]
pub struct Joining {
    /// Itself.
    pub member: Member,
    /// Bytes that are still to be copied.
    pub left: f64,
    rented: Instant,
}

#[derive(Clone, Debug)]
enum Stage {
    Alone,
    Setup {
        until: Instant,
        rented: Instant,
    },
    Copy(Joining),
    /// The old member, of which nothing is asked any more.
    Removal {
        until: Instant,
        rented: Instant,
    },
}

/// A place in the array.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Which has the data.
    pub member: Member,
    rented: Instant,
    stage: Stage,
    /// Bytes copied since the policy looked.
    copied: f64,
    /// Accesses since the member was empty.
    pub accesses: f64,
}

impl Slot {
    /// The member that it is copied to.
    #[must_use]
    pub fn joining(&mut self) -> Option<&mut Joining> {
        match &mut self.stage {
            Stage::Copy(joining) => Some(joining),
            _ => None,
        }
    }
}

/// What was rented: seconds of volumes, raw and as they are billed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rented {
    /// Seconds that volumes were there.
    pub volume_s: f64,
    /// Seconds that are billed.
    pub billed_s: f64,
}

/// See the module.
#[derive(Debug)]
pub struct Fleet {
    /// What all members are.
    pub kind: Kind,
    /// In their order.
    pub slots: Vec<Slot>,
    /// What a copy of a member copies.
    holds: Bytes,
    copy: Copying,
    volume_type: VolumeType,
    latencies: Latencies,
    policy: Rotation,
    random: Random,
    /// Now.
    pub now: Instant,
    /// Of volumes that are gone.
    ended: Rented,
    /// Members replaced.
    pub rotations: u64,
    /// Replacements that the provider refused.
    pub refusals: u64,
    /// Copied in all.
    pub copied: f64,
    /// Most volumes beside one for each slot.
    pub extra_most: u32,
}

impl Fleet {
    /// So many new members of this size, rotated as the scenario says, or in another way.
    #[must_use]
    pub fn new(scenario: &ArrayScenario, members: u32, size: Bytes, way: Way) -> Self {
        let array = &scenario.array;
        let kind = Kind::new(&array.volume_type, size);
        let slot =
            Slot { member: kind.member(), rented: Instant::ZERO, stage: Stage::Alone, copied: 0.0, accesses: 0.0 };
        let policy = Rotation::new(
            Instant::ZERO,
            Config { slots: members, size, ..policy(scenario, way) },
            Budget::default(),
            &Learned::default(),
        );
        Self {
            slots: vec![slot; members as usize],
            kind,
            holds: scenario.member_holds(),
            copy: array.copy,
            volume_type: array.volume_type.clone(),
            latencies: scenario.provider,
            policy,
            random: Random::from_seed(scenario.seed),
            now: Instant::ZERO,
            ended: Rented::default(),
            rotations: 0,
            refusals: 0,
            copied: 0.0,
            extra_most: 0,
        }
    }

    /// What the copy of a member takes of both, per second, now.
    #[must_use]
    pub fn copying(&self, joining: &Joining, member: &Member) -> Work {
        let each = self.kind.work(1.0, self.copy.io_size);
        let share = |member: &Member| if member.is_empty() { COPY_SHARE_HURRIED } else { COPY_SHARE_MAX };
        let most = [member, &joining.member]
            .map(|member| self.kind.headroom(member, each, Work::default(), STEP) * share(member));
        let rate = (self.copy.rate.get() as f64).min(joining.left / STEP.as_secs_f64()).min(most[0]).min(most[1]);
        each.times(rate)
    }

    /// How much of a member is copied, from 0 to 1.
    #[must_use]
    pub fn copied_share(&self, joining: &Joining) -> f64 {
        let holds = self.holds.get() as f64;
        if holds > 0.0 { (1.0 - joining.left / holds).clamp(0.0, 1.0) } else { 1.0 }
    }

    /// Copies for a step, at what [`Self::copying`] says.
    pub fn copy(&mut self, slot: usize, work: Work) {
        let bytes = work.bytes * STEP.as_secs_f64();
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.copied += bytes;
            if let Some(joining) = slot.joining() {
                joining.left = (joining.left - bytes).max(0.0);
            }
        }
        self.copied += bytes;
    }

    /// A step is over: time passes, the policy looks and decides.
    pub fn step(&mut self) {
        self.now += STEP;
        let holds = self.holds;
        let sample = |slot: &mut Slot| {
            let joining = slot.joining().map_or_else(Default::default, |joining| joining.member.take_served());
            let copied = Bytes::new(std::mem::take(&mut slot.copied) as u64);
            Sample { served: slot.member.take_served(), joining, copied, holds }
        };
        let samples: Vec<Sample> = self.slots.iter_mut().map(sample).collect();
        self.policy.observe(self.now, &samples);
        for slot in 0..self.slots.len() {
            self.progress(slot);
        }
        while let Some(slot) = self.policy.next(self.now) {
            self.begin(slot);
        }
        self.extra_most = self.extra_most.max(self.extra());
    }

    /// What happens to a slot with time.
    fn progress(&mut self, index: usize) {
        let now = self.now;
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        let Some(slot) = self.slots.get_mut(index) else { return };
        if let Stage::Setup { until, rented } = slot.stage
            && now >= until
        {
            slot.stage = Stage::Copy(Joining { member: self.kind.member(), left: self.holds.get() as f64, rented });
            self.policy.tell(now, number, Progress::Attached);
        }
        if let Stage::Copy(joining) = &slot.stage
            && joining.left <= 0.0
        {
            let (old, new) = (slot.rented, joining.clone());
            (slot.rented, slot.member, slot.accesses) = (new.rented, new.member, 0.0);
            let takes = varied(&mut self.random, &self.latencies, self.latencies.detach + self.latencies.delete);
            slot.stage = Stage::Removal { until: now + takes, rented: old };
            self.rotations += 1;
            self.policy.tell(now, number, Progress::Replaced);
        }
        if let Stage::Removal { until, rented } = slot.stage
            && now >= until
        {
            slot.stage = Stage::Alone;
            let time = now.since(rented);
            self.ended.volume_s += time.as_secs_f64();
            self.ended.billed_s += self.volume_type.billing.billed(time).as_secs_f64();
            self.policy.tell(now, number, Progress::Deleted);
        }
    }

    fn begin(&mut self, index: u32) {
        let now = self.now;
        if self.random.chance(self.latencies.faults) {
            self.refusals += 1;
            let refusal = Refusal::Transient("the simulated provider failed".to_owned());
            return self.policy.tell(now, index, Progress::Refused(refusal));
        }
        let takes = varied(&mut self.random, &self.latencies, self.latencies.create + self.latencies.attach);
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.stage = Stage::Setup { until: now + takes, rented: now };
        }
    }

    /// What was rented until now. What goes on being rented is not rounded up.
    #[must_use]
    pub fn rented(&self) -> Rented {
        let mut rented = self.ended;
        for slot in &self.slots {
            let other = match &slot.stage {
                Stage::Alone => None,
                Stage::Setup { rented, .. } | Stage::Removal { rented, .. } => Some(*rented),
                Stage::Copy(joining) => Some(joining.rented),
            };
            for since in std::iter::once(slot.rented).chain(other) {
                let seconds = self.now.since(since).as_secs_f64();
                rented.volume_s += seconds;
                rented.billed_s += seconds;
            }
        }
        rented
    }

    /// Volumes that are there beside one for each slot.
    #[must_use]
    pub fn extra(&self) -> u32 {
        self.slots.iter().map(|slot| u32::from(!matches!(slot.stage, Stage::Alone))).sum()
    }
}

/// The policy's settings for a scenario.
#[must_use]
pub fn policy(scenario: &ArrayScenario, way: Way) -> Config {
    let Array { volume_type, members, member_size, copy, at_once, .. } = &scenario.array;
    let config = match scenario.role {
        Role::ReadCache(_) => Config::of_cache(volume_type, *members, *member_size, way),
        Role::Persistent | Role::Ephemeral => Config::of(volume_type, *members, *member_size, way, *copy),
    };
    Config {
        at_once: *at_once,
        room: scenario.room,
        setup: scenario.provider.create + scenario.provider.attach,
        removal: scenario.provider.detach + scenario.provider.delete,
        seed: scenario.seed,
        ..config
    }
}

fn varied(random: &mut Random, latencies: &Latencies, time: Duration) -> Duration {
    time.mul_f64(1.0 + latencies.jitter * random.unit())
}
