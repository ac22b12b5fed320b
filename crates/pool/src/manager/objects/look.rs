//! What lies in a bucket, as it is there now. A directory is what several keys begin with: it is there as long as something is in it.

use std::collections::BTreeMap;
use std::io::Result;
use std::sync::{Arc, OnceLock};

use surgetank_pool_core::meta::value::Path;
use surgetank_pool_core::meta::{FileState, Kind, Name};
use tokio::runtime::Handle;

use super::{key, number};
use crate::bucket::{Bucket, Found};
use crate::manager::look::Seen;
use crate::manager::target::ASIDE;

/// A directory of a bucket, on a thread that may wait.
pub(in crate::manager) struct Listing {
    bucket: Arc<Bucket>,
    path: Path,
    /// What is in it, once all of it was asked for.
    all: OnceLock<BTreeMap<Name, Entry>>,
}

#[derive(Clone)]
enum Entry {
    File(Found),
    Directory,
}

/// Waits for a store.
pub(in crate::manager) fn wait<T>(asked: impl Future<Output = T>) -> T {
    Handle::current().block_on(asked)
}

impl Listing {
    /// `None`: nothing is in it.
    pub(in crate::manager) fn open(bucket: &Arc<Bucket>, path: &Path) -> Result<Option<Self>> {
        let opened = || Some(Self { bucket: Arc::clone(bucket), path: path.clone(), all: OnceLock::new() });
        if path.0.is_empty() {
            return Ok(opened());
        }
        // What cannot be a key is the pool's alone.
        let Ok(key) = key(bucket, path) else { return Ok(None) };
        Ok(wait(bucket.has_below(&key))?.then(opened).flatten())
    }

    /// The number that stands for it.
    pub(in crate::manager) fn number(&self) -> u64 {
        number(&self.path.0)
    }

    /// What is at a name; an object, if a directory is there as well.
    pub(in crate::manager) fn find(&self, name: &Name) -> Result<Option<Box<Seen>>> {
        if self.is_aside(name) {
            return Ok(None);
        }
        let path = Path(self.path.0.iter().chain([name]).cloned().collect());
        let entry = match self.all.get() {
            Some(all) => all.get(name).cloned(),
            None => {
                let Ok(key) = key(&self.bucket, &path) else { return Ok(None) };
                match wait(self.bucket.head(&key))? {
                    Some(found) => Some(Entry::File(found)),
                    None => wait(self.bucket.has_below(&key))?.then_some(Entry::Directory),
                }
            }
        };
        let seen =
            |kind, number, size, modified| Box::new(Seen::of_object(kind, (number, self.number()), (size, modified)));
        Ok(entry.map(|entry| match entry {
            Entry::File(found) => seen(Kind::File(FileState::Evicted), found.number(), found.size, found.modified),
            Entry::Directory => seen(Kind::Directory, number(&path.0), 0, 0),
        }))
    }

    /// All names, in their order.
    pub(in crate::manager) fn names(&self) -> Result<Vec<Name>> {
        if let Some(all) = self.all.get() {
            return Ok(all.keys().cloned().collect());
        }
        let (objects, directories) = wait(self.bucket.children(&key(&self.bucket, &self.path)?))?;
        let directories = directories.into_iter().map(|name| (name, Entry::Directory));
        let objects = objects.into_iter().map(|(name, found)| (name, Entry::File(found)));
        let mut all = BTreeMap::new();
        for (name, entry) in directories.chain(objects) {
            // What is too long for a name is seen by nobody. What else no path can be called, such as `a//b`, fails the listing itself.
            if let Ok(name) = Name::new(name.as_bytes())
                && !self.is_aside(&name)
            {
                all.insert(name, entry);
            }
        }
        Ok(self.all.get_or_init(|| all).keys().cloned().collect())
    }

    fn is_aside(&self, name: &Name) -> bool {
        self.path.0.is_empty() && name.bytes() == ASIDE.as_bytes()
    }
}
