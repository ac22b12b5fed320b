//! The mount's session with the pool. One that has ended, since no manager was reached for too long, is followed by another: what is open
//! stays failed, what is opened afterwards works.

use std::sync::{Arc, PoisonError, RwLock};

use surgetank_pool::client::{Config, Error, PoolClient};

/// See the module.
pub(crate) struct Sessions {
    config: Config,
    current: RwLock<Arc<PoolClient>>,
    beginning: tokio::sync::Mutex<()>,
}

impl Sessions {
    pub(crate) async fn begin(config: Config) -> Result<Self, Error> {
        let first = Arc::new(PoolClient::begin(config.clone()).await?);
        Ok(Self { config, current: RwLock::new(first), beginning: tokio::sync::Mutex::default() })
    }

    /// The present one, in whatever state it is.
    pub(crate) fn present(&self) -> Arc<PoolClient> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// One that lasts, as far as is known.
    pub(crate) async fn client(&self) -> Result<Arc<PoolClient>, Error> {
        let present = self.present();
        if !present.is_over() {
            return Ok(present);
        }
        let _one_at_a_time = self.beginning.lock().await;
        let present = self.present();
        if !present.is_over() {
            return Ok(present);
        }
        tracing::error!(
            "the session with the pool has ended: files that were open for writing fail; another session begins"
        );
        let next = Arc::new(PoolClient::begin(self.config.clone()).await?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&next);
        Ok(next)
    }
}
