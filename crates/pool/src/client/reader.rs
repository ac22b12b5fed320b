//! Reads what is committed: from whichever copy answers, else from the target.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use surgetank_pool_core::benefactor::holdings::GroupOf;
use surgetank_pool_core::id::{Inode, Version};
use surgetank_pool_core::meta::value::{Base, Path, Placed};
use surgetank_pool_core::meta::{Group, Name, Node};
use surgetank_pool_core::placement::Stripe;
use tokio::time::Instant;

use super::lost::{Row, read_lost};
use super::{Error, Inner, LOOK, senseless};
use crate::bucket::is_address;
use crate::chunks::{self, CHUNK, Get};
use crate::manager::{ASIDE, Content, Reply, Request, draft_name};
use crate::span;

/// How long a benefactor may take for a chunk.
pub(super) const ANSWER: Duration = Duration::from_secs(5);
/// How often it is asked, at least, where the target has a file.
pub(super) const LOOK_LEAST: Duration = Duration::from_secs(1);
/// What a benefactor says, or shows, of a chunk with other bytes than were put.
pub(super) const DAMAGED: &str = "has it damaged";

/// Of which version of which group a row is, and its data.
type ReadRow = ((u32, Version), Row);

/// A file that is read.
#[derive(Clone)]
pub struct Reader {
    inner: Arc<Inner>,
    path: String,
    inode: Inode,
    content: Content,
    /// The file at the target, once something was read of it there. Copies share it.
    opened: Arc<Mutex<Option<AtTarget>>>,
    /// Of the last chunk that was made of the rest of its row, what was read for that. Copies share it.
    row: Arc<Mutex<Option<ReadRow>>>,
}

impl Reader {
    pub(super) fn new(inner: Arc<Inner>, path: &str, inode: Inode, content: Content) -> Self {
        Self { inner, path: path.to_owned(), inode, content, opened: Arc::default(), row: Arc::default() }
    }

    /// Bytes of the file, as committed.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.content.node.size
    }

    /// Whether the file had a name when it was opened.
    #[must_use]
    pub const fn is_named(&self) -> bool {
        self.content.node.at.is_some()
    }

    /// The commit that is read.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.content.node.version
    }

    /// Where the next hole begins from an offset on, or the next chunk that is none; the end of the file is a hole. `None`: the file ends before.
    /// What the target alone has counts as none.
    #[must_use]
    pub fn seek(&self, offset: u64, wants_hole: bool) -> Option<u64> {
        let holes: BTreeMap<u32, _> =
            self.content.groups.iter().map(|(index, _, group)| (*index, &group.holes)).collect();
        span::seek((self.size(), offset), wants_hole, |index| holes.get(&index).copied())
    }

    /// Reads the chunk that has a byte: where it begins, and its bytes; `None` behind the end of the file.
    ///
    /// # Errors
    /// See [`Reader::read_at`].
    pub async fn read_chunk(&mut self, offset: u64) -> Result<Option<(u64, Bytes)>, Error> {
        if offset >= self.size() {
            return Ok(None);
        }
        let begins = offset - offset % CHUNK;
        self.chunk(begins).await.map(|bytes| Some((begins, bytes)))
    }

    /// Reads bytes; fewer only at the end of the file.
    ///
    /// # Errors
    /// [`Error::Unreadable`] if no copy can be read: never fewer bytes, and never others.
    pub async fn read_at(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        let end = self.size().min(offset.saturating_add(length as u64));
        let mut bytes = Vec::with_capacity(usize::try_from(end.saturating_sub(offset)).unwrap_or_default());
        let mut at = offset;
        while at < end {
            let in_chunk = usize::try_from(at % CHUNK).unwrap_or_default();
            let chunk = self.chunk(at - at % CHUNK).await?;
            let wanted = usize::try_from(end - at).unwrap_or(usize::MAX).min(chunk.len().saturating_sub(in_chunk));
            if wanted == 0 {
                return Err(self.unreadable(at, "the chunk is shorter than it was committed"));
            }
            bytes.extend_from_slice(&chunk[in_chunk..in_chunk + wanted]);
            at += wanted as u64;
        }
        Ok(bytes)
    }

    /// The whole file.
    ///
    /// # Errors
    /// See [`Reader::read_at`].
    pub async fn read_all(&mut self) -> Result<Vec<u8>, Error> {
        self.read_at(0, usize::MAX).await
    }

    fn unreadable(&self, offset: u64, why: &str) -> Error {
        Error::Unreadable { path: self.path.clone(), offset, why: why.to_owned() }
    }

    /// The chunk that begins there, of the file at the target that has it; `None`: it may be written over at present.
    async fn at_target(&mut self, offset: u64, base: Base, until: Instant) -> Result<Option<Bytes>, Error> {
        let (which, node) = (Which::of(base), &self.content.node);
        let length = CHUNK.min(node.size.saturating_sub(offset));
        let opened = self.opened().clone().filter(|opened| opened.which == which);
        if let Some(opened) = opened
            && let Ok(bytes) = opened.chunk(&self.inner, &self.path, offset, length).await
        {
            return Ok(self.still(base).await?.then_some(bytes));
        }
        let opened = AtTarget::open(&self.inner, &self.path, (self.inode, node), base, until).await?;
        let bytes = opened.chunk(&self.inner, &self.path, offset, length).await?;
        *self.opened() = Some(opened);
        Ok(self.still(base).await?.then_some(bytes))
    }

    /// Whether what was read there is what this commit has: a draft is written over by later ones.
    async fn still(&self, base: Base) -> Result<bool, Error> {
        if base.draft.is_none() {
            return Ok(true);
        }
        let newest = self.inner.content(&self.path, self.inode).await?.node;
        Ok(newest.version == self.content.node.version && newest.rests_on() == Some(base))
    }

    fn opened(&self) -> MutexGuard<'_, Option<AtTarget>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn row(&self) -> MutexGuard<'_, Option<ReadRow>> {
        self.row.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The chunk that begins there.
    async fn chunk(&mut self, offset: u64) -> Result<Bytes, Error> {
        let (until, mut pause) = (self.inner.until(), LOOK);
        loop {
            let (group, chunk) = (group_of(&self.content, offset), span::of_byte(offset).1);
            if group.is_some_and(|(.., group)| group.is_hole(chunk)) {
                return Ok(chunks::zeros());
            }
            let group = group.filter(|(.., group)| !group.is_absent(chunk));
            let base = self.content.node.rests_on();
            let base = base.filter(|base| group.is_none_or(|(_, version, _)| version <= base.version));
            let (mut failed, mut forever) = (self.unreadable(offset, "the store has no group for it"), true);
            if let Some((index, version, group)) = group {
                let read = self
                    .row()
                    .as_ref()
                    .and_then(|(of, row)| row.get(&chunk).filter(|_| *of == (index, version)).cloned());
                if let Some(bytes) = read {
                    return Ok(bytes);
                }
                match read_row(&self.inner, self.inode, (index, version, group), chunk).await {
                    Ok(mut row) => {
                        let bytes = row.remove(&chunk).unwrap_or_default();
                        if !row.is_empty() {
                            *self.row() = Some(((index, version), row));
                        }
                        return Ok(bytes);
                    }
                    Err(not_read) => {
                        (failed, forever) = (self.unreadable(offset, &not_read.why), not_read.forever);
                    }
                }
            }
            let of_pool = group.is_some();
            if let Some(base) = base {
                match self.at_target(offset, base, until).await {
                    Ok(Some(bytes)) => return Ok(bytes),
                    Ok(None) => forever = false,
                    Err(error) => {
                        // A store that is away, or has no valid credentials, has it again later; and a rename copies it.
                        let may_return = self.inner.is_in_bucket() && matches!(error, Error::Unreadable { .. });
                        if of_pool {
                            forever &= !may_return;
                        } else {
                            // A later version may have got its name there, which the store does not say yet.
                            let waits = self.content.node.published < self.content.node.journalled;
                            (forever, failed) = (!(waits || may_return), error);
                        }
                    }
                }
            }
            // It was written anew or has left the pool meanwhile, or a copy is on another benefactor by now.
            let newest = self.inner.content(&self.path, self.inode).await?;
            let changed = newest.node.version != self.content.node.version
                || newest.node.kind != self.content.node.kind
                || newest.node.rests_on() != self.content.node.rests_on()
                || newest.groups != self.content.groups;
            if newest.node.size < self.content.node.size {
                return Err(self.unreadable(offset, "the file is shorter by now"));
            }
            self.content = newest;
            if !changed && (forever || Instant::now() >= until) {
                return Err(failed);
            }
            if !changed {
                tokio::time::sleep(pause).await;
                if self.inner.is_in_bucket() {
                    // Each look is a request to the store.
                    pause = (pause * 2).min(LOOK_LEAST);
                }
            }
        }
    }
}

/// The group that has a byte.
fn group_of(content: &Content, offset: u64) -> Option<(u32, Version, &Group)> {
    let index = span::of_byte(offset).0;
    content.groups.iter().find(|(of, ..)| *of == index).map(|(of, version, group)| (*of, *version, group))
}

/// Why a chunk was not read.
pub(super) struct Failed {
    /// What each copy answered.
    pub(super) why: String,
    /// Every copy's benefactor says that it does not have it.
    pub(super) forever: bool,
}

/// Reads a chunk of a committed group.
pub(super) async fn read_chunk(
    inner: &Arc<Inner>,
    inode: Inode,
    of: (u32, Version, &Group),
    chunk: u32,
) -> Result<Bytes, Failed> {
    read_row(inner, inode, of, chunk).await.map(|mut row| row.remove(&chunk).unwrap_or_default())
}

/// The same, with others of its row if it had to be made of them.
async fn read_row(
    inner: &Arc<Inner>,
    inode: Inode,
    (index, version, group): (u32, Version, &Group),
    chunk: u32,
) -> Result<Row, Failed> {
    let places = Stripe::new(&group.layout).places(&group.layout, chunk).to_vec();
    let (mut answers, mut forever) = (Vec::new(), true);
    let ticket = inner.ticket(inode).await;
    // Copies share the reads: which is asked first goes by the chunk.
    let first = chunk as usize % places.len().max(1);
    for place in places.iter().cycle().skip(first).take(places.len()) {
        let of = (GroupOf { inode, group: index }, version, group.by);
        let get = Get { incarnation: place.incarnation, of, chunk, ticket: ticket.clone() };
        let answer = inner.ask_benefactor(place.id, chunks::Request::Get(get), ANSWER).await;
        forever &= answer.is_some();
        match intact(answer) {
            Ok((_, bytes)) => return Ok(Row::from([(chunk, bytes)])),
            Err(why) => answers.push(format!("benefactor {} {why}", place.id)),
        }
    }
    if let Some(parity) = group.layout.parity {
        let made = read_lost(inner, inode, (index, version, group), (chunk, parity)).await;
        return made.map_err(|failed| {
            answers.push(failed.why);
            Failed { why: answers.join(", "), forever: forever && failed.forever }
        });
    }
    Err(Failed { why: answers.join(", "), forever })
}

/// The checksum and bytes of a chunk that a benefactor was asked for, or what is wrong with its answer.
pub(super) fn intact(answer: Option<chunks::Reply>) -> Result<(u32, Bytes), &'static str> {
    match answer {
        Some(chunks::Reply::Chunk(crc, bytes)) if crc32c::crc32c(&bytes) == crc => Ok((crc, bytes)),
        Some(chunks::Reply::Chunk(..) | chunks::Reply::Corrupt) => Err(DAMAGED),
        Some(chunks::Reply::Stale) => Err("has begun anew since"),
        Some(_) => Err("does not have it"),
        None => Err("does not answer"),
    }
}

/// A file at the target that has what the pool does not have of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// What was published as this version, under the file's name.
    Published(Version),
    /// What an open file was drained into.
    Draft(u64),
}

impl Which {
    fn of(base: Base) -> Self {
        base.draft.map_or(Self::Published(base.version), Self::Draft)
    }
}

/// Such a file, opened: whatever its name stands for there later.
#[derive(Clone)]
pub(super) struct AtTarget {
    which: Which,
    /// Bytes of what was published; a draft may have more than count.
    size: Option<u64>,
    file: Place,
}

/// Where its bytes are read.
#[derive(Clone)]
enum Place {
    Here(Arc<File>),
    /// In a bucket, of which a manager reads.
    Bucket(Inode, Version),
}

impl Inner {
    /// Whether the target is a bucket, which a manager reads for the session.
    pub(super) fn is_in_bucket(&self) -> bool {
        self.target.to_str().is_some_and(is_address)
    }
}

impl AtTarget {
    /// Whether it is what a node rests on.
    pub(super) fn is(&self, base: Base) -> bool {
        self.which == Which::of(base)
    }

    /// Opens what a node rests on, or takes what the session holds of it.
    pub(super) async fn open(
        inner: &Inner,
        path: &str,
        (inode, node): (Inode, &Node),
        base: Base,
        until: Instant,
    ) -> Result<Self, Error> {
        let which = Which::of(base);
        if inner.is_in_bucket() {
            return Ok(Self { which, size: None, file: Place::Bucket(inode, base.version) });
        }
        if let Some(held) = inner.held().get(&inode).filter(|held| held.which == which) {
            return Ok(held.clone());
        }
        if let Which::Draft(draft) = which {
            let at = inner.target.join(ASIDE).join(draft_name(node.mount, inode, draft));
            let opened = tokio::task::spawn_blocking(move || File::open(at)).await;
            let opened = opened.unwrap_or_else(|error| Err(std::io::Error::other(error)));
            let file = Place::Here(Arc::new(opened.map_err(|error| not_at_target(path, 0, &error))?));
            return Ok(Self { which, size: None, file });
        }
        let opened = |file, size| Ok(Self { which, size: Some(size), file: Place::Here(Arc::new(file)) });
        let (mut pause, mut another) = (LOOK, None);
        loop {
            let at = path_of(inner, inode, node).await?;
            let found = match open_at(inner, inode, &at).await {
                Ok(Opened::Recorded(file, size)) => return opened(file, size),
                Err(Missing::Unknown(error)) => return Err(error),
                found => found,
            };
            // Renames of it, or of a directory above it, wait until what was closed before them is at the target.
            let before = before(inner, inode, at.clone()).await?;
            for former in before.iter().filter(|former| **former != at) {
                if let Ok(Opened::Recorded(file, size)) = open_at(inner, inode, former).await {
                    return opened(file, size);
                }
            }
            let failed = match found {
                Ok(Opened::Unrecorded(file)) if before.contains(&at) => return opened(file, base.size),
                // Had it been on its way there, the next look would have found it.
                Ok(Opened::Another(file, number, size)) if another == Some(number) => return opened(file, size),
                Ok(found) => {
                    another = if let Opened::Another(_, number, _) = found { Some(number) } else { None };
                    "another file is there".to_owned()
                }
                Err(Missing::Unreadable(error)) if error.kind() == std::io::ErrorKind::NotFound => error.to_string(),
                Err(Missing::Unreadable(error)) => return Err(not_at_target(path, 0, &error)),
                Err(Missing::Unknown(error)) => return Err(error),
            };
            if Instant::now() >= until {
                return Err(not_at_target(path, 0, &failed));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOOK_LEAST);
        }
    }

    /// Reads a chunk, of so many bytes.
    pub(super) async fn chunk(&self, inner: &Inner, path: &str, offset: u64, length: u64) -> Result<Bytes, Error> {
        let Self { size, file, .. } = self.clone();
        let file = match file {
            Place::Here(file) => file,
            Place::Bucket(inode, version) => {
                let length = u32::try_from(length).unwrap_or(u32::MAX);
                return match inner.ask(Request::Fetch(inode, version, offset, length)).await? {
                    Reply::Fetched(bytes) => Ok(bytes),
                    Reply::NotFetched(why) => Err(not_at_target(path, offset, &why)),
                    Reply::Refused(refusal) => Err(Error::Refused(path.to_owned(), refusal)),
                    _ => Err(senseless()),
                };
            }
        };
        let read = tokio::task::spawn_blocking(move || {
            let found = file.metadata()?.len();
            if let Some(size) = size.filter(|size| found != *size) {
                return Err(std::io::Error::other(format!("the target has {found} bytes, and {size} were written")));
            }
            let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
            file.read_exact_at(&mut bytes, offset)?;
            Ok(bytes)
        });
        match read.await {
            Ok(Ok(bytes)) => Ok(bytes.into()),
            Ok(Err(error)) => Err(not_at_target(path, offset, &error)),
            Err(error) => Err(not_at_target(path, offset, &error)),
        }
    }
}

fn not_at_target(path: &str, offset: u64, why: &impl std::fmt::Display) -> Error {
    Error::Unreadable { path: path.to_owned(), offset, why: format!("at the target: {why}") }
}

/// A file at a path of the target.
enum Opened {
    /// By its number the one that the pool has put there of this file, of so many bytes.
    Recorded(File, u64),
    /// One with this number where the pool has put one of so many bytes with another number: it has replaced that, or is replaced.
    Another(File, u64, u64),
    /// The pool has nothing on record of that name.
    Unrecorded(File),
    /// The pool has put another file there.
    Other,
}

/// Why a path of the target could not be opened.
enum Missing {
    /// The target does not show it.
    Unreadable(std::io::Error),
    /// The managers do not tell what it is.
    Unknown(Error),
}

/// Opens a path of the target for a file of the pool.
async fn open_at(inner: &Inner, inode: Inode, at: &Path) -> Result<Opened, Missing> {
    let Some(name) = at.0.last().cloned() else {
        return Err(Missing::Unreadable(std::io::Error::other("it has no name")));
    };
    let (target, at) = (inner.target.clone(), at.clone());
    let opened = tokio::task::spawn_blocking(move || crate::beneath::file_in(&target, &at)).await;
    let (file, directory) =
        opened.unwrap_or_else(|error| Err(std::io::Error::other(error))).map_err(Missing::Unreadable)?;
    let number = file.metadata().map_err(Missing::Unreadable)?.ino();
    Ok(match recorded(inner, inode, (directory, name)).await.map_err(Missing::Unknown)? {
        Some(placed) if placed.node != inode => Opened::Other,
        Some(placed) if placed.number != number => Opened::Another(file, number, placed.size),
        Some(placed) => Opened::Recorded(file, placed.size),
        None => Opened::Unrecorded(file),
    })
}

/// Where the target may have a file that has this path now, or had it last.
async fn before(inner: &Inner, inode: Inode, at: Path) -> Result<Vec<Path>, Error> {
    match inner.ask(Request::Before(inode, at)).await? {
        Reply::Before(paths) => Ok(paths),
        Reply::Refused(refusal) => Err(Error::Refused(String::new(), refusal)),
        _ => Err(senseless()),
    }
}

/// What the pool has put last at a name of a directory, by its number at the target: another file is one that a rename which waits will
/// replace.
async fn recorded(inner: &Inner, inode: Inode, (directory, name): (u64, Name)) -> Result<Option<Placed>, Error> {
    match inner.ask(Request::Recorded(inode, directory, name)).await? {
        Reply::Recorded(placed) => Ok(placed),
        Reply::Refused(refusal) => Err(Error::Refused(String::new(), refusal)),
        _ => Err(senseless()),
    }
}

/// Where a node is below the mount's root, now; where it was, if it has lost its name.
async fn path_of(inner: &Inner, inode: Inode, node: &Node) -> Result<Path, Error> {
    let above = async |inode| match inner.ask(Request::Lookup(inode, Path::default())).await? {
        Reply::Found(_, node) => Ok(node.at),
        Reply::Refused(refusal) => Err(Error::Refused(String::new(), refusal)),
        _ => Err(senseless()),
    };
    let mut names = Vec::new();
    let mut at = above(inode).await?.or_else(|| node.at.clone());
    while let Some((directory, name)) = at {
        names.push(name);
        at = above(directory).await?;
    }
    names.reverse();
    Ok(Path(names))
}
