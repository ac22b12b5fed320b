//! Writers and a reader on a file system. After a request that failed a file is written anew, and a writer that overwrites
//! goes on with operations that have not been: those that failed may have left anything, and would otherwise not be told
//! from their repetition.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::ops::RangeInclusive;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use surgetank_model::random::Random;

use super::super::stretch::{self, Aligned};
use crate::cuts::oracle::{BLOCK, Stretch};
use crate::machine::run;
use crate::replay::renames;

/// Where the elastic device's file system is mounted.
pub const FILES: &str = "/run/lab-files";
/// Writers that overwrite a file in place, each of so many blocks; as many again replace files.
const IN_PLACE: usize = 2;
const WRITERS: usize = 2 * IN_PLACE;
const STRETCH_BLOCKS: u64 = 8192;
/// A file that is written at once and then synced.
const BURST_BYTES: usize = 32 << 20;
const PIECE: usize = 1 << 20;
/// So much of it at a time.
const SYNCED: usize = 4 << 20;
/// What is read at once while others write.
const READ: usize = 64 << 10;
/// The pause after a failure.
const PAUSE: Duration = Duration::from_millis(300);

/// What was written, and must be there.
pub struct Load {
    seed: u64,
    writers: Vec<Writer>,
    /// The two files of bursts: which one each holds for sure.
    bursts: [Option<u64>; 2],
}

struct Writer {
    stretch: Stretch,
    /// Of one that replaces files: all versions up to this one are durable.
    durable: u64,
    /// Of one that overwrites: what each attempt since the last judgement has made durable, in order.
    synced: Vec<RangeInclusive<u64>>,
    /// None from this one on has begun.
    ends: u64,
}

/// The load during one outage.
#[derive(Default)]
pub struct Session {
    over: AtomicBool,
    acknowledged: [AtomicU64; WRITERS],
    /// Whether the burst is durable.
    burst: AtomicBool,
    failed: Mutex<(u64, Vec<String>)>,
    faults: Mutex<Vec<String>>,
}

impl Session {
    /// What each writer has made durable so far, in syncs.
    pub fn acknowledged(&self) -> [u64; WRITERS] {
        [0, 1, 2, 3].map(|index| self.acknowledged[index].load(Ordering::Relaxed))
    }

    /// Whether the burst is durable.
    pub fn burst_is_durable(&self) -> bool {
        self.burst.load(Ordering::Relaxed)
    }

    /// How many requests have failed, and what the first ones said.
    pub fn failures(&self) -> (u64, Vec<String>) {
        lock(&self.failed).clone()
    }

    /// What was read and is wrong.
    pub fn faults(&self) -> Vec<String> {
        lock(&self.faults).clone()
    }

    /// Takes what another one has seen.
    pub fn adopt(&self, other: Self) {
        let (count, said) = other.failures();
        let mut failed = lock(&self.failed);
        failed.0 += count;
        failed.1.extend(said);
        lock(&self.faults).extend(other.faults());
    }

    fn has_failed(&self, who: &str, error: &anyhow::Error) {
        let mut failed = lock(&self.failed);
        failed.0 += 1;
        if failed.1.len() < 4 {
            failed.1.push(format!("{who}: {error:#}"));
        }
        drop(failed);
        std::thread::sleep(PAUSE);
    }

    fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Load {
    /// On a new file system.
    pub fn new(seed: u64) -> anyhow::Result<Self> {
        for index in 0..WRITERS {
            if index < IN_PLACE {
                File::create(place(index))?.set_len(STRETCH_BLOCKS * BLOCK as u64)?;
            } else {
                fs::create_dir(place(index))?;
            }
        }
        run("sync", &[])?;
        let writer = |index| {
            let seed = seed.wrapping_mul(WRITERS as u64).wrapping_add(index as u64);
            Writer { stretch: Stretch::new(seed, 0, STRETCH_BLOCKS), durable: 0, synced: Vec::new(), ends: 1 }
        };
        Ok(Self { seed, writers: (0..WRITERS).map(writer).collect(), bursts: [None; 2] })
    }

    /// Writes, syncs and reads until `steer` has come to its end; what it answers. `number` is that of the burst. Errors are
    /// those of `steer`: the load's own are counted.
    pub fn run<T>(
        &mut self,
        number: u64,
        session: &Session,
        steer: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let seed = self.seed;
        let [even, odd] = &mut self.bursts;
        let (ours, other) = if number.is_multiple_of(2) { (even, *odd) } else { (odd, *even) };
        std::thread::scope(|scope| {
            for (index, writer) in self.writers.iter_mut().enumerate() {
                scope.spawn(move || writer.write(index, session));
            }
            scope.spawn(move || write_burst(seed, number, ours, session));
            if let Some(other) = other {
                scope.spawn(move || read_burst(seed, other, session));
            }
            let answer = steer();
            session.over.store(true, Ordering::Relaxed);
            answer
        })
    }

    /// Reads everything back from the disk; how much it was, in MiB, and what is wrong with it.
    pub fn judge(&mut self) -> anyhow::Result<(f64, Vec<String>)> {
        fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop caches")?;
        let (mut bytes, mut faults) = (0, Vec::new());
        for (index, writer) in self.writers.iter_mut().enumerate() {
            let (read, wrong) = writer.judge(index);
            bytes += read;
            faults.extend(wrong.into_iter().map(|fault| format!("writer {index}: {fault}")));
        }
        for number in self.bursts.into_iter().flatten() {
            bytes += BURST_BYTES;
            faults.extend(judge_burst(self.seed, number).map(|fault| format!("burst {number}: {fault}")));
        }
        Ok((bytes as f64 / f64::from(1 << 20), faults))
    }
}

fn place(index: usize) -> PathBuf {
    Path::new(FILES).join(format!("writer-{index}"))
}

impl Writer {
    fn write(&mut self, index: usize, session: &Session) {
        while session.goes_on() {
            if let Err(error) = self.attempt(index, session) {
                session.has_failed(&format!("writer {index}"), &error);
            }
        }
    }

    /// Goes on until told to stop, and makes the last of it durable.
    fn attempt(&mut self, index: usize, session: &Session) -> anyhow::Result<()> {
        let (place, stretch) = (place(index), &self.stretch);
        let acknowledge = || session.acknowledged[index].fetch_add(1, Ordering::Relaxed);
        if index >= IN_PLACE {
            let mut next = self.durable + 1;
            let synced = |version| {
                self.durable = version;
                acknowledge();
                Ok(())
            };
            let result = renames::write(&place, stretch, &mut next, &session.over, synced);
            self.ends = self.ends.max(next + 1);
            return result;
        }
        let first = self.ends;
        let (mut next, mut durable) = (first, None);
        let synced = |number| {
            durable = Some(number);
            acknowledge();
            Ok(())
        };
        let mut result = stretch::write(&place, stretch, &mut next, &session.over, synced);
        if result.is_ok() {
            result = File::open(&place).and_then(|file| file.sync_all()).context("cannot sync a file");
            durable = if result.is_ok() { Some(next - 1) } else { durable };
        }
        self.synced.extend(durable.map(|last| first..=last));
        self.ends = next + 1;
        result
    }

    /// What was read, in bytes, and what is wrong with it.
    fn judge(&mut self, index: usize) -> (usize, Vec<String>) {
        let place = place(index);
        if index >= IN_PLACE {
            return (0, renames::judge(&place, &self.stretch, self.durable, self.ends));
        }
        // What is read is what must be there, and counts from here on.
        for numbers in std::mem::take(&mut self.synced) {
            self.stretch.flushed_among(numbers);
        }
        let bytes = self.stretch.least.iter().filter(|least| **least > 0).count() * BLOCK;
        (bytes, stretch::judge_file(&place, &mut self.stretch, self.ends))
    }
}

fn burst_file(number: u64) -> PathBuf {
    Path::new(FILES).join(format!("burst-{}", number % 2))
}

/// A burst's content: every block of 512 bytes says of which burst and place it is. To be cheap in emulation, the rest
/// of it repeats from piece to piece.
struct Burst {
    base: u64,
    piece: Vec<u8>,
}

impl Burst {
    fn new(seed: u64, number: u64) -> Self {
        let mut chance = Random::from_seed(seed ^ (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let piece = (0..PIECE / 8).flat_map(|_| chance.next_u64().to_le_bytes()).collect();
        Self { base: chance.next_u64(), piece }
    }

    /// The bytes from a multiple of `READ` on, up to the end of their piece.
    fn at(&mut self, offset: u64) -> &[u8] {
        let start = offset as usize % PIECE;
        for (block, bytes) in (offset / BLOCK as u64..).zip(self.piece[start..].chunks_exact_mut(BLOCK)) {
            bytes[..8].copy_from_slice(&(self.base ^ block).to_le_bytes());
        }
        &self.piece[start..]
    }
}

/// Writes a burst until it is durable.
fn write_burst(seed: u64, number: u64, holds: &mut Option<u64>, session: &Session) {
    if *holds == Some(number) {
        session.burst.store(true, Ordering::Relaxed);
        return;
    }
    *holds = None;
    let write = || -> anyhow::Result<()> {
        let mut file = File::create(burst_file(number)).context("cannot make a file")?;
        let mut burst = Burst::new(seed, number);
        for offset in (0..BURST_BYTES).step_by(PIECE) {
            file.write_all(burst.at(offset as u64)).context("cannot write a file")?;
            // The disk is to have its share early.
            if offset % SYNCED == 0 {
                file.sync_data().context("cannot sync a file")?;
            }
        }
        file.sync_all().context("cannot sync a file")
    };
    while session.goes_on() {
        match write() {
            Ok(()) => {
                *holds = Some(number);
                session.burst.store(true, Ordering::Relaxed);
                return;
            }
            Err(error) => session.has_failed("burst", &error),
        }
    }
}

/// Reads pieces of an earlier burst while others write.
fn read_burst(seed: u64, number: u64, session: &Session) {
    let mut chance = Random::from_seed(seed ^ number);
    let mut found = Aligned::zeroed(READ);
    let mut burst = Burst::new(seed, number);
    while session.goes_on() {
        let offset = chance.below((BURST_BYTES / READ) as u64) * READ as u64;
        match direct(&burst_file(number)).and_then(|file| Ok(file.read_exact_at(found.bytes_mut(), offset)?)) {
            Err(error) => session.has_failed("reader", &error),
            Ok(()) if found.bytes() != &burst.at(offset)[..READ] => {
                lock(&session.faults)
                    .push(format!("burst {number}, byte {offset}: read while others wrote, and wrong"));
            }
            Ok(()) => {}
        }
        std::thread::sleep(Duration::from_millis(30));
    }
}

/// What is wrong with a burst that was durable.
fn judge_burst(seed: u64, number: u64) -> Option<String> {
    let file = match direct(&burst_file(number)) {
        Ok(file) => file,
        Err(error) => return Some(format!("{error:#}")),
    };
    let (mut found, mut burst) = (Aligned::zeroed(PIECE), Burst::new(seed, number));
    for offset in (0..BURST_BYTES as u64).step_by(PIECE) {
        if let Err(error) = file.read_exact_at(found.bytes_mut(), offset) {
            return Some(format!("byte {offset}: {error}"));
        }
        let expected = burst.at(offset);
        if found.bytes() != expected {
            let wrong = found.bytes().iter().zip(expected).take_while(|(found, expected)| found == expected).count();
            return Some(format!("wrong at byte {}", offset + wrong as u64));
        }
    }
    None
}

/// The page cache does not answer for the disk.
fn direct(file: &Path) -> anyhow::Result<File> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(file);
    opened.with_context(|| format!("cannot open {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_of_a_burst_is_of_its_burst_and_place() {
        let mut blocks = std::collections::BTreeSet::new();
        for number in 0..3 {
            let mut burst = Burst::new(7, number);
            for offset in (0..4 * PIECE as u64).step_by(PIECE) {
                let piece = burst.at(offset).to_owned();
                assert_eq!(piece.len(), PIECE);
                blocks.extend(piece.chunks(BLOCK).map(<[u8]>::to_owned));
                // A part of it is the same wherever reading begins.
                assert_eq!(Burst::new(7, number).at(offset + READ as u64), &piece[READ..]);
            }
        }
        assert_eq!(blocks.len(), 3 * 4 * PIECE / BLOCK);
    }

    #[test]
    fn a_writer_that_fails_does_no_operation_twice_and_no_version_never() {
        // No file system is mounted there: everything fails until the session ends.
        let fails_twice = |index| {
            let session = Session::default();
            let mut writer = Writer { stretch: Stretch::new(1, 0, 1024), durable: 4, synced: Vec::new(), ends: 9 };
            std::thread::scope(|scope| {
                let (session, writer) = (&session, &mut writer);
                scope.spawn(move || writer.write(index, session));
                while session.failures().0 < 2 {
                    std::thread::sleep(Duration::from_millis(10));
                }
                session.over.store(true, Ordering::Relaxed);
            });
            assert_eq!((writer.durable, writer.synced.len(), session.acknowledged()), (4, 0, [0; WRITERS]));
            (writer.ends, session.failures())
        };
        let (ends, (_, said)) = fails_twice(3);
        assert_eq!(ends, 9);
        assert!(said[0].starts_with("writer 3: cannot make a file"), "{said:?}");
        let (ends, (count, _)) = fails_twice(0);
        assert_eq!(ends, 9 + count);
    }
}
