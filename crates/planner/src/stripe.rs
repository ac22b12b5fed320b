//! Equal caching volumes that serve a boost as one: what they give, which there are, and the ones to take.
//!
//! Providers limit volumes one by one and include rates in the price of the smallest: N small volumes move N times what one
//! moves, for little more than what one of their size costs. N is limited by what a machine can attach, and what they
//! move by the machine's own bandwidth.

use std::cmp::Ordering;

use surgetank_model::volume_type::Provision;
use surgetank_model::{Bandwidth, Bytes, Catalog, Limits, VolumeType};
pub use surgetank_policy::stripe::Machine;

use crate::cost::{Tariff, bills_transactions};
use crate::predict::Predictor;
use crate::recommend::{Candidate, Constraints, candidate, sizes};
use crate::scenario::{Backing, Caching, Scenario};

/// What may be asked of one volume, MiB/s, beside what comes with its size.
const LEVELS: [u64; 8] = [32, 64, 128, 256, 512, 1024, 2048, 4096];

/// Over how many caching volumes a boost is striped.
#[derive(Clone, Debug, PartialEq)]
pub struct Striping {
    /// How many equal volumes; 1: no stripe.
    pub volumes: u32,
    /// What each of them gives.
    pub each: Bandwidth,
    /// Rate of all while the backing volume rests: no more than the machine moves.
    pub alone: Bandwidth,
    /// What the planner may choose from; `None`: the file says how many.
    pub auto: Option<Auto>,
}

impl Striping {
    /// A single volume on a machine without limits.
    #[must_use]
    pub const fn single(bandwidth: Bandwidth) -> Self {
        Self { volumes: 1, each: bandwidth, alone: bandwidth, auto: None }
    }
}

/// What the planner may choose from: `volumes = "auto"`.
#[derive(Clone, Debug, PartialEq)]
pub struct Auto {
    /// The types, each with the most volumes of it.
    pub types: Vec<(VolumeType, u32)>,
    /// The checkpoints' cache in the choice that costs the least without a deadline.
    pub cache: Bytes,
}

/// A stripe that could be rented.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice<'a> {
    /// Type of its volumes.
    pub volume_type: &'a VolumeType,
    /// How many.
    pub volumes: u32,
    /// What each gives.
    pub each: Bandwidth,
}

/// The types that a stripe beside this backing volume may have: the given one, or all of the backing volume's provider. Their limits
/// and prices must be known, and nothing billed by the transaction, whose number is not known here.
///
/// # Errors
/// One sentence: there are none.
pub fn types(
    catalog: &Catalog,
    machine: Machine,
    given: Option<&VolumeType>,
    backing: Option<&VolumeType>,
) -> Result<Vec<(VolumeType, u32)>, String> {
    let found: Vec<&VolumeType> = match (given, backing) {
        (Some(given), _) => vec![given],
        (None, Some(backing)) => catalog.iter().filter(|known| known.provider == backing.provider).collect(),
        (None, None) => {
            return Err(
                "volumes = \"auto\" chooses from a provider's types, and no provider is named: write volume_type = \
                 \"aws/gp3\" here, or the backing volume's in [backing]"
                    .to_owned(),
            );
        }
    };
    let priced = |known: &&VolumeType| {
        known.limits_are_known() && known.price_per_hour(known.size.min).is_some() && !bills_transactions(known)
    };
    let priced: Vec<_> = found.iter().copied().filter(priced).collect();
    if priced.is_empty() {
        let name = given.map_or_else(
            || format!("no type of {}", backing.map_or("", |backing| &backing.provider)),
            |given| format!("{} has not", given.key()),
        );
        return Err(format!(
            "volumes = \"auto\" weighs money, and {name} both known limits and a price without transactions: give them with \
             --catalog FILE, or write a number of volumes"
        ));
    }
    Ok(priced.into_iter().map(|known| (known.clone(), machine.volumes_max(catalog, Some(known)))).collect())
}

/// What a volume of this size gives with nothing bought besides; `None`: unknown, or there is no such volume.
#[must_use]
pub fn included(known: &VolumeType, size: Bytes) -> Option<Bandwidth> {
    known
        .limits_are_known()
        .then(|| known.size.fit(size))?
        .and_then(|size| known.sustained_with(size, &Provision::default()).bandwidth)
}

/// Whether volumes of this type can give so much each.
#[must_use]
pub fn gives(known: &VolumeType, each: Bandwidth) -> bool {
    known.cheapest_with(known.size.min, &Limits { bandwidth: Some(each), iops: None }).is_some()
}

/// A rate of so many volumes.
#[must_use]
pub fn times(each: Bandwidth, volumes: u32) -> Bandwidth {
    Bandwidth::new(each.get().saturating_mul(u64::from(volumes)))
}

impl Auto {
    /// Every stripe that may be worth something beside this backing volume.
    fn choices(&self, machine: Machine, backing: Bandwidth) -> Vec<Choice<'_>> {
        let usable = machine.passes(Bandwidth::new(u64::MAX), backing).0;
        let mut found = Vec::new();
        for (volume_type, most) in &self.types {
            let least = included(volume_type, volume_type.size.min);
            for volumes in 1..=*most {
                // No level beyond what the machine can use. More volumes than it can use may be rounded up to less.
                let enough = Bandwidth::new(usable.get().div_ceil(u64::from(volumes)));
                let asked = LEVELS.map(Bandwidth::from_mib_s).into_iter().chain(machine.bandwidth.map(|_| enough));
                let more = asked.filter(|each| *each <= enough && least.is_none_or(|least| *each > least));
                let levels = least.into_iter().chain(more).filter(|each| gives(volume_type, *each));
                found.extend(levels.map(|each| Choice { volume_type, volumes, each }));
            }
        }
        found
    }
}

impl Caching {
    /// What all volumes of a stripe cost.
    #[must_use]
    pub fn tariff(&self) -> Tariff {
        Tariff::striped(self.striping.volumes, self.striping.each, self.volume_type.as_ref(), self.usd_per_gib_month)
    }

    /// The same with another stripe.
    fn with(&self, choice: &Choice<'_>, machine: Machine, backing: &Backing) -> Self {
        let all = times(choice.each, choice.volumes);
        let (bandwidth, alone) = machine.passes(all, backing.bandwidth);
        Self {
            bandwidth,
            volume_type: Some(choice.volume_type.clone()),
            striping: Striping { volumes: choice.volumes, each: choice.each, alone, auto: self.striping.auto.clone() },
            ..self.clone()
        }
    }
}

impl Scenario {
    /// The same with another stripe, and without what was measured of the file's.
    #[must_use]
    pub fn with_stripe(&self, choice: &Choice<'_>) -> Self {
        let caching = self.caching.with(choice, self.machine, &self.backing);
        Self { caching, calibration: Vec::new(), ..self.clone() }
    }
}

/// A stripe with the best cache size for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Considered<'a> {
    /// The stripe.
    pub choice: Choice<'a>,
    /// What it comes to.
    pub candidate: Candidate,
    size: Bytes,
}

impl Considered<'_> {
    /// The checkpoints' cache, all volumes together.
    #[must_use]
    pub fn size(&self) -> Bytes {
        self.size
    }
}

/// For each type and number of volumes the best stripe under the constraints, in the order that [`best`] prefers.
///
/// # Errors
/// One sentence: a price that is needed is unknown, or there is no application.
pub fn consider<'a>(
    scenario: &Scenario,
    auto: &'a Auto,
    constraints: &Constraints,
) -> Result<Vec<Considered<'a>>, String> {
    let mut found: Vec<Considered<'a>> = Vec::new();
    for choice in auto.choices(scenario.machine, scenario.backing.bandwidth) {
        let striped = scenario.with_stripe(&choice);
        let predictor = Predictor::new(&striped)?;
        let sizes = match scenario.caching.checkpoint_cache {
            Some(size) => vec![size],
            None => sizes(&predictor),
        };
        for size in sizes {
            let candidate = candidate(&striped.caching, size, &predictor.elastic(size).prediction, constraints);
            if candidate.cost_total_usd.is_none() {
                return Err(
                    "volumes = \"auto\" weighs money, and the backing volume's price is unknown: add volume_type or \
                     usd_per_gib_month to [backing]"
                        .to_owned(),
                );
            }
            let new = Considered { choice, candidate, size };
            let same = |known: &&mut Considered<'_>| {
                known.choice.volumes == choice.volumes && known.choice.volume_type.key() == choice.volume_type.key()
            };
            match found.iter_mut().find(same) {
                Some(known) if prefer(&new, known, constraints) == Ordering::Less => *known = new,
                Some(_) => {}
                None => found.push(new),
            }
        }
    }
    found.sort_by(|one, other| prefer(one, other, constraints));
    Ok(found)
}

/// Feasible ones first; of these the cheapest in money, or under a budget alone the fastest. Of equals the one of fewer volumes.
fn prefer(one: &Considered<'_>, other: &Considered<'_>, constraints: &Constraints) -> Ordering {
    let key = |considered: &Considered<'_>| {
        let (usd, time) =
            (considered.candidate.cost_total_usd.unwrap_or(f64::INFINITY), considered.candidate.completion_s);
        let first = if constraints.for_time() { (time, usd) } else { (usd, time) };
        (!considered.candidate.feasible, first.0, first.1, considered.choice.volumes)
    };
    key(one).partial_cmp(&key(other)).unwrap_or(Ordering::Equal)
}
