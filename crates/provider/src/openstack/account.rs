//! The volumes of the project, of whatever server, and whether that server is there.

use ureq::http::Method;

use super::cinder::Volume;
use super::{OpenStackProvider, Service, errors, is_id};
use crate::cloud::http::sentence;
use crate::{Account, AccountVolume, Machine, ProviderError, Verb, VolumeId, tag};

impl Account for OpenStackProvider {
    /// Each cloud has its own.
    fn catalog_name(&self) -> Option<&'static str> {
        None
    }

    fn volumes(&self) -> Result<Vec<AccountVolume>, ProviderError> {
        self.turns.take(Verb::List)?;
        // By no filter: it takes a value, and those of owners are as many as there are machines.
        let mut volumes = self.all("")?;
        volumes.retain(|volume| volume.metadata.contains_key(tag::OWNER));
        Ok(volumes.iter().map(Volume::in_account).collect())
    }

    fn volume(&self, id: &VolumeId) -> Result<Option<AccountVolume>, ProviderError> {
        self.turns.take(Verb::Describe)?;
        Ok(self.find(id)?.as_ref().map(Volume::in_account))
    }

    fn machine(&self, name: &str) -> Result<Machine, ProviderError> {
        if !is_id(name) {
            return Err(ProviderError::Invalid(format!("\"{}\" is no id of a server", sentence(name))));
        }
        self.turns.take(Verb::Describe)?;
        let answer = self.ask(Service::Nova, Method::GET, &format!("/servers/{name}"), None)?;
        let server = &answer.body["server"];
        match server["status"].as_str() {
            // Administrators alone are shown it; one that is SOFT_DELETED can come back.
            Some("DELETED") if server["id"] == name => Ok(Machine::Gone),
            Some(_) if server["id"] == name && answer.status.is_success() => Ok(Machine::Exists),
            _ if errors::lacks_server(&answer, name) => Ok(Machine::Gone),
            _ if answer.status.is_success() => Err(ProviderError::Transient(format!(
                "Nova was asked for the server {name} and describes something else: check what answers for it"
            ))),
            _ => Err(errors::error("Nova", &answer)),
        }
    }
}
