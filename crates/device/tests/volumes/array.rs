//! Arrays as their manager and their driver see them: replacements under load, members that fail, other threads, restarts.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Duration;

use crate::volume_common::arrays::{self, CHUNK, Disk, REGION, SOON, member, member_size, name};
use crate::volume_common::{Driver, memory, slices};
use proptest::prelude::*;
use surgetank_array::effect::Target;
use surgetank_array::{Assembly, Config, Event, Regions};
use surgetank_device::volume::array::{ArrayHandle, ArrayVolume};
use surgetank_device::volume::fault::{Effect, Kinds, Rule};
use surgetank_device::*;
use surgetank_model::{Bandwidth, Instant};

const BLOCK: u64 = 512;
const SIZE: u64 = 3 << 20;
const WRITE: Operation = Operation::Write { fua: false };

/// An array, the disks that its volumes are on, and what it should hold.
struct World {
    member_size: u64,
    disks: BTreeMap<Target, Disk>,
    faults: BTreeMap<Target, Faults>,
    array: Option<(ArrayVolume, ArrayHandle)>,
    model: Vec<u8>,
    now: Instant,
    events: Vec<Event>,
}

impl World {
    fn new(members: u32, regions: Regions) -> Self {
        let size = member_size(SIZE, members);
        let disks: BTreeMap<_, _> =
            (0..members).map(|target| (Target(target), Disk::new(size, BLOCK as u32))).collect();
        arrays::created(disks.values().map(Disk::volume).collect(), BLOCK as u32, regions);
        let (faults, events) = (BTreeMap::new(), Vec::new());
        let mut world = Self {
            member_size: size,
            disks,
            faults,
            array: None,
            model: vec![0; SIZE as usize],
            now: Instant::ZERO,
            events,
        };
        world.open();
        world
    }

    /// A volume on a disk, with faults that start anew.
    fn volume(&mut self, target: Target) -> Box<dyn Volume> {
        let faults = Faults::new(u64::from(target.0)).unwrap();
        self.faults.insert(target, faults.clone());
        Box::new(Fault::new(self.disks[&target].volume(), faults).unwrap())
    }

    /// Opens the array on all disks there are.
    fn open(&mut self) {
        self.array = None;
        let targets: Vec<Target> = self.disks.keys().copied().collect();
        let members = targets.iter().map(|target| member(target.0, self.volume(*target))).collect();
        self.array = Some(arrays::opened(members));
        self.take();
    }

    fn drive<T>(&mut self, act: impl FnOnce(&mut Driver<'_>, &ArrayHandle) -> T) -> T {
        let (array, handle) = self.array.as_mut().expect("it is open");
        let mut driver = Driver::new(array);
        driver.now = self.now;
        let done = act(&mut driver, handle);
        self.now = driver.now;
        self.take();
        done
    }

    /// What the array has told and released.
    fn take(&mut self) {
        let Some((_, handle)) = &self.array else { return };
        self.events.extend(handle.take_events());
        for released in handle.take_released() {
            assert!(self.disks.remove(&released.id).is_some(), "{released:?} comes back once");
        }
    }

    fn write(&mut self, offset: u64, length: u64, fill: u8, fua: bool) {
        let data: Vec<u8> = (0..length).map(|index| fill ^ (index / 7) as u8).collect();
        let operation = Operation::Write { fua };
        self.drive(|driver, _| driver.must(operation, offset, length, slices(&memory(&data), 3, BLOCK)));
        self.model[offset as usize..][..length as usize].copy_from_slice(&data);
    }

    fn check(&mut self, offset: u64, length: u64) {
        let read = self.drive(|driver, _| driver.read(offset, length, 2));
        assert!(read == self.model[offset as usize..][..length as usize], "{offset}+{length}");
    }

    /// Adds a disk, with a fault, and asks that it take the place of a slot's member. The refusal, if the array refuses.
    fn replace(&mut self, slot: u32, fault: Option<Rule>) -> Result<Target, String> {
        let target = Target(self.disks.keys().last().map_or(0, |last| last.0 + 1).max(self.next_target()));
        self.disks.insert(target, Disk::new(self.member_size, BLOCK as u32));
        let volume = self.volume(target);
        fault.map(|rule| self.faults[&target].add(rule));
        let answer = self.drive(|driver, handle| {
            let answer = handle.replace(slot, name(target), member(target.0, volume));
            driver.poll();
            answer.wait(SOON).expect("the array has polled")
        });
        answer.map(|()| target).map_err(|refusal| refusal.to_string())
    }

    /// A number that no disk ever had.
    fn next_target(&self) -> u32 {
        self.faults.keys().last().map_or(0, |last| last.0 + 1)
    }

    /// Lets time pass until this holds.
    fn until(&mut self, holds: impl Fn(&Self) -> bool) {
        for _ in 0..100_000 {
            self.drive(|driver, _| driver.poll());
            if holds(self) {
                return;
            }
            self.drive(|driver, _| driver.wait());
        }
        panic!("it does not happen: {:?}", self.events);
    }

    /// Lets time pass until this has happened.
    fn until_event(&mut self, event: Event) {
        self.until(|world| world.events.contains(&event));
    }

    fn is_joining(&self) -> bool {
        let (_, handle) = self.array.as_ref().expect("it is open");
        handle.status().engine.slots.iter().any(|slot| slot.join.is_some())
    }
}

/// A step of the model, in blocks.
#[derive(Clone, Debug)]
enum Step {
    Read {
        block: u64,
        blocks: u64,
    },
    Write {
        block: u64,
        blocks: u64,
        fill: u8,
        fua: bool,
    },
    /// Writes of a region each, all at once.
    Writes {
        fill: u8,
    },
    Zero {
        block: u64,
        blocks: u64,
        discard: bool,
    },
    Flush,
    Replace {
        slot: u32,
    },
    Cancel {
        slot: u32,
    },
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let blocks = SIZE / BLOCK;
    let range = (0..blocks, 1..=300u64).prop_map(move |(first, count)| (first, count.min(blocks - first)));
    let step = prop_oneof![
        4 => range.clone().prop_map(|(block, blocks)| Step::Read { block, blocks }),
        6 => (range.clone(), 1..=255u8, any::<bool>()).prop_map(|((block, blocks), fill, fua)| {
            Step::Write { block, blocks, fill, fua }
        }),
        2 => (1..=255u8).prop_map(|fill| Step::Writes { fill }),
        2 => (range, any::<bool>()).prop_map(|((block, blocks), discard)| Step::Zero { block, blocks, discard }),
        1 => Just(Step::Flush),
        3 => (0..3u32).prop_map(|slot| Step::Replace { slot }),
        1 => (0..3u32).prop_map(|slot| Step::Cancel { slot }),
        1 => Just(Step::Reopen),
    ];
    proptest::collection::vec(step, 1..60)
}

fn take_step(world: &mut World, step: &Step) {
    match *step {
        Step::Read { block, blocks } => world.check(block * BLOCK, blocks * BLOCK),
        Step::Write { block, blocks, fill, fua } => world.write(block * BLOCK, blocks * BLOCK, fill, fua),
        Step::Writes { fill } => {
            let region = u64::from(REGION);
            let data = vec![fill; REGION as usize];
            let results = world.drive(|driver, _| {
                for start in (0..SIZE).step_by(2 * REGION as usize) {
                    driver.submit(WRITE, start, region, slices(&memory(&data), 2, BLOCK));
                }
                driver.finish()
            });
            assert!(results.values().all(Result::is_ok));
            for start in (0..SIZE as usize).step_by(2 * REGION as usize) {
                world.model[start..start + REGION as usize].fill(fill);
            }
        }
        Step::Zero { block, blocks, discard } => {
            let (offset, length) = (block * BLOCK, blocks * BLOCK);
            let operation = if discard { Operation::Discard } else { Operation::WriteZeroes { fua: false } };
            world.drive(|driver, _| driver.must(operation, offset, length, Vec::new()));
            world.model[offset as usize..][..length as usize].fill(0);
        }
        Step::Flush => world.drive(|driver, _| driver.must(Operation::Flush, 0, 0, Vec::new())),
        // Refused while the slot's member is being replaced.
        Step::Replace { slot } => _ = world.replace(slot, None),
        Step::Cancel { slot } => {
            world.drive(|driver, handle| {
                let answer = handle.cancel(slot);
                driver.poll();
                answer.wait(SOON).expect("the array has polled").is_ok()
            });
        }
        Step::Reopen => world.open(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// What is read is what was written, through replacements, their ends and restarts of the process, and every volume that
    /// the array no longer needs comes back.
    #[test]
    fn replacements_under_load_lose_nothing(steps in steps(), late in any::<bool>(), full in any::<bool>()) {
        let mut world = World::new(3, if full { Regions::Written } else { Regions::Blank });
        for step in &steps {
            if late {
                let rule = Rule { chance: 0.3, ..Rule::always(Kinds::Any, Effect::Delay(Duration::from_micros(300))) };
                world.faults.values().for_each(|faults| {
                    faults.clear();
                    faults.add(rule.clone());
                });
            }
            take_step(&mut world, step);
        }
        world.check(0, SIZE);
        world.drive(|driver, _| driver.must(Operation::Flush, 0, 0, Vec::new()));
        world.until(|world| world.disks.len() == 3);
        world.open();
        world.check(0, SIZE);
    }
}

#[test]
fn a_new_member_that_fails_is_dropped_and_comes_back() {
    let mut world = World::new(3, Regions::Blank);
    world.write(0, SIZE, 0x31, false);
    let fault = Rule { after: 8, ..Rule::always(Kinds::Writes, Effect::Fail(Failure::Io)) };
    let joining = world.replace(1, Some(fault)).unwrap();
    // The requests of its slot succeed meanwhile.
    world.write(0, SIZE / 2, 0x55, false);
    world.until_event(Event::Released(joining));
    assert!(world.events.contains(&Event::Dropped { slot: 1, joining }));
    assert!(!world.disks.contains_key(&joining) && world.disks.len() == 3);
    world.check(0, SIZE);
    world.open();
    world.check(0, SIZE);
    let second = world.replace(1, None).unwrap();
    world.until_event(Event::Released(Target(1)));
    assert!(world.events.contains(&Event::Replaced { slot: 1, by: second }));
    world.check(0, SIZE);
}

#[test]
fn a_replaced_member_that_fails_is_outlived_once_its_copy_is_complete() {
    let mut world = World::new(3, Regions::Blank);
    world.write(0, SIZE, 0x31, false);
    world.faults[&Target(1)].add(Rule { after: 3, ..Rule::always(Kinds::Reads, Effect::Fail(Failure::Io)) });
    let joining = world.replace(1, None).unwrap();
    for _ in 0..50 {
        world.drive(|driver, _| {
            driver.poll();
            driver.wait();
        });
    }
    assert!(world.is_joining(), "what cannot be read cannot be copied");
    let region = u64::from(REGION);
    // The copied regions are read from the new member.
    world.check(0, region);
    let stripe = 3 * SIZE / 4 + u64::from(CHUNK);
    let failed = world.drive(|driver, _| {
        let buffer = Buffer::zeroed(CHUNK as usize);
        let first = stripe / (3 * u64::from(CHUNK)) * 3 * u64::from(CHUNK);
        (0..3u64)
            .filter(|slot| {
                let memory = slices(&buffer, 1, BLOCK);
                let at = first + slot * u64::from(CHUNK);
                driver.one(Operation::Read, at, u64::from(CHUNK), memory) == Err(Failure::Io)
            })
            .collect::<Vec<_>>()
    });
    assert_eq!(failed, [1], "only what the old member alone has");
    world.faults[&Target(1)].clear();
    world.until_event(Event::Released(Target(1)));
    assert!(world.events.contains(&Event::Replaced { slot: 1, by: joining }));
    world.check(0, SIZE);
    world.open();
    world.check(0, SIZE);
}

#[test]
fn of_a_member_that_cannot_be_opened_the_ranges_alone_fail() {
    for dead in 0..3 {
        let mut world = World::new(3, Regions::Blank);
        world.write(0, SIZE, 0x31, false);
        world.array = None;
        let targets: Vec<Target> = world.disks.keys().copied().collect();
        let mut members: Vec<_> = targets.iter().map(|target| member(target.0, world.volume(*target))).collect();
        let plan = arrays::plan(&mut members);
        world.faults[&Target(dead)].vanish();
        world.array = Some(ArrayVolume::open(&plan, members, arrays::config(), world.now).unwrap());
        let chunk = u64::from(CHUNK);
        let one = |world: &mut World, operation, slot: u64| {
            let memory = slices(&memory(&vec![0x77; CHUNK as usize]), 1, BLOCK);
            world.drive(|driver, _| driver.one(operation, slot * chunk, chunk, memory))
        };
        for slot in 0..3 {
            for operation in [Operation::Read, WRITE] {
                let expected = if slot == u64::from(dead) { Err(Failure::Io) } else { Ok(()) };
                assert_eq!(one(&mut world, operation, slot), expected, "{operation:?} of slot {slot}, {dead} dead");
            }
        }
        let (_, handle) = world.array.as_ref().unwrap();
        let members = handle.status().members;
        assert!(members.iter().all(|member| member.gone == (member.target == Target(dead))));
        // It is tried again every second.
        world.faults[&Target(dead)].restore();
        world.now += Duration::from_secs(2);
        world.drive(|driver, _| driver.poll());
        assert_eq!(one(&mut world, WRITE, u64::from(dead)), Ok(()));
        world.model[..3 * CHUNK as usize].fill(0x77);
        world.check(0, SIZE);
    }
}

/// What waits for a member that does not answer fails, instead of waiting for ever.
#[test]
fn an_array_whose_only_member_cannot_be_opened_fails_its_requests_until_it_can() {
    let mut world = World::new(1, Regions::Blank);
    world.write(0, SIZE, 0x31, false);
    let stuck = Rule { after: 12, ..Rule::always(Kinds::Writes, Effect::Stuck) };
    let joining = world.replace(0, Some(stuck)).unwrap();
    let targets: Vec<Target> = world.disks.keys().copied().collect();
    world.array = None;
    let mut members: Vec<_> = targets.iter().map(|target| member(target.0, world.volume(*target))).collect();
    let plan = arrays::plan(&mut members);
    assert_eq!(plan.joining.len(), 1);
    world.faults[&Target(0)].vanish();
    world.array = Some(ArrayVolume::open(&plan, members, arrays::config(), world.now).unwrap());
    let buffer = Buffer::zeroed(CHUNK as usize);
    let read = |driver: &mut Driver<'_>| driver.one(Operation::Read, 0, u64::from(CHUNK), slices(&buffer, 1, BLOCK));
    assert_eq!(world.drive(|driver, _| read(driver)), Err(Failure::Io));
    world.faults[&Target(0)].restore();
    world.now += Duration::from_secs(2);
    world.until_event(Event::Replaced { slot: 0, by: joining });
    world.check(0, SIZE);
}

#[test]
fn members_that_do_not_belong_are_refused_with_the_remedy() {
    let mut world = World::new(3, Regions::Blank);
    world.write(0, SIZE, 0x31, false);
    let old = world.disks[&Target(2)].clone();
    let by = world.replace(2, None).unwrap();
    world.until_event(Event::Released(Target(2)));
    world.array = None;
    let volumes = |targets: &[(u32, &Disk)]| -> Vec<_> {
        targets.iter().map(|(target, disk)| member(*target, disk.volume())).collect()
    };
    let (first, second, third) =
        (world.disks[&Target(0)].clone(), world.disks[&Target(1)].clone(), world.disks[&by].clone());
    let said = |assembly: Assembly| match assembly {
        Assembly::Refused(reasons) | Assembly::Degraded(_, reasons) => {
            reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        }
        Assembly::Whole(_) => String::new(),
    };
    let stale = said(arrays::found(&mut volumes(&[(0, &first), (1, &second), (2, &old), (3, &third)])));
    assert!(stale.starts_with("volume 2 is stale: member ") && stale.ends_with("it may be deleted"), "{stale}");
    let missing = said(arrays::found(&mut volumes(&[(0, &first), (3, &third)])));
    assert!(missing.contains("of slot 1 is missing: attach its volume"), "{missing}");
    let blank = Disk::new(member_size(SIZE, 3), 512);
    let none = said(arrays::found(&mut volumes(&[(0, &first), (1, &second), (3, &third), (4, &blank)])));
    assert!(none.starts_with("volume 4 is no member of an array: detach it"), "{none}");
    // What the plan needs and is not given, and what does not fit.
    let plan = arrays::plan(&mut volumes(&[(0, &first), (1, &second), (3, &third)]));
    let open = |members| ArrayVolume::open(&plan, members, Config::default(), Instant::ZERO);
    let error = open(volumes(&[(0, &first), (1, &second)])).unwrap_err().to_string();
    assert!(error.contains("of slot 2 was not given: attach its volume"), "{error}");
    let coarse = Disk::new(member_size(SIZE, 3), 4096);
    let error = open(volumes(&[(0, &first), (1, &second), (3, &coarse)])).unwrap_err().to_string();
    assert!(error.contains("volume 3 has blocks of 4096 bytes and the array has blocks of 512"), "{error}");
    // What has no place comes back at once.
    let (_array, handle) = open(volumes(&[(0, &first), (1, &second), (2, &old), (3, &third)])).unwrap();
    assert_eq!(handle.take_released().iter().map(|member| member.id).collect::<Vec<_>>(), [Target(2)]);
}

#[test]
fn what_is_refused_or_never_taken_comes_back() {
    let mut world = World::new(3, Regions::Blank);
    world.write(0, SIZE, 0x31, false);
    let refused = world.replace(7, None).unwrap_err();
    assert!(refused.starts_with("slot 7 does not exist"), "{refused}");
    let (array, handle) = world.array.take().unwrap();
    let replace =
        |target: u32| handle.replace(0, name(Target(target)), member(target, Disk::new(SIZE, BLOCK as u32).volume()));
    let waiting = replace(50);
    assert!(waiting.wait(Duration::ZERO).is_none());
    drop(array);
    for answer in [waiting, replace(51)] {
        let answer = answer.wait(SOON).unwrap().unwrap_err().to_string();
        assert_eq!(answer, "the array was closed: open it and try again");
    }
    let targets: Vec<u32> = handle.take_released().iter().map(|member| member.id.0).collect();
    assert_eq!(targets, [50, 51]);
}

#[test]
fn the_longest_requests_pass() {
    const LONG: u64 = (64 << 20) + 4096;
    let volume = |_| Box::new(MemoryVolume::new(member_size(72 << 20, 2), 512).unwrap()) as Box<dyn Volume>;
    let (mut array, handle) = arrays::new((0..2).map(volume).collect(), 512);
    let mut driver = Driver::new(&mut array);
    let data: Vec<u8> = (0..LONG).map(|index| (index / 4099) as u8 ^ index as u8).collect();
    driver.must(Operation::Write { fua: true }, 1536, LONG, slices(&memory(&data), 77, 512));
    assert!(driver.read(1536, LONG, 5) == data);
    driver.must(Operation::Discard, 0, array_size(&handle), Vec::new());
    assert!(driver.read(1536, LONG, 1).iter().all(|byte| *byte == 0));
}

fn array_size(handle: &ArrayHandle) -> u64 {
    handle.status().engine.size
}

/// Between members that answer at once a copy is over before anything else happens: but not within one poll.
#[test]
fn a_copy_does_not_hold_up_a_poll() {
    let volume = |_| Box::new(MemoryVolume::new(member_size(64 << 20, 1), 512).unwrap()) as Box<dyn Volume>;
    let members = arrays::created((0..1).map(volume).collect(), 512, Regions::Written);
    let (mut array, handle) = arrays::opened(members);
    let data = vec![0x21; 1 << 20];
    Driver::new(&mut array).must(WRITE, 5 << 20, 1 << 20, slices(&memory(&data), 1, 512));
    let _answer = handle.replace(0, name(Target(1)), member(1, volume(1)));
    let mut polls = 0;
    while !handle.take_events().contains(&Event::Replaced { slot: 0, by: Target(1) }) {
        polls += 1;
        // It does not sleep while it has work.
        Driver::new(&mut array).wait();
        Driver::new(&mut array).poll();
    }
    assert!(polls > 2, "{polls} polls");
    assert!(Driver::new(&mut array).read(5 << 20, 1 << 20, 1) == data);
}

#[test]
fn an_array_grows_when_all_its_members_have() {
    let directory = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..3).map(|number: u32| directory.path().join(number.to_string())).collect();
    let set = |path: &std::path::Path, size| {
        std::fs::File::options().create(true).truncate(false).write(true).open(path).unwrap().set_len(size).unwrap();
    };
    paths.iter().for_each(|path| set(path, member_size(SIZE, 3)));
    let open = || -> Vec<Box<dyn Volume>> {
        let options = Options { logical_block: Some(4096), ..Options::default() };
        paths.iter().map(|path| Box::new(FileVolume::open(path, options).unwrap()) as Box<dyn Volume>).collect()
    };
    let (mut array, handle) = arrays::new(open(), 4096);
    Driver::new(&mut array).read(0, SIZE, 1);
    set(&paths[0], member_size(2 * SIZE, 3));
    assert_eq!(array.resize_check(), Ok(SIZE), "one alone does not matter");
    let answer = handle.grow();
    Driver::new(&mut array).poll();
    let refusal = answer.wait(SOON).unwrap().unwrap_err().to_string();
    assert!(refusal.ends_with("enlarge or replace every member first"), "{refusal}");
    paths.iter().for_each(|path| set(path, member_size(2 * SIZE, 3)));
    array.resize_check().unwrap();
    while array.size() == SIZE {
        Driver::new(&mut array).wait();
        Driver::new(&mut array).poll();
    }
    assert_eq!(handle.take_events(), [Event::Grown { size: 2 * SIZE }]);
    let data = memory(&vec![0x44; 8192]);
    Driver::new(&mut array).must(WRITE, 2 * SIZE - 8192, 8192, slices(&data, 1, 4096));
    drop(array);
    let members = (0..).zip(open()).map(|(target, volume)| member(target, volume)).collect();
    let (mut array, _) = arrays::opened(members);
    assert_eq!(array.size(), 2 * SIZE);
    assert!(Driver::new(&mut array).read(2 * SIZE - 8192, 8192, 1).iter().all(|byte| *byte == 0x44));
}

/// Does one I/O as a shard does: sleeps until the descriptor is readable or the deadline has come.
fn in_real_time(array: &mut ArrayVolume, io: VolumeIo, now: &dyn Fn() -> Instant) -> Result<(), Failure> {
    let poller = Poller::new().unwrap();
    poller.add(array.descriptor().unwrap(), 0).unwrap();
    let begun = now();
    array.submit(begun, io);
    let (mut completions, mut keys) = (Vec::new(), Vec::new());
    loop {
        array.poll(now(), &mut completions);
        if let Some(completion) = completions.pop() {
            return completion.result;
        }
        let until = |at: Instant| at.as_nanoseconds().saturating_sub(now().as_nanoseconds());
        let timeout = array.next_deadline().map(|at| Duration::from_nanos(until(at)));
        poller.wait(Some(timeout.unwrap_or(SOON)), &mut keys).unwrap();
        // Who slept for so long has missed something.
        assert!(now() < begun + SOON, "nothing woke the driver");
    }
}

/// Over files with io_uring, paced, with the requests of one thread and the replacement of another.
#[test]
fn another_thread_replaces_members_while_the_driver_sleeps() {
    let directory = tempfile::tempdir().unwrap();
    let file = |number: u32| {
        let path = directory.path().join(number.to_string());
        std::fs::File::create(&path).unwrap().set_len(member_size(SIZE, 3)).unwrap();
        let options = Options { logical_block: Some(4096), ..Options::default() };
        Box::new(FileVolume::open(path, options).unwrap()) as Box<dyn Volume>
    };
    let mut members = arrays::created((0..3).map(file).collect(), 4096, Regions::Blank);
    let plan = arrays::plan(&mut members);
    let config = Config { copy_rate: Some(Bandwidth::from_mib_s(40)), ..arrays::config() };
    let now = arrays::clock();
    let (mut array, handle) = ArrayVolume::open(&plan, members, config, now()).unwrap();
    let io = |operation, round: u64, buffer: &Buffer| {
        let offset = round * 7 * 4096 % (SIZE - 8192) / 4096 * 4096;
        VolumeIo { token: round, operation, offset, length: 8192, memory: smallvec::smallvec![buffer.slice(0, 8192)] }
    };
    assert_eq!(in_real_time(&mut array, io(Operation::Read, 0, &Buffer::zeroed(8192)), &now), Ok(()), "it is open");
    let mut model = vec![0u8; SIZE as usize];
    let (done, finished) = mpsc::channel();
    let fresh: Vec<_> = (3..6).map(|number| (number, file(number))).collect();
    let thread = std::thread::spawn(move || {
        for (slot, (target, volume)) in (0..).zip(fresh) {
            let asked = handle.replace(slot, name(Target(target)), member(target, volume));
            asked.wait(SOON).expect("the driver is awake").unwrap();
            let mut events = Vec::new();
            while !events.contains(&Event::Released(Target(slot))) {
                std::thread::sleep(Duration::from_millis(2));
                events.extend(handle.take_events());
            }
            assert!(events.contains(&Event::Replaced { slot, by: Target(target) }));
            assert_eq!(handle.take_released().len(), 1);
        }
        let status = handle.status();
        done.send(()).unwrap();
        status
    });
    let mut round = 0;
    while finished.try_recv() == Err(mpsc::TryRecvError::Empty) {
        let buffer = memory(&vec![round as u8 | 1; 8192]);
        let write = io(WRITE, round, &buffer);
        model[write.offset as usize..][..8192].fill(round as u8 | 1);
        assert_eq!(in_real_time(&mut array, write, &now), Ok(()));
        let back = Buffer::zeroed(8192);
        assert_eq!(in_real_time(&mut array, io(Operation::Read, round, &back), &now), Ok(()));
        // SAFETY: the read has ended.
        assert!(unsafe { back.bytes() }.iter().all(|byte| *byte == round as u8 | 1));
        round += 1;
    }
    let status = thread.join().unwrap();
    assert_eq!(status.members.iter().map(|member| member.target.0).collect::<Vec<_>>(), [3, 4, 5]);
    assert!(status.members.iter().all(|member| member.served.writes > 0 && member.served.failures == 0));
    let whole = Buffer::zeroed(SIZE as usize);
    let memory = smallvec::smallvec![whole.slice(0, SIZE as usize)];
    let read = VolumeIo { token: round, operation: Operation::Read, offset: 0, length: SIZE, memory };
    assert_eq!(in_real_time(&mut array, read, &now), Ok(()));
    // SAFETY: the read has ended.
    assert!(unsafe { whole.bytes() } == model);
}
