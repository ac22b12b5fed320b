//! Steps that need room of what read caches and boosts share wait until caches are smaller.

use std::time::Duration;

use surgetank_allocation::Claimed;
use surgetank_model::{Bytes, Instant};
use surgetank_policy::{Controller, Headroom, Refusal, Step, StepId, StepOutcome};

use crate::read_caches::BoostShare;

/// How often a step that waits is tried.
const POLL: Duration = Duration::from_millis(20);

/// What a device's boosts have of it.
pub(super) struct Room {
    share: BoostShare,
    /// A step that has no room yet, and until when it waits.
    waiting: Option<(StepId, Step, Option<Instant>)>,
    /// A step that has claimed its room and is being carried out.
    claiming: Option<StepId>,
    /// What is rented, or may be.
    rented: Bytes,
}

/// The next step to carry out now. One for which there is no room is refused.
pub(super) fn next_step(room: &mut Option<Room>, now: Instant, controller: &mut Controller) -> Option<(StepId, Step)> {
    let Some(room) = room else { return controller.next_step() };
    loop {
        let (id, step, until) = room.waiting.take().or_else(|| {
            let (id, step) = controller.next_step()?;
            let until = controller.config().timeout(&step).map(|timeout| now + timeout);
            Some((id, step, until))
        })?;
        let Some(size) = room.needs(&step) else { return Some((id, step)) };
        match room.claim(size, until.is_some_and(|until| until <= now)) {
            Ok(true) => {
                room.claiming = Some(id);
                return Some((id, step));
            }
            Ok(false) => {
                room.waiting = Some((id, step, until));
                return None;
            }
            Err(why) => controller.complete(now, id, StepOutcome::Refused(Refusal::Transient(why))),
        }
    }
}

impl Room {
    /// So much is rented already, or may be.
    pub fn new(share: BoostShare, rented: Bytes) -> Self {
        share.rents(rented);
        Self { share, waiting: None, claiming: None, rented }
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
    fn claim(&self, size: Bytes, is_late: bool) -> Result<bool, String> {
        let claimed = self.share.claim(size);
        let Headroom { budget, most } = self.share.headroom();
        let why = match claimed {
            Claimed::Granted => return Ok(true),
            Claimed::Waits if !is_late => return Ok(false),
            Claimed::Waits => "read caches have not become smaller in time".to_owned(),
            Claimed::Refused => format!("another boost was faster, and {most} are left"),
        };
        self.share.rents(self.rented);
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
        if self.waiting.is_none() && self.claiming.is_none() && self.rented != size {
            self.share.rents(size);
            self.rented = size;
        }
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
