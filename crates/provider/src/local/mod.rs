//! Volumes that are files in a directory of this machine: for trying things out, tests, demonstrations, and machines
//! whose fast disk is local. It behaves like a cloud: calls are answered before they are carried out, and quotas,
//! limits and latencies are real.
//!
//! Several providers, in one process or many, may use one directory at once.

mod config;
mod record;
mod store;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use surgetank_model::Bytes;
use surgetank_model::units::Span;

use crate::clock::{Clock, SystemClock, whole_ms};
use crate::faulty::Faulty;
use crate::{Change, CreateVolume, Provider, ProviderError, Tags, VolumeDescription, VolumeId, VolumeState};

pub use config::{LocalConfig, LocalType, SIZE_GRAIN};
use record::{FORMAT, Record, is_ours};
use store::{Locked, Store, Unreadable};

/// The longest client token, in bytes.
const TOKEN_BYTES_MAX: usize = 128;
/// The longest tag key, in bytes.
const TAG_KEY_BYTES_MAX: usize = 128;
/// The longest tag value, in bytes.
const TAG_VALUE_BYTES_MAX: usize = 256;
/// The most tags of a volume.
const TAGS_MAX: usize = 50;

/// The local provider.
pub struct LocalProvider {
    config: LocalConfig,
    store: Store,
    clock: Arc<dyn Clock>,
}

/// What [`LocalProvider::repair`] found.
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
    repair: Repair,
}

/// Opens the provider that a configuration describes: with faults if it asks for some.
///
/// # Errors
/// As [`LocalProvider::open`].
pub fn open(config: LocalConfig) -> Result<Arc<dyn Provider>, ProviderError> {
    let faults = config.faults.clone();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let local = LocalProvider::open(config, Arc::clone(&clock))?;
    Ok(match faults {
        Some(rates) => Arc::new(Faulty::new(local, clock).with_rates(rates)),
        None => Arc::new(local),
    })
}

impl LocalProvider {
    /// Opens the directory, makes it if it is missing, and clears up what dead processes left half done. The directory
    /// in which it lies is not made: it may be the mount point of a disk that is not mounted.
    ///
    /// # Errors
    /// `Invalid` if the directory cannot be used, `Transient` if it cannot be read now. A record that cannot be read is
    /// no error yet: it is one to whoever asks for its volume, for a list, or for a new volume.
    pub fn open(config: LocalConfig, clock: Arc<dyn Clock>) -> Result<Self, ProviderError> {
        if config.directory.as_os_str().is_empty() {
            return Err(ProviderError::Invalid(
                "the volumes' directory has no name: set directory = \"...\"".to_owned(),
            ));
        }
        let store = Store::open(&config.directory)?;
        let provider = Self { config, store, clock };
        provider.repair()?;
        Ok(provider)
    }

    /// The configuration it was opened with.
    #[must_use]
    pub fn config(&self) -> &LocalConfig {
        &self.config
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
        let mut view = View { locked, now_ms, records: Vec::new(), unreadable, repair: Repair::default() };
        for record in contents.records {
            self.settle(&mut view, record)?;
        }
        Ok(view)
    }

    /// Brings one record to the present and puts it in the view if its volume is there.
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
            if record.advance(view.now_ms) {
                self.tolerate(&id, view.locked.write_record(&record));
            }
            view.records.push(record);
        } else {
            self.store.warn(format!("the volume {} has vanished: somebody removed its image", id.0));
            view.repair.vanished.push(id);
        }
        Ok(())
    }

    /// Clearing up may fail, on a full disk for one: the call at hand can do without, and the next one tries again.
    fn tolerate(&self, id: &VolumeId, result: Result<(), ProviderError>) {
        if let Err(error) = result {
            self.store.warn(format!("{} is not brought up to date for now: {error}", id.0));
        }
    }

    fn describe_record(&self, record: &Record) -> VolumeDescription {
        VolumeDescription {
            id: record.id.clone(),
            state: record.state,
            volume_type: record.volume_type.clone(),
            size: record.size(),
            tags: record.tags.clone(),
            device: (record.state == VolumeState::Attached).then(|| self.store.image_path(&record.id)),
            serial: None,
        }
    }

    fn check_quota(&self, view: &View<'_>, size: Bytes) -> Result<(), ProviderError> {
        let volumes = view.records.len();
        if let Some(quota) = self.config.quota_volumes
            && volumes >= quota as usize
        {
            return Err(ProviderError::Quota(format!(
                "{volumes} volumes are rented and quota_volumes is {quota}; delete one or raise it"
            )));
        }
        let rented = view.records.iter().fold(0u64, |sum, record| sum.saturating_add(record.size_bytes));
        if let Some(quota) = self.config.quota_bytes
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
        let preallocate = self.config.check_size(&request.volume_type, request.size)?.preallocate;
        self.check_quota(view, request.size)?;
        let id = self.fresh_id(view)?;
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
            latency_ms: latency_ms(self.config.create_latency),
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

    fn fresh_id(&self, view: &View<'_>) -> Result<VolumeId, ProviderError> {
        loop {
            let mut bytes = [0; 8];
            File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes)).map_err(|error| {
                ProviderError::Transient(format!("no random name could be drawn from /dev/urandom: {error}"))
            })?;
            let id = VolumeId(format!("vol-{:016x}", u64::from_le_bytes(bytes)));
            if view.records.iter().all(|record| record.id != id) {
                return Ok(id);
            }
        }
    }

    /// Removes a volume from the locked directory.
    fn remove(&self, view: &View<'_>, mut record: Record) -> Result<(), ProviderError> {
        record.enter(VolumeState::Deleting, view.now_ms, latency_ms(self.config.delete_latency));
        // Deleting must also work on a full disk, where the record cannot be rewritten: then it is deleted at once.
        // Death between the two removals leaves a record without image: a volume that is not there.
        let noted = view.locked.write_record(&record);
        view.locked.remove_image(&record.id)?;
        if noted.is_err() || record.is_due(view.now_ms) {
            view.locked.remove_record(&record.id)?;
        }
        Ok(())
    }
}

impl View<'_> {
    fn find(&self, id: &VolumeId) -> Result<&Record, ProviderError> {
        if let Some(unreadable) = self.unreadable.iter().find(|unreadable| unreadable.id == *id) {
            // To call it missing would have its data given up, and its bill forgotten.
            return Err(unreadable.error.clone());
        }
        self.records.iter().find(|record| record.id == *id).ok_or_else(|| ProviderError::NotFound(id.clone()))
    }

    /// An error while some record cannot be read: any tag, token or size may be in it.
    fn check_complete(&self) -> Result<(), ProviderError> {
        self.unreadable.first().map_or(Ok(()), |unreadable| Err(unreadable.error.clone()))
    }
}

impl Provider for LocalProvider {
    fn create(&self, request: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError> {
        check_token(&request.token)?;
        check_tags(&request.tags)?;
        let view = self.view()?;
        if let Some(record) = view.records.iter().find(|record| record.token == request.token) {
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

    fn attach(&self, id: &VolumeId) -> Result<Change, ProviderError> {
        let view = self.view()?;
        let record = view.find(id)?;
        match record.state {
            VolumeState::Attaching | VolumeState::Attached => return Ok(Change::Identity),
            VolumeState::Available => {}
            VolumeState::Creating => return Err(conflict(record, "wait until it is available")),
            VolumeState::Detaching => return Err(conflict(record, "wait until it is detached")),
            VolumeState::Deleting => return Err(conflict(record, "it is being deleted")),
        }
        let taken = view.records.iter().filter(|record| record.takes_a_slot()).count();
        if let Some(limit) = self.config.attach_limit
            && taken >= limit as usize
        {
            return Err(ProviderError::AttachLimit(format!(
                "{taken} volumes are attached and attach_limit is {limit}; detach one or raise it"
            )));
        }
        let mut record = record.clone();
        record.enter(VolumeState::Attaching, view.now_ms, latency_ms(self.config.attach_latency));
        record.advance(view.now_ms);
        view.locked.write_record(&record).map(|()| Change::Changed)
    }

    fn detach(&self, id: &VolumeId) -> Result<Change, ProviderError> {
        let view = self.view()?;
        let mut record = view.find(id)?.clone();
        if !matches!(record.state, VolumeState::Attaching | VolumeState::Attached) {
            return Ok(Change::Identity);
        }
        record.enter(VolumeState::Detaching, view.now_ms, latency_ms(self.config.detach_latency));
        record.advance(view.now_ms);
        view.locked.write_record(&record).map(|()| Change::Changed)
    }

    fn delete(&self, id: &VolumeId) -> Result<Change, ProviderError> {
        let view = self.view()?;
        if view.repair.vanished.contains(id) {
            view.locked.remove_record(id)?;
            return Ok(Change::Changed);
        }
        let record = match view.find(id) {
            Ok(record) => record,
            Err(ProviderError::NotFound(_)) => return Ok(Change::Identity),
            Err(error) => return Err(error),
        };
        if record.takes_a_slot() {
            return Err(conflict(record, "detach it and wait until it is available"));
        }
        if record.state == VolumeState::Deleting {
            return Ok(Change::Identity);
        }
        self.remove(&view, record.clone()).map(|()| Change::Changed)
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
        Ok(matching.map(|record| self.describe_record(record)).collect())
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
        view.locked.write_record(&record).map(|()| Change::Changed)
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

fn latency_ms(span: Span) -> u64 {
    whole_ms(span.0)
}
