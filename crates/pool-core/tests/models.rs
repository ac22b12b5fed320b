//! Random runs of every part, each against what it must be.

mod support;

use surgetank_model::random::Random;
use surgetank_model::{Bandwidth, Bytes};
use surgetank_pool_core::id::{BenefactorId, Domain, Incarnation, Inode, MountId, SessionId};
use surgetank_pool_core::meta::group::Answer;
use surgetank_pool_core::meta::operation::Operation;
use surgetank_pool_core::meta::store::{Lease, Limits, MemoryStore, Transaction, Write};
use surgetank_pool_core::meta::value::{Kind, Node, Value};
use surgetank_pool_core::meta::{Attempt, GroupCommit, Key, Name, Reads, RequestId, attempt};
use surgetank_pool_core::placement::{CHUNK, Candidate, Lent, Media, Place, Protection, Request, Stripe, place};

/// Runs of a kind: `SURGETANK_FIRST` begins elsewhere, `SURGETANK_TIMES` multiplies their number.
#[allow(clippy::disallowed_methods, reason = "the test, not what it tests, has an environment")]
fn all(runs: u64, run: fn(u64) -> Result<(), String>) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("SURGETANK_FIRST").unwrap_or(0);
    for seed in first..first + runs * number("SURGETANK_TIMES").unwrap_or(1) {
        if let Err(what) = run(seed) {
            panic!("run {seed}: {what}");
        }
    }
}

#[test]
fn copies_lie_in_different_domains_and_everybody_takes_its_part() {
    all(2000, support::placement::run);
}

#[test]
fn no_piece_of_memory_is_used_twice_or_forgotten() {
    all(300, support::buffers::run);
}

#[test]
fn no_segment_is_filled_again_while_a_record_in_it_counts() {
    all(400, support::segments::run);
}

#[test]
fn compaction_loses_nothing_that_was_flushed_wherever_the_power_is_cut() {
    all(800, support::compaction::run);
}

#[test]
fn a_chunk_is_held_as_long_as_somebody_may_ask_for_it_and_no_longer() {
    all(800, support::holdings::run);
}

#[test]
fn everything_is_scrubbed_once_in_a_period_and_beside_requests_only_if_it_is_late() {
    all(500, support::scrub::run);
}

#[test]
fn a_warden_that_begins_asks_whoever_has_returned_before_it_copies_or_counts_a_group_as_lost() {
    all(2000, support::repair::run);
}

#[test]
fn what_a_benefactor_has_that_leaves_is_moved_before_it_may_go() {
    all(2000, support::leaving::run);
}

#[test]
fn nobody_who_is_well_is_declared_dead_and_whoever_is_dead_is() {
    all(200, support::membership::run);
}

#[test]
fn operations_take_place_one_after_the_other_and_the_target_sees_them_in_that_order() {
    all(800, support::metadata::run);
}

#[test]
fn the_target_sees_what_was_committed_in_order_and_passes_over_what_was_removed_before_it_came() {
    all(4000, support::publishing::run);
}

#[test]
fn every_name_of_a_file_is_its_own_and_the_target_has_the_newest_version_under_each() {
    all(400, support::links::run);
}

#[test]
fn what_a_session_has_written_lies_upon_what_others_have_committed_and_nothing_else_does() {
    all(1000, support::written::run);
}

#[test]
fn whatever_the_parity_allows_to_be_lost_every_byte_is_read_as_it_was_committed() {
    all(800, support::parity::run);
}

#[test]
fn what_users_have_is_what_their_files_are_and_no_manager_forgets_what_it_gave() {
    all(2000, support::quota::run);
    all(200, support::quota::edges::run);
}

#[test]
fn locks_are_as_a_model_has_them_that_knows_each_byte() {
    all(500, support::locks::owners);
}

#[test]
fn no_two_sessions_have_locks_that_exclude_each_other() {
    all(400, support::locks::run);
}

#[test]
fn a_mount_shows_the_union_of_the_pool_and_its_target_and_nothing_comes_back() {
    all(1500, support::union::run);
}

#[test]
fn a_stuck_target_stalls_nobody_and_no_file_waits_longer_than_the_limit_for_younger_ones() {
    all(400, support::draining::run);
}

#[test]
fn thousands_of_benefactors_are_filled_evenly() {
    let imbalance = imbalance(3000, 3000);
    assert!(imbalance <= 1.1, "the fullest has {imbalance} times what they have on average");
}

/// What an N-N checkpoint of 3,000 mounts does to a store that takes 1,500 transactions a second: each mount creates one file after the
/// other, through four managers, until there are 100,000.
#[test]
fn a_storm_of_a_hundred_thousand_creates_takes_at_most_five_seconds_of_a_store() {
    const MOUNTS: u64 = 3000;
    const FILES: u64 = 100_000;
    const TRANSACTIONS_PER_S: u64 = 1500;
    let mut store = MemoryStore::default();
    let root = Node::new(Kind::Directory, MountId(1), None, (0o755, 0, 0));
    let mut writes = vec![Write::Put(Key::Node(Inode(1)), Value::Node(root))];
    let session = |at: u64| (SessionId(at), Lease(at));
    writes.extend(
        (0..MOUNTS).map(|at| Write::PutLeased(Key::Session(SessionId(at)), Value::Session(SessionId(at)), Lease(at))),
    );
    store.commit(&Transaction { compares: Vec::new(), writes });
    let limits = Limits { operations: 128, ..Limits::NONE };
    let mut managers: Vec<GroupCommit> = (0..4).map(|at| GroupCommit::new(at, Lease(1_000_000 + at), limits)).collect();
    let submit = |store: &MemoryStore, manager: &mut GroupCommit, file: u64, mount: u64| {
        let name = Name::new(format!("rank.{file}").as_bytes()).expect("it is a name");
        let at = (Inode(1), name);
        let create = Operation::Create { at, fresh: 10 + file, writer: session(mount), owner: (0o644, 1, 1) };
        let mut reads = Reads::default();
        loop {
            match attempt(&create, &reads) {
                Attempt::Read(keys, _) => keys.into_iter().for_each(|key| {
                    let stored = store.get(&key).cloned();
                    reads.key(key, stored);
                }),
                Attempt::Commit(transaction, reply) => {
                    assert!(reply.is_ok(), "a file is created");
                    return manager.submit(RequestId(file), transaction, 0);
                }
            }
        }
    };
    for mount in 0..MOUNTS {
        submit(&store, &mut managers[(mount % 4) as usize], mount, mount);
    }
    let (mut sent, mut created, mut transactions) = (MOUNTS, 0, 0);
    while created < FILES {
        for manager in &mut managers {
            let Some((id, transaction)) = manager.next_commit() else { continue };
            transactions += 1;
            let outcome = store.commit(&transaction);
            manager.complete(id, &outcome);
            while let Some((request, answer)) = manager.next_answer() {
                assert!(matches!(answer, Answer::Committed(_)), "{request:?} is refused");
                created += 1;
                if sent < FILES {
                    submit(&store, manager, sent, sent % MOUNTS);
                    sent += 1;
                }
            }
        }
    }
    assert!(transactions <= 5 * TRANSACTIONS_PER_S, "{transactions} transactions");
    assert!(store.get(&Key::Changed(Inode(1))).is_some(), "the directory has changed");
}

/// The chunks of the fullest benefactor relative to the mean, after files of 1 to 4 GiB with two copies were placed on 64 benefactors
/// each, out of so many in racks of 40.
fn imbalance(benefactors: u32, files: u64) -> f64 {
    let mut random = Random::from_seed(1);
    let of = Bytes::from_gib(64);
    let lent = Lent { free: of, of, rate: Bandwidth::from_mib_s(1000), drain: None };
    let mut candidates: Vec<Candidate> = (0..benefactors)
        .map(|id| Candidate {
            place: Place { id: BenefactorId(id), incarnation: Incarnation(1) },
            domain: Domain(id / 40),
            memory: Some(lent),
            ssd: None,
        })
        .collect();
    let mut chunks = vec![0_u64; benefactors as usize];
    for file in 0..files {
        let bytes = Bytes::from_mib(1024 + random.below(3072));
        let request =
            Request { bytes, protection: Protection::Copies(2), media: Media::Any, width_max: 64, spread: file };
        let layout = place(&request, &candidates).expect("there is room for all of them");
        let stripe = Stripe::new(&layout);
        for chunk in 0..bytes.get().div_ceil(CHUNK.get()) {
            for place in &layout.columns[stripe.column(chunk)].places {
                let at = place.id.0 as usize;
                chunks[at] += 1;
                let lent = candidates[at].memory.as_mut().expect("all lend memory");
                lent.free = Bytes::new(lent.free.get() - CHUNK.get());
            }
        }
    }
    let mean = chunks.iter().sum::<u64>() as f64 / f64::from(benefactors);
    chunks.iter().max().copied().unwrap_or(0) as f64 / mean
}
