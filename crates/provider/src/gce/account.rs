//! The disks of the zone, of whatever instance, and whether that instance is there.

use ureq::http::Method;

use super::config;
use super::disk::is_name;
use super::errors::Failure;
use super::{GceProvider, labels};
use crate::cloud::http::sentence;
use crate::cloud::unix_ms;
use crate::{Account, AccountVolume, Named, ProviderError, Verb, VolumeId, tag};

impl Account for GceProvider {
    fn catalog_name(&self) -> Option<&'static str> {
        Some(config::NAME)
    }

    fn volumes(&self) -> Result<Vec<AccountVolume>, ProviderError> {
        self.turns.take(Verb::List)?;
        // By no filter: it takes a value, and those of owners are as many as there are machines.
        let mut disks = self.all(None)?;
        disks.retain(|(disk, _)| labels::tags(&disk.labels).contains_key(tag::OWNER));
        Ok(disks.iter().map(|(disk, state)| disk.in_account(*state)).collect())
    }

    fn volume(&self, id: &VolumeId) -> Result<Option<AccountVolume>, ProviderError> {
        if !is_name(&id.0) {
            return Ok(None);
        }
        self.turns.take(Verb::Describe)?;
        Ok(self.look(&id.0)?.map(|(disk, state)| disk.in_account(state)))
    }

    /// Names are used again, so that it tells since when the instance is there.
    fn machine(&self, name: &str) -> Result<Named, ProviderError> {
        if !is_name(name) {
            return Err(ProviderError::Invalid(format!("\"{}\" is no name of an instance", sentence(name))));
        }
        self.turns.take(Verb::Describe)?;
        let what = format!("instances/{name}");
        match self.compute.ask(&Method::GET, &what, None) {
            Ok(body) if body["name"] == name => {
                Ok(Named::Machine { since_ms: body["creationTimestamp"].as_str().and_then(unix_ms) })
            }
            Ok(_) => Err(ProviderError::Transient(format!(
                "Compute Engine was asked for the instance {name} and describes something else: check what answers for it"
            ))),
            Err(Failure::Refused(refusal)) if refusal.lacks(&what, &self.compute.place()?.zone) => Ok(Named::Nobody),
            Err(failure) => Err(failure.general()),
        }
    }
}
