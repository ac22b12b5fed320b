//! Files that have lost their last name before the target had what was committed of them: they end, and their chunks leave the pool, though
//! entries before theirs may wait for ever.

use std::collections::BTreeMap;

use surgetank_pool_core::id::{Inode, Version};
use surgetank_pool_core::meta::operation::{Operation, Refusal};
use surgetank_pool_core::meta::value::{Change, Placed};
use surgetank_pool_core::meta::{Key, Name, Prefix, Value};

use super::{Work, on_target};
use crate::manager::answers::values;
use crate::manager::protocol::Ended;
use crate::meta::Unavailable;

/// Files that are read from the store at a time.
const FILES: usize = 64;

impl Work {
    /// Ends files without a name that nobody has open; `false`: another manager publishes.
    pub(super) async fn forget_removed(&mut self) -> Result<bool, Unavailable> {
        let mut files: BTreeMap<Inode, Vec<Version>> = BTreeMap::new();
        for (inode, version) in self.publisher.unpublished() {
            files.entry(inode).or_default().push(version);
        }
        let mut removed = Vec::new();
        let all: Vec<Inode> = files.keys().copied().collect();
        for part in all.chunks(FILES) {
            let keys: Vec<Key> = part.iter().copied().map(Key::Node).collect();
            let read = self.manager.store.read(&keys, &[]).await?;
            let is_named = |value: &Option<&Value>| matches!(value, Some(Value::Node(node)) if node.at.is_some());
            let of = part.iter().zip(values(&read));
            removed.extend(of.filter(|(_, value)| !is_named(value)).map(|(inode, _)| *inode));
        }
        for inode in removed {
            let versions = files.remove(&inode).unwrap_or_default();
            match self.forget(inode, &versions).await? {
                Some(Ended::Refused(Refusal::NotThePublisher)) => return Ok(false),
                // What is gone already was ended by this publisher, or a former one.
                Some(Ended::Reply(_) | Ended::Refused(Refusal::NotFound)) => {
                    for version in versions {
                        self.discard((inode, version)).await;
                        self.publisher.forgotten(inode, version);
                    }
                }
                _ => {}
            }
        }
        Ok(true)
    }

    /// `None`: it does not end now.
    async fn forget(&self, inode: Inode, versions: &[Version]) -> Result<Option<Ended>, Unavailable> {
        let read = self.manager.store.read(&[Key::Node(inode)], &[Prefix::Writers(inode)]).await?;
        if read.prefixes.iter().any(|writers| !writers.is_empty()) {
            return Ok(None);
        }
        for version in versions {
            let Some(turn) = self.publisher.entry((inode, *version)) else { continue };
            // What a former publisher has given a name is removed as the pool's own only once that is on record.
            if turn.maybe_done && values(&read).first().is_some_and(Option::is_some) {
                let change = turn.change.clone();
                if !self.is_unpublished(change).await? {
                    return Ok(None);
                }
            }
        }
        let publisher = Some(self.manager.tenure.manager());
        Ok(Some(self.manager.commits.perform(&Operation::Forget { inode, publisher }).await?))
    }

    /// Whether the target has at the names of a publication what the pool has left there.
    async fn is_unpublished(&self, change: Change) -> Result<bool, Unavailable> {
        let of = change.clone();
        let names = match on_target(&self.target, move |target| target.names(&of)).await {
            Ok(names) => names,
            Err(error) => return Ok(error.kind() == std::io::ErrorKind::NotFound),
        };
        let was = self.placed(&names).await?;
        let is_so = on_target(&self.target, move |target| target.is_as_left(&change, &was)).await;
        Ok(is_so.unwrap_or(false))
    }

    /// What the pool has put last at names of the target.
    pub(super) async fn placed(&self, names: &[(u64, Name)]) -> Result<Vec<Option<Placed>>, Unavailable> {
        let key = |(directory, name): &(u64, Name)| Key::Placed(self.id, *directory, name.clone());
        let keys: Vec<Key> = names.iter().map(key).collect();
        let read = self.manager.store.read(&keys, &[]).await?;
        let placed = |value: Option<&Value>| match value {
            Some(Value::Placed(placed)) => Some(*placed),
            _ => None,
        };
        Ok(values(&read).into_iter().map(placed).collect())
    }
}
