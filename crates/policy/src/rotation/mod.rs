//! Rotation of an array's burstable members: a member is replaced by a new one, whose credits are full, before its own end
//! (PGA20, section 3.1).
//!
//! - [`Config`]: the members, the copy and the way to rotate, and what is wrong with them, in sentences;
//! - [`Rotation`]: fed with what the members served and with how replacements went on; polled for the next to begin;
//! - [`lanes`]: which replacement must begin first, and how long it can wait.
//!
//! Nobody asks the provider for credits: they are accounted from what was served ([`surgetank_model::credits`]). A balance that
//! a provider reports corrects the account ([`Rotation::correct`]).
//!
//! A driver calls [`Rotation::observe`] about once a second and then [`Rotation::next`], for each slot that this names begins
//! the replacement, and tells of its course by [`Rotation::tell`].

mod account;
mod config;
mod lanes;
pub mod planted;
mod status;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use surgetank_model::random::Random;
use surgetank_model::units::Span;
use surgetank_model::{Bytes, Instant};

pub use self::account::Served;
pub use self::config::{Config, Copying, Trouble, Way};
pub use self::status::{SlotState, SlotStatus, Status};

use self::account::Account;
use self::lanes::{Candidate, Lanes};
use self::planted::{Bug, planted};
use crate::budget::{Budget, BudgetUse, Ledger, PastRental};
use crate::step::Refusal;

/// What one slot did since the last observation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// What its member served, the copy included.
    pub served: Served,
    /// What its joining member served, the copy included.
    pub joining: Served,
    /// What was copied from the one to the other.
    pub copied: Bytes,
    /// What the member holds, and a copy would have to copy.
    pub holds: Bytes,
}

/// How a replacement goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The new member is there and the copy begins. Told of a slot that nobody began, it is a copy that goes on after a restart.
    Attached,
    /// The new member has the slot.
    Replaced,
    /// The old member is deleted, and the bill for it ends.
    Deleted,
    /// The provider created or attached none. Nothing is left of it.
    Refused(Refusal),
    /// The new member failed and is deleted, or the copy was ended; the old one has the slot. The text is for people.
    Failed(String),
}

/// What was learned, for the next start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Learned {
    /// Credits of each slot's buckets. What refilled while nothing ran is not known and does not count.
    pub levels: Vec<Vec<f64>>,
    /// From the decision until the copy begins.
    pub setup: Option<Span>,
    /// From the new member's turn until the old one is deleted.
    pub removal: Option<Span>,
    /// How many times as long a copy takes as its rate says.
    pub copy_factor: Option<f64>,
    /// Extra volumes of the last day, for the budget, relative to the moment of the snapshot.
    pub rentals: Vec<PastRental>,
}

/// Where a slot is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// One member.
    Alone,
    /// The new member is asked for.
    Setup { since: Instant },
    /// It is copied to.
    /// From when on, and how much copied, it had to wait for credits.
    Copy { since: Instant, of: Bytes, copied: Bytes, starved: Option<(Instant, Bytes)> },
    /// It has the slot; the old one is to be deleted.
    Removal { since: Instant },
}

#[derive(Clone, Debug)]
struct Slot {
    account: Account,
    /// Of the joining member.
    successor: Option<Account>,
    stage: Stage,
    holds: Bytes,
    /// Somebody asked for its replacement, or the others of its batch began.
    due: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Rotation {
    config: Config,
    slots: Vec<Slot>,
    ledger: Ledger,
    random: Random,
    observed: Instant,
    /// What the slots hold is known.
    has_observed: bool,
    /// All members of an empty array are being replaced.
    swapping: bool,
    setup_s: f64,
    removal_s: f64,
    copy_factor: f64,
    /// Refusals and failures in a row.
    attempts: u32,
    not_before: Instant,
    waiting: Option<String>,
    /// Until when lanes stay empty after a replacement.
    rests: Vec<Instant>,
    rotations: u64,
}

/// Replacements are begun so much earlier than must be: driver and provider vary.
const MARGIN: f64 = 0.05;
/// What is observed varies by so much between two looks.
const MARGIN_MIN_S: f64 = 2.0;
/// A copy that is slower than its rate for a while need not stay so: the next is expected to take no more than this longer.
const COPY_FACTOR_MAX: f64 = 8.0;
/// Members of an empty array are replaced once one of them has a smaller share of its credits: new ones have twice as many, or more.
const SWAP_BELOW: f64 = 0.5;
/// Of those, the ones that have a smaller share than this.
const SWAP_FULL: f64 = 0.9;
/// The first copy is expected to take so many times as long as its rate says.
const COPY_FACTOR_UNKNOWN: f64 = 1.1;

impl Rotation {
    /// Of an array whose members are new, but for what was learned.
    #[must_use]
    pub fn new(now: Instant, config: Config, budget: Budget, learned: &Learned) -> Self {
        let slot = |index: u32| {
            let levels = learned.levels.get(index as usize).map_or(&[][..], Vec::as_slice);
            let account = Account::new(&config, levels);
            Slot { account, successor: None, stage: Stage::Alone, holds: Bytes::ZERO, due: false }
        };
        let seconds = |known: Option<Span>, assumed: Duration| known.map_or(assumed, |span| span.0).as_secs_f64();
        Self {
            slots: (0..config.slots).map(slot).collect(),
            ledger: Ledger::new(now, config.tariff, budget, &learned.rentals),
            random: Random::from_seed(config.seed),
            observed: now,
            has_observed: false,
            swapping: false,
            setup_s: seconds(learned.setup, config.setup),
            removal_s: seconds(learned.removal, config.removal),
            copy_factor: learned
                .copy_factor
                .filter(|factor| factor.is_finite())
                .map_or(COPY_FACTOR_UNKNOWN, |factor| factor.clamp(1.0, COPY_FACTOR_MAX)),
            attempts: 0,
            not_before: now,
            waiting: None,
            rests: Vec::new(),
            rotations: 0,
            config,
        }
    }

    /// What was learned, to be kept.
    #[must_use]
    pub fn learned(&self, now: Instant) -> Learned {
        let span = |seconds: f64| Some(Span(Duration::from_secs_f64(seconds)));
        Learned {
            levels: self.slots.iter().map(|slot| slot.account.levels()).collect(),
            setup: span(self.setup_s),
            removal: span(self.removal_s),
            copy_factor: Some(self.copy_factor),
            rentals: self.ledger.past(now),
        }
    }

    /// What the slots did since the last observation, in the order of slots.
    pub fn observe(&mut self, now: Instant, samples: &[Sample]) {
        let seconds = now.since(self.observed).as_secs_f64();
        self.observed = self.observed.max(now);
        self.has_observed = true;
        for (slot, sample) in self.slots.iter_mut().zip(samples) {
            slot.holds = sample.holds;
            slot.account.observe(&self.config, sample, seconds);
            if let Some(successor) = &mut slot.successor {
                successor.spend(&sample.joining, &self.config, seconds);
            }
            if let Stage::Copy { copied, starved, .. } = &mut slot.stage {
                if slot.account.is_empty() && !planted(Bug::StarvedCopiesTeach) {
                    starved.get_or_insert((now, *copied));
                }
                *copied = Bytes::new(copied.get().saturating_add(sample.copied.get()));
            }
        }
    }

    /// The credits of a slot's member as its provider reports them, one for each bucket.
    pub fn correct(&mut self, slot: u32, levels: &[f64]) {
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            slot.account.correct(levels);
        }
    }

    /// Somebody asks for a slot's replacement, whatever its credits.
    pub fn ask(&mut self, slot: u32) {
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            slot.due = true;
        }
    }

    /// How the replacement of a slot's member goes on. What does not follow from what was told before is ignored.
    pub fn tell(&mut self, now: Instant, slot: u32, progress: Progress) {
        let Some(at) = self.slots.get_mut(slot as usize) else { return };
        match (progress, at.stage) {
            (Progress::Attached, Stage::Alone | Stage::Setup { .. }) => {
                if let Stage::Setup { since } = at.stage {
                    self.setup_s = expected(self.setup_s, now.since(since).as_secs_f64());
                }
                at.successor = Some(Account::new(&self.config, &[]));
                at.stage = Stage::Copy { since: now, of: at.holds, copied: Bytes::ZERO, starved: None };
                self.rented(now);
            }
            (Progress::Replaced, Stage::Copy { since, of, starved, .. }) => {
                // While it had to wait for credits, it says nothing of those that have them.
                let (until, copied) = starved.unwrap_or((now, of));
                let nominal_s = self.config.copy_s(copied);
                if nominal_s >= 1.0 {
                    let factor = until.since(since).as_secs_f64() / nominal_s;
                    self.copy_factor = expected(self.copy_factor, factor).clamp(1.0, COPY_FACTOR_MAX);
                }
                if let Some(successor) = at.successor.take() {
                    at.account.succeed(successor);
                }
                (at.stage, at.due) = (Stage::Removal { since: now }, false);
                (self.attempts, self.waiting) = (0, None);
                self.rotations += 1;
            }
            (Progress::Deleted, Stage::Removal { since }) => {
                self.removal_s = expected(self.removal_s, now.since(since).as_secs_f64());
                at.stage = Stage::Alone;
                self.rests.retain(|until| *until > now);
                if self.config.rest > Duration::ZERO {
                    self.rests.push(now + self.config.rest);
                }
                self.rented(now);
            }
            (Progress::Refused(refusal), Stage::Setup { .. }) => {
                // Whether the array is still empty is seen when the next attempt is due.
                at.due &= !self.swapping;
                at.stage = Stage::Alone;
                self.rented(now);
                self.back_off(now, &refusal);
            }
            (Progress::Failed(reason), Stage::Setup { .. } | Stage::Copy { .. }) => {
                at.due &= !self.swapping;
                (at.stage, at.successor) = (Stage::Alone, None);
                self.rented(now);
                self.back_off(now, &Refusal::Transient(reason));
            }
            _ => {}
        }
    }

    fn back_off(&mut self, now: Instant, refusal: &Refusal) {
        self.attempts = self.attempts.saturating_add(1);
        let delay = self.config.backoff.wait(refusal, self.attempts, &mut self.random);
        if !planted(Bug::RotationDoesNotWait) {
            self.not_before = now + delay;
        }
        self.waiting = Some(config::refused(refusal, delay));
    }

    /// When [`Self::next`] may have another answer although nothing is observed or told.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        (self.not_before > self.observed && self.waiting.is_some()).then_some(self.not_before)
    }

    /// The slot whose replacement is to begin now; ask again until there is none.
    pub fn next(&mut self, now: Instant) -> Option<u32> {
        if now < self.not_before {
            return None;
        }
        let Some(slot) = self.chosen(now) else {
            // Nothing is due, so nothing waits.
            self.waiting = None;
            return None;
        };
        let holds = self.slots.get(slot as usize)?.holds;
        if let Err(reason) = self.has_room(now, self.extra() + 1, holds) {
            self.waiting = Some(reason);
            return None;
        }
        let at = self.slots.get_mut(slot as usize)?;
        at.stage = Stage::Setup { since: now };
        self.waiting = None;
        self.rented(now);
        Some(slot)
    }

    /// Whether so many extra volumes may be there while this is copied.
    fn has_room(&self, now: Instant, extra: u32, holds: Bytes) -> Result<(), String> {
        if let Some(room) = self.config.room.filter(|room| extra > *room) {
            return Err(format!(
                "the machine takes {room} volumes more than the array has, and a replacement needs {extra}: the next begins when \
                 one is over"
            ));
        }
        if self.ledger.is_unlimited() || planted(Bug::RotationIsFree) {
            return Ok(());
        }
        self.is_paid_for(now, extra, self.setup_s + self.copy_s(holds) + self.removal_s)
    }

    /// Whether the budget allows so many extra volumes for a time, else when it may.
    fn is_paid_for(&self, now: Instant, extra: u32, seconds: f64) -> Result<(), String> {
        let size = Bytes::new(self.config.size.get().saturating_mul(extra.into()));
        let further = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        self.ledger.fits(now, size, further).map_err(|why| match self.ledger.allowed_in(now, size, further) {
            Some(wait) => format!("{why}; it does in {}", Span(wait)),
            None => format!("{why}: raise it, since it never pays for a replacement"),
        })
    }

    /// Whether the budget allows to replace so many members whatever their credits, in the lanes that there are.
    ///
    /// # Errors
    /// Which limit forbids it, and until when; for people.
    pub fn affords(&self, now: Instant, members: u32) -> Result<(), String> {
        if self.ledger.is_unlimited() {
            return Ok(());
        }
        let longest = self.slots.iter().map(|slot| slot.holds).max().unwrap_or(Bytes::ZERO);
        let each_s = self.setup_s + self.copy_s(longest) + self.removal_s;
        let extra = self.extra() + members.min(self.lanes_count()).max(1);
        self.is_paid_for(now, extra, each_s * f64::from(members.div_ceil(self.lanes_count())))
    }

    /// How much of the budget is used, hour first; `None`: there is none.
    #[must_use]
    pub fn budget(&self, now: Instant) -> Option<[BudgetUse; 2]> {
        (!self.ledger.is_unlimited()).then(|| self.ledger.usage(now))
    }

    /// Decides that all members are to be replaced, if the array holds nothing and that brings credits.
    fn swap_if_empty(&mut self) {
        self.swapping &= self.slots.iter().any(|slot| slot.due);
        if !self.config.swaps_when_empty || self.config.way == Way::Never || !self.has_observed || self.swapping {
            return;
        }
        let is_idle = |slot: &Slot| slot.holds == Bytes::ZERO && slot.stage == Stage::Alone && !slot.due;
        let is_empty = self.slots.iter().all(is_idle) || planted(Bug::SwapsWhatIsFull);
        let has_less = |slot: &Slot, than: f64| slot.account.share().is_some_and(|share| share < than);
        if is_empty && self.slots.iter().any(|slot| has_less(slot, SWAP_BELOW)) {
            self.slots.iter_mut().for_each(|slot| slot.due |= has_less(slot, SWAP_FULL));
            self.swapping = true;
        }
    }

    fn chosen(&mut self, now: Instant) -> Option<u32> {
        self.swap_if_empty();
        let busy = self.extra();
        if let Some(asked) = self.asked() {
            return (busy < self.lanes_count()).then_some(asked);
        }
        let resting = self.rests.iter().filter(|until| **until > now).count();
        if busy as usize + resting >= self.lanes_count() as usize && self.config.way != Way::All {
            return None;
        }
        match self.config.way {
            Way::Never => None,
            Way::Staggered => {
                let lanes = self.lanes();
                lanes.first(&self.candidates()).filter(|first| first.slack_s <= self.margin_s()).map(|first| first.slot)
            }
            Way::All if busy > 0 => None,
            Way::All => {
                let candidates = self.candidates();
                let urgent = candidates.iter().any(|candidate| candidate.latest_s <= self.margin_s());
                if urgent {
                    self.slots.iter_mut().for_each(|slot| slot.due = true);
                }
                if urgent { self.asked() } else { None }
            }
        }
    }

    /// The first slot that is to be replaced whatever its credits.
    fn asked(&self) -> Option<u32> {
        let due = |slot: &Slot| slot.due && slot.stage == Stage::Alone;
        self.slots.iter().position(due).and_then(|slot| u32::try_from(slot).ok())
    }

    /// The slots, in order, whose members have no credits left for operations, so that I/Os queue at them: their copies need a
    /// share of that queue.
    pub fn queueing(&self) -> impl Iterator<Item = bool> + '_ {
        self.slots.iter().map(|slot| slot.account.queues())
    }

    /// How many replacements may go on at once.
    #[must_use]
    pub fn at_once(&self) -> u32 {
        self.lanes_count()
    }

    fn lanes_count(&self) -> u32 {
        match self.config.way {
            _ if self.swapping => self.config.slots,
            Way::All => self.config.slots,
            Way::Staggered if planted(Bug::RotationIsNotStaggered) => self.config.slots,
            Way::Staggered | Way::Never => self.config.at_once.max(1),
        }
    }

    /// Volumes that are there beside one for each slot.
    #[must_use]
    pub fn extra(&self) -> u32 {
        self.slots.iter().map(|slot| u32::from(slot.stage != Stage::Alone)).sum()
    }

    /// The bill follows the number of extra volumes.
    fn rented(&mut self, now: Instant) {
        match self.extra() {
            0 => self.ledger.close(now, true),
            extra => self.ledger.open(now, Bytes::new(self.config.size.get().saturating_mul(extra.into()))),
        }
    }

    fn copy_s(&self, holds: Bytes) -> f64 {
        self.config.copy_s(holds) * self.copy_factor
    }

    fn margin_s(&self) -> f64 {
        if planted(Bug::RotationIsLate) {
            return -30.0;
        }
        let longest = self.slots.iter().map(|slot| slot.holds).max().unwrap_or(Bytes::ZERO);
        MARGIN_MIN_S + MARGIN * (self.setup_s + self.copy_s(longest))
    }

    /// When the replacements that go on will be over, each from now.
    fn lanes(&self) -> Lanes {
        let now = self.observed;
        let left = |slot: &Slot| {
            let over = |since: Instant, takes_s: f64| (takes_s - now.since(since).as_secs_f64()).max(0.0);
            match slot.stage {
                Stage::Alone => None,
                Stage::Setup { since } => Some(over(since, self.setup_s) + self.copy_s(slot.holds) + self.removal_s),
                Stage::Copy { of, copied, .. } => {
                    let rest = Bytes::new(of.get().saturating_sub(copied.get()));
                    Some(self.copy_s(rest) + self.removal_s)
                }
                Stage::Removal { since } => Some(over(since, self.removal_s)),
            }
        };
        let rests = self.rests.iter().map(|until| until.since(now).as_secs_f64()).filter(|left_s| *left_s > 0.0);
        let rest_s = self.config.rest.as_secs_f64();
        Lanes::new(self.lanes_count(), self.slots.iter().filter_map(left).map(|left_s| left_s + rest_s).chain(rests))
    }

    /// The slots whose credits will end.
    fn candidates(&self) -> Vec<Candidate> {
        let of = |(index, slot): (usize, &Slot)| {
            let copy_s = self.copy_s(slot.holds);
            let until_replaced_s = self.setup_s + copy_s;
            let latest_s = slot.account.latest_s(&self.config, slot.holds, copy_s, until_replaced_s)?;
            let alone = slot.stage == Stage::Alone;
            let takes_s = until_replaced_s + self.removal_s + self.config.rest.as_secs_f64();
            alone.then_some(Candidate { slot: u32::try_from(index).ok()?, latest_s, takes_s })
        };
        self.slots.iter().enumerate().filter_map(of).collect()
    }

    /// What is to be shown.
    #[must_use]
    pub fn status(&self) -> Status {
        Status {
            way: self.config.way,
            rotations: self.rotations,
            waiting: self.waiting.clone(),
            slots: self.slots.iter().map(|slot| self.slot_status(slot)).collect(),
        }
    }

    fn slot_status(&self, slot: &Slot) -> SlotStatus {
        let state = match slot.stage {
            Stage::Alone => SlotState::Active,
            Stage::Setup { .. } => SlotState::Creating,
            Stage::Copy { .. } => SlotState::Copying,
            Stage::Removal { .. } => SlotState::Deleting,
        };
        let copied_ratio = match slot.stage {
            Stage::Copy { of, copied, .. } if of > Bytes::ZERO => {
                Some((copied.get() as f64 / of.get() as f64).min(1.0))
            }
            _ => None,
        };
        SlotStatus { state, credits_ratio: slot.account.share(), empty_in_s: slot.account.empty_in_s(), copied_ratio }
    }
}

/// What is expected next after a measurement: a longer one at once, a shorter one little by little.
fn expected(known: f64, measured: f64) -> f64 {
    if measured > known { measured } else { known + (measured - known) * 0.3 }
}
