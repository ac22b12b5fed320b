//! What was on volumes that were deleted, beside what was written to the devices: nobody's word is taken for it, neither the daemon's nor
//! its records'.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{SeekFrom, seek};

use super::log::{Contents, Log, WRITTEN};
use super::{backing, name};

/// What is told apart on a volume, in bytes: a sector, and how much of it tells whose it is.
const SECTOR: usize = 512;
const MARK: usize = 16;
/// What is read of a volume at once, in bytes.
const PIECE: usize = 1 << 20;

pub struct Ledger {
    root: PathBuf,
    devices: usize,
    log: Log,
    /// What the sectors of each version begin with, and how many versions of each device are known.
    marks: HashMap<[u8; MARK], (usize, u64)>,
    known: BTreeMap<usize, u64>,
    /// How many volumes were deleted, and on how many of them something was that had been written to a device.
    deleted: usize,
    written: usize,
    /// How many had what was flushed last and is nowhere else, and how many had what was written to several devices.
    dirty: usize,
    mixed: usize,
}

impl Ledger {
    /// Of the devices that are here.
    pub fn new(root: &Path, devices: usize) -> Self {
        Self {
            root: root.to_owned(),
            devices,
            log: Log::default(),
            marks: HashMap::new(),
            known: BTreeMap::new(),
            deleted: 0,
            written: 0,
            dirty: 0,
            mixed: 0,
        }
    }

    /// A volume with these bytes was deleted.
    pub fn deleted(&mut self, image: &Path) {
        self.log.read_on(&self.root.join("calls"));
        for device in 0..self.devices {
            let (contents, known) = (self.log.contents(&name(device)), self.known.entry(device).or_default());
            for version in *known + 1..contents.next() {
                let block = Contents::block(&name(device), version);
                self.marks.extend(block.chunks(SECTOR).map(|sector| (mark(sector), (device, version))));
            }
            *known = contents.next() - 1;
        }
        let found = self.found(image);
        let devices: BTreeSet<usize> = found.iter().map(|(device, _)| *device).collect();
        self.deleted += 1;
        self.written += usize::from(!found.is_empty());
        self.mixed += usize::from(devices.len() > 1);
        self.dirty += usize::from(found.iter().any(|(device, version)| self.is_here_alone(*device, *version)));
    }

    /// The devices and versions of which there is something.
    fn found(&self, image: &Path) -> BTreeSet<(usize, u64)> {
        let file = File::open(image).unwrap();
        let (mut found, mut piece, mut at) = (BTreeSet::new(), vec![0; PIECE], 0);
        // The rest is holes.
        while let Ok(data) = seek(&file, SeekFrom::Data(at)) {
            at = data - data % SECTOR as u64;
            let length = file.read_at(&mut piece, at).unwrap();
            found.extend(piece[..length].chunks_exact(SECTOR).filter_map(|sector| self.marks.get(&mark(sector))));
            at += length as u64;
        }
        found
    }

    /// Whether a version was flushed last, and the backing volume has neither it nor what was begun after it.
    fn is_here_alone(&self, device: usize, version: u64) -> bool {
        let (device, mut there) = (name(device), vec![0; WRITTEN]);
        File::open(backing(&self.root, &device)).unwrap().read_exact_at(&mut there, 0).unwrap();
        let contents = self.log.contents(&device);
        contents.flushed() == version && contents.version(&device, &there).is_none()
    }

    /// On how many volumes something was that had been written.
    pub fn written(&self) -> usize {
        self.written
    }

    /// What is wrong, if anything is.
    pub fn wrong(&self) -> Option<String> {
        (self.dirty + self.mixed > 0).then(|| self.to_string())
    }
}

fn mark(sector: &[u8]) -> [u8; MARK] {
    sector[..MARK].try_into().unwrap()
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of the volumes were deleted, {} of these with something that was written, {} with what was flushed last and is nowhere \
             else, {} with what was written to several devices",
            self.deleted, self.written, self.dirty, self.mixed
        )
    }
}

#[test]
fn volumes_that_are_deleted_with_newest_data_or_that_of_others_are_counted() {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &Path, at: u64, bytes: &[u8]| {
        let file = File::options().write(true).create(true).truncate(false).open(path).unwrap();
        file.write_all_at(bytes, at).unwrap();
    };
    let (image, mut ledger) = (root.path().join("image"), Ledger::new(root.path(), 2));
    for device in 0..2 {
        write(&backing(root.path(), &name(device)), 0, &vec![0; WRITTEN]);
    }
    std::fs::write(root.path().join("calls"), "writes d00 1\nwrote d00 1\nwrites d01 1\n").unwrap();
    let counted = |ledger: &mut Ledger| {
        let before = (ledger.written, ledger.dirty, ledger.mixed);
        ledger.deleted(&image);
        (ledger.written - before.0, ledger.dirty - before.1, ledger.mixed - before.2)
    };
    write(&image, 8 << 20, &[0; SECTOR]);
    assert_eq!(counted(&mut ledger), (0, 0, 0), "nothing is on it");
    write(&image, 4096, &Contents::block("d00", 1)[SECTOR..2 * SECTOR]);
    assert_eq!(counted(&mut ledger), (1, 1, 0), "one sector of what was flushed last is here alone");
    write(&backing(root.path(), "d00"), 0, &Contents::block("d00", 1));
    assert_eq!(counted(&mut ledger), (1, 0, 0), "the backing volume has it");
    write(&image, 1 << 20, &Contents::block("d01", 1));
    assert_eq!(counted(&mut ledger), (1, 0, 1), "something of another device, which was not flushed");
}
