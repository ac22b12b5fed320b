//! Which key a store is used with. Managers of one store need the same: what is made of one's key, another would refuse.

use surgetank_pool_core::meta::store::{Compare, Outcome, Transaction, Write};
use surgetank_pool_core::meta::{Key, Stored, Value};

use crate::meta::{MetaStore, Unavailable};
use crate::security::token;

/// Why a store is not used with a key.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refused {
    /// It is used with another.
    #[error("the store is used with another key by now (--new-key)")]
    Another,
    /// It does not say.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// What a start does.
enum Step {
    /// The store is used with this key.
    Done,
    /// The key counts from now on if this is so.
    Put(Compare),
    Refuse,
}

fn step(found: Option<&Stored>, key: &token::Key, replaces: bool) -> Step {
    match found {
        // Also a store of a release that kept none.
        None => Step::Put(Compare::Absent(Key::Fingerprint)),
        Some(stored) if is_of(stored, key) => Step::Done,
        Some(stored) if replaces => Step::Put(Compare::Modified(Key::Fingerprint, stored.modified)),
        Some(_) => Step::Refuse,
    }
}

/// Whether that is what a store has that is used with this key.
pub(crate) fn is_of(stored: &Stored, key: &token::Key) -> bool {
    matches!(&stored.value, Value::Fingerprint(fingerprint) if *fingerprint == key.fingerprint())
}

/// The store is used with this key from now on, in the place of another if it replaces that. Of several that begin at once one is first.
///
/// # Errors
/// [`Refused`].
pub async fn claim(store: &dyn MetaStore, key: &token::Key, replaces: bool) -> Result<(), Refused> {
    loop {
        let read = store.read(&[Key::Fingerprint], &[]).await?;
        let compare = match step(read.keys.first().and_then(Option::as_ref), key, replaces) {
            Step::Done => return Ok(()),
            Step::Refuse => return Err(Refused::Another),
            Step::Put(compare) => compare,
        };
        let writes = vec![Write::Put(Key::Fingerprint, Value::Fingerprint(key.fingerprint()))];
        match store.commit(&Transaction { compares: vec![compare], writes }).await {
            Ok(Outcome::Committed(_)) => return Ok(()),
            // Somebody else was first.
            Ok(Outcome::Refused(_)) => {}
            Ok(Outcome::Unknown) => {
                return Err(Unavailable("it did not say what became of a transaction".to_owned()).into());
            }
            Err(ended) => return Err(Unavailable(ended.to_string()).into()),
        }
    }
}
