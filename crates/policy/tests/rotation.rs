//! Rotation over members in steps of a second: credits that last, volumes that are counted, bugs that are found.

use std::time::Duration;

use proptest::prelude::*;
use surgetank_model::volume_type::{CreditUnit, Credits};
use surgetank_model::{Bandwidth, Bytes, Catalog, Instant};
use surgetank_policy::Refusal;
use surgetank_policy::budget::Budget;
use surgetank_policy::rotation::planted::{Bug, plant};
use surgetank_policy::rotation::{
    Config, Copying, Learned, Progress, Rotation, Sample, Served, SlotState, Trouble, Way,
};

/// A member as its provider keeps it.
#[derive(Clone, Copy, Debug)]
struct Volume {
    credits: Credits,
    level: f64,
    /// Since its creation it has been asked for more than it gave.
    starved: bool,
}

impl Volume {
    fn new(credits: Credits) -> Self {
        Self { level: credits.bucket as f64, credits, starved: false }
    }

    /// A second of so many operations.
    fn serve(&mut self, asked: f64) -> f64 {
        let baseline = self.credits.baseline_per_s as f64;
        let most = (self.credits.burst_per_s as f64).min(self.level + baseline);
        let served = asked.min(most);
        self.starved |= served + 1e-6 < asked.min(self.credits.burst_per_s as f64);
        self.level = (self.level + baseline - served).min(self.credits.bucket as f64);
        served
    }
}

#[derive(Clone, Copy, Debug)]
enum Joining {
    Setup { left_s: f64 },
    Copy { volume: Volume, left: f64 },
    Removal { left_s: f64 },
}

/// An array that serves a demand.
struct World {
    rotation: Rotation,
    config: Config,
    members: Vec<(Volume, Option<Joining>)>,
    holds: Bytes,
    write_share: f64,
    setup_s: f64,
    removal_s: f64,
    now: Instant,
    /// Every so many-th creation is refused; 0: none.
    refuse_every: u32,
    created: u32,
    /// Until then every creation is refused.
    refused_until_s: u64,
    refused: Vec<Instant>,
    begun: Vec<Instant>,
    extra_most: u32,
    replaced: u32,
    /// Seconds of members with too few credits.
    starved_s: u32,
}

impl World {
    fn new(config: Config, holds: Bytes, write_share: f64, budget: Budget) -> Self {
        let now = Instant::ZERO;
        let member = (Volume::new(config.credits[0]), None);
        Self {
            rotation: Rotation::new(now, config.clone(), budget, &Learned::default()),
            members: vec![member; config.slots as usize],
            setup_s: config.setup.as_secs_f64(),
            removal_s: config.removal.as_secs_f64(),
            config,
            holds,
            write_share,
            now,
            refuse_every: 0,
            created: 0,
            refused_until_s: 0,
            refused: Vec::new(),
            begun: Vec::new(),
            extra_most: 0,
            replaced: 0,
            starved_s: 0,
        }
    }

    /// A second in which each member is asked for so many operations of 4 KiB.
    fn second(&mut self, asked: f64) {
        let copy_bytes = self.config.copy.rate.get() as f64;
        let copy_ops = copy_bytes / self.config.copy.io_size.get() as f64;
        let mut samples = Vec::new();
        let mut told = Vec::new();
        for (slot, (member, joining)) in self.members.iter_mut().enumerate() {
            let slot = u32::try_from(slot).unwrap();
            let mut sample = Sample { holds: self.holds, ..Sample::default() };
            let mut copied = 0.0;
            match joining {
                Some(Joining::Setup { left_s }) => {
                    *left_s -= 1.0;
                    if *left_s <= 0.0 {
                        let volume = Volume::new(self.config.credits[0]);
                        *joining = Some(Joining::Copy { volume, left: self.holds.get() as f64 });
                        told.push((slot, Progress::Attached));
                    }
                }
                Some(Joining::Copy { volume, left }) => {
                    // Without credits the copy has a quarter of what the member gives.
                    let baseline = member.credits.baseline_per_s as f64;
                    let share = if member.level > baseline { f64::INFINITY } else { baseline / 4.0 };
                    copied = copy_bytes.min(*left).min(copy_bytes * share / copy_ops);
                    let operations = copied / copy_bytes * copy_ops;
                    let served = volume.serve(operations + asked * self.write_share);
                    sample.joining = Served { operations: served, bytes: copied + served * 4096.0 };
                    *left -= copied;
                }
                Some(Joining::Removal { left_s }) => {
                    *left_s -= 1.0;
                    if *left_s <= 0.0 {
                        *joining = None;
                        told.push((slot, Progress::Deleted));
                    }
                }
                None => {}
            }
            let operations = copied / copy_bytes * copy_ops;
            let served = member.serve(operations + asked);
            self.starved_s += u32::from(std::mem::take(&mut member.starved));
            sample.served = Served { operations: served, bytes: copied + (served - operations).max(0.0) * 4096.0 };
            sample.copied = Bytes::new(copied as u64);
            samples.push(sample);
            if let Some(Joining::Copy { volume, left }) = joining
                && *left <= 0.0
            {
                *member = *volume;
                *joining = Some(Joining::Removal { left_s: self.removal_s });
                self.replaced += 1;
                told.push((slot, Progress::Replaced));
            }
        }
        self.now += Duration::from_secs(1);
        self.rotation.observe(self.now, &samples);
        told.into_iter().for_each(|(slot, progress)| self.rotation.tell(self.now, slot, progress));
        self.decide();
    }

    fn decide(&mut self) {
        while let Some(slot) = self.rotation.next(self.now) {
            self.begun.push(self.now);
            self.created += 1;
            let joining = &mut self.members[slot as usize].1;
            assert!(joining.is_none(), "slot {slot} is being replaced already");
            let is_out = self.now < Instant::ZERO + Duration::from_secs(self.refused_until_s);
            if is_out || (self.refuse_every > 0 && self.created.is_multiple_of(self.refuse_every)) {
                self.refused.push(self.now);
                self.rotation.tell(self.now, slot, Progress::Refused(Refusal::Quota));
            } else {
                *joining = Some(Joining::Setup { left_s: self.setup_s });
            }
            let extra = self.members.iter().filter(|(_, joining)| joining.is_some()).count();
            self.extra_most = self.extra_most.max(u32::try_from(extra).unwrap());
        }
    }
}

/// Credits for so many seconds of the burst rate; the copy of what a member holds takes `copy_s`.
fn config(way: Way, slots: u32, burst_s: u64, copy_s: u64) -> (Config, Bytes) {
    let volume_type = Catalog::builtin().find("aws", "gp2").unwrap().clone();
    let copying = Copying { rate: Bandwidth::from_mib_s(10), io_size: Bytes::from_mib(1) };
    let mut config = Config::of(&volume_type, slots, Bytes::from_gib(10), way, copying);
    config.io_unit = None;
    let unit = CreditUnit::Operations;
    config.credits = vec![Credits { unit, baseline_per_s: 100, burst_per_s: 3000, bucket: 2900 * burst_s }];
    (config, Bytes::from_mib(10 * copy_s))
}

fn run(world: &mut World, seconds: u64, asked: impl Fn(u64) -> f64) {
    (0..seconds).for_each(|second| world.second(asked(second)));
}

/// Ten members, one at a time, at the burst rate, for three lives of a full bucket.
fn saturated() -> World {
    let (config, holds) = config(Way::Staggered, 10, 1862, 100);
    let mut world = World::new(config, holds, 0.5, Budget::default());
    run(&mut world, 3 * 1862, |_| 2980.0);
    world
}

#[test]
fn a_saturated_array_keeps_its_credits_with_one_extra_member() {
    let world = saturated();
    assert_eq!((world.starved_s, world.extra_most), (0, 1));
    assert!(world.replaced >= 20, "{}", world.replaced);
}

#[test]
fn members_are_replaced_as_late_as_is_safe() {
    // After the first round, which spreads them, each lives until its credits are nearly spent.
    let (config, holds) = config(Way::Staggered, 10, 1862, 100);
    let mut world = World::new(config, holds, 0.0, Budget::default());
    let mut left = Vec::new();
    for _ in 0..5 * 1862 {
        let before: Vec<(f64, bool)> = world
            .members
            .iter()
            .map(|(member, joining)| (member.level, matches!(joining, Some(Joining::Copy { .. }))))
            .collect();
        let replaced = world.replaced;
        world.second(2980.0);
        if world.replaced > replaced && world.replaced > 10 {
            left.push(before.iter().filter(|(_, copying)| *copying).map(|(level, _)| *level).fold(f64::MAX, f64::min));
        }
    }
    let bucket = world.config.credits[0].bucket as f64;
    let mean = left.iter().sum::<f64>() / left.len() as f64;
    assert!(world.starved_s == 0 && left.len() > 20);
    assert!(mean < 0.05 * bucket, "{} of {bucket} credits are left at the end of a member's life", mean);
}

#[test]
fn what_is_served_from_the_baseline_is_not_rotated() {
    let (config, holds) = config(Way::Staggered, 4, 300, 20);
    let mut world = World::new(config, holds, 0.5, Budget::default());
    run(&mut world, 5000, |_| 99.0);
    assert_eq!(world.created, 0);
    // Nor do bursts that the pauses between them refill.
    run(&mut world, 20_000, |second| if second % 1000 < 30 { 3000.0 } else { 0.0 });
    assert_eq!(world.created, 0);
}

#[test]
fn never_is_never_but_for_what_is_asked_for() {
    let (config, holds) = config(Way::Never, 4, 300, 20);
    let mut world = World::new(config, holds, 0.5, Budget::default());
    run(&mut world, 1000, |_| 3000.0);
    assert_eq!(world.created, 0);
    (0..4).for_each(|slot| world.rotation.ask(slot));
    run(&mut world, 400, |_| 3000.0);
    assert_eq!((world.replaced, world.extra_most), (4, 1));
}

#[test]
fn all_are_replaced_together() {
    let (config, holds) = config(Way::All, 10, 1862, 200);
    let mut world = World::new(config, holds, 0.0, Budget::default());
    run(&mut world, 2 * 1862, |_| 2980.0);
    assert_eq!((world.starved_s, world.extra_most, world.replaced), (0, 10, 20));
    assert_eq!(world.begun[0], world.begun[9]);
}

/// As many refusals as the provider likes: none is followed by another attempt at once, and the rest goes on.
fn refused() -> World {
    let (config, holds) = config(Way::Staggered, 4, 600, 20);
    let mut world = World::new(config, holds, 0.0, Budget::default());
    world.refuse_every = 2;
    run(&mut world, 3000, |_| 2900.0);
    world
}

fn pauses_after_refusals(world: &World) -> bool {
    world.refused.iter().all(|refused| {
        !world.begun.iter().any(|begun| begun > refused && begun.since(*refused) < Duration::from_secs(1))
    })
}

fn waits_after_refusals(world: &World) -> bool {
    pauses_after_refusals(world) && world.begun.windows(2).all(|two| two[1] > two[0])
}

#[test]
fn a_refused_replacement_waits_and_the_rest_goes_on() {
    let world = refused();
    assert!(waits_after_refusals(&world) && world.refused.len() > 3 && world.starved_s == 0, "{}", world.starved_s);
}

#[test]
fn a_refusal_is_told_with_the_next_attempt() {
    let (config, holds) = config(Way::Staggered, 2, 300, 20);
    let mut world = World::new(config, holds, 0.0, Budget::default());
    world.refuse_every = 1;
    run(&mut world, 290, |_| 2900.0);
    let waiting = world.rotation.status().waiting.unwrap();
    assert!(waiting.starts_with("the provider's quota is used up") && waiting.contains("next attempt"), "{waiting}");
}

/// The provider refuses until all credits have ended, and without credits a copy takes many times as long. Of the time after all have
/// credits again: how much longer than its rate says a copy is taken to be, and the seconds of 1500 for which a member had too few.
fn after_an_outage(seed: u64) -> (f64, u32) {
    let (mut config, holds) = config(Way::Staggered, 2, 300, 40);
    config.copy.io_size = Bytes::new(64 << 10);
    config.seed = seed;
    let mut world = World::new(config, holds, 0.2, Budget::default());
    world.refused_until_s = 2000;
    run(&mut world, 2000, |_| 2000.0);
    assert!(world.starved_s > 1000 && world.replaced == 0);
    let mut waited = 0;
    while world.members.iter().any(|(member, joining)| joining.is_some() || member.level < 10_000.0) {
        world.second(2000.0);
        waited += 1;
        assert!(waited < 4000, "the array does not recover: {:?}", world.rotation.status());
    }
    let (factor, before) = (world.rotation.learned(world.now).copy_factor.unwrap(), world.starved_s);
    run(&mut world, 1500, |_| 2000.0);
    (factor, world.starved_s - before)
}

#[test]
fn an_array_whose_credits_have_ended_recovers_when_members_can_be_replaced_again() {
    for seed in 0..20 {
        let (factor, starved_s) = after_an_outage(seed);
        assert!(
            starved_s == 0 && factor < 1.2,
            "seed {seed}: {starved_s} s without credits, copies take {factor} times as long"
        );
    }
}

/// Creating a volume takes longer than full credits last.
fn slow_provider() -> World {
    let (mut config, holds) = config(Way::Staggered, 1, 300, 40);
    config.setup = Duration::from_secs(400);
    let mut world = World::new(config, holds, 0.0, Budget::default());
    run(&mut world, 4000, |_| 2900.0);
    world
}

#[test]
fn late_is_better_than_never() {
    let world = slow_provider();
    // A bucket lasts for 300 s and a replacement takes 440 s, which begins when half of the credits are left.
    assert!(world.replaced >= 5 && world.extra_most == 1, "{}", world.replaced);
    assert!(world.starved_s < 2200, "{} s", world.starved_s);
}

/// A budget of USD a day that pays for five replacements; how many there were.
fn limited() -> World {
    let (mut config, holds) = config(Way::Staggered, 4, 600, 40);
    config.tariff.usd_per_gib_hour = Some(0.36);
    // 10 GiB cost a thousandth of a dollar a second; a replacement lasts 60 s.
    let budget = Budget { usd_per_day: Some(0.3), ..Budget::default() };
    let mut world = World::new(config, holds, 0.0, budget);
    run(&mut world, 6000, |_| 2900.0);
    world
}

#[test]
fn no_replacement_begins_that_the_budget_does_not_pay_for() {
    let world = limited();
    assert!((2..=5).contains(&world.replaced), "{}", world.replaced);
    let waiting = world.rotation.status().waiting.unwrap();
    assert!(waiting.contains("the budget of") && waiting.contains("; it does in "), "{waiting}");
}

#[test]
fn a_restart_does_not_reset_the_budget_and_what_somebody_asks_for_is_held_to_it() {
    let world = limited();
    let (learned, spent) =
        (world.rotation.learned(world.now), world.rotation.budget(world.now).unwrap()[1].spent_usd.unwrap());
    assert!(spent > 0.2 && spent <= 0.3, "{spent}");
    let budget = Budget { usd_per_day: Some(0.3), ..Budget::default() };
    let mut again = Rotation::new(Instant::ZERO, world.config.clone(), budget, &learned);
    assert!((again.budget(Instant::ZERO).unwrap()[1].spent_usd.unwrap() - spent).abs() < 1e-6);
    let samples = vec![Sample { holds: world.holds, ..Sample::default() }; 4];
    again.observe(Instant::ZERO + Duration::from_secs(1), &samples);
    let refused = again.affords(Instant::ZERO, 4).unwrap_err();
    assert!(refused.contains("the budget of $0.30 per day does not allow it"), "{refused}");
    again.ask(0);
    let (soon, later) = (Instant::ZERO + Duration::from_secs(2), Instant::ZERO + Duration::from_secs(86_500));
    assert_eq!(again.next(soon), None);
    assert_eq!(again.next(later), Some(0), "a day later it is spent no more");
    // What no day pays for is said to be so.
    let little = Budget { usd_per_day: Some(0.001), ..Budget::default() };
    let never = Rotation::new(Instant::ZERO, world.config.clone(), little, &Learned::default());
    assert!(never.affords(Instant::ZERO, 1).unwrap_err().contains("raise it"));
}

#[test]
fn a_machine_without_room_gets_no_extra_volume() {
    let (mut config, holds) = config(Way::All, 4, 300, 20);
    config.room = Some(2);
    assert!(matches!(config.check(holds)[..], [Trouble::NoRoom { room: 2, extra: 4, .. }]));
    let mut world = World::new(config, holds, 0.0, Budget::default());
    run(&mut world, 1000, |_| 2900.0);
    assert_eq!(world.extra_most, 2);
}

#[test]
fn copies_that_are_too_slow_are_told_with_the_remedy() {
    let (slow, _) = config(Way::Staggered, 10, 1862, 0);
    let told = |holds_mib: u64| slow.check(Bytes::from_mib(holds_mib)).first().map(ToString::to_string);
    assert_eq!(told(100 * 10), None);
    let queue = told(300 * 10).unwrap();
    assert!(queue.contains("one after the other takes 3200 s") && queue.contains("rotate_at_once = 2"), "{queue}");
    let never = told(1000 * 10).unwrap();
    assert!(never.contains("credits end before the copy does: raise copy_rate"), "{never}");
    let mut without = slow.clone();
    without.credits.clear();
    assert!(matches!(without.check(Bytes::ZERO)[..], [Trouble::NoCredits { .. }]));
}

#[test]
fn a_copy_that_goes_on_after_a_restart_is_known_and_what_was_learned_is_kept() {
    let (config, holds) = config(Way::Staggered, 2, 600, 40);
    let mut world = World::new(config.clone(), holds, 0.0, Budget::default());
    run(&mut world, 400, |_| 2900.0);
    let learned = world.rotation.learned(world.now);
    assert!((learned.levels[1][0] - world.members[1].0.level).abs() < 3000.0);
    let mut again = Rotation::new(world.now, config, Budget::default(), &learned);
    again.tell(world.now, 1, Progress::Attached);
    assert_eq!((again.extra(), again.status().slots[1].state), (1, SlotState::Copying));
    again.tell(world.now, 1, Progress::Replaced);
    again.tell(world.now, 1, Progress::Deleted);
    assert_eq!((again.extra(), again.status().rotations), (0, 1));
}

#[test]
fn a_balance_that_a_provider_reports_corrects_the_account() {
    let (config, holds) = config(Way::Staggered, 2, 600, 40);
    let mut world = World::new(config, holds, 0.0, Budget::default());
    run(&mut world, 60, |_| 2900.0);
    assert_eq!(world.created, 0);
    // Somebody else used the volume before.
    world.rotation.correct(1, &[100_000.0]);
    run(&mut world, 2, |_| 2900.0);
    assert_eq!(world.rotation.status().slots[1].state, SlotState::Creating);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Where copies are fast enough, no member's credits end before its successor has the slot, whatever the demand below the
    /// burst rate, the share of writes and the provider's latencies; and there is one extra volume at most.
    #[test]
    fn credits_never_end_before_the_replacement_is_complete(
        slots in 1u32..12, burst_s in 600u64..2500, share in 0.1f64..0.8, write_share in 0.0f64..1.0,
        asked in 300.0f64..2990.0, setup_s in 1u64..30, jump in 0u64..4000,
    ) {
        let copy_s = ((burst_s as f64 * share / f64::from(slots)) as u64).saturating_sub(setup_s + 12).min(burst_s / 4);
        let (mut config, holds) = config(Way::Staggered, slots, burst_s, copy_s);
        config.setup = Duration::from_secs(setup_s);
        let mut world = World::new(config, holds, write_share, Budget::default());
        // The demand falls for a while and comes back.
        run(&mut world, 6000, |second| if (jump..jump + 300).contains(&second) { asked / 3.0 } else { asked });
        prop_assert_eq!(world.starved_s, 0);
        prop_assert!(world.extra_most <= 1);
    }

    /// Nothing that is told in any order makes it name a slot that is being replaced, or more at once than it may.
    #[test]
    fn whatever_is_told_it_keeps_its_count(
        way in prop::sample::select(vec![Way::Staggered, Way::All, Way::Never]), at_once in 0u32..4,
        script in prop::collection::vec((0u32..5, 0u8..9, 0.0f64..1e12), 0..200),
    ) {
        let (mut config, holds) = config(way, 4, 60, 5);
        config.at_once = at_once;
        let most = if way == Way::All { 4 } else { at_once.max(1) };
        let mut rotation = Rotation::new(Instant::ZERO, config, Budget::default(), &Learned::default());
        let mut now = Instant::ZERO;
        for (slot, what, amount) in script {
            now += Duration::from_secs(u64::from(what));
            match what {
                0 => rotation.tell(now, slot, Progress::Replaced),
                1 => rotation.tell(now, slot, Progress::Deleted),
                2 => rotation.tell(now, slot, Progress::Failed("the disk is gone".to_owned())),
                3 => rotation.tell(now, slot, Progress::Refused(Refusal::Capacity)),
                4 => rotation.ask(slot),
                5 => rotation.correct(slot, &[amount, f64::NAN]),
                6 => rotation.correct(slot, &[f64::NAN]),
                _ => {
                    let served = Served { operations: amount, bytes: amount };
                    rotation.observe(now, &[Sample { served, joining: served, copied: holds, holds }; 4]);
                }
            }
            let mut begun = Vec::new();
            while let Some(slot) = rotation.next(now) {
                prop_assert!(!begun.contains(&slot));
                begun.push(slot);
                prop_assert!(rotation.extra() <= most, "{} of {most}", rotation.extra());
            }
            let status = rotation.status();
            prop_assert!(status.slots.iter().all(|slot| slot.credits_ratio.is_some_and(|ratio| (0.0..=1.0).contains(&ratio))));
        }
    }
}

/// A scratch array that holds something until `empty_s`, and is asked for little more than the baseline from then on.
fn scratch(way: Way, empty_s: u64) -> World {
    let (mut config, holds) = config(way, 2, 300, 20);
    config.swaps_when_empty = true;
    let mut world = World::new(config, holds, 0.5, Budget::default());
    for second in 0..200 {
        if second == empty_s {
            world.holds = Bytes::ZERO;
        }
        world.second(if second < 160 { 2900.0 } else { 50.0 });
        if second < 159 && second < empty_s {
            assert!(world.extra_most <= 1, "a copy of all at once");
        }
    }
    world
}

#[test]
fn an_empty_scratch_array_gets_new_members_all_at_once_and_only_once() {
    let world = scratch(Way::Staggered, 165);
    assert_eq!((world.extra_most, world.created), (2, 2), "its credits were half spent");
    assert!(world.members.iter().all(|(member, joining)| member.level > 0.9 * 870_000.0 && joining.is_none()));
    assert_eq!(scratch(Way::Never, 165).created, 0, "nobody asked");
    assert_eq!(scratch(Way::Staggered, 1000).created, 0, "it holds something");
    // Refused ones are tried again after a pause, if the array is still empty.
    let (mut config, _) = config(Way::Staggered, 2, 300, 20);
    config.swaps_when_empty = true;
    let mut world = World::new(config, Bytes::ZERO, 0.0, Budget::default());
    world.refuse_every = 2;
    run(&mut world, 170, |_| 2900.0);
    run(&mut world, 100, |_| 50.0);
    assert!(world.replaced >= 2 && !world.refused.is_empty(), "{} replaced, {:?}", world.replaced, world.refused);
    assert!(pauses_after_refusals(&world), "{:?} begun, {:?} refused", world.begun, world.refused);
}

/// Each bug, and how a run shows it.
#[test]
fn planted_bugs_are_found() {
    type Shows = fn() -> bool;
    let bugs: &[(Bug, Shows)] = &[
        (Bug::RotationIsLate, || saturated().starved_s > 0),
        (Bug::RotationIsNotStaggered, || {
            let (config, holds) = config(Way::Staggered, 4, 100, 40);
            let mut world = World::new(config, holds, 0.0, Budget::default());
            run(&mut world, 300, |_| 2900.0);
            world.extra_most > 1
        }),
        (Bug::RotationIsFree, || limited().replaced > 5),
        (Bug::RotationDoesNotWait, || {
            std::panic::catch_unwind(|| {
                let (config, holds) = config(Way::Staggered, 2, 300, 20);
                let mut world = World::new(config, holds, 0.0, Budget::default());
                world.refuse_every = 3;
                run(&mut world, 1000, |_| 2900.0);
                waits_after_refusals(&world)
            })
            .is_ok_and(|waits| !waits)
        }),
        (Bug::CopyIsFree, || {
            let (mut config, holds) = config(Way::Staggered, 1, 600, 200);
            // An operation of 10 KiB: the copy alone takes a third of what the member gives.
            config.copy.io_size = Bytes::new(10 * 1024);
            let mut world = World::new(config, holds, 0.0, Budget::default());
            run(&mut world, 1800, |_| 1800.0);
            world.starved_s > 0
        }),
        (Bug::SuccessorIsFull, || {
            let (config, holds) = config(Way::Staggered, 1, 600, 200);
            let mut world = World::new(config, holds, 1.0, Budget::default());
            run(&mut world, 3000, |_| 2950.0);
            world.starved_s > 0
        }),
        (Bug::LateIsNever, || slow_provider().replaced == 0),
        (Bug::StarvedCopiesTeach, || after_an_outage(0).0 > 2.0),
        (Bug::SwapsWhatIsFull, || {
            let (mut config, holds) = config(Way::Staggered, 2, 300, 20);
            config.swaps_when_empty = true;
            let mut world = World::new(config, holds, 0.0, Budget::default());
            run(&mut world, 200, |_| 2900.0);
            world.extra_most > 1
        }),
    ];
    assert_eq!(bugs.len(), Bug::ALL.len());
    for (bug, shows) in bugs {
        assert!(!shows(), "{bug:?} shows although it sleeps");
        plant(Some(*bug));
        let found = shows();
        plant(None);
        assert!(found, "{bug:?} is not found");
    }
}
