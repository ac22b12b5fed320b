//! Turns, pieces and windows: examples, and any order of requests, ends and leavings.

use std::collections::BTreeMap;

use proptest::prelude::*;
use surgetank_model::{Bandwidth, Iops};

use super::*;

const KIB: u64 = 1 << 10;
const GIB: u64 = 1 << 30;

fn windows() -> Windows {
    Windows { alone: Window { bytes: 1 << 20, piece: 1 << 20 }, shared: Window { bytes: 64 * KIB, piece: 32 * KIB } }
}

fn request(id: u64, operation: Operation, offset: u64, length: u64) -> Request {
    Request { id: RequestId(id), operation, offset, length }
}

fn client(number: u64) -> ClientId {
    ClientId(number)
}

/// Serves one piece after the other until `stop` says so or nothing is left.
fn serve(queue: &mut FairQueue, mut stop: impl FnMut(&Piece) -> bool) -> Vec<Piece> {
    let mut pieces = Vec::new();
    while let Some(piece) = queue.next(Instant::ZERO) {
        queue.ended(piece.serial);
        let ends = stop(&piece);
        pieces.push(piece);
        if ends {
            break;
        }
    }
    pieces
}

#[test]
fn one_client_alone_is_not_cut_short() {
    let mut queue = FairQueue::new(windows());
    for id in 0..8 {
        queue.push(Instant::ZERO, client(1), request(id, Operation::Read, id << 17, 128 * KIB));
    }
    let mut begun = 0;
    while let Some(piece) = queue.next(Instant::ZERO) {
        assert_eq!((piece.request.0, piece.length, piece.last), (begun, 128 * KIB, true));
        begun += 1;
    }
    assert_eq!(begun, 8, "all of them are in service at once");
    assert!(queue.is_empty());
}

#[test]
fn a_small_request_comes_next_however_much_others_have_asked_for() {
    let mut queue = FairQueue::new(windows());
    for id in 0..256 {
        queue.push(Instant::ZERO, client(1), request(id, Operation::WriteZeroes { fua: false }, 0, 4 * GIB));
        queue.push(Instant::ZERO, client(2), request(1000 + id, Operation::Read, 0, 32 << 20));
    }
    serve(&mut queue, |piece| piece.before > 1 << 20);
    queue.push(Instant::ZERO, client(3), request(5000, Operation::Read, 4096, 4096));
    let served = serve(&mut queue, |piece| piece.request.0 == 5000);
    assert_eq!(served.len(), 1, "{served:?}");
}

#[test]
fn small_requests_one_after_the_other_wait_for_no_round() {
    let mut queue = FairQueue::new(windows());
    let mut ids = 0..;
    let mut ask = |queue: &mut FairQueue, number: u64, length: u64| {
        let id = ids.next().unwrap();
        queue.push(Instant::ZERO, client(number), request(id, Operation::Read, 0, length));
        id
    };
    for number in 0..16 {
        ask(&mut queue, number, 4 * GIB);
    }
    serve(&mut queue, |piece| piece.before > 1 << 20);
    // Four for each round, in which everybody else is served a piece of 32 KiB: less than its share.
    for round in 0..64 {
        for _ in 0..4 {
            let id = ask(&mut queue, 99, 4096);
            let served = serve(&mut queue, |piece| piece.request.0 == id);
            assert_eq!(served.len(), 1, "in round {round}");
            serve(&mut queue, |_| true);
            (0..3).for_each(|_| drop(serve(&mut queue, |_| true)));
        }
    }
}

#[test]
fn what_a_client_zeroes_does_not_keep_its_own_reads_waiting() {
    for operation in [Operation::WriteZeroes { fua: true }, Operation::Discard] {
        let mut queue = FairQueue::new(windows());
        queue.push(Instant::ZERO, client(1), request(0, operation, 0, 4 * GIB));
        serve(&mut queue, |_| true);
        queue.push(Instant::ZERO, client(1), request(1, Operation::Read, 0, 4096));
        assert_eq!(serve(&mut queue, |piece| piece.request.0 == 1).len(), 1);
    }
}

#[test]
fn who_has_left_is_served_no_more() {
    let mut queue = FairQueue::new(windows());
    for id in 0..256 {
        queue.push(Instant::ZERO, client(1), request(id, Operation::WriteZeroes { fua: false }, 0, 4 * GIB));
    }
    queue.push(Instant::ZERO, client(2), request(999, Operation::Read, 0, 4096));
    let begun = queue.next(Instant::ZERO).unwrap();
    assert_eq!(queue.leave(client(1)).len(), 256);
    let left = serve(&mut queue, |_| false);
    assert_eq!(left.iter().map(|piece| piece.request.0).collect::<Vec<_>>(), [999]);
    queue.ended(begun.serial);
    assert!(queue.is_empty());
    assert!(queue.leave(client(1)).is_empty());
}

#[test]
fn what_waits_for_something_else_than_its_turn_keeps_nobody_waiting() {
    let mut queue = FairQueue::new(windows());
    let stuck: Vec<Piece> = (0..64)
        .map(|id| request(id, Operation::Read, 0, 128 * KIB))
        .map_while(|request| {
            queue.push(Instant::ZERO, client(1), request);
            queue.next(Instant::ZERO)
        })
        .collect();
    assert_eq!(stuck.len(), 8, "a window full");
    assert_eq!(queue.next_deadline(), Some(Instant::ZERO + OVERDUE));
    assert!(queue.next(Instant::ZERO + (OVERDUE - Duration::from_nanos(1))).is_none());
    queue.push(Instant::ZERO, client(2), request(99, Operation::Read, 0, 4096));
    let served: Vec<Piece> = std::iter::from_fn(|| queue.next(Instant::ZERO + OVERDUE)).collect();
    assert!(served.iter().any(|piece| piece.request.0 == 99));
    // Late answers count for nothing any more.
    stuck.iter().for_each(|piece| queue.ended(piece.serial));
    served.iter().for_each(|piece| queue.ended(piece.serial));
    assert_eq!(queue.in_service.cost, 0);
}

#[test]
fn windows_follow_the_limits() {
    let limits = |mib_s: u64, iops: Option<u64>| Limits {
        bandwidth: Some(Bandwidth::new(mib_s << 20)),
        iops: iops.map(Iops::new),
    };
    let held = Windows::new(limits(33, None), true);
    assert_eq!(held.shared, Window { bytes: (33 << 20) / 2000, piece: 16 * KIB });
    assert_eq!(held.alone, Window { bytes: ALONE_MIN_HELD, piece: PIECE_MAX });
    assert_eq!(Windows::new(limits(33, None), false).alone.bytes, ALONE_MIN);
    // A piece takes no longer than an operation: 500 a second of 64 KiB are 31 MiB/s.
    assert_eq!(Windows::new(limits(33, Some(500)), true).shared.piece, 64 * KIB);
    assert_eq!(Windows::new(limits(1, None), true).shared, Window { bytes: PIECE_MIN, piece: PIECE_MIN });
    assert_eq!(Windows::new(limits(125, Some(3000)), false).shared.piece, 128 * KIB);
    assert_eq!(Windows::new(limits(1 << 20, None), false).alone.bytes, ALONE_MAX);
    assert_eq!(Windows::new(Limits::NONE, false).shared.bytes, SHARED_DEFAULT);
    for (mib_s, iops) in [(0, Some(0)), (1 << 40, Some(1)), (1, Some(u64::MAX))] {
        let windows = Windows::new(limits(mib_s, iops), true);
        assert!(windows.shared.piece.is_power_of_two() && windows.shared.bytes >= windows.shared.piece);
    }
}

fn any_operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        Just(Operation::Read),
        any::<bool>().prop_map(|fua| Operation::Write { fua }),
        Just(Operation::Flush),
        Just(Operation::Discard),
        any::<bool>().prop_map(|fua| Operation::WriteZeroes { fua }),
    ]
}

#[derive(Clone, Debug)]
enum Act {
    Push { client: u64, operation: Operation, offset: u64, length: u64 },
    Next,
    Ended { which: usize },
    Leave { client: u64 },
    Wait { seconds: u64 },
}

fn any_act() -> impl Strategy<Value = Act> {
    let push =
        (0..4u64, any_operation(), 0..1u64 << 20, 1..1u64 << 15).prop_map(|(client, operation, offset, length)| {
            let length = if operation == Operation::Flush { 0 } else { length * 512 };
            Act::Push { client, operation, offset: offset * 512, length }
        });
    prop_oneof![
        6 => push,
        12 => Just(Act::Next),
        10 => any::<usize>().prop_map(|which| Act::Ended { which }),
        1 => (0..4u64).prop_map(|client| Act::Leave { client }),
        1 => (0..20u64).prop_map(|seconds| Act::Wait { seconds }),
    ]
}

proptest! {
    /// Every byte that was asked for is served once and in order or dropped with its client, pieces end where blocks do,
    /// and no more is in service than the window has.
    #[test]
    fn pieces_make_up_the_requests(acts in prop::collection::vec(any_act(), 1..300)) {
        let mut queue = FairQueue::new(windows());
        let mut now = Instant::ZERO;
        let mut waiting: BTreeMap<u64, (u64, Request, u64)> = BTreeMap::new();
        let mut in_service: Vec<(Instant, u64, u64)> = Vec::new();
        let mut ids = 0..;
        for act in acts {
            match act {
                Act::Push { client: number, operation, offset, length } => {
                    let request = request(ids.next().unwrap(), operation, offset, length);
                    waiting.insert(request.id.0, (number, request, 0));
                    queue.push(now, client(number), request);
                }
                Act::Next => {
                    let Some(piece) = queue.next(now) else {
                        prop_assert!(waiting.is_empty() || !in_service.is_empty(), "it stands still");
                        continue;
                    };
                    let (_, request, served) = waiting.get_mut(&piece.request.0).expect("it waits");
                    prop_assert_eq!((piece.before, piece.offset), (*served, request.offset + *served));
                    prop_assert_eq!(piece.operation, request.operation);
                    *served += piece.length;
                    prop_assert!(*served <= request.length && (piece.length > 0 || request.length == 0));
                    prop_assert_eq!(piece.last, *served == request.length);
                    prop_assert!(piece.last || (piece.offset + piece.length) % windows().shared.piece == 0);
                    if piece.last {
                        waiting.remove(&piece.request.0);
                    }
                    let bytes = if piece.operation == Operation::Discard { piece.length / 16 } else { piece.length };
                    in_service.push((now, piece.serial, bytes.max(4096)));
                    let counts = in_service.iter().filter(|(begun, ..)| now < *begun + OVERDUE);
                    let costs: Vec<u64> = counts.map(|(.., cost)| *cost).collect();
                    prop_assert!(costs.len() == 1 || costs.iter().sum::<u64>() <= windows().alone.bytes);
                }
                Act::Ended { which } if !in_service.is_empty() => {
                    queue.ended(in_service.swap_remove(which % in_service.len()).1);
                }
                Act::Ended { .. } => {}
                Act::Leave { client: number } => {
                    let mut dropped: Vec<u64> = queue.leave(client(number)).into_iter().map(|id| id.0).collect();
                    dropped.sort_unstable();
                    let of_client = |(_, (other, ..)): &(&u64, &(u64, Request, u64))| *other == number;
                    let expected: Vec<u64> = waiting.iter().filter(of_client).map(|(id, _)| *id).collect();
                    prop_assert_eq!(dropped, expected);
                    waiting.retain(|_, (other, ..)| *other != number);
                }
                Act::Wait { seconds } => now += Duration::from_secs(seconds),
            }
            prop_assert_eq!(queue.is_empty(), waiting.is_empty());
        }
    }

    /// Clients that always want more get the same, whatever they ask for, but for a piece and the longest request's debt.
    #[test]
    fn clients_share_equally(lengths in prop::collection::vec(1..64u64, 2..5), rounds in 50..400usize) {
        let mut queue = FairQueue::new(windows());
        let mut served = vec![0u64; lengths.len()];
        let mut owner = BTreeMap::new();
        let mut ids = 0..;
        let mut ask = |queue: &mut FairQueue, number: usize, owner: &mut BTreeMap<u64, usize>| {
            let id = ids.next().unwrap();
            owner.insert(id, number);
            queue.push(Instant::ZERO, client(number as u64), request(id, Operation::Read, 0, lengths[number] << 14));
        };
        for number in 0..lengths.len() {
            for _ in 0..4 {
                ask(&mut queue, number, &mut owner);
            }
        }
        for _ in 0..rounds * lengths.len() {
            let piece = queue.next(Instant::ZERO).unwrap();
            queue.ended(piece.serial);
            let number = owner[&piece.request.0];
            served[number] += piece.length;
            if piece.last {
                ask(&mut queue, number, &mut owner);
            }
        }
        let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
        prop_assert!(most - least <= 3 * windows().shared.piece, "{served:?}");
    }
}
