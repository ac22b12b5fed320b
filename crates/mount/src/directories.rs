//! Directories that are open, and what is in them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::{Errno, FileHandle, INodeNo};
use surgetank_pool::client::Stat;
use surgetank_pool_core::meta::Name;

use crate::tree::Tree;

/// Entries that every directory has.
const DOTS: u64 = 2;

pub(crate) type Listing = Arc<Vec<(Name, Stat)>>;

/// Directories that are open: what was in each when it was last read from its beginning.
#[derive(Default)]
pub(crate) struct Directories {
    pub(crate) next: u64,
    pub(crate) open: BTreeMap<u64, Listing>,
}

pub(crate) fn directories(of: &Mutex<Directories>) -> MutexGuard<'_, Directories> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is in a directory, with the cookies of its entries, from one of them on.
pub(crate) fn listed(listing: &[(Name, Stat)], from: u64) -> impl Iterator<Item = (u64, &(Name, Stat))> {
    let from = usize::try_from(from.saturating_sub(DOTS)).unwrap_or(usize::MAX).min(listing.len());
    (from as u64 + DOTS + 1..).zip(&listing[from..])
}

/// The entries of every directory, as far as they were not read yet.
pub(crate) fn dots(from: u64) -> impl Iterator<Item = (u64, &'static str)> {
    (1..).zip([".", ".."]).skip(usize::try_from(from).unwrap_or(usize::MAX))
}

/// What the directory's handle is to show: fetched when it is read from its beginning.
pub(crate) async fn listing(
    tree: &Tree,
    open: &Mutex<Directories>,
    directory: INodeNo,
    handle: FileHandle,
    offset: u64,
) -> Result<Listing, Errno> {
    let known = directories(open).open.get(&handle.0).cloned();
    if let Some(known) = known.filter(|_| offset > 0) {
        return Ok(known);
    }
    let fetched: Listing = Arc::new(tree.entries(directory).await?);
    directories(open).open.insert(handle.0, Arc::clone(&fetched));
    Ok(fetched)
}
