//! How fast the volumes are by themselves: `cargo run --release --example volume_bench [DIRECTORY [SECONDS]]`.
//!
//! One thread, submit and poll in a loop, over memory, over read caches of memory, and over a file in the directory (default: the temporary one).
#![allow(clippy::print_stdout, reason = "the figures are the output")]

use std::time::{Duration, Instant as Clock};

use surgetank_device::volume::read_cache::{Member, ReadCacheVolume};
use surgetank_device::{
    Buffer, BufferPool, Completion, FileVolume, MemoryVolume, Operation, Options, Poller, Throttle, Volume, VolumeIo,
};
use surgetank_model::{Bandwidth, Instant, Iops, Limits};
use surgetank_readcache::{Config, MemberId};

const SIZE: u64 = 256 << 20;
const WRITE: Operation = Operation::Write { fua: false };

/// A kind of load.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    operation: Operation,
    length: u64,
    depth: usize,
    random: bool,
}

const LOADS: [Load; 5] = [
    Load { name: "write 1 MiB sequential, depth 8", operation: WRITE, length: 1 << 20, depth: 8, random: false },
    Load {
        name: "read 1 MiB sequential, depth 8",
        operation: Operation::Read,
        length: 1 << 20,
        depth: 8,
        random: false,
    },
    Load { name: "write 4 KiB random, depth 32", operation: WRITE, length: 4096, depth: 32, random: true },
    Load { name: "read 4 KiB random, depth 32", operation: Operation::Read, length: 4096, depth: 32, random: true },
    Load { name: "read 4 KiB random, depth 1", operation: Operation::Read, length: 4096, depth: 1, random: true },
];

/// Runs the load; operations per second, and microseconds of processor time per operation.
fn run(volume: &mut dyn Volume, load: Load, duration: Duration, origin: Clock) -> (f64, f64) {
    let clock = || Instant::from_nanoseconds(origin.elapsed().as_nanos() as u64);
    let buffers: Vec<Buffer> = (0..load.depth).map(|_| Buffer::zeroed(load.length as usize)).collect();
    let poller = Poller::new().expect("epoll");
    if let Some(descriptor) = volume.descriptor() {
        poller.add(descriptor, 0).expect("epoll");
    }
    let places = volume.size() / load.length;
    let (mut place, mut done) = (0u64, 0u64);
    let mut idle: Vec<u64> = (0..load.depth as u64).collect();
    let (mut completions, mut keys): (Vec<Completion>, Vec<u64>) = (Vec::new(), Vec::new());
    let (start, processor) = (Clock::now(), processor_us());
    loop {
        let now = clock();
        let running = start.elapsed() < duration;
        if !running && idle.len() == load.depth {
            break;
        }
        while running && let Some(token) = idle.pop() {
            place = if load.random { place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1) } else { place + 1 };
            let offset = (place >> if load.random { 33 } else { 0 }) % places * load.length;
            let memory = vec![buffers[token as usize].slice(0, load.length as usize)];
            volume.submit(
                now,
                VolumeIo { token, operation: load.operation, offset, length: load.length, memory: memory.into() },
            );
        }
        volume.poll(now, &mut completions);
        if completions.is_empty() {
            let timeout = volume.next_deadline().map(|deadline| deadline - clock());
            poller.wait(timeout, &mut keys).expect("epoll");
        }
        for completion in completions.drain(..) {
            completion.result.expect("the volume works");
            idle.push(completion.token);
            done += 1;
        }
    }
    (done as f64 / start.elapsed().as_secs_f64(), (processor_us() - processor) / done as f64)
}

fn report(title: &str, volume: &mut dyn Volume, duration: Duration) {
    let origin = Clock::now();
    println!("{title}");
    for load in LOADS {
        let (per_second, processor_us) = run(volume, load, duration, origin);
        let mib_s = per_second * load.length as f64 / f64::from(1 << 20);
        println!("  {:34} {per_second:10.0} IOPS {mib_s:10.0} MiB/s {processor_us:9.2} us CPU each", load.name);
    }
}

/// Processor time of this thread, in microseconds; unlike elapsed time it does not depend on what else runs.
fn processor_us() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// Writes the whole volume once, so that no load pays for its first use.
fn fill(volume: &mut dyn Volume) {
    let (buffer, mut completions) = (Buffer::zeroed(1 << 20), Vec::new());
    for token in 0..volume.size() >> 20 {
        let memory = vec![buffer.slice(0, 1 << 20)];
        let io = VolumeIo { token, operation: WRITE, offset: token << 20, length: 1 << 20, memory: memory.into() };
        volume.submit(Instant::ZERO, io);
        while completions.is_empty() {
            volume.poll(Instant::ZERO, &mut completions);
        }
        completions.clear();
    }
}

/// Nanoseconds that one call takes.
fn nanoseconds(mut call: impl FnMut()) -> f64 {
    let (mut calls, start) = (0u32, Clock::now());
    while start.elapsed() < Duration::from_millis(200) {
        for _ in 0..16 {
            call();
        }
        calls += 16;
    }
    start.elapsed().as_nanos() as f64 / f64::from(calls)
}

fn buffers() {
    println!("a buffer that is allocated, written to and dropped");
    let pool = BufferPool::new(16 << 20);
    for length in [4096, 1 << 20] {
        let touch = |mut buffer: Buffer| buffer.unique().expect("no other handle").fill(1);
        let fresh = nanoseconds(|| touch(Buffer::zeroed(length)));
        let pooled = nanoseconds(|| touch(pool.take(length)));
        println!("  {length:8} bytes: fresh {fresh:9.0} ns, from the pool {pooled:9.0} ns");
    }
}

/// A read cache whose members have so many bytes together, over memory: what its decisions, copies and checksums cost.
fn read_cache(size: u64) -> ReadCacheVolume {
    let memory = |size| Box::new(MemoryVolume::new(size, 512).expect("memory"));
    let (mut cache, handle) = ReadCacheVolume::new(memory(SIZE), Config::new(SIZE, 512)).expect("the sizes fit");
    for id in 0..4 {
        let member = Member { id: MemberId(id), name: format!("member {id}"), volume: memory(size / 4) };
        let answer = handle.add(member);
        cache.poll(Instant::ZERO, &mut Vec::new());
        answer.wait(Duration::from_secs(1)).expect("it was polled").expect("the member fits");
    }
    fill(&mut cache);
    cache
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().map_or_else(std::env::temp_dir, Into::into);
    let seconds = arguments.next().and_then(|seconds| seconds.parse().ok()).unwrap_or(1.0);
    let duration = Duration::from_secs_f64(seconds);
    buffers();

    let mut memory = MemoryVolume::new(SIZE, 512).expect("memory");
    fill(&mut memory);
    report("memory", &mut memory, duration);

    for (title, size) in
        [("a read cache that has room for all of it", SIZE + SIZE / 8), ("one for a quarter", SIZE / 4)]
    {
        report(title, &mut read_cache(size), duration);
    }

    let limits = Limits { bandwidth: Some(Bandwidth::from_mib_s(250)), iops: Some(Iops::new(8000)) };
    let mut throttled = Throttle::new(memory, limits, Instant::ZERO);
    report("memory, throttled to 250 MiB/s and 8000 IOPS", &mut throttled, duration);

    let path = directory.join("surgetank-volume-bench");
    std::fs::File::create(&path).and_then(|file| file.set_len(SIZE)).expect("the directory is writable");
    let mut file = FileVolume::open(&path, Options::default()).expect("the file opens");
    // The name may go as soon as the file is open.
    std::fs::remove_file(&path).expect("the file is ours");
    file.notes().iter().for_each(|note| println!("{note}"));
    fill(&mut file);
    report("file", &mut file, duration);
}
