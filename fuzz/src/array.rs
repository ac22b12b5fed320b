//! What lies on the members of an array, and what an engine does with it.

use surgetank_array::effect::{BufferId, EffectId, Target};
use surgetank_array::format::{BITS_PER_PAGE, BLOCK, Kind, MemberState, Page, Pages, SUPERBLOCKS_LENGTH, Superblock};
use surgetank_array::io::Action;
use surgetank_array::{ArrayId, Assembly, Config, Device, Engine, Geometry, MemberId, Outcome, Plan, assemble};
use surgetank_model::effect::IoFailure;
use surgetank_model::{Instant, Operation, Request, RequestId};

use crate::input::Input;
use crate::media::seal;

/// Few names, so that members are often of one array.
fn any_name(input: &mut Input<'_>) -> [u8; 16] {
    let mut name = [0; 16];
    name[0] = input.byte() % 5;
    name
}

fn any_geometry(input: &mut Input<'_>) -> Geometry {
    if input.once_in(4) {
        let (members, logical_block, chunk) = (input.number() as u32, input.number() as u32, input.number() as u32);
        let (region, bitmap_pages, data_length) = (input.number() as u32, input.number() as u32, input.number());
        return Geometry { members, logical_block, chunk, region, bitmap_pages, data_length };
    }
    let members = 1 + u32::from(input.byte() % 3);
    let size = (1 << 17) + (input.below(64) as u64) * 4096;
    Geometry::divide(members, size, 512, 4096, 1 << 14).expect("it is sound")
}

/// A superblock with any fields, or any payload under a right checksum, or any bytes.
fn any_superblock(input: &mut Input<'_>, geometry: Geometry) -> Vec<u8> {
    let members = (0..geometry.members.min(128)).map(|_| MemberId(any_name(input))).collect();
    let superblock = Superblock {
        array: ArrayId(if input.once_in(6) { any_name(input) } else { [0; 16] }),
        member: MemberId(any_name(input)),
        sequence: input.number(),
        generation: input.number(),
        slot: u32::from(input.byte() % 4),
        state: [MemberState::Active, MemberState::Joining, MemberState::Retired][input.below(3)],
        geometry,
        members,
    };
    let mut block = superblock.encode().into_vec();
    match input.byte() % 8 {
        0 => {
            let at = 16 + input.below(256);
            block[at] = input.byte();
            seal(&mut block);
        }
        1 => {
            let at = input.below(BLOCK as usize);
            block[at] ^= 1;
        }
        _ => {}
    }
    if let Some(decoded) = Superblock::decode(&block) {
        assert_eq!(Superblock::decode(&decoded.encode()), Some(decoded.clone()));
        assert!(decoded.geometry.is_sound() && decoded.slot < decoded.geometry.members);
        assert_eq!(decoded.members.len(), decoded.geometry.members as usize);
    }
    block
}

fn any_page(input: &mut Input<'_>, plan: &Plan) -> Option<Page> {
    let kind = if input.once_in(3) { Kind::Copied } else { Kind::Written };
    let word = input.u64();
    let bits = vec![word; BITS_PER_PAGE as usize / 64].into_boxed_slice();
    let member = MemberId(any_name(input));
    let page = Page { array: plan.array, member, sequence: input.number(), page: input.below(2) as u32, kind, bits };
    Page::decode(&page.encode())
}

/// Superblocks of some volumes, then requests and answers to effects.
pub fn assembly(data: &[u8]) {
    let mut input = Input(data);
    let geometry = any_geometry(&mut input);
    let heads: Vec<Vec<u8>> = (0..1 + input.below(6))
        .map(|_| {
            let mut head = any_superblock(&mut input, geometry);
            head.extend(any_superblock(&mut input, geometry));
            if input.once_in(8) {
                head.truncate(input.below(SUPERBLOCKS_LENGTH as usize));
            }
            head
        })
        .collect();
    let size = if input.once_in(4) { input.number() } else { u64::MAX };
    let device = |(target, head)| Device { target: Target(target), name: "a volume", size, head: Some(head) };
    let devices: Vec<Device<'_>> = (0..).zip(heads.iter().map(Vec::as_slice)).map(device).collect();
    let (plan, reasons) = match assemble(None, &devices) {
        Assembly::Whole(plan) => (plan, Vec::new()),
        Assembly::Degraded(plan, reasons) => (plan, reasons),
        Assembly::Refused(reasons) => {
            assert!(!reasons.is_empty(), "a refusal has a reason");
            return assert!(reasons.iter().all(|reason| reason.to_string().contains(": ")), "and a remedy");
        }
    };
    assert!(reasons.iter().all(|reason| !reason.to_string().is_empty()));
    assert_eq!(plan.active.len(), plan.geometry.members as usize);
    let places = plan.active.iter().chain(&plan.joining).chain(&plan.superseded);
    let mut targets: Vec<Target> = places.map(|place| place.target).collect();
    targets.sort_unstable();
    targets.dedup();
    assert_eq!(targets.len(), plan.active.len() + plan.joining.len() + plan.superseded.len(), "a volume has one place");
    assert!(size >= plan.geometry.member_length());
    drive(&mut input, &plan);
}

/// Nothing that volumes answer makes the engine panic, or ask for what lies beyond a member.
fn drive(input: &mut Input<'_>, plan: &Plan) {
    if plan.geometry.size() > 1 << 30 {
        return;
    }
    let mut engine = Engine::new(Config::default(), Instant::ZERO, plan);
    let mut now = Instant::ZERO;
    let mut replies = 0;
    for number in 0..40 {
        if number < 8 {
            let operations = [Operation::Read, Operation::Write { fua: true }, Operation::Discard, Operation::Flush];
            let operation = operations[input.below(4)];
            let (offset, length) = (input.below(512) as u64 * 512, input.below(64) as u64 * 512);
            engine.submit(now, Request { id: RequestId(number), operation, offset, length });
        }
        let mut ended: Vec<(EffectId, Outcome)> = Vec::new();
        while let Some(effect) = engine.next_effect() {
            match Action::from(effect) {
                Action::Io(io) => {
                    assert!(io.offset + io.length <= plan.geometry.member_length(), "{io:?}");
                    let buffers = io.memory.iter().all(|slice| match slice.buffer {
                        BufferId::Request(_) => u64::from(slice.offset + slice.length) <= 64 * 512,
                        BufferId::Scratch(_) => true,
                    });
                    assert!(buffers, "{io:?}");
                    let result = if input.once_in(16) { Err(IoFailure::Io) } else { Ok(()) };
                    let outcome = match io.content.outcome(result, || &[]) {
                        Outcome::Bitmap(_) => Outcome::Bitmap(Pages((0..4).map(|_| any_page(input, plan)).collect())),
                        outcome => outcome,
                    };
                    ended.push((io.id, outcome));
                }
                Action::Reply { .. } => replies += 1,
                Action::Allocate { .. } | Action::Release { .. } => {}
            }
        }
        if ended.is_empty() {
            now = engine.next_deadline().unwrap_or(now).max(now);
            engine.tick(now);
        }
        for (effect, outcome) in ended {
            engine.complete(now, effect, outcome);
            #[cfg(debug_assertions)]
            assert_eq!(engine.check(), Ok(()));
        }
    }
    assert!(replies <= 8);
}
