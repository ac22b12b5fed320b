//! Lives of volumes amid faults.

use std::time::Duration;

use surgetank_model::random::Random;
use surgetank_provider::fakes::{Fault, Settings};
use surgetank_provider::{Change, DiskIdentity, Provider, ProviderError, VolumeId, VolumeState, tag};

use crate::account::{Account, LOOKS_MAX, STEP, request};

/// How many lives each thread has, and how many threads there are.
const LIVES: (u64, u64) = (130, 4);

/// One life of a volume, in which any call may meet a fault; the caller does as the daemon does: it asks again.
fn life(account: &Account, provider: &dyn Provider, owner: &str, random: &mut Random) {
    fn until<T>(account: &Account, what: &str, mut call: impl FnMut() -> Result<T, ProviderError>) -> T {
        for _ in 0..LOOKS_MAX {
            match call() {
                Ok(answer) => return answer,
                Err(ProviderError::Invalid(text)) if !text.contains("refuses a token") => {
                    panic!("{what}: {text}")
                }
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.len() < 900 && !text.contains(char::is_control), "{what}: {text}");
                    assert!(!text.contains("swordfish"), "{what}: {text}");
                    account.pass(STEP);
                }
            }
        }
        panic!("{what} does not come to an end");
    }
    let until = |what: &str, call: &mut dyn FnMut() -> Result<Change, ProviderError>| until(account, what, call);
    let is = |id: &VolumeId, state: VolumeState| {
        let mut found = None;
        until("describe", &mut || match provider.describe(id)? {
            volume if volume.state == state => {
                found = Some(volume);
                Ok(Change::Identity)
            }
            volume => Err(ProviderError::Transient(format!("it is {:?}", volume.state))),
        });
        found.unwrap()
    };
    let request = request(owner);
    let create = || {
        let mut made = None;
        until("create", &mut || {
            let (volume, change) = provider.create(&request)?;
            made = Some(volume.id);
            Ok(change)
        });
        made.unwrap()
    };
    let id = create();
    is(&id, VolumeState::Available);
    for epoch in 0..=random.below(2) {
        let epoch = epoch.to_string();
        until("attach", &mut || provider.attach(&id));
        let attached = is(&id, VolumeState::Attached);
        assert_eq!(attached.disk, Some(DiskIdentity::Name(id.0.clone())));
        until("set_tag", &mut || provider.set_tag(&id, tag::DIRTY_EPOCH, Some(&epoch)));
        assert_eq!(is(&id, VolumeState::Attached).tags.get(tag::DIRTY_EPOCH), Some(&epoch));
        assert_eq!(create(), id, "asked again, the same volume is found");
        until("set_tag", &mut || provider.set_tag(&id, tag::DIRTY_EPOCH, None));
        until("detach", &mut || provider.detach(&id));
        is(&id, VolumeState::Available);
    }
    until("delete", &mut || provider.delete(&id));
    for _ in 0..LOOKS_MAX {
        match provider.describe(&id) {
            Err(ProviderError::NotFound(_)) => return,
            _ => account.pass(STEP),
        }
    }
    panic!("{id:?} is not deleted");
}

#[allow(clippy::print_stdout, reason = "the faults that were met are told")]
fn lives(settings: Settings, of_hundred: u64) {
    let account = Account::new(settings);
    account.fake.faults(|faults| faults.by_chance = Some((Random::from_seed(7), of_hundred)));
    std::thread::scope(|scope| {
        for thread in 0..LIVES.1 / 2 {
            let account = &account;
            scope.spawn(move || {
                let (provider, mut random) = (account.open(), Random::from_seed(thread));
                for _ in 0..LIVES.0 {
                    life(account, &provider, "lives", &mut random);
                }
            });
        }
    });
    let met = account.fake.faults(|faults| {
        faults.by_chance = None;
        faults.met.clone()
    });
    account.fake.settle();
    // The sweep: what came late.
    let provider = account.open();
    for _ in 0..LOOKS_MAX {
        let left = provider.list(tag::OWNER, "lives").unwrap();
        for volume in &left {
            assert!(!volume.tags.contains_key(tag::DIRTY_EPOCH), "{volume:?}");
            let _ = provider.delete(&volume.id);
        }
        if left.is_empty() && account.fake.disks() == 0 {
            break;
        }
        account.pass(STEP);
    }
    assert_eq!(account.fake.disks(), 0, "nothing stays rented");
    let counts: Vec<String> = Fault::BY_CHANCE
        .iter()
        .map(|fault| format!("{fault:?} {}", met.iter().filter(|there| *there == fault).count()))
        .collect();
    println!("{} lives; faults: {}", LIVES.0 * LIVES.1 / 2, counts.join(", "));
    assert!(Fault::BY_CHANCE.iter().all(|fault| met.contains(fault)), "{counts:?}");
}

#[test]
fn life_cycles_amid_faults_end_with_nothing_rented() {
    lives(Settings::default(), 10);
}

#[test]
fn life_cycles_amid_faults_and_lag_end_with_nothing_rented() {
    let lag = Duration::from_secs(3);
    lives(Settings { blind: lag, listing_lag: lag, page: 5, ..Settings::default() }, 10);
}
