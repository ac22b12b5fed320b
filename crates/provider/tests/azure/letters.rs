//! Names and keys that somebody else has written in other letters, which are the same to Azure.

use std::time::Duration;

use surgetank_provider::fakes::Settings;
use surgetank_provider::{Account as _, Change, Provider, ProviderError, VolumeId, VolumeState, tag};

use crate::account::{Account, request_with_token};

#[test]
fn a_disk_that_is_told_in_other_letters_is_not_gone() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.made(&provider, "a");
    account.fake.copy(&id.0, "SURGETANK-other");
    let other = VolumeId("surgetank-other".to_owned());
    for told in [
        provider.describe(&other).map(drop),
        provider.delete(&other).map(drop),
        provider.set_tag(&other, "k", None).map(drop),
        provider.volume(&other).map(drop),
    ] {
        assert!(matches!(&told, Err(ProviderError::Transient(text)) if text.contains("SURGETANK-other")), "{told:?}");
    }
    assert_eq!(account.fake.disks(), 2);
    // An id of ours has none of those letters, and nobody is asked.
    account.fake.take_sent();
    let upper = VolumeId(id.0.to_ascii_uppercase());
    assert_eq!(provider.describe(&upper), Err(ProviderError::NotFound(upper.clone())));
    assert_eq!((provider.volume(&upper), account.fake.take_sent().len()), (Ok(None), 0));
}

#[test]
fn our_keys_count_in_whatever_letters() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = provider.create(&request_with_token("a")).unwrap().0.id;
    account.reaches(&provider, &id, VolumeState::Available);
    account.fake.tag(&id.0, "Surgetank:Dirty-Epoch", "7");
    account.fake.tag(&id.0, "Team", "storage");
    account.pass(Duration::from_secs(5));
    let listed = provider.list(tag::DIRTY_EPOCH, "7").unwrap();
    let of_account = provider.volumes().unwrap().into_iter().map(|of| of.volume);
    let seen = listed.into_iter().chain(of_account).chain([provider.describe(&id).unwrap()]);
    let tags: Vec<_> = seen.map(|volume| (volume.id, volume.tags[tag::DIRTY_EPOCH].clone())).collect();
    assert_eq!(tags, vec![(id.clone(), "7".to_owned()); 3]);
    assert!(provider.list("team", "storage").unwrap().is_empty(), "others' keys are told as they are");
    assert_eq!(provider.set_tag(&id, tag::DIRTY_EPOCH, Some("7")), Ok(Change::Identity));
    assert_eq!(provider.set_tag(&id, "SURGETANK:DIRTY-EPOCH", None), Ok(Change::Changed));
    let tags = account.fake.tags(&id.0);
    assert!(tags.keys().all(|key| !key.eq_ignore_ascii_case(tag::DIRTY_EPOCH)), "{tags:?}");
    assert_eq!(tags["Team"], "storage");
}

#[test]
fn whose_machine_a_disk_is_at_is_asked_for_once_of_each_renter() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    for _ in 0..3 {
        let id = provider.create(&request_with_token("a")).unwrap().0.id;
        account.reaches(&provider, &id, VolumeState::Available);
        provider.attach(&id).unwrap();
        account.reaches(&provider, &id, VolumeState::Attached);
    }
    account.fake.take_sent();
    let rented = provider.volumes().unwrap();
    assert!(rented.len() == 3 && rented.iter().all(|of| of.machine.is_some() && of.attached_to == of.machine));
    let sent: Vec<String> = account.fake.take_sent().into_iter().map(|sent| sent.call).collect();
    assert_eq!(sent, ["disks.list", "virtualMachines.get"]);
}
