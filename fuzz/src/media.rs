//! What lies on a caching volume: superblocks, pages of the segment table, commit records.
//!
//! A checksum covers every structure, so bytes that are merely mutated never get past the first test. The targets
//! build structures from the input instead and seal them with the right checksum.

use surgetank_cache::Epoch;
use surgetank_cache::format::{
    BLOCK, Content, Entry, LogState, SEGMENTS_PER_PAGE, SUPERBLOCKS_LENGTH, SegmentTable, Summary, Superblock,
    checksum, choose_superblock, read_table, scan_segment,
};

use crate::input::Input;

pub const BLOCK_BYTES: usize = BLOCK as usize;
/// Magic, checksum, version.
const ENVELOPE: usize = 16;

/// Puts payload into an envelope like that of `like`, with the right checksum.
fn sealed(like: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut block = vec![0; BLOCK_BYTES];
    block[..ENVELOPE].copy_from_slice(&like[..ENVELOPE]);
    let length = payload.len().min(BLOCK_BYTES - ENVELOPE);
    block[ENVELOPE..ENVELOPE + length].copy_from_slice(&payload[..length]);
    seal(&mut block);
    block
}

/// Gives a block the checksum that it should have.
pub fn seal(block: &mut [u8]) {
    block[8..12].fill(0);
    let crc = checksum(block);
    block[8..12].copy_from_slice(&crc.to_le_bytes());
}

/// A superblock with any fields, or any payload, or any bytes.
pub fn any_superblock(input: &mut Input<'_>) -> Vec<u8> {
    let plain = Superblock {
        sequence: 1,
        epoch: Epoch::default(),
        state: LogState::Active,
        device_size: 1 << 20,
        segment_size: 1 << 16,
        segments: 8,
    };
    match input.byte() % 8 {
        0 => {
            let mut block = input.bytes(BLOCK_BYTES).to_vec();
            block.resize(BLOCK_BYTES, 0);
            block
        }
        1 => sealed(&plain.encode()[..], input.bytes(64)),
        _ => Superblock {
            sequence: input.number(),
            epoch: if input.once_in(8) { Epoch(input.array()) } else { Epoch::default() },
            state: if input.once_in(4) { LogState::Clean } else { LogState::Active },
            device_size: input.number(),
            segment_size: 1u32.checked_shl(u32::from(input.byte() % 40)).unwrap_or(input.u32()),
            segments: input.number() as u32,
        }
        .encode()
        .to_vec(),
    }
}

/// The two superblocks of a volume.
pub fn superblocks(data: &[u8]) {
    let mut input = Input(data);
    let mut area = any_superblock(&mut input);
    area.extend(any_superblock(&mut input));
    if input.once_in(8) {
        area.truncate(input.below(area.len() + 1));
    }
    let mut newest: Option<Superblock> = None;
    for block in area.chunks(BLOCK_BYTES) {
        let Some(superblock) = Superblock::decode(block) else { continue };
        assert_eq!(Superblock::decode(&superblock.encode()[..]), Some(superblock.clone()));
        let geometry = superblock.geometry();
        assert!(geometry.end() > geometry.segment_offset(geometry.segments - 1));
        assert!(superblock.offset() < u64::from(SUPERBLOCKS_LENGTH));
        assert!(superblock.sequence < u64::MAX, "it can be counted on from");
        if newest.as_ref().is_none_or(|newest| newest.sequence <= superblock.sequence) {
            newest = Some(superblock);
        }
    }
    assert_eq!(choose_superblock(&area).map(|chosen| chosen.sequence), newest.map(|newest| newest.sequence));
}

/// A page of the segment table with any fields, or any payload.
pub fn any_page(input: &mut Input<'_>, page: u32, count: u32) -> Vec<u8> {
    let wild = input.byte();
    let (first, step) = (input.number() as u32, u32::from(input.byte()));
    let mut table = SegmentTable {
        page,
        sequence: input.number(),
        epoch: Epoch::default(),
        generations: (0..count.min(SEGMENTS_PER_PAGE)).map(|at| first.wrapping_add(at.wrapping_mul(step))).collect(),
    };
    match wild % 16 {
        0 => return sealed(&table.encode()[..], input.bytes(200)),
        1 => table.page = input.number() as u32,
        2 => table.epoch = Epoch(input.array()),
        3 => table.generations.truncate(input.below(SEGMENTS_PER_PAGE as usize)),
        4 => {
            let mut block = table.encode().to_vec();
            block[input.below(BLOCK_BYTES)] ^= input.byte();
            return block;
        }
        _ => {}
    }
    table.encode().to_vec()
}

/// The segment table.
pub fn table(data: &[u8]) {
    let mut input = Input(data);
    let segments = if input.once_in(4) { input.number() as u32 } else { input.below(3000) as u32 };
    let mut area = Vec::new();
    while area.len() < 8 * BLOCK_BYTES && !input.is_empty() {
        let page = (area.len() / BLOCK_BYTES / 2) as u32;
        let count = segments.saturating_sub(page * SEGMENTS_PER_PAGE).min(SEGMENTS_PER_PAGE);
        area.extend(any_page(&mut input, page, count));
    }
    for block in area.chunks(BLOCK_BYTES) {
        if let Some(table) = SegmentTable::decode(block) {
            assert_eq!(SegmentTable::decode(&table.encode()[..]), Some(table.clone()));
            assert!(table.generations.iter().all(|generation| *generation < u32::MAX), "it can be counted on from");
        }
    }
    let Some(tables) = read_table(&area, Epoch::default(), segments) else { return };
    let counted: usize = tables.iter().map(|table| table.generations.len()).sum();
    assert_eq!(counted, segments as usize);
    for (page, table) in tables.iter().enumerate() {
        assert_eq!((table.page as usize, table.epoch), (page, Epoch::default()));
        let slots = area.chunks(BLOCK_BYTES).skip(2 * page).take(2).filter_map(SegmentTable::decode);
        assert!(slots.filter(|other| other.page == table.page).any(|other| other == *table));
    }
}

/// Where a record is put.
pub struct Place {
    pub segment: u32,
    pub generation: u32,
}

/// Does something to the bytes of a segment: mostly it puts a record there, mostly a valid one.
pub fn scribble(input: &mut Input<'_>, bytes: &mut [u8], place: &Place) {
    let blocks = bytes.len() / BLOCK_BYTES;
    let position = input.below(blocks);
    let at = position * BLOCK_BYTES;
    match input.byte() % 16 {
        0 => bytes[at..at + BLOCK_BYTES].fill(input.byte()),
        1 => bytes[at + input.below(BLOCK_BYTES)] ^= input.byte() | 1,
        2 => {
            let to = input.below(blocks) * BLOCK_BYTES;
            bytes.copy_within(at..at + BLOCK_BYTES, to);
        }
        3 => {
            // Something changes in a record, and its checksum with it.
            bytes[at + ENVELOPE + input.below(200)] ^= input.byte() | 1;
            seal(&mut bytes[at..at + BLOCK_BYTES]);
        }
        4 => {
            let like = Summary {
                epoch: Epoch::default(),
                segment: 0,
                generation: 0,
                position: 0,
                sequence: 0,
                entries: Vec::new(),
                checksums: Vec::new(),
            };
            bytes[at..at + BLOCK_BYTES].copy_from_slice(&sealed(&like.encode()[..], input.bytes(120)));
        }
        _ => put_record(input, bytes, position, place),
    }
}

fn put_record(input: &mut Input<'_>, bytes: &mut [u8], position: usize, place: &Place) {
    let blocks = bytes.len() / BLOCK_BYTES;
    let sequence = if input.once_in(16) { input.number() } else { u64::from(input.u16()) };
    let fill = input.byte();
    let mut room = blocks - position - 1;
    let mut entries = Vec::new();
    for _ in 0..=input.byte() % 5 {
        let content = match input.byte() % 8 {
            0 => Content::Zeroes,
            1 => Content::Discarded,
            2 => Content::Copied,
            _ => Content::Data,
        };
        let block = if input.once_in(16) { input.number() >> 8 } else { u64::from(input.byte()) };
        let mut count = if input.once_in(16) { input.u32() } else { 1 + u32::from(input.byte() % 6) };
        if content.has_data() {
            count = count.min(room as u32);
            room -= count as usize;
        }
        entries.push(Entry { block, blocks: count, content });
    }
    let mut summary = Summary {
        epoch: Epoch::default(),
        segment: place.segment,
        generation: place.generation,
        position: position as u32,
        sequence,
        entries,
        checksums: Vec::new(),
    };
    let count = summary.data_blocks() as usize;
    let start = (position + 1) * BLOCK_BYTES;
    let torn = if input.once_in(8) { 1 + input.below(count.max(1)) } else { 0 };
    for (index, data) in bytes[start..start + count * BLOCK_BYTES].chunks_mut(BLOCK_BYTES).enumerate() {
        for (sector, bytes) in data.chunks_mut(512).enumerate() {
            bytes.fill(fill ^ (index * 8 + sector) as u8);
        }
        summary.checksums.push(checksum(data));
        data[0] ^= u8::from(torn == index + 1);
    }
    if Summary::fits(summary.entries.len(), count) {
        bytes[position * BLOCK_BYTES..start].copy_from_slice(&summary.encode()[..]);
    }
}

/// The records of a segment.
pub fn segment(data: &[u8]) {
    let mut input = Input(data);
    let place = Place { segment: 3, generation: 5 };
    let mut bytes = vec![0; (1 + input.below(24)) * BLOCK_BYTES];
    while !input.is_empty() {
        scribble(&mut input, &mut bytes, &place);
    }
    if bytes.len() % 7 == 3 {
        bytes.truncate(bytes.len() - 100);
    }
    let records = scan_segment(&bytes, Epoch::default(), place.segment, place.generation);
    let mut free_from = 0;
    for record in &records {
        let summary = &record.summary;
        assert_eq!((summary.epoch, summary.segment, summary.generation), (Epoch::default(), 3, 5));
        assert_eq!(summary.checksums.len(), summary.data_blocks() as usize);
        assert_eq!(record.intact.len(), summary.checksums.len());
        assert_eq!(Summary::decode(&summary.encode()[..]).as_ref(), Some(summary));
        let (position, end) = (summary.position as usize, summary.position as usize + 1 + record.intact.len());
        assert!(position >= free_from && end <= bytes.len() / BLOCK_BYTES, "records overlap or leave the segment");
        let copied = summary.entries.iter().all(|entry| entry.content == Content::Copied);
        free_from = if copied { position + 1 } else { end };
        for (index, intact) in record.intact.iter().enumerate() {
            let start = (position + 1 + index) * BLOCK_BYTES;
            assert_eq!(*intact, checksum(&bytes[start..start + BLOCK_BYTES]) == summary.checksums[index]);
        }
    }
}
