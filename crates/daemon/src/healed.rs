//! What was healed of a loss since its record was written: a journal that only grows, so that a healing costs its own
//! bytes and not those of all that is lost.
//!
//! The journal belongs to one owner record, which names it; with any other record it counts for nothing. So a new record
//! is written first, in one piece, and from then on the old journal is void, wherever a crash comes. An entry counts only
//! whole; a crash while it was appended leaves nothing behind it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use surgetank_cache::Epoch;

use crate::files::{self, Unreadable};
use surgetank_rental::owner::parse_epoch;

/// The file's name in the device's state directory.
const FILE: &str = "healed.journal";
/// How the files of journals without an entry are called, with the journal's name at the end.
const BEGINNING: &str = "healed.";
const MAGIC: [u8; 8] = *b"SGTKHEAL";
const VERSION: u32 = 1;
const HEADER: usize = 32;
/// Entries begin at multiples of this.
const UNIT: usize = 16;
/// A shorter one is never too long.
const SHORT: u64 = 1 << 20;

/// A byte range of the device: offset and length.
pub type Pair = (u64, u64);

/// Names a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id(pub [u8; 16]);

/// A journal as a record names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its name.
    pub id: Id,
    /// It was there before the record. Those of older records came with their first entry.
    pub is_there: bool,
}

/// What a journal's file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Its name.
    pub id: Id,
    /// What was healed, in order.
    pub ranges: Vec<Pair>,
    /// Entries.
    entries: u64,
    /// Bytes after the last whole entry: one that was being appended.
    torn: bool,
    length: u64,
}

/// The journal of one owner record.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// Holds its place until the first entry, beside the journal of the record before.
    beginning: PathBuf,
    named: Named,
    /// Once the first entry is in it.
    file: Option<File>,
    entries: u64,
    length: u64,
    /// Nothing can be appended: the end is not whole.
    torn: bool,
    /// Bytes of the record.
    record: u64,
}

fn beginning(directory: &Path, id: Id) -> PathBuf {
    directory.join(format!("{BEGINNING}{}", Epoch(id.0)))
}

fn header(id: Id) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..28].copy_from_slice(&id.0);
    let sum = crc32c::crc32c(&header[..28]);
    header[28..].copy_from_slice(&sum.to_le_bytes());
    header
}

fn entry(id: Id, number: u64, ranges: &[Pair]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(UNIT * (1 + ranges.len()));
    bytes.extend(number.to_le_bytes());
    bytes.extend(u32::try_from(ranges.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend([0; 4]);
    for (offset, length) in ranges {
        bytes.extend(offset.to_le_bytes());
        bytes.extend(length.to_le_bytes());
    }
    let sum = checksum(id, &bytes);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Of an entry, with whatever is where the checksum goes.
fn checksum(id: Id, entry: &[u8]) -> u32 {
    let sum = crc32c::crc32c_append(crc32c::crc32c(&id.0), &entry[..12]);
    crc32c::crc32c_append(sum, &entry[UNIT..])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// The entry at the start of `bytes`, if it is whole: its number, and its length in bytes.
fn whole(id: Id, bytes: &[u8]) -> Option<(u64, usize)> {
    let count = (bytes.len() >= UNIT).then(|| u32_at(bytes, 8) as usize).filter(|&count| count > 0)?;
    let length = count.checked_add(1)?.checked_mul(UNIT)?;
    let entry = bytes.get(..length)?;
    (checksum(id, entry) == u32_at(entry, 12)).then(|| (u64_at(entry, 0), length))
}

/// Reads what a file holds. Its beginning, with the first entry, was written in one piece.
///
/// # Errors
/// Why it cannot be believed.
pub fn read(bytes: &[u8]) -> Result<Content, Unreadable> {
    if bytes.len() < HEADER || bytes[..8] != MAGIC {
        return Err("is damaged: it does not begin as such a file".to_owned().into());
    }
    let version = u32_at(bytes, 8);
    if version > VERSION {
        return Err(Unreadable::Newer { version, newest: VERSION });
    }
    let mut id = Id([0; 16]);
    id.0.copy_from_slice(&bytes[12..28]);
    if bytes[..HEADER] != header(id) {
        return Err("is damaged: its first bytes do not match their checksum".to_owned().into());
    }
    let (mut at, mut entries, mut ranges) = (HEADER, 0, Vec::new());
    while let Some((number, length)) = whole(id, &bytes[at..])
        && number == entries
    {
        let pairs = bytes[at + UNIT..at + length].chunks_exact(UNIT);
        ranges.extend(pairs.map(|pair| (u64_at(pair, 0), u64_at(pair, 8))));
        at += length;
        entries += 1;
    }
    // Nothing is appended after what is torn.
    if (at..bytes.len()).step_by(UNIT).any(|at| whole(id, &bytes[at..]).is_some_and(|(number, _)| number >= entries)) {
        return Err(format!("is damaged: its entry {entries} is not whole, but another one follows").into());
    }
    Ok(Content { id, ranges, entries, torn: at < bytes.len(), length: at as u64 })
}

impl Journal {
    /// Makes a new one, durably, for a record that is to be written.
    ///
    /// # Errors
    /// Whatever the file system answers.
    pub fn begin(directory: &Path, id: Id) -> io::Result<()> {
        files::write_atomically(&beginning(directory, id), &header(id))
    }

    /// That of a record of so many bytes; its first entry takes the place of any other journal.
    #[must_use]
    pub fn new(directory: &Path, named: Named, record: u64) -> Self {
        let beginning = beginning(directory, named.id);
        Self { path: directory.join(FILE), beginning, named, file: None, entries: 0, length: 0, torn: false, record }
    }

    /// The journal of a record that is on disk, and what it says.
    ///
    /// # Errors
    /// If the file cannot be read, makes no sense, or is missing.
    pub fn open(directory: &Path, named: Named, record: u64) -> io::Result<(Self, Vec<Pair>)> {
        let mut journal = Self::new(directory, named, record);
        let ranges = journal.load()?;
        Ok((journal, ranges))
    }

    /// Reads the file, and makes sure that what was read stays.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn load(&mut self) -> io::Result<Vec<Pair>> {
        let refused = |why: Unreadable| why.of("the record of what was healed", &self.path);
        let content = match files::read(&self.path)? {
            Some(bytes) => Some(read(&bytes).map_err(refused)?).filter(|content| content.id == self.named.id),
            None => None,
        };
        if content.as_ref().map_or(0, |content| content.entries) < self.entries {
            return Err(refused("is damaged: entries are missing".to_owned().into()));
        }
        let Some(content) = content else {
            // What it said would count as lost again, and an older version of it as the newest.
            if self.named.is_there && files::read(&self.beginning)?.is_none() {
                return Err(refused("is missing".to_owned().into()));
            }
            return Ok(Vec::new());
        };
        files::make_durable(&self.path)?;
        (self.entries, self.length, self.torn) = (content.entries, content.length, content.torn);
        Ok(content.ranges)
    }

    /// Whether this is its name.
    #[must_use]
    pub fn is(&self, id: Id) -> bool {
        self.named.id == id
    }

    /// Whether the record had better be written anew, rather than this go on.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.torn || self.length > self.record.max(SHORT)
    }

    /// Adds an entry, durably. After an error it may be there or not, and no other one can follow it.
    ///
    /// # Errors
    /// Whatever the file system answers.
    pub fn append(&mut self, ranges: &[Pair]) -> io::Result<()> {
        let id = self.named.id;
        let bytes = entry(id, self.entries, ranges);
        self.torn = true;
        if self.entries == 0 {
            self.length = files::replace(&self.path, |file| {
                file.write_all(&header(id))?;
                file.write_all(&bytes)
            })?;
            forget(&self.beginning);
        } else {
            let file = match self.file.take() {
                Some(file) => file,
                None => OpenOptions::new().write(true).open(&self.path)?,
            };
            file.write_all_at(&bytes, self.length)?;
            file.sync_data()?;
            self.file = Some(file);
            self.length += bytes.len() as u64;
        }
        self.entries += 1;
        self.torn = false;
        Ok(())
    }

    /// Removes the files of a journal that counts no more.
    pub fn remove(directory: &Path) {
        forget(&directory.join(FILE));
        Self::forget_others(directory, None);
    }

    /// Removes the beginnings of journals but for that of this one: their records are no more, or never came to be.
    pub fn forget_others(directory: &Path, id: Option<Id>) {
        let own = id.map(|id| beginning(directory, id));
        let Ok(entries) = std::fs::read_dir(directory) else { return };
        for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
            let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(BEGINNING));
            if name.and_then(parse_epoch).is_some() && own.as_ref() != Some(&path) {
                forget(&path);
            }
        }
    }
}

/// Removes a file that counts no more: one that stays does no harm.
fn forget(path: &Path) {
    if let Err(error) = files::remove(path) {
        tracing::debug!(%error, "a journal that counts no more stays");
    }
}

/// Sorted, joined where they touch, and without empty ones.
#[must_use]
pub fn joined(mut ranges: Vec<Pair>) -> Vec<Pair> {
    ranges.retain(|&(_, length)| length > 0);
    ranges.sort_unstable();
    let mut count = 0_usize;
    for index in 0..ranges.len() {
        let (offset, length) = ranges[index];
        match count.checked_sub(1).map(|last| &mut ranges[last]) {
            Some((first, long)) if offset <= first.saturating_add(*long) => {
                *long = (*long).max(offset.saturating_add(length) - *first);
            }
            _ => {
                ranges[count] = (offset, length);
                count += 1;
            }
        }
    }
    ranges.truncate(count);
    ranges
}

/// What is left of sorted ranges without others, which are [`joined`].
pub fn without<'a>(ranges: &'a [Pair], others: &'a [Pair]) -> impl Iterator<Item = Pair> + 'a {
    let mut next = 0;
    let mut ranges = ranges.iter().map(|&(offset, length)| (offset, offset.saturating_add(length)));
    let mut rest: Option<(u64, u64)> = None;
    std::iter::from_fn(move || {
        loop {
            let (from, to) = match rest.take() {
                Some(rest) => rest,
                None => ranges.next()?,
            };
            while others.get(next).is_some_and(|&(offset, length)| offset.saturating_add(length) <= from) {
                next += 1;
            }
            match others.get(next).filter(|(offset, _)| *offset < to) {
                None if from < to => return Some((from, to - from)),
                None => {}
                Some(&(offset, length)) => {
                    rest = Some((offset.saturating_add(length), to)).filter(|(from, to)| from < to);
                    if from < offset {
                        return Some((from, offset - from));
                    }
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn numbers(ranges: impl IntoIterator<Item = Pair>) -> BTreeSet<u64> {
        ranges.into_iter().flat_map(|(offset, length)| offset..offset + length).collect()
    }

    fn any_ranges() -> impl Strategy<Value = Vec<Pair>> {
        prop::collection::vec((0..200_u64, 0..20_u64), 0..20)
    }

    proptest! {
        #[test]
        fn sets_of_ranges_are_sets_of_numbers(lost in any_ranges(), healed in any_ranges()) {
            let (lost, healed) = (joined(lost), joined(healed));
            let left: Vec<Pair> = without(&lost, &healed).collect();
            prop_assert_eq!(&joined(left.clone()), &left);
            prop_assert!(left.iter().all(|&(_, length)| length > 0));
            let expected = &numbers(lost) - &numbers(healed);
            prop_assert_eq!(numbers(left), expected);
        }

        #[test]
        fn damage_is_noticed_or_a_torn_end(
            entries in prop::collection::vec(prop::collection::vec((any::<u64>(), any::<u64>()), 1..4), 1..6),
            at in any::<prop::sample::Index>(),
            flip in 1..=255_u8,
        ) {
            let id = Id([3; 16]);
            let mut bytes = header(id).to_vec();
            for (number, ranges) in entries.iter().enumerate() {
                bytes.extend(entry(id, number as u64, ranges));
            }
            let all: Vec<Pair> = entries.concat();
            prop_assert_eq!(&read(&bytes).unwrap().ranges, &all);
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            // Whatever is read was written, from the start on; and only the last entry can vanish unnoticed.
            if let Ok(content) = read(&bytes) {
                prop_assert_eq!(&content.ranges[..], &all[..content.ranges.len()]);
                prop_assert!(content.entries + 1 >= entries.len() as u64);
            }
        }

        #[test]
        fn anything_is_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), whole in any::<bool>()) {
            let start = if whole { header(Id([1; 16])).to_vec() } else { Vec::new() };
            let _ = read(&[start, bytes].concat());
        }
    }

    #[test]
    fn what_a_newer_version_wrote_is_refused() {
        let mut bytes = header(Id([1; 16])).to_vec();
        bytes[8] = 2;
        assert_eq!(read(&bytes).unwrap_err(), Unreadable::Newer { version: 2, newest: VERSION });
    }
}
