//! What the client makes of what Compute Engine does.

use std::time::Duration;

use serde_json::Value;
use surgetank_model::Bytes;
use surgetank_provider::fakes::gce::{Gce, PROJECT, Sent, ZONE};
use surgetank_provider::fakes::{Fault, Settings};
use surgetank_provider::{
    Change, CreateVolume, DiskIdentity, GceConfig, Provider, ProviderError, VolumeId, VolumeState, tag,
};

use crate::account::{Account, request};
use crate::disks::{
    Asked, a_restart_elsewhere_says_nothing, a_tag_can_be_set_on_the_way, a_tag_that_takes_long_is_asked_for_again,
    boost, grows_where_that_is_permitted, is_made_with_its_tags, lists_have_all_pages, nothing_in_use_is_deleted,
    others_are_left_alone, what_was_accepted_shows_as_on_the_way,
};
use crate::faked::behaviour::poll;
use crate::json::{a_token_is_used_until_it_ends, looks_on_the_way_are_rare, tokens_are_renewed};

fn calls(sent: &[Sent]) -> Vec<&str> {
    sent.iter().map(|sent| &*sent.call).collect()
}

#[test]
#[allow(clippy::print_stdout, reason = "calls are counted")]
fn a_boost_takes_fifteen_calls_at_most() {
    // Compute Engine deletes a disk within a second or two.
    let account = boost::<Gce>(|_| ());
    let sent = account.fake.take_sent();
    println!("{} calls a boost", sent.len());
    assert!(sent.len() <= 15, "{} {:?}", sent.len(), calls(&sent));
    assert_eq!(account.fake.disks(), 0);
}

#[test]
fn a_creation_whose_answer_is_lost_makes_one_disk_also_after_a_restart() {
    let account = Account::new(Settings::default());
    for restarts in [false, true] {
        let provider = account.open();
        let wanted = request("a");
        account.fake.faults(|faults| faults.scripted.push_back(("disks.insert", Fault::AnswerLost)));
        assert!(matches!(provider.create(&wanted), Err(ProviderError::Transient(_))));
        let provider = if restarts { account.open() } else { provider };
        let before = account.fake.disks();
        let (volume, change) = provider.create(&wanted).unwrap();
        // Nobody was told of it before, unless its name was refused.
        assert_eq!(change, if restarts { Change::Identity } else { Change::Changed });
        assert_eq!(account.fake.disks(), before);
        account.reaches(&provider, &volume.id, VolumeState::Available);
        assert_eq!(
            provider.create(&wanted).map(|(volume, change)| (volume.id, change)),
            Ok((volume.id, Change::Identity))
        );
    }
}

#[test]
fn a_creation_that_arrives_late_makes_no_disk_after_the_first_one_is_deleted() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let wanted = request("a");
    account.fake.faults(|faults| faults.scripted.push_back(("disks.insert", Fault::RequestLost)));
    assert!(provider.create(&wanted).is_err());
    let id = provider.create(&wanted).unwrap().0.id;
    let first = account.fake.take_sent();
    account.reaches(&provider, &id, VolumeState::Available);
    provider.delete(&id).unwrap();
    poll(&account, &provider, &id, None);
    assert!(provider.create(&wanted).is_ok(), "it is answered, as it was");
    let again = account.fake.take_sent();
    let id_of =
        |sent: &[Sent]| sent.iter().find(|sent| sent.call == "disks.insert").unwrap().query["requestId"].clone();
    assert_eq!(id_of(&first), id_of(&again));
    assert_eq!(account.fake.disks(), 0);
}

#[test]
fn what_was_accepted_shows_as_on_the_way_also_after_a_restart_and_after_an_answer_that_is_lost() {
    what_was_accepted_shows_as_on_the_way::<Gce>(["instances.attachDisk", "instances.detachDisk", "disks.delete"]);
}

#[test]
fn a_request_that_may_arrive_yet_is_repeated_as_the_same_one() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.attached(&provider, "a");
    let ids = |call: &str| -> Vec<String> {
        let sent = account.fake.take_sent().into_iter().filter(|sent| sent.call == call);
        sent.map(|sent| sent.query["requestId"].clone()).collect()
    };
    for fault in [Fault::RequestLost, Fault::RequestLate, Fault::BadGateway] {
        account.fake.take_sent();
        account.fake.faults(|faults| faults.scripted.push_back(("instances.detachDisk", fault)));
        assert!(matches!(provider.detach(&id), Err(ProviderError::Transient(_))));
        provider.detach(&id).unwrap();
        account.reaches(&provider, &id, VolumeState::Available);
        let first = ids("instances.detachDisk");
        assert!(first.iter().all(|id| *id == first[0]), "{fault:?}: {first:?}");
        provider.attach(&id).unwrap();
        account.reaches(&provider, &id, VolumeState::Attached);
        provider.detach(&id).unwrap();
        account.reaches(&provider, &id, VolumeState::Available);
        assert_ne!(ids("instances.detachDisk"), first[..1], "another time it is another one");
        provider.attach(&id).unwrap();
        account.reaches(&provider, &id, VolumeState::Attached);
    }
    provider.detach(&id).unwrap();
    account.reaches(&provider, &id, VolumeState::Available);
    // One that had arrived, and was undone by somebody else: what is remembered of it says nothing of now.
    account.fake.faults(|faults| faults.scripted.push_back(("instances.attachDisk", Fault::AnswerLost)));
    assert!(provider.attach(&id).is_err());
    let other = account.open();
    account.reaches(&other, &id, VolumeState::Attached);
    other.detach(&id).unwrap();
    account.reaches(&other, &id, VolumeState::Available);
    assert_eq!(provider.attach(&id), Ok(Change::Changed));
    assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Available);
    assert_eq!(provider.attach(&id), Ok(Change::Changed));
    account.reaches(&provider, &id, VolumeState::Attached);
}

#[test]
fn an_operation_that_fails_is_told_once_by_what_it_is() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let wait = || account.pass(Duration::from_secs(4));
    let wanted = request("a");
    account.fake.fail_operation(
        "disks.insert",
        503,
        "ZONE_RESOURCE_POOL_EXHAUSTED",
        "The zone does not have enough resources available to fulfill the request.",
    );
    let (volume, change) = provider.create(&wanted).unwrap();
    assert_eq!((volume.state, change), (VolumeState::Creating, Change::Changed));
    let id = volume.id;
    wait();
    assert!(matches!(provider.describe(&id), Err(ProviderError::Capacity(text)) if text.contains("enough resources")));
    assert_eq!(provider.describe(&id), Err(ProviderError::NotFound(id.clone())));
    assert_eq!(provider.create(&wanted).unwrap().1, Change::Changed, "what has failed is no answer for ever");
    account.reaches(&provider, &id, VolumeState::Available);
    account.fake.fail_operation(
        "instances.attachDisk",
        400,
        "LIMIT_EXCEEDED",
        "Exceeded limit 'maximum_persistent_disks' on resource 'our-machine'. Limit: 16.0",
    );
    assert_eq!(provider.attach(&id), Ok(Change::Changed));
    assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Attaching);
    wait();
    assert!(matches!(provider.describe(&id), Err(ProviderError::AttachLimit(_))));
    assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Available);
    assert_eq!(provider.attach(&id), Ok(Change::Changed));
    account.reaches(&provider, &id, VolumeState::Attached);
    account.fake.fail_operation("instances.detachDisk", 503, "INTERNAL_ERROR", "Internal error");
    assert_eq!(provider.detach(&id), Ok(Change::Changed));
    wait();
    assert!(matches!(provider.describe(&id), Err(ProviderError::Transient(text)) if text.contains("Internal error")));
    assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Attached, "it is where it was");
    account.fake.fail_operation("disks.setLabels", 403, "PERMISSIONS_ERROR", "Required permission");
    let refused = provider.set_tag(&id, tag::DIRTY_EPOCH, Some("e"));
    assert!(matches!(refused, Err(ProviderError::Invalid(_))), "a tag that is not there is no success: {refused:?}");
    assert!(!provider.describe(&id).unwrap().tags.contains_key(tag::DIRTY_EPOCH));
}

#[test]
fn a_change_whose_answer_was_lost_and_whose_operation_has_failed_is_asked_for_anew() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.made(&provider, "a");
    account.fake.fail_operation("disks.delete", 503, "INTERNAL_ERROR", "Internal error");
    account.fake.faults(|faults| faults.scripted.push_back(("disks.delete", Fault::AnswerLost)));
    assert!(matches!(provider.delete(&id), Err(ProviderError::Transient(_))));
    account.pass(Duration::from_secs(60));
    // The same request is answered with what has become of it, and the next one is another.
    let answers = [provider.delete(&id), provider.delete(&id)];
    assert!(answers.contains(&Ok(Change::Changed)), "{answers:?}");
    account.pass(Duration::from_secs(60));
    assert_eq!(account.fake.disks(), 0);
}

#[test]
fn what_is_included_with_a_hyperdisk_is_asked_for_so_that_nothing_more_is_billed() {
    let account = Account::new(Settings::default());
    let wanted = CreateVolume { volume_type: "hyperdisk-balanced".to_owned(), ..request("a") };
    account.open().create(&wanted).unwrap();
    let sent = account.fake.take_sent();
    let body = &sent.iter().find(|sent| sent.call == "disks.insert").unwrap().body;
    assert_eq!((body["provisionedIops"].as_str(), body["provisionedThroughput"].as_str()), (Some("3000"), Some("140")));
    account.open().create(&request("a")).unwrap();
    let sent = account.fake.take_sent();
    let body = &sent.iter().find(|sent| sent.call == "disks.insert").unwrap().body;
    assert!(body.get("provisionedIops").is_none(), "it is no property of a persistent disk");
}

#[test]
fn operations_that_are_forgotten_leave_the_disk_to_tell() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.made(&provider, "a");
    provider.attach(&id).unwrap();
    account.pass(Duration::from_secs(10));
    account.fake.forget_operations();
    assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Attached);
}

#[test]
fn an_operation_that_is_not_known_yet_has_not_ended() {
    use VolumeState::{Attached, Attaching, Available, Creating, Deleting, Detaching};
    let account = Account::new(Settings { blind: Duration::from_secs(5), ..Settings::default() });
    account.fake.set_operation_lag(Duration::from_secs(20));
    let provider = account.open();
    let id = provider.create(&request("a")).unwrap().0.id;
    let on_the_way = |state| {
        account.pass(Duration::from_secs(2));
        assert_eq!(provider.describe(&id).map(|volume| volume.state), Ok(state));
    };
    on_the_way(Creating);
    account.reaches(&provider, &id, Available);
    let changes: [(Asked<'_>, VolumeState, Option<VolumeState>); 3] = [
        (&|| provider.attach(&id), Attaching, Some(Attached)),
        (&|| provider.detach(&id), Detaching, Some(Available)),
        (&|| provider.delete(&id), Deleting, None),
    ];
    for (change, state, after) in changes {
        assert_eq!(change(), Ok(Change::Changed));
        on_the_way(state);
        poll(&account, &provider, &id, after);
    }
}

#[test]
fn lists_of_operations_have_all_pages() {
    let account = Account::new(Settings { page: 1, ..Settings::default() });
    let provider = account.open();
    let made: Vec<VolumeId> = (0..4).map(|_| account.made(&provider, "a")).collect();
    for id in &made {
        provider.attach(id).unwrap();
    }
    let restarted = account.open();
    for id in &made {
        assert_eq!(restarted.describe(id).unwrap().state, VolumeState::Attaching);
    }
    let listed = account.open().list(tag::OWNER, "a").unwrap();
    assert_eq!(listed.len(), 4);
    assert!(listed.iter().all(|volume| volume.state == VolumeState::Attaching), "{listed:?}");
}

#[test]
fn a_tag_that_takes_long_to_be_set_is_asked_for_again() {
    let account = Account::new(Settings::default());
    let set = |id: &VolumeId| account.fake.labels(&id.0).remove("surgetank-dirty-epoch");
    a_tag_that_takes_long_is_asked_for_again(&account, |time| account.fake.set_label_time(time), set);
}

#[test]
fn a_tag_is_set_though_its_operation_is_not_known_at_once() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.attached(&provider, "a");
    account.fake.set_operation_lag(Duration::from_secs(20));
    account.fake.take_sent();
    std::thread::scope(|scope| {
        let set = scope.spawn(|| provider.set_tag(&id, tag::DIRTY_EPOCH, Some("e")));
        while !account.fake.take_sent().iter().any(|sent| sent.call == "zoneOperations.wait") {
            std::thread::yield_now();
        }
        account.pass(Duration::from_secs(21));
        assert_eq!(set.join().unwrap(), Ok(Change::Changed));
    });
    assert_eq!(account.fake.labels(&id.0)["surgetank-dirty-epoch"], "e");
}

#[test]
fn a_token_that_cannot_be_renewed_is_used_until_it_ends() {
    let account = Account::new(Settings::default());
    a_token_is_used_until_it_ends(&account, |is_gone| account.fake.hide_metadata(is_gone), || account.fake.rotate());
}

#[test]
fn a_tag_is_there_when_its_setting_is_answered_and_labels_of_others_stay() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.attached(&provider, "a");
    provider.describe(&id).unwrap();
    account.fake.label(&id.0, "team", "storage");
    account.fake.take_sent();
    assert_eq!(provider.set_tag(&id, tag::DIRTY_EPOCH, Some("e")), Ok(Change::Changed));
    let sent = account.fake.take_sent();
    assert_eq!(calls(&sent).iter().filter(|call| **call == "disks.setLabels").count(), 2, "the first one is refused");
    let labels = account.fake.labels(&id.0);
    assert_eq!(
        (&*labels["team"], &*labels["surgetank-dirty-epoch"], &*labels["surgetank-owner"]),
        ("storage", "e", "a")
    );
    for _ in 0..5 {
        account.fake.fail_operation("disks.setLabels", 412, "CONDITION_NOT_MET", "Labels fingerprint invalid");
    }
    match provider.set_tag(&id, tag::DIRTY_EPOCH, None) {
        Err(ProviderError::Transient(text)) => assert!(text.contains("changed again and again"), "{text}"),
        answer => panic!("{answer:?}"),
    }
    assert_eq!(provider.set_tag(&id, tag::DIRTY_EPOCH, None), Ok(Change::Changed));
    assert!(!account.fake.labels(&id.0).contains_key("surgetank-dirty-epoch"));
}

#[test]
fn a_tag_can_be_set_while_a_disk_is_on_the_way() {
    a_tag_can_be_set_on_the_way::<Gce>();
}

#[test]
fn disks_are_made_in_one_call_with_all_their_tags_and_never_attached_by_force() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = is_made_with_its_tags(&account, &provider);
    provider.attach(&id).unwrap();
    let attached = account.reaches(&provider, &id, VolumeState::Attached);
    assert_eq!(attached.disk, Some(DiskIdentity::Name(id.0.clone())));
    let sent = account.fake.take_sent();
    let of = |call: &str| sent.iter().find(|sent| sent.call == call).unwrap().clone();
    let (insert, attach) = (of("disks.insert"), of("instances.attachDisk"));
    assert_eq!(insert.body["sizeGb"], "10");
    assert_eq!(insert.body["type"], format!("projects/{PROJECT}/zones/{ZONE}/diskTypes/pd-ssd"));
    assert_eq!((&attach.body["deviceName"], &attach.body["autoDelete"]), (&Value::from(&*id.0), &Value::from(false)));
    assert!(!attach.query.contains_key("forceAttach"));
    assert!(sent.iter().all(|sent| sent.call != "disks.setLabels"), "no disk is without tags for a while");
}

#[test]
fn what_another_instance_has_is_left_alone_and_a_foreign_disk_of_the_name_is_not_adopted() {
    let account = Account::new(Settings::default());
    others_are_left_alone(&account, |id| account.fake.label(&id.0, "surgetank-owner", "b"));
}

#[test]
fn what_another_instance_is_attaching_is_left_alone() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.made(&provider, "a");
    // Of the same image, and so with the same owner.
    let copy = account.open_as(GceConfig { instance: Some("copy".to_owned()), ..account.config() });
    assert_eq!(copy.describe(&id).unwrap().state, VolumeState::Available);
    provider.attach(&id).unwrap();
    for answer in [copy.delete(&id), copy.detach(&id)] {
        // Whoever has not asked for it does not see it before it is done, and Compute Engine refuses.
        assert_ne!(answer, Ok(Change::Changed));
    }
    account.reaches(&provider, &id, VolumeState::Attached);
    for answer in [copy.delete(&id), copy.detach(&id)] {
        assert!(matches!(answer, Err(ProviderError::Conflict { .. })), "{answer:?}");
    }
    assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Attached);
}

#[test]
fn what_was_so_a_moment_ago_deletes_nothing_that_is_in_use() {
    nothing_in_use_is_deleted::<Gce>();
}

#[test]
fn lists_have_all_pages_or_are_an_error() {
    lists_have_all_pages::<Gce>(["disks.list", "zoneOperations.list"]);
}

#[test]
fn disks_grow_in_place_only_where_that_is_permitted() {
    let account = Account::new(Settings::default());
    let without = account.open_as(GceConfig { grow_in_place: false, ..account.config() });
    let provider = account.open();
    let id = grows_where_that_is_permitted(&account, &provider, &without);
    account.fake.set(|settings| settings.growths_max = 1);
    let often = provider.grow(&id, Bytes::from_gib(30));
    assert!(matches!(often, Err(ProviderError::Throttled { .. })), "{often:?}");
}

#[test]
fn tokens_are_renewed_before_they_end_and_once_when_they_are_refused() {
    let account = Account::new(Settings::default());
    tokens_are_renewed(&account, &["disks.get"], || account.fake.take_sent().len(), || account.fake.rotate());
}

#[test]
fn a_restart_in_another_project_or_zone_says_nothing_of_disks() {
    let account = Account::new(Settings::default());
    let project = GceConfig { project: Some("other-project".to_owned()), ..account.config() };
    let zone = GceConfig { zone: Some("europe-west1-c".to_owned()), ..account.config() };
    let elsewhere = [(project, "the project other-project"), (zone, "the zone europe-west1-c")];
    a_restart_elsewhere_says_nothing(&account, elsewhere, "gce-place", &account.config());
}

#[test]
fn what_is_under_way_is_not_asked_for_at_each_look_and_what_counts_is() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = looks_on_the_way_are_rare(&account, &provider, || account.fake.take_sent().len());
    account.fake.take_sent();
    for _ in 0..5 {
        provider.describe(&id).unwrap();
    }
    assert_eq!(calls(&account.fake.take_sent()), ["disks.get"; 5]);
}
