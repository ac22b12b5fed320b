//! Which outages there are: what fails, how, in which phase of a boost, and for how long.

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use surgetank_model::random::Random;

/// How a volume fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// QEMU throttles it to nothing: requests wait.
    Stalled,
    /// Every request is answered with an I/O error.
    Errors,
    /// The disk leaves the guest without the provider's doing, and comes back.
    Unplugged,
    /// The provider detaches the volume, and attaches it again.
    Detached,
}

/// Which volumes fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The caching volume.
    Caching,
    /// The backing volume.
    Backing,
    /// Both at once.
    Both,
}

impl Target {
    /// Whether the backing volume is one of them.
    pub fn has_backing(self) -> bool {
        self != Self::Caching
    }

    /// Whether the caching volume is one of them.
    pub fn has_caching(self) -> bool {
        self != Self::Backing
    }
}

/// Where in a boost an outage begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum OutageMoment {
    /// While writes go to the caching volume.
    Absorb,
    /// While they are copied back.
    Drain,
}

/// One outage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outage {
    /// How.
    pub kind: Failure,
    pub target: Target,
    /// When.
    pub moment: OutageMoment,
    /// From its beginning to its end.
    pub length: Duration,
    /// From the moment in the boost to its beginning.
    pub delay: Duration,
    /// Whether the boost goes on into the next outage if it can, instead of being drained.
    pub keep: bool,
}

/// All kinds, what they hit, and how often in the proportion in which they occur.
const WAYS: &[(Failure, Target, usize)] = &[
    (Failure::Stalled, Target::Caching, 1),
    (Failure::Errors, Target::Caching, 3),
    (Failure::Unplugged, Target::Caching, 2),
    (Failure::Detached, Target::Caching, 2),
    (Failure::Stalled, Target::Backing, 1),
    (Failure::Errors, Target::Backing, 1),
    (Failure::Stalled, Target::Both, 1),
    (Failure::Errors, Target::Both, 1),
];

/// Those of the kinds that are wanted (all, if none is named), each as often as it occurs. Every way comes once before
/// one comes again, so that a few outages are of many ways.
fn ways(kinds: &[Failure]) -> Vec<(Failure, Target)> {
    let wanted: Vec<_> = WAYS.iter().filter(|(kind, ..)| kinds.is_empty() || kinds.contains(kind)).collect();
    let rounds = wanted.iter().map(|(.., count)| *count).max().unwrap_or(0);
    let of_round =
        |round| wanted.iter().filter(move |(.., count)| *count > round).map(|(kind, target, _)| (*kind, *target));
    (0..rounds).flat_map(of_round).collect()
}

/// The outages of a campaign. Of every ten lengths eight are of 1 to 10 s, the others of up to 30 s and of up to 60 s.
pub fn outages(count: u32, seed: u64, kinds: &[Failure]) -> Vec<Outage> {
    let mut chance = Random::from_seed(seed);
    let ways = ways(kinds);
    // Lengths are dealt out by themselves, so that every kind meets long ones.
    let mut lengths: Vec<Duration> = (0..count).map(|index| length(index, &mut chance)).collect();
    chance.shuffle(&mut lengths);
    let mut outages = Vec::new();
    for (index, length) in lengths.into_iter().enumerate() {
        let (kind, target) = ways[index % ways.len()];
        let moment = if chance.chance(0.3) { OutageMoment::Drain } else { OutageMoment::Absorb };
        // A drain does not last.
        let longest_ms = if moment == OutageMoment::Drain { 700 } else { 2000 };
        let delay = Duration::from_millis(chance.below(longest_ms));
        outages.push(Outage { kind, target, moment, length, delay, keep: chance.chance(0.3) });
    }
    chance.shuffle(&mut outages);
    outages
}

fn length(index: u32, chance: &mut Random) -> Duration {
    let (least, most) = match index % 20 {
        19 => (30_000, 60_000),
        9 | 14 | 4 => (10_000, 30_000),
        _ => (1000, 10_000),
    };
    // The longest there is is among them.
    Duration::from_millis(if index == 19 { most } else { least + chance.below(most - least) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifty_have_every_way_and_every_length_and_fit_the_time() {
        for seed in 0..20 {
            let all = outages(50, seed, &[]);
            assert_eq!((all.len(), &all), (50, &outages(50, seed, &[])));
            for (kind, target, _) in WAYS {
                assert!(
                    all.iter().any(|outage| (outage.kind, outage.target) == (*kind, *target)),
                    "{kind:?} {target:?}"
                );
            }
            let count = |from: u64, to: u64| {
                let within = |outage: &&Outage| (from..to).contains(&(outage.length.as_millis() as u64));
                all.iter().filter(within).count()
            };
            assert!(count(0, 1000) == 0 && count(60_001, u64::MAX) == 0);
            assert!(count(1000, 10_000) >= 38 && count(10_000, 30_000) >= 8 && count(30_000, 60_001) == 2);
            assert!(all.iter().any(|outage| outage.length == Duration::from_secs(60)));
            let total: Duration = all.iter().map(|outage| outage.length).sum();
            assert!(total < Duration::from_secs(13 * 60), "{total:?}");
            assert!(all.iter().any(|outage| outage.moment == OutageMoment::Drain && outage.keep));
        }
    }

    #[test]
    fn ways_come_in_proportion_and_each_before_one_comes_again() {
        let all = ways(&[]);
        let first: std::collections::BTreeSet<_> = all.iter().take(WAYS.len()).collect();
        assert_eq!((all.len(), first.len()), (12, WAYS.len()));
        for (kind, target, count) in WAYS {
            assert_eq!(all.iter().filter(|way| **way == (*kind, *target)).count(), *count);
        }
    }

    #[test]
    fn kinds_can_be_chosen() {
        let all = outages(10, 3, &[Failure::Unplugged]);
        assert!(all.len() == 10 && all.iter().all(|outage| outage.kind == Failure::Unplugged));
    }
}
