//! What people ask of a device: what changes nothing says so, and what would.

use surgetank_model::Instant;
use surgetank_policy::Controller;
use surgetank_provider::VolumeId;
use surgetank_rental::Rental;

use super::{Answer, Ask, Reconciler, Recovery};
use crate::crash::crash_point;
use crate::shard::Command;

/// Why a boost ends that a user ends.
const ON_REQUEST: &str = "somebody asked for that";

impl Reconciler {
    pub(super) fn ask(&mut self, now: Instant, ask: Ask) -> Result<Answer, String> {
        match ask {
            Ask::Status => Ok(Answer::Status(Box::new(self.status(now)))),
            Ask::Report => Ok(Answer::Report(Box::new(self.report(now)))),
            Ask::Resize => {
                let answered = self.parts.shard.ask(|answer| Command::Grow { answer });
                let size = answered.map_err(|gone| gone.to_string())??;
                self.note_size(size);
                Ok(Answer::Size(size))
            }
            Ask::Boost(_) if self.ending => Err(format!("the device {} is being stopped", self.parts.name)),
            Ask::Boost(hint) => {
                self.boostable()?.hint_burst(now, hint).map_err(|refused| refused.to_string())?;
                Ok(Answer::Done)
            }
            Ask::Drain => self.drain(now),
            Ask::Detach { accept_loss: true } => self.accept_loss(now),
            Ask::Detach { accept_loss: false } => self.detach(now),
            Ask::Stop { .. } => Ok(Answer::Done),
        }
    }

    fn drain(&mut self, now: Instant) -> Result<Answer, String> {
        // What was written just now belongs to the burst that ends, not to a new one.
        self.sample();
        self.boostable()?.hint_drain(now);
        self.log.ends_because(ON_REQUEST);
        // One that is in trouble is tried now.
        let tried = self.lifecycle().is_some_and(|lifecycle| lifecycle.try_now(now));
        if !tried && self.lost_bytes() > 0 {
            return Err(format!(
                "{0} bytes of {1} are lost, and no volume is known that they could be read back from: overwrite them, or \
                 discard them with `surgetank detach {1} --accept-loss`",
                self.lost_bytes(),
                self.parts.name
            ));
        }
        self.unless_kept()
    }

    fn detach(&mut self, now: Instant) -> Result<Answer, String> {
        let status = self.status(now);
        if status.lost_bytes > 0 {
            let (name, lost) = (&self.parts.name, status.lost_bytes);
            return Err(format!(
                "{lost} bytes of {name} are on its caching volume alone, which cannot be read: have them tried again with \
                 `surgetank drain {name}`, overwrite them, or discard them with `surgetank detach {name} --accept-loss`"
            ));
        }
        self.sample();
        self.boostable()?.hint_detach(now);
        self.log.ends_because(ON_REQUEST);
        if let Some(lifecycle) = self.lifecycle().filter(|lifecycle| lifecycle.rental().is_gone()) {
            lifecycle.try_now(now);
            let name = &self.parts.name;
            return Err(format!(
                "the caching volume of {name} has gone with data that are on it alone, and is deleted when it has been \
                 drained: it is looked for again now; `surgetank status` says how long it is waited for"
            ));
        }
        self.unless_kept()
    }

    /// An error if the volume is kept because nobody can tell whether it is needed: it was tried again, no more.
    fn unless_kept(&mut self) -> Result<Answer, String> {
        match self.kept() {
            Some(kept) => Err(kept),
            None => Ok(Answer::Done),
        }
    }

    /// Why the caching volume is not deleted, and what would help.
    pub(super) fn kept(&self) -> Option<String> {
        let rental = self.parts.boosting.as_ref()?.1.rental();
        let (VolumeId(volume), why) = rental.kept()?;
        let tried = format!(
            "the caching volume {volume} is not deleted: {why}; it is tried again by itself once it can be read"
        );
        Some(match rental.held() {
            Some(_) => tried,
            None => format!(
                "{tried}, and `surgetank detach {} --accept-loss` deletes it with whatever is on it",
                self.parts.name
            ),
        })
    }

    /// What another program has open is neither lost nor discarded.
    fn refuse_held(&self) -> Result<(), String> {
        let rental = self.parts.boosting.as_ref().map(|(_, lifecycle)| lifecycle.rental());
        let Some((VolumeId(volume), who)) = rental.and_then(Rental::held) else { return Ok(()) };
        Err(format!(
            "the data on the caching volume {volume} of {} can be read as soon as nobody else has the volume open, so it is not \
             discarded: {who}; the daemon tries it again by itself",
            self.parts.name
        ))
    }

    fn accept_loss(&mut self, now: Instant) -> Result<Answer, String> {
        self.refuse_held()?;
        let lost = self.status(now).lost_bytes > 0;
        if self.kept().is_some() {
            if let Some(lifecycle) = self.lifecycle() {
                lifecycle.discard_proof()?;
            }
            self.boostable()?.hint_detach(now);
            return Ok(Answer::Done);
        }
        if !lost && self.lifecycle().is_some_and(|lifecycle| lifecycle.rental().waits_for_volume()) {
            return Err(format!(
                "nothing of {} is lost: its caching volume fails, and what cannot be read in time counts as lost then and \
                 can be discarded; `surgetank status` says how long that is",
                self.parts.name
            ));
        }
        if !lost && self.recovery == Recovery::None {
            // Nothing to accept: an ordinary detach.
            return self.ask(now, Ask::Detach { accept_loss: false });
        }
        if !lost && self.reason.is_none() {
            return Err(format!(
                "the newest data of {} is on its caching volume, which is being read back: wait until that is done, then \
                 drain the device",
                self.parts.name
            ));
        }
        crash_point("accept-loss", "before");
        let answered = self.parts.shard.ask(|answer| Command::AcceptLoss { answer });
        crash_point("accept-loss", "after");
        let rejected = match answered.map_err(|gone| gone.to_string())? {
            Ok(()) => return Ok(Answer::Done),
            Err(rejected) => rejected.to_string(),
        };
        if self.lifecycle().is_some_and(|lifecycle| lifecycle.rental().is_restoring()) {
            return Err(format!(
                "what {} has lost is being read back at this moment: wait until that has ended, then ask again",
                self.parts.name
            ));
        }
        Err(rejected)
    }

    /// The controller, if there is one and it may act.
    pub(super) fn boostable(&mut self) -> Result<&mut Controller, String> {
        if self.recovery != Recovery::None {
            return Err(self
                .reason
                .clone()
                .unwrap_or_else(|| "the caching volume is being read back: try again when that is done".to_owned()));
        }
        let name = &self.parts.name;
        let missing = || format!("the device {name} has no caching section: add [device.{name}.caching] to boost it");
        self.parts.boosting.as_mut().map(|(controller, _)| controller).ok_or_else(missing)
    }

    /// A device of this size must not be served from a smaller volume while data is dirty.
    fn note_size(&mut self, size: u64) {
        let Some((_, lifecycle)) = &mut self.parts.boosting else { return };
        let written = lifecycle.journal().update(|state| {
            if let Some(backing) = &mut state.backing {
                backing.size_bytes = size;
            }
        });
        if let Err(error) = written {
            tracing::warn!(device = self.parts.name, %error, "the journal cannot be written");
        }
    }
}
