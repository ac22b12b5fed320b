//! What places know of rows that lack chunks, and in which order groups are made again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use surgetank_model::{Bandwidth, Bytes, Instant};
use surgetank_pool_core::benefactor::holdings::{Entry, GroupOf, Instance, Table};
use surgetank_pool_core::id::{BenefactorId, Incarnation, Inode, SessionId, Version};
use surgetank_pool_core::parity::{ELSEWHERE, Parity, rows_named, still_the_same, taken_over};
use surgetank_pool_core::placement::{Column, Layout, Place, Tier};
use surgetank_pool_core::repair::{Config, Job, Of, Repair};

fn entry(number: u64) -> Entry {
    Entry { instance: Instance { session: SessionId(1), number }, length: 1, crc: 0 }
}

fn place(id: u32) -> Place {
    Place { id: BenefactorId(id), incarnation: Incarnation(1) }
}

fn of(inode: u64) -> Of {
    let group = GroupOf { inode: Inode(inode), group: 0 };
    Of { group, version: Version::NONE.next(), by: SessionId(1) }
}

#[test]
fn who_takes_a_place_over_knows_rows_of_which_it_has_no_member() {
    let of = Parity::new(4, 1).unwrap();
    let column = |first| Column { places: (first..first + 5).map(place).collect(), tier: Tier::Memory, weight: 1 };
    let layout = Layout { columns: vec![column(0), column(10)], parity: Some(of) };
    // A row of one chunk, and one that begins with a hole.
    let present = [0, 5, 6];
    let (one, other) = (of.number(0, 4), of.number(1, 4));
    let known: Table = [0, 5, 6, one, other].map(|number| (number, entry(number.into()))).into();
    let taken = |at, columns: &[usize]| {
        taken_over(&layout, at, &columns.iter().copied().collect(), present.into_iter(), &known)
    };
    let numbers = |table: Option<Table>| table.map(|table| table.into_keys().collect::<Vec<u32>>());
    assert_eq!(numbers(taken(place(1), &[0])), Some(vec![ELSEWHERE, one | ELSEWHERE]));
    assert_eq!(numbers(taken(place(0), &[0])), Some(vec![0, one | ELSEWHERE]));
    let of_second = vec![5 | ELSEWHERE, 6 | ELSEWHERE, other | ELSEWHERE];
    assert_eq!(numbers(taken(place(10), &[1])), Some(of_second));
    assert_eq!(numbers(taken(place(14), &[1])), Some(vec![other, 5 | ELSEWHERE, 6 | ELSEWHERE]));
    // Of a member nobody has told.
    let mut less = known.clone();
    less.remove(&one);
    assert_eq!(taken_over(&layout, place(1), &BTreeSet::from([0]), present.into_iter(), &less), None);
    assert!(taken_over(&layout, place(10), &BTreeSet::from([1]), present.into_iter(), &less).is_some());
}

#[test]
fn a_table_tells_of_rows_that_it_names_alone() {
    let table: Table = [(3, entry(3)), (4 | ELSEWHERE, entry(4))].into();
    let all = Some(Table::from([(3, entry(3)), (4, entry(4))]));
    assert_eq!(rows_named(table.clone(), 3), all);
    assert_eq!(rows_named(table.clone(), 4), all);
    assert_eq!(rows_named(table, 5), None);
    assert_eq!(rows_named(Table::new(), 0), None);
}

#[test]
fn only_what_was_drained_and_is_the_same_leaves_the_pool() {
    let drained = BTreeMap::from([(0, entry(10).instance), (1, entry(11).instance), (2, entry(12).instance)]);
    // One is the same, one was written over, nobody knows of one, and some were not drained.
    let now = Table::from([(0, entry(10)), (1, entry(21)), (3, entry(13))]);
    assert_eq!(still_the_same(&drained, 0..6, &now), BTreeSet::from([0]));
    assert_eq!(still_the_same(&drained, 1..6, &now), BTreeSet::new());
}

#[test]
fn groups_that_lack_too_much_hold_up_no_others() {
    let rate = Bandwidth::from_mib_s(1);
    let config = Config {
        idle: rate,
        beside: rate,
        foreground_for: Duration::ZERO,
        at_once: 2,
        retry: Duration::from_millis(10),
    };
    let mut repair = Repair::new(config);
    let layout = |ids: std::ops::Range<u32>| Layout {
        columns: vec![Column { places: ids.map(place).collect(), tier: Tier::Memory, weight: 1 }],
        parity: Parity::new(2, 1).ok(),
    };
    for id in 0..6 {
        repair.alive(BenefactorId(id), Incarnation(1));
        repair.inventory(place(id), &BTreeSet::new());
    }
    // Two of three are lost of many groups, and one of a group that comes after them.
    (0..20).for_each(|inode| repair.group(of(inode), &layout(0..3), Bytes::from_mib(60)));
    repair.group(of(99), &layout(3..6), Bytes::from_mib(60));
    [0, 1, 3].into_iter().for_each(|id| repair.died(BenefactorId(id)));
    let mut now = Instant::ZERO;
    let first = repair.next_job(now).expect("there is one");
    assert_eq!(first.of, of(99), "what can be made is first");
    repair.ended(now, first.id, true);
    repair.group_gone(of(99));
    // What cannot be made takes no time of what can.
    now += Duration::from_secs(30);
    let in_vain: Vec<Job> = std::iter::from_fn(|| {
        let job = repair.next_job(now)?;
        repair.ended(now, job.id, false);
        Some(job)
    })
    .collect();
    assert_eq!(in_vain.len(), 20, "each is tried, and nothing waits for it");
    // What is made does.
    now += Duration::from_secs(1);
    let short = repair.next_job(now).expect("rows that lack chunks may be whole");
    repair.ended(now, short.id, true);
    assert!(repair.next_job(now).is_none(), "30 MiB were made");
    assert!(repair.next_job(now + Duration::from_secs(30)).is_some());
}
