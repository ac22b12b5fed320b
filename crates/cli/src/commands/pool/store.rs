//! Which store a pool's names are kept in.

use std::path::{Path, PathBuf};

use clap::Args;
use surgetank_model::Bytes;
use surgetank_pool::meta::etcd;
use surgetank_report::Failure;

/// Flags of whatever has a store.
#[derive(Debug, Args)]
pub struct Store {
    /// An etcd that keeps the pool's names: etcd://HOST:PORT[,HOST:PORT…][/NAME]; pools of different names share it
    #[arg(long, value_name = "ETCD")]
    store: Option<String>,
    /// Certificate of the authority that signed etcd's: it is called with TLS
    #[arg(long, value_name = "FILE", requires = "store")]
    store_ca: Option<PathBuf>,
    /// Certificate to show to etcd
    #[arg(long, value_name = "FILE", requires = "store_ca", requires = "store_key")]
    store_cert: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "store_cert")]
    store_key: Option<PathBuf>,
    /// User of etcd
    #[arg(long, value_name = "NAME", requires = "store", requires = "store_password")]
    store_user: Option<String>,
    /// File with that user's password
    #[arg(long, value_name = "FILE", requires = "store_user")]
    store_password: Option<PathBuf>,
    /// Its --quota-backend-bytes, of an etcd before 3.6, which does not say it [default: 2 GiB, as etcd's]
    #[arg(long, value_name = "SIZE", requires = "store")]
    store_quota: Option<Bytes>,
    /// Replace the key that the etcd's pool is used with: its tokens are let in no more; it waits until all managers have ended
    #[arg(long, requires = "store")]
    pub new_key: bool,
}

impl Store {
    /// The etcd, if one is named.
    ///
    /// # Errors
    /// What is wrong with a flag.
    pub fn etcd(&self) -> Result<Option<etcd::Config>, Failure> {
        let Some(store) = &self.store else { return Ok(None) };
        let invalid = |error: etcd::BadConfig| Failure::Invalid(format!("--store: {error}"));
        let mut config = etcd::Config::parse(store).map_err(invalid)?;
        if let Some(authority) = &self.store_ca {
            let identity = match (&self.store_cert, &self.store_key) {
                (Some(certificate), Some(key)) => Some((read("--store-cert", certificate)?, read("--store-key", key)?)),
                _ => None,
            };
            config.tls = Some(etcd::Tls { authority: read("--store-ca", authority)?, identity });
        }
        if let (Some(user), Some(file)) = (&self.store_user, &self.store_password) {
            let password = String::from_utf8(read("--store-password", file)?).map_err(|_| {
                Failure::Invalid(format!("--store-password: {}: it is not text in UTF-8", file.display()))
            })?;
            config.user = Some((user.clone(), password.trim_end_matches('\n').to_owned()));
        }
        // As etcd's own flag has it, zero is its default.
        config.quota = self.store_quota.map(Bytes::get).filter(|quota| *quota > 0);
        config.check().map_err(invalid)?;
        Ok(Some(config))
    }
}

fn read(flag: &str, file: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(file)
        .map_err(|error| Failure::Invalid(format!("{flag}: {}: {error}: name a file that can be read", file.display())))
}
