//! What goes wrong is told in one clear sentence.

use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_model::units::Span;
use surgetank_provider::fakes::gce::{Gce, INSTANCE, PROJECT, ZONE};
use surgetank_provider::fakes::{Fault, Settings};
use surgetank_provider::{CreateVolume, GceConfig, Provider, ProviderError, VolumeState};

use crate::account::{Account, request};
use crate::faked::trouble::{
    exceed_rates, is_not_carried_out, is_throttled_for_long, tells, tells_limits, tells_missing_rights,
};
use crate::json::{are_no_volumes, foreign_answers_say_nothing, refuses_credentials};

#[test]
fn whatever_answers_in_place_of_compute_engine_says_nothing_of_a_disk() {
    let account = Account::new(Settings::default());
    let hurried = account.open_as(GceConfig { timeout: Span(Duration::from_secs(1)), ..account.config() });
    let unavailable = "Compute Engine says: Service Unavailable";
    foreign_answers_say_nothing(&account, &hurried, unavailable, &["disks.get", "disks.list"], "disks.insert");
    let provider = account.open();
    let id = account.made(&provider, "a");
    account.fake.faults(|faults| faults.scripted.push_back(("disks.get", Fault::Throttled)));
    let throttled = tells(provider.describe(&id), "Quota exceeded for quota metric");
    assert!(matches!(throttled, ProviderError::Throttled { .. }), "a rate and no quota: {throttled:?}");
}

#[test]
fn what_is_throttled_for_long_has_not_been_carried_out() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.attached(&provider, "a");
    account.fake.faults(|faults| {
        for call in ["disks.insert", "instances.detachDisk", "disks.setLabels", "disks.resize"] {
            faults.scripted.extend([(call, Fault::Throttled); 20]);
        }
    });
    account.fake.take_sent();
    is_throttled_for_long(&account, &provider, &id);
    let is_list = |sent: &surgetank_provider::fakes::gce::Sent| sent.call == "zoneOperations.list";
    assert!(!account.fake.take_sent().iter().any(is_list), "what is refused for its rate makes no more calls");
    is_not_carried_out(&account, &provider, &id);
}

#[test]
fn limits_of_the_project_and_of_the_machine_are_told_as_such() {
    tells_limits::<Gce>("maximum_persistent_disks", "Quota 'SSD_TOTAL_GB' exceeded");
}

#[test]
fn a_right_that_is_missing_is_named_also_in_the_middle_of_a_boost() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.attached(&provider, "a");
    let names = ["disks.get", "disks.setLabels", "instances.detachDisk", "disks.insert"];
    tells_missing_rights(&account, &provider, &id, names, |name| format!("Required 'compute.{name}' permission"));
}

#[test]
fn an_instance_of_another_zone_or_name_is_told() {
    let account = Account::new(Settings::default());
    let provider = account.open_as(GceConfig { instance: Some("other-machine".to_owned()), ..account.config() });
    let id = account.made(&provider, "a");
    let error = tells(provider.attach(&id), "check project, zone and instance in [provider.gce]");
    assert!(matches!(error, ProviderError::Invalid(_)));
    let elsewhere = account.open_as(GceConfig { zone: Some("europe-west1-c".to_owned()), ..account.config() });
    tells(elsewhere.create(&request("a")), "check project, zone and instance in [provider.gce]");
    assert_eq!(elsewhere.describe(&id), Err(ProviderError::NotFound(id)), "it is not in that zone");
}

#[test]
fn without_a_metadata_service_or_a_service_account_it_is_said_what_to_write() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.made(&provider, "a");
    account.fake.hide_metadata(true);
    assert!(provider.describe(&id).is_ok(), "the token lasts");
    account.fake.rotate();
    let error = tells(provider.describe(&id), "project, zone, instance and credential_command");
    assert!(matches!(error, ProviderError::Transient(_)));
    tells(account.open().describe(&id), "say what it would tell in [provider.gce]");
    let written = GceConfig {
        project: Some(PROJECT.to_owned()),
        zone: Some(ZONE.to_owned()),
        instance: Some(INSTANCE.to_owned()),
        ..account.config()
    };
    let command = |token: &str| Some(["/bin/echo", token].map(str::to_owned).to_vec());
    let without = account.open_as(GceConfig { credential_command: command(&account.fake.token()), ..written.clone() });
    assert!(without.describe(&id).is_ok(), "what is written does");
    assert!(without.attach(&id).is_ok());
    account.reaches(&without, &id, VolumeState::Attached);
    let wrong = |command| GceConfig { credential_command: Some(command), ..written.clone() };
    refuses_credentials(&account, wrong, &id, "refuses a token");
    account.fake.hide_metadata(false);
    account.fake.take_account();
    let error = tells(account.open_as(written).describe(&id), "with status 404");
    assert!(matches!(error, ProviderError::Transient(_)));
}

#[test]
fn types_and_sizes_that_are_not_rented_are_refused_before_anybody_is_asked() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let with = |volume_type: &str, size| CreateVolume { volume_type: volume_type.to_owned(), size, ..request("a") };
    let ten = Bytes::from_gib(10);
    tells(provider.create(&with("fast", ten)), "write one of pd-ssd, pd-balanced, hyperdisk-balanced");
    tells(provider.create(&with("pd-ssd", Bytes::from_mib(1))), "whole number of GiB");
    tells(
        provider.create(&with("hyperdisk-balanced", Bytes::from_gib(1))),
        "a disk of the type hyperdisk-balanced has",
    );
    for token in ["", "a b", "A", "\u{e4}", &"a".repeat(54)] {
        let odd = CreateVolume { token: token.to_owned(), ..request("a") };
        tells(provider.create(&odd), "is no part of a name");
    }
    assert!(account.fake.take_sent().is_empty());
    for volume_type in ["pd-balanced", "hyperdisk-balanced"] {
        let id = provider.create(&with(volume_type, ten)).unwrap().0.id;
        assert_eq!(account.reaches(&provider, &id, VolumeState::Available).volume_type, volume_type);
    }
}

#[test]
fn ids_that_are_none_are_no_disks_and_nobody_is_asked_about_them() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    are_no_volumes(&provider, &["", "A", "1a", "a-", "a/b", "a?b=c", "../x", "a\n", &"a".repeat(64)]);
    assert!(account.fake.take_sent().is_empty());
}

#[test]
fn what_exceeds_the_rates_is_throttled_before_anybody_is_asked() {
    let account = Account::new(Settings::default());
    let provider = account.open_as(GceConfig { reads_per_s: 1, writes_per_s: 1, ..account.config() });
    let carried_out = exceed_rates(&provider, "surgetank-absent");
    let asked = account.fake.take_sent().iter().filter(|sent| sent.call == "disks.get").count();
    assert_eq!(asked, carried_out, "of the others nothing was sent");
}
