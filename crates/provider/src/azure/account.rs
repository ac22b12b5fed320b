//! The disks of the resource group, of whatever machine, and whether that machine is there.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::arm::Place;
use super::disk::{Disk, is_our_id, last};
use super::errors::Failure;
use super::login::{is_id, is_part};
use super::{AzureProvider, config, tags};
use crate::cloud::http::sentence;
use crate::{Account, AccountVolume, Named, ProviderError, Verb, VolumeId, tag};

/// The machine that has rented a disk: where it is, its name, and what tells it from another one that had or gets this name. It is
/// written shorter than as Azure's own id, which would not fit into a tag together with the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renter {
    place: Place,
    name: String,
    unique: String,
}

impl fmt::Display for Renter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place: Place { subscription, resource_group }, name, unique } = self;
        write!(f, "{subscription}/{resource_group}/{name}/{unique}")
    }
}

impl Renter {
    /// A machine in this place.
    #[must_use]
    pub fn new(place: &Place, name: &str, unique: &str) -> Self {
        Self { place: place.clone(), name: name.to_ascii_lowercase(), unique: unique.to_owned() }
    }

    /// Reads what was written.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        let mut parts = text.split('/');
        let mut part = |fits: fn(&str) -> bool| parts.next().filter(|part| fits(part)).map(str::to_owned);
        let place = Place { subscription: part(is_id)?, resource_group: part(is_part)? };
        let (name, unique) = (part(is_part)?, part(is_id)?);
        parts.next().is_none().then_some(Self { place, name, unique })
    }
}

impl AzureProvider {
    /// The machine that has a disk: as the disk's tag says it, if it is the one that has rented it, else by its name. `others`: whether
    /// machines of the names of renters are known to be others, as far as that was asked.
    fn holder(&self, disk: &Disk, place: &Place, others: &mut BTreeMap<String, bool>) -> Option<String> {
        let holder = disk.machine.as_deref()?;
        let host = disk.tags.get(tag::HOST).map(|host| sentence(host));
        let renter = host.as_deref().and_then(Renter::read).filter(|renter| renter.place == *place);
        let renter = renter.filter(|renter| place.id("virtualmachines", &renter.name) == holder);
        let is_its = renter.is_some_and(|renter| {
            // One of the same name that was made later has the disk as any other machine may.
            let is_other = || matches!(self.state_of(&renter), Ok(Some(false)));
            !*others.entry(renter.to_string()).or_insert_with(is_other)
        });
        host.filter(|_| is_its).or_else(|| Some(sentence(last(holder))))
    }

    /// Whether the machine of a renter's name is the renter; `None`: Azure says that there is no machine of this name.
    fn state_of(&self, renter: &Renter) -> Result<Option<bool>, ProviderError> {
        match self.arm.machine_of(&renter.name) {
            Ok(machine) => Ok(Some(machine.unique == renter.unique)),
            Err(Failure::Refused(refusal))
                if refusal.lacks(&format!("virtualMachines/{}", renter.name), self.arm.place()?) =>
            {
                Ok(None)
            }
            Err(failure) => Err(failure.general()),
        }
    }
}

impl Account for AzureProvider {
    fn catalog_name(&self) -> Option<&'static str> {
        Some(config::NAME)
    }

    fn volumes(&self) -> Result<Vec<AccountVolume>, ProviderError> {
        self.turns.take(Verb::List)?;
        let is_rented = |body: &Value| [tag::OWNER, tag::TOKEN].iter().all(|key| tags::of_body(body, key).is_some());
        let (disks, place, mut others) = (self.all(is_rented)?, self.arm.place()?, BTreeMap::new());
        let in_account = |disk: &Disk| disk.in_account(disk.own_state(), self.holder(disk, place, &mut others));
        Ok(disks.iter().map(in_account).collect())
    }

    fn volume(&self, id: &VolumeId) -> Result<Option<AccountVolume>, ProviderError> {
        if !is_our_id(&id.0) {
            return Ok(None);
        }
        self.turns.take(Verb::Describe)?;
        let (seen, place) = (self.look(&id.0)?, self.arm.place()?);
        let ours = seen.filter(|seen| seen.disk.has_our_name());
        Ok(ours.map(|seen| seen.disk.in_account(seen.state, self.holder(&seen.disk, place, &mut BTreeMap::new()))))
    }

    /// Names are used again, so the machine that has the name now must be the one that had it.
    fn machine(&self, name: &str) -> Result<Named, ProviderError> {
        let renter = Renter::read(name).filter(|renter| self.arm.place().is_ok_and(|place| renter.place == *place));
        let Some(renter) = renter else {
            return Err(ProviderError::Invalid(format!(
                "\"{}\" is no machine of the resource group of this machine",
                sentence(name)
            )));
        };
        self.turns.take(Verb::Describe)?;
        Ok(if self.state_of(&renter)? == Some(true) { Named::Machine { since_ms: None } } else { Named::Nobody })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renter_is_read_as_it_was_written_and_fits_into_a_tag() {
        let unique = "01234567-89ab-cdef-0123-456789abcdef";
        let place = Place { subscription: unique.to_owned(), resource_group: "g".repeat(90) };
        let renter = Renter::new(&place, &"M".repeat(64), unique);
        let written = renter.to_string();
        assert!(written.len() <= 256, "{}", written.len());
        assert_eq!(Renter::read(&written), Some(renter));
        for odd in ["", "machine", "a/b/c/d", &written[1..], &format!("{written}/x"), &format!("/{written}")] {
            assert_eq!(Renter::read(odd), None, "{odd}");
        }
    }
}
