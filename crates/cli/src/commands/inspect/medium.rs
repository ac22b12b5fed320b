//! A caching volume as it lies there, read as far as it can be.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use surgetank_cache::Epoch;
use surgetank_cache::format::{
    BLOCK, Geometry, Layout, Parse, Parsed, Repeat, SUPERBLOCKS_LENGTH, SegmentTable, Summary, Superblock, TableCopy,
    choose_among, scan_segment,
};
use surgetank_cache::replay::Log;
use surgetank_report::{Doing, Failure};

const BLOCK_BYTES: usize = BLOCK as usize;

/// A volume that is read and never written.
#[derive(Debug)]
pub struct Medium {
    pub file: File,
    pub path: PathBuf,
    /// Bytes.
    pub size: u64,
    /// The newest that is valid.
    pub superblock: Option<Superblock>,
    pub superblocks_valid: u32,
    /// Superblocks that were written by us and are damaged, or cannot be read.
    pub superblocks_damaged: u32,
    /// Blocks that could not be read.
    pub unreadable: u64,
    /// Bytes that answer errors.
    #[cfg(test)]
    pub faults: Vec<std::ops::Range<u64>>,
}

/// The segment table as far as it can be read.
#[derive(Debug)]
pub struct Generations {
    /// The newest valid copy of each page.
    pub pages: Vec<Option<SegmentTable>>,
    /// Pages of which a newer copy may not be readable.
    pub aged: Vec<u32>,
    pub copies_valid: u32,
    pub copies: u32,
}

impl Medium {
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        // A FIFO without a writer is not waited for; a file or a disk does not care.
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let mut file = opened.map_err(|error| {
            Failure::Invalid(format!("cannot open {shown}: {error}; name a file or block device that you may read"))
        })?;
        let kind = file.metadata().doing(|| format!("cannot examine {shown}"))?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(Failure::Invalid(format!(
                "{shown} is neither a file nor a block device: name a caching volume or a member of an array"
            )));
        }
        let size = file.seek(SeekFrom::End(0)).doing(|| format!("cannot find the size of {shown}"))?;
        let mut medium = Self {
            file,
            path: path.to_owned(),
            size,
            superblock: None,
            superblocks_valid: 0,
            superblocks_damaged: 0,
            unreadable: 0,
            #[cfg(test)]
            faults: Vec::new(),
        };
        if size < u64::from(SUPERBLOCKS_LENGTH) {
            return Err(medium.not_ours("it is too small for one"));
        }
        medium.read_superblocks();
        Ok(medium)
    }

    /// The volume is refused.
    pub fn not_ours(&self, why: &str) -> Failure {
        Failure::Invalid(format!("{} is not a surgetank caching volume: {why}; check the path", self.path.display()))
    }

    /// Reads both superblocks.
    pub fn read_superblocks(&mut self) {
        let mut slots = Vec::new();
        (self.superblocks_valid, self.superblocks_damaged, self.unreadable) = (0, 0, 0);
        for slot in 0..2 {
            let (block, unreadable) = self.read(slot * u64::from(BLOCK), BLOCK_BYTES);
            let found = Superblock::decode(&block).filter(|_| unreadable.is_empty());
            match found {
                Some(_) => self.superblocks_valid += 1,
                None => self.superblocks_damaged += u32::from(!unreadable.is_empty() || block.starts_with(b"SRGT")),
            }
            slots.push(found);
        }
        self.superblock = choose_among(&slots);
    }

    fn read_exact(&self, offset: u64, into: &mut [u8]) -> bool {
        #[cfg(test)]
        if self.faults.iter().any(|fault| fault.start < offset + into.len() as u64 && offset < fault.end) {
            return false;
        }
        self.file.read_exact_at(into, offset).is_ok()
    }

    /// Reads whole blocks; those that cannot be read are zeroes, and are numbered from the first one.
    pub fn read(&mut self, offset: u64, length: usize) -> (Vec<u8>, Vec<u32>) {
        let mut bytes = vec![0; length];
        let mut unreadable = Vec::new();
        self.read_into(offset, &mut bytes, 0, &mut unreadable);
        self.unreadable += unreadable.len() as u64;
        (bytes, unreadable)
    }

    /// What cannot be read at once is read in halves, down to the blocks.
    fn read_into(&self, offset: u64, into: &mut [u8], block: usize, unreadable: &mut Vec<u32>) {
        if into.is_empty() || self.read_exact(offset, into) {
            return;
        }
        into.fill(0);
        let blocks = into.len() / BLOCK_BYTES;
        if blocks <= 1 {
            unreadable.push(block as u32);
            return;
        }
        let (first, second) = into.split_at_mut(blocks / 2 * BLOCK_BYTES);
        self.read_into(offset, first, block, unreadable);
        self.read_into(offset + first.len() as u64, second, block + blocks / 2, unreadable);
    }

    /// The segment table of an attachment.
    pub fn generations(&mut self, geometry: Geometry, epoch: Epoch) -> Generations {
        let mut generations = Generations { pages: Vec::new(), aged: Vec::new(), copies_valid: 0, copies: 0 };
        for page in 0..geometry.table_pages() {
            let mut newest: Option<SegmentTable> = None;
            let mut failed = false;
            for copy in TableCopy::ALL {
                generations.copies += 1;
                let (block, unreadable) = self.read(geometry.table_offset(page, copy), BLOCK_BYTES);
                failed |= !unreadable.is_empty();
                let Parsed::Table(Some(table)) = (Parse::Table { epoch, geometry, page }).read(&block) else {
                    continue;
                };
                generations.copies_valid += 1;
                if newest.as_ref().is_none_or(|other| other.sequence < table.sequence) {
                    newest = Some(table);
                }
            }
            // Only there do the copies alternate.
            if failed && geometry.layout == Layout::One && newest.is_some() {
                generations.aged.push(page);
            }
            generations.pages.push(newest);
        }
        generations
    }

    /// Reads all segments.
    pub fn log(&mut self, superblock: &Superblock, table: &Generations, mut done: impl FnMut(u64)) -> Log {
        let (geometry, epoch) = (superblock.geometry(), superblock.epoch);
        let mut generations = Vec::with_capacity(geometry.segments as usize);
        for (page, table_page) in (0..).zip(&table.pages) {
            for (nth, segment) in geometry.segments_of_page(page).enumerate() {
                let named = table_page.as_ref().and_then(|table| table.generations.get(nth)).copied();
                generations.push(match named {
                    Some(named) if !table.aged.contains(&page) => named,
                    // The newest that there is.
                    named => named.unwrap_or(0).max(self.highest_generation(geometry, epoch, segment)),
                });
            }
        }
        let mut log = Log::new(superblock, generations);
        let mut to_scan: Vec<(u32, Vec<Repeat>)> =
            (0..geometry.segments).map(|segment| (segment, Vec::new())).collect();
        while !to_scan.is_empty() {
            for (segment, repeats) in std::mem::take(&mut to_scan) {
                let before = self.unreadable;
                let (bytes, unreadable) = self.segment(geometry, segment);
                if repeats.is_empty() {
                    done(bytes.len() as u64);
                } else {
                    self.unreadable = before;
                }
                let generation = log.generation(segment);
                log.add(scan_segment(&bytes, epoch, segment, generation, &unreadable, &repeats), unreadable);
            }
            to_scan = log.again();
        }
        log
    }

    fn segment(&mut self, geometry: Geometry, segment: u32) -> (Vec<u8>, Vec<u32>) {
        self.read(geometry.segment_offset(segment), geometry.segment_size as usize)
    }

    /// Summaries that lie in their place in a segment, whatever attachment they are of.
    fn summaries(&mut self, geometry: Geometry, segment: u32) -> Vec<Summary> {
        let counted = self.unreadable;
        let (bytes, _) = self.segment(geometry, segment);
        self.unreadable = counted;
        let blocks = (0..).zip(bytes.chunks_exact(BLOCK_BYTES));
        let found = blocks.filter_map(|(position, block)| Some((position, Summary::decode(block)?)));
        let in_place = found.filter(|(position, summary)| {
            (summary.place.segment, summary.place.position, summary.layout) == (segment, *position, geometry.layout)
        });
        in_place.map(|(_, summary)| summary).collect()
    }

    fn highest_generation(&mut self, geometry: Geometry, epoch: Epoch, segment: u32) -> u32 {
        let summaries = self.summaries(geometry, segment);
        let ours = summaries.iter().filter(|summary| summary.epoch == epoch);
        ours.map(|summary| summary.place.generation).max().unwrap_or(0)
    }

    /// Which attachment the volume is of, and how it is divided, without a superblock: the size says how, a page of the table
    /// or else most summaries say which. True: pages of the table say so.
    pub fn guess(&mut self) -> Option<(Geometry, Epoch, bool)> {
        let layouts = [Layout::Two, Layout::One];
        let geometries: Vec<Geometry> =
            layouts.into_iter().filter_map(|layout| Geometry::with_layout(self.size, layout)).collect();
        for by_pages in [true, false] {
            for &geometry in &geometries {
                let mut votes: BTreeMap<Epoch, u64> = BTreeMap::new();
                if by_pages {
                    self.pages(geometry).into_iter().for_each(|epoch| *votes.entry(epoch).or_default() += 1);
                } else {
                    for segment in 0..geometry.segments {
                        for summary in self.summaries(geometry, segment) {
                            *votes.entry(summary.epoch).or_default() += 1;
                        }
                    }
                }
                if let Some((epoch, _)) = votes.into_iter().max_by_key(|(_, votes)| *votes) {
                    return Some((geometry, epoch, by_pages));
                }
            }
        }
        None
    }

    /// The attachments that valid pages in their places are of.
    fn pages(&mut self, geometry: Geometry) -> Vec<Epoch> {
        let counted = self.unreadable;
        let mut epochs = Vec::new();
        for page in 0..geometry.table_pages() {
            for copy in TableCopy::ALL {
                let (block, _) = self.read(geometry.table_offset(page, copy), BLOCK_BYTES);
                let table = SegmentTable::decode(&block).filter(|table| {
                    (table.page, table.layout) == (page, geometry.layout)
                        && table.generations.len() == geometry.segments_of_page(page).len()
                });
                epochs.extend(table.map(|table| table.epoch));
            }
        }
        self.unreadable = counted;
        epochs
    }
}
