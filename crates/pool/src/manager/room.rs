//! The room of the store: whether there is enough for more files, and what is kept of its history.
//!
//! A store that is full takes no change at all, not even one that makes room. So new names are refused before that, while whatever makes
//! room, or finishes what was begun, goes on. History takes room as well: the warden has it forgotten once nobody needs it.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_pool_core::id::Revision;
use surgetank_pool_core::meta::Role;
use surgetank_pool_core::meta::operation::Operation;
use tokio::time::Instant;

use super::Manager;
use super::protocol::StoreStatus;
use crate::meta::{Unavailable, Usage};

/// How often the store is asked how full it is.
const LOOK: Duration = Duration::from_secs(1);
/// In thousandths of the quota: at so much new names are refused, and below so much they are taken again.
const FULL: u64 = 800;
const ROOMY: u64 = 750;
/// Revisions of the past that are remembered for each time that history is kept.
const STEPS: u32 = 10;

/// What is known of the store's room.
#[derive(Default)]
pub(super) struct Room(Mutex<State>);

#[derive(Default)]
struct State {
    usage: Option<Usage>,
    is_short: bool,
}

impl Room {
    /// The store was asked. Whether it has just become short of room, or has room again.
    fn heard(&self, usage: Option<Usage>) -> Option<bool> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.is_short;
        let taken = usage.map_or(0, |usage| if usage.takes_nothing { u64::MAX } else { usage.parts_taken() });
        *state = State { usage, is_short: taken >= FULL || (before && taken >= ROOMY) };
        (state.is_short != before).then_some(state.is_short)
    }

    /// Why no new names are taken, if they are not.
    pub(super) fn refusal(&self) -> Option<String> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.usage.filter(|_| state.is_short).map(sentence)
    }

    pub(super) fn status(&self) -> Option<StoreStatus> {
        let refusal = self.refusal();
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Usage { size, in_use, quota, .. } = state.usage?;
        Some(StoreStatus { size, in_use, quota, refusal })
    }
}

fn sentence(usage: Usage) -> String {
    let Usage { size, in_use, quota, takes_nothing } = usage;
    let (size, in_use, quota) = (Bytes::new(size), Bytes::new(in_use), Bytes::new(quota));
    if takes_nothing {
        return format!(
            "etcd is out of space (alarm NOSPACE; a file of {size}, {in_use} in use, quota {quota}) and takes no change: compact and \
             defragment it, or raise --quota-backend-bytes, then disarm the alarm"
        );
    }
    format!(
        "etcd is short of space (a file of {size}, {in_use} in use, quota {quota}), and new files are refused until less than {} % are \
         taken: remove files, compact and defragment etcd, or raise --quota-backend-bytes",
        ROOMY / 10
    )
}

/// Whether an operation makes a new name or node.
pub(super) const fn grows(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Create { .. }
            | Operation::MakeDirectory { .. }
            | Operation::MakeLink { .. }
            | Operation::MakeSpecial { .. }
            | Operation::Link { .. }
    )
}

/// Looks for ever.
pub(super) async fn watch(manager: &Manager) {
    let keep = manager.config.history;
    let mut history = History::default();
    let (mut sampled, mut told) = (Instant::now(), String::new());
    loop {
        match manager.store.usage().await {
            Ok(usage) => match (manager.room.heard(usage), manager.room.refusal()) {
                (Some(true), Some(why)) => tracing::error!("{why}"),
                (Some(false), _) => tracing::warn!("etcd has room again: new files are taken"),
                _ => {}
            },
            // Whoever needs the store says so.
            Err(error) => tracing::debug!("{error}"),
        }
        if Instant::now() >= sampled + keep / STEPS {
            sampled = Instant::now();
            if let Err(Unavailable(why)) = forget(manager, &mut history, sampled).await
                && why != told
            {
                tracing::warn!("{why}");
                told = why;
            }
        }
        tokio::time::sleep(LOOK.min(keep / STEPS)).await;
    }
}

/// Remembers the present revision, and has what is older than needed forgotten, if this manager is the warden.
async fn forget(manager: &Manager, history: &mut History, now: Instant) -> Result<(), Unavailable> {
    let revision = manager.store.read(&[], &[]).await?.revision;
    let keep = match manager.room.refusal() {
        Some(_) => manager.config.history / STEPS,
        None => manager.config.history,
    };
    match history.over(now, revision, keep) {
        Some(over) if manager.holds(Role::Warden).await? => manager.store.compact(over).await,
        _ => Ok(()),
    }
}

/// Revisions of the past, and when they were the newest.
#[derive(Default)]
struct History(VecDeque<(Instant, Revision)>);

impl History {
    /// The newest revision is this one. The newest of those that are as old as history is kept, if anything happened before it.
    fn over(&mut self, now: Instant, revision: Revision, keep: Duration) -> Option<Revision> {
        self.0.push_back((now, revision));
        let mut over = None;
        while let Some((_, old)) = self.0.front().copied().filter(|(at, _)| *at + keep <= now) {
            self.0.pop_front();
            over = Some(old);
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_names_are_refused_from_80_percent_on_until_less_than_75_are_taken() {
        let room = Room::default();
        let look = |size, in_use, takes_nothing| {
            room.heard(Some(Usage { size, in_use, quota: 1000, takes_nothing }));
            room.refusal().is_some()
        };
        let looks = [
            (799, 799, false, false),
            (800, 800, false, true),
            (800, 751, false, true),
            (800, 749, false, false),
            // Free pages are used again, unless the file is almost as large as it may be.
            (949, 100, false, false),
            (950, 100, false, true),
            (949, 100, false, false),
            (100, 100, true, true),
            (100, 100, false, false),
        ];
        for (size, in_use, takes_nothing, refused) in looks {
            assert_eq!(look(size, in_use, takes_nothing), refused, "{size}, {in_use}, {takes_nothing}");
        }
        assert_eq!(Room::default().heard(None), None, "a store without a quota is never short");
    }

    #[test]
    fn history_is_forgotten_when_it_is_old_enough_and_never_sooner() {
        let (mut history, begin) = (History::default(), Instant::now());
        let keep = Duration::from_secs(10);
        let over: Vec<_> =
            (0..14).map(|second| history.over(begin + Duration::from_secs(second), Revision(second), keep)).collect();
        assert_eq!(over[..10], [None; 10]);
        assert_eq!(over[10..], [0, 1, 2, 3].map(|second| Some(Revision(second))));
        // Room is short: more is forgotten at once.
        let short = history.over(begin + Duration::from_secs(14), Revision(14), keep / 5);
        assert_eq!(short, Some(Revision(12)));
    }
}
