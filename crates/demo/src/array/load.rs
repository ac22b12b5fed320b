//! The application of the demo of arrays: a process whose workers each have a file, and read and write its blocks in random order.
//!
//! Only its worker accesses a block, so what a block must hold is known at every moment: how often it was written. Every read is
//! compared with that, and in the end every block is.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use surgetank_device::Buffer;
use surgetank_model::random::Random;
use surgetank_report::{Doing, Failure, output};

use crate::content::{BLOCK, FileContent, LooksLike, Mismatch};

/// Bytes of a request while files are made and read back.
const CHUNK: usize = 1 << 20;
/// How often the process says how far it is.
const TICK: Duration = Duration::from_millis(100);
/// What was not served in time is made up for, as long as it is no more than this.
const CATCH_UP: Duration = Duration::from_millis(250);

/// What the process is told, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// Where the files are.
    pub target: Target,
    /// How many.
    pub workers: u32,
    /// Bytes of each.
    pub bytes: u64,
    /// Of their content and of what is accessed.
    pub seed: u64,
    /// How often each block was written, one number a block, file after file.
    pub versions: PathBuf,
    /// What is done.
    pub task: Task,
}

/// Where the files are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Target {
    /// In this directory, past the page cache.
    Directory(PathBuf),
    /// One behind the other in the export behind this socket.
    Nbd(PathBuf),
}

/// What the process does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Task {
    /// Makes the files.
    Fill,
    /// Reads and writes.
    Run {
        /// Requests per second of all workers, if they are served.
        iops: u64,
        /// The share of writes.
        write_share: f64,
        /// For so many milliseconds.
        length_ms: u64,
    },
    /// Reads everything and compares it with what was written.
    Verify,
}

/// What the process says, a line of JSON each.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// Now and then: how far it is.
    Tick(Tick),
    /// In the end: bytes that were written durably, or read back and matched.
    Done {
        /// How many.
        bytes: u64,
    },
}

/// How far a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tick {
    /// Since its begin.
    pub at_s: f64,
    /// Requests that were served until then.
    pub served: u64,
    /// Writes among them.
    pub written: u64,
}

/// Carries an order out.
///
/// # Errors
/// The first I/O error, or the first block that is not what was written.
pub fn carry_out(order: &Order) -> Result<(), Failure> {
    let bytes = match order.task {
        Task::Fill => order.each(|worker, versions| fill(order, worker, versions))?,
        Task::Verify => order.each(|worker, versions| verify(order, worker, versions))?,
        Task::Run { iops, write_share, length_ms } => {
            let length = Duration::from_millis(length_ms);
            let run = Run::begin(iops, write_share, length);
            std::thread::scope(|scope| {
                let ticking = scope.spawn(|| run.tick());
                let bytes = order.each(|worker, versions| run.work(order, worker, versions));
                run.stop();
                ticking.join().unwrap_or_else(|_| Err(Failure::failed("a thread of the load crashed"))).and(bytes)
            })?
        }
    };
    say(&Said::Done { bytes })
}

fn say(said: &Said) -> Result<(), Failure> {
    output::print(&serde_json::to_string(said).map_err(Failure::failed)?)
}

impl Order {
    fn blocks(&self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX) / BLOCK
    }

    fn name(worker: u32) -> String {
        format!("worker-{worker}.dat")
    }

    /// What a block of a worker's file holds after so many writes.
    fn content(&self, worker: u32, version: u32) -> FileContent {
        FileContent { seed: self.seed, file: u64::from(worker) << 32 | u64::from(version) }
    }

    /// Has every worker do something at the same time with how often its blocks were written, and keeps that; the sum of what they
    /// answer.
    fn each(&self, work: impl Fn(u32, &mut [u32]) -> Result<u64, Failure> + Sync) -> Result<u64, Failure> {
        let mut versions = self.read_versions()?;
        let results: Vec<Result<u64, Failure>> = std::thread::scope(|scope| {
            let parts = (0..).zip(versions.chunks_mut(self.blocks().max(1)));
            let running: Vec<_> = parts
                .map(|(worker, part)| {
                    let work = &work;
                    scope.spawn(move || work(worker, part))
                })
                .collect();
            let crashed = || Err(Failure::failed("a worker of the load crashed"));
            running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| crashed())).collect()
        });
        self.write_versions(&versions)?;
        results.into_iter().sum()
    }

    fn read_versions(&self) -> Result<Vec<u32>, Failure> {
        let count = self.blocks() * self.workers as usize;
        if self.task == Task::Fill {
            return Ok(vec![0; count]);
        }
        let bytes = std::fs::read(&self.versions).doing(|| format!("cannot read {}", self.versions.display()))?;
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        let versions: Vec<u32> = bytes.chunks(4).map(word).collect();
        if versions.len() == count {
            Ok(versions)
        } else {
            Err(Failure::Failed(format!("{} is of another run", self.versions.display())))
        }
    }

    fn write_versions(&self, versions: &[u32]) -> Result<(), Failure> {
        let bytes: Vec<u8> = versions.iter().flat_map(|version| version.to_le_bytes()).collect();
        std::fs::write(&self.versions, bytes).doing(|| format!("cannot write {}", self.versions.display()))
    }

    fn doing<T>(&self, verb: &str, worker: u32, result: io::Result<T>) -> Result<T, Failure> {
        result.doing(|| match &self.target {
            Target::Directory(directory) => format!("cannot {verb} {}", directory.join(Self::name(worker)).display()),
            Target::Nbd(socket) => format!("cannot {verb} the export at {}", socket.display()),
        })
    }

    fn mismatch(&self, worker: u32, version: u32, mismatch: &Mismatch) -> Failure {
        let what = match mismatch.looks_like {
            LooksLike::Block { other_run: false, file, block }
                if (file >> 32, block) == (worker.into(), mismatch.block) =>
            {
                format!("what write {} of {version} left there", file & u64::from(u32::MAX))
            }
            _ => return Failure::Failed(format!("{} is not what was written: {mismatch}", Self::name(worker))),
        };
        Failure::Failed(format!(
            "{} is not what was written: block {} holds {what}",
            Self::name(worker),
            mismatch.block
        ))
    }
}

/// A worker's file.
enum Blocks {
    File(File),
    Nbd { client: surgetank_nbd::Client, base: u64 },
}

impl Blocks {
    fn open(order: &Order, worker: u32) -> io::Result<Self> {
        match &order.target {
            Target::Directory(directory) => {
                Self::open_file(order, &directory.join(Order::name(worker))).map(Self::File)
            }
            Target::Nbd(socket) => {
                let client = surgetank_nbd::Client::connect(socket)?;
                Ok(Self::Nbd { client, base: u64::from(worker) * order.bytes })
            }
        }
    }

    fn open_file(order: &Order, path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_DIRECT);
        match order.task {
            Task::Verify => options.open(path),
            Task::Run { .. } => options.write(true).open(path),
            Task::Fill => {
                let file = options.write(true).create_new(true).open(path)?;
                rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, order.bytes)?;
                Ok(file)
            }
        }
    }

    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        match self {
            Self::File(file) => file.read_exact_at(bytes, offset),
            Self::Nbd { client, base } => {
                bytes.copy_from_slice(&client.read(*base + offset, bytes.len())?);
                Ok(())
            }
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::File(file) => file.write_all_at(bytes, offset),
            Self::Nbd { client, base } => client.write(*base + offset, bytes),
        }
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Self::File(file) => file.sync_all(),
            Self::Nbd { mut client, .. } => {
                client.flush()?;
                client.disconnect()
            }
        }
    }
}

/// The memory of a buffer, which direct I/O takes.
fn alone(buffer: &mut Buffer) -> Result<&mut [u8], Failure> {
    buffer.unique().ok_or_else(|| Failure::failed("the buffer of a worker is shared"))
}

/// The ranges of a file as whole chunks and a rest.
fn chunks(bytes: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..bytes).step_by(CHUNK).map(move |offset| (offset, CHUNK.min(usize::try_from(bytes - offset).unwrap_or(CHUNK))))
}

fn fill(order: &Order, worker: u32, _: &mut [u32]) -> Result<u64, Failure> {
    let mut file = order.doing("create", worker, Blocks::open(order, worker))?;
    let mut buffer = Buffer::zeroed(CHUNK);
    let bytes = alone(&mut buffer)?;
    for (offset, length) in chunks(order.bytes) {
        order.content(worker, 0).fill(offset / BLOCK as u64, &mut bytes[..length]);
        order.doing("write", worker, file.write(offset, &bytes[..length]))?;
    }
    order.doing("make durable", worker, file.finish())?;
    Ok(order.bytes)
}

fn verify(order: &Order, worker: u32, versions: &mut [u32]) -> Result<u64, Failure> {
    let mut file = order.doing("open", worker, Blocks::open(order, worker))?;
    let (mut buffer, mut scratch) = (Buffer::zeroed(CHUNK), [0; BLOCK]);
    let bytes = alone(&mut buffer)?;
    for (offset, length) in chunks(order.bytes) {
        let found = &mut bytes[..length];
        order.doing("read", worker, file.read(offset, found))?;
        for (block, found) in (offset / BLOCK as u64..).zip(found.chunks_exact(BLOCK)) {
            let version = versions.get(block as usize).copied().unwrap_or_default();
            let same = order.content(worker, version).verify(block, found, &mut scratch);
            same.map_err(|mismatch| order.mismatch(worker, version, &mismatch))?;
        }
    }
    Ok(order.bytes)
}

/// A run that goes on.
struct Run {
    begin: Instant,
    length: Duration,
    interval: Duration,
    write_share: f64,
    /// When the next request is due, in nanoseconds since the begin.
    due: AtomicU64,
    served: AtomicU64,
    written: AtomicU64,
    ended: surgetank_report::Interrupt,
}

impl Run {
    fn begin(iops: u64, write_share: f64, length: Duration) -> Self {
        Self {
            begin: Instant::now(),
            length,
            interval: Duration::from_secs(1) / u32::try_from(iops.max(1)).unwrap_or(u32::MAX),
            write_share,
            due: AtomicU64::new(0),
            served: AtomicU64::new(0),
            written: AtomicU64::new(0),
            ended: surgetank_report::Interrupt::default(),
        }
    }

    fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// When the next request of anybody is to be made, after so much of the run.
    fn next_due(&self, elapsed: Duration) -> Duration {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let earliest = nanoseconds(elapsed.saturating_sub(CATCH_UP));
        let later = |due: u64| Some(due.max(earliest) + nanoseconds(self.interval));
        let due = self.due.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
        Duration::from_nanos(due.unwrap_or_else(|due| due).max(earliest))
    }

    /// Says how far it is until it has ended.
    fn tick(&self) -> Result<(), Failure> {
        loop {
            let ended = self.ended.sleep(TICK);
            let tick = Tick {
                at_s: self.elapsed().as_secs_f64(),
                served: self.served.load(Ordering::Relaxed),
                written: self.written.load(Ordering::Relaxed),
            };
            say(&Said::Tick(tick))?;
            if ended {
                return Ok(());
            }
        }
    }

    fn stop(&self) {
        self.ended.raise();
    }

    /// What one worker does; bytes that it wrote. When one fails, the others end.
    fn work(&self, order: &Order, worker: u32, versions: &mut [u32]) -> Result<u64, Failure> {
        let result = self.make_requests(order, worker, versions);
        if result.is_err() {
            self.due.store(u64::MAX / 2, Ordering::Relaxed);
        }
        result
    }

    fn make_requests(&self, order: &Order, worker: u32, versions: &mut [u32]) -> Result<u64, Failure> {
        let mut file = order.doing("open", worker, Blocks::open(order, worker))?;
        let mut random = Random::from_seed(order.seed ^ u64::from(worker));
        let (mut buffer, mut scratch, mut bytes) = (Buffer::zeroed(BLOCK), [0; BLOCK], 0);
        let block_bytes = alone(&mut buffer)?;
        loop {
            let due = self.next_due(self.elapsed());
            if due >= self.length {
                break;
            }
            std::thread::sleep(due.saturating_sub(self.elapsed()));
            let block = random.below(versions.len() as u64);
            let Some(version) = versions.get_mut(block as usize) else { break };
            let offset = block * BLOCK as u64;
            if random.chance(self.write_share) {
                *version += 1;
                order.content(worker, *version).fill(block, block_bytes);
                order.doing("write", worker, file.write(offset, block_bytes))?;
                bytes += BLOCK as u64;
                self.written.fetch_add(1, Ordering::Relaxed);
            } else {
                order.doing("read", worker, file.read(offset, block_bytes))?;
                let same = order.content(worker, *version).verify(block, block_bytes, &mut scratch);
                same.map_err(|mismatch| order.mismatch(worker, *version, &mismatch))?;
            }
            self.served.fetch_add(1, Ordering::Relaxed);
        }
        order.doing("make durable", worker, file.finish())?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(directory: &Path, task: Task) -> Order {
        let target = Target::Directory(directory.to_owned());
        Order { target, workers: 3, bytes: 40 * BLOCK as u64, seed: 5, versions: directory.join("versions"), task }
    }

    const RUN: Task = Task::Run { iops: 2000, write_share: 0.5, length_ms: 200 };

    /// A place for direct I/O: the directory for temporary files may be in memory.
    fn place() -> tempfile::TempDir {
        tempfile::tempdir_in("/var/tmp").unwrap()
    }

    #[test]
    fn what_was_written_is_verified_and_a_changed_byte_is_found() {
        let place = place();
        for task in [Task::Fill, RUN, Task::Verify, RUN, Task::Verify] {
            carry_out(&order(place.path(), task)).unwrap();
        }
        let written = order(place.path(), Task::Verify).read_versions().unwrap();
        assert!(written.iter().sum::<u32>() > 0);
        let file = OpenOptions::new().write(true).open(place.path().join("worker-1.dat")).unwrap();
        file.write_all_at(&[0xa5], 7 * BLOCK as u64 + 100).unwrap();
        let failure = carry_out(&order(place.path(), Task::Verify)).unwrap_err().to_string();
        assert!(failure.contains("worker-1.dat is not what was written: block 7 holds a damaged copy"), "{failure}");
    }

    #[test]
    fn an_older_content_of_a_block_is_told_as_that() {
        let place = place();
        carry_out(&order(place.path(), Task::Fill)).unwrap();
        let order = order(place.path(), Task::Verify);
        let mut versions = order.read_versions().unwrap();
        versions[42] = 3;
        order.write_versions(&versions).unwrap();
        let failure = carry_out(&order).unwrap_err().to_string();
        assert!(
            failure.contains("worker-1.dat is not what was written: block 2 holds what write 0 of 3 left there"),
            "{failure}"
        );
    }

    #[test]
    fn requests_are_evenly_spaced_and_long_delays_are_not_made_up_for() {
        let run = Run::begin(1000, 0.5, Duration::from_secs(1));
        let due = |elapsed_ms| run.next_due(Duration::from_millis(elapsed_ms)).as_millis();
        assert_eq!([due(0), due(0), due(200)], [0, 1, 2]);
        assert_eq!([due(800), due(800)], [550, 551]);
    }
}
