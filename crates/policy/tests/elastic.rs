//! The controller step by step: restart, hints, a failing cache, learning, what it says.

use std::time::Duration;

use surgetank_model::units::MIB;
use surgetank_model::{Bandwidth, Bytes, Instant, Observation};
use surgetank_policy::budget::Budget;
use surgetank_policy::{
    Cause, Config, Controller, Learned, Phase, Preset, Refusal, ResumeAt, Steady, Step, StepId, StepOutcome,
};

/// A controller, its clock and its device's counters.
struct Rig {
    controller: Controller,
    now: Instant,
    observation: Observation,
}

impl Rig {
    fn new(change: impl FnOnce(&mut Config), learned: Learned) -> Self {
        let mut config =
            Config::new(Preset::PAPER, Bandwidth::from_mib_s(33), Bytes::from_gib(50), Bandwidth::from_mib_s(128));
        change(&mut config);
        config.validate().unwrap();
        let mut controller = Controller::new(Instant::ZERO, config, learned);
        controller.observe(Instant::ZERO, Observation::default());
        Self { controller, now: Instant::ZERO, observation: Observation::default() }
    }

    /// `seconds` samples of traffic at `mib_s`.
    fn traffic(&mut self, mib_s: u64, seconds: u64) {
        for _ in 0..seconds {
            self.now += Duration::from_secs(1);
            self.observation.written_bytes += mib_s * MIB;
            self.controller.observe(self.now, self.observation);
        }
    }

    /// The next step must be this one.
    fn takes(&mut self, expected: &Step) -> StepId {
        let (id, step) = self.controller.next_step().unwrap_or_else(|| panic!("no step: {:?}", self.controller));
        assert_eq!(step, *expected);
        id
    }

    fn answers(&mut self, expected: &Step, outcome: StepOutcome) {
        let id = self.takes(expected);
        self.controller.complete(self.now, id, outcome);
    }

    fn does(&mut self, expected: &Step) {
        self.answers(expected, StepOutcome::Done);
    }

    /// From idle to absorbing, with a burst.
    fn boost(&mut self, gib: u64) {
        self.traffic(30, 1);
        self.does(&Step::Create { size: Bytes::from_gib(gib) });
        self.does(&Step::Attach);
        self.does(&Step::Adopt);
        self.observation.cache_bytes = gib << 30;
        assert_eq!(self.controller.phase(), Phase::Boost);
    }

    /// From an empty cache to idle.
    fn release_cache(&mut self) {
        self.does(&Step::Release);
        self.observation = Observation { cache_bytes: 0, cache_failed: false, dirty_bytes: 0, ..self.observation };
        self.does(&Step::Detach);
        self.does(&Step::Delete);
        assert_eq!(self.controller.next_step(), None);
        assert_eq!(self.controller.phase(), Phase::Idle);
        assert_eq!(self.controller.status().cache_size, None);
    }
}

#[test]
fn a_boost_of_the_paper() {
    let mut rig = Rig::new(|_| {}, Learned::default());
    // At the threshold is not above it.
    rig.traffic(9, 100);
    assert_eq!(rig.controller.next_step(), None);
    rig.boost(10);
    rig.observation.dirty_bytes = 4 << 30;
    rig.observation.high_water_bytes = (4 << 30) - 5;
    rig.traffic(100, 20);
    // One sample above the threshold starts the inactivity delay anew.
    rig.traffic(0, 29);
    rig.traffic(10, 1);
    rig.traffic(0, 29);
    assert_eq!(rig.controller.next_step(), None);
    rig.traffic(0, 1);
    rig.does(&Step::Drain);
    rig.traffic(0, 50);
    assert_eq!((rig.controller.phase(), rig.controller.next_step()), (Phase::Drain, None));
    rig.observation.dirty_bytes = 0;
    rig.traffic(0, 1);
    rig.release_cache();
    let status = rig.controller.status();
    assert_eq!((status.boosts, status.next_size, status.backing_off), (1, Bytes::from_gib(4), None));
    let record = rig.controller.next_record().unwrap();
    assert_eq!((record.attach_time(), record.absorb_time()), (Some(Duration::ZERO), Some(Duration::from_secs(80))));
    assert_eq!(record.drain_time(), Some(Duration::from_secs(51)));
    // Evicted bytes make the next one larger, also after a restart.
    let mut rig = Rig::new(|_| {}, rig.controller.learned());
    rig.boost(4);
    rig.observation.evicted_bytes = 1;
    rig.traffic(100, 3);
    rig.traffic(0, 30);
    rig.does(&Step::Drain);
    rig.traffic(0, 1);
    rig.release_cache();
    assert_eq!(rig.controller.status().next_size, Bytes::from_gib(5));
    assert_eq!(rig.controller.learned().boosts, 2);
}

#[test]
fn it_knows_for_how_long_samples_decide_nothing() {
    let until = |rig: &Rig| rig.controller.steady().map(|steady| steady.until);
    let mut rig = Rig::new(|_| {}, Learned::default());
    assert_eq!(until(&rig), None, "nothing was measured");
    rig.traffic(9, 2);
    assert_eq!(rig.controller.steady(), Some(Steady { until: Instant::FAR, counts_interval: false }));
    rig.boost(10);
    rig.observation.dirty_bytes = 4 << 30;
    rig.traffic(100, 2);
    assert_eq!(until(&rig), None, "what is saved is measured sample by sample");
    rig.traffic(0, 1);
    let calm = until(&rig).unwrap();
    assert_eq!(calm, rig.now + Duration::from_secs(29));
    rig.traffic(0, 28);
    assert_eq!((until(&rig), rig.controller.next_step()), (Some(calm), None));
    rig.traffic(0, 1);
    rig.does(&Step::Drain);
    rig.traffic(0, 1);
    assert_eq!(until(&rig), Some(Instant::FAR), "dirty data remain");
    rig.observation.dirty_bytes = 0;
    rig.traffic(0, 1);
    rig.release_cache();
    // A budget that pays for this sample need not pay for the next.
    let mut rig = Rig::new(|config| config.budget.agbs_per_day = Some(1e9), Learned::default());
    rig.boost(10);
    rig.traffic(100, 2);
    assert_eq!(until(&rig), None);
}

#[test]
fn a_release_is_overtaken_or_not() {
    for outcome in [StepOutcome::Cancelled, StepOutcome::Done] {
        let mut rig = Rig::new(|_| {}, Learned::default());
        rig.boost(10);
        rig.traffic(0, 30);
        rig.does(&Step::Drain);
        rig.traffic(0, 1);
        let release = rig.takes(&Step::Release);
        rig.traffic(20, 1);
        let absorb = rig.takes(&Step::Absorb);
        rig.traffic(20, 1);
        assert_eq!(rig.controller.next_step(), None, "one absorb is enough");
        rig.controller.complete(rig.now, release, outcome.clone());
        assert_eq!(rig.controller.next_step(), None, "the absorb is not answered");
        rig.controller.complete(rig.now, absorb, StepOutcome::Done);
        if outcome == StepOutcome::Cancelled {
            assert_eq!((rig.controller.phase(), rig.controller.next_step()), (Phase::Boost, None));
        } else {
            rig.does(&Step::Detach);
            rig.does(&Step::Delete);
            rig.traffic(20, 1);
            assert!(matches!(rig.controller.next_step(), Some((_, Step::Create { .. }))));
        }
    }
}

#[test]
fn a_release_that_nobody_overtook_is_asked_for_again() {
    let mut rig = Rig::new(|_| {}, Learned::default());
    rig.traffic(30, 1);
    rig.does(&Step::Create { size: Bytes::from_gib(10) });
    rig.does(&Step::Attach);
    // The engine may hold the volume or not: it is no boost, whatever the driver says of the release.
    rig.answers(&Step::Adopt, StepOutcome::Refused(Refusal::Timeout));
    rig.answers(&Step::Release, StepOutcome::Cancelled);
    assert_eq!((rig.controller.phase(), rig.controller.next_step()), (Phase::Detaching, None));
    rig.traffic(0, 10);
    rig.release_cache();
}

#[test]
fn a_boost_that_a_user_ended_once_is_not_ended_again() {
    let mut rig = Rig::new(|_| {}, Learned::default());
    rig.boost(10);
    rig.observation.dirty_bytes = 1;
    rig.traffic(0, 30);
    rig.does(&Step::Drain);
    rig.traffic(30, 1);
    let absorb = rig.takes(&Step::Absorb);
    rig.controller.hint_drain(rig.now);
    rig.controller.complete(rig.now, absorb, StepOutcome::Refused(Refusal::Transient("a fault".to_owned())));
    rig.does(&Step::Drain);
    // The next burst is another one.
    rig.traffic(0, 1);
    rig.traffic(30, 1);
    rig.does(&Step::Absorb);
    assert_eq!((rig.controller.phase(), rig.controller.next_step()), (Phase::Boost, None));
    // The same while a release is outstanding.
    rig.traffic(0, 30);
    rig.does(&Step::Drain);
    rig.observation.dirty_bytes = 0;
    rig.traffic(0, 1);
    let release = rig.takes(&Step::Release);
    rig.controller.hint_drain(rig.now);
    rig.traffic(30, 1);
    rig.does(&Step::Absorb);
    rig.controller.complete(rig.now, release, StepOutcome::Cancelled);
    assert_eq!((rig.controller.phase(), rig.controller.next_step()), (Phase::Boost, None));
}

#[test]
fn a_boost_that_a_user_asked_for_once_is_not_prolonged_again() {
    let mut rig = Rig::new(|_| {}, Learned::default());
    rig.boost(10);
    rig.observation.dirty_bytes = 1;
    rig.traffic(0, 30);
    let drain = rig.takes(&Step::Drain);
    rig.controller.hint_boost(rig.now).unwrap();
    rig.controller.complete(rig.now, drain, StepOutcome::Refused(Refusal::Transient("a fault".to_owned())));
    rig.traffic(30, 1);
    rig.does(&Step::Absorb);
    rig.traffic(0, 30);
    rig.does(&Step::Drain);
    assert_eq!((rig.controller.phase(), rig.controller.next_step()), (Phase::Drain, None));
}

#[test]
fn a_user_s_boost_does_not_depend_on_the_forecast() {
    let mut rig = Rig::new(|config| config.forecast = true, Learned::default());
    for second in 0.. {
        assert!(second < 4000, "nothing is forecast");
        let hot = second % 440 < 40 && second < 1500;
        rig.traffic(if hot { 30 } else { 0 }, 1);
        rig.observation.cache_bytes = 0;
        while let Some((id, step)) = rig.controller.next_step() {
            if let (Step::Create { .. }, false) = (&step, hot) {
                let cause = rig.controller.cause();
                assert!(matches!(cause, Some(Cause::Forecast { until }) if until > rig.now), "{cause:?}");
                rig.controller.hint_boost(rig.now).unwrap();
                // The burst does not come.
                rig.traffic(0, 1000);
                rig.controller.complete(rig.now, id, StepOutcome::Done);
                return rig.does(&Step::Attach);
            }
            rig.controller.complete(rig.now, id, StepOutcome::Done);
        }
    }
}

#[test]
fn after_a_restart() {
    let size = Bytes::from_gib(6);
    for (at, steps) in [
        (ResumeAt::Created { size }, &[Step::Delete][..]),
        (ResumeAt::Attached { size }, &[Step::Detach, Step::Delete]),
    ] {
        let mut rig = Rig::new(|_| {}, Learned::default());
        rig.controller.resume(rig.now, at);
        assert_eq!(rig.controller.status().cache_size, Some(size));
        steps.iter().for_each(|step| rig.does(step));
        assert_eq!((rig.controller.phase(), rig.controller.next_step()), (Phase::Idle, None));
    }
    let mut rig = Rig::new(|_| {}, Learned::default());
    rig.controller.resume(rig.now, ResumeAt::Adopted { size });
    rig.observation = Observation { dirty_bytes: 5, cache_bytes: 6 << 30, ..rig.observation };
    rig.does(&Step::Drain);
    rig.traffic(0, 5);
    assert_eq!((rig.controller.phase(), rig.controller.next_step()), (Phase::Drain, None));
    rig.observation.dirty_bytes = 0;
    rig.traffic(0, 1);
    rig.release_cache();
    assert_eq!(rig.controller.status().next_size, Bytes::from_gib(10), "a half-known boost teaches nothing");
}

#[test]
fn hints() {
    let mut rig = Rig::new(|_| {}, Learned::default());
    rig.controller.hint_drain(rig.now);
    assert_eq!(rig.controller.next_step(), None, "nothing to drain");
    // A boost without traffic lasts for the inactivity delay.
    rig.traffic(0, 100);
    rig.controller.hint_boost(rig.now).unwrap();
    rig.does(&Step::Create { size: Bytes::from_gib(10) });
    rig.does(&Step::Attach);
    rig.does(&Step::Adopt);
    rig.traffic(0, 29);
    assert_eq!(rig.controller.next_step(), None);
    // A drain in the midst of a burst holds until the burst is over.
    rig.observation.cache_bytes = 10 << 30;
    rig.observation.dirty_bytes = 1;
    rig.traffic(100, 3);
    rig.controller.hint_drain(rig.now);
    rig.does(&Step::Drain);
    rig.traffic(30, 10);
    assert_eq!(rig.controller.next_step(), None);
    rig.traffic(0, 1);
    rig.traffic(30, 1);
    rig.does(&Step::Absorb);
    assert_eq!(rig.controller.phase(), Phase::Boost);
    // Asked back while the drain is being answered.
    rig.controller.hint_drain(rig.now);
    let drain = rig.takes(&Step::Drain);
    rig.controller.hint_boost(rig.now).unwrap();
    rig.controller.complete(rig.now, drain, StepOutcome::Done);
    rig.does(&Step::Absorb);
    assert_eq!(rig.controller.phase(), Phase::Boost);
    // Ended while it is being attached: it is deleted.
    let mut rig = Rig::new(|_| {}, Learned::default());
    rig.traffic(30, 1);
    let create = rig.takes(&Step::Create { size: Bytes::from_gib(10) });
    rig.controller.hint_detach(rig.now);
    rig.controller.complete(rig.now, create, StepOutcome::Done);
    rig.does(&Step::Delete);
    rig.traffic(30, 5);
    assert_eq!(rig.controller.next_step(), None);
    assert!(rig.controller.status().backing_off.is_some_and(|why| why.contains("on request")));
}

#[test]
fn a_failing_cache_is_released() {
    let mut rig = Rig::new(|_| {}, Learned::default());
    rig.boost(10);
    rig.observation.dirty_bytes = 7;
    rig.observation.cache_failed = true;
    rig.traffic(100, 1);
    assert_eq!(rig.controller.phase(), Phase::Degraded);
    // Data is on it: the driver refuses until the user has decided.
    let refusal = Refusal::Permanent("7 bytes cannot be read: accept the loss".to_owned());
    rig.answers(&Step::Release, StepOutcome::Refused(refusal));
    rig.traffic(100, 60);
    assert_eq!(rig.controller.next_step(), None, "no absorb, no detach");
    assert!(rig.controller.status().backing_off.is_some_and(|why| why.contains("accept the loss")));
    rig.controller.hint_detach(rig.now);
    rig.release_cache();
    assert_eq!(rig.controller.status().next_size, Bytes::from_gib(10));
    assert_eq!(rig.controller.status().boosts, 1);
}

#[test]
fn refusals_back_off_and_roll_back() {
    let mut rig = Rig::new(|_| {}, Learned::default());
    rig.traffic(30, 1);
    let mut waits = Vec::new();
    for _ in 0..4 {
        rig.answers(&Step::Create { size: Bytes::from_gib(10) }, StepOutcome::Refused(Refusal::Quota));
        rig.does(&Step::Delete);
        assert_eq!(rig.controller.phase(), Phase::Idle);
        let status = rig.controller.status();
        assert!(status.backing_off.is_some_and(|why| why.contains("quota")));
        let deadline = rig.controller.next_deadline().unwrap();
        assert_eq!(status.retry_in.unwrap().0, deadline - rig.now);
        waits.push((deadline - rig.now).as_secs_f64());
        rig.now = deadline;
        rig.controller.tick(rig.now);
    }
    for (wait, full) in waits.iter().zip([2.0, 4.0, 8.0, 16.0]) {
        assert!((full / 2.0..=full).contains(wait), "{waits:?}");
    }
    rig.does(&Step::Create { size: Bytes::from_gib(10) });
    // An attach is tried again, then the volume is deleted.
    for attempt in 1..=3 {
        rig.answers(&Step::Attach, StepOutcome::Refused(Refusal::Timeout));
        if attempt < 3 {
            rig.now = rig.controller.next_deadline().unwrap();
            rig.controller.tick(rig.now);
        }
    }
    rig.does(&Step::Detach);
    rig.does(&Step::Delete);
    assert_eq!(rig.controller.phase(), Phase::Idle);
}

/// The provider says when it wants to be asked again, for a boost and for what is billed until it is done; at most `retry_longest`.
#[test]
fn a_provider_that_throttles_is_asked_again_when_it_says() {
    let mut rig = Rig::new(|_| {}, Learned::default());
    let longest = rig.controller.config().backoff.cap;
    let throttled = |after| {
        let text = "slower".to_owned();
        StepOutcome::Refused(Refusal::Throttled { after: Some(after), text })
    };
    rig.traffic(30, 1);
    for (asks, waits) in [(Duration::from_secs(90), Duration::from_secs(90)), (Duration::MAX, longest)] {
        rig.answers(&Step::Create { size: Bytes::from_gib(10) }, throttled(asks));
        rig.does(&Step::Delete);
        let status = rig.controller.status();
        assert!(status.backing_off.is_some_and(|why| why.contains("too many requests (slower)")));
        assert_eq!(status.retry_in.unwrap().0, waits);
        rig.now = rig.controller.next_deadline().unwrap();
        rig.controller.tick(rig.now);
    }
    rig.answers(&Step::Create { size: Bytes::from_gib(10) }, throttled(Duration::ZERO));
    rig.answers(&Step::Delete, throttled(Duration::from_secs(70)));
    let deadline = rig.controller.next_deadline().unwrap();
    assert_eq!(deadline - rig.now, Duration::from_secs(70));
}

/// As one for which there was no capacity: deleted, told, tried again.
#[test]
fn a_boost_whose_volume_could_not_be_made_backs_off_and_deletes_it() {
    let mut rig = Rig::new(|_| {}, Learned::default());
    rig.traffic(30, 1);
    let failed = Refusal::Failed("the provider says that the volume a has failed".to_owned());
    rig.answers(&Step::Create { size: Bytes::from_gib(10) }, StepOutcome::Refused(failed.clone()));
    rig.does(&Step::Delete);
    let status = rig.controller.status();
    assert_eq!(status.phase, Phase::Idle);
    assert!(status.backing_off.is_some_and(|why| why.contains("the volume a has failed")));
    rig.now = rig.controller.next_deadline().unwrap();
    rig.controller.tick(rig.now);
    rig.does(&Step::Create { size: Bytes::from_gib(10) });
    // It may show late.
    rig.answers(&Step::Attach, StepOutcome::Refused(failed));
    rig.does(&Step::Detach);
    rig.does(&Step::Delete);
    assert_eq!(rig.controller.phase(), Phase::Idle);
}

/// Who waits for a boost may look when the controller would already try again.
#[test]
fn the_last_refusal_is_told_until_a_boost_begins() {
    let mut rig = Rig::new(|_| {}, Learned::default());
    rig.controller.hint_boost(rig.now).unwrap();
    let refusal = Refusal::Transient("no answer".to_owned());
    rig.answers(&Step::Create { size: Bytes::from_gib(10) }, StepOutcome::Refused(refusal));
    rig.does(&Step::Delete);
    rig.traffic(1, 3600);
    let status = rig.controller.status();
    assert_eq!((status.phase, status.retry_in), (Phase::Idle, None));
    assert!(status.backing_off.is_some_and(|why| why.contains("did not begin") && why.contains("no answer")));
    rig.boost(10);
    assert_eq!(rig.controller.status().backing_off, None);
}

#[test]
fn a_budget_that_cannot_be_kept_is_not_begun() {
    let budget = Budget { usd_per_day: Some(1.0), ..Budget::default() };
    let mut rig = Rig::new(|config| config.budget = budget, Learned::default());
    rig.traffic(30, 5);
    assert_eq!(rig.controller.next_step(), None);
    assert!(rig.controller.status().backing_off.is_some_and(|why| why.contains("price")));
    assert!(rig.controller.hint_boost(rig.now).is_err());
    let price = |config: &mut Config| {
        config.budget = budget;
        config.caching_usd_per_gib_hour = Some(0.17 / 730.0);
    };
    Rig::new(price, Learned::default()).boost(10);
}

#[test]
fn changes_wait_when_the_budget_needs_the_drain_to_end() {
    // 10 GiB at 128 MiB/s are 1280 AGBs a second: an hour's budget for 500 s, of which 60 s are the reserve.
    let budget = Budget { agbs_per_hour: Some(1280.0 * 500.0), ..Budget::default() };
    let mut rig = Rig::new(|config| config.budget = budget, Learned::default());
    rig.boost(10);
    rig.observation.dirty_bytes = 4 << 30;
    rig.traffic(100, 5);
    rig.controller.hint_drain(rig.now);
    rig.does(&Step::Drain);
    // It does not get on: what is drained is rewritten. To finish it takes 124 s × 1.25.
    for _ in 0..270 {
        rig.observation.drained_bytes += 33 * MIB;
        rig.traffic(33, 1);
    }
    assert_eq!((rig.controller.phase(), rig.controller.next_step()), (Phase::Drain, None));
    assert_eq!(rig.controller.status().backing_off, None);
    for _ in 0..10 {
        rig.observation.drained_bytes += 33 * MIB;
        rig.traffic(33, 1);
    }
    rig.does(&Step::Finish);
    assert!(rig.controller.status().backing_off.is_some_and(|why| why.contains("writes over what is not drained")));
    for _ in 0..100 {
        rig.observation.dirty_bytes -= 33 * MIB;
        rig.observation.drained_bytes += 33 * MIB;
        rig.traffic(5, 1);
    }
    assert_eq!(rig.controller.next_step(), None, "once is enough");
    // Nearly all of it is drained, and a new burst is absorbed again: the next drain is a plain one at first.
    rig.observation.dirty_bytes = 1 << 20;
    rig.traffic(20, 1);
    rig.does(&Step::Absorb);
    assert_eq!((rig.controller.phase(), rig.controller.status().backing_off), (Phase::Boost, None));
    rig.controller.hint_drain(rig.now);
    rig.does(&Step::Drain);
    // Something becomes dirty after the release was asked for.
    rig.observation.dirty_bytes = 0;
    rig.traffic(5, 1);
    let release = rig.takes(&Step::Release);
    rig.observation.dirty_bytes = 2 << 30;
    rig.traffic(5, 1);
    let finish = rig.takes(&Step::Finish);
    rig.controller.complete(rig.now, finish, StepOutcome::Done);
    rig.traffic(5, 1);
    assert_eq!(rig.controller.next_step(), None);
    rig.controller.complete(rig.now, release, StepOutcome::Done);
    rig.does(&Step::Detach);
    rig.does(&Step::Delete);
    assert_eq!(rig.controller.phase(), Phase::Idle);
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let changes: [fn(&mut Config); 5] = [
        |config| config.utilization_threshold = 0.0,
        |config| config.grain = Bytes::ZERO,
        |config| config.size_min = Bytes::from_gib(1 << 20),
        |config| config.initial_size = Bytes::ZERO,
        |config| config.budget.agbs_per_day = Some(-1.0),
    ];
    for change in changes {
        let mut config =
            Config::new(Preset::ADAPTIVE, Bandwidth::from_mib_s(33), Bytes::from_gib(50), Bandwidth::from_mib_s(128));
        assert_eq!(config.validate(), Ok(()));
        change(&mut config);
        assert!(config.validate().is_err());
    }
}

#[test]
fn a_boost_says_why_it_was_begun() {
    let mut rig = Rig::new(|_| {}, Learned::default());
    rig.traffic(9, 1);
    assert_eq!(rig.controller.cause(), None);
    rig.traffic(33, 1);
    assert_eq!(rig.controller.cause(), Some(Cause::Utilization(1.0)));
    let mut rig = Rig::new(|_| {}, Learned::default());
    rig.controller.hint_boost(rig.now).unwrap();
    assert_eq!(rig.controller.cause(), Some(Cause::Request));
    let mut rig = Rig::new(|_| {}, Learned::default());
    rig.controller.resume(rig.now, ResumeAt::Adopted { size: Bytes::from_gib(1) });
    assert_eq!(rig.controller.cause(), None);
}
