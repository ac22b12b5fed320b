//! What the client makes of what Azure does.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use surgetank_model::Bytes;
use surgetank_provider::fakes::azure::{Azure, LOCATION, Sent, ZONE};
use surgetank_provider::fakes::{Fault, Settings};
use surgetank_provider::{
    AzureConfig, Change, CreateVolume, DiskIdentity, Provider, ProviderError, VolumeId, VolumeState, tag,
};

use crate::account::{Account, request};
use crate::disks::{
    a_restart_elsewhere_says_nothing, a_tag_can_be_set_on_the_way, a_tag_that_takes_long_is_asked_for_again, boost,
    grows_where_that_is_permitted, is_made_with_its_tags, lists_have_all_pages, nothing_in_use_is_deleted,
    others_are_left_alone, what_was_accepted_shows_as_on_the_way,
};
use crate::faked::behaviour::poll;
use crate::json::{a_token_is_used_until_it_ends, looks_on_the_way_are_rare, tokens_are_renewed};

/// What changes the machine.
const MACHINE: &str = "virtualMachines.attachDetachDataDisks";

fn calls(sent: &[Sent]) -> Vec<&str> {
    sent.iter().map(|sent| &*sent.call).collect()
}

fn count(sent: &[Sent], call: &str) -> usize {
    sent.iter().filter(|sent| sent.call == call).count()
}

#[test]
#[allow(clippy::print_stdout, reason = "calls are counted")]
fn a_boost_takes_eighteen_calls_at_most() {
    // The clock stands while the client waits for tags.
    let account = boost::<Azure>(|fake| fake.set_tag_time(Duration::ZERO));
    let sent = account.fake.take_sent();
    println!("{} calls a boost", sent.len());
    assert!(sent.len() <= 18, "{} {:?}", sent.len(), calls(&sent));
    assert_eq!(account.fake.disks(), 0);
}

#[test]
fn a_creation_whose_answer_is_lost_makes_one_disk_also_after_a_restart() {
    let account = Account::new(Settings::default());
    for restarts in [false, true] {
        let provider = account.open();
        let wanted = request("a");
        account.fake.faults(|faults| faults.scripted.push_back(("disks.createOrUpdate", Fault::AnswerLost)));
        assert!(matches!(provider.create(&wanted), Err(ProviderError::Transient(_))));
        let provider = if restarts { account.open() } else { provider };
        let before = account.fake.disks();
        let (volume, change) = provider.create(&wanted).unwrap();
        assert_eq!((change, account.fake.disks()), (Change::Identity, before));
        account.reaches(&provider, &volume.id, VolumeState::Available);
        assert_eq!(
            provider.create(&wanted).map(|(volume, change)| (volume.id, change)),
            Ok((volume.id, Change::Identity))
        );
    }
}

#[test]
fn a_creation_that_is_repeated_changes_nothing_of_a_disk_that_is_there() {
    let account = Account::new(Settings::default());
    let wanted = request("a");
    let id = account.open().create(&wanted).unwrap().0.id;
    account.reaches(&account.open(), &id, VolumeState::Available);
    account.open().set_tag(&id, tag::DIRTY_EPOCH, Some("e")).unwrap();
    account.fake.take_sent();
    let (volume, change) = account.open().create(&wanted).unwrap();
    assert_eq!((change, volume.tags.get(tag::DIRTY_EPOCH).map(String::as_str)), (Change::Identity, Some("e")));
    assert_eq!(count(&account.fake.take_sent(), "disks.createOrUpdate"), 0);
    // Where Azure has conditions, one that was sent before and arrives late does not either.
    account.fake.have_conditions();
    account.fake.set(|settings| settings.blind = Duration::from_secs(3600));
    let (volume, change) = account.open().create(&wanted).unwrap();
    assert_eq!((volume.id, change), (id.clone(), Change::Identity));
    assert_eq!(account.fake.take_sent().last().unwrap().call, "disks.get");
    assert_eq!(account.fake.tags(&id.0)[tag::DIRTY_EPOCH], "e");
}

#[test]
fn what_was_accepted_shows_as_on_the_way_also_after_a_restart_and_after_an_answer_that_is_lost() {
    what_was_accepted_shows_as_on_the_way::<Azure>([MACHINE, MACHINE, "disks.delete"]);
}

#[test]
fn changes_of_the_machine_are_asked_for_one_after_another() {
    let account = Account::new(Settings::default());
    let (provider, other) = (account.open(), account.open());
    let made: Vec<VolumeId> = (0..4).map(|_| account.made(&provider, "a")).collect();
    account.fake.take_sent();
    for id in &made {
        assert_eq!(provider.attach(id), Ok(Change::Changed));
        assert_eq!(provider.describe(id).unwrap().state, VolumeState::Attaching);
        assert_eq!(provider.attach(id), Ok(Change::Identity));
    }
    assert_eq!(count(&account.fake.take_sent(), MACHINE), 1, "Azure takes one at a time");
    for id in &made {
        account.reaches(&provider, id, VolumeState::Attached);
    }
    let units: BTreeSet<u32> = account.fake.attached().into_values().collect();
    assert_eq!(units, BTreeSet::from([0, 1, 2, 3]));
    // Also those of another process: what Azure refuses for that is asked for again.
    other.describe(&made[1]).unwrap();
    assert_eq!(provider.detach(&made[0]), Ok(Change::Changed));
    assert_eq!(other.detach(&made[1]), Ok(Change::Changed));
    assert_eq!(other.describe(&made[1]).unwrap().state, VolumeState::Detaching);
    account.reaches(&other, &made[1], VolumeState::Available);
    account.reaches(&provider, &made[0], VolumeState::Available);
}

#[test]
fn an_attach_that_waits_for_its_turn_is_taken_back_by_a_detach() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let (first, second) = (account.made(&provider, "a"), account.made(&provider, "a"));
    provider.attach(&first).unwrap();
    provider.attach(&second).unwrap();
    assert!(matches!(provider.delete(&second), Err(ProviderError::Conflict { .. })));
    assert_eq!(provider.detach(&second), Ok(Change::Changed));
    account.reaches(&provider, &first, VolumeState::Attached);
    assert_eq!(provider.describe(&second).unwrap().state, VolumeState::Available);
    assert_eq!(provider.delete(&second), Ok(Change::Changed));
    poll(&account, &provider, &second, None);
    // One that is on the way already is detached when it has come.
    provider.detach(&first).unwrap();
    account.reaches(&provider, &first, VolumeState::Available);
    provider.attach(&first).unwrap();
    assert_eq!(provider.detach(&first), Ok(Change::Changed));
    account.reaches(&provider, &first, VolumeState::Available);
    assert!(account.fake.attached().is_empty());
}

#[test]
fn an_operation_that_fails_is_told_once_by_what_it_is() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let wait = || account.pass(Duration::from_secs(4));
    let wanted = request("a");
    account.fake.fail_operation("disks.createOrUpdate", "ZonalAllocationFailed", "Allocation failed in zone 1.");
    let (volume, change) = provider.create(&wanted).unwrap();
    assert_eq!((volume.state, change), (VolumeState::Creating, Change::Changed));
    let id = volume.id;
    wait();
    assert!(matches!(provider.describe(&id), Err(ProviderError::Capacity(text)) if text.contains("in zone 1")));
    assert_eq!(provider.describe(&id), Err(ProviderError::NotFound(id.clone())));
    assert_eq!(provider.create(&wanted).unwrap().1, Change::Changed, "what has failed is no answer for ever");
    account.reaches(&provider, &id, VolumeState::Available);
    account.fake.fail_operation(MACHINE, "OperationPreempted", "The operation was preempted by another one.");
    assert_eq!(provider.attach(&id), Ok(Change::Changed));
    assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Attaching);
    wait();
    let told = provider.describe(&id);
    assert!(matches!(&told, Err(ProviderError::Conflict { reason, .. }) if reason.contains("preempted")), "{told:?}");
    assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Available);
    assert_eq!(provider.attach(&id), Ok(Change::Changed));
    account.reaches(&provider, &id, VolumeState::Attached);
    account.fake.fail_operation(MACHINE, "InternalOperationError", "Internal error");
    assert_eq!(provider.detach(&id), Ok(Change::Changed));
    wait();
    assert!(provider.describe(&id).unwrap_err().to_string().contains("Internal error"));
    assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Attached, "it is where it was");
    account.fake.fail_operation("disks.update", "InternalOperationError", "Internal error");
    let began = provider.set_tag(&id, tag::DIRTY_EPOCH, Some("e"));
    assert!(matches!(began, Err(ProviderError::Transient(_))), "a tag that is not there is no success: {began:?}");
    assert!(!provider.describe(&id).unwrap().tags.contains_key(tag::DIRTY_EPOCH));
}

#[test]
fn what_could_not_be_attached_and_stays_in_the_machines_model_is_detached() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.made(&provider, "a");
    account.fake.fail_attach_and_keep_it("DiskProcessingError", "Disk processing halted.");
    provider.attach(&id).unwrap();
    account.pass(Duration::from_secs(4));
    assert!(provider.describe(&id).unwrap_err().to_string().contains("Disk processing halted"));
    for provider in [&provider, &account.open()] {
        assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Attaching);
        assert!(matches!(provider.delete(&id), Err(ProviderError::Conflict { .. })), "the machine would keep it");
    }
    assert_eq!(provider.detach(&id), Ok(Change::Changed));
    account.reaches(&provider, &id, VolumeState::Available);
    assert_eq!(provider.attach(&id), Ok(Change::Changed));
    account.reaches(&provider, &id, VolumeState::Attached);
}

#[test]
fn operations_that_are_forgotten_or_may_not_be_seen_leave_the_disk_and_the_machine_to_tell() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    for call in ["diskOperations.get", "operations.get"] {
        account.fake.deny(call, true);
    }
    let id = account.made(&provider, "a");
    provider.attach(&id).unwrap();
    account.reaches(&provider, &id, VolumeState::Attached);
    for call in ["diskOperations.get", "operations.get"] {
        account.fake.deny(call, false);
    }
    provider.detach(&id).unwrap();
    account.pass(Duration::from_secs(10));
    account.fake.forget_operations();
    assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Available);
}

#[test]
fn units_are_used_again_as_late_as_possible() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.made(&provider, "a");
    for unit in [0, 1, 2] {
        provider.attach(&id).unwrap();
        let attached = account.reaches(&provider, &id, VolumeState::Attached);
        assert_eq!(attached.disk, Some(DiskIdentity::Lun(unit)));
        assert_eq!(account.open().describe(&id).unwrap(), attached, "the machine tells the unit");
        provider.detach(&id).unwrap();
        account.reaches(&provider, &id, VolumeState::Available);
    }
}

#[test]
fn a_tag_that_takes_long_to_be_set_is_asked_for_again() {
    let account = Account::new(Settings::default());
    let set = |id: &VolumeId| account.fake.tags(&id.0).remove(tag::DIRTY_EPOCH);
    a_tag_that_takes_long_is_asked_for_again(&account, |time| account.fake.set_tag_time(time), set);
}

#[test]
fn a_tag_is_there_when_its_setting_is_answered_and_tags_of_others_stay() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.attached(&provider, "a");
    provider.describe(&id).unwrap();
    account.fake.tag(&id.0, "Team", "storage");
    assert_eq!(provider.set_tag(&id, tag::DIRTY_EPOCH, Some("e")), Ok(Change::Changed));
    let tags = account.fake.tags(&id.0);
    assert_eq!((&*tags["Team"], &*tags[tag::DIRTY_EPOCH], &*tags[tag::OWNER]), ("storage", "e", "a"));
    // Two that set one each at the same time, as two devices of a daemon do.
    std::thread::scope(|scope| {
        for key in ["x", "y"] {
            let (provider, id) = (&provider, &id);
            scope.spawn(move || assert_eq!(provider.set_tag(id, key, Some("1")), Ok(Change::Changed)));
        }
    });
    let tags = account.fake.tags(&id.0);
    assert_eq!((&*tags["x"], &*tags["y"]), ("1", "1"));
    assert_eq!(provider.set_tag(&id, "team", Some("ours")), Ok(Change::Changed));
    assert!(!account.fake.tags(&id.0).contains_key("Team"), "keys are the same in whatever letters");
}

#[test]
fn a_tag_can_be_set_while_a_disk_is_on_the_way() {
    a_tag_can_be_set_on_the_way::<Azure>();
}

#[test]
fn disks_are_made_in_one_call_with_all_their_tags_and_never_detached_by_force() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = is_made_with_its_tags(&account, &provider);
    provider.attach(&id).unwrap();
    account.reaches(&provider, &id, VolumeState::Attached);
    provider.detach(&id).unwrap();
    let sent = account.fake.take_sent();
    let made = sent.iter().find(|sent| sent.call == "disks.createOrUpdate").unwrap();
    assert_eq!((&made.body["location"], &made.body["zones"][0]), (&Value::from(LOCATION), &Value::from(ZONE)));
    assert_eq!((&made.body["sku"]["name"], made.if_none_match.as_deref()), (&Value::from("Premium_LRS"), Some("*")));
    assert_eq!(made.body["properties"]["networkAccessPolicy"], "DenyAll", "nobody reads it over the network");
    let changes: Vec<_> = sent.iter().filter(|sent| sent.call == MACHINE).map(|sent| &sent.body).collect();
    let attach = &changes[0]["dataDisksToAttach"][0];
    assert_eq!((&attach["caching"], &attach["deleteOption"]), (&Value::from("None"), &Value::from("Detach")));
    assert!(changes[1]["dataDisksToDetach"][0].get("detachOption").is_none());
    assert_eq!(count(&sent, "disks.update"), 0, "no disk is without tags for a while");
}

#[test]
fn what_is_bought_is_asked_for_and_nothing_else_is() {
    let account = Account::new(Settings::default());
    let config: AzureConfig = toml::from_str(
        "[types.premium-ssd-v2]\niops = \"20000 IOPS\"\nbandwidth = \"500 MB/s\"\n[types.ultra]\niops = \"4000 IOPS\"\nbandwidth = \"100 MB/s\"",
    )
    .unwrap();
    let bought = account.open_as(AzureConfig { types: config.types, ..account.config() });
    let with = |volume_type: &str, gib| CreateVolume {
        volume_type: volume_type.to_owned(),
        size: Bytes::from_gib(gib),
        ..request("a")
    };
    let properties = || account.fake.take_sent().pop().unwrap().body["properties"].clone();
    for (provider, wanted, expected) in [
        (&bought, with("premium-ssd-v2", 40), [Value::from(20000), Value::from(500), Value::from(512)]),
        (&bought, with("ultra", 4), [Value::from(4000), Value::from(100), Value::from(512)]),
        (&account.open(), with("premium-ssd-v2", 40), [Value::Null, Value::Null, Value::from(512)]),
        (&account.open(), with("standard-ssd", 40), [Value::Null, Value::Null, Value::Null]),
    ] {
        let id = provider.create(&wanted).unwrap().0.id;
        let sent = properties();
        let sector = &sent["creationData"]["logicalSectorSize"];
        assert_eq!([&sent["diskIOPSReadWrite"], &sent["diskMBpsReadWrite"], sector], expected.each_ref());
        assert_eq!(account.reaches(provider, &id, VolumeState::Available).volume_type, wanted.volume_type);
        account.fake.take_sent();
    }
    let small = bought.create(&with("premium-ssd-v2", 10));
    assert!(matches!(small, Err(ProviderError::Invalid(_))), "so many IOPS need a size: {small:?}");
}

#[test]
fn what_another_machine_has_is_left_alone_and_a_foreign_disk_of_the_name_is_not_adopted() {
    let account = Account::new(Settings::default());
    others_are_left_alone(&account, |id| account.fake.tag(&id.0, tag::OWNER, "b"));
}

#[test]
fn what_was_so_a_moment_ago_deletes_nothing_that_is_in_use() {
    nothing_in_use_is_deleted::<Azure>();
}

#[test]
fn lists_have_all_pages_or_are_an_error() {
    lists_have_all_pages::<Azure>(["disks.list", "virtualMachines.get"]);
}

#[test]
fn disks_grow_in_place_only_where_that_is_permitted() {
    let account = Account::new(Settings::default());
    let without = account.open_as(AzureConfig { grow_in_place: false, ..account.config() });
    let provider = account.open();
    let id = grows_where_that_is_permitted(&account, &provider, &without);
    account.fake.fail_operation(
        "disks.update",
        "Conflict",
        "Disk resizing is allowed only when the VM is deallocated.",
    );
    assert_eq!(provider.grow(&id, Bytes::from_gib(30)), Ok(Change::Changed));
    account.pass(Duration::from_secs(5));
    assert!(provider.describe(&id).unwrap_err().to_string().contains("deallocated"), "it is told");
    assert_eq!(provider.describe(&id).unwrap().size, Bytes::from_gib(20));
}

#[test]
fn a_token_that_cannot_be_renewed_is_used_until_it_ends() {
    let account = Account::new(Settings::default());
    a_token_is_used_until_it_ends(&account, |is_gone| account.fake.hide_metadata(is_gone), || account.fake.rotate());
}

#[test]
fn tokens_are_renewed_before_they_end_and_once_when_they_are_refused() {
    let account = Account::new(Settings::default());
    let calls = ["virtualMachines.get", "disks.get"];
    tokens_are_renewed(&account, &calls, || account.fake.take_sent().len(), || account.fake.rotate());
}

#[test]
fn a_restart_in_another_subscription_or_group_says_nothing_of_disks() {
    let account = Account::new(Settings::default());
    let other = "99999999-2222-3333-4444-555555555555";
    let subscription = AzureConfig { subscription: Some(other.to_owned()), ..account.config() };
    let group = |name: &str| AzureConfig { resource_group: Some(name.to_owned()), ..account.config() };
    let elsewhere = [(subscription, "the subscription 99999999-2222"), (group("Theirs"), "the resource group theirs")];
    // In other letters it is the same group.
    a_restart_elsewhere_says_nothing(&account, elsewhere, "azure-place", &group("our-group"));
}

#[test]
fn what_is_under_way_is_not_asked_for_at_each_look_and_what_counts_is() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = looks_on_the_way_are_rare(&account, &provider, || account.fake.take_sent().len());
    account.fake.take_sent();
    for _ in 0..3 {
        provider.describe(&id).unwrap();
    }
    assert_eq!(calls(&account.fake.take_sent()), ["virtualMachines.get", "disks.get"].repeat(3));
}
