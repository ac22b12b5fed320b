//! The whole engine on a caching volume of any content: no panic, no I/O beyond its volumes (the machine's slices are
//! checked), and what it serves is what a naive replay of the log says.

use std::collections::BTreeMap;

use surgetank_cache::format::{
    Content, Flaw, Geometry, Layout, LogState, Parse, Parsed, Records, SegmentTable, Superblock, TableCopy,
    choose_superblock, scan_segment,
};
use surgetank_cache::replay::{Log, Version};
use surgetank_cache::{EngineStage, Epoch, Event, Owner, ReadFill};
use surgetank_model::Operation;

use crate::input::Input;
use crate::machine::Machine;
use crate::media::{BLOCK_BYTES, Place, any_layout, any_page, any_superblock, scribble};

/// More steps than any run needs.
const STEPS_MAX: usize = 20_000;

struct Image {
    bytes: Vec<u8>,
    geometry: Geometry,
}

fn image(input: &mut Input<'_>, device_bytes: usize) -> Image {
    let size = 10 * (64 << 10) + input.below(16) * (16 << 10);
    let geometry = Geometry::with_layout(size as u64, any_layout(input)).expect("it is large enough");
    let mut bytes = vec![0xee; size];
    let good = Superblock {
        sequence: 2,
        durable: if input.once_in(4) { u64::from(input.u16()) } else { 0 },
        closed: input.once_in(8),
        void: if input.once_in(8) { vec![u64::from(input.u16())] } else { Vec::new() },
        ..Superblock::new(Epoch::default(), geometry, device_bytes as u64)
    };
    bytes[..BLOCK_BYTES].copy_from_slice(&good.encode()[..]);
    let wild = input.byte();
    if wild % 8 == 1 {
        let other = any_superblock(input);
        // Every segment counts here: what only the superblock keeps out, the replay without an engine would find.
        let other = Superblock::decode(&other)
            .map_or(other, |superblock| Superblock { unindexed: None, ..superblock }.encode().to_vec());
        bytes[BLOCK_BYTES..2 * BLOCK_BYTES].copy_from_slice(&other);
    }
    for copy in TableCopy::ALL {
        let page = any_page(input, geometry.layout, 0, geometry.segments);
        let at = geometry.table_offset(0, copy) as usize;
        bytes[at..at + BLOCK_BYTES].copy_from_slice(&page);
    }
    Image { bytes, geometry }
}

/// The newest copy of a page of the table.
fn page(image: &[u8], geometry: Geometry, epoch: Epoch, page: u32) -> Option<SegmentTable> {
    let copies = TableCopy::ALL.into_iter().filter_map(|copy| {
        let at = geometry.table_offset(page, copy) as usize;
        match (Parse::Table { epoch, geometry, page }).read(&image[at..at + BLOCK_BYTES]) {
            Parsed::Table(table) => table,
            _ => None,
        }
    });
    copies.max_by_key(|page| page.sequence)
}

/// The generations that count, as far as the table can be read.
fn generations(image: &Image) -> Vec<u32> {
    let page = page(&image.bytes, image.geometry, Epoch::default(), 0);
    page.map_or_else(|| vec![1; image.geometry.segments as usize], |page| page.generations)
}

/// What the device holds by the log.
struct Expected {
    device: Vec<u8>,
    /// Blocks of the device whose newest version is damaged, or may be missing.
    lost: Vec<bool>,
}

/// The log of an image; `unreadable` says which of its blocks cannot be read.
fn log(image: &[u8], superblock: &Superblock, unreadable: &[u64]) -> Option<Log> {
    let geometry = superblock.geometry();
    // One page, and one more for each growth.
    let pages = (0..geometry.table_pages()).map(|number| page(image, geometry, superblock.epoch, number));
    let table = pages.collect::<Option<Vec<_>>>()?;
    let mut log = Log::new(superblock, table.into_iter().flat_map(|page| page.generations).collect());
    let mut to_scan: Vec<_> = (0..geometry.segments).map(|segment| (segment, Vec::new())).collect();
    // As often as an engine does it: a record that is repeated may be preceded by another one that is missing.
    while !to_scan.is_empty() {
        for (segment, repeats) in std::mem::take(&mut to_scan) {
            let start = geometry.segment_offset(segment);
            let end = start + u64::from(geometry.segment_size);
            let within = |block: &&u64| (start..end).contains(&(**block * BLOCK_BYTES as u64));
            let position = |block: &u64| ((block * BLOCK_BYTES as u64 - start) / BLOCK_BYTES as u64) as u32;
            let bad: Vec<u32> = unreadable.iter().filter(within).map(position).collect();
            let bytes = &image[start as usize..end as usize];
            let generation = log.generation(segment);
            log.add(scan_segment(bytes, superblock.epoch, segment, generation, &bad, &repeats), bad);
        }
        to_scan = log.again();
    }
    Some(log)
}

/// A replay of the log block by block; `None` if it is ambiguous: records of two segments interleave.
fn naive(image: &[u8], backing: &[u8], unreadable: &[u64]) -> Option<Expected> {
    let superblock = choose_superblock(image)?;
    // What cannot be read may be a newer superblock.
    let closed = superblock.closed && !unreadable.iter().any(|block| *block < 2);
    let superblock = Superblock { closed, ..superblock };
    let blocks = backing.len().div_ceil(BLOCK_BYTES);
    if superblock.state == LogState::Clean {
        return Some(Expected { device: backing.to_vec(), lost: vec![false; blocks] });
    }
    let log = log(image, &superblock, unreadable)?;
    let mut segments: Vec<&Records> = log.segments().filter(|records| !records.is_empty()).collect();
    segments.sort_by_key(|records| records.order());
    let mut sequences = segments.iter().flat_map(|records| records.iter().map(|record| record.sequence));
    let mut last = 0;
    if sequences.any(|sequence| std::mem::replace(&mut last, sequence) >= sequence) {
        return None;
    }
    let (mut device, mut lost) = (backing.to_vec(), vec![false; blocks]);
    for records in segments {
        let start = superblock.geometry().segment_offset(records.segment) as usize;
        for record in records.iter() {
            let flaws: BTreeMap<u32, Flaw> = record
                .runs(0..record.checksums.len() as u32)
                .filter_map(|(run, flaw)| flaw.map(|flaw| (run, flaw)))
                .flat_map(|(run, flaw)| run.map(move |block| (block, flaw)))
                .collect();
            let mut index = 0;
            for entry in record.entries() {
                let first = index;
                index += entry.data_blocks();
                if entry.content == Content::Copied {
                    continue;
                }
                for nth in 0..entry.blocks {
                    let block = (entry.block + u64::from(nth)) as usize;
                    // An engine refuses the volume if there are any.
                    let to = block.checked_mul(BLOCK_BYTES).filter(|to| *to < device.len())?;
                    let bytes = device.get_mut(to..to + BLOCK_BYTES)?;
                    match (entry.content, flaws.get(&(first + nth))) {
                        (Content::Data, None) => {
                            let from = start + (record.position + 1 + first + nth) as usize * BLOCK_BYTES;
                            bytes.copy_from_slice(&image[from..from + BLOCK_BYTES]);
                            lost[block] = false;
                        }
                        // It never arrived whole.
                        (Content::Data, Some(Flaw::Mismatch)) if record.sequence > log.durable() => {}
                        (Content::Data, Some(_)) => lost[block] = true,
                        _ => {
                            bytes.fill(0);
                            lost[block] = false;
                        }
                    }
                }
            }
        }
    }
    let mut expected = Expected { device, lost };
    check_replay(&log, image, backing, &mut expected);
    Some(expected)
}

/// The replay of the offline tools says the same; and which blocks may have newer versions of which nothing is known.
fn check_replay(log: &Log, image: &[u8], backing: &[u8], expected: &mut Expected) {
    let newest = log.newest((backing.len() / BLOCK_BYTES) as u64);
    let mut device = backing.to_vec();
    for (blocks, version) in newest.sound() {
        let bytes = &mut device[blocks.start as usize * BLOCK_BYTES..blocks.end as usize * BLOCK_BYTES];
        match version {
            Version::Data(offset) => bytes.copy_from_slice(&image[offset as usize..offset as usize + bytes.len()]),
            Version::Zeroes | Version::Discarded => bytes.fill(0),
        }
    }
    assert!(device == expected.device, "the replay differs");
    let stale: Vec<u64> = newest.stale().flatten().collect();
    let lost = expected.lost.iter().enumerate().filter(|(_, lost)| **lost).map(|(block, _)| block as u64);
    assert_eq!(stale, lost.collect::<Vec<_>>());
    assert_eq!(newest.beyond().count(), 0);
    if !log.missing().is_empty() {
        // A tail that is no whole block was never written.
        expected.lost.iter_mut().for_each(|lost| *lost = true);
        let doubtful: Vec<u64> = newest.doubtful().flatten().collect();
        for (block, lost) in expected.lost.iter_mut().enumerate().take(backing.len() / BLOCK_BYTES) {
            *lost = doubtful.binary_search(&(block as u64)).is_ok() || stale.binary_search(&(block as u64)).is_ok();
        }
    }
}

fn request(input: &mut Input<'_>, machine: &mut Machine, unit: usize) {
    let operation = match input.byte() % 8 {
        0 => Operation::Flush,
        1 => Operation::Discard,
        2 => Operation::WriteZeroes { fua: false },
        3..=5 => Operation::Read,
        _ => Operation::Write { fua: input.once_in(4) },
    };
    let units_all = machine.model.len() / unit;
    let first = input.below(units_all);
    let units = (1 + usize::from(input.byte())).min(units_all - first);
    match operation {
        Operation::Flush => machine.submit(operation, 0, 0),
        _ => machine.submit(operation, first * unit, units * unit),
    }
}

/// Recovery from any image, then use, then release.
pub fn recovery(data: &[u8]) {
    let mut input = Input(data);
    let unit = if input.once_in(2) { 512 } else { 4096 };
    let tail = if unit == 512 { input.below(8) * 512 } else { 0 };
    // What the records name mostly lies on the device.
    let blocks = if input.once_in(4) { 1 + input.below(80) } else { 270 };
    let device_bytes = blocks * BLOCK_BYTES + tail;
    let split = input.once_in(2);
    let fill = [ReadFill::Never, ReadFill::SecondHit, ReadFill::Always][input.below(3)];
    let mut image = image(&mut input, device_bytes);
    let generations = generations(&image);
    let mut place = Place { layout: image.geometry.layout, segment: 0, generation: generations[0], last: None };
    for _ in 0..input.byte() % 64 {
        if input.once_in(3) {
            place.segment = input.below(generations.len()) as u32;
            place.generation = generations[place.segment as usize];
        }
        let start = image.geometry.segment_offset(place.segment) as usize;
        let bytes = &mut image.bytes[start..start + image.geometry.segment_size as usize];
        scribble(&mut input, bytes, &mut place);
    }
    let unreadable = unreadable(&mut input, &image);
    let mut machine = Machine::new(device_bytes, unit as u32, 7);
    // The expectation needs the geometry that the superblock names to lie in the image, as the engine checks as well.
    let fits = choose_superblock(&image.bytes)
        .is_some_and(|superblock| superblock.geometry().end() <= image.bytes.len() as u64);
    let expected = if fits { naive(&image.bytes, &machine.backing, &unreadable) } else { None };
    machine.unreadable = unreadable.into_iter().collect();
    machine.cache = image.bytes;
    machine.owner = Owner::Cache { epoch: Epoch::default() };
    machine.restart(split, fill);
    let mut attempts = 0;
    while machine.stage() == EngineStage::Recovering {
        let failed = machine.events.iter().any(|event| matches!(event, Event::RecoverFailed { .. }));
        if failed && attempts < ATTEMPTS {
            attempts += 1;
            machine.events.clear();
            machine.recover_again(split, fill);
        } else if failed || !machine.advance() {
            return discarded(machine);
        }
    }
    let Some(expected) = expected else { return };
    if expected.lost.contains(&true) {
        return damaged(machine, &expected);
    }
    machine.model = expected.device;
    machine.submit(Operation::Read, 0, device_bytes);
    machine.answer_all();
    while !input.is_empty() {
        request(&mut input, &mut machine, unit);
    }
    machine.answer_all();
    // Of a failed volume whatever could be read is drained by itself.
    if machine.stage() == EngineStage::Failing {
        assert!(machine.wait_for(&Event::CacheDropped, STEPS_MAX), "never dropped: {:?}", machine.engine.status());
    } else if machine.stage() != EngineStage::PassThrough {
        machine.events.clear();
        machine.engine.release(machine.now).expect("there is a cache");
        assert!(machine.wait_for(&Event::Released, STEPS_MAX), "never released: {:?}", machine.engine.status());
    }
    machine.check_backing();
    assert_eq!((machine.owner.clone(), machine.buffers()), (Owner::Backing, 0));
}

/// Recoveries that find a part of the log unreadable, before that counts.
const ATTEMPTS: u32 = 3;

/// Some blocks of a volume of today's layout cannot be read.
fn unreadable(input: &mut Input<'_>, image: &Image) -> Vec<u64> {
    let count = if input.once_in(2) && image.geometry.layout == Layout::Two { input.byte() % 6 } else { 0 };
    let first = image.geometry.segment_offset(0) / BLOCK_BYTES as u64;
    let blocks = (image.geometry.segment_offset(image.geometry.segments) / BLOCK_BYTES as u64 - first) as usize;
    let mut unreadable: Vec<u64> = (0..count)
        .map(|_| match input.byte() % 4 {
            // Where the records are, mostly.
            0 => first + input.below(blocks) as u64,
            _ => first + (input.below(blocks) as u64 / 16) * 16 + u64::from(input.byte() % 16),
        })
        .collect();
    unreadable.sort_unstable();
    unreadable.dedup();
    unreadable
}

/// Everything that can be read is drained; the rest answers errors, and nothing else does.
fn damaged(mut machine: Machine, expected: &Expected) {
    for _ in 0..STEPS_MAX {
        if machine.stage() == EngineStage::Lost || !machine.advance() {
            break;
        }
    }
    assert_eq!(machine.stage(), EngineStage::Lost, "{:?}", machine.engine.status());
    let Owner::Lost { ranges, .. } = &machine.owner else { panic!("{:?}", machine.owner) };
    let is_lost = |at: usize| ranges.iter().any(|(start, length)| (*start..start + length).contains(&(at as u64)));
    for (block, lost) in expected.lost.iter().enumerate() {
        assert_eq!(is_lost(block * BLOCK_BYTES), *lost, "block {block} of {ranges:?}");
    }
    machine.model.clone_from(&expected.device);
    machine.may_fail = true;
    for (block, lost) in expected.lost.iter().enumerate() {
        let start = block * BLOCK_BYTES;
        machine.submit(Operation::Read, start, BLOCK_BYTES.min(machine.model.len() - start));
        machine.answer_all();
        let answered = machine.replies.last().expect("it was answered");
        assert_eq!(answered.1.is_err(), *lost, "block {block}");
    }
    machine.may_fail = false;
    discarded(machine);
}

/// A volume that cannot be read back holds requests up until its data is discarded.
fn discarded(mut machine: Machine) {
    machine.engine.accept_loss(machine.now).expect("a recovery that failed can be discarded");
    for _ in 0..STEPS_MAX {
        if machine.stage() == EngineStage::PassThrough || !machine.advance() {
            break;
        }
    }
    assert_eq!((machine.stage(), machine.owner.clone()), (EngineStage::PassThrough, Owner::Backing));
    // As the backing volume has it.
    machine.model.clone_from(&machine.backing);
    let length = machine.model.len();
    machine.submit(Operation::Read, 0, length);
    machine.answer_all();
}
