//! What keeps changes from their targets: the log says it when it begins, and again while it stays, not with every attempt. Whoever asks how
//! the pool is is told.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use surgetank_pool_core::id::MountId;
use tokio::time::Instant;

use super::protocol::Standstill;
use super::target::{ASIDE, Target};

/// The pause before the same is said again.
const AGAIN: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Default)]
pub(super) struct Troubles(Mutex<State>);

#[derive(Default)]
struct State {
    /// What was said lately: at which target, of what there, and why.
    said: BTreeMap<(MountId, Option<PathBuf>, String), Instant>,
    /// Why targets have seen nothing, and since when.
    standing: BTreeMap<MountId, (String, PathBuf, Instant)>,
}

impl Troubles {
    /// An attempt at a target failed, to have something at a place there or anything. `text` ends with the reason, behind the last `: ` in it,
    /// which stays the same from attempt to attempt.
    pub(super) fn of(&self, target: &Target, place: Option<&Path>, text: &impl Display) {
        let (text, now) = (text.to_string(), Instant::now());
        let (reason, directory) = (reason(&text), target.directory());
        let mut state = self.state();
        let is_new = state.is_new((target.mount(), place.map(Path::to_owned), reason.clone()), now);
        let standing = state.standing.entry(target.mount());
        standing.or_insert_with(|| (String::new(), directory.to_owned(), now)).0.clone_from(&reason);
        drop(state);
        if is_new {
            let (at, remedy) = (directory.display(), remedy(&reason, directory));
            match place {
                Some(place) => tracing::warn!("{} is not there yet: {text}: {remedy}", place.display()),
                None => tracing::warn!("target {at}: {text}: {remedy}"),
            }
        }
    }

    /// A mount's target has seen something, or nothing waits for it.
    pub(super) fn over(&self, mount: MountId) {
        self.state().standing.remove(&mount);
    }

    /// Why a mount's target sees nothing at present.
    pub(super) fn standstill(&self, mount: MountId) -> Option<Standstill> {
        let state = self.state();
        let (why, directory, since) = state.standing.get(&mount)?;
        let remedy = remedy(why, directory);
        Some(Standstill { why: why.clone(), remedy, seconds: since.elapsed().as_secs() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_new(&mut self, trouble: (MountId, Option<PathBuf>, String), now: Instant) -> bool {
        self.said.retain(|_, at| now < *at + AGAIN);
        let is_new = !self.said.contains_key(&trouble);
        if is_new {
            self.said.insert(trouble, now);
        }
        is_new
    }
}

/// What is wrong with a target, and what a user does about it.
pub(super) fn with_remedy(text: &str, directory: &Path) -> String {
    format!("{text}: {}", remedy(&reason(text), directory))
}

/// The last part of a sentence, without the system's number.
fn reason(text: &str) -> String {
    let last = text.rsplit(": ").next().unwrap_or_default();
    last.split(" (os error").next().unwrap_or_default().to_owned()
}

/// What a user does about a reason.
fn remedy(reason: &str, directory: &Path) -> String {
    let remedies = [
        ("No space left", "make room there"),
        ("quota exceeded", "make room there, or raise the quota"),
        ("Permission denied", "give the user of the pool's processes the right to write there"),
        ("Operation not permitted", "give the user of the pool's processes the right to do that there"),
        ("No such file or directory", "mount its file system, or make the directory again"),
        ("Read-only file system", "mount it writable"),
        ("no such bucket", "make the bucket"),
        ("credentials have expired", "give the managers new ones"),
        ("does not know the credentials", "give the managers those of the store"),
        ("denies access", "give the managers' credentials the right to list, read, write and delete there"),
        ("environment does not say", "say it in the environment of the managers, and start them again"),
        (
            "of another pool",
            "name another target, or remove the object `.surgetank/manifest` there if that pool is gone",
        ),
        (
            "is none of a pool",
            "see to it that the address of the store in the managers' environment is one that speaks S3, or remove that object if somebody else has put it there",
        ),
        ("of another mount", "name another target, or mount it under that name"),
        ("refuses parts", "let the store take parts of 8 MiB"),
        ("manifest has been removed", "see who else writes there"),
        (
            "metadata service gives none",
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment of the managers, and start them again",
        ),
        ("the store does not answer", "see to it that the managers and benefactors reach it"),
    ];
    match remedies.iter().find(|(of, _)| reason.contains(of)) {
        _ if reason.contains(ASIDE) => {
            let aside = directory.join(ASIDE);
            format!("mount it, or accept the directory as it is with `mkdir {}`", aside.display())
        }
        Some((_, remedy)) => (*remedy).to_owned(),
        None => "see to that".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_once_a_minute_and_something_else_at_once() {
        let (mut state, begun) = (State::default(), Instant::now());
        let full = || (MountId(1), Some(PathBuf::from("/scratch/a")), "No space left on device".to_owned());
        assert!(state.is_new(full(), begun));
        assert!(!state.is_new(full(), begun + AGAIN / 2));
        assert!(state.is_new((MountId(1), full().1, "Permission denied".to_owned()), begun + AGAIN / 2));
        assert!(state.is_new((MountId(1), None, full().2), begun + AGAIN / 2));
        assert!(state.is_new((MountId(2), full().1, full().2), begun + AGAIN / 2));
        assert!(state.is_new(full(), begun + AGAIN));
    }

    #[test]
    fn a_reason_is_without_paths_and_numbers_and_has_a_remedy() {
        let found = reason("what an attempt has left: /scratch/.surgetank/1.2: No space left on device (os error 28)");
        assert_eq!(found, "No space left on device");
        assert_eq!(remedy(&found, Path::new("/scratch")), "make room there");
        assert_eq!(reason(""), "");
    }
}
