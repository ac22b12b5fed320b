//! The summary block of a commit record.

use crate::index::chunks;

use super::{BLOCK, Block, DEVICE_BLOCKS_MAX, Epoch, Layout, Reader, SEQUENCE_MAX, SUMMARY_MAGIC, Writer, checksum};

/// What a record says of a range of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Data blocks follow the summary.
    Data,
    /// The range reads as zeroes; written as zeroes when drained.
    Zeroes,
    /// The range was discarded; it reads as zeroes and is discarded when drained.
    Discarded,
    /// Data blocks follow, copied from the backing volume by a read: never replayed.
    Copied,
}

impl Content {
    /// Whether data blocks follow the summary.
    #[must_use]
    pub const fn has_data(self) -> bool {
        match self {
            Self::Data | Self::Copied => true,
            Self::Zeroes | Self::Discarded => false,
        }
    }

    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Data => 1,
            Self::Zeroes => 2,
            Self::Discarded => 3,
            Self::Copied => 4,
        }
    }

    pub(super) const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Data,
            2 => Self::Zeroes,
            3 => Self::Discarded,
            4 => Self::Copied,
            _ => return None,
        })
    }
}

/// One entry of a summary: a range of the device, in 4 KiB blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// First block of the device.
    pub block: u64,
    /// Blocks.
    pub blocks: u32,
    /// What the range holds.
    pub content: Content,
}

impl Entry {
    /// Bytes of an entry on the volume.
    pub(super) const LENGTH: usize = 12;

    /// Data blocks that it announces.
    #[must_use]
    pub const fn data_blocks(&self) -> u32 {
        if self.content.has_data() { self.blocks } else { 0 }
    }

    /// Extents without data that it makes in the index.
    #[must_use]
    pub const fn tombstones(&self) -> u64 {
        if self.content.has_data() { 0 } else { chunks(self.block, self.blocks) }
    }

    /// The entry in twelve bytes.
    pub(super) fn pack(&self) -> (u64, u32) {
        (self.block << 8 | u64::from(self.content.code()), self.blocks)
    }

    pub(super) fn unpack(packed: u64, blocks: u32) -> Option<Self> {
        let content = Content::from_code((packed & 0xff) as u8)?;
        let block = packed >> 8;
        (blocks > 0 && block < DEVICE_BLOCKS_MAX).then_some(Self { block, blocks, content })
    }
}

/// Where a record lies, and which one it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Order of the record in the log; the highest counts for each block of the device.
    pub sequence: u64,
    /// Segment that it lies in.
    pub segment: u32,
    /// The segment's generation.
    pub generation: u32,
    /// 4 KiB block in the segment at which the summary lies; its data follow.
    pub position: u32,
}

/// What a summary repeats of the record before its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// Where that record lies.
    pub place: Place,
    /// The record before that one.
    pub previous: Option<Place>,
    /// Its ranges, in the order of their data.
    pub entries: Vec<Entry>,
    /// crc32c of each of its data blocks, in order.
    pub checksums: Vec<u32>,
}

/// The summary block of a commit record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// How the volume is laid out.
    pub layout: Layout,
    /// Which attachment.
    pub epoch: Epoch,
    /// Where it lies.
    pub place: Place,
    /// Records up to this sequence are durable; 0: nothing is known.
    pub durable: u64,
    /// The record before it that a recovery may replay; copies of the backing volume are none.
    pub previous: Option<Place>,
    /// Ranges, in the order of their data.
    pub entries: Vec<Entry>,
    /// crc32c of each data block, in order. Empty until the [`Sealer`] has computed them.
    pub checksums: Vec<u32>,
    /// What it repeats of `previous`. The [`Sealer`] puts it in.
    pub repeat: Option<Box<Repeat>>,
}

const fn header(layout: Layout) -> usize {
    match layout {
        Layout::One => 64,
        Layout::Two => 112,
    }
}

/// Bytes that one record's entries and checksums may take: in [`Layout::Two`] those of two records fit one block.
const fn room(layout: Layout) -> usize {
    let left = BLOCK as usize - header(layout);
    match layout {
        Layout::One => left,
        Layout::Two => left / 2,
    }
}

const fn length(entries: usize, data_blocks: usize) -> usize {
    entries * Entry::LENGTH + data_blocks * 4
}

fn data_blocks(entries: &[Entry]) -> u64 {
    entries.iter().map(|entry| u64::from(entry.data_blocks())).sum()
}

impl Summary {
    /// Whether a summary has room for this many entries and data blocks.
    #[must_use]
    pub const fn fits(layout: Layout, entries: usize, data_blocks: usize) -> bool {
        length(entries, data_blocks) <= room(layout)
    }

    /// Data blocks that its entries announce.
    #[must_use]
    pub fn data_blocks(&self) -> u32 {
        self.entries.iter().map(Entry::data_blocks).sum()
    }

    /// Whether it holds nothing but copies of the backing volume.
    #[must_use]
    pub fn is_copies(&self) -> bool {
        self.entries.iter().all(|entry| entry.content == Content::Copied)
    }

    /// The block to write. Its checksums have been computed: one for each data block.
    #[must_use]
    pub fn encode(&self) -> Block {
        debug_assert_eq!(self.checksums.len(), self.data_blocks() as usize);
        let mut writer = Writer::new(SUMMARY_MAGIC, self.layout, self.epoch);
        writer.put(&self.place.sequence.to_le_bytes());
        writer.put(&self.place.segment.to_le_bytes());
        writer.put(&self.place.generation.to_le_bytes());
        writer.put(&self.place.position.to_le_bytes());
        writer.put(&(self.entries.len() as u16).to_le_bytes());
        writer.put(&(self.checksums.len() as u16).to_le_bytes());
        writer.put(&self.durable.to_le_bytes());
        if self.layout == Layout::Two {
            put_place(&mut writer, self.previous);
            let counts = self.repeat.as_ref().map_or((0, 0), |repeat| (repeat.entries.len(), repeat.checksums.len()));
            writer.put(&(counts.0 as u16).to_le_bytes());
            writer.put(&(counts.1 as u16).to_le_bytes());
            put_place(&mut writer, self.repeat.as_ref().and_then(|repeat| repeat.previous));
        }
        writer.at = header(self.layout);
        put_body(&mut writer, &self.entries, &self.checksums);
        if let Some(repeat) = &self.repeat {
            put_body(&mut writer, &repeat.entries, &repeat.checksums);
        }
        writer.seal()
    }

    /// What a block holds, if it is a valid summary.
    #[must_use]
    pub fn decode(block: &[u8]) -> Option<Self> {
        let (mut reader, layout, epoch) = Reader::open(block, SUMMARY_MAGIC)?;
        let sequence = reader.u64()?;
        let (segment, generation, position) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let (entries, data_blocks) = (usize::from(reader.u16()?), usize::from(reader.u16()?));
        let durable = reader.u64()?;
        if !Self::fits(layout, entries, data_blocks) || sequence > SEQUENCE_MAX || durable > SEQUENCE_MAX {
            return None;
        }
        let (mut previous, mut repeated) = (None, None);
        if layout == Layout::Two {
            previous = take_place(&mut reader)?;
            let counts = (usize::from(reader.u16()?), usize::from(reader.u16()?));
            let before = take_place(&mut reader)?;
            if counts.0 > 0 {
                if !Self::fits(layout, counts.0, counts.1) {
                    return None;
                }
                repeated = Some((previous?, before, counts));
            }
        }
        reader.bytes = &block[header(layout)..BLOCK as usize];
        let (entries, checksums) = take_body(&mut reader, entries, data_blocks)?;
        let repeat = match repeated {
            None => None,
            Some((place, previous, counts)) => {
                let (entries, checksums) = take_body(&mut reader, counts.0, counts.1)?;
                Some(Box::new(Repeat { place, previous, entries, checksums }))
            }
        };
        let place = Place { sequence, segment, generation, position };
        Some(Self { layout, epoch, place, durable, previous, entries, checksums, repeat })
    }
}

/// No record has the sequence 0.
pub(super) fn put_place(writer: &mut Writer, place: Option<Place>) {
    let Place { sequence, segment, generation, position } = place.unwrap_or_default();
    writer.put(&sequence.to_le_bytes());
    [segment, generation, position].iter().for_each(|number| writer.put(&number.to_le_bytes()));
}

pub(super) fn take_place(reader: &mut Reader<'_>) -> Option<Option<Place>> {
    let sequence = reader.u64()?;
    let place = Place { sequence, segment: reader.u32()?, generation: reader.u32()?, position: reader.u32()? };
    (sequence <= SEQUENCE_MAX).then_some((sequence > 0).then_some(place))
}

fn put_body(writer: &mut Writer, entries: &[Entry], checksums: &[u32]) {
    for entry in entries {
        let (packed, blocks) = entry.pack();
        writer.put(&packed.to_le_bytes());
        writer.put(&blocks.to_le_bytes());
    }
    checksums.iter().for_each(|checksum| writer.put(&checksum.to_le_bytes()));
}

fn take_body(reader: &mut Reader<'_>, entries: usize, blocks: usize) -> Option<(Vec<Entry>, Vec<u32>)> {
    let entries = (0..entries).map(|_| Entry::unpack(reader.u64()?, reader.u32()?)).collect::<Option<Vec<_>>>()?;
    if data_blocks(&entries) != blocks as u64 {
        return None;
    }
    let checksums = (0..blocks).map(|_| reader.u32()).collect::<Option<_>>()?;
    Some((entries, checksums))
}

/// Completes records as they go to the volume, in the order of their sequences.
#[derive(Debug, Default)]
pub struct Sealer {
    last: Option<(Epoch, Repeat)>,
}

impl Sealer {
    /// Computes the checksums of the data blocks that follow a summary, and what the summary repeats of the record before
    /// it. Answers the block to write before the data.
    pub fn seal<'a>(&mut self, summary: &mut Summary, data: impl Iterator<Item = &'a [u8]>) -> Block {
        summary.checksums = data.map(checksum).collect();
        if summary.layout == Layout::Two && !summary.is_copies() {
            let last = self.last.take().filter(|(epoch, _)| *epoch == summary.epoch).map(|(_, repeat)| repeat);
            summary.repeat = last.filter(|last| Some(last.place) == summary.previous).map(Box::new);
            let repeat = Repeat {
                place: summary.place,
                previous: summary.previous,
                entries: summary.entries.clone(),
                checksums: summary.checksums.clone(),
            };
            self.last = Some((summary.epoch, repeat));
        }
        let block = summary.encode();
        // The engine has no use for it.
        summary.repeat = None;
        block
    }
}
