//! Lives of volumes of a fake.

use surgetank_model::random::Random;
use surgetank_provider::fakes::{Fault, Settings};
use surgetank_provider::{Provider, ProviderError, tag};

use super::life::Life;
use super::{Account, Cloud, LOOKS_MAX, STEP, request};

/// How many threads have lives.
const THREADS: u64 = 2;
/// How many of a hundred calls meet a fault.
const OF_HUNDRED: u64 = 10;

/// So many lives in each thread, after which nothing is rented.
#[allow(clippy::print_stdout, reason = "the faults that were met are told")]
pub fn lives<C: Cloud>(settings: Settings, of_thread: u64) {
    let account = Account::<C>::new(settings);
    account.fake.faults(|faults| faults.by_chance = Some((Random::from_seed(7), OF_HUNDRED)));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let account = &account;
            scope.spawn(move || {
                let (provider, mut random) = (account.open(), Random::from_seed(thread));
                for _ in 0..of_thread {
                    let life = Life {
                        provider: &provider,
                        request: request::<C>("lives"),
                        is_final: |error| matches!(error, ProviderError::Invalid(text) if !text.contains(C::REFUSED)),
                        disk: &|id| C::disk(&account.fake, id),
                        epochs: C::EPOCHS,
                        looks_max: LOOKS_MAX,
                        pass: &|| account.pass(STEP),
                    };
                    life.live(&mut random);
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
        if left.is_empty() && account.fake.volumes() == 0 {
            break;
        }
        account.pass(STEP);
    }
    assert_eq!(account.fake.volumes(), 0, "nothing stays rented");
    let counts: Vec<String> = Fault::BY_CHANCE
        .iter()
        .map(|fault| format!("{fault:?} {}", met.iter().filter(|there| *there == fault).count()))
        .collect();
    println!("{} lives; faults: {}", of_thread * THREADS, counts.join(", "));
    assert!(Fault::BY_CHANCE.iter().all(|fault| met.contains(fault)), "{counts:?}");
}
