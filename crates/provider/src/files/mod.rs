//! Volumes that are files of this machine, with a record each: what the providers `local` and `qemu` share. They differ
//! in how a volume gets into the machine that uses it, which is a [`Machine`].
//!
//! Several providers, in one process or many, may use one directory at once.

pub mod catalog;
pub mod record;
pub mod store;

use std::path::PathBuf;
use std::sync::Arc;

use rustix::rand::GetRandomFlags;
use surgetank_model::{Bytes, Lag};

use crate::clock::Clock;
use crate::{
    Change, CreateVolume, DiskIdentity, Home, Provider, ProviderError, Tags, Transition, VolumeDescription, VolumeId,
    VolumeState, decide_growth,
};

use catalog::Catalog;
use record::{FORMAT, Growth, Record, is_ours};
use store::{Locked, Store, Unreadable};

/// The longest client token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 128;
/// The longest tag key, in bytes.
pub const TAG_KEY_BYTES_MAX: usize = 128;
/// The longest tag value, in bytes.
pub const TAG_VALUE_BYTES_MAX: usize = 256;
/// The most tags of a volume.
pub const TAGS_MAX: usize = 50;

/// What volumes are attached to.
pub trait Machine: Send + Sync {
    /// Whether an attached volume is its image, as a file of this machine.
    const ATTACHES_FILES: bool;
    /// Whether volumes can grow: how long that takes, in milliseconds.
    fn grow_latency_ms(&self) -> Option<u64>;

    /// Brings the records that take a slot ([`Record::takes_a_slot`]) to the present; the others are none of its
    /// business. Adds those that changed and must be written to `changed`.
    ///
    /// # Errors
    /// If the machine cannot be asked: the other records are as they were.
    fn settle(&self, now_ms: u64, records: &mut [Record], changed: &mut Vec<VolumeId>) -> Result<(), ProviderError>;

    /// Begins to attach an available volume, and writes its record down. On an error it is available again, or its
    /// record says what is left to settle.
    ///
    /// # Errors
    /// See [`ProviderError`].
    fn attach(&self, now_ms: u64, locked: &Locked<'_>, record: &mut Record) -> Result<(), ProviderError>;

    /// Begins to detach a volume, and writes its record down.
    ///
    /// # Errors
    /// See [`ProviderError`].
    fn detach(&self, now_ms: u64, locked: &Locked<'_>, record: &mut Record) -> Result<(), ProviderError>;

    /// Where an attached volume is found: its path, and the identity of the disk if it is one.
    fn place(&self, id: &VolumeId, image: PathBuf) -> (PathBuf, Option<DiskIdentity>);
}

/// What a provider of files is made of.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where volumes and their state live.
    pub directory: PathBuf,
    /// What can be rented.
    pub catalog: Catalog,
    /// From the answer to `create` until the volume is available.
    pub create_latency_ms: u64,
    /// From the answer to `delete` until the volume is no longer listed.
    pub delete_latency_ms: u64,
    /// How many bytes may be rented together.
    pub quota_bytes: Option<Bytes>,
    /// How many volumes may be rented together.
    pub quota_volumes: Option<u32>,
    /// How many volumes may be attached together.
    pub attach_limit: Option<u32>,
}

/// A provider of volumes that are files.
pub struct FileProvider<M> {
    settings: Settings,
    store: Store,
    clock: Arc<dyn Clock>,
    machine: M,
}

/// What [`FileProvider::repair`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    /// Volumes that a dead process had half made; they are gone now.
    pub rolled_back: Vec<VolumeId>,
    /// Volumes that a dead process had half deleted; they are gone now.
    pub finished: Vec<VolumeId>,
    /// Volumes whose image somebody removed. Their records are kept until `delete`, but they are not listed.
    pub vanished: Vec<VolumeId>,
    /// Files, relative to the directory, that are not ours, and records that cannot be read. They are left alone.
    pub foreign: Vec<String>,
}

/// The directory as one call sees it: locked, swept, every record advanced to the present.
struct View<'a> {
    locked: Locked<'a>,
    now_ms: u64,
    /// Volumes that are there, by id.
    records: Vec<Record>,
    /// Volumes that may be there: their records cannot be read.
    unreadable: Vec<Unreadable>,
    /// Why the machine could not be asked. What is known of volumes that take a slot is then out of date.
    unsettled: Option<ProviderError>,
    repair: Repair,
}

impl<M: Machine> FileProvider<M> {
    /// Opens the directory, makes it if it is missing, and clears up what dead processes left half done. The directory
    /// in which it lies is not made: it may be the mount point of a disk that is not mounted.
    pub(crate) fn open_with(settings: Settings, clock: Arc<dyn Clock>, machine: M) -> Result<Self, ProviderError> {
        if settings.directory.as_os_str().is_empty() {
            return Err(ProviderError::Invalid(
                "the volumes' directory has no name: set directory = \"...\"".to_owned(),
            ));
        }
        let store = Store::open(&settings.directory)?;
        let provider = Self { settings, store, clock, machine };
        provider.repair()?;
        Ok(provider)
    }

    /// What volumes are attached to.
    pub(crate) const fn machine(&self) -> &M {
        &self.machine
    }

    /// Clears up what dead processes left half done, and says what else is wrong. Every call clears up by itself; this
    /// one also looks for foreign files and reports.
    ///
    /// # Errors
    /// `Transient` if the directory cannot be read.
    pub fn repair(&self) -> Result<Repair, ProviderError> {
        let mut view = self.view()?;
        let contents = view.locked.contents()?;
        view.repair.foreign = contents.foreign;
        view.repair.foreign.extend(contents.unreadable.iter().map(|unreadable| unreadable.name.clone()));
        let records = contents.records.iter().map(|record| &record.id);
        let known = records.chain(contents.unreadable.iter().map(|unreadable| &unreadable.id));
        let images = view.locked.foreign_images(known)?;
        view.repair.foreign.extend(images);
        Ok(view.repair)
    }

    fn view(&self) -> Result<View<'_>, ProviderError> {
        let locked = self.store.lock()?;
        let now_ms = self.clock.now_ms();
        let contents = locked.contents()?;
        let unreadable = contents.unreadable;
        let (records, repair) = (Vec::new(), Repair::default());
        let mut view = View { locked, now_ms, records, unreadable, unsettled: None, repair };
        for record in contents.records {
            self.settle(&mut view, record)?;
        }
        let mut changed = Vec::new();
        view.unsettled = self.machine.settle(now_ms, &mut view.records, &mut changed).err();
        for record in view.records.iter().filter(|record| changed.contains(&record.id)) {
            self.tolerate(&record.id, view.locked.rewrite_record(record));
        }
        Ok(view)
    }

    /// Brings one record to the present, but for what the machine says, and puts it in the view if its volume is there.
    fn settle(&self, view: &mut View<'_>, mut record: Record) -> Result<(), ProviderError> {
        let id = record.id.clone();
        let has_image = view.locked.has_image(&id)?;
        if !record.made {
            let removed = view.locked.remove_image(&id).and_then(|()| view.locked.remove_record(&id));
            self.tolerate(&id, removed);
            view.repair.rolled_back.push(id);
        } else if record.state == VolumeState::Deleting {
            let due = record.is_due(view.now_ms);
            let removed = view.locked.remove_image(&id);
            let removed = removed.and_then(|()| if due { view.locked.remove_record(&id) } else { Ok(()) });
            if !due || removed.is_err() {
                view.records.push(record);
            }
            self.tolerate(&id, removed);
            if has_image {
                view.repair.finished.push(id);
            }
        } else if has_image {
            let available = record.state == VolumeState::Creating && record.advance(view.now_ms);
            let grown = self.end_growth(view, &mut record);
            if available || grown {
                self.tolerate(&id, view.locked.rewrite_record(&record));
            }
            view.records.push(record);
        } else {
            self.store.warn(format!("the volume {} has vanished: somebody removed its image", id.0));
            view.repair.vanished.push(id);
        }
        Ok(())
    }

    /// Carries a growth out whose time has come. True if the record changed and must be written.
    fn end_growth(&self, view: &View<'_>, record: &mut Record) -> bool {
        let Some(size) = record.grown(view.now_ms) else { return false };
        let grown = view.locked.grow_image(&record.id, size);
        let is_grown = grown.is_ok();
        self.tolerate(&record.id, grown);
        if is_grown {
            record.end_growth();
        }
        is_grown
    }

    /// Clearing up may fail, on a full disk for one: the call at hand can do without, and the next one tries again.
    fn tolerate(&self, id: &VolumeId, result: Result<(), ProviderError>) {
        if let Err(error) = result {
            self.store.warn(format!("{} is not brought up to date for now: {error}", id.0));
        }
    }

    fn describe_record(&self, record: &Record) -> VolumeDescription {
        let attached = record.state == VolumeState::Attached;
        let place = attached.then(|| self.machine.place(&record.id, self.store.image_path(&record.id)));
        let (device, disk) = place.map_or((None, None), |(device, disk)| (Some(device), disk));
        VolumeDescription {
            id: record.id.clone(),
            state: record.state,
            volume_type: record.volume_type.clone(),
            size: record.size(),
            tags: record.tags.clone(),
            device,
            disk,
            members: Vec::new(),
        }
    }

    fn check_quota(&self, view: &View<'_>, size: Bytes) -> Result<(), ProviderError> {
        let volumes = view.records.len();
        if let Some(quota) = self.settings.quota_volumes
            && volumes >= quota as usize
        {
            return Err(ProviderError::Quota(format!(
                "{volumes} volumes are rented and quota_volumes is {quota}; delete one or raise it"
            )));
        }
        self.check_quota_bytes(view, size)
    }

    /// Whether so many more bytes may be rented.
    fn check_quota_bytes(&self, view: &View<'_>, size: Bytes) -> Result<(), ProviderError> {
        let rented = view.records.iter().fold(0u64, |sum, record| sum.saturating_add(record.size_soon().get()));
        if let Some(quota) = self.settings.quota_bytes
            && rented.saturating_add(size.get()) > quota.get()
        {
            return Err(ProviderError::Quota(format!(
                "{} are rented, {size} are asked for and quota_bytes is {quota}; delete a volume, ask for less or raise it",
                Bytes::new(rented)
            )));
        }
        Ok(())
    }

    /// Makes a new volume in the locked directory.
    fn make(&self, view: &View<'_>, request: &CreateVolume) -> Result<Record, ProviderError> {
        let preallocate = self.settings.catalog.check_size(&request.volume_type, request.size)?.preallocate;
        self.check_quota(view, request.size)?;
        let id = fresh_id(view)?;
        let mut record = Record {
            format: FORMAT,
            id: id.clone(),
            token: request.token.clone(),
            volume_type: request.volume_type.clone(),
            size_bytes: request.size.get(),
            tags: request.tags.clone(),
            made: false,
            state: VolumeState::Creating,
            since_ms: view.now_ms,
            latency_ms: self.settings.create_latency_ms,
            growth: None,
        };
        let made = view
            .locked
            .write_record(&record)
            .and_then(|()| view.locked.make_image(&id, request.size, preallocate))
            .and_then(|()| {
                record.made = true;
                record.advance(view.now_ms);
                view.locked.write_record(&record)
            });
        if let Err(error) = made {
            // Whatever cannot be taken back now is taken back by the next call, because its record is not made; but
            // the last write may have happened without our knowing, and then the token finds the volume.
            let _ = view.locked.remove_image(&id).and_then(|()| view.locked.remove_record(&id));
            return Err(error);
        }
        Ok(record)
    }

    /// Removes a volume from the locked directory.
    fn remove(&self, view: &View<'_>, mut record: Record) -> Result<(), ProviderError> {
        record.enter(VolumeState::Deleting, view.now_ms, self.settings.delete_latency_ms);
        // Deleting must also work on a full disk, where the record cannot be rewritten: then it is deleted at once.
        // Death between the two removals leaves a record without image: a volume that is not there.
        let noted = view.locked.write_record(&record);
        view.locked.remove_image(&record.id)?;
        if noted.is_err() || record.is_due(view.now_ms) {
            view.locked.remove_record(&record.id)?;
        }
        Ok(())
    }

    fn check_limit(&self, view: &View<'_>) -> Result<(), ProviderError> {
        let taken = view.records.iter().filter(|record| record.takes_a_slot()).count();
        match self.settings.attach_limit {
            Some(limit) if taken >= limit as usize => Err(ProviderError::AttachLimit(format!(
                "{taken} volumes are attached and attach_limit is {limit}; detach one or raise it"
            ))),
            _ => Ok(()),
        }
    }
}

impl View<'_> {
    fn find(&self, id: &VolumeId) -> Result<&Record, ProviderError> {
        if let Some(unreadable) = self.unreadable.iter().find(|unreadable| unreadable.id == *id) {
            // To call it missing would have its data discarded, and its bill forgotten.
            return Err(unreadable.error.clone());
        }
        let found = self.records.iter().find(|record| record.id == *id);
        let record = found.ok_or_else(|| ProviderError::NotFound(id.clone()))?;
        self.check_settled(record).map(|()| record)
    }

    /// An error while some record cannot be read: any tag, token or size may be in it.
    fn check_complete(&self) -> Result<(), ProviderError> {
        self.unreadable.first().map_or(Ok(()), |unreadable| Err(unreadable.error.clone()))
    }

    /// An error if where the volume is cannot be told now.
    fn check_settled(&self, record: &Record) -> Result<(), ProviderError> {
        match &self.unsettled {
            Some(error) if record.takes_a_slot() => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

impl<M: Machine> Provider for FileProvider<M> {
    fn home(&self) -> Home {
        M::ATTACHES_FILES.then(|| self.store.images_path()).into()
    }

    fn create_is_exclusive(&self) -> bool {
        true
    }

    fn lag(&self) -> Lag {
        Lag::NONE
    }

    fn create(&self, request: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError> {
        check_token(&request.token)?;
        check_tags(&request.tags)?;
        let view = self.view()?;
        if let Some(record) = view.records.iter().find(|record| record.token == request.token) {
            view.check_settled(record)?;
            if record.state == VolumeState::Deleting {
                return Err(conflict(record, "its token is free only when it is gone"));
            }
            if record.volume_type != request.volume_type || record.size() != request.size {
                return Err(ProviderError::Invalid(format!(
                    "the token {:?} already made {} of type {:?} and {}: draw a fresh token for another volume",
                    request.token,
                    record.id.0,
                    record.volume_type,
                    record.size()
                )));
            }
            return Ok((self.describe_record(record), Change::Identity));
        }
        // The volume of this token may be one of which we cannot read.
        view.check_complete()?;
        let record = self.make(&view, request)?;
        Ok((self.describe_record(&record), Change::Changed))
    }

    fn change_state(&self, id: &VolumeId, transition: Transition) -> Result<Change, ProviderError> {
        let view = self.view()?;
        if transition == Transition::Delete && view.repair.vanished.contains(id) {
            view.locked.remove_record(id)?;
            return Ok(Change::Changed);
        }
        let mut record = match view.find(id) {
            Ok(record) => record.clone(),
            Err(ProviderError::NotFound(_)) => return transition.decide(id, None),
            Err(error) => return Err(error),
        };
        if transition.decide(id, Some(record.state))? == Change::Identity {
            return Ok(Change::Identity);
        }
        match transition {
            Transition::Attach => {
                self.check_limit(&view)?;
                self.machine.attach(view.now_ms, &view.locked, &mut record)?;
            }
            Transition::Detach => self.machine.detach(view.now_ms, &view.locked, &mut record)?,
            Transition::Delete => self.remove(&view, record)?,
        }
        Ok(Change::Changed)
    }

    fn grows(&self) -> bool {
        self.machine.grow_latency_ms().is_some()
    }

    fn grow(&self, id: &VolumeId, size: Bytes) -> Result<Change, ProviderError> {
        let Some(latency_ms) = self.machine.grow_latency_ms() else {
            let provider = self.settings.catalog.provider;
            return Err(ProviderError::Invalid(format!("the {provider} provider cannot grow a volume in place")));
        };
        let view = self.view()?;
        let mut record = match view.find(id) {
            Ok(record) => record.clone(),
            Err(ProviderError::NotFound(_)) => return decide_growth(id, None, size),
            Err(error) => return Err(error),
        };
        let before = record.size_soon();
        if decide_growth(id, Some((record.state, before)), size)? == Change::Identity {
            return Ok(Change::Identity);
        }
        let preallocate = self.settings.catalog.check_size(&record.volume_type, size)?.preallocate;
        self.check_quota_bytes(&view, Bytes::new(size.get().saturating_sub(before.get())))?;
        if preallocate {
            view.locked.reserve_growth(id, before, size)?;
        }
        record.growth = Some(Growth { size_bytes: size.get(), since_ms: view.now_ms, latency_ms });
        // Before the image grows: whoever dies in between finds on record that it may have.
        if let Err(error) = view.locked.rewrite_record(&record) {
            view.locked.unreserve_growth(id);
            return Err(error);
        }
        if self.end_growth(&view, &mut record) {
            self.tolerate(id, view.locked.rewrite_record(&record));
        }
        Ok(Change::Changed)
    }

    fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
        // Not even the lock is worth taking for a name that we never gave.
        if !is_ours(&id.0) {
            return Err(ProviderError::NotFound(id.clone()));
        }
        self.view()?.find(id).map(|record| self.describe_record(record))
    }

    fn list(&self, key: &str, value: &str) -> Result<Vec<VolumeDescription>, ProviderError> {
        let view = self.view()?;
        view.check_complete()?;
        let matching = view.records.iter().filter(|record| record.tags.get(key).is_some_and(|there| there == value));
        matching.map(|record| view.check_settled(record).map(|()| self.describe_record(record))).collect()
    }

    fn set_tag(&self, id: &VolumeId, key: &str, value: Option<&str>) -> Result<Change, ProviderError> {
        let view = self.view()?;
        let mut record = view.find(id)?.clone();
        if record.tags.get(key).map(String::as_str) == value {
            return Ok(Change::Identity);
        }
        if record.state == VolumeState::Deleting {
            return Err(conflict(&record, "it is being deleted"));
        }
        match value {
            Some(value) => record.tags.insert(key.to_owned(), value.to_owned()),
            None => record.tags.remove(key),
        };
        check_tags(&record.tags)?;
        view.locked.rewrite_record(&record).map(|()| Change::Changed)
    }
}

fn fresh_id(view: &View<'_>) -> Result<VolumeId, ProviderError> {
    loop {
        let mut bytes = [0; 8];
        rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())
            .map_err(|error| ProviderError::Transient(format!("no random name could be drawn: {error}")))?;
        let id = VolumeId(format!("vol-{:016x}", u64::from_le_bytes(bytes)));
        if view.records.iter().all(|record| record.id != id) {
            return Ok(id);
        }
    }
}

fn conflict(record: &Record, reason: &str) -> ProviderError {
    ProviderError::Conflict { id: record.id.clone(), state: record.state, reason: reason.to_owned() }
}

fn check_token(token: &str) -> Result<(), ProviderError> {
    if token.is_empty() || token.len() > TOKEN_BYTES_MAX {
        return Err(ProviderError::Invalid(format!(
            "a client token has 1 to {TOKEN_BYTES_MAX} bytes, not {}: draw a random one",
            token.len()
        )));
    }
    Ok(())
}

fn check_tags(tags: &Tags) -> Result<(), ProviderError> {
    if tags.len() > TAGS_MAX {
        return Err(ProviderError::Invalid(format!("a volume has at most {TAGS_MAX} tags, not {}", tags.len())));
    }
    for (key, value) in tags {
        if key.is_empty() || key.len() > TAG_KEY_BYTES_MAX || value.len() > TAG_VALUE_BYTES_MAX {
            return Err(ProviderError::Invalid(format!(
                "the tag {:?} does not fit: keys have 1 to {TAG_KEY_BYTES_MAX} bytes, values at most {TAG_VALUE_BYTES_MAX}",
                key.chars().take(40).collect::<String>()
            )));
        }
    }
    Ok(())
}
