//! What is lost with a failed cache, is told, heals, comes back, or is accepted.

use super::{Moment, NEVER, Op, Oracle, Version, Wrong};
use crate::content::Found;

/// What happens to a sector that is lost with a failed cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    No,
    /// Answers EIO until overwritten.
    Lost,
    /// The user accepted the loss: any older version may be there.
    Accepted,
    /// Overwritten since.
    Healed {
        /// Whether the loss had been accepted.
        accepted: bool,
        /// Since when.
        at: Moment,
    },
}

impl Loss {
    pub(super) fn is_open(self) -> bool {
        matches!(self, Self::Lost | Self::Accepted)
    }
}

impl Oracle {
    pub(super) fn check_lost(&self, loss: Loss, sector: u32, found: Found) -> Result<(), Wrong> {
        let own = match found {
            Found::Zero => true,
            Found::Written { sector: of, .. } => of == u64::from(sector),
            Found::Foreign => false,
        };
        let healing = match self.open[sector as usize] {
            0 => {
                let version = self.settled[sector as usize];
                self.ops[version as usize].completed > self.lost_at && self.matches(version, sector, found)
            }
            slot => self.lists[slot as usize - 1].iter().any(|entry| {
                let since = self.ops[entry.version as usize].completed > self.lost_at;
                since && self.matches(entry.version, sector, found)
            }),
        };
        match (loss, own) {
            (Loss::Lost, true) if healing => Ok(()),
            (Loss::Accepted, true) => Ok(()),
            (Loss::Accepted, false) => Err(Wrong(format!("sector {sector}: after a loss it holds {found:?}"))),
            (_, _) => Err(Wrong(format!("sector {sector}: it is lost and was not overwritten, but read as {found:?}"))),
        }
    }

    /// A sector that is lost or about to be, and of which this version is the newest.
    pub(super) fn lost_sector(&self, version: Version) -> Option<u32> {
        let op = &self.ops[version as usize];
        (op.first..op.first + op.count).find(|&sector| {
            let newest = match self.open[sector as usize] {
                0 => self.settled[sector as usize] == version,
                slot => {
                    let list = &self.lists[slot as usize - 1];
                    list.iter().any(|entry| entry.version == version && entry.superseded_at == 0)
                }
            };
            newest && (self.loss[sector as usize] == Loss::Lost || self.condemned[sector as usize])
        })
    }

    /// These sectors are being discarded: the record that says so is on its way.
    pub fn condemn(&mut self, first: u32, count: u32) {
        self.any_loss = true;
        self.loss.resize(self.settled.len(), Loss::No);
        self.condemned.resize(self.settled.len(), false);
        self.condemned[first as usize..(first + count) as usize].fill(true);
    }

    /// The record that was on its way has arrived, or never will.
    pub fn absolve(&mut self) {
        self.condemned.fill(false);
    }

    /// A flush that was submitted then has failed: the application knows what is lost of what it wrote before.
    pub fn tell_loss(&mut self, flush: Moment) {
        self.step();
        if self.any_loss {
            let unflushed = std::mem::take(&mut self.unflushed);
            // Also of what had been overwritten: the log that is lost had both.
            let told = |version: &Version| {
                let op = &self.ops[*version as usize];
                op.completed < flush && self.is_lost(op.first, op.count)
            };
            self.unflushed = unflushed.iter().copied().filter(|version| !told(version)).collect();
        }
    }

    /// The process that could tell of losses is gone.
    pub fn forget_loss(&mut self) {
        self.tell_loss(NEVER);
        self.absolve();
    }

    /// These sectors were lost and have come back.
    pub fn restore(&mut self, first: u32, count: u32) {
        for loss in &mut self.loss[first as usize..(first + count) as usize] {
            if *loss == Loss::Lost {
                *loss = Loss::No;
            }
        }
    }

    /// The sectors that are lost.
    pub fn lost(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.loss.len() as u32).filter(|&sector| self.loss[sector as usize] == Loss::Lost)
    }

    /// A failed cache was released; `lose` says what went with it.
    pub fn begin_loss(&mut self) {
        self.any_loss = true;
        self.lost_at = self.step();
        self.loss.resize(self.settled.len(), Loss::No);
        self.condemned.resize(self.settled.len(), false);
        for loss in &mut self.loss {
            // What healed after an earlier loss is recorded as such.
            if matches!(loss, Loss::Healed { accepted: false, .. }) {
                *loss = Loss::No;
            }
        }
    }

    /// These sectors are lost with a failed cache: they answer EIO until they are overwritten.
    pub fn lose(&mut self, first: u32, count: u32) {
        self.loss[first as usize..(first + count) as usize].fill(Loss::Lost);
    }

    /// The user accepted the loss.
    pub fn accept_loss(&mut self) {
        for loss in &mut self.loss {
            *loss = match *loss {
                Loss::No => Loss::No,
                Loss::Lost | Loss::Accepted => Loss::Accepted,
                Loss::Healed { at, .. } => Loss::Healed { accepted: true, at },
            };
        }
    }

    /// Whether a sector of this range is lost or about to be.
    #[must_use]
    pub fn is_lost(&self, first: u32, count: u32) -> bool {
        let end = (first + count).min(self.loss.len() as u32);
        self.any_loss
            && (first as usize..end as usize).any(|sector| self.loss[sector] == Loss::Lost || self.condemned[sector])
    }

    /// The same of any sector.
    #[must_use]
    pub fn is_any_lost(&self) -> bool {
        self.is_lost(0, self.loss.len() as u32)
    }

    /// Whether this sector is lost.
    #[must_use]
    pub fn is_discarded(&self, sector: u32) -> bool {
        self.any_loss && self.loss[sector as usize] == Loss::Lost
    }

    /// Whether this sector was lost and has been overwritten.
    #[must_use]
    pub fn is_healed(&self, sector: u32) -> bool {
        self.any_loss && matches!(self.loss[sector as usize], Loss::Healed { .. })
    }

    /// Nobody can tell whether the newest version of these sectors was ever stored whole: older ones may be there.
    pub fn doubt(&mut self, first: u32, count: u32) {
        self.any_loss = true;
        self.loss.resize(self.settled.len(), Loss::No);
        self.condemned.resize(self.settled.len(), false);
        self.lost_at = self.step();
        for loss in &mut self.loss[first as usize..(first + count) as usize] {
            *loss = Loss::Accepted;
        }
    }

    pub(super) fn heal(&mut self, sector: u32) {
        let at = self.now;
        let loss = &mut self.loss[sector as usize];
        if loss.is_open() {
            *loss = Loss::Healed { accepted: *loss == Loss::Accepted, at };
        }
    }

    /// Whether a sector has been overwritten since the loss by a write that `counts`.
    pub(super) fn healed_by(&self, sector: u32, counts: impl Fn(&Op) -> bool) -> bool {
        let healed = |version: Version| {
            let op = &self.ops[version as usize];
            counts(op) && op.completed > self.lost_at
        };
        match self.open[sector as usize] {
            0 => healed(self.settled[sector as usize]),
            slot => self.lists[slot as usize - 1].iter().any(|entry| healed(entry.version)),
        }
    }

    /// Whether a version from before the loss may still be on the media in the place of what was written since.
    pub(super) fn may_be_older(&self, sector: u32) -> bool {
        let older = |version: Version| self.ops[version as usize].completed <= self.lost_at;
        match self.open[sector as usize] {
            0 => older(self.settled[sector as usize]),
            slot => self.lists[slot as usize - 1].iter().any(|entry| older(entry.version)),
        }
    }

    /// After a restart the owner record still discards these sectors.
    ///
    /// # Errors
    /// If one of them was overwritten.
    pub fn lose_again(&mut self, first: u32, count: u32) -> Result<(), Wrong> {
        for sector in first..first + count {
            match self.loss[sector as usize] {
                Loss::Lost => {}
                Loss::No => {
                    return Err(Wrong(format!("sector {sector} is discarded again after a restart")));
                }
                Loss::Healed { .. } if self.healed_by(sector, |op| op.acknowledged) => {
                    return Err(Wrong(format!("sector {sector} was overwritten, but is discarded after a restart")));
                }
                Loss::Healed { .. } | Loss::Accepted => self.loss[sector as usize] = Loss::Lost,
            }
        }
        Ok(())
    }
}
