//! What it costs to overwrite a device that has lost a million scattered ranges, as one JSON document:
//! `cargo bench --package surgetank-daemon --bench healing`, or with its bars `make bench ARGS=losses`.

#![expect(clippy::print_stdout, reason = "the answer")]

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant as Clock};

use surgetank_cache::{Config, Effect, EffectId, Engine, Epoch, Outcome, Owner};
use surgetank_daemon::owner::OwnerStore;
use surgetank_model::random::Random;
use surgetank_model::{Instant, Limits, Operation, Request, RequestId};
use surgetank_rental::OwnerRecord;

/// Lost ranges: with their distance, 4 GiB of random blocks of 4 KiB in a device of 16 GiB.
const RANGES: u64 = 1_000_000;
const BLOCK: u64 = 4096;
const DISTANCE: u64 = 4 * BLOCK;
/// Overwrites that are in flight together.
const ROUND: u64 = 64;
const EPOCH: Epoch = Epoch([7; 16]);

/// A line of `/proc/self/status` in bytes.
fn memory(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with(name)).expect("the kernel says it");
    let kib = line.split_whitespace().nth(1).and_then(|number| number.parse::<f64>().ok());
    kib.expect("a number of KiB") * 1024.0
}

/// What a round took.
#[derive(Default)]
struct Spent {
    engine: Duration,
    all: Duration,
}

struct Device {
    engine: Engine,
    store: OwnerStore,
    next: u64,
}

impl Device {
    /// Overwrites these blocks together, and waits for all replies.
    fn overwrite(&mut self, offsets: &[u64]) -> Spent {
        let begun = Clock::now();
        let mut recording = Duration::ZERO;
        for &offset in offsets {
            let operation = Operation::Write { fua: false };
            self.next += 1;
            self.engine.submit(Instant::ZERO, Request { id: RequestId(self.next), operation, offset, length: BLOCK });
        }
        let mut replies = 0;
        while replies < offsets.len() {
            let mut done = Vec::new();
            while let Some(effect) = self.engine.next_effect() {
                match effect {
                    Effect::Write { id, .. } | Effect::Flush { id, .. } => done.push(id),
                    Effect::PersistOwner { id, owner } => {
                        let begun = Clock::now();
                        self.store.persist(OwnerRecord { owner, volume: None, ended: None }).expect("there is room");
                        recording += begun.elapsed();
                        done.push(id);
                    }
                    Effect::RecordHealed { id, epoch, ranges } => {
                        let begun = Clock::now();
                        self.store.record_healed(epoch, &ranges).expect("there is room");
                        recording += begun.elapsed();
                        done.push(id);
                    }
                    Effect::Reply { result, .. } => {
                        result.expect("nothing fails");
                        replies += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
            done.into_iter().for_each(|id: EffectId| self.engine.complete(Instant::ZERO, id, Outcome::Done));
        }
        let all = begun.elapsed();
        Spent { engine: all.saturating_sub(recording), all }
    }
}

fn lose(directory: &Path) {
    let ranges = (0..RANGES).map(|number| (number * DISTANCE, BLOCK)).collect();
    let mut store = OwnerStore::open(directory).expect("a new record");
    store
        .persist(OwnerRecord { owner: Owner::Lost { epoch: EPOCH, ranges }, volume: None, ended: None })
        .expect("there is room");
}

fn main() {
    let rounds = std::env::args().find_map(|flag| flag.strip_prefix("--rounds=")?.parse().ok()).unwrap_or(50_u64);
    // Whoever runs it may want to remove what it leaves when it is killed.
    let scratch = std::env::var_os("SURGETANK_SCRATCH").unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    let scratch = tempfile::tempdir_in(scratch).expect("a directory on a disk");
    lose(scratch.path());
    let before = memory("VmRSS");
    let mut store = OwnerStore::open(scratch.path()).expect("the record");
    let Owner::Lost { epoch, ranges } = store.record().owner.clone() else { panic!("it says lost") };
    let outage_patience = Duration::from_secs(120);
    let config = Config { size: RANGES * DISTANCE, logical_block: 512, backing_limits: Limits::NONE, outage_patience };
    let engine = Engine::with_lost(config, epoch, &ranges);
    drop(ranges);
    store.forget_ranges();
    let mut device = Device { engine, store, next: 0 };
    let resident = memory("VmRSS") - before;
    std::fs::write("/proc/self/clear_refs", "5").expect("the peak is forgotten");
    let mut random = Random::from_seed(1);
    let mut spent = Spent::default();
    let mut slowest = Duration::ZERO;
    for _ in 0..rounds {
        let offsets: Vec<u64> = (0..ROUND).map(|_| random.below(RANGES) * DISTANCE).collect();
        let round = device.overwrite(&offsets);
        spent.engine += round.engine;
        spent.all += round.all;
        slowest = slowest.max(round.all);
    }
    let peak = memory("VmHWM") - before;
    // With half an entry at its end the journal ends, and the whole record is written anew.
    let journal = scratch.path().join("healed.journal");
    std::fs::OpenOptions::new()
        .append(true)
        .open(journal)
        .and_then(|mut file| file.write_all(&[1; 16]))
        .expect("the journal is there");
    device.store = OwnerStore::open(scratch.path()).expect("the record");
    device.store.forget_ranges();
    std::fs::write("/proc/self/clear_refs", "5").expect("the peak is forgotten");
    let lost = device.engine.lost_ranges(1);
    let anew = device.overwrite(&[lost[0].0]);
    let peak_anew = memory("VmHWM") - before;
    let requests = (rounds * ROUND) as f64;
    println!(
        "{{\"engine_ms_per_request\": {:.6}, \"ms_per_request\": {:.6}, \"slowest_round_ms\": {:.3}, \
         \"resident_bytes_per_range\": {:.1}, \"peak_bytes_per_range\": {:.1}, \"anew_ms\": {:.3}, \
         \"anew_peak_bytes_per_range\": {:.1}}}",
        spent.engine.as_secs_f64() * 1e3 / requests,
        spent.all.as_secs_f64() * 1e3 / requests,
        slowest.as_secs_f64() * 1e3,
        resident / RANGES as f64,
        peak / RANGES as f64,
        anew.all.as_secs_f64() * 1e3,
        peak_anew / RANGES as f64,
    );
}
