//! Tokens are taken back.

use tokio::time::Instant;

use super::{Config, Error, PoolClient};
use crate::manager::Request;
use crate::managers::Managers;

impl PoolClient {
    /// A token is taken back, by its number: within seconds no manager or benefactor lets it in, nor a session that it began.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn revoke(config: &Config, token: u64) -> Result<(), Error> {
        let managers = Managers::new(&config.managers, &config.access)?;
        let until = Instant::now() + config.timeout;
        Ok(managers.ask_until(until, |_| Request::Revoke(token)).await.map(|_| ())?)
    }
}
