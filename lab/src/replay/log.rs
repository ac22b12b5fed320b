//! The log of the device mapper's log-writes target: every write to a device, in the order in which it became durable.
//!
//! dm-log-writes (`docs/REFERENCES.md`), `drivers/md/dm-log-writes.c`: a super block, then
//! entries of a sector each, a write's data after its entry; numbers are little-endian, positions count in the sectors
//! that the super block names.
//!
//! A write stands in the log only once a FLUSH that was submitted after its completion has completed, right before that
//! FLUSH; one with FUA (forced unit access) once it has completed. So all that stands before an entry was durable when
//! that entry was logged, and nothing else was.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use anyhow::{Context, bail, ensure};

const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;
/// Super block: magic, version, number of entries, and the sector's size in four bytes.
const SUPER_BYTES: usize = 28;
/// Entry: sector, sectors, flags, length of inline data.
const ENTRY_BYTES: usize = 32;
const FLUSH: u64 = 1;
const FUA: u64 = 1 << 1;
const DISCARD: u64 = 1 << 2;
const MARK: u64 = 1 << 3;
const METADATA: u64 = 1 << 4;

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A write that the next FLUSH in the log has made durable.
    Write,
    /// A write with FUA, durable by itself.
    Forced,
    /// A range whose content is not needed any more; it becomes durable as a write does.
    Discard,
    /// A FLUSH that has completed.
    Flush,
    /// A message to the log.
    Mark(String),
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it is.
    pub kind: EntryKind,
    /// The bytes of the device that it changes.
    pub bytes: Range<u64>,
    /// Where in the log their new content is.
    data: u64,
}

impl Entry {
    /// Whether it takes a FLUSH to make it durable.
    pub fn waits_for_a_flush(&self) -> bool {
        matches!(self.kind, EntryKind::Write | EntryKind::Discard)
    }

    /// What its range holds afterwards. A discarded one reads as zeroes, as on QEMU's disks.
    pub fn content(&self, log: &File) -> anyhow::Result<Vec<u8>> {
        let mut content = vec![0; (self.bytes.end - self.bytes.start) as usize];
        if matches!(self.kind, EntryKind::Write | EntryKind::Forced) {
            log.read_exact_at(&mut content, self.data).context("cannot read a write's data from the log")?;
        }
        Ok(content)
    }
}

/// All entries of a log of a device of `size` bytes, without their data.
pub fn read(log: &mut (impl Read + Seek), size: u64) -> anyhow::Result<Vec<Entry>> {
    let end = log.seek(SeekFrom::End(0)).context("cannot tell the log's length")?;
    ensure!(end >= SUPER_BYTES as u64, "the log is shorter than its super block");
    let mut start = [0; SUPER_BYTES];
    read_at(log, 0, &mut start)?;
    let sector_bytes = u64::from(u32::from_le_bytes([start[24], start[25], start[26], start[27]]));
    ensure!(number(&start, 0) == MAGIC, "this is not a log of dm-log-writes: its magic number is another");
    ensure!(number(&start, 1) == VERSION, "the log has version {}, not {VERSION}", number(&start, 1));
    ensure!(
        (512..=65_536).contains(&sector_bytes) && sector_bytes.is_power_of_two(),
        "the log has sectors of {sector_bytes} bytes: they are a power of two from 512 to 65536"
    );
    let reader = Reader { sector_bytes, end, size };
    let mut entries = Vec::new();
    let mut at = sector_bytes;
    for index in 0..number(&start, 2) {
        at = reader.entry(log, at, &mut entries).with_context(|| format!("entry {index} of the log cannot be read"))?;
    }
    Ok(entries)
}

struct Reader {
    sector_bytes: u64,
    end: u64,
    size: u64,
}

impl Reader {
    /// Reads the entry at `at`; where the next one is.
    fn entry(&self, log: &mut (impl Read + Seek), at: u64, entries: &mut Vec<Entry>) -> anyhow::Result<u64> {
        let data = at + self.sector_bytes;
        ensure!(data <= self.end, "the log ends before it");
        let mut head = [0; ENTRY_BYTES];
        read_at(log, at, &mut head)?;
        let [sector, sectors, flags, inline] = [0, 1, 2, 3].map(|index| number(&head, index));
        ensure!(flags & !(FLUSH | FUA | DISCARD | MARK | METADATA) == 0, "it has unknown flags: {flags:#x}");
        if flags & MARK != 0 {
            ensure!(inline <= self.sector_bytes - ENTRY_BYTES as u64, "its mark of {inline} bytes is too long");
            let mut text = vec![0; inline as usize];
            log.read_exact(&mut text)?;
            let Ok(text) = String::from_utf8(text) else { bail!("its mark is not text") };
            entries.push(Entry { kind: EntryKind::Mark(text), bytes: 0..0, data });
            return Ok(data);
        }
        ensure!(inline == 0, "it has {inline} bytes of inline data, and only marks have such");
        if flags & FLUSH != 0 {
            entries.push(Entry { kind: EntryKind::Flush, bytes: 0..0, data });
        }
        if sectors == 0 {
            ensure!(flags & FLUSH != 0, "it is neither a flush nor a write of anything");
            return Ok(data);
        }
        let first = sector.checked_mul(self.sector_bytes);
        let length = sectors.checked_mul(self.sector_bytes);
        let last = first.zip(length).and_then(|(first, length)| first.checked_add(length));
        let (Some(first), Some(last)) = (first, last.filter(|last| *last <= self.size)) else {
            bail!("it writes beyond the device: {sectors} sectors from {sector} on");
        };
        let (kind, next) = match flags & (DISCARD | FUA) {
            0 => (EntryKind::Write, data + (last - first)),
            FUA => (EntryKind::Forced, data + (last - first)),
            _ => (EntryKind::Discard, data),
        };
        ensure!(next <= self.end, "the log ends within its data");
        entries.push(Entry { kind, bytes: first..last, data });
        Ok(next)
    }
}

fn read_at(log: &mut (impl Read + Seek), at: u64, bytes: &mut [u8]) -> anyhow::Result<()> {
    log.seek(SeekFrom::Start(at))?;
    log.read_exact(bytes)?;
    Ok(())
}

/// The number at an index, eight bytes each.
fn number(bytes: &[u8], index: usize) -> u64 {
    bytes.chunks_exact(8).nth(index).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::io::{Cursor, Write};

    const SIZE: u64 = 1 << 20;

    /// A log as the kernel writes it: for each entry sector, sectors, flags, and the text of a mark.
    pub fn made(entries: &[(u64, u64, u64, &str)]) -> Vec<u8> {
        let mut log = vec![0; 512];
        for (value, at) in [(MAGIC, 0), (VERSION, 8), (entries.len() as u64, 16), (512, 24)] {
            log[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
        }
        for (index, (sector, sectors, flags, mark)) in entries.iter().enumerate() {
            let from = log.len();
            for value in [*sector, *sectors, *flags, mark.len() as u64] {
                log.extend_from_slice(&value.to_le_bytes());
            }
            log.extend_from_slice(mark.as_bytes());
            log.resize(from + 512, 0);
            if flags & (DISCARD | MARK) == 0 {
                log.resize(log.len() + 512 * *sectors as usize, index as u8 + 1);
            }
        }
        log
    }

    fn sentence(log: &[u8]) -> String {
        format!("{:#}", read(&mut Cursor::new(log), SIZE).unwrap_err())
    }

    #[test]
    fn a_log_is_read_as_the_kernel_writes_it() {
        let log = made(&[
            (8, 2, METADATA, ""),
            (0, 0, FLUSH, ""),
            (0, 0, MARK, "durable-1-7"),
            (64, 4, DISCARD, ""),
            (16, 1, FUA, ""),
            (32, 1, FLUSH | FUA, ""),
        ]);
        let entries = read(&mut Cursor::new(&log), SIZE).unwrap();
        let kinds: Vec<_> = entries.iter().map(|entry| entry.kind.clone()).collect();
        let mark = EntryKind::Mark("durable-1-7".to_owned());
        let expected = [
            EntryKind::Write,
            EntryKind::Flush,
            mark,
            EntryKind::Discard,
            EntryKind::Forced,
            EntryKind::Flush,
            EntryKind::Forced,
        ];
        assert_eq!(kinds, expected);
        assert_eq!(entries[0].bytes, 4096..5120);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&log).unwrap();
        for (index, expected) in [(0, vec![1; 1024]), (3, vec![0; 2048]), (4, vec![5; 512]), (6, vec![6; 512])] {
            assert_eq!(entries[index].content(&file).unwrap(), expected, "entry {index}");
        }
        assert_eq!(read(&mut Cursor::new(made(&[])), SIZE).unwrap(), []);
    }

    #[test]
    fn a_log_that_is_cut_off_or_damaged_is_one_sentence() {
        let log = made(&[(8, 2, 0, ""), (0, 0, MARK, "x")]);
        for length in 0..log.len() {
            let said = sentence(&log[..length]);
            assert!(said.contains("shorter") || said.contains("ends"), "{length}: {said}");
        }
        let damaged = |at: usize, value: u64| {
            let mut log = log.clone();
            log[at..at + 8].copy_from_slice(&value.to_le_bytes());
            sentence(&log)
        };
        assert!(damaged(0, 1).contains("magic"));
        assert!(damaged(8, 2).contains("version 2"));
        assert!(damaged(16, 3).contains("entry 2 of the log cannot be read: the log ends before it"));
        assert!(damaged(24, 500).contains("sectors of 500 bytes"));
        assert!(damaged(512, u64::MAX).contains("beyond the device"));
        assert!(damaged(520, u64::MAX / 256).contains("beyond the device"));
        assert!(damaged(520, 0).contains("neither a flush nor a write"));
        assert!(damaged(528, 1 << 9).contains("unknown flags: 0x200"));
        assert!(damaged(536, 1).contains("inline data"));
        let mark = log.len() - 512;
        assert!(damaged(mark + 24, 481).contains("too long"));
        assert!(damaged(mark + 32, 0xff).contains("not text"));
    }
}
