//! Reads of what a bucket has of a file: mounts have no credentials, and ask a manager.

use std::io::ErrorKind;

use surgetank_pool_core::id::{Inode, Version};
use surgetank_pool_core::meta::operation::Refusal;
use surgetank_pool_core::meta::value::Placed;
use surgetank_pool_core::meta::{Key as StoreKey, Name, Prefix, Value, lookup};

use super::{key, number, placed};
use crate::chunks::CHUNK;
use crate::manager::Manager;
use crate::manager::answers::values;
use crate::manager::early::path;
use crate::manager::protocol::Reply;
use crate::manager::rights::{NOT_ALLOWED, Within};
use crate::meta::Unavailable;

impl Manager {
    /// Bytes of what the target has of a file as this version. What others have put in its place is not read.
    pub(in crate::manager) async fn fetch(
        &self,
        (inode, version): (Inode, Version),
        (offset, length): (u64, u32),
        within: Option<Within>,
    ) -> Result<Reply, Unavailable> {
        let read = self.store.read(&[StoreKey::Node(inode)], &[]).await?;
        if within.is_some_and(|within| !within.has(&read)) {
            return Ok(Reply::Refused(NOT_ALLOWED));
        }
        let [Some(Value::Node(node))] = &values(&read)[..] else { return Ok(Reply::Refused(Refusal::NotFound)) };
        let read = self.store.read(&[StoreKey::Mount(node.mount)], &[Prefix::Journal(node.mount)]).await?;
        let [Some(Value::Mount(mount))] = &values(&read)[..] else { return Ok(Reply::Refused(Refusal::NotFound)) };
        let unreadable = |why: &dyn std::fmt::Display| Ok(Reply::NotFetched(why.to_string()));
        let bucket = match self.bucket(&mount.target) {
            Ok(Some(bucket)) => bucket,
            Ok(None) => return unreadable(&"the target is a directory"),
            Err(error) => return unreadable(&error),
        };
        let is_meant = node.rests_on().is_some_and(|base| base.version == version && offset < base.size);
        let end = node.rests_on().map_or(0, |base| base.size.min(offset.saturating_add(u64::from(length).min(CHUNK))));
        let Some(now) = path(self, node).await?.filter(|_| is_meant) else {
            return unreadable(&"another version is there");
        };
        if end == offset {
            return Ok(Reply::Fetched(bytes::Bytes::new()));
        }
        // Renames of it, or of a directory above it, may wait.
        let mut paths = vec![now.clone()];
        if let Some(journal) = read.prefixes.first() {
            paths.extend(lookup::places(&now, journal).into_iter().filter(|path| *path != now));
        }
        let mut why = "nothing is there".to_owned();
        for path in &paths {
            let Some((name, above)) = path.0.split_last() else { continue };
            let Some(was) = self.placed_at((node.mount, inode), above, name).await? else { continue };
            let got = match key(&bucket, path) {
                Ok(key) => bucket.get(&key, offset..end, None).await,
                Err(error) => Err(error),
            };
            match got {
                Ok((found, bytes)) if placed(inode, &found) == was => return Ok(Reply::Fetched(bytes)),
                Ok(_) => "somebody else has changed it".clone_into(&mut why),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => why = error.to_string(),
            }
        }
        unreadable(&why)
    }

    /// What the pool has put last at a name, if that is of this file.
    async fn placed_at(
        &self,
        (mount, inode): (surgetank_pool_core::id::MountId, Inode),
        above: &[Name],
        name: &Name,
    ) -> Result<Option<Placed>, Unavailable> {
        let read = self.store.read(&[StoreKey::Placed(mount, number(above), name.clone())], &[]).await?;
        Ok(match &values(&read)[..] {
            [Some(Value::Placed(placed))] if placed.node == inode => Some(*placed),
            _ => None,
        })
    }
}
