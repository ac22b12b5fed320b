//! Tokens that were taken back.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};

/// The numbers of the tokens that were taken back, as far as a process knows. A clone is another handle on the same ones.
#[derive(Clone, Debug, Default)]
pub struct Revoked(Arc<RwLock<BTreeSet<u64>>>);

impl Revoked {
    /// These as well: none is ever let in again.
    pub fn add(&self, tokens: impl IntoIterator<Item = u64>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).extend(tokens);
    }

    /// Whether one is among them.
    #[must_use]
    pub fn has(&self, token: u64) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains(&token)
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> Vec<u64> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}
