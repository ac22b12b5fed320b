//! Each fault does what the fault model says, and by chance the same seed gives the same faults.

use std::sync::Arc;
use std::time::Duration;

use surgetank_model::units::Span;
use surgetank_provider::contract::request;
use surgetank_provider::{
    Change, Fault, FaultRates, Faulty, Lag, LocalConfig, LocalProvider, ManualClock, Provider, ProviderError,
    Transition, Verb, VolumeId, VolumeState,
};
use tempfile::TempDir;

struct World {
    /// Kept for its removal at the end.
    _directory: TempDir,
    clock: Arc<ManualClock>,
    provider: Faulty<LocalProvider>,
}

fn world() -> World {
    let directory = TempDir::new().unwrap();
    let clock = Arc::new(ManualClock::at_ms(1_000));
    let local = LocalProvider::open(LocalConfig::in_directory(directory.path()), clock.clone()).unwrap();
    World { _directory: directory, clock: clock.clone(), provider: Faulty::new(local, clock) }
}

fn lost() -> ProviderError {
    ProviderError::Transient("lost".to_owned())
}

impl World {
    fn state(&self, id: &VolumeId) -> Result<VolumeState, ProviderError> {
        self.provider.describe(id).map(|volume| volume.state)
    }

    fn listed(&self) -> usize {
        self.provider.list("k", "v").unwrap().len()
    }
}

#[test]
fn before_does_nothing_and_after_does_all() {
    let world = world();
    let quota = ProviderError::Quota("none".to_owned());
    world.provider.script(Verb::Create, Fault::Before(quota.clone()));
    world.provider.script(Verb::Create, Fault::After(lost()));
    assert_eq!(world.provider.create(&request("t")), Err(quota));
    assert_eq!(world.listed(), 0);
    assert_eq!(world.provider.create(&request("t")), Err(lost()));
    assert_eq!(world.listed(), 1);
    let (volume, change) = world.provider.create(&request("t")).unwrap();
    assert_eq!(change, Change::Identity);
    for (transition, state) in
        [(Transition::Attach, VolumeState::Attached), (Transition::Detach, VolumeState::Available)]
    {
        world.provider.script(transition.into(), Fault::Before(lost()));
        world.provider.script(transition.into(), Fault::After(lost()));
        let call = || world.provider.change_state(&volume.id, transition);
        assert_eq!(call(), Err(lost()));
        assert_ne!(world.state(&volume.id), Ok(state));
        assert_eq!(call(), Err(lost()));
        assert_eq!(world.state(&volume.id), Ok(state));
        assert_eq!(call(), Ok(Change::Identity));
    }
    world.provider.script(Verb::Describe, Fault::Before(lost()));
    assert_eq!(world.state(&volume.id), Err(lost()));
    world.provider.script(Verb::SetTag, Fault::After(lost()));
    assert_eq!(world.provider.set_tag(&volume.id, "x", Some("y")), Err(lost()));
    assert_eq!(world.provider.set_tag(&volume.id, "x", Some("y")), Ok(Change::Identity));
    world.provider.script(Verb::Delete, Fault::After(lost()));
    assert_eq!(world.provider.delete(&volume.id), Err(lost()));
    assert_eq!(world.provider.delete(&volume.id), Ok(Change::Identity));
    assert_eq!(world.provider.faults(), 9);
}

#[test]
fn slow_changes_show_late() {
    let world = world();
    let slow = || Fault::Slow(Duration::from_secs(5));
    let wait = || world.clock.advance(Duration::from_secs(5));
    for verb in [Verb::Create, Verb::Attach, Verb::Detach, Verb::Delete] {
        world.provider.script(verb, slow());
    }
    let volume = world.provider.create(&request("t")).unwrap().0;
    let id = volume.id;
    assert_eq!((volume.state, world.state(&id)), (VolumeState::Creating, Ok(VolumeState::Creating)));
    assert_eq!(world.provider.create(&request("t")).unwrap().0.state, VolumeState::Creating);
    assert!(matches!(world.provider.attach(&id), Err(ProviderError::Conflict { .. })));
    wait();
    assert_eq!(world.state(&id), Ok(VolumeState::Available));
    // The refused attach took the scripted fault with it.
    world.provider.script(Verb::Attach, slow());
    assert_eq!(world.provider.attach(&id), Ok(Change::Changed));
    assert_eq!(world.provider.attach(&id), Ok(Change::Identity));
    let shown = world.provider.list("k", "v").unwrap();
    assert_eq!((shown[0].state, &shown[0].device), (VolumeState::Attaching, &None));
    assert!(matches!(world.provider.delete(&id), Err(ProviderError::Conflict { .. })));
    wait();
    assert!(world.provider.describe(&id).unwrap().device.is_some());
    assert_eq!(world.provider.detach(&id), Ok(Change::Changed));
    assert_eq!(world.provider.detach(&id), Ok(Change::Identity));
    assert_eq!(world.state(&id), Ok(VolumeState::Detaching));
    wait();
    world.provider.script(Verb::Delete, slow());
    assert_eq!(world.provider.delete(&id), Ok(Change::Changed));
    assert_eq!((world.state(&id), world.listed()), (Ok(VolumeState::Deleting), 1));
    assert_eq!(world.provider.delete(&id), Ok(Change::Identity));
    wait();
    assert_eq!((world.state(&id), world.listed()), (Err(ProviderError::NotFound(id)), 0));
}

#[test]
fn a_volume_that_hangs_can_be_rolled_back() {
    let world = world();
    world.provider.script(Verb::Create, Fault::Slow(Duration::MAX));
    let id = world.provider.create(&request("t")).unwrap().0.id;
    world.clock.advance(Duration::from_secs(1 << 30));
    assert_eq!(world.state(&id), Ok(VolumeState::Creating));
    assert_eq!(world.provider.delete(&id), Ok(Change::Changed));
    assert_eq!(world.listed(), 0);
    let id = world.provider.create(&request("u")).unwrap().0.id;
    world.provider.script(Verb::Attach, Fault::Slow(Duration::MAX));
    world.provider.attach(&id).unwrap();
    assert_eq!(world.state(&id), Ok(VolumeState::Attaching));
    assert_eq!(world.provider.detach(&id), Ok(Change::Changed));
    assert_eq!(world.state(&id), Ok(VolumeState::Available));
    world.provider.script(Verb::Attach, Fault::Slow(Duration::MAX));
    world.provider.attach(&id).unwrap();
    world.provider.release();
    assert_eq!(world.state(&id), Ok(VolumeState::Attached));
}

#[test]
fn twice_leaves_an_orphan_that_list_finds() {
    let world = world();
    world.provider.script(Verb::Create, Fault::Twice);
    world.provider.script(Verb::Attach, Fault::Twice);
    let id = world.provider.create(&request("t")).unwrap().0.id;
    assert_eq!(world.listed(), 2);
    assert_eq!(world.provider.attach(&id), Ok(Change::Changed));
    assert_eq!(world.state(&id), Ok(VolumeState::Attached));
}

#[test]
fn vanished_volumes_are_known_to_no_verb() {
    let world = world();
    let id = world.provider.create(&request("t")).unwrap().0.id;
    world.provider.script(Verb::Attach, Fault::Vanish);
    assert_eq!(world.provider.attach(&id), Ok(Change::Changed));
    let absent = || ProviderError::NotFound(id.clone());
    assert_eq!((world.state(&id), world.listed()), (Err(absent()), 0));
    assert_eq!(world.provider.attach(&id), Err(absent()));
    assert_eq!(world.provider.detach(&id), Err(absent()));
    assert_eq!(world.provider.set_tag(&id, "x", None), Err(absent()));
    assert_eq!(world.provider.delete(&id), Ok(Change::Identity));
}

#[test]
fn what_was_added_leaves_the_faults_of_known_seeds_where_they_were() {
    let rates = FaultRates { seed: 3, fail_before: 0.2, fail_after: 0.1, stale: 0.3, ..FaultRates::default() };
    let faults = |rates: FaultRates| {
        let told = Arc::new(std::sync::Mutex::new(Vec::new()));
        let (teller, calls) = (told.clone(), Arc::new(std::sync::atomic::AtomicUsize::new(0)));
        let call = calls.clone();
        let World { _directory, provider, .. } = world();
        let provider = provider.with_rates(rates).with_observer(Box::new(move |verb, fault| {
            teller.lock().unwrap().push((call.load(std::sync::atomic::Ordering::Relaxed), verb, fault.clone()));
        }));
        for number in 0..200 {
            calls.store(number, std::sync::atomic::Ordering::Relaxed);
            let _ = provider.list("k", "v");
        }
        std::mem::take(&mut *told.lock().unwrap())
    };
    let before = faults(rates.clone());
    let throttled_for = Some(Span(Duration::from_secs(3)));
    let now = faults(FaultRates { throttled: 0.2, throttled_for, fails: 0.5, unknown: 0.3, ..rates });
    assert!(before.iter().all(|fault| now.contains(fault)), "{before:?}, then {now:?}");
    let after = Some(Duration::from_secs(3));
    let is_throttled =
        |fault: &Fault| matches!(fault, Fault::Before(ProviderError::Throttled { after: told, .. }) if *told == after);
    assert!(now.iter().any(|(.., fault)| is_throttled(fault)) && now.len() > before.len() + 10);
}

/// It is told how long that may last, and every other verb knows the volume.
#[test]
fn a_volume_that_is_not_known_for_a_while_is_there() {
    let by = Duration::from_secs(3);
    let World { _directory, clock, provider } = world();
    for fault in [Verb::Create, Verb::Describe] {
        provider.script(fault, Fault::Unknown(by));
        let id = provider.create(&request(&format!("{fault:?}"))).unwrap().0.id;
        for moment in [0, 2_999] {
            assert_eq!(provider.describe(&id), Err(ProviderError::NotFound(id.clone())), "{fault:?}");
            assert_eq!(provider.list("k", "v"), Ok(Vec::new()));
            clock.advance(Duration::from_millis(moment));
        }
        assert_eq!(provider.attach(&id), Ok(Change::Changed));
        clock.advance(Duration::from_millis(1));
        provider.script(Verb::Describe, Fault::Unknown(by));
        assert_eq!(
            provider.describe(&id).map(|volume| volume.state),
            Ok(VolumeState::Attached),
            "once for each volume"
        );
        assert_eq!(provider.detach(&id).and(provider.delete(&id)), Ok(Change::Changed));
    }
    assert_eq!(provider.lag(), Lag::NONE, "what is scripted is not told");
    let rates = FaultRates { unknown: 0.1, unknown_for: Span(by), ..FaultRates::default() };
    assert_eq!(provider.with_rates(rates).lag(), Lag { created: by, known: by });
}

/// A life cycle that repeats each call until it succeeds; the answers on the way.
fn stubborn_run(rates: FaultRates) -> (Vec<String>, u32, usize) {
    let world = world();
    let clock = world.clock.clone();
    let World { _directory, provider, .. } = world;
    let provider = provider.with_rates(rates);
    let mut answers = Vec::new();
    for token in 0..20 {
        let mut id = None;
        for _ in 0..200 {
            clock.advance(Duration::from_millis(100));
            let answer = provider.create(&request(&token.to_string()));
            answers.push(format!("{:?}", answer.as_ref().map(|(volume, change)| (volume.state, *change))));
            if let Ok((volume, _)) = answer {
                id = Some(volume.id);
                break;
            }
        }
        let id = id.expect("create succeeds at last");
        for transition in [Transition::Attach, Transition::Detach, Transition::Delete] {
            let done = (0..200).any(|_| {
                clock.advance(Duration::from_millis(100));
                let answer = provider.change_state(&id, transition);
                answers.push(format!("{:?}", answer.as_ref().map_err(|error| error.to_string().replace(&id.0, "ID"))));
                answer.is_ok()
            });
            assert!(done, "each verb succeeds at last");
        }
    }
    (answers, provider.faults(), provider.inner().list("k", "v").unwrap().len())
}

#[test]
fn the_same_seed_gives_the_same_faults_and_retries_leave_nothing() {
    let rates = |seed| FaultRates {
        seed,
        fail_before: 0.1,
        fail_after: 0.1,
        slow: 0.1,
        slow_for: Span(Duration::from_millis(500)),
        quota: 0.1,
        capacity: 0.1,
        attach_limit: 0.1,
        ..FaultRates::default()
    };
    let first = stubborn_run(rates(1));
    assert_eq!(first, stubborn_run(rates(1)));
    assert_ne!(first.0, stubborn_run(rates(2)).0);
    assert!(first.1 > 10, "{} faults", first.1);
    assert_eq!(first.2, 0, "no volume is left behind");
    let few = stubborn_run(FaultRates { at_most: Some(3), ..rates(1) });
    assert_eq!(few.1, 3);
    assert_eq!(stubborn_run(FaultRates::default()).1, 0);
}

#[test]
fn a_stale_list_is_the_one_before_and_every_fault_is_told() {
    let World { _directory, clock, provider } = world();
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let teller = told.clone();
    let provider =
        provider.with_observer(Box::new(move |verb, fault| teller.lock().unwrap().push((verb, fault.clone()))));
    let world = World { _directory, clock, provider };
    for _ in 0..3 {
        world.provider.script(Verb::List, Fault::Stale);
    }
    let (volume, _) = world.provider.create(&request("t")).unwrap();
    assert_eq!(world.listed(), 0, "never asked before");
    world.provider.script(Verb::Create, Fault::Before(lost()));
    assert_eq!(world.provider.create(&request("u")), Err(lost()));
    assert_eq!((world.listed(), world.listed()), (0, 0));
    assert_eq!(world.listed(), 1);
    world.provider.script(Verb::List, Fault::Stale);
    world.provider.delete(&volume.id).unwrap();
    assert_eq!((world.listed(), world.listed()), (1, 0), "what is gone is shown once more");
    let stale = (Verb::List, Fault::Stale);
    let create = (Verb::Create, Fault::Before(lost()));
    assert_eq!(*told.lock().unwrap(), [stale.clone(), create, stale.clone(), stale.clone(), stale]);
}
