//! What the tests of clients of Azure and of Compute Engine share: disks that are named by whoever makes them, and changes that are
//! accepted before they are carried out.

use std::collections::BTreeSet;
use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_provider::fakes::{Fake, Fault, Settings};
use surgetank_provider::{
    Change, CreateVolume, Provider, ProviderConfig, ProviderError, Tags, VolumeId, VolumeState, tag,
};

use crate::faked::behaviour::{leaves_alone, poll};
use crate::faked::{Account, Cloud, request};

/// A change that is asked for.
pub type Asked<'a> = &'a dyn Fn() -> Result<Change, ProviderError>;

/// The life of a disk in a boost, as the daemon asks for it, at a fake that is first made so.
pub fn boost<C: Cloud>(is_so: impl FnOnce(&Fake<C>)) -> Account<C> {
    let account = Account::<C>::new(Settings { delete: Duration::from_secs(1), ..Settings::default() });
    is_so(&account.fake);
    let provider = account.open();
    let id = provider.create(&request::<C>("a")).unwrap().0.id;
    poll(&account, &provider, &id, Some(VolumeState::Available));
    provider.attach(&id).unwrap();
    poll(&account, &provider, &id, Some(VolumeState::Attached));
    provider.set_tag(&id, tag::DIRTY_EPOCH, Some("e")).unwrap();
    account.pass(Duration::from_secs(60));
    provider.set_tag(&id, tag::DIRTY_EPOCH, None).unwrap();
    provider.detach(&id).unwrap();
    poll(&account, &provider, &id, Some(VolumeState::Available));
    provider.delete(&id).unwrap();
    poll(&account, &provider, &id, None);
    account
}

/// Checks that what was accepted shows as on the way, also after a restart and after an answer that is lost. `calls`: what attaches,
/// detaches and deletes.
pub fn what_was_accepted_shows_as_on_the_way<C: Cloud>(calls: [&'static str; 3]) {
    use VolumeState::{Attached, Attaching, Available, Deleting, Detaching};
    let account = Account::<C>::new(Settings::default());
    let provider = account.open();
    let (id, other) = (account.made(&provider, "a"), account.made(&provider, "a"));
    let changes: [(Asked<'_>, VolumeState, Option<VolumeState>); 3] = [
        (&|| provider.attach(&id), Attaching, Some(Attached)),
        (&|| provider.detach(&id), Detaching, Some(Available)),
        (&|| provider.delete(&id), Deleting, None),
    ];
    for (call, (change, on_the_way, after)) in calls.into_iter().zip(changes) {
        account.fake.faults(|faults| faults.scripted.push_back((call, Fault::AnswerLost)));
        assert!(matches!(change(), Err(ProviderError::Transient(_))), "{call}");
        let restarted = account.open();
        for provider in [&provider, &restarted] {
            assert_eq!(provider.describe(&id).unwrap().state, on_the_way);
            assert_eq!(provider.describe(&other).unwrap().state, Available, "another disk is not on the way");
            let listed = provider.list(tag::OWNER, "a").unwrap();
            let state = |id: &VolumeId| listed.iter().find(|volume| volume.id == *id).unwrap().state;
            assert_eq!((state(&id), state(&other)), (on_the_way, Available));
        }
        assert_eq!(change(), Ok(Change::Identity), "it is not asked for twice");
        for provider in [&provider, &restarted] {
            poll(&account, provider, &id, after);
        }
    }
}

/// Checks that a tag that takes longer to be set than whoever calls waits is asked for again. `set` tells what is there of it.
pub fn a_tag_that_takes_long_is_asked_for_again<C: Cloud>(
    account: &Account<C>,
    set_time: impl Fn(Duration),
    set: impl Fn(&VolumeId) -> Option<String>,
) {
    let provider = account.open();
    let id = account.attached(&provider, "a");
    set_time(Duration::from_secs(20));
    for _ in 0..2 {
        match provider.set_tag(&id, tag::DIRTY_EPOCH, Some("e")) {
            Err(ProviderError::Transient(text)) => assert!(text.contains("is asked for again"), "{text}"),
            answer => panic!("{answer:?}"),
        }
    }
    assert_eq!(set(&id), None);
    account.pass(Duration::from_secs(21));
    assert_eq!(provider.set_tag(&id, tag::DIRTY_EPOCH, Some("e")), Ok(Change::Identity));
    assert_eq!(set(&id).as_deref(), Some("e"));
}

/// Checks that a tag can be set while a disk is on the way.
pub fn a_tag_can_be_set_on_the_way<C: Cloud>() {
    let account = Account::<C>::new(Settings::default());
    let provider = account.open();
    let id = account.made(&provider, "a");
    provider.attach(&id).unwrap();
    for value in ["1", "2", "3"] {
        assert_eq!(provider.set_tag(&id, "k", Some(value)), Ok(Change::Changed));
        let seen = provider.describe(&id).unwrap();
        assert_eq!((seen.state, &*seen.tags["k"]), (VolumeState::Attaching, value));
    }
    let attached = account.reaches(&provider, &id, VolumeState::Attached);
    assert_eq!(attached.tags["k"], "3");
}

/// Checks that a disk has the name and the tags that were asked for.
pub fn is_made_with_its_tags<C: Cloud>(account: &Account<C>, provider: &dyn Provider) -> VolumeId {
    let device = format!("read-cache:{}", "Data.X_".repeat(4));
    let tags = Tags::from([(tag::OWNER.to_owned(), "a".to_owned()), (tag::DEVICE.to_owned(), device.clone())]);
    let wanted = CreateVolume { tags: tags.clone(), ..request::<C>("a") };
    let id = provider.create(&wanted).unwrap().0.id;
    assert_eq!(id.0, format!("surgetank-{}", wanted.token));
    assert_eq!(account.reaches(provider, &id, VolumeState::Available).tags, tags);
    let listed = provider.list(tag::DEVICE, &device).unwrap();
    assert_eq!(listed.iter().map(|volume| &volume.id).collect::<Vec<_>>(), [&id]);
    assert!(provider.list(tag::DEVICE, &device[..device.len() - 1]).unwrap().is_empty());
    id
}

/// Checks that what another machine has is left alone, and that a disk of the name that is another daemon's is not adopted. `give` makes
/// it one of the owner `b`.
pub fn others_are_left_alone<C: Cloud>(account: &Account<C>, give: impl Fn(&VolumeId)) {
    let provider = account.open();
    let wanted = request::<C>("a");
    let id = provider.create(&wanted).unwrap().0.id;
    account.reaches(&provider, &id, VolumeState::Available);
    account.pass(Duration::from_secs(5));
    account.fake.attach_elsewhere(&id.0, "other-machine");
    leaves_alone(&provider, &id, "other-machine");
    give(&id);
    match account.open().create(&wanted) {
        Err(ProviderError::Invalid(text)) => assert!(text.contains("draw a fresh token"), "{text}"),
        answer => panic!("{answer:?}"),
    }
    assert_eq!(account.fake.volumes(), 1);
}

/// Checks that what was so a moment ago deletes nothing that is in use.
pub fn nothing_in_use_is_deleted<C: Cloud>() {
    let account = Account::<C>::new(Settings::default());
    let (one, other) = (account.open(), account.open());
    let id = account.made(&one, "a");
    // The look of the one is a moment old.
    assert_eq!(other.attach(&id), Ok(Change::Changed));
    assert!(matches!(one.delete(&id), Err(ProviderError::Conflict { .. })));
    account.reaches(&other, &id, VolumeState::Attached);
    assert!(matches!(one.delete(&id), Err(ProviderError::Conflict { .. })));
    assert_eq!(one.attach(&id), Ok(Change::Identity));
    assert_eq!(account.fake.volumes(), 1);
}

/// Checks that lists have all pages or are an error. `calls`: what makes a list.
pub fn lists_have_all_pages<C: Cloud>(calls: [&'static str; 2]) {
    let account = Account::<C>::new(Settings { page: 2, ..Settings::default() });
    let provider = account.open();
    let made: BTreeSet<VolumeId> = (0..9).map(|_| provider.create(&request::<C>("many")).unwrap().0.id).collect();
    let listed = |key: &str, value: &str| -> BTreeSet<VolumeId> {
        provider.list(key, value).unwrap().into_iter().map(|volume| volume.id).collect()
    };
    assert_eq!(listed(tag::OWNER, "many"), made);
    account.pass(Duration::from_secs(5));
    for fault in [Fault::Unavailable, Fault::Truncated, Fault::LoginPage, Fault::AnswerLost] {
        for call in calls {
            account.fake.faults(|faults| faults.scripted.push_back((call, fault)));
            let answer = provider.list(tag::OWNER, "many");
            assert!(matches!(answer, Err(ProviderError::Transient(_))), "{call} {fault:?} {answer:?}");
        }
    }
    let odd = made.last().unwrap();
    for value in ["m*", "it's \"odd\" & \\", "\u{e4}", "", "2"] {
        assert_eq!(provider.set_tag(odd, "k.a b", Some(value)), Ok(Change::Changed));
        assert_eq!(listed("k.a b", value), BTreeSet::from([odd.clone()]), "{value}");
    }
    assert!(
        listed(tag::OWNER, "m*").is_empty() && listed(tag::OWNER, "MANY").is_empty() && listed("K", "v").is_empty()
    );
}

/// Checks that a disk grows in place, of which a client is told that it is not permitted to do that.
pub fn grows_where_that_is_permitted<C: Cloud>(
    account: &Account<C>,
    provider: &dyn Provider,
    without: &dyn Provider,
) -> VolumeId {
    let id = account.attached(provider, "a");
    assert!(!without.grows());
    assert!(matches!(without.grow(&id, Bytes::from_gib(20)), Err(ProviderError::Invalid(_))));
    assert_eq!(provider.grow(&id, Bytes::from_gib(20)), Ok(Change::Changed));
    assert_eq!(provider.grow(&id, Bytes::from_gib(30)), Ok(Change::Identity), "the one before has not ended");
    assert_eq!(account.open().grow(&id, Bytes::from_gib(20)), Ok(Change::Identity), "nor after a restart");
    account.pass(Duration::from_secs(5));
    assert_eq!(provider.describe(&id).unwrap().size, Bytes::from_gib(20));
    id
}

/// Checks that restarts that lead elsewhere say nothing of disks, and name the place and the file that keeps the first one; and that one
/// which leads to the `same` place does.
pub fn a_restart_elsewhere_says_nothing<C: Cloud<Config: ProviderConfig>>(
    account: &Account<C>,
    elsewhere: [(C::Config, &str); 2],
    file: &str,
    same: &C::Config,
) {
    let directory = tempfile::tempdir().unwrap();
    let open = |config: &C::Config| config.open(Some(directory.path())).unwrap();
    let id = open(&account.config()).create(&request::<C>("a")).unwrap().0.id;
    for (config, why) in &elsewhere {
        let provider = open(config);
        account.fake.take_sent();
        for answer in [provider.describe(&id).map(drop), provider.delete(&id).map(drop)] {
            match answer {
                Err(ProviderError::Transient(text)) => {
                    assert!(text.contains(why) && text.contains(file), "{text}")
                }
                answer => panic!("{answer:?}"),
            }
        }
        assert!(account.fake.take_sent().is_empty(), "nothing is asked there");
    }
    assert!(open(same).describe(&id).is_ok(), "it is the same place");
}
