//! Volumes that an engine wrote, damaged in each structure, and what is got out of them.

use std::collections::BTreeSet;
use std::fs;

use surgetank_cache::format::{Superblock, TableCopy};
use surgetank_cache::{CacheMode, EngineStage, ReadFill};
use surgetank_model::Operation;
use surgetank_model::random::Random;
use tempfile::TempDir;

use super::*;

#[path = "../../../../../cache/tests/support/mod.rs"]
#[allow(dead_code, missing_docs, unreachable_pub, reason = "the engine's tests use more of it")]
mod machine;

use machine::Machine;

const DEVICE: usize = 2 << 20;
const BLOCK_BYTES: usize = BLOCK as usize;

/// A caching volume, the backing volume and what the device holds.
struct World {
    directory: TempDir,
    cache: Vec<u8>,
    backing: Vec<u8>,
    device: Vec<u8>,
    /// Blocks of the volume that cannot be read.
    unreadable: BTreeSet<u64>,
}

/// Written, overwritten, discarded, drained, with segments used again; then flushed.
fn world(seed: u64) -> World {
    let mut machine = Machine::new(DEVICE, 512, seed);
    assert!(machine.adopt(1 << 20, false, ReadFill::SecondHit));
    while machine.stage() == EngineStage::Adopting {
        assert!(machine.advance());
    }
    let mut random = Random::from_seed(seed);
    for round in 0..600 {
        let (sectors, length) = (DEVICE as u64 / 512, 1 + random.below(64));
        let first = random.below(sectors - length);
        let operation = match random.below(10) {
            0 => Operation::Discard,
            1 => Operation::WriteZeroes { fua: false },
            2 => Operation::Read,
            _ => Operation::Write { fua: random.below(4) == 0 },
        };
        machine.submit(operation, first as usize * 512, length as usize * 512);
        (0..random.below(5)).for_each(|_| _ = machine.advance());
        if round == 400 {
            machine.engine.set_mode(machine.now, CacheMode::Absorb);
        }
    }
    machine.answer_all();
    // The backing volume takes for ever from here on.
    for round in 0..48 {
        let answered = machine.replies.len();
        let operation = if round % 8 == 7 { Operation::Discard } else { Operation::Write { fua: true } };
        machine.submit(operation, round * 5 % 48 * 24576, 16384);
        while machine.replies.len() == answered && machine.advance_without_backing() {}
    }
    machine.answer_all();
    machine.submit(Operation::Flush, 0, 0);
    machine.answer_all();
    assert!(machine.backing != machine.model);
    World {
        directory: tempfile::tempdir().unwrap(),
        cache: machine.cache,
        backing: machine.backing,
        device: machine.model,
        unreadable: BTreeSet::new(),
    }
}

impl World {
    fn superblock(&self) -> Superblock {
        surgetank_cache::format::choose_superblock(&self.cache).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn damage(&mut self, offset: u64) {
        self.cache[offset as usize + 100] ^= 4;
    }

    fn hide(&mut self, offset: u64) {
        self.unreadable.insert(offset / BLOCK64);
    }

    /// What is got out onto a copy of the backing volume.
    fn applied(&self) -> (Report, Vec<u8>) {
        fs::write(self.path("target"), &self.backing).unwrap();
        self.to("target", true)
    }

    fn to(&self, target: &str, apply: bool) -> (Report, Vec<u8>) {
        let (volume, to) = (self.path("volume"), self.path(target));
        fs::write(&volume, &self.cache).unwrap();
        let mut medium = Medium::open(&volume).unwrap();
        medium.faults = self.unreadable.iter().map(|block| block * BLOCK64..(block + 1) * BLOCK64).collect();
        medium.read_superblocks();
        let report = Salvage { volume: &volume, to: &to, apply }.salvage(medium, &ProgressBar::hidden()).unwrap();
        assert!(fs::read(&volume).unwrap() == self.cache, "the caching volume was written");
        (report, fs::read(&to).unwrap())
    }

    /// Blocks of the device that differ from what was got out are in the ranges that the report lists.
    #[track_caller]
    fn differs_only_in(&self, got: &[u8], extents: &[Extent]) -> usize {
        let mut wrong = 0;
        for (block, (got, want)) in got.chunks(BLOCK_BYTES).zip(self.device.chunks(BLOCK_BYTES)).enumerate() {
            let at = (block * BLOCK_BYTES) as u64;
            let listed = extents.iter().any(|extent| (extent.offset..extent.offset + extent.length).contains(&at));
            assert!(got == want || listed, "block {block}");
            wrong += usize::from(got != want);
        }
        wrong
    }

    /// Where on the volume the newest version of a block lies that the backing volume lacks.
    fn dirty(&self) -> Vec<(u64, u64)> {
        let mut dirty = self.newest();
        dirty.retain(|(block, _)| {
            let at = *block as usize * BLOCK_BYTES..(*block as usize + 1) * BLOCK_BYTES;
            self.backing[at.clone()] != self.device[at]
        });
        dirty
    }

    /// Where on the volume the newest version of each block lies.
    fn newest(&self) -> Vec<(u64, u64)> {
        let mut medium = {
            fs::write(self.path("scanned"), &self.cache).unwrap();
            Medium::open(&self.path("scanned")).unwrap()
        };
        let superblock = self.superblock();
        let table = medium.generations(superblock.geometry(), superblock.epoch);
        let log = medium.log(&superblock, &table, |_| ());
        let newest = log.newest(DEVICE as u64 / BLOCK64);
        let mut found = Vec::new();
        for (blocks, version) in newest.sound() {
            let Version::Data(offset) = version else { continue };
            found.extend((0..).zip(blocks).map(|(nth, block): (u64, u64)| (block, offset + nth * BLOCK64)));
        }
        found
    }
}

#[test]
fn the_backing_volume_gets_the_newest_data_and_zeroes() {
    for seed in 0..8 {
        let world = world(seed);
        let (report, got) = world.applied();
        assert!(got == world.device, "seed {seed}");
        assert!(report.complete && report.applied && report.zeroed_bytes > 0 && report.data_bytes > 0);
        assert_eq!(report.table_copies_valid, 2);
        assert!(people(&report).contains("complete"));
    }
}

#[test]
fn a_new_file_is_sparse_and_has_the_size_of_the_device() {
    let world = world(1);
    let (report, got) = world.to("new.img", false);
    assert!(report.complete && !report.applied);
    assert_eq!(got.len(), DEVICE);
    let metadata = fs::metadata(world.path("new.img")).unwrap();
    assert_eq!(metadata.mode() & 0o777, 0o600);
    for (block, _) in world.dirty() {
        let at = block as usize * BLOCK_BYTES..(block as usize + 1) * BLOCK_BYTES;
        assert!(got[at.clone()] == world.device[at], "block {block}");
    }
}

#[test]
fn damaged_and_unreadable_data_blocks_are_listed_exactly() {
    for hide in [false, true] {
        let mut world = world(2);
        let dirty = world.dirty();
        let damaged: Vec<(u64, u64)> = dirty.iter().copied().step_by(5).collect();
        damaged.iter().for_each(|(_, at)| if hide { world.hide(*at) } else { world.damage(*at) });
        let (report, got) = world.applied();
        let blocks: BTreeSet<u64> = report
            .stale
            .iter()
            .flat_map(|extent| extent.offset / BLOCK64..(extent.offset + extent.length) / BLOCK64)
            .chain(
                report
                    .torn
                    .iter()
                    .flat_map(|extent| extent.offset / BLOCK64..(extent.offset + extent.length) / BLOCK64),
            )
            .collect();
        assert_eq!(blocks, damaged.iter().map(|(block, _)| *block).collect());
        assert!(!report.complete);
        let lists: Vec<Extent> =
            blocks.iter().map(|block| Extent { offset: block * BLOCK64, length: BLOCK64 }).collect();
        assert!(world.differs_only_in(&got, &lists) > 0);
        assert_eq!(report.blocks_unreadable, if hide { damaged.len() as u64 } else { 0 });
    }
}

#[test]
fn damage_to_what_was_overwritten_since_loses_nothing() {
    for hide in [false, true] {
        let mut world = world(9);
        let geometry = world.superblock().geometry();
        let newest: BTreeSet<u64> = world.newest().into_iter().map(|(_, at)| at).collect();
        let mut damaged = 0;
        let end = geometry.segment_offset(geometry.segments);
        for at in (geometry.segment_offset(0)..end).step_by(BLOCK_BYTES) {
            if newest.contains(&at) || world.cache[at as usize..].starts_with(b"SRGTSUMM") {
                continue;
            }
            damaged += 1;
            if hide { world.hide(at) } else { world.damage(at) }
        }
        // Where the next record would begin, one could be that cannot be read.
        let (report, got) = world.applied();
        assert!(got == world.device && damaged > 20, "{damaged}");
        assert!(report.stale.is_empty() && report.torn.is_empty(), "{:?} {:?}", report.stale, report.torn);
        assert!(report.complete || hide && report.missing.len() == 1, "{:?}", report.missing);
    }
}

#[test]
fn a_summary_that_cannot_be_read_loses_nothing_or_is_told() {
    let clean = world(3);
    let superblock = clean.superblock();
    let geometry = superblock.geometry();
    let (first, last) = (geometry.segment_offset(0) / BLOCK64, geometry.segment_offset(geometry.segments) / BLOCK64);
    let (mut whole, mut told) = (0, 0);
    for block in first..last {
        if !clean.cache[(block * BLOCK64) as usize..].starts_with(b"SRGTSUMM") {
            continue;
        }
        let mut world =
            World { directory: tempfile::tempdir().unwrap(), unreadable: BTreeSet::from([block]), ..world(3) };
        world.cache[(block * BLOCK64) as usize] ^= 1;
        let (report, got) = world.applied();
        let lists: Vec<Extent> = report.stale.into_iter().chain(report.doubtful).collect();
        world.differs_only_in(&got, &lists);
        if got == world.device {
            whole += 1;
        } else {
            told += 1;
            assert!(!report.complete, "{:?}", report.missing);
        }
    }
    assert!(whole > 20, "{whole} of {}", whole + told);
    // The last record is repeated by no other.
    assert!(told <= 1, "{told}");
}

#[test]
fn superblocks_are_not_needed() {
    let plain = world(4);
    // The stale one: the newer one says it all, but whether it is the newer one nobody knows.
    let newest = plain.superblock().offset();
    for slots in [vec![BLOCK64 - newest], vec![newest], vec![0, BLOCK64]] {
        for hide in [false, true] {
            let mut world = world(4);
            slots.iter().for_each(|slot| if hide { world.hide(*slot) } else { world.damage(*slot) });
            let (report, got) = world.applied();
            assert!(got == world.device, "{slots:?} {hide}");
            assert_eq!(report.superblocks_valid as usize, 2 - slots.len());
            assert!(!report.complete && report.doubts.len() == 1, "{:?}", report.doubts);
        }
    }
}

#[test]
fn one_copy_of_the_table_is_enough_and_none_is_doubtful() {
    let geometry = world(5).superblock().geometry();
    for copy in TableCopy::ALL {
        let mut world = world(5);
        world.hide(geometry.table_offset(0, copy));
        let (report, got) = world.applied();
        assert!(got == world.device && report.complete && report.table_copies_valid == 1);
    }
    let mut world = world(5);
    TableCopy::ALL.iter().for_each(|copy| world.damage(geometry.table_offset(0, *copy)));
    let (report, got) = world.applied();
    assert!(!report.complete && report.doubts.iter().any(|doubt| doubt.contains("page 0")), "{:?}", report.doubts);
    // What is dirty is there, whatever else is.
    for (block, _) in self::world(5).dirty() {
        let at = block as usize * BLOCK_BYTES..(block as usize + 1) * BLOCK_BYTES;
        assert!(got[at.clone()] == world.device[at], "block {block}");
    }
    // The superblocks as well: most records say which attachment.
    world.damage(0);
    world.damage(BLOCK64);
    let (report, again) = world.applied();
    assert!(again == got && report.doubts.len() >= 2, "{:?}", report.doubts);
}

#[test]
fn a_volume_that_is_cut_off_gives_what_is_left() {
    let mut world = world(6);
    let geometry = world.superblock().geometry();
    world.cache.truncate(geometry.segment_offset(geometry.segments / 2) as usize);
    let (report, got) = world.applied();
    assert!(!report.complete && report.doubts[0].contains("cut off"), "{:?}", report.doubts);
    let lists: Vec<Extent> = report.stale.into_iter().chain(report.doubtful).collect();
    world.differs_only_in(&got, &lists);
}

#[test]
fn targets_are_not_overwritten_by_accident() {
    let world = world(7);
    let volume = world.path("volume");
    fs::write(&volume, &world.cache).unwrap();
    let attempt = |to: &Path, apply: bool| {
        let medium = Medium::open(&volume).unwrap();
        Salvage { volume: &volume, to, apply }.salvage(medium, &ProgressBar::hidden()).unwrap_err()
    };
    let target = world.path("target");
    assert_eq!(attempt(&target, true).status(), 2);
    fs::write(&target, &world.backing[..DEVICE - 512]).unwrap();
    for (apply, says) in [(false, "--apply"), (true, "not (a whole copy of) the backing volume")] {
        let refused = attempt(&target, apply);
        assert!(refused.status() == 2 && refused.to_string().contains(says), "{refused}");
    }
    assert!(fs::read(&target).unwrap() == world.backing[..DEVICE - 512]);
    assert_eq!(attempt(&volume, true).status(), 2);
    std::os::unix::fs::symlink(&volume, world.path("link")).unwrap();
    assert_eq!(attempt(&world.path("link"), true).status(), 2);
    assert_eq!(attempt(Path::new("/dev/null"), true).status(), 2);
    assert!(fs::read(&volume).unwrap() == world.cache);
}

#[test]
#[allow(clippy::print_stderr, reason = "says what it skips")]
fn a_target_below_a_loop_device_is_in_use() {
    let world = world(8);
    let (volume, to) = (world.path("volume"), world.path("target"));
    fs::write(&volume, &world.cache).unwrap();
    fs::write(&to, &world.backing).unwrap();
    let losetup = |arguments: &[&std::ffi::OsStr]| std::process::Command::new("losetup").args(arguments).output();
    let made = losetup(&["--find".as_ref(), "--show".as_ref(), to.as_os_str()]);
    let Some(device) = made.ok().filter(|made| made.status.success()) else {
        eprintln!("skipped: no loop device can be made here");
        return;
    };
    let device = String::from_utf8(device.stdout).unwrap();
    let medium = Medium::open(&volume).unwrap();
    let refused =
        Salvage { volume: &volume, to: &to, apply: true }.salvage(medium, &ProgressBar::hidden()).unwrap_err();
    losetup(&["--detach".as_ref(), device.trim().as_ref()]).unwrap();
    assert!(refused.to_string().contains(device.trim()), "{refused}");
    assert!(fs::read(&to).unwrap() == world.backing);
}

#[test]
fn what_is_no_caching_volume_or_was_released_is_refused() {
    let mut world = world(8);
    let (volume, to) = (world.path("volume"), world.path("new"));
    let superblock = Superblock { state: LogState::Clean, sequence: 1 << 20, ..world.superblock() };
    world.cache[..BLOCK_BYTES].copy_from_slice(&superblock.encode()[..]);
    for bytes in [world.cache.clone(), vec![0xa5; 1 << 20], vec![0; 1 << 20]] {
        fs::write(&volume, bytes).unwrap();
        let medium = Medium::open(&volume).unwrap();
        let refused =
            Salvage { volume: &volume, to: &to, apply: false }.salvage(medium, &ProgressBar::hidden()).unwrap_err();
        assert_eq!(refused.status(), 2, "{refused}");
        assert!(!to.exists());
    }
}

fn unpacked(bytes: &[u8]) -> Vec<u8> {
    let mut unpacked = Vec::new();
    std::io::Read::read_to_end(&mut lzma_rust2::XzReader::new(bytes, false), &mut unpacked).unwrap();
    unpacked
}

/// A volume that the first release wrote; see the README beside it.
fn first_release() -> World {
    World {
        directory: tempfile::tempdir().unwrap(),
        cache: unpacked(include_bytes!("../../../../../cache/tests/release-0.1/cache.xz")),
        backing: unpacked(include_bytes!("../../../../../cache/tests/release-0.1/backing.xz")),
        device: Vec::new(),
        unreadable: BTreeSet::new(),
    }
}

#[test]
fn a_volume_of_the_first_release_is_salvaged() {
    let mut world = first_release();
    let (report, got) = world.applied();
    let crcs = got.chunks(BLOCK_BYTES).map(|block| format!("{:08x}\n", surgetank_cache::format::checksum(block)));
    assert_eq!(crcs.collect::<String>(), include_str!("../../../../../cache/tests/release-0.1/device.crc32c"));
    assert!(report.complete && report.layout == 1, "{:?}", report.doubts);
    world.device = got;
    let geometry = world.superblock().geometry();
    for slot in 0..2 {
        // Slots of the table alternate: of the one that can be read nobody knows whether it is the newer one.
        let mut world =
            World { directory: tempfile::tempdir().unwrap(), device: world.device.clone(), ..first_release() };
        world.hide(geometry.table_offset(0, TableCopy::ALL[slot]));
        let dirty = world.dirty();
        let (report, got) = world.applied();
        assert!(!report.complete && report.doubts.len() == 1, "{:?}", report.doubts);
        for (block, _) in dirty {
            let at = block as usize * BLOCK_BYTES..(block as usize + 1) * BLOCK_BYTES;
            assert!(got[at.clone()] == world.device[at], "block {block}");
        }
        // Without any superblock the layout is found by the table.
        world.unreadable.clear();
        world.damage(0);
        world.damage(BLOCK64);
        let (report, got) = world.applied();
        assert!(got == world.device && report.layout == 1 && !report.complete);
    }
}
