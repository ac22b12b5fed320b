//! Delete volumes that carry our name and that no device knows of any more.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use surgetank_cache::format::LogState;
use surgetank_device::discovery::Disks;
use surgetank_provider::{Provider, ProviderError, VolumeDescription, VolumeId, tag};
use surgetank_rental::array::device_tag;
use surgetank_rental::owner::parse_epoch;
use surgetank_rental::sweep::{Action, Known, is_confirmed, orphans, singled};

use crate::clock::Clock;
use crate::opening::{Decorator, Looking};
use crate::owner::OwnerStore;
use crate::providers::Providers;
use crate::shared::Shared;

/// What a sweep did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swept {
    /// Volumes deleted.
    pub deleted: Vec<String>,
    /// Volumes detached: the next sweep deletes them.
    pub detached: Vec<String>,
    /// What needs a person, one sentence each.
    pub warnings: Vec<String>,
}

/// Sweeps for one daemon.
pub struct Sweeper {
    /// The state directory's random name.
    pub owner_id: String,
    /// Who rents volumes out.
    pub providers: Providers,
    /// The daemon's clock.
    pub clock: Clock,
    /// The disks of this machine.
    pub disks: Disks,
    /// Decorates volumes, in tests.
    pub decorator: Option<Decorator>,
    /// Where the owner records of devices are.
    pub state_directory: PathBuf,
    /// The devices by name, running or not. One that could not be started may still own its volume.
    pub devices: BTreeMap<String, Arc<Shared>>,
}

impl Sweeper {
    /// Looks once, at every provider.
    #[must_use]
    pub fn sweep(&self) -> Swept {
        crate::planted::plant();
        let mut swept = Swept::default();
        for (_, provider) in self.providers.iter() {
            match provider.list(tag::OWNER, &self.owner_id) {
                Ok(listed) => self.sweep_listed(&**provider, &listed, &mut swept),
                Err(error) => swept.warnings.push(format!("the provider does not list its volumes: {error}")),
            }
        }
        for warning in &swept.warnings {
            tracing::warn!("{warning}");
        }
        swept
    }

    fn sweep_listed(&self, provider: &dyn Provider, listed: &[VolumeDescription], swept: &mut Swept) {
        // After the listing: what was rented in between is known, not an orphan.
        let mut known = self.known();
        let listed = singled(listed, &known);
        known.reread_clean = self.clean(provider, &listed, &known);
        for action in orphans(&listed, &self.owner_id, &known) {
            if self.is_confirmed(provider, &action, &known, swept) {
                Self::act(provider, action, swept);
            }
        }
    }

    /// Whether the volume that the listing showed is so. One that is only named is not asked for.
    fn is_confirmed(&self, provider: &dyn Provider, action: &Action, known: &Known, swept: &mut Swept) -> bool {
        if matches!(action, Action::Keep { .. }) {
            return true;
        }
        match provider.describe(action.id()) {
            Ok(described) => is_confirmed(action, &described, &self.owner_id, known),
            Err(ProviderError::NotFound(_)) => false,
            Err(error) => {
                let VolumeId(id) = action.id();
                swept.warnings.push(format!("the orphaned volume {id} cannot be described: {error}"));
                false
            }
        }
    }

    fn known(&self) -> Known {
        let mut known = Known::default();
        for (name, shared) in &self.devices {
            known.expected.extend(shared.volumes());
            if shared.creating() {
                known.creating.insert(name.clone());
            }
        }
        known
    }

    /// Which of the orphans with a dirty tag are not needed: they read as clean, or their device's owner record says that
    /// they have ended (one that was discarded while it was away is back).
    fn clean(
        &self,
        provider: &dyn Provider,
        listed: &[VolumeDescription],
        known: &Known,
    ) -> BTreeMap<VolumeId, String> {
        let suspects = listed.iter().filter(|volume| !known.expects(&volume.id));
        let home = provider.home();
        let looking = Looking { disks: &self.disks, clock: self.clock, decorator: self.decorator.as_ref() };
        let clean = suspects.filter_map(|volume| {
            let epoch = volume.tags.get(tag::DIRTY_EPOCH)?;
            if self.has_ended(volume, epoch) {
                return Some((volume.id.clone(), epoch.clone()));
            }
            let superblock = looking.superblock(volume, &home).ok().filter(|_| volume.is_located())??;
            let clean = superblock.state == LogState::Clean && superblock.epoch.to_string() == *epoch;
            clean.then(|| (volume.id.clone(), epoch.clone()))
        });
        clean.collect()
    }

    fn has_ended(&self, volume: &VolumeDescription, epoch: &str) -> bool {
        let device = volume.tags.get(tag::DEVICE).filter(|device| self.devices.contains_key(*device));
        let (Some(device), Some(epoch)) = (device, parse_epoch(epoch)) else { return false };
        // A record that cannot be read proves nothing.
        OwnerStore::open(&self.state_directory.join(device))
            .is_ok_and(|store| store.record().has_ended(&volume.id, epoch))
    }

    fn act(provider: &dyn Provider, action: Action, swept: &mut Swept) {
        match action {
            Action::Delete(id) => {
                tracing::info!(volume = id.0, "deleting a volume that no device knows of");
                match provider.delete(&id) {
                    Ok(_) => swept.deleted.push(id.0),
                    Err(error) => swept.warnings.push(format!("the orphaned volume {} cannot be deleted: {error}", id.0)),
                }
            }
            Action::Detach(id) => {
                tracing::info!(volume = id.0, "detaching a volume that no device knows of");
                match provider.detach(&id) {
                    Ok(_) => swept.detached.push(id.0),
                    Err(error) => swept.warnings.push(format!("the orphaned volume {} cannot be detached: {error}", id.0)),
                }
            }
            Action::Keep { id, device: Some(device), .. } if device.starts_with(&device_tag("")) => {
                let array = device.trim_start_matches(&device_tag(""));
                swept.warnings.push(format!(
                    "the volume {} may be a member of the array {array}, which no record names, and is kept: `surgetank array assemble \
                     {array}` takes it up again",
                    id.0
                ));
            }
            Action::Keep { id, device, dirty_epoch } => swept.warnings.push(format!(
                "the volume {} may hold the newest data of device {} (epoch {dirty_epoch}) and is kept: look at it with \
                 `surgetank inspect`",
                id.0,
                device.as_deref().unwrap_or("an unknown name"),
            )),
        }
    }
}
