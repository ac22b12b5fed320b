//! Appends records to segments, flushes them, and reads what a former life left.
//!
//! A record counts once it was flushed. What a power cut tears was not: its checksum tells it from one that is whole.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use surgetank_pool_core::benefactor::holdings::{Entry, Instance, Table};
use surgetank_pool_core::benefactor::recovery::{Latest, Sum};
use surgetank_pool_core::benefactor::segments::{At, BLOCK, Former, Kind, Segments};
use surgetank_pool_core::id::Inode;

use super::Disk;
use super::record::{self, HEADER, Header, Owner, What};
use crate::chunks::{CHUNK, TableOf};

/// Bytes of a chunk's record, at most.
pub(super) const RECORD_MAX: u64 = (CHUNK + HEADER as u64).next_multiple_of(BLOCK);

/// The log is another benefactor's.
#[derive(Debug, thiserror::Error)]
#[error(
    "SSD {disk}: it has chunks of benefactor {} of pool {:x}, and this is benefactor {} of pool {:x}: name another directory, or empty this one",
    .found.benefactor, .found.pool, .wanted.benefactor, .wanted.pool
)]
pub struct NotOurs {
    disk: String,
    found: Owner,
    wanted: Owner,
}

/// What a former life left.
pub struct Found {
    disk: Arc<dyn Disk>,
    owner: Option<Owner>,
    /// For each segment what is in it, but for what counts.
    formers: Vec<Former>,
    /// Chunks, with their places: the latest record of each.
    pub chunks: BTreeMap<Instance, (At, Inode, Entry)>,
    /// Tables, with their places: the latest record of each.
    pub tables: BTreeMap<TableOf, (At, Table)>,
    /// Records that are not what was written: torn by a power cut, or damaged since.
    pub damaged: u64,
}

/// What a segment has.
struct Scanned {
    owner: Option<Owner>,
    filling: u64,
    records: Vec<(At, Header)>,
    /// Everything was flushed before the mark at its end was written.
    closed: bool,
    /// Its header is whole, or it has none.
    has_front: bool,
    damaged: u64,
}

/// Records of which some count.
#[derive(Default)]
struct Records {
    chunks: Latest<Instance, (Inode, Entry)>,
    tables: Latest<TableOf, Table>,
}

impl Found {
    /// Reads all headers; of segments that were being filled everything.
    ///
    /// # Errors
    /// [`NotOurs`], if segments have different owners.
    pub fn read(disk: Arc<dyn Disk>) -> Result<Self, NotOurs> {
        let mut found = Self {
            owner: None,
            formers: Vec::new(),
            chunks: BTreeMap::new(),
            tables: BTreeMap::new(),
            damaged: 0,
            disk,
        };
        let mut records = Records::default();
        for segment in 0..found.disk.segments() {
            let scanned = scan(&*found.disk, segment);
            if let Some(owner) = scanned.owner {
                found.is_of(owner)?;
                found.owner = Some(owner);
            }
            found.damaged += scanned.damaged;
            let former = found.take(segment, &scanned, &mut records);
            found.formers.push(former);
        }
        let chunks = records.chunks.into_records();
        found.chunks = chunks.map(|(instance, at, (inode, entry))| (instance, (at, inode, entry))).collect();
        found.tables = records.tables.into_records().map(|(of, at, table)| (of, (at, table))).collect();
        Ok(found)
    }

    /// Takes the records of a segment, and says what is in it.
    fn take(&mut self, segment: u32, scanned: &Scanned, records: &mut Records) -> Former {
        let Scanned { filling, closed, .. } = *scanned;
        // A process that was killed has written what was not flushed. What counts may be in it alone from now on.
        let is_flushed = closed
            || scanned.records.is_empty()
            || self
                .disk
                .sync(segment)
                .inspect_err(|error| tracing::error!("SSD {}: {error}", self.disk.name()))
                .is_ok();
        let mut former = Former { filling, used: BLOCK, is_whole: scanned.damaged == 0, ..Former::default() };
        let mut torn = 0;
        for (at, header) in &scanned.records {
            if self.take_record(*at, header, (closed, is_flushed), records) {
                // What is torn behind it is overwritten, and what is torn before it is not.
                former.is_whole &= torn == 0;
                former.used = at.offset + at.length;
            } else {
                torn += 1;
            }
        }
        former.goes_on = !closed && is_flushed && scanned.has_front;
        self.damaged += torn;
        former
    }

    /// Whether a record is whole, as far as is known.
    fn take_record(&self, at: At, header: &Header, (closed, is_flushed): (bool, bool), records: &mut Records) -> bool {
        let sum = (at, Sum(header.length, header.crc));
        let whole = || content(&*self.disk, at, header.length).ok().filter(|bytes| header.is(bytes));
        match header.what {
            What::Chunk(_, instance) => {
                let chunk = header.chunk().filter(|_| closed || whole().is_some());
                let Some(chunk) = chunk else { return false };
                records.chunks.whole(instance, sum, is_flushed, chunk);
            }
            What::Table(of, version, by) => {
                let Some(table) = whole().and_then(record::table) else {
                    records.tables.torn((of, version, by), sum);
                    return false;
                };
                records.tables.whole((of, version, by), sum, is_flushed, table);
            }
            What::Segment | What::Closed => {}
        }
        true
    }

    fn is_of(&self, wanted: Owner) -> Result<(), NotOurs> {
        match self.owner {
            Some(found) if found != wanted => Err(NotOurs { disk: self.disk.name(), found, wanted }),
            _ => Ok(()),
        }
    }

    /// A chunk's bytes, as they are.
    ///
    /// # Errors
    /// The system's; `NotFound` if there is no such chunk.
    pub fn content(&self, instance: Instance) -> io::Result<Vec<u8>> {
        let (at, _, entry) = self.chunks.get(&instance).ok_or(io::ErrorKind::NotFound)?;
        content(&*self.disk, *at, entry.length)
    }

    /// The log goes on, in segments that have nothing.
    ///
    /// # Errors
    /// [`NotOurs`].
    pub fn begin(&self, owner: Owner) -> Result<Log, NotOurs> {
        self.is_of(owner)?;
        let mut formers = self.formers.clone();
        let places = self.chunks.values().map(|(at, ..)| at).chain(self.tables.values().map(|(at, _)| at));
        for at in places {
            if let Some(former) = formers.get_mut(at.segment as usize) {
                former.live.push(*at);
            }
        }
        let segments = Segments::new(self.disk.size(), formers);
        let disk = Arc::clone(&self.disk);
        Ok(Log { disk, owner, segments, dirty: BTreeSet::new(), closed: Vec::new() })
    }
}

fn scan(disk: &dyn Disk, segment: u32) -> Scanned {
    let mut front = [0; HEADER];
    let header = |offset: u64, front: &mut [u8; HEADER]| {
        disk.read(segment, offset, front).ok()?;
        let header = Header::read(front)?;
        (header.segment == segment && header.offset == offset).then_some(header)
    };
    let first = header(0, &mut front);
    let has_front = first.is_some() || front == [0; HEADER];
    let mut scanned = Scanned { owner: None, filling: 0, records: Vec::new(), closed: false, has_front, damaged: 0 };
    if first.is_none() && has_front {
        return scanned;
    }
    if let Some(first) = &first {
        (scanned.owner, scanned.filling) = (Some(first.owner), first.filling);
    } else {
        scanned.damaged += 1;
    }
    let (mut offset, mut gap) = (BLOCK, false);
    while offset < disk.size() {
        let found = header(offset, &mut front).filter(|header| {
            let of = first.as_ref().is_none_or(|first| (first.owner, first.filling) == (header.owner, header.filling));
            of && offset + record::length(header.length as usize) as u64 <= disk.size()
        });
        let Some(header) = found else {
            (offset, gap) = (offset + BLOCK, true);
            continue;
        };
        scanned.damaged += u64::from(std::mem::take(&mut gap) && first.is_some());
        if header.what == What::Closed && first.is_some() {
            scanned.closed = true;
            break;
        }
        let length = record::length(header.length as usize) as u64;
        scanned.records.push((At { filling: header.filling, segment, offset, length }, header));
        offset += length;
    }
    if first.is_none() {
        // Without a header the latest records are the ones: what a former filling left has smaller numbers.
        scanned.filling = scanned.records.iter().map(|(at, _)| at.filling).max().unwrap_or(0);
        scanned.records.retain(|(at, _)| at.filling == scanned.filling);
        scanned.owner = scanned.records.first().map(|(_, header)| header.owner);
    }
    scanned
}

/// What a record has.
pub(super) fn content(disk: &dyn Disk, at: At, length: u32) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length as usize];
    disk.read(at.segment, at.offset + HEADER as u64, &mut bytes)?;
    Ok(bytes)
}

/// Why a record was not appended.
#[derive(Debug, thiserror::Error)]
pub enum NotAppended {
    /// There is no room until others are over.
    #[error("there is no room")]
    Full,
    /// The segment is not used any more.
    #[error(transparent)]
    Failed(#[from] io::Error),
}

/// See the module.
pub struct Log {
    disk: Arc<dyn Disk>,
    owner: Owner,
    segments: Segments,
    /// Segments with records that were not flushed.
    dirty: BTreeSet<u32>,
    /// Full ones of these: where the mark goes that says that they were.
    closed: Vec<At>,
}

impl Log {
    /// Appends a chunk.
    ///
    /// # Errors
    /// [`NotAppended`].
    pub fn chunk(&mut self, inode: Inode, entry: &Entry, bytes: &[u8]) -> Result<At, NotAppended> {
        self.append(What::Chunk(inode, entry.instance), bytes, Kind::Chunk)
    }

    /// Appends a table.
    ///
    /// # Errors
    /// [`NotAppended`].
    pub fn table(&mut self, (of, version, by): TableOf, table: &Table) -> Result<At, NotAppended> {
        self.append(What::Table(of, version, by), &record::of_table(table), Kind::Table)
    }

    /// Appends a copy of a chunk that is in the log. After the next flush, unless that fails, the former record is over.
    ///
    /// # Errors
    /// [`NotAppended`].
    pub fn copy_chunk(&mut self, from: At, inode: Inode, entry: &Entry, bytes: &[u8]) -> Result<At, NotAppended> {
        let to = self.append(What::Chunk(inode, entry.instance), bytes, Kind::Copy)?;
        self.segments.copied(from, to);
        Ok(to)
    }

    /// [`Log::copy_chunk`] of a table, which may say something new.
    ///
    /// # Errors
    /// [`NotAppended`].
    pub fn copy_table(&mut self, from: At, (of, version, by): TableOf, table: &Table) -> Result<At, NotAppended> {
        let to = self.append(What::Table(of, version, by), &record::of_table(table), Kind::Copy)?;
        self.segments.copied(from, to);
        Ok(to)
    }

    /// A record cannot be copied.
    pub fn keep(&mut self, at: At) {
        self.segments.keep(at);
    }

    /// What compaction decides from.
    #[must_use]
    pub const fn segments(&self) -> &Segments {
        &self.segments
    }

    fn append(&mut self, what: What, content: &[u8], kind: Kind) -> Result<At, NotAppended> {
        let length = record::length(content.len()) as u64;
        let append = self.segments.append(length, kind).ok_or(NotAppended::Full)?;
        let at = append.at;
        self.closed.extend(append.closed);
        if append.begins {
            // It may have been closed a moment ago, with nothing in it that counts: its mark would lie among the new records.
            self.closed.retain(|closed| closed.segment != at.segment);
        }
        let written = (|| {
            if append.begins {
                let first = At { offset: 0, length: BLOCK, ..at };
                self.write(first, What::Segment, &[])?;
                // Had a record come before it, one of the former filling would be taken for whole.
                self.disk.sync(at.segment)?;
            }
            self.write(at, what, content)
        })();
        match written {
            Ok(()) => {
                self.dirty.insert(at.segment);
                Ok(at)
            }
            Err(error) => {
                self.segments.over(at);
                self.segments.failed(at.segment);
                Err(error.into())
            }
        }
    }

    fn write(&self, at: At, what: What, content: &[u8]) -> io::Result<()> {
        let record = Header::new(self.owner, at, what, content).with(content);
        self.disk.write(at.segment, at.offset, &record)
    }

    /// All that was appended survives a power cut, but for what is in these segments, which are not used any more: of that nothing is
    /// known.
    pub fn flush(&mut self) -> BTreeMap<u32, io::Error> {
        let mut failed = BTreeMap::new();
        for segment in std::mem::take(&mut self.dirty) {
            if let Err(error) = self.disk.sync(segment) {
                self.segments.failed(segment);
                failed.insert(segment, error);
            }
        }
        self.segments.flushed();
        for at in std::mem::take(&mut self.closed) {
            // Without the mark the next life reads all of the segment.
            if !failed.contains_key(&at.segment) {
                let _ = self.write(at, What::Closed, &[]);
            }
        }
        failed
    }

    /// A record is over.
    pub fn over(&mut self, at: At) {
        self.segments.over(at);
    }
}
