//! What zeroed and discarded ranges take in memory, while an engine runs and when a log is read back, follows from the size
//! of the log.

#[allow(dead_code, reason = "other tests use more of it")]
mod support;

use surgetank_cache::format::{
    BLOCK, Content, Entry, Parse, Parsed, Place, SegmentTable, Summary, Superblock, TableCopy, choose_superblock,
    scan_segment,
};
use surgetank_cache::{Event, Owner, ReadFill};
use surgetank_model::Operation;

use support::Machine;

const BLOCK_BYTES: usize = BLOCK as usize;

fn table(cache: &[u8], superblock: &Superblock) -> SegmentTable {
    let (geometry, epoch) = (superblock.geometry(), superblock.epoch);
    let copies = TableCopy::ALL.into_iter().filter_map(|copy| {
        let at = geometry.table_offset(0, copy) as usize;
        match (Parse::Table { epoch, geometry, page: 0 }).read(&cache[at..at + BLOCK_BYTES]) {
            Parsed::Table(table) => table,
            _ => None,
        }
    });
    copies.max_by_key(|page| page.sequence).expect("a copy is valid")
}

/// Extents without data that the records on a volume make, whatever the engine says.
fn on_volume(cache: &[u8]) -> u64 {
    let superblock = choose_superblock(cache).expect("a superblock");
    let geometry = superblock.geometry();
    let generations = table(cache, &superblock).generations;
    let segments = generations.into_iter().enumerate().map(|(segment, generation)| {
        let at = geometry.segment_offset(segment as u32) as usize;
        let bytes = &cache[at..at + geometry.segment_size as usize];
        let records = scan_segment(bytes, superblock.epoch, segment as u32, generation, &[], &[]);
        let entries = records.iter().flat_map(|record| record.entries().collect::<Vec<Entry>>());
        entries.filter(|entry| !entry.content.has_data()).count() as u64
    });
    segments.sum()
}

fn adopted(device: usize, cache: usize) -> Machine {
    let mut machine = Machine::new(device, 4096, 11);
    assert!(machine.adopt(cache, false, ReadFill::Never));
    assert!(machine.wait_for(&Event::Adopted, 1000));
    machine
}

#[test]
fn discards_of_every_other_block_wait_when_there_are_too_many() {
    let (device, cache) = (32 << 20, 4 << 20);
    let mut machine = adopted(device, cache);
    let most = choose_superblock(&machine.cache).expect("a superblock").geometry().tombstones_max();
    let mut highest = 0;
    let data = cache / 4 / BLOCK_BYTES;
    for first in (0..device / BLOCK_BYTES).step_by(data) {
        machine.submit(Operation::Write { fua: false }, first * BLOCK_BYTES, data * BLOCK_BYTES);
        while machine.advance_without_backing() {}
        // Over what is discarded already, too: each is a record of its own.
        for _ in 0..6 {
            for block in (first..first + data).step_by(2) {
                machine.submit(Operation::Discard, block * BLOCK_BYTES, BLOCK_BYTES);
            }
            while machine.advance_without_backing() {}
            highest = highest.max(on_volume(&machine.cache));
            assert!(highest <= most, "{highest} of {most}");
        }
        // The backing volume goes on.
        machine.answer_all();
    }
    machine.answer_all();
    assert!(highest > most * 9 / 10, "{highest} of {most}");
    machine.restart(false, ReadFill::Never);
    while !machine.events.iter().any(|event| matches!(event, Event::Recovered { .. })) {
        assert!(machine.advance(), "{:?}", machine.events);
    }
    machine.engine.release(machine.now).expect("it can be released");
    assert!(machine.wait_for(&Event::Released, 1_000_000), "{:?}", machine.engine.status());
    machine.check_backing();
}

/// A volume on which every block of the log, up to so many, is a summary that says as much as it can.
fn crafted(summaries: usize) -> Machine {
    let mut machine = adopted(8 << 20, 12 << 20);
    let superblock = choose_superblock(&machine.cache).expect("a superblock");
    let (geometry, epoch, layout) = (superblock.geometry(), superblock.epoch, superblock.layout);
    let generations = table(&machine.cache, &superblock).generations;
    let entries: Vec<Entry> =
        (0..1000).map(|at| Entry { block: 2 * at, blocks: 1, content: Content::Zeroes }).collect();
    let most = (1..=entries.len()).take_while(|count| Summary::fits(layout, *count, 0)).last().expect("one fits");
    let mut previous = None;
    let places = (0..geometry.segments).flat_map(|segment| (0..geometry.segment_blocks()).map(move |at| (segment, at)));
    for ((segment, position), sequence) in places.take(summaries).zip(1..) {
        let place = Place { sequence, segment, generation: generations[segment as usize], position };
        let (entries, checksums, repeat) = (entries[..most].to_vec(), Vec::new(), None);
        let summary = Summary { layout, epoch, place, durable: sequence, previous, entries, checksums, repeat };
        let at = geometry.segment_offset(segment) as usize + position as usize * BLOCK_BYTES;
        machine.cache[at..at + BLOCK_BYTES].copy_from_slice(&summary.encode()[..]);
        previous = Some(place);
    }
    machine.owner = Owner::Cache { epoch };
    machine.model.fill(0);
    (0..machine.model.len() / BLOCK_BYTES).filter(|block| block % 2 == 1 || *block >= 2 * most).for_each(|block| {
        let bytes = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
        machine.model[bytes.clone()].copy_from_slice(&machine.backing[bytes]);
    });
    machine.restart(false, ReadFill::Never);
    machine
}

fn is_end(event: &Event) -> bool {
    matches!(event, Event::Recovered { .. } | Event::RecoverFailed { .. })
}

#[test]
fn a_log_crafted_to_take_much_memory_is_refused_and_kept() {
    let mut machine = crafted(usize::MAX);
    let before = machine.cache.clone();
    while !machine.events.iter().any(is_end) {
        assert!(machine.advance(), "{:?}", machine.events);
    }
    let ended = machine.events.iter().find(|event| is_end(event));
    let refused = matches!(ended, Some(Event::RecoverFailed { reason }) if reason.contains("more zeroed"));
    assert!(refused, "{ended:?}");
    assert!(machine.cache == before, "nothing was written to it");
}

#[test]
fn what_a_small_log_of_an_earlier_version_may_hold_is_recovered() {
    // Four times what an engine writes now.
    let mut machine = crafted(1500);
    while !machine.events.iter().any(is_end) {
        assert!(machine.advance(), "{:?}", machine.events);
    }
    assert!(machine.events.iter().any(|event| matches!(event, Event::Recovered { .. })), "{:?}", machine.events);
    machine.engine.release(machine.now).expect("it can be released");
    assert!(machine.wait_for(&Event::Released, 1_000_000), "{:?}", machine.engine.status());
    machine.check_backing();
}
