//! How long a device is away after its daemon was killed in a boost, and what memory that takes, as one JSON document:
//! `cargo bench --package surgetank-daemon --bench recovery -- --gib=10 --mib-s=128`, or with its bars
//! `make bench ARGS=recovery`.
//!
//! A log full of synced writes of 4 KiB is written by the engine itself; of its segments only those are kept on the disk that a
//! recovery reads (`--whole` keeps all of them, and `--plain` writes a log without indexes). Another process reads it back
//! through the daemon's shard, from a file behind the throttle.

#![expect(clippy::print_stdout, reason = "the answer")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant as Stopwatch};

use crossbeam_channel::unbounded;
use rustix::event::{EventfdFlags, eventfd};
use surgetank_cache::format::{BLOCK, Geometry, SEGMENTS_PER_PAGE, Sealer};
use surgetank_cache::{Attach, CacheMode, Config, Effect, Engine, Epoch, Event, Outcome, ReadFill};
use surgetank_daemon::clock::Clock;
use surgetank_daemon::owner::Entry;
use surgetank_daemon::shard::{Command as Order, Overhead, Parts, Shard};
use surgetank_device::front::{Submission, Token};
use surgetank_device::volume::{Completion, Failure, Operation as Io, VolumeIo};
use surgetank_device::{Buffer, FileVolume, Front, Options, Throttle, Volume};
use surgetank_model::{Bandwidth, Instant, Limits, Operation, Request, RequestId};
use surgetank_policy::fair::Windows;

const EPOCH: Epoch = Epoch([7; 16]);
const BLOCK64: u64 = BLOCK as u64;
const GIB: u64 = 1 << 30;
/// The device is so much larger than the cache: hardly two blocks of the log lie beside each other.
const DEVICE_TIMES: u64 = 4;

struct Setting {
    gib: u64,
    mib_s: u64,
    plain: bool,
    whole: bool,
}

impl Setting {
    fn cache_size(&self) -> u64 {
        self.gib * GIB
    }

    fn device_size(&self) -> u64 {
        (DEVICE_TIMES * self.cache_size()).next_power_of_two()
    }

    fn config(&self) -> Config {
        Config {
            size: self.device_size(),
            logical_block: 512,
            backing_limits: Limits::NONE,
            outage_patience: Duration::from_secs(600),
        }
    }

    fn attach(&self) -> Attach {
        let cache_size = self.cache_size();
        Attach {
            epoch: EPOCH,
            cache_size,
            cache_limits: Limits::NONE,
            split: false,
            read_fill: ReadFill::Never,
            indexes: Geometry::wants_indexes(cache_size) && !self.plain,
        }
    }
}

/// A line of `/proc/self/status` in bytes.
fn memory(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with(name)).expect("the kernel says it");
    let kib = line.split_whitespace().nth(1).and_then(|number| number.parse::<f64>().ok());
    kib.expect("a number of KiB") * 1024.0
}

/// Writes a log: an engine whose backing volume never answers.
struct Filling<'a> {
    setting: &'a Setting,
    geometry: Geometry,
    engine: Engine,
    sealer: Sealer,
    file: File,
    /// Segments that a recovery would read, in memory.
    kept: BTreeMap<u32, Vec<u8>>,
    indexed: BTreeSet<u32>,
}

impl Filling<'_> {
    fn turn(&mut self) {
        while let Some(effect) = self.engine.next_effect() {
            let (id, outcome) = match effect {
                Effect::Append { id, offset, mut summary, data, .. } => {
                    let blocks: Vec<[u8; BLOCK as usize]> =
                        data.iter().map(|_| content(summary.place.sequence)).collect();
                    let block = self.sealer.seal(&mut summary, blocks.iter().map(|block| &block[..]));
                    self.append(offset, summary.place.segment, &block[..], &blocks);
                    (id, Outcome::Appended(summary))
                }
                Effect::WriteSuperblock { id, offset, superblock } => (id, self.put(offset, &superblock.encode()[..])),
                Effect::WriteTable { id, offset, page } => {
                    let first = page.page * SEGMENTS_PER_PAGE;
                    let indexed = (first..).zip(&page.indexed).filter(|(_, indexed)| **indexed);
                    for (segment, _) in indexed.filter(|_| !self.setting.whole) {
                        self.kept.remove(&segment);
                        self.indexed.insert(segment);
                    }
                    (id, self.put(offset, &page.encode()[..]))
                }
                Effect::WriteIndex { id, offset, bytes } => (id, self.put(offset, &bytes)),
                Effect::Flush { id, .. } | Effect::PersistOwner { id, .. } => (id, Outcome::Done),
                // The drain comes no further than this.
                Effect::Read { .. } | Effect::Allocate { .. } | Effect::Reply { .. } => continue,
                other => panic!("{other:?}"),
            };
            self.engine.complete(Instant::ZERO, id, outcome);
        }
        while self.engine.next_event().is_some() {}
    }

    fn append(&mut self, offset: u64, segment: u32, summary: &[u8], blocks: &[[u8; BLOCK as usize]]) {
        if self.setting.whole {
            self.put(offset, &[summary, blocks.as_flattened()].concat());
            return;
        }
        let size = self.geometry.segment_size as usize;
        let kept = self.kept.entry(segment).or_insert_with(|| vec![0; size]);
        let at = (offset - self.geometry.segment_offset(segment)) as usize;
        for (at, block) in
            (at..).step_by(BLOCK as usize).zip(std::iter::once(summary).chain(blocks.iter().map(|block| &block[..])))
        {
            kept[at..at + BLOCK as usize].copy_from_slice(block);
        }
    }

    fn put(&self, offset: u64, bytes: &[u8]) -> Outcome {
        self.file.write_all_at(bytes, offset).expect("the disk has room");
        Outcome::Done
    }
}

fn content(sequence: u64) -> [u8; BLOCK as usize] {
    let mut block = [0; BLOCK as usize];
    block[..8].copy_from_slice(&sequence.to_le_bytes());
    block
}

/// Fills a log but for a hundredth; answers how many blocks of the device are in it.
fn fill(setting: &Setting, path: &Path) -> u64 {
    let file = File::create(path).expect("a new file");
    file.set_len(setting.cache_size()).expect("sparse");
    let mut engine = Engine::new(setting.config());
    engine.adopt(Instant::ZERO, setting.attach()).expect("nothing is in use");
    let attach = setting.attach();
    let geometry = Geometry::divide(attach.cache_size, Default::default(), attach.indexes).expect("it is large enough");
    let (kept, indexed) = (BTreeMap::new(), BTreeSet::new());
    let mut filling = Filling { setting, geometry, engine, sealer: Sealer::default(), file, kept, indexed };
    filling.turn();
    filling.engine.set_mode(Instant::ZERO, CacheMode::Absorb);
    let blocks_of_device = setting.device_size() / BLOCK64;
    // A record takes two blocks.
    let writes = setting.cache_size() / (2 * BLOCK64) / 100 * 97;
    for number in 0..writes {
        // An odd factor goes through all blocks of a power of two.
        let block = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % blocks_of_device;
        let request =
            |id: u64, operation, length| Request { id: RequestId(id), operation, offset: block * BLOCK64, length };
        filling.engine.submit(Instant::ZERO, request(2 * number + 1, Operation::Write { fua: false }, BLOCK64));
        filling.turn();
        let flush = Request { offset: 0, ..request(2 * number + 2, Operation::Flush, 0) };
        filling.engine.submit(Instant::ZERO, flush);
        filling.turn();
    }
    for (segment, bytes) in std::mem::take(&mut filling.kept) {
        filling.put(geometry.segment_offset(segment), &bytes);
    }
    filling.file.sync_all().expect("the disk works");
    let status = filling.engine.status();
    assert_eq!(status.dirty_bytes, writes * BLOCK64, "{status:?}");
    writes
}

/// Counts what is read.
struct Counted<V> {
    volume: V,
    read: Arc<AtomicU64>,
}

impl<V: Volume> Volume for Counted<V> {
    fn size(&self) -> u64 {
        self.volume.size()
    }

    fn logical_block(&self) -> u32 {
        self.volume.logical_block()
    }

    fn submit(&mut self, now: Instant, io: VolumeIo) {
        if io.operation == Io::Read {
            self.read.fetch_add(io.length, Ordering::Relaxed);
        }
        self.volume.submit(now, io);
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        self.volume.poll(now, completions);
    }

    fn has_ended(&mut self) -> bool {
        self.volume.has_ended()
    }

    fn resize_check(&mut self) -> Result<u64, Failure> {
        self.volume.resize_check()
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.volume.next_deadline()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.volume.descriptor()
    }
}

/// No client.
struct Silent(OwnedFd);

impl Front for Silent {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn has_arrived(&mut self) -> bool {
        false
    }

    fn receive(&mut self, _: usize, _: &mut Vec<Submission>) {}

    fn reply(&mut self, _: Token, _: Result<(), i32>, _: Option<Buffer>) {}

    fn flush(&mut self) {}

    fn address(&self) -> String {
        String::new()
    }

    fn set_size(&mut self, _: u64) {}
}

/// Reads the log back and says what that took.
fn recover(setting: &Setting, path: &Path, blocks: u64) {
    let backing = path.with_extension("backing");
    File::create(&backing).and_then(|file| file.set_len(setting.device_size())).expect("sparse");
    let (tell, events) = unbounded();
    let (handle, commands) = Shard::channel().expect("a thread can wait");
    let owner_thread = handle.clone();
    let parts = Parts {
        name: "recovery".to_owned(),
        engine: Engine::awaiting_recovery(setting.config()),
        front: Box::new(Silent(eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor"))),
        backing: Box::new(FileVolume::open(&backing, Options::default()).expect("our own file")),
        overhead: Overhead::default(),
        windows: Windows::new(Limits::NONE, false),
        clock: Clock::start(),
        events: Box::new(move |event| drop(tell.send((Stopwatch::now(), event)))),
        record: Box::new(move |entry| {
            if let Entry::Owner { effect, .. } | Entry::Healed { effect, .. } = entry {
                owner_thread.send(Order::Persisted { effect, durable: true }).expect("the shard is there");
            }
        }),
    };
    let clock = parts.clock;
    let limits = Limits { bandwidth: Some(Bandwidth::from_mib_s(setting.mib_s)), iops: None };
    let volume = FileVolume::open(path, Options::default()).expect("our own file");
    let volume = Throttle::new(volume, limits, clock.now());
    let read = Arc::new(AtomicU64::new(0));
    let volume = Box::new(Counted { volume, read: Arc::clone(&read) });
    let _shard = Shard::start(handle.clone(), commands, parts).expect("a thread");
    std::fs::write("/proc/self/clear_refs", "5").expect("the peak is forgotten");
    let before = memory("VmRSS");
    let begun = Stopwatch::now();
    let attach = setting.attach();
    handle.ask(|answer| Order::Recover { volume, attach, answer }).expect("the shard is there").expect("it begins");
    let (at, event) = events.recv().expect("it ends");
    let read = read.load(Ordering::Relaxed);
    let (resident, peak) = (memory("VmRSS") - before, memory("VmHWM") - before);
    assert_eq!(event, Event::Recovered { dirty_bytes: blocks * BLOCK64 });
    let seconds = at.duration_since(begun).as_secs_f64();
    println!(
        "{{\"gib\": {}, \"seconds\": {seconds:.3}, \"read_bytes\": {read}, \"read_s\": {:.3}, \"peak_bytes\": {peak}, \
         \"resident_bytes\": {resident}, \"blocks\": {blocks}}}",
        setting.gib,
        read as f64 / (setting.mib_s << 20) as f64,
    );
    // Draining it is another matter.
    std::process::exit(0);
}

fn main() {
    let flag = |name: &str| std::env::args().find_map(|flag| flag.strip_prefix(name).map(str::to_owned));
    let number = |name: &str, default: u64| flag(name).and_then(|text| text.parse().ok()).unwrap_or(default);
    let has = |name: &str| std::env::args().any(|flag| flag == name);
    let setting = Setting {
        gib: number("--gib=", 10),
        mib_s: number("--mib-s=", 128),
        plain: has("--plain"),
        whole: has("--whole"),
    };
    if let Some(path) = flag("--recover=") {
        return recover(&setting, &PathBuf::from(path), number("--blocks=", 0));
    }
    // Whoever runs it may want to remove what it leaves when it is killed.
    let scratch = std::env::var_os("SURGETANK_SCRATCH").unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    let scratch = tempfile::tempdir_in(scratch).expect("a directory on a disk");
    let path = scratch.path().join("cache");
    let blocks = fill(&setting, &path);
    let status = Command::new(std::env::current_exe().expect("a program has a file"))
        .args(std::env::args().skip(1))
        .arg(format!("--recover={}", path.display()))
        .arg(format!("--blocks={blocks}"))
        .status()
        .expect("it starts");
    assert!(status.success(), "{status}");
}
