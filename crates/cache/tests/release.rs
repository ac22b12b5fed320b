//! A caching volume that the first release wrote is recovered and drained.

#[allow(dead_code, reason = "other tests use more of it")]
mod support;

use std::io::Read;

use surgetank_cache::format::{
    Layout, LogState, Parse, Parsed, SegmentTable, Superblock, TableCopy, checksum, choose_superblock, scan_segment,
};
use surgetank_cache::replay::{Log, Version};
use surgetank_cache::{EngineStage, Epoch, Event, Owner, ReadFill};
use surgetank_model::Operation;

use support::Machine;

const BLOCK: usize = 4096;
const EPOCH: u8 = 1;

struct Release {
    cache: Vec<u8>,
    backing: Vec<u8>,
    /// crc32c of each block of the device.
    device: Vec<u32>,
}

fn unpacked(bytes: &[u8]) -> Vec<u8> {
    let mut unpacked = Vec::new();
    lzma_rust2::XzReader::new(bytes, false).read_to_end(&mut unpacked).expect("it is packed with xz");
    unpacked
}

fn release() -> Release {
    let device = include_str!("release-0.1/device.crc32c");
    Release {
        cache: unpacked(include_bytes!("release-0.1/cache.xz")),
        backing: unpacked(include_bytes!("release-0.1/backing.xz")),
        device: device.lines().map(|line| u32::from_str_radix(line, 16).expect("eight hex digits")).collect(),
    }
}

fn crcs(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(BLOCK).map(checksum).collect()
}

fn table(release: &Release, superblock: &Superblock) -> SegmentTable {
    let (geometry, epoch) = (superblock.geometry(), superblock.epoch);
    let copies = TableCopy::ALL.map(|copy| {
        let at = geometry.table_offset(0, copy) as usize;
        match (Parse::Table { epoch, geometry, page: 0 }).read(&release.cache[at..at + BLOCK]) {
            Parsed::Table(Some(table)) => table,
            _ => panic!("both slots are valid"),
        }
    });
    copies.into_iter().max_by_key(|page| page.sequence).expect("there are two")
}

/// The device as a replay of the log without an engine has it.
fn replayed(release: &Release) -> Vec<u8> {
    let superblock = choose_superblock(&release.cache).expect("a superblock");
    let geometry = superblock.geometry();
    let generations = table(release, &superblock).generations;
    let mut log = Log::new(&superblock, generations);
    for segment in 0..geometry.segments {
        let at = geometry.segment_offset(segment) as usize;
        let bytes = &release.cache[at..at + geometry.segment_size as usize];
        log.add(scan_segment(bytes, superblock.epoch, segment, log.generation(segment), &[], &[]), Vec::new());
    }
    let mut device = release.backing.clone();
    for (blocks, version) in log.newest((device.len() / BLOCK) as u64).sound() {
        let bytes = &mut device[blocks.start as usize * BLOCK..blocks.end as usize * BLOCK];
        match version {
            Version::Data(at) => bytes.copy_from_slice(&release.cache[at as usize..at as usize + bytes.len()]),
            Version::Zeroes | Version::Discarded => bytes.fill(0),
        }
    }
    device
}

#[test]
fn it_is_what_the_readme_says() {
    let release = release();
    let superblock = choose_superblock(&release.cache).unwrap();
    assert_eq!(
        (superblock.layout, superblock.state, superblock.epoch),
        (Layout::One, LogState::Active, Epoch([1; 16]))
    );
    assert!(release.cache[..2 * BLOCK].chunks(BLOCK).all(|slot| Superblock::decode(slot).is_some()));
    assert!(table(&release, &superblock).generations.iter().all(|generation| *generation > 1));
    let differ =
        crcs(&release.backing).iter().zip(&release.device).filter(|(backing, device)| backing != device).count();
    assert!(differ > 20, "{differ}");
}

#[test]
fn a_replay_without_an_engine_gives_the_device() {
    let release = release();
    assert_eq!(crcs(&replayed(&release)), release.device);
}

/// Recovers, reads every block, writes some, drains, releases the cache.
fn recovered(release: &Release, unreadable: Option<u64>) {
    let device = replayed(release);
    let mut machine = Machine::new(device.len(), 512, 3);
    machine.cache.clone_from(&release.cache);
    machine.backing.clone_from(&release.backing);
    machine.model = device;
    machine.epochs = EPOCH;
    machine.unreadable = unreadable.into_iter().collect();
    machine.owner = Owner::Cache { epoch: Epoch([EPOCH; 16]) };
    machine.restart(false, ReadFill::Never);
    while machine.stage() == EngineStage::Recovering {
        let failed = machine.events.iter().any(|event| matches!(event, Event::RecoverFailed { .. }));
        assert!(!failed && machine.advance(), "{:?}", machine.events);
    }
    let dirty = machine.events.iter().find_map(|event| match event {
        Event::Recovered { dirty_bytes } => Some(*dirty_bytes),
        _ => None,
    });
    assert!(dirty.unwrap() >= 100 << 10, "{dirty:?}");
    // Every block of it comes back, through the engine.
    for (block, crc) in release.device.iter().enumerate() {
        assert_eq!(checksum(&machine.model[block * BLOCK..(block + 1) * BLOCK]), *crc);
        machine.submit(Operation::Read, block * BLOCK, BLOCK);
    }
    machine.answer_all();
    machine.engine.set_mode(machine.now, surgetank_cache::CacheMode::Absorb);
    for at in 0..40 {
        machine.submit(Operation::Write { fua: at % 3 == 0 }, at * 51_200 % machine.model.len(), 7 * 512);
    }
    machine.answer_all();
    machine.events.clear();
    machine.engine.release(machine.now).unwrap();
    assert!(machine.wait_for(&Event::Released, 100_000), "{:?}", machine.engine.status());
    machine.check_backing();
}

#[test]
fn it_is_recovered_drained_and_released() {
    recovered(&release(), None);
}

#[test]
fn a_superblock_that_cannot_be_read_does_not_matter() {
    let release = release();
    for slot in 0..2 {
        recovered(&release, Some(slot));
    }
}

#[test]
fn it_is_drained_also_by_a_second_recovery() {
    // Killed once more while the present engine drains it.
    let release = release();
    let mut machine = Machine::new(release.backing.len(), 512, 5);
    machine.cache.clone_from(&release.cache);
    machine.backing.clone_from(&release.backing);
    machine.model = replayed(&release);
    machine.epochs = EPOCH;
    machine.owner = Owner::Cache { epoch: Epoch([EPOCH; 16]) };
    for _ in 0..6 {
        machine.restart(true, ReadFill::Always);
        for _ in 0..60 {
            machine.advance();
        }
        let at = machine.model.len() / 7 * 3 / 512 * 512;
        machine.submit(Operation::Write { fua: false }, at, 9 * 512);
        machine.answer_all();
    }
    machine.events.clear();
    if machine.stage() != EngineStage::PassThrough {
        machine.engine.release(machine.now).unwrap();
        assert!(machine.wait_for(&Event::Released, 100_000), "{:?}", machine.engine.status());
    }
    machine.check_backing();
    assert_eq!(crcs(&machine.backing).len(), release.device.len());
}
