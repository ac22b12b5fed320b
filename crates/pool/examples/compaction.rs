//! What compaction of an SSD's log costs under random overwrites of chunks of a MiB, in one JSON document: for each part of the room that
//! counts, the bytes written for each byte of the load and the rate; and how much a log without compaction takes until it is stuck.
//!
//!     cargo run --release --package surgetank-pool --example compaction -- DIRECTORY [MIB]

#![allow(clippy::print_stdout, reason = "the numbers are the result")]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use surgetank_model::random::Random;
use surgetank_pool::benefactor::ssd::{Directory, Disk, Found, Log, NotAppended, Owner};
use surgetank_pool_core::benefactor::Compaction;
use surgetank_pool_core::benefactor::compaction::Next;
use surgetank_pool_core::benefactor::holdings::{Entry, Instance};
use surgetank_pool_core::benefactor::segments::At;
use surgetank_pool_core::id::{BenefactorId, Inode, SessionId};

type Failed = Box<dyn std::error::Error>;

const MIB: u64 = 1 << 20;
/// Chunks that share a flush.
const BATCH: usize = 16;

struct Load {
    disk: Arc<dyn Disk>,
    log: Log,
    /// Where each chunk is.
    places: Vec<Option<At>>,
    compaction: Compaction,
    bytes: Vec<u8>,
}

impl Load {
    fn entry(&self, chunk: usize) -> Entry {
        let instance = Instance { session: SessionId(1), number: chunk as u64 };
        Entry { instance, length: MIB as u32, crc: crc32c::crc32c(&self.bytes) }
    }

    /// Writes chunks anew; `false`: there is no room for all of them.
    fn write(&mut self, chunks: &[usize], compacts: bool) -> Result<bool, Failed> {
        let mut written = Vec::new();
        for chunk in chunks {
            let entry = self.entry(*chunk);
            loop {
                match self.log.chunk(Inode(1), &entry, &self.bytes) {
                    Ok(at) => break written.push((*chunk, at)),
                    Err(NotAppended::Failed(error)) => return Err(error.into()),
                    Err(NotAppended::Full) => {
                        self.flush(std::mem::take(&mut written));
                        if !compacts || !self.compact()? {
                            return Ok(false);
                        }
                    }
                }
            }
        }
        self.flush(written);
        Ok(true)
    }

    fn flush(&mut self, written: Vec<(usize, At)>) {
        assert!(self.log.flush().is_empty(), "the disk is well");
        for (chunk, at) in written {
            if let Some(former) = self.places[chunk].replace(at) {
                self.log.over(former);
            }
        }
    }

    fn compact(&mut self) -> Result<bool, Failed> {
        let next = self.compaction.next(surgetank_model::Instant::ZERO, self.log.segments(), true);
        let Next::Copy(records) = next else { return Ok(false) };
        let mut copies = Vec::new();
        for from in records {
            let chunk = self.places.iter().position(|at| *at == Some(from)).ok_or("it is there")?;
            let mut bytes = vec![0; MIB as usize];
            self.disk.read(from.segment, from.offset + 128, &mut bytes)?;
            let entry = self.entry(chunk);
            if crc32c::crc32c(&bytes) != entry.crc {
                return Err("a chunk is damaged".into());
            }
            copies.push((chunk, self.log.copy_chunk(from, Inode(1), &entry, &bytes)?));
        }
        assert!(self.log.flush().is_empty(), "the disk is well");
        copies.into_iter().for_each(|(chunk, at)| self.places[chunk] = Some(at));
        Ok(true)
    }
}

/// Overwrites four times the room, or as much as there is room for.
fn measure(path: &Path, mib: u64, live: f64, compacts: bool) -> Result<String, Failed> {
    let _ = std::fs::remove_dir_all(path);
    let disk: Arc<dyn Disk> = Arc::new(Directory::open(path, mib * MIB)?);
    let log = Found::read(Arc::clone(&disk))?.begin(Owner { pool: 1, benefactor: BenefactorId(1) })?;
    let count = (log.segments().of() as f64 * live / (MIB + 4096) as f64) as usize;
    let mut random = Random::from_seed(7);
    let bytes = (0..MIB / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect();
    let mut load = Load { disk, log, places: vec![None; count], compaction: Compaction::default(), bytes };
    let all: Vec<usize> = (0..count).collect();
    for part in all.chunks(BATCH) {
        if !load.write(part, compacts)? {
            return Err("the first writing has no room".into());
        }
    }
    let before = load.log.segments().report();
    let (began, mut overwritten, mut is_stuck) = (Instant::now(), 0, false);
    while overwritten < 4 * mib && !is_stuck {
        let chunks: Vec<usize> = (0..BATCH).map(|_| random.below(count as u64) as usize).collect();
        let distinct: std::collections::BTreeSet<usize> = chunks.into_iter().collect();
        let chunks: Vec<usize> = distinct.into_iter().collect();
        is_stuck = !load.write(&chunks, compacts)?;
        overwritten += if is_stuck { 0 } else { chunks.len() as u64 };
    }
    let report = load.log.segments().report();
    let (copied, written) = (report.copied - before.copied, report.written - before.written);
    let rate = overwritten as f64 / began.elapsed().as_secs_f64();
    let amplification = (copied + written) as f64 / written.max(1) as f64;
    Ok(format!(
        "{{\"live_percent\": {:.0}, \"compacts\": {compacts}, \"overwritten_mib\": {overwritten}, \"is_stuck\": {is_stuck}, \
         \"write_amplification\": {amplification:.2}, \"mib_s\": {rate:.0}}}",
        live * 100.0
    ))
}

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("name a directory")?;
    let mib = arguments.next().map_or(Ok(1024), |mib| mib.parse())?;
    let path = Path::new(&path).join("compaction");
    let mut lines = Vec::new();
    for live in [0.5, 0.8, 0.9] {
        for compacts in [false, true] {
            lines.push(measure(&path, mib, live, compacts)?);
        }
    }
    std::fs::remove_dir_all(&path)?;
    println!("[{}]", lines.join(",\n "));
    Ok(())
}
