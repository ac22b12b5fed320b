//! What members have of their burst credits, over restarts: see [`crate::credits`].

use std::time::Duration;

use surgetank_device::volume::throttle::CreditMeter;
use surgetank_provider::VolumeId;
use surgetank_rental::Slot;

use super::manager::Manager;
use crate::clock::unix_ms;
use crate::opening::{self, Opened};

/// How often balances are written down while members are held to credits.
const EVERY: Duration = Duration::from_secs(10);

/// A volume that this daemon holds to its credits.
#[derive(Debug)]
pub(super) struct Metered {
    /// Which: another one may be in its place by now.
    pub volume: VolumeId,
    pub meter: CreditMeter,
}

impl Manager {
    /// Holds a volume to what its type has. It begins with what is on record of it, and with full credits if nothing is.
    pub(super) fn throttled(&mut self, place: Slot, opened: Opened) -> Opened {
        if !self.config.throttle {
            return opened;
        }
        let (limits, clock) = (self.config.limits, self.context.clock);
        let id = self.life.volume(place).unwrap_or_else(|| VolumeId(String::new()));
        if self.meters.get(&place).is_some_and(|known| known.volume == id) {
            // Opened before in this run: the record is older than its meter.
            self.write_credits();
        }
        let credits = self.credits.of(&id, &self.config.credits, unix_ms());
        let (volume, meter) = opening::on_credits(opened.volume, limits, &credits, clock);
        self.meters.insert(place, Metered { volume: id, meter });
        Opened { volume, ..opened }
    }

    /// Writes the balances down if it is time to.
    pub(super) fn write_credits_if_due(&mut self) {
        if self.handle.is_some() && self.now() >= self.credits_due {
            self.credits_due = self.now() + EVERY;
            self.write_credits();
            self.write_learned();
        }
    }

    /// Writes the balances down, if any member has some.
    pub(super) fn write_credits(&mut self) {
        let now = self.now();
        let is_of_array = |place: &Slot, metered: &Metered| self.life.volume(*place).as_ref() == Some(&metered.volume);
        let meters: Vec<(&VolumeId, &CreditMeter)> = self
            .meters
            .iter()
            .filter(|(place, metered)| is_of_array(place, metered))
            .map(|(_, metered)| (&metered.volume, &metered.meter))
            .collect();
        if self.config.credits.is_empty() || meters.is_empty() || self.life.record().is_none() {
            return;
        }
        if let Err(error) = self.credits.write(meters, now, unix_ms()) {
            tracing::warn!(array = self.name, %error, "what members have of their burst credits cannot be written down");
        }
    }
}
