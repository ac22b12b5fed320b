//! A read cache over real volumes: whatever its members do, it is the backing volume, only faster.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::volume_common::read_caches::{MEMBER, SEGMENT, SOON, member, memory_member, new};
use crate::volume_common::{Driver, memory, slices};
use surgetank_device::volume::ReadCacheVolume;
use surgetank_device::volume::fault::{Effect, Kinds, Rule};
use surgetank_device::{
    Buffer, Failure, Fault, Faults, FileVolume, MemoryVolume, Operation, Options, Volume, VolumeIo,
};
use surgetank_model::Instant;
use surgetank_model::random::Random;
use surgetank_readcache::{Event, MemberId};

const SIZE: u64 = 1 << 20;
const BLOCK: u64 = 4096;
const WRITE: Operation = Operation::Write { fua: false };

fn backing(faults: &Faults) -> Box<dyn Volume> {
    Box::new(Fault::new(MemoryVolume::new(SIZE, 512).unwrap(), faults.clone()).unwrap())
}

/// Random requests, several at once, on a volume and a vector; what is in flight together does not overlap.
struct Model<'a> {
    driver: Driver<'a>,
    bytes: Vec<u8>,
    random: Random,
}

impl<'a> Model<'a> {
    fn new(volume: &'a mut dyn Volume, seed: u64) -> Self {
        let mut model =
            Self { driver: Driver::new(volume), bytes: vec![0; SIZE as usize], random: Random::from_seed(seed) };
        model.write_all();
        model
    }

    fn write_all(&mut self) {
        let data: Vec<u8> = (0..SIZE).map(|at| (at / 512 % 251) as u8).collect();
        self.driver.must(WRITE, 0, SIZE, slices(&memory(&data), 1, 512));
        self.bytes = data;
    }

    /// A round: one request in each of eight parts of the device, all at the same time.
    fn round(&mut self) {
        let part = SIZE / 8;
        let mut reads = Vec::new();
        for start in (0..SIZE).step_by(part as usize) {
            // Half a part is hot; a few requests are not whole blocks.
            let unit = if self.random.chance(0.1) { 512 } else { BLOCK };
            let first = self.random.below(part / unit / 2) * unit;
            let length = (1 + self.random.below(6)) * unit;
            let (offset, length) = (start + first, length.min(part - first));
            let range = offset as usize..(offset + length) as usize;
            match self.random.below(10) {
                0..7 => {
                    let buffer = memory(&vec![0xee; length as usize]);
                    let pieces = 1 + self.random.below(3) as usize;
                    let token = self.driver.submit(Operation::Read, offset, length, slices(&buffer, pieces, 512));
                    reads.push((token, range, buffer));
                }
                7 | 8 => {
                    let data: Vec<u8> = (0..length).map(|_| self.random.next_u64() as u8).collect();
                    let pieces = 1 + self.random.below(3) as usize;
                    self.driver.submit(WRITE, offset, length, slices(&memory(&data), pieces, 512));
                    self.bytes[range].copy_from_slice(&data);
                }
                _ => {
                    self.driver.submit(Operation::Discard, offset, length, Vec::new());
                    self.bytes[range].fill(0);
                }
            }
        }
        let results = self.driver.finish();
        assert!(results.values().all(|result| *result == Ok(())), "a request fails: {results:?}");
        for (_, range, buffer) in reads {
            // SAFETY: the read has ended.
            assert!(unsafe { buffer.bytes() } == &self.bytes[range.clone()], "{range:?} reads something else");
        }
    }

    fn check_all_of(&mut self, length: u64) {
        assert!(self.driver.read(0, length, 1) == self.bytes[..length as usize], "the device is not what was written");
    }

    fn check_all(&mut self) {
        self.check_all_of(SIZE);
    }
}

#[test]
fn members_that_fail_are_late_and_vanish_fail_no_request() {
    let healthy = Faults::new(1).unwrap();
    let faults: Vec<Faults> = (0..3).map(|seed| Faults::new(seed).unwrap()).collect();
    let members = faults.iter().enumerate().map(|(id, faults)| {
        let volume = MemoryVolume::new(MEMBER, 512).unwrap();
        member(id as u32, Box::new(Fault::new(volume, faults.clone()).unwrap()))
    });
    let (mut cache, handle) = new(backing(&healthy), members.collect());
    let mut model = Model::new(&mut cache, 2);
    for effect in [Effect::Fail(Failure::Io), Effect::FailAfter(Failure::Io), Effect::Short] {
        faults[0].add(Rule { chance: 0.05, ..Rule::always(Kinds::Any, effect) });
    }
    faults[1].add(Rule { chance: 0.3, ..Rule::always(Kinds::Any, Effect::Delay(Duration::from_micros(100))) });
    (0..300).for_each(|_| model.round());
    _ = handle.status();
    model.round();
    assert!(handle.status().hit_bytes > 0);
    faults[1].vanish();
    (0..100).for_each(|_| model.round());
    let gone = MemberId(1);
    let events = handle.take_events();
    assert!(events.contains(&Event::Failed { member: gone, failure: surgetank_readcache::effect::IoFailure::Gone }));
    assert!(events.contains(&Event::Released(gone)));
    assert!(handle.take_released().iter().any(|member| member.id == gone));
    faults[0].vanish();
    faults[2].vanish();
    (0..50).for_each(|_| model.round());
    model.check_all();
}

#[test]
fn what_is_read_twice_comes_from_the_cache_and_needs_no_backing_volume() {
    let faults = Faults::new(1).unwrap();
    let (mut cache, handle) = new(backing(&faults), vec![memory_member(0), memory_member(1)]);
    let mut model = Model::new(&mut cache, 3);
    let expected = model.bytes[..128 << 10].to_vec();
    assert!(model.driver.read(0, 128 << 10, 1) == expected);
    faults.add(Rule::always(Kinds::Reads, Effect::Fail(Failure::Gone)));
    assert!(model.driver.read(0, 128 << 10, 3) == expected);
    let elsewhere = slices(&memory(&[0; 4096]), 1, 512);
    assert_eq!(model.driver.one(Operation::Read, 512 << 10, 4096, elsewhere), Err(Failure::Gone), "as it fails itself");
    model.driver.poll();
    _ = handle.status();
    model.driver.poll();
    let status = handle.status();
    assert_eq!((status.members, status.hit_bytes), (2, 128 << 10));
}

/// Once a read was answered its memory is somebody else's: what a member answers later goes nowhere.
#[test]
fn a_read_that_a_member_does_not_answer_goes_to_the_backing_volume_and_its_late_answer_nowhere() {
    let (healthy, faults) = (Faults::new(1).unwrap(), Faults::new(2).unwrap());
    let volume = MemoryVolume::new(MEMBER, 512).unwrap();
    let late = member(0, Box::new(Fault::new(volume, faults.clone()).unwrap()));
    let (mut cache, handle) = new(backing(&healthy), vec![late]);
    let mut model = Model::new(&mut cache, 3);
    (0..2).for_each(|_| model.check_all_of(64 << 10));
    let expected = model.bytes[..8192].to_vec();
    let timeout = Duration::from_millis(300);
    cache.set_timeout(timeout);
    let read = |token, offset, buffer: &Buffer| VolumeIo {
        token,
        operation: Operation::Read,
        offset,
        length: BLOCK,
        memory: slices(buffer, 1, 512).into_iter().collect(),
    };
    let mut now = Instant::ZERO + Duration::from_secs(3600);
    let poll = |cache: &mut ReadCacheVolume, now| {
        let mut ended = Vec::new();
        (0..4).for_each(|_| cache.poll(now, &mut ended));
        ended.iter().map(|completion| (completion.token, completion.result)).collect::<Vec<_>>()
    };
    faults.add(Rule::once(Kinds::Reads, Effect::Stuck));
    let (first, second) = (memory(&[0; BLOCK as usize]), memory(&[0; BLOCK as usize]));
    cache.submit(now, read(1, 0, &first));
    cache.submit(now, read(2, BLOCK, &second));
    assert_eq!(poll(&mut cache, now), [(2, Ok(()))], "the member answers others");
    assert!(cache.next_deadline().is_some_and(|at| at <= now + timeout));
    now += timeout;
    assert_eq!(poll(&mut cache, now), [(1, Ok(()))]);
    // SAFETY: no I/O of ours is in flight on it.
    let bytes = |buffer: &Buffer| unsafe { buffer.bytes() }.to_vec();
    assert!(bytes(&first) == expected[..4096] && bytes(&second) == expected[4096..]);
    first.slice(0, BLOCK as usize).zero();
    faults.release();
    assert_eq!(poll(&mut cache, now), []);
    assert!(bytes(&first).iter().all(|byte| *byte == 0), "a late answer writes to memory of an answered read");
    let looked = handle.look();
    assert_eq!(poll(&mut cache, now), []);
    assert_eq!(looked.wait(SOON), Some(Ok(())));
    let status = handle.status();
    assert_eq!((status.members, status.failed_reads), (1, 1), "{status:?}");
    // Of all, read twice, and of both: the one that was not answered is no hit.
    let each = (64 << 10) + BLOCK;
    assert_eq!((status.hit_bytes, status.missed_bytes), (each, each), "{status:?}");
    // One that answers nothing at all serves no more.
    faults.add(Rule::always(Kinds::Any, Effect::Stuck));
    cache.submit(now, read(3, BLOCK, &second));
    assert_eq!(poll(&mut cache, now), []);
    now += timeout;
    assert_eq!(poll(&mut cache, now), [(3, Ok(()))]);
    let events = handle.take_events();
    let gone = surgetank_readcache::effect::IoFailure::Gone;
    assert!(events.contains(&Event::Failed { member: MemberId(0), failure: gone }), "{events:?}");
    assert_eq!(handle.take_released().len(), 1);
    faults.release();
    cache.submit(now, read(4, 0, &first));
    assert_eq!(poll(&mut cache, now), [(4, Ok(()))]);
    assert!(bytes(&first) == expected[..4096]);
}

/// A thread that reads and writes a cache, and checks all of it in the end.
struct Server {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: thread::JoinHandle<()>,
}

impl Server {
    fn start(mut cache: ReadCacheVolume) -> Self {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = thread::spawn({
            let (stop, rounds) = (stop.clone(), rounds.clone());
            move || {
                let mut model = Model::new(&mut cache, 4);
                while !stop.load(Ordering::Relaxed) {
                    model.round();
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
                model.check_all();
            }
        });
        Self { stop, rounds, thread }
    }

    /// Waits until it has gone through so many rounds more.
    fn go_through(&self, count: u64) {
        let begun = self.rounds.load(Ordering::Relaxed);
        while self.rounds.load(Ordering::Relaxed) < begun + count && !self.thread.is_finished() {
            thread::yield_now();
        }
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// Members come and go while another thread reads and writes, and every one comes back.
#[test]
fn members_are_swapped_from_another_thread() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: String, size: u64| {
        let path = directory.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(size).unwrap();
        Box::new(FileVolume::open(path, Options { logical_block: Some(512), ..Options::default() }).unwrap())
    };
    let members = (0..2).map(|id| member(id, file(format!("member {id}"), MEMBER))).collect();
    let (cache, handle) = new(file("backing".to_owned(), SIZE), members);
    let server = Server::start(cache);
    for id in 2..12 {
        assert_eq!(handle.remove(MemberId(id - 2)).wait(SOON), Some(Ok(())));
        assert_eq!(handle.add(member(id, file(format!("member {id}"), MEMBER))).wait(SOON), Some(Ok(())));
        server.go_through(5);
    }
    let small = handle.add(member(50, file("small".to_owned(), 4096))).wait(SOON);
    assert!(small.is_some_and(|answer| answer.is_err_and(|refusal| refusal.0.contains(": use a larger one"))));
    let (mut released, until) = (Vec::new(), std::time::Instant::now() + SOON);
    // The last one may have I/Os in flight.
    while released.len() < 11 && std::time::Instant::now() < until && !server.thread.is_finished() {
        released.extend(handle.take_released().iter().map(|member| member.id.0));
        thread::yield_now();
    }
    server.stop();
    released.sort_unstable();
    assert_eq!(released, [(0..10).collect(), vec![50]].concat());
    assert!(handle.remove(MemberId(10)).wait(SOON).is_some_and(|answer| answer.is_err()), "it was closed");
}

/// While another thread reads and writes, the cache gets more and less of its members, and what it does not have is not on their disk.
#[test]
fn a_cache_grows_and_shrinks_and_members_keep_nothing_of_what_it_lost() {
    let directory = tempfile::tempdir().unwrap();
    let path = |id: u32| directory.path().join(format!("member {id}"));
    let file = |id: u32| {
        std::fs::File::create(path(id)).unwrap().set_len(MEMBER).unwrap();
        Box::new(FileVolume::open(path(id), Options { logical_block: Some(512), ..Options::default() }).unwrap())
    };
    let (cache, handle) = new(backing(&Faults::new(1).unwrap()), (0..2).map(|id| member(id, file(id))).collect());
    let server = Server::start(cache);
    let held = || handle.observe().wait(SOON).expect("it is served").status.held_bytes;
    let on_disk = || (0..2).map(|id| std::fs::metadata(path(id)).unwrap().blocks() * 512).sum::<u64>();
    server.go_through(20);
    for limit in [2 * MEMBER, MEMBER, 10 * u64::from(SEGMENT), 0, MEMBER / 2, 2 * MEMBER, 5 * u64::from(SEGMENT)] {
        let before = held();
        _ = handle.take_events();
        assert_eq!(handle.set_limit(Some(limit)).wait(SOON), Some(Ok(())));
        if before > limit {
            let until = std::time::Instant::now() + SOON;
            while !handle.take_events().contains(&Event::Shrunk) && std::time::Instant::now() < until {
                thread::yield_now();
            }
        }
        server.go_through(20);
        let (held, on_disk) = (held(), on_disk());
        // A file system counts the blocks of its own that name those of a file.
        let on_disk = on_disk.saturating_sub(2 * 8192);
        assert!(held <= limit && on_disk <= limit, "{held} bytes are held and {on_disk} on disk, of {limit}");
    }
    let observed = handle.observe().wait(SOON).expect("it is served");
    assert!(observed.reads.count > 0 && observed.member_reads.count > 0 && observed.backing_reads.count > 0);
    server.stop();
    assert_eq!(handle.observe().wait(SOON), None, "it was closed");
}

/// Two read caches, one over the other: members of both fail, vanish and are replaced, both become smaller and larger, and every byte is the backing
/// volume's.
#[test]
fn two_levels_that_lose_members_and_change_their_sizes_are_the_backing_volume() {
    let failing = |id: u32, seed: u64| {
        let faults = Faults::new(seed).unwrap();
        let volume = MemoryVolume::new(MEMBER, 512).unwrap();
        (member(id, Box::new(Fault::new(volume, faults.clone()).unwrap())), faults)
    };
    let members = |first: u32| (0..2).map(|id| failing(first + id, u64::from(first + id))).collect::<Vec<_>>();
    let (lower, upper): (Vec<_>, Vec<_>) = (members(0), members(10));
    let (lower, mut lower_faults): (Vec<_>, Vec<_>) = lower.into_iter().unzip();
    let (upper, mut upper_faults): (Vec<_>, Vec<_>) = upper.into_iter().unzip();
    let (second, beneath) = new(backing(&Faults::new(1).unwrap()), lower);
    let (first, above) = new(Box::new(second), upper);
    let server = Server::start(first);
    server.go_through(50);
    let hits = |handle: &surgetank_device::volume::read_cache::ReadCacheHandle| {
        let observed = handle.observe().wait(SOON).expect("it is served");
        observed.status.hit_bytes
    };
    assert!(hits(&above) > 0);
    // What the first level has no room for the second one has.
    let before = hits(&beneath);
    assert_eq!(above.set_limit(Some(4 * u64::from(SEGMENT))).wait(SOON), Some(Ok(())));
    server.go_through(100);
    assert!(hits(&beneath) > before, "the second level answers");
    for round in 0..12_u32 {
        let (handle, faults, base) = match round % 2 {
            0 => (&above, &mut upper_faults, 20),
            _ => (&beneath, &mut lower_faults, 40),
        };
        match round % 6 {
            0 | 1 => drop(faults[0].add(Rule { chance: 0.05, ..Rule::always(Kinds::Any, Effect::Fail(Failure::Io)) })),
            2 | 3 => {
                faults[0].vanish();
                server.go_through(20);
                let (new, fault) = failing(base + round, u64::from(round));
                assert_eq!(handle.add(new).wait(SOON), Some(Ok(())));
                faults[0] = fault;
            }
            _ => {
                for limit in [2 * MEMBER, 5 * u64::from(SEGMENT), 0, MEMBER] {
                    assert_eq!(handle.set_limit(Some(limit)).wait(SOON), Some(Ok(())));
                    server.go_through(10);
                }
            }
        }
        server.go_through(20);
    }
    server.stop();
}
