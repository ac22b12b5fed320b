//! Where the kernel sends the requests of a device that it maps itself, and when that changes.
//!
//! While nothing is rented, the device is a map straight to its backing volume and no request passes the daemon. Before a caching
//! volume is adopted, the requests are sent to the daemon; they stay there until the engine answers them as the backing volume
//! would, and owes the application nothing. Every decision follows from what holds now, so whatever fails on the way is
//! corrected later.
//!
//! A switch to [`Map::Served`] is one call of the kernel: it holds new requests back, awaits those in flight, swaps the tables and
//! goes on. A switch to [`Map::Straight`] has a moment in between, when nothing is in flight: what was in flight may have failed,
//! so [`Mapping::update`] and [`Mapping::is_wanted`] are called once more before the tables are swapped.

use std::time::Duration;

use surgetank_cache::Owner;
use surgetank_model::Instant;

use crate::owner::OwnerRecord;
use crate::planted::{Bug, planted};

/// First and longest pause before a switch that failed is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// Where the kernel sends the requests of a device that it maps itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    /// To the backing volume: the kernel alone carries them out.
    Straight,
    /// To the daemon.
    Served,
}

/// What the kernel has of the device when a daemon starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The table that is live.
    pub map: Map,
    /// It holds requests back: a daemon ended in the middle of a switch. Resume that table.
    pub suspended: bool,
}

/// A switch that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Failed {
    to: Map,
    why: String,
    pause: Duration,
    retry_at: Instant,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Mapping {
    now: Instant,
    map: Map,
    wanted: Map,
    under_way: Option<Map>,
    failed: Option<Failed>,
}

impl Mapping {
    /// A device with this map.
    #[must_use]
    pub fn new(found: Map) -> Self {
        Self { now: Instant::ZERO, map: found, wanted: found, under_way: None, failed: None }
    }

    /// What holds now; call it after every event. `rental`: a rental wants the requests
    /// ([`Rental::wants_service`](crate::Rental::wants_service)); `transparent`: the engine need not see them
    /// ([`Engine::is_transparent`](surgetank_cache::Engine::is_transparent)).
    pub fn update(&mut self, now: Instant, rental: bool, transparent: bool) {
        self.now = self.now.max(now);
        let needed = rental || !transparent && !planted(Bug::StraightTooEarly);
        let stays = self.map == Map::Served && planted(Bug::ServedForEver);
        self.wanted = if needed || stays { Map::Served } else { Map::Straight };
        // The next boost tries again at once: the controller waits long enough between them.
        if self.map == Map::Straight && self.wanted == Map::Straight {
            self.failed = None;
        }
    }

    /// The switch to carry out now, once per switch. Before one to [`Map::Served`] the engine is told
    /// ([`Engine::enter_path`](surgetank_cache::Engine::enter_path)).
    pub fn next_switch(&mut self) -> Option<Map> {
        let is_due = self.under_way.is_none() && self.wanted != self.map && self.retry_at().is_none();
        if !is_due {
            return None;
        }
        self.under_way = Some(self.wanted);
        self.under_way
    }

    /// Whether the switch under way is still wanted. One to [`Map::Straight`] is not carried on otherwise: the old table is
    /// resumed, and the switch has failed.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        planted(Bug::NoSecondLook) || self.under_way == Some(self.wanted)
    }

    /// The switch under way has ended. `Err`: the old map stays, and why.
    pub fn switched(&mut self, now: Instant, result: Result<(), String>) {
        self.now = self.now.max(now);
        let Some(to) = self.under_way.take() else { return };
        self.failed = match result {
            Ok(()) => {
                self.map = to;
                None
            }
            Err(why) => {
                let before = self.failed.take().filter(|failed| failed.to == to);
                let pause = before.map_or(RETRY.0, |failed| (failed.pause * 2).min(RETRY.1));
                let retry_at = if planted(Bug::SwitchNotRepeated) { Instant::FAR } else { self.now + pause };
                Some(Failed { to, why, pause, retry_at })
            }
        };
    }

    /// The map; the old one while a switch is under way.
    #[must_use]
    pub fn map(&self) -> Map {
        self.map
    }

    /// The requests come to the daemon, and no switch is under way: an adoption may begin.
    #[must_use]
    pub fn is_served(&self) -> bool {
        self.map == Map::Served && self.under_way.is_none()
    }

    /// What [`Ask::Serve`](crate::Ask::Serve) is answered now; `None`: a switch will tell.
    #[must_use]
    pub fn service(&self) -> Option<Result<(), String>> {
        if self.is_served() {
            return Some(Ok(()));
        }
        let failed = self.failed.as_ref().filter(|failed| failed.to == Map::Served && self.under_way.is_none());
        failed.filter(|_| self.retry_at().is_some()).map(|failed| Err(failed.why.clone()))
    }

    /// Why the device is not mapped as it should be, for status.
    #[must_use]
    pub fn trouble(&self) -> Option<&str> {
        let failed = self.failed.as_ref().filter(|failed| failed.to == self.wanted && self.map != self.wanted);
        failed.map(|failed| failed.why.as_str())
    }

    /// When [`Mapping::update`] should be called at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.retry_at().filter(|_| self.under_way.is_none() && self.map != self.wanted)
    }

    /// Until when the switch that is wanted is not tried again.
    fn retry_at(&self) -> Option<Instant> {
        let failed = self.failed.as_ref().filter(|failed| failed.to == self.wanted)?;
        Some(failed.retry_at).filter(|at| *at > self.now)
    }
}

/// How the device is mapped when a daemon begins: as `found`, or, if the kernel has no such device, as it is to be created.
/// `owes_flush_failure`: the daemon before owed the application the news that a flush had failed.
///
/// # Errors
/// If stale data may have been read or written already. One sentence with the remedy.
pub fn at_start(
    device: &str,
    owner: &OwnerRecord,
    owes_flush_failure: bool,
    found: Option<&Found>,
) -> Result<Map, String> {
    match found.map(|found| found.map) {
        Some(Map::Served) => Ok(Map::Served),
        None if straight_at_boot(owner) && !owes_flush_failure => Ok(Map::Straight),
        None => Ok(Map::Served),
        // What is owed is told once the requests come to the daemon.
        Some(Map::Straight) if owner.owner == Owner::Backing || planted(Bug::StraightAccepted) => Ok(Map::Straight),
        Some(Map::Straight) => {
            let volume = owner.volume.as_ref().map_or_else(String::new, |volume| format!(" {}", volume.0));
            Err(format!(
                "device {device} is mapped straight to its backing volume although its newest data is on the caching \
                 volume{volume}, so what was read there may be old and what was written there may be overwritten: unmount \
                 /dev/mapper/{device}, remove it with `dmsetup remove {device}`, start the daemon again and check the file system"
            ))
        }
    }
}

/// Whether the device may be mapped straight before a daemon runs.
#[must_use]
pub fn straight_at_boot(owner: &OwnerRecord) -> bool {
    owner.owner == Owner::Backing || planted(Bug::StraightAtBoot)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use surgetank_cache::Epoch;
    use surgetank_model::volume::VolumeId;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Update { rental: bool, transparent: bool, after_ms: u64 },
        Next,
        Switched(bool),
    }

    fn any_op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (any::<bool>(), any::<bool>(), 0_u64..400).prop_map(|(rental, transparent, after_ms)| Op::Update {
                rental,
                transparent,
                after_ms
            }),
            Just(Op::Next),
            any::<bool>().prop_map(Op::Switched),
        ]
    }

    fn any_map() -> impl Strategy<Value = Map> {
        prop::sample::select(vec![Map::Straight, Map::Served])
    }

    fn any_owner() -> impl Strategy<Value = OwnerRecord> {
        let epoch = Epoch([7; 16]);
        let owner = prop_oneof![
            Just(Owner::Backing),
            Just(Owner::Cache { epoch }),
            Just(Owner::Lost { epoch, ranges: vec![(0, 4096)] }),
            Just(Owner::Lost { epoch, ranges: Vec::new() }),
        ];
        let volume = prop::option::of(Just(VolumeId("vol-1".to_owned())));
        (owner, volume).prop_map(|(owner, volume)| OwnerRecord { owner, volume, ended: None })
    }

    fn any_found() -> impl Strategy<Value = Option<Found>> {
        prop::option::of((any_map(), any::<bool>()).prop_map(|(map, suspended)| Found { map, suspended }))
    }

    /// Carries out what is wanted until nothing is; the first `failures` switches fail.
    fn settle(mapping: &mut Mapping, mut now: Instant, rental: bool, transparent: bool, mut failures: u32) -> Instant {
        mapping.update(now, rental, transparent);
        for _ in 0..1000 {
            if mapping.next_switch().is_some() || mapping.under_way.is_some() {
                let fails = failures > 0;
                failures -= u32::from(fails);
                mapping.switched(now, if fails { Err("it does not work".to_owned()) } else { Ok(()) });
            } else if let Some(deadline) = mapping.next_deadline() {
                assert!(deadline > now && deadline.since(now) <= RETRY.1);
                now = deadline;
            } else {
                return now;
            }
            mapping.update(now, rental, transparent);
        }
        panic!("it never settles: {mapping:?}");
    }

    proptest! {
        #[test]
        fn the_map_changes_by_one_switch_at_a_time_and_goes_straight_only_when_nobody_is_needed(
            found in any_map(),
            ops in prop::collection::vec(any_op(), 1..60),
        ) {
            let (mut mapping, mut now) = (Mapping::new(found), Instant::ZERO);
            let (mut needed, mut under_way) = (None, None);
            for op in ops {
                let before = mapping.map();
                match op {
                    Op::Update { rental, transparent, after_ms } => {
                        now += Duration::from_millis(after_ms);
                        needed = Some(rental || !transparent);
                        mapping.update(now, rental, transparent);
                        prop_assert_eq!(mapping.map(), before);
                    }
                    Op::Next => match mapping.next_switch() {
                        Some(to) => {
                            prop_assert!(under_way.is_none(), "one at a time");
                            prop_assert!(to != before, "never to where it is");
                            prop_assert_eq!(Some(to == Map::Served), needed, "as is wanted now");
                            under_way = Some(to);
                        }
                        None => prop_assert_eq!(mapping.map(), before),
                    },
                    Op::Switched(ok) => {
                        mapping.switched(now, if ok { Ok(()) } else { Err("no".to_owned()) });
                        let expected = under_way.take().filter(|_| ok).unwrap_or(before);
                        prop_assert_eq!(mapping.map(), expected, "a failed switch leaves the old map");
                    }
                }
                prop_assert_eq!(mapping.is_served(), mapping.map() == Map::Served && under_way.is_none());
                prop_assert_eq!(mapping.service() == Some(Ok(())), mapping.is_served());
                if let (Some(to), Some(needed)) = (under_way, needed) {
                    prop_assert_eq!(mapping.is_wanted(), (to == Map::Served) == needed);
                    prop_assert!(mapping.service().is_none(), "its end will tell");
                }
                // Whoever waits for the requests is answered, now or by a switch.
                if needed == Some(true) && under_way.is_none() && mapping.service().is_none() {
                    let mut next = mapping.clone();
                    prop_assert_eq!(next.next_switch(), Some(Map::Served));
                }
            }
        }

        #[test]
        fn whatever_failed_the_map_becomes_what_is_wanted(
            found in any_map(),
            ops in prop::collection::vec(any_op(), 0..30),
            rental in any::<bool>(),
            transparent in any::<bool>(),
            failures in 0_u32..12,
        ) {
            let (mut mapping, mut now) = (Mapping::new(found), Instant::ZERO);
            for op in ops {
                match op {
                    Op::Update { rental, transparent, after_ms } => {
                        now += Duration::from_millis(after_ms);
                        mapping.update(now, rental, transparent);
                    }
                    Op::Next => _ = mapping.next_switch(),
                    Op::Switched(ok) => mapping.switched(now, if ok { Ok(()) } else { Err("no".to_owned()) }),
                }
            }
            settle(&mut mapping, now, rental, transparent, failures);
            let wanted = if rental || !transparent { Map::Served } else { Map::Straight };
            prop_assert_eq!(mapping.map(), wanted);
            prop_assert_eq!(mapping.trouble(), None);
        }

        #[test]
        fn newest_data_that_is_not_on_the_backing_volume_is_never_mapped_straight(
            owner in any_owner(),
            owes in any::<bool>(),
            found in any_found(),
        ) {
            let map = at_start("data", &owner, owes, found.as_ref());
            let elsewhere = owner.owner != Owner::Backing;
            prop_assert_eq!(straight_at_boot(&owner), !elsewhere);
            prop_assert!(!(elsewhere && map == Ok(Map::Straight)));
            match (&map, found) {
                (Err(reason), found) => {
                    prop_assert!(elsewhere && found.is_some_and(|found| found.map == Map::Straight));
                    prop_assert!(reason.contains("dmsetup remove data") && !reason.contains('\n'));
                }
                (Ok(map), Some(found)) => prop_assert_eq!(*map, found.map, "what is live stays"),
                (Ok(map), None) => prop_assert_eq!(*map == Map::Straight, !elsewhere && !owes),
            }
            // What is mapped at boot is taken as it is found.
            let mapped = Found { map: Map::Straight, suspended: false };
            prop_assert!(!straight_at_boot(&owner) || at_start("data", &owner, owes, Some(&mapped)) == Ok(Map::Straight));
        }
    }

    #[test]
    fn a_boost_is_told_why_the_requests_do_not_come_and_the_next_one_tries_at_once() {
        let (mut mapping, now) = (Mapping::new(Map::Straight), Instant::ZERO);
        mapping.update(now, true, true);
        assert_eq!((mapping.service(), mapping.next_switch()), (None, Some(Map::Served)));
        mapping.switched(now, Err("the table was refused".to_owned()));
        assert_eq!(mapping.service(), Some(Err("the table was refused".to_owned())));
        assert!(mapping.trouble() == Some("the table was refused") && mapping.next_switch().is_none());
        mapping.update(now, false, true);
        assert_eq!((mapping.trouble(), mapping.next_deadline()), (None, None));
        mapping.update(now, true, true);
        assert_eq!(mapping.next_switch(), Some(Map::Served));
    }

    #[test]
    fn a_boost_during_a_switch_out_gets_the_requests() {
        let (mut mapping, now) = (Mapping::new(Map::Served), Instant::ZERO);
        mapping.update(now, false, true);
        assert_eq!(mapping.next_switch(), Some(Map::Straight));
        assert!(mapping.is_wanted());
        mapping.update(now, true, true);
        assert!(!mapping.is_wanted() && mapping.service().is_none());
        mapping.switched(now, Err("the daemon is needed again".to_owned()));
        assert!(mapping.service() == Some(Ok(())) && mapping.trouble().is_none() && mapping.next_deadline().is_none());
        // The look that came too late: straight first, then back.
        mapping.update(now + RETRY.0, false, true);
        assert_eq!(mapping.next_switch(), Some(Map::Straight));
        mapping.update(now + RETRY.0, true, true);
        mapping.switched(now + RETRY.0, Ok(()));
        assert_eq!((mapping.service(), mapping.next_switch()), (None, Some(Map::Served)));
    }
}
