//! Writers that know what every sector of theirs may hold, whenever the daemon dies.
//!
//! A sector carries its own address and a stamp. Each sector belongs to one writer, so after a crash it must hold what
//! was last acknowledged or, if a request was in flight, what that request would have left. The stripes of different
//! writers meet inside 4 KiB blocks, so they also change parts of the same blocks at the same time.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use surgetank_model::random::Random;

use super::Nbd;

const SECTOR: usize = 512;
/// Sectors of a stripe: no multiple of a block's eight.
const STRIPE: u64 = 131;

/// The daemon died, or ends: the connection is gone.
#[derive(Debug)]
pub struct Died;

/// What a writer asks of a device, wherever it is.
pub trait Requests {
    fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>>;
    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()>;
    fn write_fua(&mut self, offset: u64, data: &[u8]) -> io::Result<()>;
    fn flush(&mut self) -> io::Result<()>;
    fn trim(&mut self, offset: u64, length: u32) -> io::Result<()>;
    fn write_zeroes(&mut self, offset: u64, length: u32) -> io::Result<()>;
}

impl Requests for Nbd {
    fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        Self::read(self, offset, length)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        Self::write(self, offset, data)
    }

    fn write_fua(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        Self::write_fua(self, offset, data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Self::flush(self)
    }

    fn trim(&mut self, offset: u64, length: u32) -> io::Result<()> {
        Self::trim(self, offset, length)
    }

    fn write_zeroes(&mut self, offset: u64, length: u32) -> io::Result<()> {
        Self::write_zeroes(self, offset, length)
    }
}

/// What writers did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub writes: u64,
    pub flushes: u64,
    pub zeroed: u64,
    pub reads: u64,
    /// Requests in flight at a crash, and sectors of them that had reached the device.
    pub in_flight: u64,
    pub arrived: u64,
    pub checked_bytes: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.zeroed += other.zeroed;
        self.reads += other.reads;
        self.in_flight += other.in_flight;
        self.arrived += other.arrived;
        self.checked_bytes += other.checked_bytes;
    }
}

/// A stamp of 0 stands for zeroes.
#[derive(Clone, Copy, Debug, Default)]
struct Sector {
    acknowledged: u64,
    uncertain: Option<u64>,
}

/// One writer with every sector that is its own.
pub struct Writer {
    random: Random,
    stripes: Vec<(Range<u64>, Vec<Sector>)>,
    last_stamp: u64,
    discards: bool,
    pub counts: Counts,
}

/// What a sector must read.
fn content(sector: u64, stamp: u64) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    if stamp == 0 {
        return bytes;
    }
    let mut word = sector.rotate_left(32) ^ stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for (index, chunk) in bytes.chunks_exact_mut(8).enumerate() {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let word = match index {
            0 => sector,
            1 => stamp,
            _ => word,
        };
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// A refusal is never right here; an ended connection is.
fn died(error: &io::Error, what: &str) -> Died {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    let ended = matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof);
    assert!(ended || error.raw_os_error() == Some(libc::ESHUTDOWN), "{what}: {error}");
    Died
}

impl Writer {
    /// As many writers as asked for, who share a device of `bytes` between them.
    pub fn several(count: u64, bytes: u64, seed: u64) -> Vec<Self> {
        let sectors = bytes / SECTOR as u64;
        let mine = |writer: u64| {
            let stripes = (0..sectors.div_ceil(STRIPE)).filter(move |stripe| stripe % count == writer);
            let range = move |stripe: u64| stripe * STRIPE..((stripe + 1) * STRIPE).min(sectors);
            stripes.map(range).map(|range| (range.clone(), vec![Sector::default(); (range.end - range.start) as usize]))
        };
        let writer = |index| Self {
            random: Random::from_seed(seed ^ (index << 32)),
            stripes: mine(index).collect(),
            last_stamp: 0,
            discards: true,
            counts: Counts::default(),
        };
        (0..count).map(writer).collect()
    }

    /// For a device whose discarded ranges need not read as zeroes.
    pub fn without_discards(self) -> Self {
        Self { discards: false, ..self }
    }

    /// Reads everything that is its own.
    pub fn check(&mut self, device: &mut impl Requests) -> Result<(), Died> {
        for index in 0..self.stripes.len() {
            let range = self.stripes[index].0.clone();
            self.read(device, index, range)?;
        }
        Ok(())
    }

    /// Checks what lies in the backing file, with the daemon stopped.
    pub fn check_file(&mut self, file: &Path) {
        let bytes = std::fs::read(file).unwrap();
        for index in 0..self.stripes.len() {
            let range = self.stripes[index].0.clone();
            let bytes = &bytes[range.start as usize * SECTOR..range.end as usize * SECTOR];
            self.compare(index, range, bytes);
        }
    }

    /// Connects, checks everything, then writes, flushes, zeroes, discards and reads, until the daemon dies or it is
    /// over.
    pub fn serve_itself(&mut self, socket: &Path, over: impl Fn() -> bool) {
        let mut nbd = loop {
            match super::nbd(socket) {
                Ok(nbd) => break nbd,
                Err(_) if over() => return,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let mut alive = self.check(&mut nbd).is_ok();
        while alive && !over() {
            alive = self.step(&mut nbd).is_ok();
        }
    }

    /// One request.
    pub fn step(&mut self, device: &mut impl Requests) -> Result<(), Died> {
        let index = self.random.below(self.stripes.len() as u64) as usize;
        let whole = self.stripes[index].0.clone();
        let start = whole.start + self.random.below(whole.end - whole.start);
        let most = if self.random.chance(0.5) { 9 } else { STRIPE };
        let range = start..(start + 1 + self.random.below(most)).min(whole.end);
        match self.random.below(100) {
            0..4 => self.flush(device),
            4..10 => self.zero(device, index, range),
            10..20 => self.read(device, index, range),
            _ => self.write(device, index, range),
        }
    }

    fn flush(&mut self, device: &mut impl Requests) -> Result<(), Died> {
        device.flush().map_err(|error| died(&error, "flush"))?;
        self.counts.flushes += 1;
        Ok(())
    }

    fn write(&mut self, device: &mut impl Requests, index: usize, range: Range<u64>) -> Result<(), Died> {
        self.last_stamp += 1;
        let stamp = self.last_stamp;
        let data: Vec<u8> = range.clone().flat_map(|sector| content(sector, stamp)).collect();
        let forced = self.random.chance(0.05);
        self.change(index, range.clone(), stamp, |offset, _| {
            if forced { device.write_fua(offset, &data) } else { device.write(offset, &data) }
        })?;
        self.counts.writes += 1;
        Ok(())
    }

    fn zero(&mut self, device: &mut impl Requests, index: usize, range: Range<u64>) -> Result<(), Died> {
        let discard = self.random.chance(0.5) && self.discards;
        self.change(index, range, 0, |offset, length| {
            if discard { device.trim(offset, length) } else { device.write_zeroes(offset, length) }
        })?;
        self.counts.zeroed += 1;
        Ok(())
    }

    fn change(
        &mut self,
        index: usize,
        range: Range<u64>,
        stamp: u64,
        ask: impl FnOnce(u64, u32) -> io::Result<()>,
    ) -> Result<(), Died> {
        self.sectors(index, &range).iter_mut().for_each(|sector| sector.uncertain = Some(stamp));
        let (offset, length) = (range.start * SECTOR as u64, (range.end - range.start) as u32 * SECTOR as u32);
        if let Err(error) = ask(offset, length) {
            self.counts.in_flight += 1;
            return Err(died(&error, "a change"));
        }
        self.sectors(index, &range)
            .iter_mut()
            .for_each(|sector| *sector = Sector { acknowledged: stamp, uncertain: None });
        Ok(())
    }

    fn read(&mut self, device: &mut impl Requests, index: usize, range: Range<u64>) -> Result<(), Died> {
        let length = (range.end - range.start) as usize * SECTOR;
        let bytes = device.read(range.start * SECTOR as u64, length).map_err(|error| died(&error, "read"))?;
        self.counts.reads += 1;
        self.compare(index, range, &bytes);
        Ok(())
    }

    /// What is read of an uncertain sector is certain from then on.
    fn compare(&mut self, index: usize, range: Range<u64>, bytes: &[u8]) {
        let mut arrived = 0;
        let (start, known) = (range.start, self.sectors(index, &range));
        for ((number, sector), bytes) in (start..).zip(known).zip(bytes.chunks_exact(SECTOR)) {
            let holds = |stamp: u64| bytes == content(number, stamp);
            let stamps = [sector.uncertain, Some(sector.acknowledged)];
            let found = stamps.into_iter().flatten().find(|stamp| holds(*stamp)).unwrap_or_else(|| {
                let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                panic!("sector {number} reads as sector {} in version {}, not as {sector:?}", word(0), word(8))
            });
            arrived += u64::from(sector.uncertain == Some(found));
            *sector = Sector { acknowledged: found, uncertain: None };
        }
        self.counts.arrived += arrived;
        self.counts.checked_bytes += bytes.len() as u64;
    }

    fn sectors(&mut self, index: usize, range: &Range<u64>) -> &mut [Sector] {
        let (whole, sectors) = &mut self.stripes[index];
        &mut sectors[(range.start - whole.start) as usize..(range.end - whole.start) as usize]
    }
}
