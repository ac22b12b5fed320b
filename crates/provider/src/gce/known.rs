//! What this process knows of disks: which operations it has begun, and what it was told a moment ago.
//!
//! Compute Engine accepts a change before it is carried out, and a disk shows the change when it has been. So the states on the way
//! come from operations. Those of this process are known by name; of a disk of which nothing is known, as after a restart or after
//! an answer that was lost, the list of operations has to tell.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::compute::{Doing, Operation, Which};
use super::disk::Disk;
use super::labels::Labels;
use crate::clock::whole_ms;
use crate::cloud::known;
use crate::{Lag, VolumeState};

/// A change that was accepted.
#[derive(Clone, Debug)]
pub struct Pending {
    /// The operation's name.
    pub operation: String,
    /// What it does.
    pub doing: Doing,
    /// The disk before it; `None`: another process has begun it.
    pub disk: Option<Disk>,
    /// When it was accepted; 0: it was listed.
    pub begun_ms: u64,
}

impl Pending {
    /// Whether its operation may not be known yet. A clock that has stepped backwards makes nothing new.
    #[must_use]
    pub fn is_new(&self, now_ms: u64) -> bool {
        now_ms.checked_sub(self.begun_ms).is_some_and(|age_ms| age_ms < whole_ms(Lag::CLOUD.known))
    }

    /// Whether a disk shows what the change does; `None`: there is no such disk.
    #[must_use]
    pub fn is_shown(&self, disk: Option<&Disk>) -> bool {
        match (self.doing, disk) {
            (Doing::Attach, Some(disk)) => !disk.users.is_empty(),
            (Doing::Detach, Some(disk)) => disk.users.is_empty(),
            // To which size it grows, nobody remembers.
            (Doing::Create, None) | (Doing::Delete | Doing::Grow, Some(_)) => false,
            _ => true,
        }
    }
}

/// The change of a disk that is on the way, of those that are: the last one, should there be several.
#[must_use]
pub fn pending_of(disk: &str, operations: &[Operation]) -> Option<Pending> {
    let marks = Doing::SHOWN.map(|doing| (doing, doing.mark(disk)));
    let found = operations.iter().filter_map(|operation| {
        let request = operation.request.as_deref()?;
        let (doing, _) = marks.iter().find(|(_, mark)| request.starts_with(mark))?;
        Some((operation, *doing))
    });
    let (operation, doing) = found.max_by_key(|(operation, _)| operation.inserted_ms)?;
    Some(Pending { operation: operation.name.clone(), doing, disk: None, begun_ms: 0 })
}

/// What is known of all disks.
#[derive(Debug, Default)]
pub struct Known {
    /// What was asked for, and how disks were seen.
    pub disks: known::Known<Pending, (Disk, VolumeState)>,
    /// Requests for a change of which nobody knows whether they have arrived.
    doubts: Mutex<BTreeMap<String, (Doing, Which)>>,
}

impl Known {
    fn doubtful(&self) -> MutexGuard<'_, BTreeMap<String, (Doing, Which)>> {
        self.doubts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A change was accepted. Whether that is news: a request that is repeated begins no other operation.
    pub fn begins(&self, pending: Pending, disk: &Disk, under_way: VolumeState, now_ms: u64) -> bool {
        self.doubtful().remove(&disk.name);
        let operation = pending.operation.clone();
        let is_same = |former: &Pending| former.operation == operation;
        self.disks.begins(&disk.name, pending, (disk.clone(), under_way), now_ms, is_same)
    }

    /// A change that another process has begun, or whose answer was lost, as a look has found it that began after so many changes.
    pub fn found(&self, disk: &str, pending: &Pending, changes: u64) {
        let mut doubts = self.doubtful();
        if doubts.get(disk).is_some_and(|(doubted, _)| *doubted == pending.doing) {
            doubts.remove(disk);
        }
        self.disks.found(disk, pending.clone(), changes);
    }

    /// An operation has ended, or another one counts.
    pub fn ends(&self, disk: &str, operation: &str) {
        self.disks.ends(disk, |pending| pending.operation == operation);
    }

    /// Its labels are these now. The fingerprint is not known.
    pub fn relabelled(&self, disk: &str, labels: &Labels) {
        self.disks.alters(disk, |entry| {
            let before = entry.pending.as_mut().and_then(|pending| pending.disk.as_mut());
            for disk in before.into_iter().chain(entry.told.as_mut().map(|(_, (disk, _))| disk)) {
                disk.labels.clone_from(labels);
                disk.fingerprint = None;
            }
        });
    }

    /// Nothing is known any more, and no request for a change can arrive: the disk is gone, or the last one has ended.
    pub fn settles(&self, disk: &str) {
        self.disks.forget(disk);
        self.doubtful().remove(disk);
    }

    /// Nobody knows whether this request for a change has arrived, which is repeated as the same one.
    pub fn doubts(&self, disk: &str, doing: Doing, which: Which) {
        self.doubtful().insert(disk.to_owned(), (doing, which));
    }

    /// Which request for this change may arrive yet: asked for again as the same one, it is carried out once.
    pub fn doubted(&self, disk: &str, doing: Doing) -> Option<Which> {
        self.doubtful().get(disk).filter(|(doubted, _)| *doubted == doing).map(|(_, which)| *which)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_several_changes_on_the_way_the_last_one_counts_in_whatever_zone_its_time_is_told() {
        let operation = |name: &str, doing: Doing, inserted: &str| {
            let told = json!({
                "kind": "compute#operation", "name": name, "status": "RUNNING", "insertTime": inserted,
                "clientOperationId": format!("{}-4000-8000-000000000000", doing.mark("surgetank-a")),
            });
            Operation::read(&told).unwrap()
        };
        // At the end of summer time.
        let attach = operation("first", Doing::Attach, "2026-11-01T01:59:59.900-07:00");
        let detach = operation("second", Doing::Detach, "2026-11-01T01:00:00.100-08:00");
        for operations in [[attach.clone(), detach.clone()], [detach, attach]] {
            assert_eq!(pending_of("surgetank-a", &operations).map(|pending| pending.doing), Some(Doing::Detach));
            assert!(pending_of("surgetank-b", &operations).is_none());
        }
    }
}
