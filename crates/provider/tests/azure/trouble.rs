//! What goes wrong is told in one clear sentence.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_model::units::Span;
use surgetank_provider::fakes::azure::{Azure, CLIENT, GROUP, MACHINE, SECRET, SUBSCRIPTION, Sent, TENANT};
use surgetank_provider::fakes::{Fault, Settings};
use surgetank_provider::{AzureConfig, CreateVolume, Provider, ProviderError, VolumeState};

use crate::account::{Account, request};
use crate::faked::trouble::{
    exceed_rates, is_not_carried_out, is_throttled_for_long, tells, tells_limits, tells_missing_rights,
};
use crate::json::{are_no_volumes, foreign_answers_say_nothing, refuses_credentials};

#[test]
fn whatever_answers_in_place_of_azure_says_nothing_of_a_disk() {
    let account = Account::new(Settings::default());
    let hurried = account.open_as(AzureConfig { timeout: Span(Duration::from_secs(1)), ..account.config() });
    let unavailable = "Azure says: The service is unavailable";
    foreign_answers_say_nothing(&account, &hurried, unavailable, &["virtualMachines.get"], "virtualMachines.get");
    foreign_answers_say_nothing(&account, &hurried, unavailable, &["disks.get", "disks.list"], "disks.get");
    let provider = account.open();
    let id = account.made(&provider, "a");
    account.fake.faults(|faults| faults.scripted.push_back(("disks.get", Fault::Throttled)));
    match tells(provider.describe(&id), "is being throttled") {
        ProviderError::Throttled { after, .. } => assert_eq!(after, Some(Duration::from_secs(3))),
        error => panic!("{error:?}"),
    }
}

#[test]
fn what_is_throttled_for_long_has_not_been_carried_out() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.attached(&provider, "a");
    account.fake.faults(|faults| {
        for call in ["disks.createOrUpdate", "virtualMachines.attachDetachDataDisks"] {
            faults.scripted.extend([(call, Fault::Throttled); 20]);
        }
        faults.scripted.extend([("disks.update", Fault::Throttled); 40]);
    });
    is_throttled_for_long(&account, &provider, &id);
    is_not_carried_out(&account, &provider, &id);
}

#[test]
fn limits_of_the_subscription_and_of_the_machine_are_told_as_such() {
    tells_limits::<Azure>("attached to a VM of this size is 4", "exceeding approved PremiumDiskCount quota");
}

#[test]
fn a_right_that_is_missing_is_named_also_in_the_middle_of_a_boost() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.attached(&provider, "a");
    let names = ["disks.get", "disks.update", "virtualMachines.attachDetachDataDisks", "disks.createOrUpdate"];
    tells_missing_rights(&account, &provider, &id, names, |name| {
        let right = match name {
            "disks.get" => "disks/read",
            "virtualMachines.attachDetachDataDisks" => "virtualMachines/attachDetachDataDisks/action",
            _ => "disks/write",
        };
        format!("does not have authorization to perform action 'Microsoft.Compute/{right}'")
    });
}

#[test]
fn a_machine_of_another_name_or_group_is_told() {
    let account = Account::new(Settings::default());
    let id = account.made(&account.open(), "a");
    let other = |instance: Option<&str>, group: Option<&str>| {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        account.open_as(AzureConfig { instance: owned(instance), resource_group: owned(group), ..account.config() })
    };
    for provider in [other(Some("other-machine"), None), other(None, Some("theirs"))] {
        for answer in
            [provider.attach(&id).map(drop), provider.describe(&id).map(drop), provider.create(&request("a")).map(drop)]
        {
            let error = tells(answer, "check subscription, resource_group and instance in [provider.azure]");
            assert!(matches!(error, ProviderError::Invalid(_)), "nothing is said of the disk: {error:?}");
        }
    }
    account.fake.join_scale_set();
    tells(account.open().describe(&id), "use one in flexible orchestration");
}

/// What a client without a metadata service needs.
fn written(account: &Account) -> AzureConfig {
    AzureConfig {
        subscription: Some(SUBSCRIPTION.to_owned()),
        resource_group: Some(GROUP.to_owned()),
        instance: Some(MACHINE.to_owned()),
        ..account.config()
    }
}

#[test]
fn without_a_metadata_service_or_an_identity_it_is_said_what_to_write() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.made(&provider, "a");
    account.fake.hide_metadata(true);
    assert!(provider.describe(&id).is_ok(), "the token lasts");
    account.fake.rotate();
    let error = tells(provider.describe(&id), "subscription, resource_group, instance, and client_secret_file");
    assert!(matches!(error, ProviderError::Transient(_)));
    tells(account.open().describe(&id), "say what it would tell in [provider.azure]");
    let command = |token: &str| Some(["/bin/echo", token].map(str::to_owned).to_vec());
    let config = AzureConfig { credential_command: command(&account.fake.token()), ..written(&account) };
    let without = account.open_as(config);
    assert!(without.describe(&id).is_ok(), "what is written does");
    assert!(without.attach(&id).is_ok());
    account.reaches(&without, &id, VolumeState::Attached);
    let wrong = |command| AzureConfig { credential_command: Some(command), ..written(&account) };
    refuses_credentials(&account, wrong, &id, "refuses a token");
    account.fake.hide_metadata(false);
    let config = AzureConfig { client_id: Some(CLIENT.to_owned()), ..account.config() };
    assert!(account.open_as(config).describe(&id).is_ok(), "one of several identities");
    let config = AzureConfig { client_id: Some(TENANT.to_owned()), ..account.config() };
    tells(account.open_as(config).describe(&id), "with status 400 (Identity not found)");
    account.fake.take_account();
    tells(account.open_as(written(&account)).describe(&id), "with status 400 (Identity not found)");
}

#[test]
fn an_application_logs_in_with_its_secret_which_is_never_told() {
    let account = Account::new(Settings::default());
    let id = account.made(&account.open(), "a");
    account.fake.take_account();
    let file = tempfile::NamedTempFile::new().unwrap();
    let with = |text: &str, mode: u32| {
        std::fs::write(file.path(), text).unwrap();
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        account.open_as(AzureConfig {
            tenant: Some(TENANT.to_owned()),
            client_id: Some(CLIENT.to_owned()),
            client_secret_file: Some(file.path().to_owned()),
            ..account.config()
        })
    };
    let provider = with(&format!("{SECRET}\n"), 0o600);
    assert!(provider.describe(&id).is_ok());
    account.fake.rotate();
    assert!(provider.describe(&id).is_ok(), "it logs in again");
    for (text, mode, why) in [
        ("swordfish", 0o600, "AADSTS7000215"),
        ("", 0o600, "must hold one line"),
        ("two\nlines", 0o600, "must hold one line"),
        (SECRET, 0o644, "chmod 600"),
    ] {
        let error = tells(with(text, mode).describe(&id), why);
        assert!(matches!(error, ProviderError::Invalid(_)), "{error:?}");
    }
}

#[test]
fn types_and_sizes_that_are_not_rented_are_refused_before_anybody_is_asked() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let with = |volume_type: &str, size| CreateVolume { volume_type: volume_type.to_owned(), size, ..request("a") };
    let ten = Bytes::from_gib(10);
    tells(provider.create(&with("fast", ten)), "write one of premium-ssd-v2, premium-ssd, ultra, standard-ssd");
    tells(provider.create(&with("standard-hdd", ten)), "write one of premium-ssd-v2");
    tells(provider.create(&with("ultra", ten)), "with IOPS and bandwidth alone");
    tells(provider.create(&with("premium-ssd", Bytes::from_mib(1))), "whole number of GiB");
    tells(provider.create(&with("premium-ssd", Bytes::from_gib(1 << 20))), "sizes are");
    for token in ["", "a b", "A", "\u{e4}", &"a".repeat(71)] {
        let odd = CreateVolume { token: token.to_owned(), ..request("a") };
        tells(provider.create(&odd), "is no part of a name");
    }
    assert!(account.fake.take_sent().is_empty());
}

#[test]
fn ids_that_are_none_are_no_disks_and_nobody_is_asked_about_them() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    are_no_volumes(&provider, &["", "-a", "a-", "a/b", "a?b=c", "../x", "a\n", "%2e", "Surgetank-a", &"a".repeat(81)]);
    assert!(account.fake.take_sent().is_empty());
}

#[test]
fn what_exceeds_the_rates_is_throttled_before_anybody_is_asked() {
    let account = Account::new(Settings::default());
    let provider = account.open_as(AzureConfig { reads_per_s: 1, writes_per_s: 1, ..account.config() });
    let carried_out = exceed_rates(&provider, "surgetank-absent");
    let is_of_disk = |sent: &&Sent| sent.call == "disks.get";
    assert_eq!(
        account.fake.take_sent().iter().filter(is_of_disk).count(),
        carried_out,
        "of the others nothing was sent"
    );
}
