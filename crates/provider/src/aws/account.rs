//! The volumes of the account in the region, of whatever instance, and whether that instance is there.

use super::ec2::{Failure, Query};
use super::volume::Volume;
use super::{AwsProvider, config, instance, is_instance};
use crate::cloud::http::sentence;
use crate::{Account, AccountVolume, Named, ProviderError, Verb, VolumeId, tag};

impl Account for AwsProvider {
    fn catalog_name(&self) -> Option<&'static str> {
        Some(config::NAME)
    }

    fn volumes(&self) -> Result<Vec<AccountVolume>, ProviderError> {
        self.turns.take(Verb::List)?;
        // The owner's tag is as old as surgetank.
        let query = Query::new("DescribeVolumes").with("Filter.1.Name", "tag-key").with("Filter.1.Value.1", tag::OWNER);
        let mut volumes = self.all(&query)?;
        volumes.retain(|volume| volume.tags.contains_key(tag::OWNER));
        Ok(volumes.iter().map(Volume::in_account).collect())
    }

    fn volume(&self, id: &VolumeId) -> Result<Option<AccountVolume>, ProviderError> {
        self.turns.take(Verb::Describe)?;
        Ok(self.find(id)?.as_ref().map(Volume::in_account))
    }

    fn machine(&self, name: &str) -> Result<Named, ProviderError> {
        if !is_instance(name) {
            return Err(ProviderError::Invalid(format!("\"{}\" is no id of an instance", sentence(name))));
        }
        self.turns.take(Verb::Describe)?;
        let query = Query::new("DescribeInstances").with("InstanceId.1", name);
        match self.ask(&query, |root| instance::state(root, name)) {
            Ok(named) => Ok(named),
            // The login has shown that the credentials lead to the account and the region of this machine, whose volumes are listed.
            Err(Failure::Refused(refusal))
                if refusal.is("InvalidInstanceID.NotFound") && refusal.said.contains(name) =>
            {
                Ok(Named::Nobody)
            }
            Err(failure) => Err(failure.general()),
        }
    }
}
