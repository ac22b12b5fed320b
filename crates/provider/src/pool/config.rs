//! From which staging pool a daemon rents: its `[provider.pool]` section.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use surgetank_model::Bytes;
use surgetank_model::units::{Span, TIB};
use surgetank_pool::chunks::CHUNK;
use surgetank_pool::client;
use surgetank_pool::security::Access;
use surgetank_pool::security::tls::Tls;
use surgetank_pool_core::meta::Durability;
use surgetank_pool_core::placement::Media;

use super::PoolProvider;
use crate::table::{ProviderConfig, TypeLimits};
use crate::{Provider, ProviderError};

/// The one type of volumes.
pub(super) const TYPE: &str = "fast";
/// Sizes are multiples of this.
pub(super) const GRAIN: Bytes = Bytes::new(CHUNK);
/// The largest volume.
pub(super) const SIZE_MAX: Bytes = Bytes::new(16 * TIB);
/// Where managers listen unless it is said.
const PORT: u16 = 7440;

/// A pool, and which of its mounts the volumes are in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PoolConfig {
    /// Its managers: `pool://HOST[:PORT][,HOST[:PORT]…]`.
    pub address: String,
    /// The file that has the pool's key, or a token for the target.
    pub token_file: PathBuf,
    /// The directory with this machine's certificates, for a pool beyond loopback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificates: Option<PathBuf>,
    /// The directory to which the pool brings volumes that nobody has had open for a while. Managers and benefactors see it as well.
    pub target: PathBuf,
    /// On how many benefactors each chunk lies before a flush has ended: `copies=N[,media=ssd]`.
    pub durable: String,
    /// How long an answer of the pool may take.
    pub timeout: Span,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            address: format!("pool://127.0.0.1:{PORT}"),
            token_file: "/var/lib/surgetank/pool/key".into(),
            certificates: None,
            target: "/var/lib/surgetank/pool-volumes".into(),
            durable: "copies=2".to_owned(),
            timeout: Span(Duration::from_secs(10)),
        }
    }
}

impl PoolConfig {
    /// Copies of each chunk, and where each lies.
    ///
    /// # Errors
    /// One sentence with the remedy.
    pub(super) fn copies(&self) -> Result<(u8, Media), String> {
        let (copies, media) = match self.durable.split_once(',') {
            Some((copies, "media=ssd")) => (copies, Media::Ssd),
            _ => (&*self.durable, Media::Any),
        };
        match copies.strip_prefix("copies=").and_then(|number| number.parse::<u8>().ok()) {
            Some(copies) if copies > 0 => Ok((copies, media)),
            _ => Err(format!(
                "durable is \"{}\": write \"copies=1\", \"copies=2\" and so on, or \"copies=2,media=ssd\"",
                self.durable
            )),
        }
    }

    fn managers(&self) -> Vec<String> {
        let addresses = self.address.strip_prefix("pool://").unwrap_or(&self.address).trim_end_matches('/');
        let whole = |address: &str| match address.contains(':') {
            true => address.to_owned(),
            false => format!("{address}:{PORT}"),
        };
        addresses.split(',').map(whole).collect()
    }

    /// With what the pool's client begins: a session of the mount that has the target's name.
    ///
    /// # Errors
    /// One sentence with the remedy.
    pub fn client(&self) -> Result<client::Config, String> {
        let (copies, media) = self.copies()?;
        let tls = self.certificates.as_deref().map(|directory| Tls::read(directory, false)).transpose();
        let tls = tls.map_err(|error| format!("certificates of [provider.pool]: {error}"))?;
        let access =
            Access::read(&self.token_file).map_err(|error| format!("token_file of [provider.pool]: {error}"))?;
        let name = self.target.display().to_string();
        let mut config = client::Config::new(self.managers(), access.with_tls(tls), &name);
        config.make = Some((self.target.clone(), Durability::Copies { copies, media }));
        config.timeout = self.timeout.0;
        Ok(config)
    }
}

impl ProviderConfig for PoolConfig {
    fn check(&self) -> Result<(), String> {
        if !self.address.starts_with("pool://") {
            return Err(format!("the address {:?} is no pool's: write \"pool://127.0.0.1:7440\"", self.address));
        }
        for address in self.managers() {
            // Names are looked up when they are called.
            if address.parse().is_ok_and(|address: std::net::SocketAddr| !address.ip().is_loopback())
                && self.certificates.is_none()
            {
                return Err(format!(
                    "the address {address} is beyond this machine, where the pool speaks TLS alone: add certificates = \"/the/directory\""
                ));
            }
            if address.rsplit_once(':').is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err()) {
                return Err(format!("the address {address:?} is none: write \"pool://127.0.0.1:7440\""));
            }
        }
        if !self.target.is_absolute() {
            return Err(format!(
                "target is {:?}: write the whole path of the directory to which the pool brings volumes that nobody uses",
                self.target
            ));
        }
        if self.timeout.0 < Duration::from_secs(1) {
            return Err("timeout is shorter than a second: write \"10 s\", or leave it out".to_owned());
        }
        self.copies().map(drop)
    }

    fn directory(&self) -> Option<&Path> {
        None
    }

    fn type_limits(&self, volume_type: &str) -> Result<TypeLimits, ProviderError> {
        if volume_type != TYPE {
            return Err(ProviderError::Invalid(format!(
                "the pool has no volume type \"{volume_type}\": write \"{TYPE}\", or leave it out"
            )));
        }
        Ok(TypeLimits { sizes: (GRAIN, SIZE_MAX), bandwidth: None, iops: None, throttle: false })
    }

    /// Opening it asks nobody.
    fn would_open(&self) -> Result<(), ProviderError> {
        self.client().map(drop).map_err(ProviderError::Invalid)
    }

    fn open(&self, _: Option<&Path>) -> Result<Arc<dyn Provider>, ProviderError> {
        Ok(Arc::new(PoolProvider::open(self.clone())?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn section_of_a_file() {
        let config: PoolConfig = toml::from_str("").unwrap();
        assert_eq!((config.check(), config.managers()), (Ok(()), vec!["127.0.0.1:7440".to_owned()]));
        let text =
            "address = \"pool://node1,node2:7\"\ndurable = \"copies=3,media=ssd\"\ntarget = \"/scratch/volumes\"";
        let config: PoolConfig = toml::from_str(text).unwrap();
        assert_eq!(config.managers(), ["node1:7440", "node2:7"]);
        assert_eq!((config.check(), config.copies()), (Ok(()), Ok((3, Media::Ssd))));
        assert!(toml::from_str::<PoolConfig>("colour = 3").is_err());
        assert!(toml::from_str::<PoolConfig>("timeout = 3").unwrap_err().to_string().contains("has no unit"));
    }

    #[test]
    fn every_mistake_is_told_with_its_remedy() {
        let good = PoolConfig::default;
        let mistakes = [
            (PoolConfig { address: "127.0.0.1:7440".to_owned(), ..good() }, "write \"pool://127.0.0.1:7440\""),
            (PoolConfig { address: "pool://".to_owned(), ..good() }, "is none"),
            (PoolConfig { address: "pool://a:b".to_owned(), ..good() }, "is none"),
            (PoolConfig { address: "pool://10.0.0.1:7440".to_owned(), ..good() }, "add certificates"),
            (PoolConfig { target: "volumes".into(), ..good() }, "write the whole path"),
            (PoolConfig { durable: "copies=0".to_owned(), ..good() }, "write \"copies=1\""),
            (PoolConfig { durable: "copies=2,media=tape".to_owned(), ..good() }, "write \"copies=1\""),
            (PoolConfig { timeout: Span(Duration::from_millis(9)), ..good() }, "timeout is shorter"),
        ];
        for (config, why) in mistakes {
            let error = config.check().unwrap_err();
            assert!(error.contains(why) && !error.contains('\n'), "{error}");
        }
        let absent = PoolConfig { token_file: "/nowhere/key".into(), ..good() }.would_open().unwrap_err();
        assert!(absent.to_string().starts_with("token_file of [provider.pool]: "), "{absent}");
        assert!(good().type_limits("slow").unwrap_err().to_string().contains("write \"fast\""));
    }
}
