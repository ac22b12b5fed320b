//! Which key a store is used with. Managers of one store need the same: what is made of one's key, another would refuse.

use std::time::Duration;

use surgetank_pool_core::meta::store::{Compare, Outcome, Transaction, Write};
use surgetank_pool_core::meta::{Key, Role, Stored, Value};

use crate::manager;
use crate::meta::{MetaStore, Unavailable};
use crate::security::token;

/// Why a store is not used with a key.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refused {
    /// It is used with another.
    #[error("the store is used with another key by now (--new-key)")]
    Another,
    /// It is used with another by a manager that runs.
    #[error("a manager that runs uses the store with another key")]
    InUse,
    /// It does not say.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// Whether a key takes the place of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaces {
    /// It is refused.
    Never,
    /// Once no manager runs: two that replace each other's key would end each other for ever.
    WhenUnused,
    /// Nobody else can have the store open.
    Always,
}

/// What a start does.
enum Step {
    /// The store is used with this key.
    Done,
    /// The key counts from now on if this is so.
    Put(Vec<Compare>),
    Refuse(Refused),
}

/// Of managers that run one is warden, from when it begins.
const RUNS: Key = Key::Owner(Role::Warden);

/// How long nobody is warden at most while managers run: the role of one that ended is over at last, and another one has looked twice.
fn without_warden() -> Duration {
    let config = manager::Config::default();
    config.role + 2 * config.sweep
}

fn step(found: Option<&Stored>, runs: bool, key: &token::Key, replaces: Replaces) -> Step {
    let Some(stored) = found else {
        // Also a store of a release that kept none.
        return Step::Put(vec![Compare::Absent(Key::Fingerprint)]);
    };
    let replaced = Compare::Modified(Key::Fingerprint, stored.modified);
    match replaces {
        _ if is_of(stored, key) => Step::Done,
        Replaces::Never => Step::Refuse(Refused::Another),
        Replaces::WhenUnused if runs => Step::Refuse(Refused::InUse),
        Replaces::WhenUnused => Step::Put(vec![replaced, Compare::Absent(RUNS)]),
        Replaces::Always => Step::Put(vec![replaced]),
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
pub async fn claim(store: &dyn MetaStore, key: &token::Key, replaces: Replaces) -> Result<(), Refused> {
    let mut has_waited = replaces != Replaces::WhenUnused;
    loop {
        let read = store.read(&[Key::Fingerprint, RUNS], &[]).await?;
        let [found, warden] = &read.keys[..] else { return Err(Unavailable("it answers in parts".to_owned()).into()) };
        let compares = match step(found.as_ref(), warden.is_some(), key, replaces) {
            Step::Done => return Ok(()),
            Step::Refuse(refused) => return Err(refused),
            Step::Put(_) if found.is_some() && !has_waited => {
                has_waited = true;
                tokio::time::sleep(without_warden()).await;
                continue;
            }
            Step::Put(compares) => compares,
        };
        let writes = vec![Write::Put(Key::Fingerprint, Value::Fingerprint(key.fingerprint()))];
        match store.commit(&Transaction { compares, writes }).await {
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
