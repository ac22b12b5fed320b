//! Life cycles of caching volumes under a provider that fails, hangs, answers late, repeats itself and lists
//! what was, and under SIGKILLs of the daemon between any two of its calls. At the end nothing of ours is rented, nothing
//! foreign was touched, and the bill covers what the provider would charge.
//!
//! The production daemon over the production local provider, in child processes: 16 devices at a time, each boosted,
//! written to and drained over and over. What the provider does is logged call by call; the parent reads the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use surgetank_model::random::Random;
use surgetank_provider::SystemClock;
use surgetank_provider::fakes::{Dialect, Fake, FakeAzure, FakeEc2, FakeGce};

use crate::cloud::cloud;
use crate::common::tables::Loop;
use crate::common::{Ends, MIB, Machine, eventually};
use crate::hypervisor::{Hypervisor, Plugs};
use crate::lives::log::{Log, Outcome};
use crate::lives::{End, Group, Mode, ground};

#[test]
fn daemon_in_a_child() {
    crate::lives::serve_if_asked();
}

/// No volume is made twice and lists tell the truth: then a journal knows of every volume at every moment.
#[test]
fn every_volume_is_in_a_journal_at_every_kill() {
    let group = Group::new(None);
    let mut seed = 0;
    let lives = lives(150);
    while group.log().lives().len() < lives {
        group.generation(Mode::Strict, seed);
        group.check_journals();
        seed += 1;
    }
    finish(&group, "without repeated calls and stale lists");
    assert_eq!(group.records(), group.foreign());
}

/// Everything at once. A volume that no journal knows is the sweep's.
#[test]
fn nothing_is_left_amid_all_faults() {
    let group = Group::new(None);
    let lives = lives(250);
    let mut seed = 1000;
    while group.log().faulted() < lives {
        group.generation(Mode::Wild, seed);
        seed += 1;
    }
    finish(&group, "with everything that can go wrong");
    assert_eq!(group.records(), group.foreign());
}

/// The same over Keystone, Cinder and Nova themselves, and a network that loses, delays and replaces calls: `SURGETANK_LIVES` of them in
/// which the daemon was killed.
#[test]
fn nothing_is_left_at_openstack() {
    let Some(cloud) = cloud() else { return };
    let tenant = cloud.tenant();
    let group = Group::of(&tenant);
    let lives = lives(8);
    let network = || tenant.faults.lock().unwrap();
    network().by_chance = Some((Random::from_seed(2000), 3));
    let mut seed = 2000;
    while group.log().cut() < lives {
        group.generation(Mode::Wild, seed);
        seed += 1;
    }
    network().by_chance = None;
    eventually("what was late has arrived", || network().late == 0);
    finish(&group, "at OpenStack, with everything that can go wrong");
    let (calls, faults) = {
        let network = network();
        (network.seen.len(), network.met.len())
    };
    println!("{calls} calls, {faults} of them met the network's faults");
    assert_eq!(tenant.volumes(), group.foreign());
}

/// How many lives a test is for: `SURGETANK_LIVES` asks for more than the usual number.
fn lives(usual: usize) -> usize {
    std::env::var("SURGETANK_LIVES").map_or(usual, |lives| lives.parse().unwrap())
}

/// The same over fakes of the other clouds, whose disks are loop devices with somebody else's beside them. What was on a volume that is
/// deleted is compared with what was written to the devices.
fn nothing_is_left_at<D: Dialect>(cloud: &str, fake: &Fake<D>, first_seed: u64)
where
    Fake<D>: Plugs,
{
    let machine = Machine::new();
    if Loop::over(&machine.backing("probe", MIB)).is_none() {
        return println!("skipped: no loop device can be had (needs root)");
    }
    let (begun, lives) = (Instant::now(), lives(4));
    let group = Group::at(cloud, fake);
    let hypervisor = Hypervisor::new(fake, group.tables(), group.path("images"));
    let (mut ledger, is_done) = (group.ledger(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| hypervisor.follow(&is_done, |image| ledger.deleted(image)));
        let _over = Ends(&is_done);
        fake.faults(|faults| faults.by_chance = Some((Random::from_seed(first_seed), 3)));
        let mut seed = first_seed;
        while group.log().cut() < lives {
            group.generation(Mode::Wild, seed);
            seed += 1;
        }
        fake.faults(|faults| faults.by_chance = None);
        fake.settle();
        // What arrives late is listed late as well, and the last daemon ends when it finds nothing listed.
        std::thread::sleep(ground::settings().listing_lag);
        finish(&group, &format!("at a fake of {cloud}, with everything that can go wrong"));
        eventually("no disk is left", || hypervisor.is_empty());
    });
    let (calls, faults) = (fake.take_sent().len(), fake.faults(|faults| faults.met.len()));
    println!(
        "{calls} calls, {faults} of them met the network's faults; {} disks, each beside somebody else's; {ledger}; {} s",
        hypervisor.count(),
        begun.elapsed().as_secs()
    );
    let left = group.left_of(fake.there_are());
    assert!(left.is_empty(), "volumes are left, of which it was asked: {left:#?}");
    assert_eq!(hypervisor.foreign_written(), 0, "disks of others were written to");
    assert_eq!(ledger.wrong(), None);
    // Few lives may all end before they absorb anything.
    assert!(lives < 100 || ledger.written() > 0, "it has seen nothing: {ledger}");
}

#[test]
fn nothing_is_left_at_aws() {
    nothing_is_left_at("aws", &FakeEc2::start(Arc::new(SystemClock), ground::settings()), 3000);
}

#[test]
fn nothing_is_left_at_gce() {
    let fake = FakeGce::start(Arc::new(SystemClock), ground::settings());
    fake.set_label_time(Duration::from_millis(100));
    nothing_is_left_at("gce", &fake, 5000);
}

#[test]
fn nothing_is_left_at_azure() {
    let fake = FakeAzure::start(Arc::new(SystemClock), ground::settings());
    fake.set_tag_time(Duration::from_millis(100));
    nothing_is_left_at("azure", &fake, 7000);
}

/// Until nothing is left, or a test says what is.
fn finish(group: &Group, title: &str) {
    assert_eq!(group.settle(), End::Settled);
    group.check_nothing_left();
    let log = group.log();
    table(&log, title);
    assert!(log.lives().values().all(|life| life.outcome() != Outcome::Leaked), "a life without an end");
    assert_eq!(log.lost(), None);
}

/// Faults by outcomes.
fn table(log: &Log, title: &str) {
    let mut rows: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    let lives = log.lives();
    for life in lives.values() {
        let column = match life.outcome() {
            Outcome::Used => 0,
            Outcome::Unused => 1,
            Outcome::Leaked => 2,
        };
        rows.entry("(all)").or_default()[column] += 1;
        for fault in &life.faults {
            rows.entry(fault).or_default()[column] += 1;
        }
    }
    let (faulted, cut, kills) = (log.faulted(), log.cut(), log.kills());
    println!("{title}: {} lives, {faulted} of them with faults, {cut} with a kill; {kills} kills", lives.len());
    println!("{:32} {:>18} {:>18} {:>8}", "lives with this fault", "used, deleted", "unused, deleted", "leaked");
    for (fault, [used, unused, leaked]) in rows {
        println!("{fault:32} {used:>18} {unused:>18} {leaked:>8}");
    }
}

#[test]
fn the_bill_covers_what_was_rented() {
    let group = Group::new(None);
    assert_eq!(group.bill(7), End::Settled);
    group.check_nothing_left();
    assert_eq!(group.records(), group.foreign());
}

/// Plants a bug and says what the checks say.
fn found(bug: &str, mode: Mode) -> Option<String> {
    let group = Group::new(Some(bug));
    // How far a generation comes before it is killed depends on what else the machine does: on a busy one many come to nothing.
    for seed in 0..400 {
        group.generation(mode, seed);
        if mode == Mode::Strict
            && let Err(finding) = group.journals()
        {
            return Some(format!("{finding} (generation {seed})"));
        }
        // Now and then the books are closed.
        if seed % 4 == 3
            && let End::Left(what) = group.settle()
        {
            return Some(format!("{what} (after generation {seed})"));
        }
    }
    None
}

#[test]
fn planted_leaks_are_found() {
    let bugs = [
        ("IntentNotPersisted", Mode::Strict),
        ("FailedDeleteIsDone", Mode::Strict),
        ("AskedIsDeleted", Mode::Strict),
        ("SweepIgnoresOrphans", Mode::Wild),
    ];
    std::thread::scope(|scope| {
        let searches = bugs.map(|(bug, mode)| (bug, scope.spawn(move || found(bug, mode))));
        for (bug, search) in searches {
            let finding = search.join().unwrap().unwrap_or_else(|| panic!("{bug} was not found"));
            println!("{bug}: {finding}");
        }
    });
}
