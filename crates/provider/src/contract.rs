//! The contract of every provider, as tests: [`run`] them on each.
//!
//! The cases are plain functions that panic with a sentence when the contract is broken. They share one account, tell
//! their volumes apart by a tag, and clean up after themselves.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustix::rand::GetRandomFlags;
use surgetank_model::{Bytes, Lag};

use crate::{Change, CreateVolume, Provider, ProviderError, Tags, VolumeDescription, VolumeId, VolumeState, tag};

/// What tests of our own providers rent: a small volume, tagged `k` = `v`.
#[must_use]
pub fn request(token: &str) -> CreateVolume {
    CreateVolume {
        token: token.to_owned(),
        volume_type: "fast".to_owned(),
        size: Bytes::from_mib(1),
        tags: Tags::from([("k".to_owned(), "v".to_owned())]),
    }
}

/// How often a case looks before it stops waiting for a change.
const LOOKS_MAX: u32 = 1000;

/// A provider under test.
pub trait Subject {
    /// Opens the provider anew, as a restarted daemon would: whatever it remembers must come from outside the process.
    fn open(&self) -> Arc<dyn Provider>;

    /// Lets some time pass between two looks: sleeps, or moves the clock.
    fn pass_time(&self);

    /// A type that can be rented, and a size it may have.
    fn rentable(&self) -> (String, Bytes);

    /// The same provider; the next volume that it makes fails. `None`: that cannot be had.
    fn open_failing(&self) -> Option<Arc<dyn Provider>> {
        None
    }
}

type Case = fn(&Bench<'_>);

/// Every case, by name.
const CASES: &[(&str, Case)] = &[
    ("life_cycle", life_cycle),
    ("every_verb_is_idempotent", every_verb_is_idempotent),
    ("a_token_makes_one_volume", a_token_makes_one_volume),
    ("a_token_is_bound_to_its_volume", a_token_is_bound_to_its_volume),
    ("concurrent_creates_with_one_token", concurrent_creates_with_one_token),
    ("tags_are_set_and_removed", tags_are_set_and_removed),
    ("list_finds_by_tag", list_finds_by_tag),
    ("absent_volumes", absent_volumes),
    ("attached_volumes_are_not_deleted", attached_volumes_are_not_deleted),
    ("unknown_types_and_sizes_are_invalid", unknown_types_and_sizes_are_invalid),
    ("everything_survives_reopening", everything_survives_reopening),
    ("volumes_grow_in_place_or_say_that_they_cannot", volumes_grow_in_place_or_say_that_they_cannot),
    ("a_volume_that_cannot_grow_stays_as_it_is", a_volume_that_cannot_grow_stays_as_it_is),
    ("a_failed_volume_can_only_be_deleted", a_failed_volume_can_only_be_deleted),
];

/// Runs every case.
///
/// # Panics
/// If the provider breaks its contract.
pub fn run(subject: &dyn Subject) {
    for (name, case) in CASES {
        let bench = Bench::new(subject, name);
        case(&bench);
        bench.clean_up();
    }
}

/// What a case works with: the provider, and names of its own.
struct Bench<'a> {
    subject: &'a dyn Subject,
    provider: Arc<dyn Provider>,
    /// The value of the owner tag that marks this case's volumes.
    owner: String,
}

impl<'a> Bench<'a> {
    fn new(subject: &'a dyn Subject, case: &str) -> Self {
        Self { subject, provider: subject.open(), owner: format!("{case}-{}", nonce()) }
    }

    /// A request with a fresh token.
    fn request(&self) -> CreateVolume {
        let (volume_type, size) = self.subject.rentable();
        let token = nonce();
        let tags = [(tag::OWNER.to_owned(), self.owner.clone()), (tag::TOKEN.to_owned(), token.clone())];
        CreateVolume { token, volume_type, size, tags: Tags::from(tags) }
    }

    fn create(&self, request: &CreateVolume) -> VolumeDescription {
        let (volume, change) = self.provider.create(request).expect("create works");
        assert_eq!(change, Change::Changed, "the first create with a token makes a volume");
        volume
    }

    /// Creates again with the token of a volume, as soon as that is listed: before, a provider that lags may not know who made it.
    fn create_again(&self, request: &CreateVolume, id: &VolumeId) -> (VolumeDescription, Change) {
        assert!(self.holds(|| self.listed().contains(id)), "{id:?} is listed");
        self.provider.create(request).expect("create with a used token works")
    }

    fn created(&self) -> VolumeId {
        let volume = self.create(&self.request());
        self.reaches(&volume.id, VolumeState::Available);
        volume.id
    }

    fn listed(&self) -> BTreeSet<VolumeId> {
        let listed = self.provider.list(tag::OWNER, &self.owner).expect("list works");
        let ids: BTreeSet<_> = listed.iter().map(|volume| volume.id.clone()).collect();
        assert_eq!(ids.len(), listed.len(), "a volume is listed once");
        ids
    }

    /// Whether something holds; of a provider that may lag, after a while.
    fn holds(&self, something: impl Fn() -> bool) -> bool {
        if something() {
            return true;
        }
        let looks = if self.provider.lag() == Lag::NONE { 0 } else { LOOKS_MAX };
        (0..looks).any(|_| {
            self.subject.pass_time();
            something()
        })
    }

    /// The volumes of this case are these.
    fn lists(&self, ids: impl IntoIterator<Item = VolumeId>) {
        let ids = BTreeSet::from_iter(ids);
        assert!(self.holds(|| self.listed() == ids), "{ids:?} are there, and {:?} are listed", self.listed());
    }

    /// What is told of a volume that is there. Only a provider that may lag may not know it for a while.
    fn seen(&self, id: &VolumeId) -> VolumeDescription {
        for _ in 0..LOOKS_MAX {
            match self.provider.describe(id) {
                Err(ProviderError::NotFound(_)) if self.provider.lag() != Lag::NONE => self.subject.pass_time(),
                described => return described.expect("the volume is there"),
            }
        }
        panic!("{id:?} stays unknown");
    }

    /// Waits for a state.
    fn reaches(&self, id: &VolumeId, state: VolumeState) -> VolumeDescription {
        for _ in 0..LOOKS_MAX {
            let volume = self.seen(id);
            let has_device = volume.is_located();
            assert_eq!(has_device, volume.state == VolumeState::Attached, "only attached volumes have a device");
            if volume.state == state {
                return volume;
            }
            self.subject.pass_time();
        }
        panic!("{id:?} does not become {state:?}");
    }

    /// Waits until a volume is so large.
    fn becomes(&self, id: &VolumeId, size: Bytes) -> VolumeDescription {
        for _ in 0..LOOKS_MAX {
            let volume = self.seen(id);
            assert!(volume.size <= size, "{id:?} is larger than anybody asked for");
            if volume.size == size {
                return volume;
            }
            self.subject.pass_time();
        }
        panic!("{id:?} does not grow to {size}");
    }

    /// Waits until a volume is neither described nor listed.
    fn is_gone(&self, id: &VolumeId) {
        for _ in 0..LOOKS_MAX {
            match self.provider.describe(id) {
                Err(ProviderError::NotFound(named)) => {
                    assert_eq!(named, *id, "NotFound names the volume");
                    assert!(self.holds(|| !self.listed().contains(id)), "what is not found is not listed");
                    return;
                }
                Ok(volume) => assert_eq!(volume.state, VolumeState::Deleting, "deleted volumes are on their way out"),
                Err(error) => panic!("describe of a deleted volume fails: {error}"),
            }
            self.subject.pass_time();
        }
        panic!("{id:?} does not go away");
    }

    fn delete(&self, id: &VolumeId) {
        assert_eq!(self.provider.delete(id), Ok(Change::Changed), "delete of an idle volume works");
        self.is_gone(id);
    }

    /// Detaches and deletes whatever the case left.
    fn clean_up(&self) {
        for id in self.listed() {
            for _ in 0..LOOKS_MAX {
                let _ = self.provider.detach(&id);
                if self.provider.delete(&id) == Ok(Change::Identity) {
                    break;
                }
                self.subject.pass_time();
            }
            self.is_gone(&id);
        }
    }
}

/// What no run before in the same account has called anything.
fn nonce() -> String {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty()).expect("random bytes");
    format!("{:016x}", u64::from_le_bytes(bytes))
}

fn life_cycle(bench: &Bench<'_>) {
    let request = bench.request();
    let volume = bench.create(&request);
    assert!(
        matches!(volume.state, VolumeState::Creating | VolumeState::Available),
        "a new volume is {:?}",
        volume.state
    );
    let id = volume.id;
    let volume = bench.reaches(&id, VolumeState::Available);
    assert_eq!((&volume.volume_type, volume.size), (&request.volume_type, request.size), "it is what was asked for");
    assert_eq!(volume.tags, request.tags, "its tags are set from the start");
    for _ in 0..2 {
        assert_eq!(bench.provider.attach(&id), Ok(Change::Changed));
        bench.reaches(&id, VolumeState::Attached);
        assert_eq!(bench.provider.detach(&id), Ok(Change::Changed));
        bench.reaches(&id, VolumeState::Available);
    }
    bench.delete(&id);
}

fn every_verb_is_idempotent(bench: &Bench<'_>) {
    let request = bench.request();
    let id = bench.create(&request).id;
    let again = bench.create_again(&request, &id);
    assert_eq!((again.0.id, again.1), (id.clone(), Change::Identity));
    bench.reaches(&id, VolumeState::Available);
    assert_eq!(bench.provider.detach(&id), Ok(Change::Identity), "detach of a volume that is not attached");
    assert_eq!(bench.provider.attach(&id), Ok(Change::Changed));
    assert_eq!(bench.provider.attach(&id), Ok(Change::Identity), "attach while attaching");
    bench.reaches(&id, VolumeState::Attached);
    assert_eq!(bench.provider.attach(&id), Ok(Change::Identity), "attach while attached");
    assert_eq!(bench.provider.detach(&id), Ok(Change::Changed));
    assert_eq!(bench.provider.detach(&id), Ok(Change::Identity), "detach while detaching");
    bench.reaches(&id, VolumeState::Available);
    bench.delete(&id);
    assert_eq!(bench.provider.delete(&id), Ok(Change::Identity), "delete of a deleted volume");
}

fn a_token_makes_one_volume(bench: &Bench<'_>) {
    let request = bench.request();
    let id = bench.create(&request).id;
    bench.reaches(&id, VolumeState::Available);
    bench.provider.attach(&id).expect("attach works");
    bench.reaches(&id, VolumeState::Attached);
    bench.provider.set_tag(&id, "contract:later", Some("x")).expect("set_tag works");
    let (again, change) = bench.create_again(&request, &id);
    assert_eq!((again.id, again.state, change), (id.clone(), VolumeState::Attached, Change::Identity));
    let other = bench.create(&bench.request()).id;
    assert_ne!(other, id, "another token makes another volume");
    bench.lists([id, other]);
}

fn a_token_is_bound_to_its_volume(bench: &Bench<'_>) {
    let request = bench.request();
    let id = bench.create(&request).id;
    let larger = CreateVolume { size: Bytes::new(request.size.get() * 2), ..request };
    let answer = bench.provider.create(&larger);
    assert!(matches!(answer, Err(ProviderError::Invalid(_))), "another volume with a used token: {answer:?}");
    bench.lists([id]);
}

fn concurrent_creates_with_one_token(bench: &Bench<'_>) {
    let request = bench.request();
    // Half of the callers share a provider, half have one of their own, as several processes do.
    let providers: Vec<_> =
        (0..8).map(|i| if i % 2 == 0 { Arc::clone(&bench.provider) } else { bench.subject.open() }).collect();
    let answers: Vec<_> = std::thread::scope(|scope| {
        let request = &request;
        let threads: Vec<_> = providers.iter().map(|provider| scope.spawn(move || provider.create(request))).collect();
        threads.into_iter().map(|thread| thread.join().expect("create does not panic").expect("create works")).collect()
    });
    let ids: BTreeSet<_> = answers.iter().map(|(volume, _)| volume.id.clone()).collect();
    if bench.provider.create_is_exclusive() {
        assert_eq!(ids.len(), 1, "one token, one volume");
        assert_eq!(answers.iter().filter(|(_, change)| *change == Change::Changed).count(), 1, "one of them made it");
        bench.lists(ids);
        return;
    }
    // All of them are found by the token; one is kept, here the least, and the others go as orphans do.
    assert!(answers.iter().any(|(_, change)| *change == Change::Changed), "one of them made it");
    bench.lists(ids.clone());
    let mut ids = ids.into_iter();
    let kept = ids.next().expect("there are answers");
    for other in ids {
        assert_eq!(bench.seen(&other).tags.get(tag::TOKEN), Some(&request.token));
        bench.reaches(&other, VolumeState::Available);
        bench.delete(&other);
    }
    bench.lists([kept.clone()]);
    let (again, change) = bench.provider.create(&request).expect("create with a used token works");
    assert_eq!(
        (again.id, change),
        (kept.clone(), Change::Identity),
        "once it is listed, a token makes no other volume"
    );
    bench.lists([kept]);
}

fn tags_are_set_and_removed(bench: &Bench<'_>) {
    let id = bench.created();
    let set = |value| bench.provider.set_tag(&id, tag::DIRTY_EPOCH, value);
    let get = || bench.seen(&id).tags.get(tag::DIRTY_EPOCH).cloned();
    assert_eq!((set(None), get()), (Ok(Change::Identity), None));
    assert_eq!((set(Some("e1")), get().as_deref()), (Ok(Change::Changed), Some("e1")));
    assert_eq!((set(Some("e1")), get().as_deref()), (Ok(Change::Identity), Some("e1")));
    assert_eq!((set(Some("e2")), get().as_deref()), (Ok(Change::Changed), Some("e2")));
    bench.provider.attach(&id).expect("attach works");
    bench.reaches(&id, VolumeState::Attached);
    assert_eq!((set(None), get()), (Ok(Change::Changed), None));
    let owner = bench.seen(&id).tags.get(tag::OWNER).cloned();
    assert_eq!(owner.as_ref(), Some(&bench.owner), "the other tags are left alone");
}

fn list_finds_by_tag(bench: &Bench<'_>) {
    let (a, b) = (bench.created(), bench.created());
    let both = BTreeSet::from([a.clone(), b.clone()]);
    bench.lists(both);
    let value = format!("{}-value", bench.owner);
    let find = |value: &str| {
        let listed = bench.provider.list("contract:key", value).expect("list works");
        listed.into_iter().map(|volume| volume.id).collect::<Vec<_>>()
    };
    assert_eq!(find(&value), []);
    bench.provider.set_tag(&a, "contract:key", Some(&value)).expect("set_tag works");
    assert!(bench.holds(|| find(&value) == std::slice::from_ref(&a)), "it is listed by its tag: {:?}", find(&value));
    assert_eq!(find(&format!("{value}-other")), [], "the value counts too");
    assert_eq!(find(&value[..value.len() - 1]), [], "the whole value");
    let listed = || bench.provider.list("contract:key", &value).expect("list works");
    assert!(bench.holds(|| listed() == [bench.seen(&a)]), "list tells what describe tells, not {:?}", listed());
    bench.delete(&b);
    bench.lists([a]);
}

fn absent_volumes(bench: &Bench<'_>) {
    let gone = bench.created();
    bench.delete(&gone);
    let odd = ["", ".", "../../etc/passwd", "vol-0000000000000000", "\0", "a/b", "%2e%2e", "vol-\u{e9}"];
    for id in odd.into_iter().map(|id| VolumeId(id.to_owned())).chain([gone]) {
        let absent = || ProviderError::NotFound(id.clone());
        assert_eq!(bench.provider.describe(&id), Err(absent()), "describe {id:?}");
        assert_eq!(bench.provider.attach(&id), Err(absent()), "attach {id:?}");
        assert_eq!(bench.provider.detach(&id), Err(absent()), "detach {id:?}");
        assert_eq!(bench.provider.set_tag(&id, "contract:key", Some("x")), Err(absent()), "set_tag {id:?}");
        assert_eq!(bench.provider.delete(&id), Ok(Change::Identity), "delete {id:?}");
    }
}

fn attached_volumes_are_not_deleted(bench: &Bench<'_>) {
    let id = bench.created();
    bench.provider.attach(&id).expect("attach works");
    let refused = |when: &str| match bench.provider.delete(&id) {
        Err(ProviderError::Conflict { id: named, reason, .. }) => {
            assert_eq!(named, id);
            assert!(!reason.is_empty(), "a conflict says why");
        }
        answer => panic!("delete {when} answers {answer:?}"),
    };
    refused("after attach");
    bench.reaches(&id, VolumeState::Attached);
    refused("while attached");
    bench.provider.detach(&id).expect("detach works");
    bench.reaches(&id, VolumeState::Available);
    bench.delete(&id);
}

fn unknown_types_and_sizes_are_invalid(bench: &Bench<'_>) {
    let good = bench.request();
    let bad = [
        CreateVolume { volume_type: "no-such-type".to_owned(), ..good.clone() },
        CreateVolume { size: Bytes::ZERO, ..good.clone() },
        CreateVolume { size: Bytes::new(u64::MAX), ..good.clone() },
        CreateVolume { token: String::new(), ..good },
    ];
    for request in bad {
        match bench.provider.create(&request) {
            Err(ProviderError::Invalid(text)) => {
                assert!(!text.is_empty() && !text.contains('\n'), "one sentence, not {text:?}");
            }
            answer => panic!("{request:?} answers {answer:?}"),
        }
    }
    assert_eq!(bench.listed(), BTreeSet::new(), "nothing is left of refused volumes");
}

/// Twice what the account rents, and so on: in multiples of the size that a volume may have.
fn times(size: Bytes, factor: u64) -> Bytes {
    Bytes::new(size.get() * factor)
}

fn volumes_grow_in_place_or_say_that_they_cannot(bench: &Bench<'_>) {
    let request = bench.request();
    let (id, size) = (bench.create(&request).id, request.size);
    bench.reaches(&id, VolumeState::Available);
    bench.provider.attach(&id).expect("attach works");
    let before = bench.reaches(&id, VolumeState::Attached);
    if !bench.provider.grows() {
        let refused = bench.provider.grow(&id, times(size, 2));
        assert!(matches!(refused, Err(ProviderError::Invalid(_))), "it does not say that it cannot: {refused:?}");
        assert_eq!(bench.seen(&id), before);
        return;
    }
    assert_eq!(bench.provider.grow(&id, size), Ok(Change::Identity), "it is so large already");
    assert_eq!(bench.provider.grow(&id, times(size, 2)), Ok(Change::Changed));
    assert_eq!(bench.provider.grow(&id, times(size, 2)), Ok(Change::Identity), "it is growing, or has grown");
    let grown = bench.becomes(&id, times(size, 2));
    let members = before.members.clone();
    assert_eq!(VolumeDescription { size, members, ..grown }, before, "nothing else changes, and it stays attached");
    assert_eq!(bench.provider.grow(&id, size), Ok(Change::Identity), "nothing shrinks");
    assert_eq!(bench.seen(&id).size, times(size, 2));
    // The token made the smaller one; nothing is known of larger ones but by their names.
    let reopened = Bench { provider: bench.subject.open(), owner: bench.owner.clone(), ..*bench };
    assert_eq!(reopened.seen(&id).size, times(size, 2), "it survives");
    assert_eq!(reopened.provider.grow(&id, times(size, 3)), Ok(Change::Changed));
    bench.becomes(&id, times(size, 3));
    bench.provider.detach(&id).expect("detach works");
    bench.reaches(&id, VolumeState::Available);
    assert_eq!(bench.provider.grow(&id, times(size, 4)), Ok(Change::Changed), "one that is not attached grows as well");
    bench.becomes(&id, times(size, 4));
    bench.delete(&id);
    let gone = bench.provider.grow(&id, times(size, 5));
    assert_eq!(gone, Err(ProviderError::NotFound(id)), "one that is gone does not");
}

fn a_volume_that_cannot_grow_stays_as_it_is(bench: &Bench<'_>) {
    let size = bench.request().size;
    let id = bench.created();
    for too_large in [Bytes::new(u64::MAX), Bytes::new(size.get() + 1)] {
        match bench.provider.grow(&id, too_large) {
            Err(ProviderError::Invalid(text)) => {
                assert!(!text.is_empty() && !text.contains('\n'), "one sentence, not {text:?}");
            }
            answer => panic!("{too_large} answers {answer:?}"),
        }
        assert_eq!(bench.seen(&id).size, size);
    }
}

fn a_failed_volume_can_only_be_deleted(bench: &Bench<'_>) {
    let Some(provider) = bench.subject.open_failing() else { return };
    let bench = &Bench { provider, owner: bench.owner.clone(), ..*bench };
    let request = bench.request();
    let (volume, change) = bench.provider.create(&request).expect("create works");
    let id = volume.id;
    assert_eq!(change, Change::Changed);
    bench.reaches(&id, VolumeState::Failed);
    let (again, change) = bench.create_again(&request, &id);
    assert_eq!((&again.id, again.state, change), (&id, VolumeState::Failed, Change::Identity));
    let listed = bench.provider.list(tag::OWNER, &bench.owner).expect("list works");
    assert_eq!(listed, [bench.seen(&id)], "it is listed");
    let is_conflict = |answer: &Result<Change, ProviderError>| matches!(answer, Err(ProviderError::Conflict { id: named, state: VolumeState::Failed, reason }) if *named == id && !reason.is_empty());
    let attached = bench.provider.attach(&id);
    assert!(is_conflict(&attached), "attach answers {attached:?}");
    assert_eq!(bench.provider.detach(&id), Ok(Change::Identity), "it is attached nowhere");
    if bench.provider.grows() {
        let grown = bench.provider.grow(&id, times(request.size, 2));
        assert!(is_conflict(&grown), "grow answers {grown:?}");
    }
    assert_eq!(bench.provider.set_tag(&id, "contract:key", Some("x")), Ok(Change::Changed));
    bench.delete(&id);
    assert_eq!(bench.provider.delete(&id), Ok(Change::Identity), "delete of a deleted volume");
}

fn everything_survives_reopening(bench: &Bench<'_>) {
    let reopen = || Bench { provider: bench.subject.open(), owner: bench.owner.clone(), ..*bench };
    let request = bench.request();
    let id = bench.create(&request).id;
    let (again, change) = reopen().create_again(&request, &id);
    assert_eq!((again.id, change), (id.clone(), Change::Identity), "tokens survive");
    reopen().reaches(&id, VolumeState::Available);
    assert_eq!(reopen().provider.set_tag(&id, "contract:key", Some("x")), Ok(Change::Changed));
    assert_eq!(reopen().provider.set_tag(&id, "contract:key", Some("x")), Ok(Change::Identity), "tags survive");
    assert_eq!(reopen().provider.attach(&id), Ok(Change::Changed));
    assert_eq!(reopen().provider.attach(&id), Ok(Change::Identity), "attaching survives");
    let attached = reopen().reaches(&id, VolumeState::Attached);
    assert_eq!(reopen().seen(&id), attached, "all of it survives");
    reopen().lists([id.clone()]);
    assert_eq!(reopen().provider.detach(&id), Ok(Change::Changed));
    assert_eq!(reopen().provider.detach(&id), Ok(Change::Identity), "detaching survives");
    reopen().reaches(&id, VolumeState::Available);
    assert_eq!(reopen().provider.delete(&id), Ok(Change::Changed));
    reopen().is_gone(&id);
    assert_eq!(reopen().provider.delete(&id), Ok(Change::Identity), "deletion survives");
}
