//! What goes wrong is told in one clear sentence.

use surgetank_model::Bytes;
use surgetank_provider::fakes::Settings;
use surgetank_provider::{Provider, ProviderError, VolumeId, VolumeState, tag};

use super::{Account, Cloud, STEP, request};

/// A call of which only counts whether it succeeds.
type Called<'a> = &'a dyn Fn() -> Result<(), ProviderError>;

/// Checks that an error is one short sentence for people, without secrets, that says why.
pub fn tells<T: std::fmt::Debug>(answer: Result<T, ProviderError>, why: &str) -> ProviderError {
    let error = answer.unwrap_err();
    let text = error.to_string();
    assert!(text.contains(why), "{why}: {text}");
    assert!(text.len() < 700 && !text.contains(char::is_control) && !text.contains("swordfish"), "{text}");
    error
}

/// Makes changes of which the cloud throttles each, and checks that it is told as such.
pub fn is_throttled_for_long<C: Cloud>(account: &Account<C>, provider: &dyn Provider, attached: &VolumeId) {
    for _ in 0..20 {
        let answers = [
            provider.create(&request::<C>("b")).map(drop),
            provider.detach(attached).map(drop),
            provider.set_tag(attached, "k", Some("v")).map(drop),
            provider.grow(attached, Bytes::from_gib(20)).map(drop),
        ];
        for answer in answers {
            assert!(matches!(answer, Err(ProviderError::Throttled { .. })), "{answer:?}");
        }
        account.pass(STEP);
    }
}

/// Checks that none of these changes was carried out, and that they are possible when nothing is throttled.
pub fn is_not_carried_out<C: Cloud>(account: &Account<C>, provider: &dyn Provider, attached: &VolumeId) {
    let seen = provider.describe(attached).unwrap();
    assert_eq!((seen.state, seen.tags.get("k"), seen.size), (VolumeState::Attached, None, Bytes::from_gib(10)));
    assert_eq!(account.fake.volumes(), 1);
    assert!(provider.create(&request::<C>("b")).is_ok() && provider.detach(attached).is_ok());
}

/// Deletes an absent volume more often than the configured rate permits; tells how many calls were not throttled.
pub fn exceed_rates(provider: &dyn Provider, absent: &str) -> usize {
    let absent = VolumeId(absent.to_owned());
    let answers: Vec<_> = (0..60).map(|_| provider.delete(&absent)).collect();
    let carried_out = answers.iter().filter(|answer| answer.is_ok()).count();
    assert!(carried_out < 60);
    let is_throttled = |answer: &Result<_, ProviderError>| match answer {
        Err(ProviderError::Throttled { after: Some(_), text }) => text.contains("writes_per_s"),
        answer => answer.is_ok(),
    };
    assert!(answers.iter().all(is_throttled), "{answers:?}");
    carried_out
}

/// Checks by what words the limits of a machine's attachments and of an account's volumes are told.
pub fn tells_limits<C: Cloud>(of_machine: &str, of_account: &str) {
    let account = Account::<C>::new(Settings { volumes_max: 3, attachments_max: 1, ..Settings::default() });
    let provider = account.open();
    account.attached(&provider, "a");
    let id = account.made(&provider, "a");
    assert!(matches!(tells(provider.attach(&id), of_machine), ProviderError::AttachLimit(_)));
    account.made(&provider, "a");
    assert!(matches!(tells(provider.create(&request::<C>("a")), of_account), ProviderError::Quota(_)));
}

/// Checks by what words a missing right is told: to describe, to tag, to detach and to create, as the cloud names these calls.
pub fn tells_missing_rights<C: Cloud>(
    account: &Account<C>,
    provider: &dyn Provider,
    attached: &VolumeId,
    names: [&'static str; 4],
    words: impl Fn(&str) -> String,
) {
    let calls: [Called<'_>; 4] = [
        &|| provider.describe(attached).map(drop),
        &|| provider.set_tag(attached, tag::DIRTY_EPOCH, Some("e")).map(drop),
        &|| provider.detach(attached).map(drop),
        &|| provider.create(&request::<C>("a")).map(drop),
    ];
    for (name, call) in names.into_iter().zip(calls) {
        account.fake.deny(name, true);
        let error = tells(call(), &words(name));
        assert!(matches!(error, ProviderError::Invalid(_)), "{error:?}");
        account.fake.deny(name, false);
        assert_eq!(call(), Ok(()));
    }
}
