//! How the client deals with what is peculiar to EC2.

use std::collections::BTreeSet;
use std::time::Duration;

use surgetank_model::volume_type::Provision;
use surgetank_model::{Bandwidth, Bytes, Iops};
use surgetank_provider::fakes::{FakeEc2, Fault, Sent, Settings};
use surgetank_provider::{
    AwsConfig, Change, CreateVolume, DiskIdentity, Provider, ProviderError, Tags, VolumeId, VolumeState, tag,
};

use crate::account::{Account, TYPE, request};
use crate::faked::STEP;
use crate::faked::behaviour::{leaves_alone, poll};

#[test]
#[allow(clippy::print_stdout, reason = "calls are counted")]
fn a_boost_takes_twelve_calls_at_most() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    // A daemon has logged in and swept.
    provider.list(tag::OWNER, "a").unwrap();
    account.fake.take_sent();
    let id = provider.create(&request("a")).unwrap().0.id;
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
    let sent = account.fake.take_sent();
    println!("{} calls a boost", sent.len());
    assert!(sent.len() <= 12, "{:?}", sent.iter().map(|sent| &sent.action).collect::<Vec<_>>());
    assert_eq!(account.fake.volumes(), 0);
}

#[test]
fn a_creation_whose_answer_is_lost_is_found_by_its_token_also_at_the_limit_of_the_account() {
    for (listing_lag, volumes_max) in [(0, 1000), (0, 1), (3, 1000)] {
        let listing_lag = Duration::from_secs(listing_lag);
        let account = Account::new(Settings { volumes_max, listing_lag, ..Settings::default() });
        let provider = account.open();
        let wanted = request("a");
        account.fake.faults(|faults| faults.scripted.push_back(("CreateVolume", Fault::AnswerLost)));
        assert!(matches!(provider.create(&wanted), Err(ProviderError::Transient(_))));
        let (volume, change) = provider.create(&wanted).unwrap();
        // As long as it is not listed nobody can tell.
        assert_eq!(change, if listing_lag.is_zero() { Change::Identity } else { Change::Changed });
        assert_eq!(account.fake.volumes(), 1);
        assert_eq!(account.reaches(&provider, &volume.id, VolumeState::Available).tags[tag::TOKEN], wanted.token);
    }
}

#[test]
fn a_limit_that_is_met_while_the_volume_is_made_is_no_refusal_of_it() {
    let account = Account::new(Settings { volumes_max: 1, ..Settings::default() });
    let provider = account.open();
    let wanted = request("a");
    // The list does not show it yet when the call is made, and does when the limit is met.
    let made = provider.create(&wanted).unwrap().0.id;
    account.fake.set(|settings| settings.listing_lag = Duration::from_secs(5));
    assert!(matches!(provider.create(&wanted), Err(ProviderError::Quota(_))), "nobody can know yet");
    account.pass(Duration::from_secs(6));
    assert_eq!(provider.create(&wanted).map(|(volume, change)| (volume.id, change)), Ok((made, Change::Identity)));
    assert!(matches!(provider.create(&request("a")), Err(ProviderError::Quota(_))), "another one is");
}

#[test]
fn a_volume_whose_key_may_not_be_used_is_told_once_and_is_gone_then() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    account.fake.deny_key(true);
    let id = provider.create(&request("a")).unwrap().0.id;
    let told: Vec<ProviderError> = (0..60)
        .filter_map(|_| {
            account.pass(Duration::from_secs(1));
            provider.describe(&id).err()
        })
        .collect();
    let is_gone = |error: &ProviderError| *error == ProviderError::NotFound(id.clone());
    match &*told.iter().filter(|error| !is_gone(error)).collect::<Vec<_>>() {
        [ProviderError::Invalid(text)] => {
            assert!(text.contains("key-policy.json") && text.contains("encrypted = false"), "{text}");
        }
        told => panic!("{told:?}"),
    }
    assert!(told.last().is_some_and(is_gone));
    assert_eq!((account.fake.volumes(), provider.delete(&id)), (0, Ok(Change::Identity)));
    let plain = account.open_as(AwsConfig { encrypted: false, ..account.config() });
    account.made(&plain, "a");
}

#[test]
fn a_volume_that_is_described_late_is_no_volume_whose_key_may_not_be_used() {
    let account = Account::new(Settings { blind: Duration::from_secs(20), ..Settings::default() });
    let provider = account.open();
    let id = provider.create(&request("a")).unwrap().0.id;
    account.reaches(&provider, &id, VolumeState::Available);
    let sent = account.fake.take_sent();
    let creations = sent.iter().filter(|sent| sent.action == "CreateVolume").count();
    assert!((2..=5).contains(&creations), "{creations}");
    assert_eq!(account.fake.volumes(), 1, "of one token");
}

#[test]
fn a_volume_of_the_same_token_that_has_other_tags_is_not_adopted() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let wanted = request("a");
    let copy = CreateVolume {
        tags: Tags::from([(tag::OWNER.to_owned(), "b".to_owned()), (tag::TOKEN.to_owned(), wanted.token.clone())]),
        ..request("b")
    };
    // As somebody who rescues data may make a copy of it, tags and all.
    let other = provider.create(&copy).unwrap().0.id;
    provider.set_tag(&other, tag::TOKEN, Some(&wanted.token)).unwrap();
    let (ours, change) = provider.create(&wanted).unwrap();
    assert_eq!(change, Change::Changed);
    assert_ne!(ours.id, other);
    account.reaches(&provider, &other, VolumeState::Available);
    assert_eq!(account.fake.volumes(), 2, "and it is left alone");
}

#[test]
fn a_token_makes_no_second_volume_of_another_kind() {
    let account = Account::new(Settings { listing_lag: Duration::from_secs(60), ..Settings::default() });
    let provider = account.open();
    let wanted = request("a");
    provider.create(&wanted).unwrap();
    let larger = CreateVolume { size: Bytes::from_gib(20), ..wanted };
    match provider.create(&larger) {
        Err(ProviderError::Invalid(text)) => assert!(text.contains("draw a fresh token"), "{text}"),
        answer => panic!("{answer:?}"),
    }
    for token in ["", "a b", "\u{e4}", &"a".repeat(65)] {
        account.fake.take_sent();
        let odd = CreateVolume { token: token.to_owned(), ..request("a") };
        assert!(matches!(provider.create(&odd), Err(ProviderError::Invalid(_))), "{token}");
        assert!(account.fake.take_sent().is_empty(), "EC2 is not asked");
    }
}

fn parameter<'a>(sent: &'a [Sent], action: &str, name: &str) -> Vec<&'a str> {
    let of = sent.iter().filter(|sent| sent.action == action);
    of.filter_map(|sent| sent.parameters.get(name).map(|value| &**value)).collect()
}

#[test]
fn volumes_are_made_in_one_call_with_all_their_tags_and_with_what_is_bought() {
    let account = Account::new(Settings::default());
    let bought = Provision { iops: Some(Iops::new(4000)), bandwidth: Some(Bandwidth::from_mib_s(500)) };
    let config = AwsConfig { types: [(TYPE.to_owned(), bought)].into(), ..account.config() };
    let provider = account.open_as(config);
    let wanted = request("a");
    let id = provider.create(&wanted).unwrap().0.id;
    let sent = account.fake.take_sent();
    let of = |name: &str| parameter(&sent, "CreateVolume", name).join(" ");
    assert_eq!(
        (of("Size"), of("Iops"), of("Throughput"), of("Encrypted")),
        ("10".into(), "4000".into(), "500".into(), "true".into())
    );
    assert_eq!((of("AvailabilityZone"), of("ClientToken")), ("eu-north-1a".into(), wanted.token.clone()));
    let tags: Vec<(String, String)> = (1..=4)
        .map(|number| {
            (of(&format!("TagSpecification.1.Tag.{number}.Key")), of(&format!("TagSpecification.1.Tag.{number}.Value")))
        })
        .collect();
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let host = pair("surgetank:host", "i-0123456789abcdef0");
    assert_eq!(tags, [host, pair("surgetank:managed", "true"), pair(tag::OWNER, "a"), pair(tag::TOKEN, &wanted.token)]);
    assert!(sent.iter().all(|sent| sent.action != "CreateTags"), "no volume is without tags for a while");
    let described = account.reaches(&provider, &id, VolumeState::Available);
    assert!(!described.tags.contains_key("surgetank:managed"), "it is no caller's");
}

#[test]
fn a_disk_is_found_by_the_serial_of_its_nvme_controller() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.attached(&provider, "a");
    let attached = provider.describe(&id).unwrap();
    let serial = id.0.replace('-', "");
    assert_eq!(serial.len(), 20, "as many bytes as NVMe has for it");
    assert_eq!(attached.disk, Some(DiskIdentity::Serial(serial)));
}

#[test]
fn an_attachment_that_hangs_can_be_detached_and_its_device_name_is_not_used_again() {
    let account = Account::new(Settings { attachments_max: 100, ..Settings::default() });
    let provider = account.open();
    account.fake.hang("/dev/xvdba");
    let id = account.made(&provider, "a");
    assert_eq!(provider.attach(&id), Ok(Change::Changed));
    account.pass(Duration::from_secs(90));
    assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Attaching);
    assert_eq!(provider.detach(&id), Ok(Change::Changed));
    account.reaches(&provider, &id, VolumeState::Available);
    assert_eq!(provider.attach(&id), Ok(Change::Changed));
    account.reaches(&provider, &id, VolumeState::Attached);
    // So many that the names begin again.
    for _ in 0..60 {
        provider.detach(&id).unwrap();
        account.reaches(&provider, &id, VolumeState::Available);
        provider.attach(&id).unwrap();
        account.reaches(&provider, &id, VolumeState::Attached);
    }
    let sent = account.fake.take_sent();
    let names = parameter(&sent, "AttachVolume", "Device");
    assert_eq!(names.iter().filter(|name| **name == "/dev/xvdba").count(), 1);
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 52, "the others are walked");
    assert!(sent.iter().all(|sent| !sent.parameters.contains_key("Force")));
}

#[test]
fn device_names_that_something_else_has_are_passed_over() {
    let account = Account::new(Settings { attachments_max: 100, ..Settings::default() });
    let (one, other) = (account.open(), account.open());
    for _ in 0..10 {
        account.attached(&one, "a");
    }
    let id = account.made(&other, "b");
    match other.attach(&id) {
        Err(ProviderError::Transient(text)) => assert!(text.contains("no device name is free"), "{text}"),
        answer => panic!("{answer:?}"),
    }
    assert_eq!(other.attach(&id), Ok(Change::Changed), "it goes on where it was");
    account.reaches(&other, &id, VolumeState::Attached);
}

#[test]
fn a_call_that_arrives_twice_is_carried_out_once() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let twice = |action| account.fake.faults(|faults| faults.scripted.push_back((action, Fault::Twice)));
    twice("CreateVolume");
    let id = account.made(&provider, "a");
    assert_eq!(account.fake.volumes(), 1);
    twice("AttachVolume");
    assert!(provider.attach(&id).is_ok(), "the second is refused, as it is attaching");
    account.reaches(&provider, &id, VolumeState::Attached);
    twice("CreateTags");
    assert_eq!(provider.set_tag(&id, "k", Some("v")), Ok(Change::Changed));
    twice("DeleteTags");
    assert_eq!(provider.set_tag(&id, "k", None), Ok(Change::Changed));
    twice("ModifyVolume");
    assert!(provider.grow(&id, Bytes::from_gib(20)).is_ok());
    twice("DetachVolume");
    assert!(provider.detach(&id).is_ok());
    account.reaches(&provider, &id, VolumeState::Available);
    twice("DeleteVolume");
    assert!(provider.delete(&id).is_ok());
    assert_eq!(account.fake.volumes(), 0);
}

#[test]
fn states_that_lag_behind_are_refused_and_not_acted_upon_twice() {
    let account = Account::new(Settings { state_lag: Duration::from_secs(2), ..Settings::default() });
    let (one, other) = (account.open(), account.open());
    let id = account.made(&one, "a");
    assert_eq!(one.attach(&id), Ok(Change::Changed));
    assert_eq!(one.describe(&id).unwrap().state, VolumeState::Attaching, "it knows what it has asked for");
    // Whoever has not asked is told that it is available, and then that it is in use.
    assert!(matches!(other.attach(&id), Err(ProviderError::Conflict { .. })));
    account.pass(Duration::from_secs(3));
    assert_eq!(other.attach(&id), Ok(Change::Identity));
    account.reaches(&other, &id, VolumeState::Attached);
}

#[test]
fn what_another_instance_has_is_left_alone() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.made(&provider, "a");
    account.fake.attach_elsewhere(&id.0, "i-0fedcba9876543210");
    leaves_alone(&provider, &id, "i-0fedcba9876543210");
}

#[test]
fn lists_have_all_pages_and_signs_of_patterns_match_themselves() {
    let account = Account::new(Settings { page: 2, ..Settings::default() });
    let provider = account.open();
    let made: BTreeSet<VolumeId> = (0..9).map(|_| provider.create(&request("many")).unwrap().0.id).collect();
    let listed = |key: &str, value: &str| -> BTreeSet<VolumeId> {
        provider.list(key, value).unwrap().into_iter().map(|volume| volume.id).collect()
    };
    assert_eq!(listed(tag::OWNER, "many"), made);
    for fault in [Fault::Unavailable, Fault::Truncated, Fault::LoginPage, Fault::AnswerLost] {
        account.fake.faults(|faults| {
            // Pages before it are answered; two of them make a page of what is listed by then.
            faults.scripted.push_back(("DescribeVolumes", fault));
        });
        let answer = provider.list(tag::OWNER, "many");
        assert!(matches!(answer, Err(ProviderError::Transient(_))), "all of them, or an error: {fault:?} {answer:?}");
    }
    let odd = made.last().unwrap();
    for value in ["m*", "m?ny", "it's <odd> & \\", "\u{e4}"] {
        assert_eq!(provider.set_tag(odd, "k.a b", Some(value)), Ok(Change::Changed));
        assert_eq!(listed("k.a b", value), BTreeSet::from([odd.clone()]), "{value}");
    }
    assert!(listed(tag::OWNER, "m*").is_empty() && listed(tag::OWNER, "MANY").is_empty());
    assert_eq!(provider.set_tag(odd, "k.a b", None), Ok(Change::Changed));
    assert_eq!(provider.set_tag(odd, "k.a b", None), Ok(Change::Identity));
}

#[test]
fn volumes_grow_a_few_times_a_day_and_only_where_that_is_permitted() {
    let account = Account::new(Settings::default());
    let without = account.open_as(AwsConfig { grow_in_place: false, ..account.config() });
    let provider = account.open();
    let id = account.attached(&provider, "a");
    assert!(!without.grows());
    assert!(matches!(without.grow(&id, Bytes::from_gib(20)), Err(ProviderError::Invalid(_))));
    for gib in [20, 30, 40, 50] {
        assert_eq!(provider.grow(&id, Bytes::from_gib(gib)), Ok(Change::Changed));
        let further = provider.grow(&id, Bytes::from_gib(gib + 1));
        assert!(matches!(further, Err(ProviderError::Conflict { .. })), "the one before has not ended: {further:?}");
        assert_eq!(provider.grow(&id, Bytes::from_gib(gib)), Ok(Change::Identity));
        account.pass(Duration::from_secs(5));
        assert_eq!(provider.describe(&id).unwrap().size, Bytes::from_gib(gib));
    }
    let fifth = provider.grow(&id, Bytes::from_gib(60));
    assert!(matches!(fifth, Err(ProviderError::Throttled { .. })), "it can be done tomorrow: {fifth:?}");
    account.pass(Duration::from_secs(24 * 3600));
    assert_eq!(provider.grow(&id, Bytes::from_gib(60)), Ok(Change::Changed));
}

#[test]
fn what_is_under_way_is_not_asked_for_at_each_look_and_what_counts_is() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = provider.create(&request("a")).unwrap().0.id;
    account.fake.take_sent();
    for _ in 0..100 {
        assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Creating);
    }
    assert!(account.fake.take_sent().is_empty());
    provider.set_tag(&id, "k", Some("v")).unwrap();
    assert_eq!(provider.describe(&id).unwrap().tags["k"], "v", "what was changed is asked for");
    account.reaches(&provider, &id, VolumeState::Available);
    account.fake.take_sent();
    for _ in 0..5 {
        provider.describe(&id).unwrap();
    }
    assert_eq!(account.fake.take_sent().len(), 5);
    account.pass(STEP);
}

#[test]
fn credentials_of_the_role_are_renewed_before_they_end_and_once_when_they_are_refused() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.made(&provider, "a");
    account.fake.take_sent();
    let logins = |account: &Account| {
        let sent = account.fake.take_sent();
        let count = sent.iter().filter(|sent| sent.action == "DescribeInstances").count();
        (count, sent.len())
    };
    provider.describe(&id).unwrap();
    assert_eq!(logins(&account), (0, 1));
    // Four minutes before they end.
    account.pass(Duration::from_secs(6 * 3600 - 240));
    provider.describe(&id).unwrap();
    assert_eq!(logins(&account), (1, 2), "nothing was refused");
    account.fake.rotate();
    provider.describe(&id).unwrap();
    assert_eq!(logins(&account), (1, 3), "one was refused");
    account.fake.faults(|faults| faults.scripted.extend([("DescribeVolumes", Fault::Refused); 2]));
    assert!(matches!(provider.describe(&id), Err(ProviderError::Invalid(_))), "they are asked for once");
    assert!(provider.describe(&id).is_ok());
}

#[test]
fn credentials_that_lead_to_an_account_without_this_machine_say_nothing_of_its_volumes() {
    let account = Account::new(Settings::default());
    let file = tempfile::NamedTempFile::new().unwrap();
    let write = |name: &str| {
        let (id, secret) = account.fake.key(name);
        let text = format!("[default]\naws_access_key_id = {id}\naws_secret_access_key = {secret}\n");
        std::fs::write(file.path(), text).unwrap();
    };
    write(FakeEc2::account());
    let config = AwsConfig { credentials_file: Some(file.path().to_owned()), ..account.config() };
    let provider = account.open_as(config.clone());
    let id = account.made(&provider, "a");
    write("999999999999");
    account.fake.faults(|faults| faults.scripted.push_back(("DescribeVolumes", Fault::Refused)));
    let restarted = account.open_as(config);
    for answer in [provider.describe(&id).map(drop), restarted.describe(&id).map(drop), restarted.delete(&id).map(drop)]
    {
        match answer {
            Err(ProviderError::Transient(text)) => assert!(text.contains("account without this machine"), "{text}"),
            answer => panic!("{answer:?}"),
        }
    }
    write(FakeEc2::account());
    assert!(restarted.describe(&id).is_ok(), "they are restored");
}
