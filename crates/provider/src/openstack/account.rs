//! The volumes of the project, of whatever server, and whether that server is there.

use ureq::http::Method;

use super::cinder::Volume;
use super::{OpenStackProvider, Service, errors, is_id};
use crate::cloud::http::sentence;
use crate::{Account, AccountVolume, Named, ProviderError, Verb, VolumeId, tag};

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

    fn machine(&self, name: &str) -> Result<Named, ProviderError> {
        if !is_id(name) {
            return Err(ProviderError::Invalid(format!("\"{}\" is no id of a server", sentence(name))));
        }
        self.turns.take(Verb::Describe)?;
        // Of the server itself Nova asks Neutron, which may be out of order; of its volumes it asks nobody. One that can come back
        // (SOFT_DELETED) has them.
        let answer = self.ask(Service::Nova, Method::GET, &format!("/servers/{name}/os-volume_attachments"), None)?;
        match answer.status.is_success() {
            true if answer.body["volumeAttachments"].is_array() => Ok(Named::Machine { since_ms: None }),
            true => Err(ProviderError::Transient(format!(
                "Nova was asked for the volumes of the server {name} and tells something else: check what answers for it"
            ))),
            false if errors::lacks_server(&answer, name) => Ok(Named::Nobody),
            false => Err(errors::error("Nova", &answer)),
        }
    }
}
