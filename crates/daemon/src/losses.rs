//! Guards against serving a device without its newest data, and what it takes to discard that data.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use surgetank_cache::Owner;
use surgetank_device::discovery::Disks;
use surgetank_provider::{Provider, ProviderError, VolumeDescription, VolumeState, tag};
use surgetank_rental::owner::parse_epoch;
use surgetank_rental::{Obstacle, OwnerRecord, RentalRecord, RentalStage};

use crate::clock::Clock;
use crate::crash::crash_point;
use crate::journal::Journal;
use crate::opening::{self, Decorator};
use crate::owner::OwnerStore;
use crate::providers::Providers;

/// How long the provider may fail to list volumes before the device goes on without the list.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);

/// Refuses records of devices that are not configured, as long as their newest data is not on their backing volumes:
/// under another name a device would be served without it.
///
/// # Errors
/// One sentence with the remedy.
pub fn refuse_forgotten(state_directory: &Path, configured: impl Fn(&str) -> bool) -> Result<(), String> {
    let unreadable = |error: std::io::Error| format!("{} cannot be read: {error}", state_directory.display());
    for entry in std::fs::read_dir(state_directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if !path.is_dir() || configured(name) {
            continue;
        }
        let store = OwnerStore::open(&path).map_err(|error| error.to_string())?;
        if store.record().owner != Owner::Backing {
            return Err(format!(
                "the device {name} is not in the configuration, but its newest data is on a caching volume: put \
                 [device.{name}] back and drain it before it is renamed or removed"
            ));
        }
    }
    Ok(())
}

/// A volume and its provider.
type Found = (Arc<dyn Provider>, VolumeDescription);

/// With what volumes are looked at that nobody uses.
pub struct Looking<'a> {
    /// The disks of this machine.
    pub disks: &'a Disks,
    /// The daemon's clock.
    pub clock: Clock,
    /// Decorates volumes, in tests.
    pub decorator: Option<&'a Decorator>,
}

impl Looking<'_> {
    /// Whether the medium says that the volume is in use, and holds records. One that cannot be read says nothing.
    fn holds_records(&self, provider: &dyn Provider, volume: &VolumeDescription) -> bool {
        let files = provider.files();
        let attached = volume.state == VolumeState::Attached;
        let read = || opening::label(volume, files.as_deref(), self.disks, self.clock, self.decorator);
        attached && read().is_ok_and(|label| label.is_some_and(|label| !label.clean && label.written))
    }

    /// What another program has open can be read as soon as that has ended, and may be what it works with.
    fn must_be_free(&self, provider: &dyn Provider, volume: &VolumeDescription) -> Result<(), String> {
        let files = provider.files();
        match opening::label(volume, files.as_deref(), self.disks, self.clock, self.decorator) {
            Err(Obstacle::Held(who)) if volume.state == VolumeState::Attached => {
                Err(format!("the data on the caching volume {} is not discarded: {who}, then ask again", volume.id.0))
            }
            _ => Ok(()),
        }
    }
}

/// Volumes of this device, whoever rented them, that may hold newest data of which the records know nothing.
fn unrecorded_dirty(
    providers: &Providers,
    looking: &Looking,
    device: &str,
    store: &OwnerStore,
    journal: &Journal,
) -> Result<Vec<Found>, ProviderError> {
    let ours = known(journal, store);
    let strange = |provider: &dyn Provider, volume: &VolumeDescription| {
        let Some(epoch) = volume.tags.get(tag::DIRTY_EPOCH) else { return false };
        // The tag of our own attachment may be stale by a step, and its end is proved on the volume itself. One whose
        // data was discarded while it was away is back with its tag.
        let has_ended = parse_epoch(epoch).is_some_and(|epoch| store.record().has_ended(&volume.id, epoch));
        // The user has discarded it, and the daemon ended before the volume was deleted.
        let is_discarded = journal.state().rental.as_ref().is_some_and(|rental| {
            rental.volume.as_ref() == Some(&volume.id) && rental.discarded.as_ref() == Some(epoch)
        });
        let is_known = ours.is_some_and(|rental| {
            let named = rental.epoch.as_ref() == Some(epoch) || rental.stage == RentalStage::Adopting;
            rental.volume.as_ref() == Some(&volume.id) && named
        });
        !has_ended && !is_discarded && (!is_known || looking.holds_records(provider, volume))
    };
    let (mut found, mut silent) = (Vec::new(), None);
    for (_, provider) in providers.iter() {
        match provider.list(tag::DEVICE, device) {
            Ok(listed) => found.extend(
                listed
                    .into_iter()
                    .filter(|volume| strange(&**provider, volume))
                    .map(|volume| (provider.clone(), volume)),
            ),
            Err(error) => silent = Some(error),
        }
    }
    match silent {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

/// The rental of which the owner record speaks. If there is no such record although the volume was in use, the records are
/// lost in part, and the volume is as strange as any.
fn known<'a>(journal: &'a Journal, store: &OwnerStore) -> Option<&'a RentalRecord> {
    let rental = journal.state().rental.as_ref();
    rental.filter(|rental| !store.is_missing() || rental.stage != RentalStage::Adopted)
}

/// Refuses a device whose records know of no dirty data while a volume says otherwise: the records are lost.
///
/// # Errors
/// One sentence with the remedy.
pub fn refuse_unrecorded(
    providers: &Providers,
    looking: &Looking,
    device: &str,
    store: &OwnerStore,
    journal: &Journal,
) -> Result<(), String> {
    let until = looking.clock.now() + LIST_TIMEOUT;
    let found = loop {
        match unrecorded_dirty(providers, looking, device, store, journal) {
            Ok(found) => break found,
            Err(error) if looking.clock.now() >= until => {
                if journal.state().saved_unix_ms == 0 {
                    return Err(format!(
                        "device {device} has no records yet, and the provider does not say whether a volume holds its \
                         newest data ({error}): try again when it answers"
                    ));
                }
                tracing::warn!(device, %error, "the provider does not list the device's volumes");
                return Ok(());
            }
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    };
    match found.first() {
        None => Ok(()),
        Some((_, volume)) => Err(format!(
            "the caching volume {} says that it holds newest data of device {device}, but the state directory knows \
             nothing of that: restore the state directory, or discard that data with `surgetank detach {device} \
             --accept-loss`, or remove the volume's tag {} if it belongs to another device of this name",
            volume.id.0,
            tag::DIRTY_EPOCH
        )),
    }
}

/// Says in a device's records that its newest data is on the backing volume after all.
///
/// # Errors
/// One sentence: nothing is lost, or what seems lost is there, or the records cannot be written.
pub fn discard_data(directory: &Path, device: &str, providers: &Providers, looking: &Looking) -> Result<(), String> {
    let io = |error: std::io::Error| error.to_string();
    let mut store = OwnerStore::open(directory).map_err(io)?;
    let mut journal = Journal::open(directory).map_err(io)?;
    match &store.record().owner {
        Owner::Backing => return discard_unrecorded(device, providers, looking, &store, &journal),
        Owner::Cache { .. } if !journal.state().recovery_failed => must_be_missing(device, store.record(), providers)?,
        Owner::Cache { .. } | Owner::Lost { .. } => {}
    }
    for (provider, volume) in named(store.record(), providers) {
        looking.must_be_free(&*provider, &volume)?;
    }
    crash_point("discard-data", "before");
    let ended = store.record().clone().ended();
    store.persist(ended).map_err(io)?;
    crash_point("discard-data", "after");
    journal
        .update(|state| {
            state.recovery_failed = false;
            if let Some(rental) = &mut state.rental {
                rental.disposable = true;
                rental.stage = RentalStage::Released;
            }
        })
        .map_err(io)
}

/// The volume that the owner record names, at every provider that knows it.
fn named(record: &OwnerRecord, providers: &Providers) -> Vec<Found> {
    let Some(id) = &record.volume else { return Vec::new() };
    let described = providers.iter().map(|(_, provider)| (provider.clone(), provider.describe(id)));
    described.filter_map(|(provider, described)| Some((provider, described.ok()?))).collect()
}

/// Data on a volume that is there is not lost.
fn must_be_missing(device: &str, record: &OwnerRecord, providers: &Providers) -> Result<(), String> {
    let Some(volume) = &record.volume else { return Ok(()) };
    let (mut asked, mut there) = (providers.iter().map(|(_, provider)| provider.describe(volume)).peekable(), None);
    if asked.peek().is_none() {
        there = Some("may be there (the configuration has no provider to ask)".to_owned());
    }
    for answer in asked {
        match answer {
            Err(ProviderError::NotFound(_)) => {}
            Ok(_) => there = Some("is there".to_owned()),
            Err(error) => there = there.or_else(|| Some(format!("may be there ({error})"))),
        }
    }
    let Some(there) = there else { return Ok(()) };
    Err(format!(
        "the caching volume {} with the newest data of device {device} {there}, and nothing is discarded before reading \
         it back has failed: start the daemon and drain the device",
        volume.0
    ))
}

/// The data on volumes that the records do not know is discarded: they no longer count as dirty.
fn discard_unrecorded(
    device: &str,
    providers: &Providers,
    looking: &Looking,
    store: &OwnerStore,
    journal: &Journal,
) -> Result<(), String> {
    let found = unrecorded_dirty(providers, looking, device, store, journal).map_err(|error| error.to_string())?;
    if found.is_empty() {
        return Err("nothing is lost: there is nothing to accept".to_owned());
    }
    for (provider, volume) in &found {
        looking.must_be_free(&**provider, volume)?;
    }
    for (provider, volume) in found {
        tracing::warn!(device, volume = volume.id.0, "the data on this volume is discarded");
        provider.set_tag(&volume.id, tag::DIRTY_EPOCH, None).map_err(|error| error.to_string())?;
    }
    Ok(())
}
