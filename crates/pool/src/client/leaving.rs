//! Benefactors are taken out, and leave.

use surgetank_pool_core::id::BenefactorId;
use tokio::time::Instant;

use super::{Config, Error, PoolClient, senseless};
use crate::manager::{Leaving, Reply, Request};
use crate::managers::Managers;

impl PoolClient {
    /// A dead benefactor is expected no longer, without a session: files of which its SSD had the only copy count as lost.
    ///
    /// # Errors
    /// [`Error`]: it is alive, or the pool has none of the number.
    pub async fn leave(config: &Config, benefactor: BenefactorId) -> Result<(), Error> {
        about(config, Request::Leave(benefactor)).await.map(|_| ())
    }

    /// A benefactor is taken out from now on: it is given nothing, and what it has is moved.
    ///
    /// # Errors
    /// [`Error`]: it does not lend, or the others have no room.
    pub async fn take_out(config: &Config, benefactor: BenefactorId) -> Result<(), Error> {
        about(config, Request::TakeOut(benefactor)).await.map(|_| ())
    }

    /// It stays.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn take_back(config: &Config, benefactor: BenefactorId) -> Result<(), Error> {
        about(config, Request::TakeBack(benefactor)).await.map(|_| ())
    }

    /// How far that has come; `None`: it is not taken out.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn leaving(config: &Config, benefactor: BenefactorId) -> Result<Option<Leaving>, Error> {
        match about(config, Request::Leaving(benefactor)).await? {
            Reply::Leaving(how) => Ok(how),
            _ => Err(senseless()),
        }
    }
}

pub(super) async fn about(config: &Config, request: Request) -> Result<Reply, Error> {
    let managers = Managers::new(&config.managers, &config.access)?;
    Ok(managers.ask_until(Instant::now() + config.timeout, |_| request.clone()).await?)
}
