//! Arrays for tests: made and assembled as whoever manages one does.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use surgetank_array::effect::Target;
use surgetank_array::{ArrayId, Assembly, Config, Device, MemberId, Options, Plan, Regions, assemble, create};
use surgetank_device::volume::array::{ArrayHandle, ArrayVolume, Member, read_head, write_creation};
use surgetank_device::{Completion, MemoryVolume, Volume, VolumeIo};
use surgetank_model::Instant;

pub const ARRAY: ArrayId = ArrayId([0xa7; 16]);
pub const CHUNK: u32 = 16 << 10;
pub const REGION: u32 = 64 << 10;

/// A member's size for an array of so many bytes: one page of bitmap, and the data behind it.
pub fn member_size(array: u64, members: u32) -> u64 {
    (64 << 10) + array / u64::from(members)
}

/// A clock of its own: nothing else is going on.
pub fn clock() -> impl Fn() -> Instant {
    let begun = std::time::Instant::now();
    move || Instant::ZERO + begun.elapsed()
}

pub fn name(target: Target) -> MemberId {
    let mut name = [0x11; 16];
    name[..4].copy_from_slice(&target.0.to_le_bytes());
    MemberId(name)
}

pub fn member(target: u32, volume: Box<dyn Volume>) -> Member {
    Member { id: Target(target), name: format!("volume {target}"), volume }
}

/// Makes the volumes members, by slot; their numbers begin at 0.
pub fn created(volumes: Vec<Box<dyn Volume>>, logical_block: u32, regions: Regions) -> Vec<Member> {
    let mut members: Vec<Member> = (0..).zip(volumes).map(|(target, volume)| member(target, volume)).collect();
    let options = Options { array: ARRAY, logical_block, chunk: CHUNK, region: REGION, regions };
    let volumes: Vec<_> = members.iter().map(|m| (m.id, name(m.id), m.volume.size())).collect();
    let creation = create(&options, &volumes).unwrap();
    write_creation(&mut members, &creation, clock()).unwrap();
    members
}

/// What the volumes are found to be.
pub fn found(members: &mut [Member]) -> Assembly {
    let heads: Vec<_> = members.iter_mut().map(|member| read_head(&mut *member.volume, clock())).collect();
    let devices: Vec<Device<'_>> = members
        .iter()
        .zip(&heads)
        .map(|(member, head)| Device {
            target: member.id,
            name: &member.name,
            size: member.volume.size(),
            head: head.as_deref(),
        })
        .collect();
    assemble(None, &devices)
}

/// The plan of an array that may be served.
pub fn plan(members: &mut [Member]) -> Plan {
    match found(members) {
        Assembly::Whole(plan) | Assembly::Degraded(plan, _) => plan,
        Assembly::Refused(reasons) => panic!("{reasons:?}"),
    }
}

pub fn config() -> Config {
    Config { checkpoint_regions: 3, ..Config::default() }
}

/// Opens the array that the volumes are.
pub fn opened(mut members: Vec<Member>) -> (ArrayVolume, ArrayHandle) {
    let plan = plan(&mut members);
    ArrayVolume::open(&plan, members, config(), Instant::ZERO).unwrap()
}

/// A new array of blank volumes.
pub fn new(volumes: Vec<Box<dyn Volume>>, logical_block: u32) -> (ArrayVolume, ArrayHandle) {
    opened(created(volumes, logical_block, Regions::Blank))
}

/// Long enough for any answer.
pub const SOON: Duration = Duration::from_secs(60);

/// A disk that outlives the volumes that are opened on it.
#[derive(Clone)]
pub struct Disk(Arc<Mutex<MemoryVolume>>);

impl Disk {
    pub fn new(size: u64, logical_block: u32) -> Self {
        Self(Arc::new(Mutex::new(MemoryVolume::new(size, logical_block).unwrap())))
    }

    /// A volume on it. What an earlier one has not taken is forgotten.
    pub fn volume(&self) -> Box<dyn Volume> {
        self.0.lock().unwrap().poll(Instant::ZERO, &mut Vec::new());
        Box::new(self.clone())
    }
}

impl Volume for Disk {
    fn size(&self) -> u64 {
        self.0.lock().unwrap().size()
    }

    fn logical_block(&self) -> u32 {
        self.0.lock().unwrap().logical_block()
    }

    fn submit(&mut self, now: Instant, io: VolumeIo) {
        self.0.lock().unwrap().submit(now, io);
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        self.0.lock().unwrap().poll(now, completions);
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
