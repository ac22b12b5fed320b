//! The engine over members in memory: the array is a byte array whatever is replaced, and a copy outlives a member.

mod support;

use proptest::prelude::*;
use surgetank_array::effect::{ReplyError, Target};
use surgetank_array::{Event, Join, MemberId};
use surgetank_model::{Operation, Request, RequestId};

use support::Machine;

const WRITE: Operation = Operation::Write { fua: false };

fn join(target: u32, size: u64) -> Join {
    Join { target: Target(target), member: MemberId([100 + target as u8; 16]), size }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Amid replacements and restarts.
    #[test]
    fn the_array_is_a_byte_array(
        members in 1u32..4,
        seed in any::<u64>(),
        steps in prop::collection::vec((0u8..12, 0u64..200, 1u64..40), 1..80),
    ) {
        let mut machine = Machine::new(members, 160 << 10, seed);
        let mut next = members;
        for (kind, sector, sectors) in steps {
            let offset = sector * 512 % machine.size();
            let length = (sectors * 512).min(machine.size() - offset);
            match kind {
                0..5 => _ = machine.request(WRITE, offset, length),
                5..7 => _ = machine.request(Operation::Read, offset, length),
                7 => _ = machine.request(Operation::Discard, offset, length),
                8 => _ = machine.request(Operation::WriteZeroes { fua: true }, offset, length),
                9 => _ = machine.request(Operation::Flush, 0, 0),
                10 => {
                    let slot = (sector % u64::from(members)) as u32;
                    machine.add(next, 160 << 10);
                    if machine.engine.replace(machine.now, slot, join(next, 160 << 10)).is_ok() {
                        next += 1;
                    }
                }
                _ => machine.restart(),
            }
            machine.work(sectors as usize);
        }
        machine.settle();
        machine.read_all();
    }
}

#[test]
fn only_regions_that_were_ever_written_are_copied() {
    let mut machine = Machine::new(2, 1 << 20, 3);
    machine.request(WRITE, 0, 4096);
    machine.settle();
    machine.add(2, 1 << 20);
    machine.engine.replace(machine.now, 0, join(2, 1 << 20)).expect("it fits");
    machine.settle();
    assert!(machine.events.contains(&Event::Replaced { slot: 0, by: Target(2) }));
    assert_eq!(machine.read_bytes(Target(0)), u64::from(machine.region()), "one region is written");
    machine.read_all();
}

/// A region that is discarded whole, durably, is written no more.
#[test]
fn a_discarded_region_is_not_copied() {
    let mut machine = Machine::new(1, 1 << 20, 4);
    let region = u64::from(machine.region());
    machine.request(WRITE, 0, 2 * region);
    machine.settle();
    assert_eq!(machine.engine.status().regions_written, 2);
    machine.request(Operation::Discard, 0, region);
    machine.settle();
    assert_eq!(machine.engine.status().regions_written, 2, "until that is durable it might come back");
    machine.request(Operation::Flush, 0, 0);
    machine.settle();
    assert_eq!(machine.engine.status().regions_written, 1);
}

/// Kernels discard in pieces, which end within regions. What is written between two of them counts.
#[test]
fn a_region_that_is_discarded_in_pieces_is_not_copied() {
    let mut machine = Machine::new(1, 1 << 20, 4);
    let region = u64::from(machine.region());
    let discard = |machine: &mut Machine, offset: u64, length: u64| {
        machine.request(Operation::Discard, offset, length);
        machine.request(Operation::Flush, 0, 0);
        machine.settle();
        machine.engine.status().regions_written
    };
    machine.request(WRITE, 0, 3 * region);
    machine.settle();
    assert_eq!(discard(&mut machine, 0, region / 2), 3, "the second half is written");
    assert_eq!(discard(&mut machine, region / 2, region), 2, "the first region is discarded; half of the second");
    machine.request(WRITE, region, 4096);
    machine.settle();
    assert_eq!(discard(&mut machine, region * 3 / 2, region / 2), 2, "the first half was written again");
    assert_eq!(discard(&mut machine, region, region / 2), 1);
    assert_eq!(discard(&mut machine, 2 * region, region), 0);
    machine.read_all();
}

/// Bits are set ahead, twice as many as the row of written regions is long; what they are ahead of is not copied.
#[test]
fn a_sequential_write_seldom_waits_for_a_bit_and_what_it_has_not_reached_is_not_copied() {
    const REACHED: u64 = 200;
    let mut machine = Machine::new(1, 8 << 20, 10);
    let region = u64::from(machine.region());
    let before = machine.structures;
    for number in 0..REACHED {
        machine.request(WRITE, number * region, region);
        machine.settle();
    }
    assert!(machine.structures - before < REACHED / 10, "{} pages", machine.structures - before);
    assert_eq!(machine.engine.status().regions_written, REACHED);
    machine.add(1, 8 << 20);
    machine.engine.replace(machine.now, 0, join(1, 8 << 20)).expect("it fits");
    machine.settle();
    assert!(machine.events.contains(&Event::Replaced { slot: 0, by: Target(1) }));
    assert_eq!(machine.read_bytes(Target(0)), REACHED * region);
    assert_eq!(machine.engine.status().regions_written, REACHED, "its successor knows as well");
    machine.read_all();
    machine.restart();
    let after = machine.engine.status().regions_written;
    assert!((REACHED..=3 * REACHED).contains(&after), "{after}: a start knows the bits alone");
}

/// Also one that goes to its member without waiting for anything.
#[test]
fn a_copy_waits_for_the_writes_that_were_there_before_it() {
    let mut machine = Machine::new(1, 256 << 10, 11);
    machine.request(WRITE, 0, 4096);
    machine.settle();
    machine.held = Some(Target(0));
    machine.request(WRITE, 512, 1024);
    machine.add(1, 256 << 10);
    machine.engine.replace(machine.now, 0, join(1, 256 << 10)).expect("it fits");
    machine.work(500);
    let regions = machine.engine.status().slots[0].join.expect("it is being replaced").regions;
    assert_eq!(machine.synced(0), regions - 1);
    machine.held = None;
    machine.settle();
    assert!(machine.events.contains(&Event::Replaced { slot: 0, by: Target(1) }));
    machine.read_all();
}

/// Also a request that it failed: the joining member has it, and everything else.
#[test]
fn a_member_that_fails_after_its_copy_is_replaced_and_no_request_fails() {
    let mut machine = Machine::new(1, 256 << 10, 5);
    machine.request(WRITE, 0, 128 << 10);
    machine.settle();
    machine.add(1, 256 << 10);
    machine.engine.replace(machine.now, 0, join(1, 256 << 10)).expect("it fits");
    while machine.synced(0) < 6 {
        machine.work(1);
    }
    machine.held = Some(Target(0));
    let written = machine.request(WRITE, 1024, 2048);
    while machine.synced(0) < machine.size() / u64::from(machine.region()) {
        machine.work(1);
    }
    machine.failing.insert(Target(0));
    machine.held = None;
    machine.settle();
    assert!(machine.events.contains(&Event::Replaced { slot: 0, by: Target(1) }));
    assert_eq!(machine.reply_of(written), Some(Ok(())));
    machine.read_all();
}

/// What it holds of the slot is served from the joining member.
#[test]
fn a_member_that_fails_during_its_copy_is_read_from_where_it_was_copied_to() {
    let mut machine = Machine::new(1, 256 << 10, 6);
    let region = u64::from(machine.region());
    machine.request(WRITE, 0, 8 * region);
    machine.settle();
    machine.add(1, 256 << 10);
    machine.engine.replace(machine.now, 0, join(1, 256 << 10)).expect("it fits");
    while machine.synced(0) < 4 {
        machine.work(1);
    }
    machine.failing.insert(Target(0));
    let copied = machine.request(Operation::Read, 0, 4096);
    let rest = machine.request(Operation::Read, machine.size() - region, 4096);
    machine.settle_for(5);
    assert_eq!(machine.reply_of(copied), Some(Ok(())));
    assert_eq!(machine.reply_of(rest), Some(Err(ReplyError::Io)));
    machine.failing.clear();
    machine.settle();
    machine.read_all();
}

#[test]
fn a_joining_member_that_fails_is_dropped_and_nobody_notices() {
    let mut machine = Machine::new(2, 256 << 10, 7);
    machine.request(WRITE, 0, 128 << 10);
    machine.settle();
    machine.add(2, 256 << 10);
    machine.engine.replace(machine.now, 0, join(2, 256 << 10)).expect("it fits");
    machine.work(12);
    machine.failing.insert(Target(2));
    machine.settle_for(60);
    assert!(machine.events.contains(&Event::Dropped { slot: 0, joining: Target(2) }));
    assert!(machine.events.contains(&Event::Released(Target(2))));
    assert!(machine.replies.iter().all(|(_, result)| result.is_ok()));
    machine.read_all();
}

#[test]
fn invalid_requests_and_volumes_are_refused() {
    let mut machine = Machine::new(2, 256 << 10, 8);
    let size = machine.size();
    for (number, (offset, length)) in
        [(1, 512), (0, 100), (size, 512), (u64::MAX - 511, 512), (0, 0)].into_iter().enumerate()
    {
        let request = Request { id: RequestId(900 + number as u64), operation: Operation::Discard, offset, length };
        machine.engine.submit(machine.now, request);
        machine.settle();
        assert_eq!(machine.reply_of(request.id), Some(Err(ReplyError::Invalid)));
    }
    for (slot, volume) in [(2, join(9, 256 << 10)), (0, join(9, 128 << 10)), (0, join(1, 256 << 10))] {
        let refusal = machine.engine.replace(machine.now, slot, volume).expect_err("it does not fit");
        assert!(refusal.0.contains(": "), "{refusal} has a remedy");
    }
    assert!(machine.engine.cancel(machine.now, 0).is_err());
    assert!(machine.engine.grow(machine.now, &[(Target(0), 512 << 10), (Target(1), 256 << 10)]).is_err());
}

#[test]
fn the_array_grows_when_all_members_are_larger() {
    let mut machine = Machine::new(2, 256 << 10, 9);
    let before = machine.size();
    for (slot, target) in [(0, 2), (1, 3)] {
        machine.add(target, 512 << 10);
        machine.engine.replace(machine.now, slot, join(target, 512 << 10)).expect("it fits");
        machine.settle();
    }
    machine.engine.grow(machine.now, &[(Target(2), 512 << 10), (Target(3), 512 << 10)]).expect("both are larger");
    machine.settle();
    assert!(machine.size() > before && machine.events.contains(&Event::Grown { size: machine.size() }));
    machine.request(WRITE, before, 8192);
    machine.settle();
    machine.restart();
    machine.read_all();
}

/// A member that serves its queue in order, and an application that keeps it full: how many I/Os it served until its successor had
/// the slot.
fn served_until_replaced(hurried: bool) -> u64 {
    const QUEUE: usize = 48;
    let mut machine = Machine::new(1, 2 << 20, 5);
    for region in 0..machine.size() / u64::from(machine.region()) {
        machine.request(WRITE, region * u64::from(machine.region()), 4096);
    }
    machine.settle();
    machine.add(1, 2 << 20);
    machine.engine.set_hurried(0, hurried);
    machine.engine.replace(machine.now, 0, join(1, 2 << 20)).expect("it fits");
    let mut served = 0;
    while !machine.events.contains(&Event::Replaced { slot: 0, by: Target(1) }) {
        machine.keep_queued(Target(0), QUEUE);
        machine.end_first(Target(0));
        machine.end_all_but(Target(0));
        served += 1;
        assert!(served < 100_000, "the copy gets nowhere");
    }
    served
}

#[test]
fn a_hurried_copy_has_its_share_of_a_queue_that_is_always_full() {
    let regions = (2u64 << 20) / (8 << 10);
    let (usual, hurried) = (served_until_replaced(false), served_until_replaced(true));
    assert!(hurried <= regions * 6 && usual > regions * 15, "{hurried} and {usual} I/Os for {regions} regions");
}
