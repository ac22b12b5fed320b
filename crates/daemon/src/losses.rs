//! Guards against serving a device without its newest data, and what it takes to discard that data.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use surgetank_cache::Owner;
use surgetank_provider::{Provider, ProviderError, VolumeDescription, VolumeId, VolumeState, tag};
use surgetank_rental::owner::parse_epoch;
use surgetank_rental::{Obstacle, OwnerRecord, RentalRecord, RentalStage};

use crate::absence;
use crate::clock::Clock;
use crate::crash::crash_point;
use crate::journal::Journal;
use crate::opening::Looking;
use crate::owner::OwnerStore;
use crate::providers::Providers;

/// How long the provider may fail to list volumes before the device goes on without the list, and a volume to be read before
/// the device is refused.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a volume may take to be attached that must be looked at.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(60);

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
type Listed = (Arc<dyn Provider>, VolumeDescription);

/// Why a volume that the records do not name as needed may be needed.
enum Doubt {
    /// It holds records, or the records do not know its attachment.
    Records,
    /// It is not attached.
    Away,
    /// It cannot be looked at.
    Unread(Obstacle),
}

impl Looking<'_> {
    /// What the medium says against a volume whose tag names our attachment, which has not ended as far as is known.
    fn doubt(&self, provider: &dyn Provider, volume: &VolumeDescription) -> Option<Doubt> {
        let home = provider.home();
        match volume.state {
            VolumeState::Attached => match self.label(volume, &home) {
                Ok(label) => label.filter(|label| !label.clean && label.written).map(|_| Doubt::Records),
                Err(obstacle) => Some(Doubt::Unread(obstacle)),
            },
            VolumeState::Creating | VolumeState::Available | VolumeState::Attaching | VolumeState::Detaching => {
                Some(Doubt::Away)
            }
            VolumeState::Failed => {
                Some(Doubt::Unread(Obstacle::Failed("the provider says that it has failed".to_owned())))
            }
            VolumeState::Deleting => None,
        }
    }

    /// What another program has open can be read as soon as that has ended, and may be what it works with. So may what another machine has
    /// attached: without its tag nobody would know any more that it has data.
    fn must_be_free(&self, provider: &dyn Provider, volume: &VolumeDescription) -> Result<(), String> {
        let home = provider.home();
        if volume.state == VolumeState::Attached && !volume.is_located() {
            return Err(format!(
                "the data on the caching volume {} is not discarded: another machine has it attached: detach it there, then ask again",
                volume.id.0
            ));
        }
        match self.label(volume, &home) {
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
) -> Result<Vec<(Listed, Doubt)>, ProviderError> {
    let ours = known(journal, store);
    let doubt = |provider: &dyn Provider, volume: &VolumeDescription| {
        let epoch = volume.tags.get(tag::DIRTY_EPOCH)?;
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
        match is_known {
            _ if has_ended || is_discarded => None,
            true => looking.doubt(provider, volume),
            false => Some(Doubt::Records),
        }
    };
    let (mut found, mut silent) = (Vec::new(), None);
    for (_, provider) in providers.iter() {
        match provider.list(tag::DEVICE, device) {
            Ok(listed) => found.extend(listed.into_iter().filter_map(|volume| {
                let doubt = doubt(&**provider, &volume)?;
                Some(((provider.clone(), volume), doubt))
            })),
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
    let (begun, mut away) = (looking.clock.now(), "it is not attached".to_owned());
    let found = loop {
        let passed = |timeout| looking.clock.now() >= begun + timeout;
        let mut pause = Duration::from_millis(100);
        match unrecorded_dirty(providers, looking, device, store, journal) {
            Ok(found) => match found.first() {
                Some(((provider, volume), Doubt::Away)) if !passed(ATTACH_TIMEOUT) => {
                    // The journal names it, so nothing is left over if the daemon ends here.
                    if volume.state == VolumeState::Available
                        && let Err(error) = provider.attach(&volume.id)
                    {
                        away = error.to_string();
                    }
                }
                Some((_, Doubt::Unread(_))) if !passed(LIST_TIMEOUT) => {}
                _ => break found,
            },
            Err(error) if passed(LIST_TIMEOUT) => {
                if journal.state().saved_unix_ms == 0 {
                    return Err(format!(
                        "device {device} has no records yet, and the provider does not say whether a volume holds its \
                         newest data ({error}): try again when it answers"
                    ));
                }
                tracing::warn!(device, %error, "the provider does not list the device's volumes");
                return Ok(());
            }
            Err(error) => pause = error.pause(pause).min(LIST_TIMEOUT),
        }
        std::thread::sleep(pause);
    };
    let Some(((_, volume), doubt)) = found.first() else { return Ok(()) };
    let id = &volume.id.0;
    let discard = format!("discard that data with `surgetank detach {device} --accept-loss`");
    let unread = |why: &str| {
        format!(
            "the caching volume {id} may hold newest data of device {device}: its tag says that it is in use, the owner record \
             does not say that this has ended, and it cannot be looked at ({why})"
        )
    };
    Err(match doubt {
        Doubt::Records => format!(
            "the caching volume {id} says that it holds newest data of device {device}, but the state directory knows \
             nothing of that: restore the state directory, or {discard}; if another machine has rented it for a device of this \
             name, name this one otherwise"
        ),
        Doubt::Unread(Obstacle::Held(who)) => format!("{}, then start the daemon again", unread(who)),
        Doubt::Unread(Obstacle::Failed(why)) => {
            format!("{}: make it readable and start the daemon again, or {discard}", unread(why))
        }
        Doubt::Away => {
            format!("{}: attach it and start the daemon again, or {discard}", unread(&away))
        }
    })
}

/// What a provider says of a volume.
type Seen = Result<Option<VolumeDescription>, ProviderError>;

/// What each provider says of the volume on which a device's newest data is.
///
/// It may take long to be certain that there is none ([`Provider::lag`]): whoever holds a lock looks before that.
pub struct Named {
    volume: Option<VolumeId>,
    said: Vec<(Arc<dyn Provider>, Seen)>,
}

impl Named {
    /// Looks for the volume that the owner record in this directory names.
    ///
    /// # Errors
    /// The record cannot be read.
    pub fn look(directory: &Path, providers: &Providers, clock: Clock) -> Result<Self, String> {
        let store = OwnerStore::open(directory).map_err(|error| error.to_string())?;
        let volume = in_use(store.record()).cloned();
        let look = |id| providers.iter().map(move |(_, own)| (own.clone(), absence::look(&**own, id, clock)));
        let said = volume.iter().flat_map(look).collect();
        Ok(Self { volume, said })
    }

    /// Where it is there.
    fn found(&self) -> impl Iterator<Item = (&Arc<dyn Provider>, &VolumeDescription)> {
        self.said.iter().filter_map(|(provider, said)| Some((provider, said.as_ref().ok()?.as_ref()?)))
    }

    /// Data on a volume that is there is not lost.
    fn must_be_missing(&self, device: &str) -> Result<(), String> {
        let Some(VolumeId(volume)) = &self.volume else { return Ok(()) };
        let mut there = None;
        if self.said.is_empty() {
            there = Some("may be there (the configuration has no provider to ask)".to_owned());
        }
        for (_, said) in &self.said {
            match said {
                Ok(None) => {}
                Ok(Some(_)) => there = Some("is there".to_owned()),
                Err(error) => there = there.or_else(|| Some(format!("may be there ({error})"))),
            }
        }
        let Some(there) = there else { return Ok(()) };
        Err(format!(
            "the caching volume {volume} with the newest data of device {device} {there}, and nothing is discarded before \
             reading it back has failed: start the daemon and drain the device"
        ))
    }
}

/// The volume on which the newest data is.
fn in_use(record: &OwnerRecord) -> Option<&VolumeId> {
    record.volume.as_ref().filter(|_| record.owner != Owner::Backing)
}

/// Says in a device's records that its newest data is on the backing volume after all.
///
/// # Errors
/// One sentence: nothing is lost, or what seems lost is there, or the records cannot be written.
pub fn discard_data(
    directory: &Path,
    device: &str,
    providers: &Providers,
    looking: &Looking,
    named: &Named,
) -> Result<(), String> {
    let io = |error: std::io::Error| error.to_string();
    let mut store = OwnerStore::open(directory).map_err(io)?;
    let mut journal = Journal::open(directory).map_err(io)?;
    if in_use(store.record()) != named.volume.as_ref() {
        return Err(format!("the records of device {device} have changed meanwhile: ask again"));
    }
    match &store.record().owner {
        Owner::Backing => return discard_unrecorded(device, providers, looking, &store, &mut journal),
        Owner::Cache { .. } if !journal.state().recovery_failed => named.must_be_missing(device)?,
        Owner::Cache { .. } | Owner::Lost { .. } => {}
    }
    for (provider, volume) in named.found() {
        looking.must_be_free(&**provider, volume)?;
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

/// The data on volumes that the records do not know is discarded: they no longer count as dirty.
fn discard_unrecorded(
    device: &str,
    providers: &Providers,
    looking: &Looking,
    store: &OwnerStore,
    journal: &mut Journal,
) -> Result<(), String> {
    let found = unrecorded_dirty(providers, looking, device, store, journal).map_err(|error| error.to_string())?;
    if found.is_empty() {
        return Err("nothing is lost: there is nothing to accept".to_owned());
    }
    for ((provider, volume), _) in &found {
        looking.must_be_free(&**provider, volume)?;
    }
    for ((provider, volume), _) in found {
        discard_journaled(journal, &volume).map_err(|error| error.to_string())?;
        tracing::warn!(device, volume = volume.id.0, "the data on this volume is discarded");
        provider.set_tag(&volume.id, tag::DIRTY_EPOCH, None).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Nobody asks again what the user has discarded, should the volume be the one that the journal names.
fn discard_journaled(journal: &mut Journal, volume: &VolumeDescription) -> std::io::Result<()> {
    journal.update(|state| {
        if let Some(rental) = state.rental.as_mut().filter(|rental| rental.volume.as_ref() == Some(&volume.id)) {
            rental.disposable = true;
            rental.discarded = volume.tags.get(tag::DIRTY_EPOCH).cloned();
        }
    })
}
