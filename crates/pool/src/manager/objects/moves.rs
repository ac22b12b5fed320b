//! A directory moves in a bucket: each object is copied, what it is then is recorded, and the former one is removed. A publisher that takes over goes on
//! with what is left.

use std::collections::BTreeSet;
use std::io::{Error, ErrorKind};

use surgetank_pool_core::id::{MountId, Revision};
use surgetank_pool_core::meta::store::{Compare, Write};
use surgetank_pool_core::meta::value::{Path, Placed};
use surgetank_pool_core::meta::{Key as StoreKey, Name, Role, Value};

use super::{Objects, is, is_copy, is_like, key, number, placed};
use crate::bucket::{Found, Key};
use crate::manager::Manager;
use crate::planted::objects::{Bug, planted};

/// Objects that are moved and recorded at a time.
const BATCH: usize = 32;

/// Moves everything that is below one path to another. What somebody else has put there moves with it, as in a directory.
pub(in crate::manager) async fn move_directory(
    manager: &Manager,
    objects: &Objects,
    mount: MountId,
    (from, to): (&Path, &Path),
) -> std::io::Result<()> {
    // What cannot be a key is the pool's alone.
    let Ok(from_key) = key(&objects.bucket, from) else { return Ok(()) };
    let (mut stays, mut conflict): (BTreeSet<Key>, Option<Error>) = (BTreeSet::new(), None);
    loop {
        // An object and a marker may be listed under one key.
        let listed = objects.bucket.below(&from_key, BATCH + 2 * stays.len()).await?;
        let batch: BTreeSet<Key> = listed.into_iter().map(|(at, _)| at).filter(|at| !stays.contains(at)).collect();
        if batch.is_empty() {
            return conflict.map_or(Ok(()), Err);
        }
        objects.is_taken_over().await?;
        let (mut moved, mut failed): (Vec<(Key, Moved)>, Option<Error>) = (Vec::with_capacity(batch.len()), None);
        for at in batch {
            match move_one(manager, objects, (mount, &at), ((from, &from_key), to)).await {
                Ok(Some(of)) => moved.push((at, of)),
                Ok(None) => drop(stays.insert(at)),
                // Nobody waits in vain for one: the others go on.
                Err(error) if planted(Bug::ConflictEndsMove) => return Err(error),
                Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::InvalidFilename) => {
                    stays.insert(at);
                    conflict = Some(error);
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        // What is copied is on record before anything ends the move.
        if !moved.is_empty() {
            objects.is_taken_over().await?;
            record(manager, (mount, objects.since), moved.iter().map(|(_, of)| of)).await?;
            for (at, _) in &moved {
                objects.bucket.delete(at).await?;
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
    }
}

/// What was recorded at names, and is to be from now on.
struct Moved {
    from: (u64, Name),
    to: (u64, Name),
    placed: Option<Placed>,
}

/// `None`: it stays where it is. That is what a listing calls otherwise than it is called, such as a directory's marker, whose key ends with a slash;
/// and what no name of the pool leads to.
async fn move_one(
    manager: &Manager,
    objects: &Objects,
    (mount, at): (MountId, &Key),
    ((from, from_key), to): ((&Path, &Key), &Path),
) -> std::io::Result<Option<Moved>> {
    let below = at.text().strip_prefix(from_key.text()).unwrap_or_default().trim_start_matches('/');
    let names: Result<Vec<Name>, _> = below.split('/').map(|name| Name::new(name.as_bytes())).collect();
    let Ok(names) = names else { return Ok(None) };
    let Some(found) = objects.bucket.head(at).await? else { return Ok(None) };
    let path = |above: &Path| Path(above.0.iter().chain(&names).cloned().collect());
    let place = |path: &Path| path.0.split_last().map(|(name, above)| (number(above), name.clone()));
    let (former, later) = (path(from), path(to));
    let (Some(former_place), Some(later_place)) = (place(&former), place(&later)) else { return Ok(None) };
    let later_key = key(&objects.bucket, &later)?;
    let keys = [&former_place, &later_place].map(|(directory, name)| StoreKey::Placed(mount, *directory, name.clone()));
    let read = manager.store.read(&keys, &[]).await.map_err(Error::other)?;
    let mut was = read.keys.into_iter().map(|stored| match stored.map(|stored| stored.value) {
        Some(Value::Placed(placed)) => Some(placed),
        _ => None,
    });
    let (was, was_there) = (was.next().flatten(), was.next().flatten());
    let moved = |placed| Ok(Some(Moved { from: former_place, to: later_place, placed }));
    let there = objects.bucket.head(&later_key).await?;
    if was.is_none()
        && !planted(Bug::MoveForgotten)
        && let Some(there) = there.as_ref().filter(|there| is(there, was_there))
    {
        // An attempt has recorded it there, and could not remove it here; what is later than the copy, somebody else has put here since.
        return match is_like(there, &found) && found.modified <= there.modified {
            true => moved(was_there),
            false => Err(super::theirs()),
        };
    }
    // A predecessor may have copied it, and not have come to record that.
    let is_former = |there: &Found| is_copy(there, &found) || was.is_some_and(|was| objects.is_of(there, was.node));
    if there.is_some_and(|there| !(is(&there, was_there) || is_former(&there))) {
        return Err(super::theirs());
    }
    // What is somebody else's stays that.
    let ours = was.filter(|_| is(&found, was)).map(|was| was.node);
    match objects.copied((at, &found), (&later, &later_key), ours).await {
        Ok(there) => moved(ours.map(|node| placed(node, &there))),
        // Somebody has removed it since.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Records a batch, as long as this manager publishes.
async fn record(
    manager: &Manager,
    (mount, since): (MountId, Revision),
    moved: impl Iterator<Item = &Moved>,
) -> std::io::Result<()> {
    let key = |(directory, name): &(u64, Name)| StoreKey::Placed(mount, *directory, name.clone());
    let mut writes = Vec::new();
    for Moved { from, to, placed } in moved {
        writes.push(Write::Delete(key(from)));
        writes.push(match placed {
            Some(placed) => Write::Put(key(to), Value::Placed(*placed)),
            None => Write::Delete(key(to)),
        });
    }
    let compares = vec![Compare::Created(StoreKey::Owner(Role::Publisher(mount)), since)];
    match manager.commit(compares, writes).await.map_err(Error::other)? {
        true => Ok(()),
        false => Err(Error::other("another manager has taken it over")),
    }
}
