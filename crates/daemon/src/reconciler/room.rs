//! Steps that need room of what read caches and boosts share wait until caches are smaller.

use std::time::Duration;

use surgetank_allocation::Claimed;
use surgetank_model::{Bytes, Instant};
use surgetank_policy::{Controller, Headroom, Refusal, Step, StepId, StepOutcome};

use crate::read_caches::BoostShare;

/// How often a step that waits is tried.
const POLL: Duration = Duration::from_millis(20);

/// A step, and until when it may take.
type Timed = (StepId, Step, Option<Instant>);

/// What a device's boosts have of it.
pub(super) struct Room {
    share: BoostShare,
    /// A step that has no room yet.
    waiting: Option<Timed>,
    /// A step that has claimed its room and is being carried out.
    claiming: Option<StepId>,
    /// What is rented, or may be.
    rented: Bytes,
    /// Whether nothing else is claimed.
    is_settled: bool,
}

/// The next step to carry out now. One for which there is no room is refused, and so is one that waits for room and is not wanted any more. The time for
/// which it has waited is of its own.
pub(super) fn next_step(room: &mut Option<Room>, now: Instant, controller: &mut Controller) -> Option<Timed> {
    let next = |controller: &mut Controller| {
        let (id, step) = controller.next_step()?;
        let until = controller.config().timeout(&step).map(|timeout| now + timeout);
        Some((id, step, until))
    };
    let Some(room) = room else { return next(controller) };
    loop {
        let waited = room.waiting.take();
        let is_called_off = waited.is_some() && controller.calls_off();
        let (id, step, until) = waited.or_else(|| next(controller))?;
        let Some(size) = room.needs(&step) else { return Some((id, step, until)) };
        if is_called_off {
            room.settle();
            let why = "it is not wanted any more".to_owned();
            controller.complete(now, id, StepOutcome::Refused(Refusal::NoRoom(why)));
            continue;
        }
        match room.claim(size, until.is_some_and(|until| until <= now)) {
            Ok(true) => {
                room.claiming = Some(id);
                return Some((id, step, until));
            }
            Ok(false) => {
                room.waiting = Some((id, step, until));
                return None;
            }
            Err(why) => controller.complete(now, id, StepOutcome::Refused(Refusal::NoRoom(why))),
        }
    }
}

impl Room {
    /// So much is rented already, or may be.
    pub fn new(share: BoostShare, rented: Bytes) -> Self {
        share.rents(rented);
        Self { share, waiting: None, claiming: None, rented, is_settled: true }
    }

    pub fn headroom(&self) -> Headroom {
        self.share.headroom()
    }

    /// Why a boost does not begin or grow now, if it waits.
    pub fn waits(&self) -> Option<String> {
        self.waiting.as_ref()?;
        Some("the caching volume waits until the read caches that share with boosts have become smaller".to_owned())
    }

    /// When [`next_step`] is to be asked again.
    pub fn next_poll(&self, now: Instant) -> Option<Instant> {
        self.waiting.as_ref().map(|_| now + POLL)
    }

    /// What the caching volume has after this step, if it has more than before.
    fn needs(&self, step: &Step) -> Option<Bytes> {
        match step {
            Step::Create { size } => Some(*size),
            // What was asked for before may happen yet.
            Step::Grow { size } => Some(self.rented.max(*size)),
            _ => None,
        }
    }

    /// Whether there is room for a caching volume of this size; not yet if caches are to become smaller. `is_late`: they had their time.
    fn claim(&mut self, size: Bytes, is_late: bool) -> Result<bool, String> {
        let claimed = self.share.claim(size);
        self.is_settled = false;
        let Headroom { budget, most } = self.share.headroom();
        let why = match claimed {
            Claimed::Granted => return Ok(true),
            Claimed::Waits if !is_late => return Ok(false),
            Claimed::Waits => "read caches have not become smaller in time".to_owned(),
            Claimed::Refused => format!("{most} are left"),
        };
        self.settle();
        Err(format!(
            "a caching volume of {size} has no room in the budget of {budget} that read caches and boosts share: {why}"
        ))
    }

    /// A step has ended.
    pub fn ended(&mut self, id: StepId) {
        self.claiming.take_if(|claiming| *claiming == id);
    }

    /// So much is rented, or may be. While a step has a claim, that counts.
    pub fn rents(&mut self, size: Bytes) {
        if self.waiting.is_none() && self.claiming.is_none() && !(self.is_settled && self.rented == size) {
            self.rented = size;
            self.settle();
        }
    }

    /// Nothing is claimed beyond what is rented.
    fn settle(&mut self) {
        self.share.rents(self.rented);
        self.is_settled = true;
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // What is rented stays rented.
        if self.waiting.is_some() {
            self.share.rents(self.rented);
        }
    }
}
