//! A bucket as a target. Nothing in it has two names, and a name is given by completing an upload: so an object is there whole, or not at all.
//!
//! Beside the objects, below `.surgetank/`, are a manifest, which says whose target it is and who publishes, and for each upload under way a
//! record that names its key. Whoever publishes next ends the uploads that its predecessors have left.

mod drain;
mod fetch;
pub(super) mod look;
mod moves;

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use surgetank_pool_core::id::{Inode, MountId, Revision, Version};
use surgetank_pool_core::meta::Name;
use surgetank_pool_core::meta::value::{Change, Path, Placed};

pub(super) use self::drain::drain;
pub(super) use self::moves::move_directory;
use super::Manager;
use super::target::{ASIDE, AtName, theirs};
use crate::bucket::{self, Bucket, COPY_MAX, Found, Key, Put};
use crate::planted::objects::{Bug, planted};

/// What says whose target it is.
const MANIFEST: &str = "manifest";
/// Records that are read at a time.
const RECORDS: usize = 10_000;
/// By how much a store's clocks may differ, in nanoseconds.
const CLOCKS: u64 = 2_000_000_000;

/// All parts of a version, which wait for their name.
#[derive(Clone, Debug)]
pub(super) struct Upload {
    key: Key,
    record: Key,
    id: String,
    tags: Vec<String>,
    size: u64,
    /// What is said of the object.
    attributes: Vec<(String, String)>,
    /// A benefactor has not answered: it may put a part late.
    unanswered: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Objects {
    pub(super) bucket: Arc<Bucket>,
    pool: u64,
    mount: MountId,
    since: Revision,
    uploads: Mutex<BTreeMap<(Inode, Version), Upload>>,
    /// Those of no use that could not be ended yet.
    left: Mutex<Vec<Upload>>,
    /// Copies that were begun part by part.
    copies: AtomicU64,
}

impl Manager {
    /// The bucket that a target is; `None`: it is a directory.
    ///
    /// # Errors
    /// It is no address, or cannot be reached with what the environment says.
    pub(super) fn bucket(&self, target: &str) -> Result<Option<Arc<Bucket>>> {
        if !bucket::is_address(target) {
            return Ok(None);
        }
        let mut known = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = known.get(target) {
            return Ok(Some(Arc::clone(bucket)));
        }
        let address = target.parse().map_err(|error| Error::new(ErrorKind::InvalidInput, error))?;
        let bucket = Arc::new(Bucket::open(address, &self.config.buckets)?);
        known.insert(target.to_owned(), Arc::clone(&bucket));
        Ok(Some(bucket))
    }
}

/// The number that a directory has in a bucket: its path's.
pub(super) fn number(path: &[Name]) -> u64 {
    let mut text = Vec::new();
    for name in path {
        text.extend_from_slice(name.bytes());
        text.push(b'/');
    }
    bucket::number(&text)
}

fn key(bucket: &Bucket, path: &Path) -> Result<Key> {
    bucket.key(path.0.iter().map(Name::bytes))
}

/// A line of a manifest.
fn field<'a>(manifest: &'a str, name: &str) -> Option<&'a str> {
    manifest.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
}

fn is_of_pool(manifest: &str, pool: u64) -> Result<()> {
    match field(manifest, "pool") {
        Some(of) if of == format!("{pool:016x}") => Ok(()),
        Some(_) => Err(Error::new(ErrorKind::InvalidInput, "it is the target of another pool")),
        None => Err(Error::new(ErrorKind::InvalidData, "what is at .surgetank/manifest is none of a pool")),
    }
}

/// Refuses a bucket that cannot be read, or is another pool's.
pub(super) async fn is_usable(bucket: &Bucket, pool: u64) -> Result<()> {
    bucket.has_below(&bucket.key([])?).await?;
    match bucket.text(&bucket.key([ASIDE.as_bytes(), MANIFEST.as_bytes()])?).await? {
        Some((manifest, _)) => is_of_pool(&manifest, pool),
        None => Ok(()),
    }
}

/// What the pool records of an object.
fn placed(node: Inode, found: &Found) -> Placed {
    Placed { node, size: found.size, modified: 0, number: found.number() }
}

/// Whether an object is what the pool has put there last.
fn is(found: &Found, was: Option<Placed>) -> bool {
    was.is_some_and(|was| placed(was.node, found) == was)
}

/// Whether an object has the length and the mark of another.
fn is_like(there: &Found, other: &Found) -> bool {
    there.size == other.size && (there.mark == other.mark || planted(Bug::CopyUnmarked))
}

/// Whether an object is a copy of another.
fn is_copy(there: &Found, other: &Found) -> bool {
    is_like(there, other) && (there.mark.is_some() || there.tag == other.tag)
}

impl Objects {
    pub(super) fn new(bucket: Arc<Bucket>, pool: u64, mount: MountId, since: Revision) -> Self {
        Self {
            bucket,
            pool,
            mount,
            since,
            uploads: Mutex::default(),
            left: Mutex::default(),
            copies: AtomicU64::new(0),
        }
    }

    fn uploads(&self) -> MutexGuard<'_, BTreeMap<(Inode, Version), Upload>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn left(&self) -> MutexGuard<'_, Vec<Upload>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn aside(&self, name: &str) -> Result<Key> {
        self.bucket.key([ASIDE.as_bytes(), name.as_bytes()])
    }

    /// What the pool says of a version: by it a successor knows what it finds.
    fn mark(&self, (inode, version): (Inode, Version)) -> String {
        format!("{:016x}.{inode}.{version}", self.pool)
    }

    /// Whether an object is this version of a file.
    fn is_marked(&self, found: &Found, of: (Inode, Version)) -> bool {
        found.mark.as_deref() == Some(self.mark(of).as_str())
    }

    /// Whether an object is of a file of this pool.
    fn is_of(&self, found: &Found, inode: Inode) -> bool {
        found.mark.as_ref().is_some_and(|mark| mark.starts_with(&format!("{:016x}.{inode}.", self.pool)))
    }

    fn manifest(&self) -> String {
        format!("pool {:016x}\nmount {}\nsince {}\n", self.pool, self.mount, self.since)
    }

    /// Says in the bucket that this publisher has the target, unless it is somebody else's, and ends the uploads that are of no use.
    pub(super) async fn take_over(&self) -> Result<()> {
        let (at, own) = (self.aside(MANIFEST)?, self.manifest());
        let put = match self.bucket.text(&at).await? {
            Some((there, _)) if there == own => None,
            Some((there, found)) => {
                self.may_replace(&there)?;
                Some(Some(found))
            }
            None => Some(None),
        };
        if let Some(found) = put {
            let on = match planted(Bug::ManifestUnconditional) {
                true => Put::Over,
                false => found.as_ref().map_or(Put::New, Put::Instead),
            };
            self.bucket.put(&at, Bytes::from(own), on, &[]).await.map_err(|error| match error.kind() {
                ErrorKind::AlreadyExists => Error::other("another manager has taken it over in this moment"),
                _ => error,
            })?;
        }
        self.end_former().await?;
        self.end_own().await
    }

    /// Ends what this publisher has begun: it begins anew, or is none any more.
    pub(super) async fn end_own(&self) -> Result<()> {
        let own: Vec<Upload> = std::mem::take(&mut *self.uploads()).into_values().collect();
        self.left().extend(own);
        self.end_left().await
    }

    fn may_replace(&self, manifest: &str) -> Result<()> {
        is_of_pool(manifest, self.pool)?;
        if field(manifest, "mount") != Some(self.mount.to_string().as_str()) {
            return Err(Error::other("it is the target of another mount"));
        }
        match field(manifest, "since").and_then(|since| since.parse::<u64>().ok()) {
            Some(since) if since > self.since.0 => Err(Error::other("another manager has taken it over")),
            _ => Ok(()),
        }
    }

    /// Ends what publishers have left that had the role before.
    async fn end_former(&self) -> Result<()> {
        let of_mount = format!("{}.", self.mount);
        for (record, found) in self.bucket.below(&self.bucket.key([ASIDE.as_bytes()])?, RECORDS).await? {
            let name = record.text().rsplit('/').next().unwrap_or_default();
            let since = name.strip_prefix(&of_mount).and_then(|rest| rest.split('.').next()?.parse::<u64>().ok());
            if since.is_some_and(|since| since < self.since.0) {
                self.end_recorded(&record, &found).await?;
            }
        }
        Ok(())
    }

    /// Ends uploads to the key that a record names: those that were begun after it.
    async fn end_recorded(&self, record: &Key, found: &Found) -> Result<()> {
        let text = match self.bucket.text(record).await {
            Ok(Some((text, _))) => text,
            Ok(None) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                tracing::warn!("{error}: it is left as it is");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let names: Vec<&[u8]> = text.split('/').filter(|name| !name.is_empty()).map(str::as_bytes).collect();
        let Ok(key) = self.bucket.key(names) else {
            tracing::warn!("{} names no object, and is not the pool's: it is left as it is", record.text());
            return Ok(());
        };
        self.end_since(&key, found).await?;
        self.bucket.delete(record).await?;
        // One that a predecessor began between the look and the removal. From now on it finds its record gone.
        self.end_since(&key, found).await
    }

    async fn end_since(&self, key: &Key, record: &Found) -> Result<()> {
        let ids = self.bucket.uploads(key, record.modified.saturating_sub(CLOCKS)).await?;
        let own: Vec<String> = self.uploads().values().map(|upload| upload.id.clone()).collect();
        for id in ids.into_iter().filter(|id| !own.contains(id)) {
            tracing::info!("an upload to {} that was left unfinished is ended", key.text());
            self.bucket.abort(key, &id).await?;
        }
        Ok(())
    }

    /// Begins an upload, after a record of it: whoever publishes next finds that, whenever this process ends.
    async fn begun(&self, path: &Path, upload: Upload, begin: impl Future<Output = Result<String>>) -> Result<Upload> {
        if planted(Bug::RecordOmitted) {
            return begin.await.map(|id| Upload { id, ..upload });
        }
        let says = path.0.iter().map(Name::bytes).collect::<Vec<_>>().join(&b'/');
        let id = match self.bucket.put(&upload.record, Bytes::from(says), Put::Over, &[]).await {
            Ok(()) => begin.await,
            Err(error) => Err(error),
        };
        let (upload, error) = match id {
            Ok(id) => {
                let upload = Upload { id, ..upload };
                // Whoever has removed the record may have seen no upload yet.
                match self.bucket.head(&upload.record).await {
                    Ok(Some(_)) => return Ok(upload),
                    Ok(None) => (upload, Error::other("another manager has taken it over")),
                    Err(error) => (upload, error),
                }
            }
            Err(error) => (upload, error),
        };
        self.left().push(upload);
        Err(error)
    }

    /// Copies an object over what is at another key; what is there then. `node`: it is of this file of the pool.
    async fn copied(
        &self,
        (from, moved): (&Key, &Found),
        (path, to): (&Path, &Key),
        node: Option<Inode>,
    ) -> Result<Found> {
        let copied = match moved.size <= COPY_MAX {
            true => self.bucket.copy(from, to).await,
            false => self.copy_parts((from, moved), (path, to)).await,
        };
        let there = self.bucket.head(to).await?.filter(|there| is_like(there, moved));
        match (copied, there) {
            (Ok(()), Some(there)) => Ok(there),
            // Its answer was lost, or it has taken longer than a request may.
            (Err(_), Some(there)) if node.is_some_and(|node| self.is_of(&there, node)) => Ok(there),
            (Ok(()), None) => Err(Error::other("the store has not copied all of it")),
            (Err(error), _) => Err(error),
        }
    }

    /// Copies an object that the store may not copy in the time of a request, as parts of an upload.
    async fn copy_parts(&self, (from, moved): (&Key, &Found), (path, to): (&Path, &Key)) -> Result<()> {
        let copy = self.copies.fetch_add(1, Ordering::Relaxed);
        let upload = Upload {
            key: to.clone(),
            record: self.aside(&format!("{}.{}.copy.{copy}", self.mount, self.since))?,
            id: String::new(),
            tags: Vec::new(),
            size: moved.size,
            attributes: Vec::new(),
            unanswered: false,
        };
        let mut upload = self.begun(path, upload, self.bucket.begin_as(from, to)).await?;
        let length = bucket::part_of(moved.size).max(COPY_MAX);
        for (at, first) in (0..).zip((0..moved.size).step_by(usize::try_from(length).unwrap_or(usize::MAX))) {
            let range = first..moved.size.min(first + length);
            match self.bucket.copy_part((from, &moved.tag, range), (to, &upload.id, at)).await {
                Ok(tag) => upload.tags.push(tag),
                Err(error) => {
                    upload.unanswered = true;
                    self.left().push(upload);
                    return Err(error);
                }
            }
        }
        let completed = self.bucket.complete(to, &upload.id, upload.tags.clone()).await;
        // Also the record of one that is completed: ending that ends nothing.
        self.left().push(upload);
        let _ = self.end_left().await;
        completed
    }

    /// Whether this publisher still has the target.
    ///
    /// # Errors
    /// [`ErrorKind::StaleNetworkFileHandle`]: it does not; the store's, if that does not say.
    pub(super) async fn is_taken_over(&self) -> Result<()> {
        let gone = |why: String| Err(Error::new(ErrorKind::StaleNetworkFileHandle, why));
        match self.bucket.text(&self.aside(MANIFEST)?).await? {
            Some((there, _)) if there == self.manifest() => Ok(()),
            Some((there, _)) => match self.may_replace(&there) {
                Ok(()) => gone("its manifest is an older one".to_owned()),
                Err(error) => gone(error.to_string()),
            },
            None => gone(
                "its manifest has been removed, and nothing is written there until it is taken over again".to_owned(),
            ),
        }
    }

    /// A version gets no name: its upload ends.
    pub(super) async fn discard(&self, of: (Inode, Version)) -> Result<()> {
        let upload = self.uploads().remove(&of);
        if let Some(upload) = upload {
            self.left().push(upload);
        }
        self.end_left().await
    }

    /// Ends uploads that are of no use; what cannot be ended now is tried again.
    pub(super) async fn end_left(&self) -> Result<()> {
        let left = std::mem::take(&mut *self.left());
        let mut failed = None;
        for upload in left {
            let mut ended = self.end(&upload).await;
            if ended.is_ok() && upload.unanswered {
                // A part that has arrived late would stay: the store is told once more.
                ended = self.end(&upload).await;
            }
            if let Err(error) = ended {
                self.left().push(upload);
                failed = Some(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    async fn end(&self, upload: &Upload) -> Result<()> {
        if upload.size == 0 || planted(Bug::UploadStays) {
            return Ok(());
        }
        if upload.id.is_empty() {
            // Whether it was begun is not known.
            return match self.bucket.head(&upload.record).await? {
                Some(found) => self.end_recorded(&upload.record, &found).await,
                None => Ok(()),
            };
        }
        self.bucket.abort(&upload.key, &upload.id).await?;
        self.bucket.delete(&upload.record).await
    }

    /// What is at the name of a publication, where the pool has put `was` last.
    pub(super) async fn at_name(&self, path: &Path, was: Option<Placed>) -> Result<AtName> {
        let Ok(key) = key(&self.bucket, path) else { return Ok(AtName::Nothing) };
        Ok(match self.bucket.head(&key).await? {
            None => AtName::Nothing,
            Some(found) if is(&found, was) => AtName::Recorded,
            Some(_) => AtName::Other,
        })
    }

    /// Makes a change, as [`Target::change`](super::target::Target::change) says.
    pub(super) async fn change(
        &self,
        change: &Change,
        maybe_done: bool,
        was: &[Option<Placed>],
    ) -> Result<Vec<Option<Placed>>> {
        let was = |at: usize| was.get(at).copied().flatten();
        match change {
            // There are none: what a name has before its last `/` is as good as one.
            Change::MakeDirectory(_) => Ok(Vec::new()),
            Change::Publish { inode, version, path } => {
                self.publish((*inode, *version), path, maybe_done, was(0)).await.map(|placed| vec![Some(placed)])
            }
            Change::Rename { from, to } => self.rename((from, to), maybe_done, (was(0), was(1))).await,
            // The pool keeps them, and the next version has them with it.
            Change::Attributes { .. } => Ok(vec![was(0)]),
            Change::Remove(path) => {
                let Ok(key) = key(&self.bucket, path) else { return Ok(vec![None]) };
                match self.bucket.head(&key).await? {
                    Some(found) if is(&found, was(0)) => self.bucket.delete(&key).await?,
                    // Of a directory there is nothing.
                    _ if was(0).is_none() || maybe_done => {}
                    Some(_) => return Err(theirs()),
                    None => return Err(ErrorKind::NotFound.into()),
                }
                Ok(vec![None])
            }
            Change::MakeLink { .. } | Change::MakeSpecial { .. } | Change::Link { .. } | Change::Linked { .. } => {
                Err(Error::new(ErrorKind::AlreadyExists, "a bucket has nothing but files with one name each"))
            }
        }
    }

    /// What is at a key; nothing, if a path has none.
    async fn at(&self, key: &Result<Key>) -> Result<Option<Found>> {
        match key {
            Ok(key) => self.bucket.head(key).await,
            Err(_) => Ok(None),
        }
    }

    async fn publish(
        &self,
        of: (Inode, Version),
        path: &Path,
        maybe_done: bool,
        was: Option<Placed>,
    ) -> Result<Placed> {
        let upload = self.uploads().get(&of).cloned();
        let key = key(&self.bucket, path)?;
        let is_mine = |found: &Found| self.is_marked(found, of);
        let is_whole = |found: &Found| {
            upload.as_ref().is_none_or(|upload| upload.size == found.size) || planted(Bug::LengthOnceChecked)
        };
        let there = self.bucket.head(&key).await?;
        match &there {
            Some(found) if maybe_done && is_mine(found) && is_whole(found) => {
                // An attempt that failed has done it, or a predecessor: what this one has is of no use.
                self.discard(of).await?;
                return Ok(placed(of.0, found));
            }
            // One that the store has not taken whole is sent once more.
            Some(found) if !(is(found, was) || maybe_done && is_mine(found) || planted(Bug::ReplacedUnseen)) => {
                return Err(theirs());
            }
            _ => {}
        }
        let gone = || Error::new(ErrorKind::StaleNetworkFileHandle, "the upload is gone");
        let upload = upload.ok_or_else(gone)?;
        if upload.size == 0 {
            // A publisher that was replaced and does not know it puts nothing over what its successor has put.
            let on = there.as_ref().map_or(Put::New, Put::Instead);
            match self.bucket.put(&key, Bytes::new(), on, &upload.attributes).await {
                // It may have been put, and the answer to that lost: then what is there now is this.
                Err(error) if error.kind() == ErrorKind::AlreadyExists && !planted(Bug::OwnPutUnknown) => {}
                put => put?,
            }
        } else {
            self.bucket.complete(&key, &upload.id, upload.tags.clone()).await?;
        }
        let Some(found) = self.bucket.head(&key).await? else { return Err(gone()) };
        if !(is_mine(&found) || planted(Bug::MarkUnread)) {
            return Err(theirs());
        }
        if found.size != upload.size {
            let sentence = format!("the store has {} bytes there, and {} were sent", found.size, upload.size);
            return Err(Error::other(sentence));
        }
        self.uploads().remove(&of);
        if upload.size == 0 {
            return Ok(placed(of.0, &found));
        }
        if self.bucket.delete(&upload.record).await.is_err() {
            self.left().push(Upload { id: String::new(), ..upload });
        }
        Ok(placed(of.0, &found))
    }

    /// Moves what the pool has put at a name: a copy, and then the removal.
    async fn rename(
        &self,
        (from, to): (&Path, &Path),
        maybe_done: bool,
        was: (Option<Placed>, Option<Placed>),
    ) -> Result<Vec<Option<Placed>>> {
        let (from, to_key) = (key(&self.bucket, from), key(&self.bucket, to));
        let (at_from, at_to) = (self.at(&from).await?, self.at(&to_key).await?);
        let Some(moved) = at_from else {
            return match (at_to, was.0) {
                (Some(there), Some(was)) if maybe_done && (is(&there, Some(was)) || self.is_of(&there, was.node)) => {
                    Ok(vec![None, Some(placed(was.node, &there))])
                }
                // It is a directory in which nothing is.
                (_, None) => Ok(vec![None, None]),
                _ => Err(ErrorKind::NotFound.into()),
            };
        };
        let Some(node) = was.0.filter(|_| is(&moved, was.0)).map(|was| was.node) else { return Err(theirs()) };
        let is_former = |there: &Found| maybe_done && (self.is_of(there, node) || is_copy(there, &moved));
        if at_to.is_some_and(|there| !(is(&there, was.1) || is_former(&there))) {
            return Err(theirs());
        }
        let (from, to_key) = (from?, to_key?);
        let there = self.copied((&from, &moved), (to, &to_key), Some(node)).await?;
        // A copy takes long: a successor may have put something else there meanwhile.
        self.is_taken_over().await?;
        self.bucket.delete(&from).await?;
        Ok(vec![None, Some(placed(node, &there))])
    }
}

#[cfg(all(test, feature = "objects"))]
mod tests {
    use super::*;

    #[test]
    fn a_publisher_takes_over_what_is_its_pools_and_nothing_of_a_later_one() {
        let options = bucket::Options::of(&[("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret")]);
        let bucket = Arc::new(Bucket::open("s3://bucket/run1".parse().unwrap(), &options).unwrap());
        let of = |pool, mount, since| Objects::new(Arc::clone(&bucket), pool, MountId(mount), Revision(since));
        let own = of(1, 2, 30);
        let others = [
            (of(1, 2, 29), true),
            (of(1, 2, 30), true),
            (of(1, 2, 31), false),
            (of(3, 2, 1), false),
            (of(1, 3, 1), false),
        ];
        for (other, may) in others {
            assert_eq!(own.may_replace(&other.manifest()).is_ok(), may, "{}", other.manifest());
        }
        assert!(own.may_replace("something else").is_err());
        let found =
            |mark: &str| Found { size: 1, tag: "\"a\"".into(), version: None, modified: 0, mark: Some(mark.into()) };
        assert!(own.is_of(&found(&own.mark((Inode(5), Version(9)))), Inode(5)));
        assert!(!own.is_of(&found(&own.mark((Inode(55), Version(9)))), Inode(5)));
        assert!(!own.is_of(&found(&of(3, 2, 30).mark((Inode(5), Version(9)))), Inode(5)));
    }
}
