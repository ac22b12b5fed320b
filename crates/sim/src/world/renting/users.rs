//! Users and applications: they want boosts, announce bursts that come or do not, and end what has begun.
//!
//! What is promised of that, whatever crashes and whatever the provider does: a boost begins on request only for somebody who has
//! not taken the request back, and no boost begins once the budget is used up.

use std::time::Duration;

use surgetank_model::random::Random;
use surgetank_model::{Bytes, Instant};
use surgetank_policy::{BurstHint, Cause, Controller, Phase, Step as PolicyStep};

use crate::world::Step;

/// Time is worth so much here that a volume may be kept for hours for a burst that does not come: after so long a user ends it.
pub(super) const LONGEST: Duration = Duration::from_secs(1800);
/// At one sample in so many somebody wants a boost, at one a drain, and at one a detach; where bursts are announced, at two one
/// of those.
const USERS_WANT: u64 = 32;
/// Longest time from an announcement to its burst.
const STARTS_MAX: Duration = Duration::from_millis(300);
/// The largest burst that is announced: several caching volumes.
const BURST_MAX: u64 = 8 << 20;

/// What users want of the daemon that runs, and what it has rented for that.
#[derive(Debug, Default)]
pub(super) struct Users {
    /// Boosts that were asked for or announced and have not begun, at most: one that goes on may have been meant.
    wanted: u32,
    /// What is rented, since when.
    rented: Option<(Bytes, Instant)>,
    /// AGBs of what was rented before.
    spent: f64,
}

impl Users {
    /// A sample passes.
    pub(super) fn ask(&mut self, controller: &mut Controller, random: &mut Random, now: Instant, announce: bool) {
        match random.below(USERS_WANT) {
            0 => self.wanted += u32::from(controller.hint_boost(now).is_ok()),
            1 => {
                controller.hint_drain(now);
                self.wanted = 0;
            }
            2 => {
                controller.hint_detach(now);
                self.wanted = 0;
            }
            3 | 4 if announce => {
                let size = (random.below(2) == 0).then(|| Bytes::new(random.below(BURST_MAX)));
                let starts_in = Duration::from_nanos(random.below(STARTS_MAX.as_nanos() as u64));
                self.wanted += u32::from(controller.hint_burst(now, BurstHint { size, starts_in }).is_ok());
            }
            _ => {}
        }
    }

    /// The controller has a step carried out.
    pub(super) fn sees(&mut self, controller: &Controller, now: Instant, step: &PolicyStep) -> Step {
        let PolicyStep::Create { size } = *step else { return Ok(()) };
        if controller.cause() == Some(Cause::Request) {
            let left = self.wanted.checked_sub(1);
            self.wanted = left.ok_or_else(|| "a boost begins on request, and nobody wants one".to_owned())?;
        }
        if let Some(limit) = controller.config().budget.agbs_per_hour.filter(|limit| self.spent >= *limit) {
            return Err(format!("a boost begins, and {} AGBs of {limit} are spent", self.spent));
        }
        self.rented = Some((size, now));
        Ok(())
    }

    /// A step was answered.
    pub(super) fn account(&mut self, controller: &Controller, now: Instant) {
        if let Some((size, since)) = self.rented.take_if(|_| controller.phase() == Phase::Idle) {
            let agbs_per_s = size.as_gib() * controller.config().caching_bandwidth.as_mib_s();
            self.spent += agbs_per_s * now.since(since).as_secs_f64();
        }
    }
}
