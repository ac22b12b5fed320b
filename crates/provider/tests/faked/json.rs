//! What the tests of clients of clouds share that speak JSON and want access tokens.

use std::time::Duration;

use serde_json::Value;
use surgetank_model::Bytes;
use surgetank_provider::fakes::Fault;
use surgetank_provider::{Provider, ProviderError, VolumeId, VolumeState, tag};

use crate::faked::trouble::tells;
use crate::faked::{Account, Cloud, STEP, request};

/// Checks that whatever answers in place of a cloud says nothing of a volume. `reads`: what is called first by each verb, and `creates`,
/// if the first call of a creation is another one; `hurried`: a client that waits for a second.
pub fn foreign_answers_say_nothing<C: Cloud>(
    account: &Account<C>,
    hurried: &dyn Provider,
    unavailable: &str,
    reads: &[&'static str],
    creates: &'static str,
) {
    let provider = account.open();
    let id = account.made(&provider, "a");
    for (fault, why) in [
        (Fault::RequestLost, "does not answer"),
        (Fault::AnswerLost, "does not answer"),
        (Fault::RequestLate, "does not answer"),
        (Fault::Unavailable, unavailable),
        (Fault::BadGateway, "status 502 and no JSON"),
        (Fault::Truncated, "breaks off in the middle"),
        (Fault::Huge, "more than 32 MiB"),
        (Fault::LoginPage, "login page of a proxy"),
        (Fault::Nonsense, "no JSON"),
        (Fault::AnswerLate, "does not answer within 1s"),
    ] {
        let provider: &dyn Provider = if fault == Fault::AnswerLate { hurried } else { &provider };
        provider.describe(&id).unwrap();
        account.pass(Duration::from_secs(5));
        account.fake.faults(|faults| {
            faults.scripted.extend(reads.iter().flat_map(|call| [(*call, fault); 4]));
            faults.scripted.push_back((creates, fault));
        });
        for error in [
            tells(provider.describe(&id), why),
            tells(provider.attach(&id), why),
            tells(provider.delete(&id), why),
            tells(provider.list(tag::OWNER, "a"), why),
            tells(provider.create(&request::<C>("a")), why),
        ] {
            assert!(matches!(error, ProviderError::Transient(_)), "{fault:?}: {error:?}");
        }
        account.fake.faults(|faults| faults.scripted.clear());
    }
}

/// Checks that of what is on the way only some looks ask.
pub fn looks_on_the_way_are_rare<C: Cloud>(
    account: &Account<C>,
    provider: &dyn Provider,
    sent: impl Fn() -> usize,
) -> VolumeId {
    let id = provider.create(&request::<C>("a")).unwrap().0.id;
    sent();
    for _ in 0..100 {
        assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Creating);
    }
    assert_eq!(sent(), 0);
    account.reaches(provider, &id, VolumeState::Available);
    id
}

/// Checks that a token of an hour that cannot be renewed is used until it ends, and one that is refused no more.
pub fn a_token_is_used_until_it_ends<C: Cloud>(account: &Account<C>, hide_metadata: impl Fn(bool), rotate: impl Fn()) {
    let provider = account.open();
    let id = account.made(&provider, "a");
    account.pass(Duration::from_secs(3600 - 240));
    hide_metadata(true);
    for _ in 0..3 {
        assert!(provider.describe(&id).is_ok(), "it counts for some minutes yet");
        account.pass(Duration::from_secs(61));
    }
    account.pass(Duration::from_secs(61));
    assert!(matches!(provider.describe(&id), Err(ProviderError::Transient(_))));
    hide_metadata(false);
    assert!(provider.describe(&id).is_ok());
    account.pass(Duration::from_secs(3600 - 240));
    rotate();
    hide_metadata(true);
    assert!(provider.describe(&id).is_err(), "what is refused counts no more");
}

/// Checks that tokens of an hour are renewed before they end, and once when they are refused. `calls`: what describes a volume.
pub fn tokens_are_renewed<C: Cloud>(
    account: &Account<C>,
    calls: &[&'static str],
    sent: impl Fn() -> usize,
    rotate: impl Fn(),
) {
    let provider = account.open();
    let id = account.made(&provider, "a");
    let sends = |count: usize| {
        sent();
        provider.describe(&id).unwrap();
        assert_eq!(sent(), count);
    };
    sends(calls.len());
    // Four minutes before it ends: nothing is refused.
    account.pass(Duration::from_secs(3600 - 240));
    sends(calls.len());
    rotate();
    sends(calls.len() + 1);
    account.fake.faults(|faults| faults.scripted.extend([(calls[0], Fault::Refused); 2]));
    assert!(matches!(provider.describe(&id), Err(ProviderError::Invalid(_))), "it is asked for once");
    assert!(provider.describe(&id).is_ok());
}

/// Checks that what is no id is no volume.
pub fn are_no_volumes(provider: &dyn Provider, ids: &[&str]) {
    for id in ids {
        let id = VolumeId((*id).to_owned());
        assert_eq!(provider.describe(&id), Err(ProviderError::NotFound(id.clone())));
        assert_eq!(provider.grow(&id, Bytes::from_gib(1)), Err(ProviderError::NotFound(id.clone())));
    }
}

/// Checks by what words the credentials that a command prints are refused, one after another.
pub fn refuses_credentials<C: Cloud>(
    account: &Account<C>,
    config: impl Fn(Vec<String>) -> C::Config,
    id: &VolumeId,
    refused: &str,
) {
    for (token, why) in [("swordfish", refused), ("two swordfish", "is no access token"), ("", "is no access token")] {
        let wrong = account.open_as(config(["/bin/echo", token].map(str::to_owned).to_vec()));
        assert!(matches!(tells(wrong.describe(id), why), ProviderError::Invalid(_)));
        account.pass(STEP);
    }
}

/// A request with a mistake: `key` of what is at `pointer` has this value.
pub fn planted(mut request: Value, pointer: &str, key: &str, value: Value) -> Value {
    let place = if pointer.is_empty() { Some(&mut request) } else { request.pointer_mut(pointer) };
    place.unwrap()[key] = value;
    request
}
