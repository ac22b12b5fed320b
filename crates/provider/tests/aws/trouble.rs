//! What goes wrong is told in one clear sentence.

use std::io::Read;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection};
use surgetank_model::Bytes;
use surgetank_model::units::Span;
use surgetank_provider::fakes::ec2::Ec2;
use surgetank_provider::fakes::{Fault, Settings};
use surgetank_provider::{AwsConfig, CreateVolume, Provider, ProviderError, VolumeId, tag};

use crate::account::{Account, TYPE, request};
use crate::faked::trouble::{
    exceed_rates, is_not_carried_out, is_throttled_for_long, tells, tells_limits, tells_missing_rights,
};

#[test]
fn whatever_answers_in_place_of_ec2_says_nothing_of_a_volume() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let hurried = account.open_as(AwsConfig { timeout: Span(Duration::from_secs(1)), ..account.config() });
    let id = account.made(&provider, "a");
    for (fault, why) in [
        (Fault::RequestLost, "does not answer"),
        (Fault::AnswerLost, "does not answer"),
        (Fault::RequestLate, "does not answer"),
        (Fault::Unavailable, "EC2 refuses DescribeVolumes (InternalError)"),
        (Fault::BadGateway, "status 502 and no XML of EC2"),
        (Fault::Truncated, "breaks off in the middle"),
        (Fault::Huge, "more than 32 MiB"),
        (Fault::LoginPage, "login page of a proxy"),
        (Fault::Nonsense, "no XML of EC2"),
        (Fault::AnswerLate, "does not answer within 1s"),
    ] {
        let provider = if fault == Fault::AnswerLate { &hurried } else { &provider };
        provider.list("a", "b").unwrap();
        // What was told a moment ago serves for a change.
        account.pass(Duration::from_secs(2));
        account.fake.faults(|faults| faults.scripted.extend([("DescribeVolumes", fault); 4]));
        for error in [
            tells(provider.describe(&id), why),
            tells(provider.attach(&id), why),
            tells(provider.list(tag::OWNER, "a"), why),
            tells(provider.create(&request("a")), why),
        ] {
            assert!(matches!(error, ProviderError::Transient(_)), "{fault:?}: {error:?}");
        }
    }
    account.fake.faults(|faults| faults.scripted.push_back(("DescribeVolumes", Fault::Throttled)));
    let throttled = tells(provider.describe(&id), "RequestLimitExceeded");
    assert!(matches!(throttled, ProviderError::Throttled { .. }));
}

#[test]
fn what_is_throttled_for_long_has_not_been_carried_out() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.attached(&provider, "a");
    account.fake.faults(|faults| {
        for action in ["CreateVolume", "DetachVolume", "CreateTags", "ModifyVolume"] {
            faults.scripted.extend([(action, Fault::Throttled); 20]);
        }
    });
    is_throttled_for_long(&account, &provider, &id);
    is_not_carried_out(&account, &provider, &id);
}

#[test]
fn limits_of_the_account_and_of_the_machine_are_told_as_such() {
    tells_limits::<Ec2>("AttachmentLimitExceeded", "VolumeLimitExceeded");
}

#[test]
fn a_right_that_is_missing_is_named_also_in_the_middle_of_a_boost() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.attached(&provider, "a");
    let names = ["DescribeVolumes", "CreateTags", "DetachVolume", "CreateVolume"];
    tells_missing_rights(&account, &provider, &id, names, |name| format!("allow ec2:{name} to the daemon's role"));
    account.fake.deny("DescribeInstances", true);
    tells(account.open().describe(&id), "allow ec2:DescribeInstances");
}

#[test]
fn a_volume_of_another_zone_is_told() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.made(&provider, "a");
    account.fake.set_zone("eu-north-1b");
    assert!(matches!(tells(provider.attach(&id), "is in another zone"), ProviderError::Invalid(_)));
}

#[test]
fn without_a_metadata_service_or_a_role_it_is_said_what_to_write() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.made(&provider, "a");
    account.fake.hide_metadata(true);
    assert!(provider.describe(&id).is_ok(), "the credentials last");
    account.fake.rotate();
    let error = tells(provider.describe(&id), "the credentials of the instance's role cannot be read");
    assert!(matches!(error, ProviderError::Transient(_)));
    tells(account.open().describe(&id), "write instance and region in [provider.aws]");
    let written = AwsConfig {
        region: Some("eu-north-1".to_owned()),
        instance: Some("i-0123456789abcdef0".to_owned()),
        ..account.config()
    };
    let (key, secret) = account.fake.key("123456789012");
    let file = tempfile::NamedTempFile::new().unwrap();
    let json = format!("{{\"Version\": 1, \"AccessKeyId\": \"{key}\", \"SecretAccessKey\": \"{secret}\"}}");
    std::fs::write(file.path(), json).unwrap();
    let command = ["/bin/cat", file.path().to_str().unwrap()].map(str::to_owned).to_vec();
    let without = account.open_as(AwsConfig { credential_command: Some(command), ..written.clone() });
    assert!(without.describe(&id).is_ok(), "what is written does");
    assert!(!format!("{without:?}{provider:?}").contains("swordfish"), "secrets are not printed");
    account.fake.hide_metadata(false);
    account.fake.take_role();
    let error = tells(account.open_as(written).describe(&id), "this instance has no role");
    assert!(matches!(error, ProviderError::Invalid(_)));
    assert!(provider.describe(&id).is_err());
}

#[test]
fn an_instance_that_this_machine_is_not_is_refused_where_the_metadata_service_answers() {
    let account = Account::new(Settings::default());
    let config = AwsConfig {
        region: Some("eu-north-1".to_owned()),
        instance: Some("i-0fedcba9876543210".to_owned()),
        ..account.config()
    };
    let error = tells(account.open_as(config).create(&request("a")), "this machine is i-0123456789abcdef0: correct it");
    assert!(matches!(error, ProviderError::Invalid(_)));
    assert!(account.fake.take_sent().is_empty(), "EC2 is not asked");
}

#[test]
fn credentials_that_aws_does_not_accept_are_told_and_a_clock_that_is_wrong_is_told_as_such() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.made(&provider, "a");
    for (ahead_s, why) in [(900, "clock is 900 s behind AWS's"), (-900, "clock is 900 s ahead of AWS's")] {
        account.fake.set_ahead_s(ahead_s);
        assert!(matches!(tells(provider.describe(&id), why), ProviderError::Transient(_)));
    }
    account.fake.set_ahead_s(0);
    assert!(provider.describe(&id).is_ok());
    let file = tempfile::NamedTempFile::new().unwrap();
    let config = AwsConfig { credentials_file: Some(file.path().to_owned()), ..account.config() };
    let (key, _) = account.fake.key("123456789012");
    std::fs::write(file.path(), format!("[default]\naws_access_key_id={key}\naws_secret_access_key=swordfish\n"))
        .unwrap();
    let error = tells(account.open_as(config).describe(&id), "AWS does not accept the credentials");
    assert!(matches!(error, ProviderError::Invalid(_)));
}

#[test]
fn a_machine_under_xen_rents_nothing() {
    let account = Account::new(Settings::default());
    account.fake.set_instance_type("m4.large");
    let error = tells(account.open().create(&request("a")), "this machine is a m4.large under Xen");
    assert!(matches!(error, ProviderError::Invalid(_)));
    assert_eq!(account.fake.volumes(), 0);
}

#[test]
fn types_and_sizes_that_ec2_does_not_sell_are_refused_before_it_is_asked_where_that_is_known() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let with = |volume_type: &str, gib| CreateVolume {
        volume_type: volume_type.to_owned(),
        size: Bytes::from_gib(gib),
        ..request("a")
    };
    tells(provider.create(&with("fast", 10)), "write one of gp2, gp3");
    tells(provider.create(&with("io2", 10)), "[provider.aws.types.io2] iops");
    tells(provider.create(&CreateVolume { size: Bytes::from_mib(1), ..with(TYPE, 1) }), "whole number of GiB");
    assert!(account.fake.take_sent().is_empty(), "EC2 is not asked");
    tells(provider.create(&with("gp2", 60_000)), "outside of the limits");
    assert_eq!(account.fake.volumes(), 0);
}

#[test]
fn ids_that_are_none_are_no_volumes_and_ec2_is_not_asked_about_them() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    for id in ["", "vol-1", "vol-0123456789ABCDEF0", "vol-0123456789abcdef0&VolumeId.2=x", "i-0123456789abcdef0"] {
        let id = VolumeId(id.to_owned());
        assert_eq!(provider.describe(&id), Err(ProviderError::NotFound(id.clone())));
    }
    assert!(account.fake.take_sent().is_empty());
}

#[test]
fn what_exceeds_the_rates_is_throttled_before_ec2_is_asked() {
    let account = Account::new(Settings::default());
    let provider = account.open_as(AwsConfig { reads_per_s: 1, writes_per_s: 1, ..account.config() });
    let carried_out = exceed_rates(&provider, "vol-0123456789abcdef0");
    let asked = account.fake.take_sent().iter().filter(|sent| sent.action == "DescribeVolumes").count();
    assert_eq!(asked, carried_out, "of the others nothing was sent");
}

#[test]
fn a_certificate_of_nobody_known_is_told_with_the_remedy() {
    let account = Account::new(Settings::default());
    let pair = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.self_signed(&pair).unwrap().der().clone();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pair.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
    let config = Arc::new(config.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = Some(format!("https://{}", listener.local_addr().unwrap()));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let _ = connection.complete_io(&mut stream).map(|_| stream.read(&mut [0; 1024]));
        }
    });
    let client = account.open_as(AwsConfig { endpoint, ..account.config() });
    let error = tells(client.list("a", "b"), "a certificate that is not trusted");
    assert!(error.to_string().contains("ca_file"), "{error}");
}
