//! The pool that a command asks something, without a session.

use std::time::Duration;

use clap::Args;
use surgetank_pool::client::{self, Config};
use surgetank_report::Failure;

use super::shown::Shown;
use super::{LISTEN, managers};

/// How long a pool may take to answer.
pub(super) const ANSWER: Duration = Duration::from_secs(5);

/// Which pool that is, and what it is shown.
#[derive(Debug, Args)]
pub struct Asked {
    /// The pool's address
    #[arg(value_name = "POOL", default_value = LISTEN)]
    pool: String,
    #[command(flatten)]
    shown: Shown,
}

impl Asked {
    /// Asks it something.
    pub fn ask<T>(&self, what: impl AsyncFnOnce(&Config) -> Result<T, client::Error>) -> Result<T, Failure> {
        let mut config = Config::new(managers(&self.pool), self.shown.access()?, "");
        config.timeout = ANSWER;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
        runtime.block_on(what(&config)).map_err(|error| match error {
            client::Error::Address(why) => Failure::Invalid(why),
            client::Error::NotAllowed(why) | client::Error::Declined(why) => Failure::Failed(why),
            error => Failure::Failed(format!(
                "no pool answers at {}: start one with `surgetank pool up`, or name its address ({error})",
                config.managers.join(", ")
            )),
        })
    }
}
