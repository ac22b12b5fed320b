//! What a set of volumes is: whole, degraded, or refused with the remedy.

use surgetank_array::effect::Target;
use surgetank_array::format::{MemberState, Superblock};
use surgetank_array::{ArrayId, Assembly, Device, MemberId, Options, Reason, Regions, assemble, create};

const ARRAY: ArrayId = ArrayId([0xaa; 16]);
const SIZE: u64 = 256 << 10;

fn member(number: u8) -> MemberId {
    MemberId([number; 16])
}

/// Two members, 1 and 2.
fn superblocks(array: ArrayId) -> Vec<Superblock> {
    let options = Options { array, logical_block: 512, chunk: 4096, region: 8192, regions: Regions::Blank };
    let volumes = [(Target(0), member(1), SIZE), (Target(1), member(2), SIZE)];
    let creation = create(&options, &volumes).expect("they are of one size");
    let newest = creation.superblocks.iter().filter(|(_, offset, _)| *offset == 0);
    newest.map(|(_, _, bytes)| Superblock::decode(bytes).expect("it is valid")).collect()
}

fn head(superblock: &Superblock) -> Vec<u8> {
    let mut head = vec![0; 8192];
    let at = superblock.offset() as usize;
    head[at..at + 4096].copy_from_slice(&superblock.encode());
    head
}

fn assembled(heads: &[Vec<u8>]) -> Assembly {
    let names = ["a", "b", "c", "d"];
    let device = |at: usize| Device { target: Target(at as u32), name: names[at], size: SIZE, head: Some(&heads[at]) };
    let devices: Vec<_> = (0..heads.len()).map(device).collect();
    assemble(Some(ARRAY), &devices)
}

fn refusal(heads: &[Vec<u8>]) -> Vec<Reason> {
    match assembled(heads) {
        Assembly::Refused(reasons) => {
            assert!(reasons.iter().all(|reason| reason.to_string().contains(": ")), "{reasons:?} have a remedy");
            reasons
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_members_are_an_array_and_a_missing_one_is_named() {
    let found = superblocks(ARRAY);
    let heads: Vec<_> = found.iter().map(head).collect();
    assert!(matches!(assembled(&heads), Assembly::Whole(_)));
    assert_eq!(refusal(&heads[..1]), [Reason::Missing { slot: 1, member: member(2) }]);
    assert_eq!(refusal(&[vec![0; 8192]])[0], Reason::Nothing(format!("array {ARRAY}")));
}

#[test]
fn a_replaced_member_is_never_taken_for_its_successor() {
    let mut found = superblocks(ARRAY);
    let old = found[1].clone();
    // Member 3 has replaced it, and member 1 knows.
    let mut new = Superblock { member: member(3), generation: 9, ..old.clone() };
    new.members[1] = member(3);
    found[0] = Superblock { generation: 9, members: new.members.clone(), ..found[0].clone() };
    let without = [head(&found[0]), head(&old)];
    let reasons = refusal(&without);
    assert!(reasons.contains(&Reason::Missing { slot: 1, member: member(3) }), "{reasons:?}");
    assert!(reasons.contains(&Reason::Stale("b".to_owned(), member(3), 1)), "{reasons:?}");
    match assembled(&[head(&found[0]), head(&old), head(&new)]) {
        Assembly::Degraded(plan, reasons) => {
            assert_eq!(plan.active[1].target, Target(2));
            assert_eq!(plan.superseded[0].target, Target(1));
            assert_eq!(reasons, [Reason::Stale("b".to_owned(), member(3), 1)]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_joining_member_never_counts_and_goes_on_only_if_it_missed_nothing() {
    let found = superblocks(ARRAY);
    let joining = Superblock { member: member(3), state: MemberState::Joining, ..found[1].clone() };
    let [first, second] = [head(&found[0]), head(&found[1])];
    assert_eq!(refusal(&[first.clone(), head(&joining)]), [Reason::Missing { slot: 1, member: member(2) }]);
    match assembled(&[first, second, head(&joining)]) {
        Assembly::Whole(plan) => assert_eq!(plan.joining[0].target, Target(2)),
        other => panic!("{other:?}"),
    }
    let newer = Superblock { generation: 7, ..found[0].clone() };
    match assembled(&[head(&newer), head(&found[1]), head(&joining)]) {
        Assembly::Degraded(plan, reasons) => {
            assert!(plan.joining.is_empty());
            assert_eq!(reasons, [Reason::StaleJoin("c".to_owned())]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn foreign_copied_claimed_damaged_and_shrunk_volumes_are_named() {
    let found = superblocks(ARRAY);
    let [first, second] = [head(&found[0]), head(&found[1])];
    let other = ArrayId([0xbb; 16]);
    let foreign = head(&superblocks(other)[0]);
    match assembled(&[first.clone(), second.clone(), foreign.clone()]) {
        Assembly::Degraded(_, reasons) => assert_eq!(reasons, [Reason::Foreign("c".to_owned(), other)]),
        decision => panic!("{decision:?}"),
    }
    let twins = refusal(&[first.clone(), second.clone(), second.clone()]);
    assert_eq!(twins[0], Reason::Twins("b".to_owned(), "c".to_owned(), member(2)));
    let mut claimed = second.clone();
    let of_other = Superblock { sequence: 3, ..superblocks(other)[1].clone() };
    claimed[4096..].copy_from_slice(&of_other.encode());
    assert!(refusal(&[first.clone(), claimed]).contains(&Reason::TwoArrays("b".to_owned(), ARRAY, other)));
    let mut damaged = second.clone();
    damaged[100] ^= 1;
    assert!(refusal(&[first.clone(), damaged]).contains(&Reason::Damaged("b".to_owned())));
    let needed = found[0].geometry.member_length();
    let device = |name, size, head| Device { target: Target(size as u32), name, size, head: Some(head) };
    let shrunk = assemble(Some(ARRAY), &[device("a", SIZE, &first[..]), device("b", needed - 512, &second[..])]);
    let expected = Reason::Shrunk { name: "b".to_owned(), size: needed - 512, needed };
    assert_eq!(shrunk, Assembly::Refused(vec![expected]));
    let unreadable = Device { target: Target(1), name: "b", size: SIZE, head: None };
    match assemble(None, &[device("a", SIZE, &first[..]), unreadable]) {
        Assembly::Refused(reasons) => assert!(reasons.contains(&Reason::Unreadable("b".to_owned())), "{reasons:?}"),
        decision => panic!("{decision:?}"),
    }
    let several = assemble(None, &[device("a", SIZE, &first[..]), device("b", SIZE + 1, &foreign[..])]);
    assert!(matches!(several, Assembly::Refused(reasons) if matches!(reasons[..], [Reason::Several(_)])));
}

#[test]
fn volumes_of_different_sizes_are_no_array() {
    let options = Options { array: ARRAY, logical_block: 512, chunk: 4096, region: 8192, regions: Regions::Blank };
    let volumes = [(Target(0), member(1), SIZE), (Target(1), member(2), SIZE + 4096)];
    let refusal = create(&options, &volumes).expect_err("they differ");
    assert!(refusal.0.contains("use volumes of one size"), "{refusal}");
    assert!(create(&options, &[volumes[0], (Target(1), member(1), SIZE)]).is_err());
    assert!(create(&options, &[]).is_err());
}
