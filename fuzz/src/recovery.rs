//! The whole engine on a caching volume of any content: no panic, no I/O beyond its volumes (the machine's slices are
//! checked), and what it serves is what a naive replay of the log says.

use surgetank_cache::format::{
    Content, Geometry, LogState, Record, Superblock, choose_superblock, read_table, scan_segment,
};
use surgetank_cache::{Epoch, Event, Owner, ReadFill, Stage};
use surgetank_model::Operation;

use crate::input::Input;
use crate::machine::Machine;
use crate::media::{BLOCK_BYTES, Place, any_page, any_superblock, scribble};

/// More steps than any run needs.
const STEPS_MAX: usize = 20_000;

struct Image {
    bytes: Vec<u8>,
    geometry: Geometry,
}

fn image(input: &mut Input<'_>, device_bytes: usize) -> Image {
    let size = 9 * (64 << 10) + input.below(16) * (16 << 10);
    let geometry = Geometry::of_volume(size as u64).expect("it is large enough");
    let mut bytes = vec![0xee; size];
    let good = Superblock {
        sequence: 2,
        epoch: Epoch::default(),
        state: LogState::Active,
        device_size: device_bytes as u64,
        segment_size: geometry.segment_size,
        segments: geometry.segments,
    };
    bytes[..BLOCK_BYTES].copy_from_slice(&good.encode()[..]);
    let wild = input.byte();
    if wild % 8 == 1 {
        bytes[BLOCK_BYTES..2 * BLOCK_BYTES].copy_from_slice(&any_superblock(input));
    }
    for slot in 0..2 {
        let page = any_page(input, 0, geometry.segments);
        bytes[(2 + slot) * BLOCK_BYTES..(3 + slot) * BLOCK_BYTES].copy_from_slice(&page);
    }
    Image { bytes, geometry }
}

/// The generations that count, as far as the table can be read.
fn generations(image: &Image) -> Vec<u32> {
    let table = read_table(&image.bytes[2 * BLOCK_BYTES..], Epoch::default(), image.geometry.segments);
    let generations: Vec<u32> = table.into_iter().flatten().flat_map(|page| page.generations).collect();
    if generations.is_empty() { vec![1; image.geometry.segments as usize] } else { generations }
}

/// What the device holds by the log; `None` if the log is ambiguous: two records of one sequence.
fn naive(image: &[u8], backing: &[u8]) -> Option<Vec<u8>> {
    let superblock = choose_superblock(image)?;
    if superblock.state == LogState::Clean {
        return Some(backing.to_vec());
    }
    let geometry = superblock.geometry();
    let table = read_table(&image[2 * BLOCK_BYTES..], superblock.epoch, geometry.segments)?;
    let mut records: Vec<(Record, usize)> = Vec::new();
    for (segment, generation) in table.iter().flat_map(|page| &page.generations).enumerate() {
        let start = geometry.segment_offset(segment as u32) as usize;
        let bytes = &image[start..start + geometry.segment_size as usize];
        let found = scan_segment(bytes, superblock.epoch, segment as u32, *generation);
        let replayed = found
            .into_iter()
            .filter(|record| record.summary.entries.iter().any(|entry| entry.content != Content::Copied));
        records.extend(replayed.map(|record| {
            let data = start + (record.summary.position as usize + 1) * BLOCK_BYTES;
            (record, data)
        }));
    }
    records.sort_by_key(|(record, _)| record.summary.sequence);
    if records.windows(2).any(|pair| pair[0].0.summary.sequence == pair[1].0.summary.sequence) {
        return None;
    }
    let mut device = backing.to_vec();
    for (record, data) in records {
        let mut index = 0;
        for entry in &record.summary.entries {
            let first = index;
            index += if entry.content.has_data() { entry.blocks as usize } else { 0 };
            if entry.block + u64::from(entry.blocks) > (device.len() / BLOCK_BYTES) as u64 {
                continue;
            }
            for nth in 0..entry.blocks as usize {
                let to = (entry.block as usize + nth) * BLOCK_BYTES;
                let block = &mut device[to..to + BLOCK_BYTES];
                match entry.content {
                    Content::Zeroes | Content::Discarded => block.fill(0),
                    Content::Data if record.intact[first + nth] => {
                        let from = data + (first + nth) * BLOCK_BYTES;
                        block.copy_from_slice(&image[from..from + BLOCK_BYTES]);
                    }
                    Content::Data | Content::Copied => {}
                }
            }
        }
    }
    Some(device)
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
    let device_bytes = (1 + input.below(80)) * BLOCK_BYTES + tail;
    let split = input.once_in(2);
    let fill = [ReadFill::Never, ReadFill::SecondHit, ReadFill::Always][input.below(3)];
    let mut image = image(&mut input, device_bytes);
    let generations = generations(&image);
    for _ in 0..input.byte() % 64 {
        let segment = input.below(generations.len()) as u32;
        let start = image.geometry.segment_offset(segment) as usize;
        let bytes = &mut image.bytes[start..start + image.geometry.segment_size as usize];
        scribble(&mut input, bytes, &Place { segment, generation: generations[segment as usize] });
    }
    let mut machine = Machine::new(device_bytes, unit as u32, 7);
    // The expectation needs the geometry that the superblock names to lie in the image, as the engine checks as well.
    let fits = choose_superblock(&image.bytes)
        .is_some_and(|superblock| superblock.geometry().end() <= image.bytes.len() as u64);
    let expected = if fits { naive(&image.bytes, &machine.backing) } else { None };
    machine.cache = image.bytes;
    machine.owner = Owner::Cache { epoch: Epoch::default() };
    machine.restart(split, fill);
    while machine.stage() == Stage::Recovering {
        if machine.events.iter().any(|event| matches!(event, Event::RecoverFailed { .. })) || !machine.advance() {
            return given_up(machine);
        }
    }
    let Some(expected) = expected else { return };
    machine.model = expected;
    machine.submit(Operation::Read, 0, device_bytes);
    machine.answer_all();
    while !input.is_empty() {
        request(&mut input, &mut machine, unit);
    }
    machine.answer_all();
    if machine.stage() != Stage::PassThrough {
        machine.events.clear();
        machine.engine.release(machine.now).expect("there is a cache");
        assert!(machine.wait_for(&Event::Released, STEPS_MAX), "never released: {:?}", machine.engine.status());
    }
    machine.check_backing();
    assert_eq!((machine.owner.clone(), machine.buffers()), (Owner::Backing, 0));
}

/// A volume that cannot be read back holds requests up until its data is given up.
fn given_up(mut machine: Machine) {
    machine.engine.accept_loss(machine.now).expect("a recovery that failed can be given up");
    for _ in 0..STEPS_MAX {
        if machine.stage() == Stage::PassThrough || !machine.advance() {
            break;
        }
    }
    assert_eq!((machine.stage(), machine.owner.clone()), (Stage::PassThrough, Owner::Backing));
    let length = machine.model.len();
    machine.submit(Operation::Read, 0, length);
    machine.answer_all();
}
