//! The index of a sealed segment: what a recovery needs of the records in it, so that their data need not be read.
//!
//! ```text
//! header (32) | segment 4 | generation 4 | durable 8 | previous 20 | records 4 | entries 4 | data blocks 4 | length 4
//! for each record: sequence - the one before it | blocks that lie before it and belong to none | entries
//!   for each entry: block - the end of the entry before it (zigzag) | blocks << 2 | content
//! crc32c of each data block, 4 each
//! ```
//!
//! Numbers of the records are LEB128. The checksum covers `length` bytes; what follows counts for nothing.

use super::summary::{put_place, take_place};
use super::{
    BLOCK, DEVICE_BLOCKS_MAX, Entry, Epoch, HEADER, INDEX_MAGIC, Layout, Reader, Records, SEQUENCE_MAX, Writer,
    checksum,
};
use crate::format::Content;

/// Bytes before the records.
const INDEX_HEADER: usize = HEADER + 52;

fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

const fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

const fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// The index of a segment of this generation, in whole blocks: at most `room` bytes, or none. Everything in the segment is
/// durable.
#[must_use]
pub fn encode_index(epoch: Epoch, generation: u32, records: &Records, room: usize) -> Option<Vec<u8>> {
    let mut body = Vec::with_capacity(room);
    let (mut sequence, mut end, mut device) = (0, 0, 0_u64);
    let (mut count, mut entries) = (0_u32, 0_u32);
    for record in records.iter() {
        put_number(&mut body, record.sequence - sequence);
        put_number(&mut body, u64::from(record.position - end));
        put_number(&mut body, record.entries().count() as u64);
        for entry in record.entries() {
            put_number(&mut body, zigzag(entry.block as i64 - device as i64));
            put_number(&mut body, u64::from(entry.blocks) << 2 | u64::from(entry.content.code() - 1));
            device = entry.block + u64::from(entry.blocks);
            entries += 1;
        }
        sequence = record.sequence;
        end = record.position + 1 + record.checksums.len() as u32;
        count += 1;
    }
    let mut blocks = 0_u32;
    for checksum in records.iter().flat_map(|record| record.checksums) {
        body.extend_from_slice(&checksum.to_le_bytes());
        blocks += 1;
    }
    let length = INDEX_HEADER + body.len();
    if length > room {
        return None;
    }
    let mut writer = Writer::new(INDEX_MAGIC, Layout::Two, epoch);
    writer.put(&records.segment.to_le_bytes());
    writer.put(&generation.to_le_bytes());
    writer.put(&records.durable.to_le_bytes());
    put_place(&mut writer, records.previous);
    [count, entries, blocks, length as u32].iter().for_each(|number| writer.put(&number.to_le_bytes()));
    debug_assert_eq!(writer.at, INDEX_HEADER);
    let mut bytes = writer.block[..INDEX_HEADER].to_vec();
    bytes.append(&mut body);
    let crc = checksum(&bytes);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    bytes.resize(length.next_multiple_of(BLOCK as usize), 0);
    Some(bytes)
}

/// What a valid index of this segment and generation says of its records.
#[must_use]
pub fn decode_index(bytes: &[u8], epoch: Epoch, segment: u32, generation: u32, segment_blocks: u32) -> Option<Records> {
    let head = bytes.get(..INDEX_HEADER)?;
    let length = u32::from_le_bytes(head[INDEX_HEADER - 4..].try_into().ok()?) as usize;
    let bytes = bytes.get(..length).filter(|_| length >= INDEX_HEADER)?;
    let (mut reader, layout, of_epoch) = Reader::open_long(bytes, INDEX_MAGIC)?;
    if layout != Layout::Two || of_epoch != epoch || reader.u32()? != segment || reader.u32()? != generation {
        return None;
    }
    let durable = reader.u64().filter(|durable| *durable <= SEQUENCE_MAX)?;
    let previous = take_place(&mut reader)?;
    let [count, entry_count, block_count] = [reader.u32()?, reader.u32()?, reader.u32()?];
    let mut body = &bytes[INDEX_HEADER..];
    let (room, blocks) = (body.len(), block_count as usize);
    // The least that each takes: so much is allocated before the rest is looked at.
    if 3 * count as usize + 2 * entry_count as usize + 4 * blocks > room {
        return None;
    }
    let (numbers, checksums) = body.split_at(room - 4 * blocks);
    body = numbers;
    let checksums: Vec<u32> =
        checksums.chunks_exact(4).map(|crc| u32::from_le_bytes([crc[0], crc[1], crc[2], crc[3]])).collect();
    let mut records = Records::with_capacity(segment, count as usize, entry_count as usize, blocks);
    let (mut sequence, mut end, mut device, mut block) = (0_u64, 0_u64, 0_u64, 0_usize);
    let mut entries: Vec<Entry> = Vec::new();
    for _ in 0..count {
        sequence = sequence.checked_add(take_number(&mut body)?).filter(|sequence| *sequence <= SEQUENCE_MAX)?;
        let position = end.checked_add(take_number(&mut body)?)?;
        let wanted = u16::try_from(take_number(&mut body)?).ok()?;
        entries.clear();
        for _ in 0..wanted {
            let start = device.checked_add_signed(unzigzag(take_number(&mut body)?))?;
            let packed = take_number(&mut body)?;
            let (blocks, content) = (u32::try_from(packed >> 2).ok()?, Content::from_code((packed & 3) as u8 + 1)?);
            if blocks == 0 || start >= DEVICE_BLOCKS_MAX {
                return None;
            }
            device = start + u64::from(blocks);
            entries.push(Entry { block: start, blocks, content });
        }
        let data: u64 = entries.iter().map(|entry| u64::from(entry.data_blocks())).sum();
        end = position.checked_add(1 + data).filter(|end| *end <= u64::from(segment_blocks))?;
        let of_record = checksums.get(block..block + data as usize)?;
        block += data as usize;
        records.push(sequence, position as u32, &entries, of_record);
    }
    records.previous = previous;
    records.durable = durable;
    records.indexed = true;
    (block == blocks && body.is_empty()).then_some(records)
}
