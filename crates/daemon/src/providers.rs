//! The providers of a daemon, by name.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use surgetank_provider::{Provider, ProviderConfig, ProviderError};

use crate::config::{Config, DeviceConfig};
use crate::places;
use crate::striped::StripedProvider;
use crate::timed::TimedProvider;

/// Open providers.
#[derive(Clone, Default)]
pub struct Providers(BTreeMap<&'static str, Arc<dyn Provider>>);

impl Providers {
    /// Opens all that a configuration has, or takes one in the place of each.
    ///
    /// # Errors
    /// One sentence with the remedy.
    pub fn open(config: &Config, instead: Option<&Arc<dyn Provider>>) -> Result<Self, String> {
        let state = Some(&*config.state_directory);
        let open = |(name, config): (&&'static str, &Arc<dyn ProviderConfig>)| {
            let opened = instead.map_or_else(|| open(&**config, state), |instead| Ok(instead.clone()));
            let opened = opened.map_err(|error| error.to_string())?;
            Ok((*name, Arc::new(StripedProvider::new(opened, 1)) as Arc<dyn Provider>))
        };
        config.providers.iter().map(open).collect::<Result<_, _>>().map(Self)
    }

    /// From whom a device rents: stripes, if its caching volumes are.
    #[must_use]
    pub fn of(&self, device: &DeviceConfig) -> Option<Arc<dyn Provider>> {
        let caching = device.caching.as_ref()?;
        let provider = self.0.get(caching.provider)?.clone();
        Some(match caching.volumes {
            1 => provider,
            most if caching.volumes_are_chosen => Arc::new(StripedProvider::at_most(provider, most)),
            volumes => Arc::new(StripedProvider::new(provider, volumes)),
        })
    }

    /// The one of this name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Arc<dyn Provider>> {
        self.0.get(name)
    }

    /// The same, each of whose answers is waited for so long.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        let timed = |(name, provider): (_, &Arc<dyn Provider>)| {
            (name, Arc::new(TimedProvider::new(provider.clone(), timeout)) as Arc<dyn Provider>)
        };
        Self(self.iter().map(timed).collect())
    }

    /// All of them, with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Arc<dyn Provider>)> {
        self.0.iter().map(|(name, provider)| (*name, provider))
    }
}

/// Opens a provider, unless others could change what is in its directory. `state`: as [`ProviderConfig::open`] has it.
///
/// # Errors
/// As [`ProviderConfig::open`].
pub fn open(config: &dyn ProviderConfig, state: Option<&Path>) -> Result<Arc<dyn Provider>, ProviderError> {
    let check = || config.directory().map_or(Ok(()), places::check).map_err(ProviderError::Invalid);
    check()?;
    let provider = config.open(state)?;
    // Somebody else may have made it first.
    check()?;
    Ok(provider)
}
