//! Writes a file: chunks to every copy's benefactor as they become full, and commits.
//!
//! What is not committed can be written elsewhere when a benefactor dies: its bytes stay in this process's memory, or, of a file with much
//! of it, another benefactor has them (see [`kept`]). A commit has all benefactors of a changed group seal its table, and then names them to a manager, whose transaction compares that each is still in the
//! life in which it acknowledged. If one is not, its part goes to another benefactor, and the commit is tried again: an acknowledged
//! byte is never one that only a dead process had.
//!
//! A commit is on top of one version. If another session has committed meanwhile, what is written here is laid upon that, and the commit
//! is tried again: see [`shared`].

mod base;
mod end;
mod holes;
mod kept;
mod part;
mod rows;
mod shared;
mod size;
mod staging;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use surgetank_pool_core::benefactor::holdings::{Instance, Table};
use surgetank_pool_core::id::{BenefactorId, Inode, SessionId, Version};
use surgetank_pool_core::meta::operation::{Operation, Refusal, Reply as Done};
use surgetank_pool_core::meta::{FileState, Kind, Node};
use surgetank_pool_core::placement::{Layout, Place, Stripe};
use surgetank_pool_core::runs::Runs;
use surgetank_pool_core::written::Written;
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::base::placed;
use self::part::Former;
use self::rows::{Row, Tail};
use self::shared::{Pending, is_behind};
use self::staging::Put;
use super::reader::AtTarget;
use super::{Error, Inner, LOOK};
use crate::chunks::CHUNK;
use crate::manager::Content;
use crate::planted::writers::{Bug, planted};
use crate::span;

/// Writings that were written over and keep their room until their benefactors are told, at most.
const WITHDRAWN_MAX: usize = 16;
/// Bytes that are committed at a time when room is short, at least.
const UNCOMMITTED_MIN: u64 = 8 << 20;

/// A group of the file, as far as this writer knows it.
#[derive(Default)]
struct Group {
    /// Where its chunks are to lie, and how they are spread; `None`: nowhere yet.
    placed: Option<(Layout, Stripe)>,
    chunks: BTreeMap<u32, Chunk>,
    /// The parity of its rows.
    rows: BTreeMap<u32, Row>,
    /// Chunks that the file's base alone has.
    absent: Runs,
    /// Whole chunks that are zeros and lie nowhere.
    holes: Runs,
    /// The version of the store that names it, and who committed that; its table may not have been read yet.
    committed: Option<(Version, SessionId)>,
    /// The store does not name it, and the base has it.
    of_base: bool,
    /// The table has been read, or there is none.
    known: bool,
    /// It differs from what the store has.
    changed: bool,
    /// Chunks of it that the store still has were cut off, or are holes now.
    is_cut: bool,
}

/// A chunk as it is to be.
#[derive(Clone, Debug, Default)]
struct Chunk {
    length: u32,
    crc: u32,
    /// Which writing it is, wherever that lies.
    id: Option<Instance>,
    /// It was written here and is not committed.
    draft: bool,
    /// Its bytes, as long as it is not committed and they are kept here.
    bytes: Option<Bytes>,
    /// Which writing each benefactor has of it.
    at: BTreeMap<BenefactorId, Instance>,
    /// What it is as long as it is not committed; `None`: nothing.
    former: Option<Former>,
    /// Which of its bytes were written here, until they are committed.
    written: Written,
    /// Who has it beside the benefactors of its group's layout, as long as those do not all have it and it is not kept here.
    spare: Vec<(Place, Instance)>,
}

impl Chunk {
    fn draft(bytes: Bytes, written: Written) -> Self {
        let (length, crc) = (u32::try_from(bytes.len()).unwrap_or(u32::MAX), crc32c::crc32c(&bytes));
        Self { length, crc, draft: true, bytes: Some(bytes), written, ..Self::default() }
    }

    /// Which writings of it benefactors have.
    fn writings(self) -> impl Iterator<Item = (BenefactorId, Instance)> {
        self.at.into_iter().chain(self.spare.into_iter().map(|(place, instance)| (place.id, instance)))
    }
}

/// The chunk that is being written.
struct Current {
    begins: u64,
    bytes: Vec<u8>,
    written: Written,
}

/// A file that is written. One that is dropped without [`Writer::close`] is torn when its session ends.
pub struct Writer {
    inner: Arc<Inner>,
    path: String,
    inode: Inode,
    /// Whose it was when it was opened.
    user: u32,
    /// Bytes of the file for which there is room in the quota of its user, if that has one.
    reserved: u64,
    /// What the next commit is made on top of.
    version: Version,
    /// What the store has of the file.
    node: Option<Node>,
    /// The file at the target that has what the pool does not have, once something was read of it.
    base: Option<AtTarget>,
    /// Chunks that benefactors had room for when they answered last.
    room: BTreeMap<BenefactorId, u64>,
    /// Who had no room for a chunk for a while.
    full: Option<BenefactorId>,
    /// Bytes of the file as committed.
    committed: u64,
    size: u64,
    /// The smallest size to which it was cut off since it was committed.
    cut: Option<u64>,
    /// The size to which it was extended since it was committed, though nothing may be written there; zero: it was not.
    grown: u64,
    groups: BTreeMap<u32, Group>,
    current: Option<Current>,
    /// What is yet to be laid upon what others have committed, the last chunk first.
    pending: Vec<Pending>,
    /// The chunk that was read last, as long as nothing is written into it.
    read: Option<(u64, Bytes)>,
    uncommitted: u64,
    /// Which chunks are kept in memory, in the order in which they were written; some may be so no longer.
    kept: VecDeque<(u32, u32)>,
    /// The last row, as far as it is committed.
    tail: Tail,
    puts: JoinSet<Put>,
    /// What these put, and whether it has arrived is not known.
    sent: BTreeSet<(BenefactorId, Instance)>,
    /// Benefactors that did not take or keep chunks, in the life in which they were asked.
    gone: BTreeSet<Place>,
    /// What places have sealed, of which groups, for commits that have not taken place.
    sealed: BTreeMap<(u32, Place), Table>,
    /// Writings that a later one replaced before a commit named them.
    withdrawn: Vec<(BenefactorId, Instance)>,
    /// Copies in the place of those that committed chunks have lost, which no table names yet: of which group and chunk each is.
    restored: BTreeMap<(BenefactorId, Instance), (u32, u32)>,
    /// It does not go on from what others commit: see [`Writer::of_one_version`].
    of_one_version: bool,
    /// Once something failed, everything does.
    failed: Option<Error>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.inner.open().remove(&self.inode);
    }
}

impl Writer {
    pub(super) fn new(inner: Arc<Inner>, path: &str, (inode, user): (Inode, u32), version: Version, size: u64) -> Self {
        Self {
            inner,
            path: path.to_owned(),
            inode,
            user,
            reserved: 0,
            version,
            node: None,
            base: None,
            room: BTreeMap::new(),
            full: None,
            committed: size,
            size,
            cut: None,
            grown: 0,
            groups: BTreeMap::new(),
            current: None,
            pending: Vec::new(),
            read: None,
            uncommitted: 0,
            kept: VecDeque::new(),
            tail: Tail::default(),
            puts: JoinSet::new(),
            sent: BTreeSet::new(),
            gone: BTreeSet::new(),
            sealed: BTreeMap::new(),
            withdrawn: Vec::new(),
            restored: BTreeMap::new(),
            of_one_version: false,
            failed: None,
        }
    }

    /// Once another session has committed, everything fails with [`Refusal::Version`]: what is written counts on top of what is known now alone.
    pub(super) fn of_one_version(mut self) -> Self {
        self.of_one_version = true;
        self
    }

    /// What the store has of the file.
    pub(super) fn has(&mut self, content: Content) {
        for (index, version, stored) in content.groups {
            // What the file was cut off before has no bytes.
            let committed = (stored.bytes > 0).then_some((version, stored.by));
            let absent = stored.in_base();
            let known = stored.layout.columns.is_empty();
            let placed = placed(stored.layout);
            self.groups
                .insert(index, Group { placed, absent, holes: stored.holes, committed, known, ..Group::default() });
        }
        self.node = Some(content.node);
    }

    /// Its number.
    #[must_use]
    pub const fn inode(&self) -> Inode {
        self.inode
    }

    /// The newest commit that this writer knows of.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Bytes of the file, with what is not committed yet.
    #[must_use]
    pub fn size(&self) -> u64 {
        match self.pending.is_empty() {
            true => self.size,
            false => self.size.max(self.reach()),
        }
    }

    /// Writes at the end.
    ///
    /// # Errors
    /// [`Error`]; all later calls fail with the same.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.write_at(self.size(), bytes).await
    }

    /// Writes anywhere. A gap behind the end is zeros: whole chunks of it are holes, which take no room.
    ///
    /// # Errors
    /// [`Error`]; all later calls fail with the same.
    pub async fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.write_all(offset, bytes, None).await
    }

    /// The same with bytes that are shared: whole chunks of them are sent as they are, without a copy.
    ///
    /// # Errors
    /// [`Error`]; all later calls fail with the same.
    pub async fn write_bytes_at(&mut self, offset: u64, bytes: &Bytes) -> Result<(), Error> {
        self.write_all(offset, bytes, Some(bytes)).await
    }

    /// Commits: from now on every session reads it, and as many benefactors may die as the mount's durability says. What others have
    /// committed meanwhile is in the file as well, but for the bytes that were written here.
    ///
    /// # Errors
    /// [`Error`]; all later calls fail with the same.
    pub async fn sync(&mut self) -> Result<(), Error> {
        self.is_well()?;
        // An empty file is one that was committed, too.
        let done = self.commit(true).await;
        self.remember(done)
    }

    /// Goes on from what others have committed meanwhile. What is written here and not committed lies upon that.
    ///
    /// # Errors
    /// [`Error`]; what is written is as it was.
    pub async fn refresh(&mut self) -> Result<(), Error> {
        self.is_well()?;
        self.catch_up().await
    }

    /// Whether everything that was written is committed.
    #[must_use]
    pub fn is_committed(&self) -> bool {
        let nothing_here = self.current.is_none() && self.pending.is_empty();
        let unchanged = nothing_here && self.groups.values().all(|group| !group.changed);
        unchanged && self.size == self.committed && self.version != Version::NONE
    }

    /// What everything that is asked of it fails with, once its session has ended in the store.
    #[must_use]
    pub fn session_ended(&self) -> Option<Error> {
        self.inner.session_ended()
    }

    fn is_well(&self) -> Result<(), Error> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn remember(&mut self, done: Result<(), Error>) -> Result<(), Error> {
        if let Err(error) = &done {
            self.failed = Some(error.clone());
        }
        done
    }

    /// `shared`: whose bytes they are.
    async fn write_all(&mut self, offset: u64, bytes: &[u8], shared: Option<&Bytes>) -> Result<(), Error> {
        self.is_well()?;
        self.reserve(self.size().max(offset.saturating_add(bytes.len() as u64))).await?;
        self.write_taken(offset, bytes, shared).await
    }

    async fn write_taken(&mut self, offset: u64, bytes: &[u8], shared: Option<&Bytes>) -> Result<(), Error> {
        let mut done = self.go_on().await;
        while done.is_ok() {
            let written = self.write_parts(offset, bytes, shared).await;
            match self.caught_up(written).await {
                // Once more: what was written of it is the same.
                Ok(None) => {}
                Ok(Some(())) => break,
                Err(error) => done = Err(error),
            }
        }
        self.remember(done)
    }

    async fn write_parts(&mut self, offset: u64, mut bytes: &[u8], shared: Option<&Bytes>) -> Result<(), Error> {
        if offset >= self.size + CHUNK {
            // What others have committed need not be filled.
            self.catch_up().await?;
        }
        self.fill(offset).await?;
        let mut at = offset;
        while !bytes.is_empty() {
            let room = usize::try_from(CHUNK - at % CHUNK).unwrap_or(usize::MAX).min(bytes.len());
            let (part, rest) = bytes.split_at(room);
            if part.len() as u64 == CHUNK {
                let chunk = shared.map_or_else(|| Bytes::copy_from_slice(part), |shared| shared.slice_ref(part));
                self.write_chunk(at, chunk).await?;
            } else {
                self.write_part(at, part, true).await?;
            }
            (at, bytes) = (at + room as u64, rest);
            // What is committed makes room when it is drained; what is not keeps its room.
            let is_short = self.room().is_some_and(|room| room.saturating_mul(2 * CHUNK) < self.uncommitted);
            let is_large = self.uncommitted > self.inner.config.uncommitted_max && !planted(Bug::UncommittedUnbounded);
            let is_kept = !self.keep_less() && !planted(Bug::KeptIsNotCommitted);
            let is_much = is_kept || is_large || self.is_wide();
            if is_short && self.uncommitted >= UNCOMMITTED_MIN || is_much {
                self.commit(false).await?;
            }
        }
        Ok(())
    }

    /// Writes all of a chunk.
    async fn write_chunk(&mut self, begins: u64, bytes: Bytes) -> Result<(), Error> {
        self.read = None;
        if self.current.as_ref().is_some_and(|current| current.begins == begins) {
            self.current = None;
        }
        self.stage_current().await?;
        self.size = self.size.max(begins + CHUNK);
        let mut written = Written::default();
        count(&mut written, (0, bytes.len()), true);
        self.stage(begins, Chunk::draft(bytes, written)).await
    }

    /// Writes within one chunk; `counts`: it is no gap.
    async fn write_part(&mut self, offset: u64, part: &[u8], counts: bool) -> Result<(), Error> {
        let begins = offset - offset % CHUNK;
        self.read = None;
        if self.current.as_ref().is_none_or(|current| current.begins != begins) {
            self.stage_current().await?;
            let covered = offset == begins && offset + part.len() as u64 >= self.size.min(begins + CHUNK);
            let bytes = if covered || begins >= self.size { Vec::new() } else { self.base(begins).await?.to_vec() };
            self.current = Some(Current { begins, bytes, written: self.written_in(begins) });
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        let (from, to) = (usize::try_from(offset - begins).unwrap_or_default(), part.len());
        if current.bytes.len() == from {
            current.bytes.extend_from_slice(part);
        } else {
            current.bytes.resize(current.bytes.len().max(from + to), 0);
            current.bytes[from..from + to].copy_from_slice(part);
        }
        count(&mut current.written, (from, from + to), counts);
        self.size = self.size.max(offset + part.len() as u64);
        if current.bytes.len() as u64 == CHUNK && offset + part.len() as u64 == begins + CHUNK {
            self.stage_current().await?;
        }
        Ok(())
    }

    /// The chunk that is being written goes to its benefactors.
    async fn stage_current(&mut self) -> Result<(), Error> {
        let Some(begins) = self.current.as_ref().map(|current| current.begins) else { return Ok(()) };
        // If that fails, it is as it was.
        self.group(span::of_byte(begins).0).await?;
        let Some(Current { bytes, written, .. }) = self.current.take() else { return Ok(()) };
        self.stage(begins, Chunk::draft(Bytes::from(bytes), written)).await
    }

    /// A chunk goes to its benefactors, those that have it already left out.
    async fn stage(&mut self, begins: u64, mut fresh: Chunk) -> Result<(), Error> {
        let (index, chunk) = span::of_byte(begins);
        self.group(index).await?;
        // Puts of the former writing that are under way would count as this one's.
        if self.groups.get(&index).is_some_and(|group| group.chunks.get(&chunk).is_some_and(|former| former.draft)) {
            self.settle(0).await?;
        }
        fresh.id = fresh.id.or_else(|| Some(Instance { session: self.inner.session, number: self.next_number() }));
        if let Some(group) = self.groups.get_mut(&index) {
            group.changed = true;
            let mut is_kept = false;
            fresh.former = match group.chunks.remove(&chunk) {
                Some(mut former) if former.draft => {
                    self.uncommitted -= u64::from(former.length);
                    is_kept = former.bytes.is_some();
                    if !is_kept && planted(Bug::OlderWritingRead) {
                        (fresh.crc, fresh.at) = (former.crc, former.at.clone());
                    }
                    let replaced = former.former.take();
                    self.withdrawn.extend(former.writings());
                    replaced
                }
                Some(former) => Some(Former::Stored(Box::new(former))),
                None => group.take_former(chunk),
            };
            if fresh.bytes.is_some() && !is_kept {
                self.kept.push_back((index, chunk));
            }
            self.uncommitted += u64::from(fresh.length);
            group.chunks.insert(chunk, fresh);
        }
        if self.withdrawn.len() >= WITHDRAWN_MAX {
            let withdrawn = std::mem::take(&mut self.withdrawn);
            self.withdraw(withdrawn);
        }
        self.placed(index).await?;
        self.put_missing(index, chunk);
        self.protect_full(index, chunk);
        self.settle(self.under_way()).await?;
        match self.full {
            Some(_) => self.place_all(self.inner.until()).await,
            None => Ok(()),
        }
    }

    /// Commits what was written, if anything was or `even_empty` and nothing was committed ever.
    async fn commit(&mut self, even_empty: bool) -> Result<(), Error> {
        self.commit_and(even_empty, None).await.map(|_| ())
    }

    /// The same, and closes the file with it, with that number of an entry in the journal; `false`: there was nothing to commit.
    async fn commit_and(&mut self, even_empty: bool, close: Option<u64>) -> Result<bool, Error> {
        self.go_on().await?;
        loop {
            let done = self.commit_once(even_empty, close).await;
            if let Some(done) = self.caught_up(done).await? {
                return Ok(done);
            }
        }
    }

    /// The same on top of the version that is known.
    async fn commit_once(&mut self, even_empty: bool, close: Option<u64>) -> Result<bool, Error> {
        self.stage_current().await?;
        let nothing = self.size == self.committed && self.groups.values().all(|group| !group.changed);
        if nothing && !(even_empty && self.version == Version::NONE) {
            return Ok(false);
        }
        let until = self.inner.until();
        loop {
            self.place_all(until).await?;
            if !self.seal_all().await {
                if Instant::now() >= until {
                    return Err(self.no_room("benefactors do not seal what they were given".to_owned()));
                }
                // Chunks may have left the pool.
                self.look_again().await?;
                continue;
            }
            match self.commit_sealed(close).await {
                Ok(true) => return Ok(true),
                Ok(false) if Instant::now() >= until => {
                    return Err(self.no_room(format!("the leases of {} benefactors have ended", self.gone.len())));
                }
                // A manager may not know yet what the store knows.
                Ok(false) => tokio::time::sleep(LOOK).await,
                Err(Error::Refused(_, Refusal::Moved)) => drop(self.look_again().await?),
                Err(error) => return Err(error),
            }
        }
    }

    /// Commits what is sealed, and closes the file with it; `false`: benefactors are in another life, or their leases have ended.
    async fn commit_sealed(&mut self, close: Option<u64>) -> Result<bool, Error> {
        let (inode, session, size, groups) = (self.inode, self.inner.session, self.size, self.changed_groups());
        let on = (self.version, self.node.as_ref().map_or(0, Node::changes));
        let operation = Operation::Commit { inode, session, on, size, groups, close };
        // Unless it is refused it may take place: what is sealed for it is not to be sealed otherwise.
        let sealed = std::mem::take(&mut self.sealed);
        let done = self.inner.operate(&self.path, &operation).await;
        if matches!(done, Err(Error::Refused(..) | Error::StoreFull(..))) {
            self.sealed = sealed;
        }
        match done {
            Ok(None) => self.committed(self.version.next()),
            Ok(Some(Done::Version(version))) => self.committed(version),
            Ok(Some(_)) => return Err(super::senseless()),
            Err(Error::Refused(_, Refusal::Benefactors(places))) => {
                self.gone.extend(places);
                return Ok(false);
            }
            Err(error @ (Error::Refused(..) | Error::StoreFull(..))) => return Err(error),
            Err(error) => {
                self.failed = Some(error.clone());
                return Err(error);
            }
        }
        Ok(true)
    }

    /// Nothing has got room for as long as a request waits.
    fn no_room(&self, why: String) -> Error {
        Error::NoRoom { path: self.path.clone(), why, waited: self.inner.config.timeout }
    }

    /// The store has it.
    fn committed(&mut self, version: Version) {
        (self.version, self.committed, self.cut) = (version, self.size, None);
        if self.grown <= self.size {
            self.grown = 0;
        }
        if let Some(node) = &mut self.node {
            // The commit rests on what the former one rested on.
            (node.base, node.kind) = (node.rests_on(), Kind::File(FileState::Replicated));
            (node.version, node.size) = (version, self.size);
        }
        self.uncommitted = 0;
        self.kept.clear();
        // The warden has what was sealed and not committed dropped: the version is another one's.
        self.sealed.clear();
        // What is written next may lie elsewhere, and there is more room soon.
        self.room.clear();
        let session = self.inner.session;
        self.keep_tail();
        let mut drafts = std::mem::take(&mut self.withdrawn);
        // What was not sealed with this commit is of a group that stays as it was.
        let stays = |index: &u32| self.groups.get(index).is_some_and(|group| !group.changed);
        self.restored.retain(|writing, (index, _)| {
            let stays = stays(index);
            drafts.extend((!stays).then_some(*writing));
            stays
        });
        for group in self.groups.values_mut().filter(|group| group.changed) {
            (group.changed, group.committed, group.of_base) = (false, Some((version, session)), false);
            group.is_cut = false;
            for chunk in group.chunks.values_mut().filter(|chunk| chunk.draft) {
                drafts.extend(chunk.clone().writings());
                let Chunk { length, crc, id, ref mut at, .. } = *chunk;
                *chunk = Chunk { length, crc, id, at: std::mem::take(at), ..Chunk::default() };
            }
            drafts.extend(group.rows.values_mut().flat_map(Row::committed));
        }
        // Where a group was that the file has been cut off before, or of which the pool has nothing, is chosen anew.
        for group in self.groups.values_mut().filter(|group| group.known && group.chunks.is_empty()) {
            group.placed = None;
        }
        self.withdraw(drafts);
    }
}

/// Bytes of a chunk are written, or are a gap.
fn count(written: &mut Written, (first, end): (usize, usize), counts: bool) {
    let number = |of: usize| u32::try_from(of).unwrap_or(u32::MAX);
    match counts {
        true => written.add(number(first), number(end)),
        false => written.add_gap(number(first), number(end)),
    }
}
