//! From the creation of a caching volume to its adoption, and its recovery after a crash.

use surgetank_cache::format::Geometry;
use surgetank_cache::{Attach, Epoch};
use surgetank_device::Volume;
use surgetank_device::discovery::is_same;
use surgetank_model::Bytes;
use surgetank_policy::Refusal;
use surgetank_provider::{CreateVolume, Provider, Tags, VolumeDescription, VolumeId, VolumeState, tag};

use super::{DONE, DisksBefore, Lifecycle, Progress, TAG_TOKEN, Tools, gone, journal_refusal, random_name, refusal};
use crate::clock::unix_ms;
use crate::crash::crash_point;
use crate::journal::{Rental, Stage};
use crate::opening::{self, Fresh, Opened, Place};
use crate::planted::{Bug, planted};
use crate::shard::Command;

impl Lifecycle {
    pub(super) fn create(&mut self, size: Bytes) -> Result<Progress, Refusal> {
        if self.rental().is_none() {
            let rental = Rental {
                token: random_name(),
                volume_type: self.tools.caching.volume_type.clone(),
                size,
                started_unix_ms: unix_ms(),
                stage: Stage::Creating,
                volume: None,
                epoch: None,
                disposable: true,
            };
            if planted(Bug::IntentNotPersisted) {
                self.journal.remember(|state| state.rental = Some(rental));
            } else {
                self.journal.update(|state| state.rental = Some(rental)).map_err(journal_refusal)?;
            }
            self.let_go = None;
            self.publish();
        }
        let Some(id) = self.volume() else { return self.call_create(size) };
        match self.describe(&id)? {
            Some(description) if description.state == VolumeState::Creating => Ok(Progress::Wait),
            Some(_) => self.note(|rental| rental.stage = Stage::Created).map(|()| DONE),
            None => Err(Refusal::Transient("the volume vanished while it was created".to_owned())),
        }
    }

    fn call_create(&mut self, size: Bytes) -> Result<Progress, Refusal> {
        let Some(rental) = self.rental() else { return Ok(Progress::Wait) };
        let tags = Tags::from([
            (tag::OWNER.to_owned(), self.tools.owner_id.clone()),
            (tag::DEVICE.to_owned(), self.tools.device.clone()),
            (TAG_TOKEN.to_owned(), rental.token.clone()),
        ]);
        let (token, volume_type) = (rental.token.clone(), rental.volume_type.clone());
        crash_point("create", "before");
        let (description, _) =
            self.tools.provider.create(&CreateVolume { token, volume_type, size, tags }).map_err(refusal)?;
        crash_point("create", "after");
        self.note(|rental| rental.volume = Some(description.id))?;
        crash_point("created", "after");
        Ok(Progress::Wait)
    }

    pub(super) fn attach(&mut self) -> Result<Progress, Refusal> {
        let (description, size) = match self.bring_in(Stage::Attaching)? {
            Some(found) => found,
            None => return Ok(Progress::Wait),
        };
        if self.opened.is_none() {
            // Once it has an epoch it was blank, and we may have begun to format it.
            let formatted = self.rental().is_some_and(|rental| rental.epoch.is_some());
            let opened = if formatted { self.open(&description, size)? } else { self.open_fresh(&description, size)? };
            match opened {
                Some(opened) => self.opened = Some(opened),
                None => return Ok(Progress::Wait),
            }
        }
        self.note(|rental| rental.stage = Stage::Attached)?;
        Ok(DONE)
    }

    /// Attaches the volume and waits until it is there; `intent` is what the journal says meanwhile.
    pub(super) fn bring_in(&mut self, intent: Stage) -> Result<Option<(VolumeDescription, Bytes)>, Refusal> {
        let vanished = || Refusal::Transient("the caching volume vanished".to_owned());
        let id = self.volume().ok_or_else(vanished)?;
        if self.stage() != Some(intent) {
            self.note(|rental| rental.stage = intent)?;
        }
        let description = self.describe(&id)?.ok_or_else(vanished)?;
        match description.state {
            VolumeState::Attached => {
                // A rental that was put together from the owner record knows no size.
                let rented = self.rental().map(|rental| rental.size).filter(|size| *size != Bytes::ZERO);
                let size = rented.unwrap_or(description.size);
                Ok(Some((description, size)))
            }
            VolumeState::Available => {
                self.remember_disks(&id);
                crash_point("attach", "before");
                self.tools.provider.attach(&id).map_err(refusal)?;
                crash_point("attach", "after");
                self.hurry();
                Ok(None)
            }
            VolumeState::Creating | VolumeState::Attaching | VolumeState::Detaching => Ok(None),
            VolumeState::Deleting => Err(vanished()),
        }
    }

    /// Before a volume is attached for the first time: which disks are not it.
    fn remember_disks(&mut self, id: &VolumeId) {
        if self.disks_before.as_ref().is_none_or(|before| before.volume != *id) {
            // A machine that does not tell of its disks finds none by its serial either.
            let serials = self.tools.disks.serials().unwrap_or_default();
            self.disks_before = Some(DisksBefore { volume: id.clone(), serials });
        }
    }

    /// Opens the attached volume. `None`: its disk has not appeared yet.
    fn open(&mut self, description: &VolumeDescription, size: Bytes) -> Result<Option<Opened>, Refusal> {
        let place = self.place(description)?;
        let decorator = self.tools.decorator.as_ref();
        let opened = opening::caching(&place, size, &self.tools.disks, decorator).map_err(Refusal::Transient)?;
        self.missing_disk = opened.is_none().then(|| description.id.clone());
        Ok(opened.map(|opened| self.throttled(opened)))
    }

    /// Opens a volume that was just rented: a disk that was not here before, with nothing on it.
    fn open_fresh(&mut self, description: &VolumeDescription, size: Bytes) -> Result<Option<Opened>, Refusal> {
        let place = self.place(description)?;
        let VolumeId(id) = &description.id;
        if let (Place::Disk { serial }, Some(before)) = (&place, &self.disks_before)
            && before.volume == description.id
            && before.serials.iter().any(|there| is_same(there, serial))
        {
            return Err(Refusal::Permanent(format!(
                "the provider says that the volume {id} is the disk {serial:?}, which was in this machine before it was \
                 attached: nothing was written to it; let the service say the serial of the disk that it plugs in"
            )));
        }
        let Tools { disks, decorator, clock, .. } = &self.tools;
        let fresh = opening::caching_fresh(&place, size, disks, decorator.as_ref(), *clock);
        let fresh = fresh.map_err(Refusal::Transient)?;
        self.missing_disk = fresh.is_none().then(|| description.id.clone());
        match fresh {
            None => Ok(None),
            Some(Fresh::Blank(opened)) => Ok(Some(self.throttled(opened))),
            Some(Fresh::Used) => Err(Refusal::Permanent(format!(
                "the volume {id} was just rented and is not blank, so it may be somebody's: nothing was written to it; see \
                 whose it is, and let the service rent out volumes that read as zeroes"
            ))),
        }
    }

    /// Where an attached volume is.
    fn place(&self, description: &VolumeDescription) -> Result<Place, Refusal> {
        Place::of(description, self.files().as_deref()).map_err(Refusal::Permanent)
    }

    pub(super) fn throttled(&self, opened: Opened) -> Opened {
        let Tools { caching, clock, .. } = &self.tools;
        if !caching.throttle {
            return opened;
        }
        Opened { volume: opening::throttled(opened.volume, caching.limits, *clock), ..opened }
    }

    pub(super) fn adopt(&mut self) -> Result<Progress, Refusal> {
        if self.running.as_ref().is_some_and(|running| running.asked) {
            return Ok(Progress::Wait);
        }
        let lost = || Refusal::Transient("the caching volume was closed meanwhile".to_owned());
        let Opened { volume, place, identity } = self.opened.take().ok_or_else(lost)?;
        let epoch = Epoch(rand::random());
        self.note(|rental| {
            rental.stage = Stage::Adopting;
            rental.epoch = Some(epoch.to_string());
            rental.disposable = false;
        })?;
        self.tools.keeper.set_volume(self.volume());
        self.let_go = None;
        let attach = self.engine_attach(epoch, &*volume);
        crash_point("adopt", "before");
        self.asked(true);
        match self.tools.shard.ask(|answer| Command::Adopt { volume, attach, answer }).map_err(gone)? {
            Ok(()) => {
                self.used(place, identity);
                Ok(Progress::Wait)
            }
            Err(rejected) => {
                self.unused()?;
                Err(Refusal::Permanent(rejected.to_string()))
            }
        }
    }

    pub(super) fn engine_attach(&self, epoch: Epoch, volume: &dyn Volume) -> Attach {
        Attach {
            epoch,
            cache_size: volume.size(),
            cache_limits: self.tools.caching.limits,
            split: self.tools.split,
            read_fill: self.tools.read_fill,
            indexes: Geometry::wants_indexes(volume.size()),
        }
    }

    pub(super) fn adopted(&mut self) -> Result<Progress, Refusal> {
        crash_point("adopt", "after");
        // The engine uses it whatever the journal says; the owner record is what counts after a crash.
        if let Err(refusal) = self.note(|rental| rental.stage = Stage::Adopted) {
            tracing::warn!(device = self.tools.device, ?refusal, "the journal cannot be written");
        }
        crash_point("adopted", "after");
        Ok(DONE)
    }

    pub(super) fn adopt_failed(&mut self) -> Result<Progress, Refusal> {
        self.close_cache()?;
        self.unused()?;
        Err(Refusal::Transient("the caching volume could not be formatted".to_owned()))
    }

    /// The engine does not use the volume after all.
    fn unused(&mut self) -> Result<(), Refusal> {
        self.owner_is_backing()?;
        self.note(|rental| {
            rental.stage = Stage::Attached;
            rental.disposable = true;
        })
    }

    pub(super) fn recover(&mut self, epoch: Epoch) -> Result<Progress, Refusal> {
        if self.running.as_ref().is_some_and(|running| running.asked) {
            return Ok(Progress::Wait);
        }
        let Some((description, size)) = self.bring_in(Stage::Adopted)? else { return Ok(Progress::Wait) };
        let Some(opened) = self.open(&description, size)? else { return Ok(Progress::Wait) };
        let Opened { volume, place, identity } = opened;
        let attach = self.engine_attach(epoch, &*volume);
        self.tools.keeper.set_volume(Some(description.id));
        self.asked(true);
        crash_point("recover", "before");
        match self.tools.shard.ask(|answer| Command::Recover { volume, attach, answer }).map_err(gone)? {
            Ok(()) => {
                self.used(place, identity);
                Ok(Progress::Wait)
            }
            Err(rejected) => Err(Refusal::Transient(rejected.to_string())),
        }
    }

    pub(super) fn recovered(&mut self) -> Result<Progress, Refusal> {
        crash_point("recover", "after");
        Ok(DONE)
    }
}
