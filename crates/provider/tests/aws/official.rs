//! AWS's own client: it talks to the fake, and its model of EC2 checks what our client sends. Without it these tests are left out,
//! and say so.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use surgetank_model::volume_type::Provision;
use surgetank_model::{Bandwidth, Iops};
use surgetank_provider::fakes::ec2::{INSTANCE, REGION, ZONE};
use surgetank_provider::fakes::{FakeEc2, Sent, Settings};
use surgetank_provider::{Account as _, AwsConfig, Named, Provider, SystemClock, VolumeState, contract, tag};

use crate::account::{Account, TYPE, request};
use crate::faked::STEP;
use crate::faked::official::{self, run, said};

fn python() -> Option<PathBuf> {
    let missing = "is no boto3 of the pinned version: `scripts/setup test` installs it";
    official::python("aws", "import botocore", missing)
}

#[test]
fn the_fake_answers_awss_own_client_as_its_model_has_it() {
    let short = Duration::from_millis(100);
    let settings =
        Settings { create: short, attach: short, detach: short, delete: short, grow: short, ..Settings::default() };
    let fake = FakeEc2::start(Arc::new(SystemClock), settings);
    if let Some(python) = python() {
        let replies = said(run(&python, "aws/run_boto3.py", &[&fake.url(), REGION, INSTANCE, ZONE], ""));
        assert!(replies > 50, "{replies}");
        assert_eq!(fake.volumes(), 0);
    }
}

/// All calls that the client makes, with and without what can be configured.
pub fn sent() -> Vec<Sent> {
    let account = Account::new(Settings { page: 5, ..Settings::default() });
    contract::run(&account);
    let bought = |iops: u64, mib_s: Option<u64>| Provision {
        iops: Some(Iops::new(iops)),
        bandwidth: mib_s.map(Bandwidth::from_mib_s),
    };
    let config = AwsConfig {
        types: [(TYPE.to_owned(), bought(4000, Some(500))), ("io2".to_owned(), bought(5000, None))].into(),
        encrypted: false,
        ..account.config()
    };
    let provider = account.open_as(config);
    for volume_type in [TYPE, "io2", "gp2"] {
        let wanted = surgetank_provider::CreateVolume { volume_type: volume_type.to_owned(), ..request("bought") };
        let id = provider.create(&wanted).unwrap().0.id;
        account.reaches(&provider, &id, VolumeState::Available);
    }
    for _ in 0..9 {
        provider.create(&request("many")).unwrap();
    }
    for (key, value) in [(tag::OWNER, "many"), ("k", "it's <odd> & * ? \\"), ("\u{e4}*", "v")] {
        provider.list(key, value).unwrap();
    }
    // What `gc --account` asks.
    let rented = provider.volumes().unwrap();
    assert!(rented.iter().all(|rented| rented.machine.as_deref() == Some(INSTANCE)), "{rented:?}");
    assert_eq!(provider.machine(INSTANCE), Ok(Named::Machine { since_ms: None }));
    account.pass(STEP);
    account.fake.take_sent()
}

#[test]
fn whatever_the_client_sends_is_what_awss_own_client_would_send() {
    let sent = sent();
    let count = |action: &str| sent.iter().filter(|there| there.action == action).count();
    for action in [
        "DescribeInstances",
        "DescribeVolumes",
        "CreateVolume",
        "AttachVolume",
        "DetachVolume",
        "DeleteVolume",
        "CreateTags",
        "DeleteTags",
        "ModifyVolume",
        "DescribeVolumesModifications",
    ] {
        assert!(count(action) > 0, "{action} is not sent");
    }
    assert!(sent.iter().any(|there| there.parameters.contains_key("NextToken")), "pages are asked for");
    let lines: String = sent
        .iter()
        .map(|there| format!("{}\n", json!({ "action": there.action, "parameters": there.parameters })))
        .collect();
    if let Some(python) = python() {
        let check = |lines: &str| run(&python, "aws/check_requests.py", &[], lines);
        assert_eq!(said(check(&lines)), sent.len() as u64);
        // A planted mistake is found.
        for line in [
            json!({ "action": "DeleteVolume", "parameters": { "VolumeID": "vol-1" } }),
            json!({ "action": "DeleteVolume", "parameters": {} }),
            json!({ "action": "CreateVolume", "parameters": { "AvailabilityZone": "a", "Size": "ten" } }),
            json!({ "action": "CreateVolume", "parameters": { "AvailabilityZone": "a", "VolumeType": "fast" } }),
        ] {
            assert!(check(&line.to_string()).is_err(), "{line}");
        }
    }
}
