//! Stripes over several volumes of a provider keep the contract of every provider, and nothing of them is left, whatever is
//! refused in the middle.

use std::sync::Arc;
use std::time::Duration;

use surgetank_daemon::striped::StripedProvider;
use surgetank_model::Bytes;
use surgetank_model::units::Span;
use surgetank_provider::contract::{self, Subject, request};
use surgetank_provider::{
    Change, CreateVolume, Fault, FaultRates, Faulty, LocalConfig, LocalProvider, ManualClock, Provider, ProviderError,
    Verb, VolumeDescription, VolumeState,
};
use surgetank_rental::stripe;
use tempfile::TempDir;

const VOLUMES: u32 = 4;

/// The local provider, rented in stripes.
struct Striped {
    directory: TempDir,
    clock: Arc<ManualClock>,
    latency: Span,
}

impl Striped {
    fn new(latency_ms: u64) -> Self {
        Self {
            directory: TempDir::new().unwrap(),
            clock: Arc::new(ManualClock::at_ms(1_700_000_000_000)),
            latency: Span(Duration::from_millis(latency_ms)),
        }
    }

    fn config(&self) -> LocalConfig {
        LocalConfig {
            create_latency: self.latency,
            attach_latency: self.latency,
            detach_latency: self.latency,
            delete_latency: self.latency,
            ..LocalConfig::in_directory(self.directory.path())
        }
    }

    /// The provider, and the one with faults underneath.
    fn faulty(&self, config: LocalConfig) -> (StripedProvider, Arc<Faulty<LocalProvider>>) {
        let local = LocalProvider::open(config, self.clock.clone()).unwrap();
        let faulty = Arc::new(Faulty::new(local, self.clock.clone()));
        (StripedProvider::new(faulty.clone(), VOLUMES), faulty)
    }
}

impl Subject for Striped {
    fn open(&self) -> Arc<dyn Provider> {
        let local = LocalProvider::open(self.config(), self.clock.clone()).unwrap();
        let faulty = Faulty::new(local, self.clock.clone()).with_rates(FaultRates::default());
        Arc::new(StripedProvider::new(Arc::new(faulty), VOLUMES))
    }

    fn pass_time(&self) {
        self.clock.advance(Duration::from_millis(100));
    }

    fn rentable(&self) -> (String, Bytes) {
        ("fast".to_owned(), Bytes::from_mib(4))
    }
}

fn stripe_request(token: &str) -> CreateVolume {
    CreateVolume { size: Bytes::from_mib(4), ..request(token) }
}

/// What is rented of whom, plain.
fn rented(provider: &dyn Provider) -> Vec<VolumeDescription> {
    provider.list("k", "v").unwrap()
}

/// As a rental does: what a listing shows is detached and deleted until it shows nothing.
fn delete_all(provider: &dyn Provider, subject: &Striped) {
    for _ in 0..1000 {
        let listed = rented(provider);
        if listed.is_empty() {
            return;
        }
        for volume in listed {
            match volume.state {
                VolumeState::Attached | VolumeState::Attaching => _ = provider.detach(&volume.id),
                VolumeState::Creating | VolumeState::Available | VolumeState::Failed => _ = provider.delete(&volume.id),
                VolumeState::Detaching | VolumeState::Deleting => {}
            }
        }
        subject.pass_time();
    }
    panic!("not all is gone: {:?}", rented(provider));
}

#[test]
fn contract_at_once() {
    contract::run(&Striped::new(0));
}

#[test]
fn contract_with_latency() {
    contract::run(&Striped::new(1000));
}

#[test]
fn a_stripe_is_so_many_volumes_and_knows_where_each_is() {
    let subject = Striped::new(0);
    let (provider, inner) = subject.faulty(subject.config());
    let (made, _) = provider.create(&stripe_request("t")).unwrap();
    provider.attach(&made.id).unwrap();
    let volume = provider.describe(&made.id).unwrap();
    assert_eq!((volume.state, volume.size), (VolumeState::Attached, Bytes::from_mib(4)));
    assert_eq!(volume.members.len(), 4);
    assert!(volume.is_located() && volume.device.is_none());
    let ids: Vec<_> = volume.members.iter().map(|member| member.id.clone()).collect();
    assert_eq!(ids, stripe::members(&made.id), "in the order of the stripe");
    assert_eq!(rented(&*inner).len(), 4);
    assert!(rented(&*inner).iter().all(|volume| volume.size == Bytes::from_mib(1) && volume.members.is_empty()));
    // Stripes of any size are known, and plain volumes beside them.
    let plain = provider.with_volumes(1);
    let (single, _) = plain.create(&request("single")).unwrap();
    assert_eq!(rented(&plain), rented(&provider));
    assert_eq!(rented(&plain).len(), 2);
    plain.delete(&single.id).unwrap();
    delete_all(&plain, &subject);
}

#[test]
fn a_stripe_of_which_a_member_could_not_be_made_has_failed_and_is_deleted_whole() {
    for attached in [false, true] {
        let subject = Striped::new(0);
        let (provider, inner) = subject.faulty(subject.config());
        inner.script(Verb::Create, Fault::Fails);
        let (made, _) = provider.create(&stripe_request("t")).unwrap();
        assert_eq!(provider.describe(&made.id).unwrap().state, VolumeState::Failed);
        if attached {
            assert!(matches!(provider.attach(&made.id), Err(ProviderError::Conflict { .. })), "a part is attached");
            assert_eq!(provider.describe(&made.id).unwrap().state, VolumeState::Failed);
        }
        assert_eq!(rented(&*inner).len(), 4);
        delete_all(&provider, &subject);
        assert_eq!(rented(&*inner), []);
    }
}

#[test]
fn what_a_quota_leaves_of_a_stripe_is_found_and_deleted_or_completed() {
    for completes in [false, true] {
        let subject = Striped::new(0);
        let (provider, _) = subject.faulty(LocalConfig { quota_volumes: Some(2), ..subject.config() });
        let refused = provider.create(&stripe_request("t"));
        assert!(matches!(refused, Err(ProviderError::Quota(_))), "{refused:?}");
        let left = rented(&provider);
        let [part] = &*left else { panic!("one stripe: {left:?}") };
        assert_eq!((part.members.len(), part.state), (2, VolumeState::Available));
        if completes {
            let (provider, _) = subject.faulty(subject.config());
            let (made, _) = provider.create(&stripe_request("t")).unwrap();
            assert_eq!(made.members.len(), 4);
            assert!(stripe::overlap(&made.id, &part.id));
        }
        delete_all(&provider, &subject);
    }
}

/// The rental goes on from what is described after a call that failed for one of the members.
#[test]
fn a_change_that_one_member_refuses_is_asked_for_again() {
    let subject = Striped::new(0);
    let (provider, inner) = subject.faulty(subject.config());
    let id = provider.create(&stripe_request("t")).unwrap().0.id;
    let fails = || Fault::Before(ProviderError::Transient("injected".to_owned()));
    let state = || provider.describe(&id).unwrap().state;
    inner.script(Verb::Attach, Fault::Before(ProviderError::AttachLimit("full".to_owned())));
    assert_eq!(provider.attach(&id), Err(ProviderError::AttachLimit("full".to_owned())));
    assert_eq!(state(), VolumeState::Available, "it is to be attached");
    assert_eq!((provider.attach(&id), state()), (Ok(Change::Changed), VolumeState::Attached));
    inner.script(Verb::Detach, fails());
    assert!(provider.detach(&id).is_err());
    // One is attached yet: who deletes deletes the others, and is told that not all of it is on its way out.
    assert_eq!((provider.delete(&id), state()), (Ok(Change::Identity), VolumeState::Attached));
    assert!(provider.delete(&id).is_err(), "it is not deleted while it is attached");
    assert_eq!((provider.detach(&id), state()), (Ok(Change::Changed), VolumeState::Available));
    inner.script(Verb::Delete, fails());
    assert!(provider.delete(&id).is_err());
    delete_all(&provider, &subject);
    assert_eq!(provider.describe(&id), Err(ProviderError::NotFound(id)));
}

#[test]
fn a_tag_counts_as_set_when_all_have_it_and_is_seen_when_one_has() {
    let subject = Striped::new(0);
    let (provider, inner) = subject.faulty(subject.config());
    let id = provider.create(&stripe_request("t")).unwrap().0.id;
    let tag = || provider.describe(&id).unwrap().tags.get("dirty").cloned();
    inner.script(Verb::SetTag, Fault::Before(ProviderError::Transient("injected".to_owned())));
    assert!(provider.set_tag(&id, "dirty", Some("e")).is_err());
    assert_eq!(tag().as_deref(), Some("e"));
    assert_eq!(provider.set_tag(&id, "dirty", Some("e")), Ok(Change::Changed), "the one that had failed");
    assert!(rented(&*inner).iter().all(|volume| volume.tags["dirty"] == "e"));
    inner.script(Verb::SetTag, Fault::Before(ProviderError::Transient("injected".to_owned())));
    assert!(provider.set_tag(&id, "dirty", None).is_err());
    assert_eq!(tag().as_deref(), Some("e"));
    assert_eq!((provider.set_tag(&id, "dirty", None), tag()), (Ok(Change::Changed), None));
}

#[test]
fn a_growth_that_one_member_refuses_may_have_happened() {
    let subject = Striped::new(0);
    let (provider, inner) = subject.faulty(subject.config());
    let id = provider.create(&stripe_request("t")).unwrap().0.id;
    let full = || Fault::Before(ProviderError::Quota("full".to_owned()));
    (0..VOLUMES).for_each(|_| inner.script(Verb::Grow, full()));
    let refused = provider.grow(&id, Bytes::from_mib(8));
    assert!(matches!(refused, Err(ProviderError::Quota(_))), "{refused:?}");
    inner.script(Verb::Grow, full());
    let refused = provider.grow(&id, Bytes::from_mib(8));
    assert!(matches!(refused, Err(ProviderError::Transient(_))), "some have grown: {refused:?}");
    assert_eq!(provider.describe(&id).unwrap().size, Bytes::from_mib(4), "it is as large as its smallest allows");
    assert_eq!(provider.grow(&id, Bytes::from_mib(8)), Ok(Change::Changed));
    assert_eq!(provider.describe(&id).unwrap().size, Bytes::from_mib(8));
}
