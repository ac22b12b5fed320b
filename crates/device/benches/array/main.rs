//! Arrays over volumes in memory, beside a single volume and beside themselves while a member is replaced, as one JSON document:
//! `cargo bench --package surgetank-device --bench array -- PART…`, or with its bars `make bench ARGS=array`.
//!
//! `memory`: without limits, beside one volume of the same total. `throttled`: over members with limits, beside one such member
//! times their number. `rotation`: with a member being replaced, beside without. `fill`: what a replacement of all members
//! copies of a disk that is a fifth full, in order or, with `--image=FILE`, where that sparse file has data.

#![expect(clippy::print_stdout, reason = "the answer")]

mod load;
mod rig;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{SeekFrom, seek};
use serde_json::{Value, json};
use surgetank_device::{Operation, Volume, VolumeIo};
use surgetank_model::{Bandwidth, Iops, Limits};

use load::{Clock, Driver, Load};
use rig::{MEMBERS, Rig, volume};

const MIB: u64 = 1 << 20;
/// Bytes of the arrays, and of the single volume in memory.
const SIZE: u64 = 1 << 30;
/// Limits of a throttled member.
const MIB_S: u64 = 64;
const IOPS: u64 = 2000;
/// Limits of a member in the rotation, those of a small volume on burst credits, and the rate of the copy.
const BURST: (u64, u64) = (128, 3000);
const COPY_MIB_S: u64 = 32;
/// Share of the disk that is written before it is copied in order.
const FULL: f64 = 0.2;

struct Times {
    turns: u32,
    each: Duration,
}

fn load(writes: f64, block: u64, depth: usize) -> Load {
    Load { writes, block, random: block < MIB, depth }
}

/// Name, share of writes, bytes and depth (for each throttled member). Of random requests some member has none now and then: N
/// requests keep M members busy N ÷ (N + M − 1) of the time, if they take as long as chance has it; 0.986 for 64 a member.
const LOADS: [(&str, f64, u64, usize); 4] = [
    ("1 MiB sequential writes", 1.0, MIB, 8),
    ("1 MiB sequential reads", 0.0, MIB, 8),
    ("4 KiB random writes", 1.0, 4096, 64),
    ("4 KiB random reads", 0.0, 4096, 64),
];

fn row(name: &str, block: u64, turns: &[[f64; 2]]) -> Value {
    json!({ "name": name, "unit": if block < MIB { "IOPS" } else { "MiB/s" }, "turns": turns })
}

/// An array without limits, beside one volume.
fn memory(times: &Times) -> Vec<Value> {
    let clock = Clock::new();
    let mut rig = Rig::new(SIZE, Limits::NONE, None, clock);
    let mut single = volume(SIZE, Limits::NONE, clock);
    let mut drivers = [Driver::new(&mut rig.array, clock, SIZE), Driver::new(&mut *single, clock, SIZE)];
    drivers.iter_mut().for_each(|driver| _ = driver.fill());
    // Nothing waits: both are as fast as a core, whose speed in a guest changes from second to second. So many short turns, by
    // the time that the core had for them.
    let (turns, each) = (times.turns * 4, times.each / 4);
    let rows = LOADS.iter().map(|&(name, writes, block, depth)| {
        let turn =
            |_| drivers.each_mut().map(|driver| driver.measure(load(writes, block, depth), each).requests_per_busy_s());
        row(name, block, &(0..turns).map(turn).collect::<Vec<_>>())
    });
    rows.collect()
}

/// An array over members with limits, beside one of these times their number.
fn throttled(times: &Times) -> Vec<Value> {
    let clock = Clock::new();
    let limits = Limits { bandwidth: Some(Bandwidth::from_mib_s(MIB_S)), iops: Some(Iops::new(IOPS)) };
    let mut rig = Rig::new(SIZE, limits, None, clock);
    let mut single = volume(SIZE / u64::from(MEMBERS), limits, clock);
    let all = f64::from(MEMBERS);
    let mut one = Driver::new(&mut *single, clock, SIZE / u64::from(MEMBERS));
    let mut array = Driver::new(&mut rig.array, clock, SIZE);
    // The first write to each region waits for its bit.
    let first = [array.fill().requests_per_s(), all * one.fill().requests_per_s()];
    let mut rows = vec![row("1 MiB sequential writes, the first", MIB, &[first])];
    for (name, writes, block, depth) in LOADS {
        let each = times.each;
        let turn = |_| {
            let striped = array.measure(load(writes, block, depth * MEMBERS as usize), each).requests_per_s();
            [striped, all * one.measure(load(writes, block, depth), each).requests_per_s()]
        };
        rows.push(row(name, block, &(0..times.turns).map(turn).collect::<Vec<_>>()));
    }
    rows
}

/// An array while a member is replaced, beside the same array before it.
fn rotation(times: &Times) -> Vec<Value> {
    let clock = Clock::new();
    let limits = Limits { bandwidth: Some(Bandwidth::from_mib_s(BURST.0)), iops: Some(Iops::new(BURST.1)) };
    let mut rig = Rig::new(SIZE, limits, Some(Bandwidth::from_mib_s(COPY_MIB_S)), clock);
    let handle = rig.handle.clone();
    _ = Driver::new(&mut rig.array, clock, SIZE).fill();
    let mixed = load(0.5, 4096, 8 * MEMBERS as usize);
    let (mut rates, mut latencies) = (Vec::new(), Vec::new());
    for slot in 0..times.turns.min(MEMBERS) {
        let mut calm = {
            let mut driver = Driver::new(&mut rig.array, clock, SIZE);
            let until = clock.now() + Duration::from_secs(SIZE / u64::from(MEMBERS) / MIB / COPY_MIB_S);
            driver.run(mixed, true, |_, now| now < until)
        };
        let target = rig.replace(slot);
        let mut driver = Driver::new(&mut rig.array, clock, SIZE);
        let mut copying =
            driver.run(mixed, true, |made, _| made % 64 != 0 || !Rig::has_replaced(&handle, slot, target));
        driver.until(|| Rig::has_replaced(&handle, slot, target));
        rates.push([copying.requests_per_s(), calm.requests_per_s()]);
        latencies.push([copying.p99_ms(), calm.p99_ms()]);
    }
    vec![
        row("4 KiB random, half of them writes", 4096, &rates),
        json!({ "name": "their 99th percentile", "unit": "ms", "turns": latencies }),
    ]
}

/// Bytes written, and bytes that all members' successors were given, as shares of an array of `size` bytes.
fn fill(size: u64, ranges: &[(u64, u64)]) -> [f64; 2] {
    let clock = Clock::new();
    let mut rig = Rig::new(size, Limits::NONE, None, clock);
    let handle = rig.handle.clone();
    let zeroes = surgetank_device::Buffer::zeroed(MIB as usize);
    let mut written = 0;
    for (start, length) in ranges.iter().copied() {
        for offset in (start..start + length).step_by(MIB as usize) {
            let length = MIB.min(start + length - offset);
            let memory = smallvec::smallvec![zeroes.slice(0, length as usize)];
            let operation = Operation::Write { fua: false };
            rig.array.submit(clock.now(), VolumeIo { token: 0, operation, offset, length, memory });
            let mut ended = Vec::new();
            while ended.is_empty() {
                rig.array.poll(clock.now(), &mut ended);
            }
            written += length;
        }
    }
    let mut copied = 0;
    for slot in 0..MEMBERS {
        let target = rig.replace(slot);
        Driver::new(&mut rig.array, clock, size).until(|| Rig::has_replaced(&handle, slot, target));
        let status = handle.status();
        let served = status.members.iter().find(|member| member.target == target).expect("it is there").served;
        copied += served.written_bytes;
    }
    [written as f64 / size as f64, copied as f64 / size as f64]
}

/// Where a sparse file has data, in whole blocks: (first byte, bytes).
fn data_of(image: &Path) -> (u64, Vec<(u64, u64)>) {
    let file = std::fs::File::open(image).expect("the image");
    let size = file.metadata().expect("its size").size();
    let (mut ranges, mut at) = (Vec::new(), 0);
    while let Ok(start) = seek(&file, SeekFrom::Data(at)) {
        at = seek(&file, SeekFrom::Hole(start)).expect("there is a hole at the end").min(size);
        ranges.push((start, at - start));
    }
    (size, ranges)
}

fn main() {
    let flags: Vec<String> = std::env::args().collect();
    let has = |flag: &str| flags.iter().any(|given| given == flag);
    let times = if has("--quick") {
        Times { turns: 3, each: Duration::from_secs(1) }
    } else {
        Times { turns: 5, each: Duration::from_secs(3) }
    };
    let image = flags.iter().find_map(|flag| flag.strip_prefix("--image="));
    let mut answer = json!({});
    for (part, measure) in [("memory", memory as fn(&Times) -> _), ("throttled", throttled), ("rotation", rotation)] {
        if has(part) {
            answer[part] = json!(measure(&times));
        }
    }
    if has("fill") {
        let (size, ranges) = match image {
            Some(image) => data_of(Path::new(image)),
            None => (8 << 30, vec![(0, (8.0 * FULL * 1024.0) as u64 * MIB)]),
        };
        let [written, copied] = fill(size, &ranges);
        answer["fill"] = json!({ "written": written, "copied": copied });
    }
    println!("{answer}");
}
