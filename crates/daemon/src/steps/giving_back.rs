//! From the release of a caching volume to its deletion, with the proof that nothing on it counts.

use surgetank_cache::Stage as EngineStage;
use surgetank_cache::format::{LogState, Superblock};
use surgetank_model::Bytes;
use surgetank_policy::Refusal;
use surgetank_provider::{Provider, VolumeDescription, VolumeState, tag};

use super::{DONE, LetGo, Lifecycle, Progress, TAG_TOKEN, Tools, gone, journal_refusal, refusal};
use crate::clock::unix_ms;
use crate::crash::crash_point;
use crate::journal::Stage;
use crate::opening;
use crate::planted::{Bug, planted};
use crate::shard::Command;

impl Lifecycle {
    pub(super) fn release(&mut self) -> Result<Progress, Refusal> {
        if self.lost_bytes.is_some() {
            // Nothing is detached before the user accepts the loss, or overwrites what was lost.
            return Ok(Progress::Wait);
        }
        if self.let_go.is_some() {
            return self.released();
        }
        if self.running.as_ref().is_some_and(|running| running.asked) {
            return Ok(Progress::Wait);
        }
        crash_point("release", "before");
        self.asked(true);
        match self.tools.shard.ask(|answer| Command::Release { answer }).map_err(gone)? {
            Ok(()) => Ok(Progress::Wait),
            Err(rejected) => {
                self.asked(false);
                let stage = self.sample()?.status.stage;
                if stage != EngineStage::PassThrough {
                    return Err(Refusal::Transient(rejected.to_string()));
                }
                // It let go by itself, and the event came before this step or before a restart.
                self.let_go = Some(LetGo::Dropped);
                self.released()
            }
        }
    }

    /// The engine has let go: close the volume, prove that nothing on it counts, and write that down.
    fn released(&mut self) -> Result<Progress, Refusal> {
        crash_point("release", "after");
        self.close_cache()?;
        self.owner_is_backing()?;
        if self.let_go == Some(LetGo::Released) {
            self.look_for_clean()?;
        }
        crash_point("clean", "before");
        self.note(|rental| {
            rental.stage = Stage::Released;
            rental.disposable = true;
        })?;
        crash_point("clean", "after");
        Ok(DONE)
    }

    /// Reads CLEAN from the medium. A volume that has failed meanwhile need not be read: the owner record decides.
    fn look_for_clean(&mut self) -> Result<(), Refusal> {
        let Some(id) = self.volume() else { return Ok(()) };
        let Some(description) = self.describe(&id)? else { return Ok(()) };
        let why = match self.superblock(&description) {
            Ok(Some(Superblock { state: LogState::Clean, epoch, .. })) if Some(epoch) == self.epoch() => return Ok(()),
            Ok(_) => format!("the caching volume {} does not read as clean after its release", id.0),
            Err(why) => why,
        };
        if !self.record_names_its_end()? {
            return Err(Refusal::Transient(why));
        }
        tracing::warn!(
            device = self.tools.device,
            why,
            "given back all the same: the owner record says that it may be"
        );
        Ok(())
    }

    fn superblock(&self, description: &VolumeDescription) -> Result<Option<Superblock>, String> {
        let Tools { disks, clock, decorator, .. } = &self.tools;
        opening::superblock(description, self.files().as_deref(), disks, *clock, decorator.as_ref())
    }

    /// Whether the owner record says that this very attachment has ended. It says so only after everything on the volume
    /// was durable on the backing volume, or was given up.
    fn record_names_its_end(&self) -> Result<bool, Refusal> {
        let (Some(volume), Some(epoch)) = (self.volume(), self.epoch()) else { return Ok(false) };
        Ok(self.owner_record()?.has_ended(&volume, epoch))
    }

    /// After a restart: proves that nothing on the volume counts, before it is let go. `false`: look again later.
    fn prove_disposable(&mut self) -> Result<bool, Refusal> {
        let Some(rental) = self.rental() else { return Ok(true) };
        if rental.disposable {
            return Ok(true);
        }
        // The owner record is durable before anything is acknowledged from a cache, and cleared after CLEAN is durable.
        self.owner_is_backing()?;
        let formatting = rental.stage == Stage::Adopting;
        let Some(id) = self.volume() else { return Ok(true) };
        if !formatting && !self.record_names_its_end()? && self.describe(&id)?.is_some() {
            let Some((description, _)) = self.bring_in_for_proof()? else { return Ok(false) };
            self.kept = self.unproved(&description).err();
            if let Some(why) = &self.kept {
                return Err(Refusal::Permanent(why.clone()));
            }
        }
        self.kept = None;
        self.note(|rental| rental.disposable = true)?;
        Ok(true)
    }

    /// Looks at a volume of which the owner record does not speak: it is from before a build that writes that down, or
    /// was restored. The error says why the volume may be needed.
    fn unproved(&self, description: &VolumeDescription) -> Result<(), String> {
        let tagged = description.tags.contains_key(tag::DIRTY_EPOCH);
        let superblock = self
            .superblock(description)
            .map_err(|why| format!("whether it holds data that is needed cannot be told ({why})"))?;
        if tagged && superblock.is_some_and(|superblock| superblock.state == LogState::Active) {
            return Err("it reads as in use, although the owner record says that nothing is on it".to_owned());
        }
        Ok(())
    }

    /// Attaches without forgetting how far the rental is.
    fn bring_in_for_proof(&mut self) -> Result<Option<(VolumeDescription, Bytes)>, Refusal> {
        let stage = self.stage().unwrap_or(Stage::Adopted);
        self.bring_in(stage)
    }

    pub(super) fn detach(&mut self) -> Result<Progress, Refusal> {
        if self.opened.is_some() {
            self.close_cache()?;
        }
        if !self.prove_disposable()? {
            return Ok(Progress::Wait);
        }
        let Some(id) = self.volume() else { return Ok(DONE) };
        if self.stage() != Some(Stage::Detaching) {
            self.note(|rental| rental.stage = Stage::Detaching)?;
        }
        let Some(description) = self.describe(&id)? else { return Ok(DONE) };
        match description.state {
            VolumeState::Attached | VolumeState::Attaching => {
                crash_point("detach", "before");
                self.tools.provider.detach(&id).map_err(refusal)?;
                crash_point("detach", "after");
                self.hurry();
                Ok(Progress::Wait)
            }
            VolumeState::Detaching => Ok(Progress::Wait),
            VolumeState::Creating | VolumeState::Available | VolumeState::Deleting => Ok(DONE),
        }
    }

    pub(super) fn delete(&mut self) -> Result<Progress, Refusal> {
        if self.rental().is_none() {
            return Ok(DONE);
        }
        if self.volume().is_none() && !self.find_by_token()? {
            return self.forget();
        }
        if !self.prove_disposable()? {
            return Ok(Progress::Wait);
        }
        self.owner_is_backing()?;
        let Some(id) = self.volume() else { return self.forget() };
        let Some(description) = self.describe(&id)? else { return self.gone_or_twin() };
        match description.state {
            VolumeState::Attached | VolumeState::Attaching => self.detach().map(|_| Progress::Wait),
            VolumeState::Detaching => Ok(Progress::Wait),
            VolumeState::Deleting => self.gone_or_twin(),
            VolumeState::Creating | VolumeState::Available => {
                self.note(|rental| rental.stage = Stage::Deleting)?;
                crash_point("delete", "before");
                let deleted = self.tools.provider.delete(&id);
                if planted(Bug::AskedIsDeleted) || (deleted.is_err() && planted(Bug::FailedDeleteIsDone)) {
                    return self.forget();
                }
                deleted.map_err(refusal)?;
                crash_point("delete", "after");
                self.hurry();
                Ok(Progress::Wait)
            }
        }
    }

    /// Learns the name of a volume that was created while nobody was there to be told. `false`: there is none.
    fn find_by_token(&mut self) -> Result<bool, Refusal> {
        let Some(token) = self.rental().map(|rental| rental.token.clone()).filter(|token| !token.is_empty()) else {
            return Ok(false);
        };
        let listed = self.tools.provider.list(TAG_TOKEN, &token).map_err(refusal)?;
        // What is found here is going to be deleted: that it bears the token is not left to the provider's filter.
        let is_ours = |volume: &VolumeDescription| volume.tags.get(TAG_TOKEN) == Some(&token);
        let Some(found) = listed.into_iter().find(|volume| is_ours(volume) && volume.state != VolumeState::Deleting)
        else {
            return Ok(false);
        };
        self.note(|rental| rental.volume = Some(found.id))?;
        Ok(true)
    }

    /// The volume is gone. A create that was repeated on the way may have left another of the same token.
    fn gone_or_twin(&mut self) -> Result<Progress, Refusal> {
        if self.find_by_token()? { Ok(Progress::Wait) } else { self.forget() }
    }

    fn forget(&mut self) -> Result<Progress, Refusal> {
        self.tools.keeper.set_volume(None);
        crash_point("forget", "before");
        self.journal.update(|state| state.forget_rental(unix_ms())).map_err(journal_refusal)?;
        crash_point("forget", "after");
        Ok(DONE)
    }
}
