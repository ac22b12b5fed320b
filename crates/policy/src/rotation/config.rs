//! What is rotated and how, and what is wrong with it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use surgetank_model::units::Span;
use surgetank_model::volume_type::{BilledTime, CreditUnit, Credits, Performance};
use surgetank_model::{Balance, Bandwidth, Bytes, Limits, VolumeType};

use super::account::Served;
use crate::backoff::Backoff;
use crate::budget::Tariff;
use crate::step::Refusal;

/// How an array's members are rotated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// One after the other, with one extra volume at a time.
    #[default]
    Staggered,
    /// All at once: for the length of a copy there are twice as many volumes.
    All,
    /// Not at all, but for what somebody asks for.
    Never,
}

impl Way {
    /// All, in the words of files.
    pub const NAMES: [(&str, Self); 3] = [("staggered", Self::Staggered), ("all", Self::All), ("never", Self::Never)];
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, way)| way == self).map_or("", |(name, _)| name);
        f.pad(name)
    }
}

impl FromStr for Way {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, way)| *way);
        known.ok_or_else(|| format!("\"{text}\" is no way to rotate: write \"staggered\", \"all\" or \"never\""))
    }
}

impl<'de> Deserialize<'de> for Way {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// How a member is copied onto its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copying {
    /// At most so fast.
    pub rate: Bandwidth,
    /// Bytes of one operation.
    pub io_size: Bytes,
}

/// A copy that takes more than this share of what a member gives slows the application more than credits that end.
const GREEDY: f64 = 0.75;

/// Of the time that full credits last, all replacements one after the other take no more than this: none goes like another.
const QUEUE_MAX: f64 = 0.93;

/// An array as its rotation sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How.
    pub way: Way,
    /// How many members the array has.
    pub slots: u32,
    /// Size of a member.
    pub size: Bytes,
    /// The buckets of a member; none: its type has no credits, and only what is asked for is replaced.
    pub credits: Vec<Credits>,
    /// The largest operation that costs one credit; `None`: each costs one.
    pub io_unit: Option<Bytes>,
    /// What a member gives at most.
    pub limits: Limits,
    /// The copy.
    pub copy: Copying,
    /// Extra volumes at most, where they are staggered; at least 1.
    pub at_once: u32,
    /// The data are scratch: once the array holds nothing and its credits are well below full, all members are replaced at once.
    pub swaps_when_empty: bool,
    /// Volumes that the machine takes beside the array's members; `None`: unknown.
    pub room: Option<u32>,
    /// From the decision until the copy begins, until it is learned.
    pub setup: Duration,
    /// From the new member's turn until the old one is deleted, until it is learned.
    pub removal: Duration,
    /// From a member's replacement until the next may begin, where they are staggered: a cache's new member is empty at first.
    pub rest: Duration,
    /// After refusals and failures.
    pub backoff: Backoff,
    /// What an extra volume costs, for budgets.
    pub tariff: Tariff,
    /// Of the back-off's jitter.
    pub seed: u64,
}

impl Config {
    /// Of an array of volumes of this type, without budgets' prices beyond the type's own.
    #[must_use]
    pub fn of(volume_type: &VolumeType, slots: u32, size: Bytes, way: Way, copy: Copying) -> Self {
        let limits = volume_type.limits_at(size);
        let io_unit = match &volume_type.performance {
            Performance::IopsCredits { io_unit, .. } => Some(*io_unit),
            _ => None,
        };
        let usd_per_gib_hour = volume_type.price_per_hour(size).map(|usd| usd / size.as_gib().max(1e-9));
        Self {
            way,
            slots,
            size,
            credits: volume_type.all_credits_at(size),
            io_unit,
            limits,
            copy,
            at_once: 1,
            swaps_when_empty: false,
            room: None,
            setup: Duration::from_secs(10),
            removal: Duration::from_secs(10),
            rest: Duration::ZERO,
            backoff: Backoff::default(),
            tariff: Tariff {
                bandwidth: limits.bandwidth.unwrap_or(copy.rate),
                usd_per_gib_hour,
                // A member that has been there for long is what goes.
                billed_time: BilledTime::default(),
            },
            seed: 1,
        }
    }

    /// The same of a cache, whose members are replaced by empty ones: one after the other with pauses, in which the new ones fill. All
    /// pauses together last for half of the time that full credits carry the burst rate.
    #[must_use]
    pub fn of_cache(volume_type: &VolumeType, slots: u32, size: Bytes, way: Way) -> Self {
        let copy = Copying { rate: Bandwidth::from_mib_s(1), io_size: Bytes::from_mib(1) };
        let config = Self::of(volume_type, slots, size, way, copy);
        let burst = config.credits.iter().filter_map(Credits::burst_time).min().unwrap_or(Duration::ZERO);
        Self { rest: burst / (2 * slots.max(1)), ..config }
    }

    /// Credits that something served costs. Operations that are larger than a credit carries cost several; of a mixture the
    /// least that it can have cost.
    pub(super) fn charged(&self, unit: CreditUnit, served: &Served) -> f64 {
        match (unit, self.io_unit) {
            (CreditUnit::Bytes, _) => served.bytes,
            (CreditUnit::Operations, None) => served.operations,
            (CreditUnit::Operations, Some(of)) => served.operations.max(served.bytes / of.get().max(1) as f64),
        }
    }

    /// Credits that copying so much costs each of the two members.
    pub(super) fn copied_units(&self, unit: CreditUnit, copied: Bytes) -> f64 {
        let bytes = copied.get() as f64;
        self.charged(unit, &Served { operations: bytes / self.copy.io_size.get().max(1) as f64, bytes })
    }

    /// The fastest that a copy can go.
    fn copy_rate(&self) -> Bandwidth {
        self.limits.bandwidth.map_or(self.copy.rate, |most| most.min(self.copy.rate))
    }

    /// ρ: credits a second that the copy costs each of the two members.
    pub(super) fn copy_units_per_s(&self, unit: CreditUnit) -> f64 {
        self.copied_units(unit, Bytes::new(self.copy_rate().get()))
    }

    /// c: seconds of copying so much, at best.
    #[must_use]
    pub fn copy_s(&self, holds: Bytes) -> f64 {
        holds.get() as f64 / self.copy_rate().get() as f64
    }

    /// What keeps such an array, of which each member holds so much, from being rotated in time while its members serve all that
    /// they can: for users, when it starts. Empty: nothing.
    #[must_use]
    pub fn check(&self, holds: Bytes) -> Vec<Trouble> {
        if self.way == Way::Never {
            return Vec::new();
        }
        let extra = if self.way == Way::All { self.slots } else { self.at_once.max(1) };
        let room = self.room.filter(|room| *room < extra).map(|room| Trouble::NoRoom { way: self.way, room, extra });
        if self.credits.is_empty() {
            return vec![Trouble::NoCredits { size: self.size }];
        }
        let slow = self.credits.iter().find_map(|credits| self.too_slow(credits, holds, extra));
        let greedy = self.credits.iter().find_map(|credits| self.too_greedy(credits, holds));
        slow.or(greedy).into_iter().chain(room).collect()
    }

    /// Whether a copy leaves the application too little of one of the buckets.
    fn too_greedy(&self, credits: &Credits, holds: Bytes) -> Option<Trouble> {
        let (taken, cap) = (self.copy_units_per_s(credits.unit), Balance::full(*credits).cap());
        let greedy = holds > Bytes::ZERO && taken > GREEDY * cap;
        greedy.then(|| Trouble::CopyTakesTheMember { rate: self.copy_rate(), percent: 100.0 * (taken / cap).min(1.0) })
    }

    /// Whether copies are too slow for one of the buckets.
    fn too_slow(&self, credits: &Credits, holds: Bytes, extra: u32) -> Option<Trouble> {
        let spent_per_s = Balance::full(*credits).cap() - credits.baseline_per_s as f64;
        let (copy_s, lasts_s) = (self.copy_s(holds), credits.bucket as f64 / spent_per_s.max(1e-9));
        let takes_s = self.setup.as_secs_f64() + copy_s;
        let rate = self.copy_rate();
        // Both members spend credits while one is copied onto the other.
        if 2.0 * takes_s >= lasts_s {
            return Some(Trouble::CopyTakesTheCredits { holds, rate, takes_s, lasts_s });
        }
        let all_s = (takes_s + (self.removal + self.rest).as_secs_f64()) * f64::from(self.slots.div_ceil(extra));
        let faster = all_s > QUEUE_MAX * lasts_s && self.way == Way::Staggered;
        faster.then_some(Trouble::QueueIsTooLong { members: self.slots, rate, all_s, lasts_s })
    }
}

/// Why an array is not rotated in time. One sentence each, with the remedy.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Trouble {
    /// The members' type has no credits.
    #[error(
        "volumes of {size} of this type have no burst credits, so there is nothing to rotate: write rotate = \"never\", or take smaller members"
    )]
    NoCredits {
        /// Of a member.
        size: Bytes,
    },
    /// One copy is too slow.
    #[error(
        "copying the {holds} of a member at {rate} takes {takes_s:.0} s with the attachment, and credits carry a member and then its \
         successor for {lasts_s:.0} s at most, so that credits end before the copy does: raise copy_rate, or take smaller members"
    )]
    CopyTakesTheCredits {
        /// What is copied.
        holds: Bytes,
        /// How fast.
        rate: Bandwidth,
        /// How long.
        takes_s: f64,
        /// How long full credits last at the burst rate.
        lasts_s: f64,
    },
    /// One copy is not, all after each other are.
    #[error(
        "replacing {members} members one after the other takes {all_s:.0} s at {rate}, and credits last {lasts_s:.0} s at the burst \
         rate, so that some members lose it in between: raise copy_rate, write rotate_at_once = {}, or rotate = \"all\"",
        (.all_s / .lasts_s).ceil().max(2.0)
    )]
    QueueIsTooLong {
        /// Of the array.
        members: u32,
        /// How fast a copy is.
        rate: Bandwidth,
        /// For all.
        all_s: f64,
        /// How long full credits last at the burst rate.
        lasts_s: f64,
    },
    /// The copy leaves the application little.
    #[error(
        "a copy at {rate} takes {percent:.0} % of what a member gives while its credits last, so that the array is slow whenever one is \
         replaced: lower copy_rate"
    )]
    CopyTakesTheMember {
        /// How fast.
        rate: Bandwidth,
        /// Of the burst rate.
        percent: f64,
    },
    /// The machine has too few attachments.
    #[error(
        "rotate = \"{way}\" needs {extra} volumes beside the array's members, and the machine takes {room} more: {}",
        if *.room == 0 { "take fewer members" } else { "write rotate = \"staggered\"" }
    )]
    NoRoom {
        /// How.
        way: Way,
        /// What is left.
        room: u32,
        /// What is needed.
        extra: u32,
    },
}

/// Why a replacement waits.
pub(super) fn refused(refusal: &Refusal, delay: Duration) -> String {
    let again = format!("the next attempt is in {}", Span(Duration::from_secs(delay.as_secs_f64().ceil() as u64)));
    match refusal {
        Refusal::Quota => format!("the provider's quota is used up: {again}; ask the provider for more"),
        Refusal::Capacity => format!("the provider has no volume of this type now: {again}"),
        Refusal::AttachLimit => {
            format!("no further volume can be attached to this machine: {again}; detach one, or take fewer members")
        }
        Refusal::Timeout => format!("the provider did not answer in time: {again}"),
        Refusal::Throttled { text, .. } => format!("the provider has had too many requests ({text}): {again}"),
        Refusal::Failed(reason) | Refusal::Transient(reason) | Refusal::NoRoom(reason) => format!("{reason}: {again}"),
        Refusal::Permanent(reason) => format!("{reason}, which does not pass by itself: {again}"),
    }
}
