//! Arrays over volumes in memory, made as whoever manages one does.

use std::time::Duration;

use surgetank_array::effect::Target;
use surgetank_array::{ArrayId, Assembly, Config, Device, MemberId, Options, Regions, assemble, create};
use surgetank_device::volume::array::{ArrayHandle, ArrayVolume, Member, read_head, write_creation};
use surgetank_device::{Buffer, MemoryVolume, Operation, Throttle, Volume, VolumeIo};
use surgetank_model::{Bandwidth, Limits};

use crate::load::Clock;

/// Members of the arrays that are measured.
pub const MEMBERS: u32 = 8;
/// Bytes of a chunk, as the daemon has it.
const CHUNK: u32 = 256 << 10;
const BLOCK: u32 = 4096;

/// An array whose members can be replaced by new ones.
pub struct Rig {
    pub array: ArrayVolume,
    pub handle: ArrayHandle,
    pub clock: Clock,
    limits: Limits,
    member_size: u64,
    next: u32,
}

/// A blank volume in memory with these limits. One with limits has its pages: the first touch of a page takes a core longer than the
/// limits allow.
pub fn volume(size: u64, limits: Limits, clock: Clock) -> Box<dyn Volume> {
    let mut memory = MemoryVolume::new(size, BLOCK).expect("there is memory");
    if limits == Limits::NONE {
        return Box::new(memory);
    }
    let zeroes = Buffer::zeroed(1 << 20);
    for offset in (0..size).step_by(zeroes.len()) {
        let length = (size - offset).min(zeroes.len() as u64);
        let (operation, memory_of) = (Operation::Write { fua: false }, zeroes.slice(0, length as usize));
        let io = VolumeIo { token: 0, operation, offset, length, memory: smallvec::smallvec![memory_of] };
        memory.submit(clock.now(), io);
        memory.poll(clock.now(), &mut Vec::new());
    }
    Box::new(Throttle::new(memory, limits, clock.now()))
}

fn name(target: u32) -> MemberId {
    let mut name = [1; 16];
    name[..4].copy_from_slice(&target.to_le_bytes());
    MemberId(name)
}

impl Rig {
    /// A new array of `size` bytes or a little more, over members with these limits.
    pub fn new(size: u64, limits: Limits, copy_rate: Option<Bandwidth>, clock: Clock) -> Self {
        let data = (size / u64::from(MEMBERS)).next_multiple_of(u64::from(CHUNK));
        let region = surgetank_array::geometry::region_for(data, CHUNK);
        // Structures lie before the data.
        let member_size = data + (16 << 20);
        let mut members: Vec<Member> = (0..MEMBERS).map(|target| member(target, member_size, limits, clock)).collect();
        let options =
            Options { array: ArrayId([7; 16]), logical_block: BLOCK, chunk: CHUNK, region, regions: Regions::Blank };
        let volumes: Vec<_> = members.iter().map(|member| (member.id, name(member.id.0), member_size)).collect();
        let creation = create(&options, &volumes).expect("the sizes go together");
        write_creation(&mut members, &creation, || clock.now()).expect("memory does not fail");
        let heads: Vec<_> = members.iter_mut().map(|member| read_head(&mut *member.volume, || clock.now())).collect();
        let devices = members.iter().zip(&heads).map(|(member, head)| Device {
            target: member.id,
            name: &member.name,
            size: member_size,
            head: head.as_deref(),
        });
        let Assembly::Whole(plan) = assemble(None, &devices.collect::<Vec<_>>()) else { panic!("it is whole") };
        let config = Config { copy_rate, ..Config::default() };
        let (array, handle) = ArrayVolume::open(&plan, members, config, clock.now()).expect("all members are there");
        Self { array, handle, clock, limits, member_size, next: MEMBERS }
    }

    /// Begins to replace the member of a slot by a blank one: its number.
    pub fn replace(&mut self, slot: u32) -> Target {
        let joining = member(self.next, self.member_size, self.limits, self.clock);
        let (target, id) = (joining.id, name(self.next));
        self.next += 1;
        let answer = self.handle.replace(slot, id, joining);
        self.array.poll(self.clock.now(), &mut Vec::new());
        answer.wait(Duration::ZERO).expect("the array has polled").expect("the slot is free");
        target
    }

    /// Whether a slot's member is this one, and no other is joining.
    pub fn has_replaced(handle: &ArrayHandle, slot: u32, target: Target) -> bool {
        // The volumes of replaced members are of no more use.
        drop(handle.take_released());
        let slot = &handle.status().engine.slots[slot as usize];
        slot.active == target && slot.join.is_none()
    }
}

fn member(target: u32, size: u64, limits: Limits, clock: Clock) -> Member {
    Member { id: Target(target), name: format!("volume {target}"), volume: volume(size, limits, clock) }
}
