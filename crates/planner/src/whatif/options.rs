//! Every option of the catalog for a fitted application: time, cost, the Pareto front, and the one to take.

use std::time::Duration;

use serde::Serialize;
use surgetank_model::volume_type::{Billing, Price, Supply};
use surgetank_model::{Bandwidth, Bytes, Catalog, Limits, VolumeType};

use super::{Application, FoundBurst};
use crate::credits::Buckets;
use crate::fluid::{Absorb, Delays, Pipes};
use crate::price::{Need, PriceOption, options};
use crate::stripe::{self, Machine};

/// Bandwidths that are asked for, in MiB/s; the first is whatever the capacity brings.
const LEVELS: [u64; 7] = [0, 64, 128, 256, 512, 1024, 2048];
/// Volumes in the stripes that are tried, each with what comes with its size.
const COUNTS: [u32; 6] = [2, 4, 8, 12, 16, 26];
/// The most that counts as one transaction; where a provider says nothing else.
const TRANSACTION_KIB: f64 = 256.0;
/// How long the controller waits after a burst.
const QUIET: Duration = Duration::from_secs(30);

/// What must be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Constraint {
    /// On the completion time, s.
    pub deadline_s: Option<f64>,
    /// On the cost of the run, USD.
    pub budget_usd: Option<f64>,
}

/// The caching volumes of an elastic option.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Elastic {
    /// Their type.
    pub volume_type: String,
    /// Over how many equal volumes each boost is striped; 1: no stripe.
    pub volumes: u32,
    /// Size of each.
    pub size_gib: f64,
    /// What all of a stripe give together.
    pub throughput_mib_s: f64,
    /// How many boosts there are, one after the other.
    pub boosts: usize,
}

/// One way to rent storage for the application.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// "static" or "elastic".
    pub kind: &'static str,
    /// Who rents it out.
    pub provider: String,
    /// Type of the volume, or of the backing volume.
    pub volume_type: String,
    /// How many equal ones.
    pub volumes: u32,
    /// Size of each.
    pub size_gib: f64,
    /// What all give for requests as large as the application's.
    pub throughput_mib_s: f64,
    /// The caching volumes; `None`: a static option.
    pub caching: Option<Elastic>,
    /// What the run would have taken.
    pub completion_s: f64,
    /// What it would have cost, transactions included.
    pub cost_usd: f64,
    /// USD of that for transactions; zero where none are billed.
    pub transactions_usd: f64,
    /// Whether it would for ever; else while burst credits last.
    pub sustained: bool,
    /// Whether nothing is both faster and cheaper.
    pub pareto: bool,
    /// For people.
    pub note: String,
}

/// All options, and the one to take.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// The one to take; `None`: nothing keeps the constraints.
    pub choice: Option<Choice>,
    /// By time, from the fastest to the cheapest.
    pub pareto: Vec<Choice>,
    /// By cost.
    pub considered: Vec<Choice>,
    /// If nothing is feasible: one sentence on why, and the nearest that is.
    pub infeasible: Option<String>,
}

/// What the bursts and the time between them need of an option.
struct Job<'a> {
    app: &'a Application,
    bursts: &'a [FoundBurst],
    catalog: &'a Catalog,
}

impl Job<'_> {
    /// What limits give to requests of the application's size, MiB/s.
    fn effective(&self, throughput_mib_s: Option<f64>, iops: Option<f64>) -> f64 {
        let by_iops = iops.map_or(f64::INFINITY, |iops| iops * self.app.request_kib / 1024.0);
        throughput_mib_s.unwrap_or(f64::INFINITY).min(by_iops)
    }

    /// What lies between the bursts, with what it reads and writes.
    fn quiet_s(&self, mib_s: f64) -> f64 {
        self.app.compute_s.max(self.app.background_mib_s * self.app.compute_s / mib_s)
    }

    /// USD for so many requests of the application's size on volumes of a type. Larger ones than a transaction count as
    /// several.
    fn transactions_usd(&self, known: &VolumeType, requests: u64) -> f64 {
        let each = known.price.as_ref().and_then(Price::transaction_usd).unwrap_or_default();
        each * requests as f64 * (self.app.request_kib / TRANSACTION_KIB).ceil().max(1.0)
    }

    fn fixed(&self, option: &PriceOption) -> Option<Choice> {
        let mib_s = self.effective(option.throughput_mib_s, option.iops.map(|iops| iops as f64));
        let usd_month = option.usd_month.filter(|_| mib_s.is_finite() && mib_s > 0.0)?;
        let known = self.catalog.find(&option.provider, &option.volume_type)?;
        let completion_s = match self.on_credits(option, known, mib_s) {
            Some(seconds) => seconds,
            None => {
                let moved: f64 = self.bursts.iter().map(|burst| (burst.written_gib + burst.read_gib) * 1024.0).sum();
                self.quiet_s(mib_s) + moved / mib_s
            }
        };
        // Credits that nothing earns back may not last for all of it.
        completion_s.is_finite().then_some(())?;
        let transactions_usd = self.transactions_usd(known, self.app.requests);
        Some(Choice {
            kind: "static",
            provider: option.provider.clone(),
            volume_type: option.volume_type.clone(),
            volumes: option.volumes,
            size_gib: option.size_gib,
            throughput_mib_s: mib_s,
            caching: None,
            completion_s,
            cost_usd: billed_usd(&known.billing, usd_month, completion_s)? + transactions_usd,
            transactions_usd,
            sustained: option.sustained,
            pareto: false,
            note: option.note.clone(),
        })
    }

    /// Completion of what lives on burst credits, s: each burst finds what the last one left and the pause since has
    /// earned. `None`: it does not live on credits.
    fn on_credits(&self, option: &PriceOption, known: &VolumeType, mib_s: f64) -> Option<f64> {
        let volumes = f64::from(option.volumes.max(1));
        let size = Bytes::new((option.size_gib * super::GIB) as u64);
        let mut buckets = Buckets::full(known, size, self.app.request_kib * 1024.0).filter(|_| !option.sustained)?;
        let rate = mib_s * super::MIB / volumes;
        let background = self.app.background_mib_s * super::MIB / volumes;
        let (mut at, mut seconds) = (0.0, 0.0);
        for burst in self.bursts {
            let pause = (burst.start_s - at).max(0.0);
            seconds += buckets.pause(pause, background * pause, rate);
            seconds += buckets.transfer((burst.written_gib + burst.read_gib) * super::GIB / volumes, rate);
            at = burst.end_s;
        }
        let pause = (self.app.recorded_s - at).max(0.0);
        Some(seconds + buckets.pause(pause, background * pause, rate))
    }

    /// An elastic option over a static one, with caching volumes of a type, number, size and bandwidth.
    fn elastic(
        &self,
        backing: &Choice,
        backing_month: f64,
        stripe: &stripe::Choice<'_>,
        cache: Bytes,
    ) -> Option<Choice> {
        let known = stripe.volume_type;
        let need = Limits { bandwidth: Some(stripe.each), iops: None };
        let volumes = f64::from(stripe.volumes);
        let offer =
            known.offer(Bytes::new(cache.get().div_ceil(u64::from(stripe.volumes))), &need, Supply::Sustained)?;
        let iops = offer.gives.iops.map(|iops| iops.get() as f64);
        let mib_s = volumes * self.effective(offer.gives.bandwidth.map(Bandwidth::as_mib_s), iops);
        // A caching volume that is slower than what it speeds up is none.
        if !(mib_s.is_finite() && mib_s > backing.throughput_mib_s) {
            return None;
        }
        let rate = |mib_s: f64| Bandwidth::new((mib_s * 1_048_576.0) as u64);
        let pipes = Pipes { backing: rate(backing.throughput_mib_s), caching: rate(mib_s) };
        let latency = self.catalog.provider(&known.provider).and_then(|provider| provider.latency.as_ref());
        let known_s = |span: Option<surgetank_model::units::Span>| span.map_or(Duration::ZERO, |span| span.0);
        let delays = latency.map_or(Delays { quiet: QUIET, ..Delays::default() }, |latency| Delays {
            boost: known_s(latency.create) + known_s(latency.attach),
            quiet: QUIET,
            release: known_s(latency.detach),
        });
        let (mut absorb_s, mut cached_usd, mut boosts, mut requests) = (0.0, 0.0, 0, 0u64);
        for (index, burst) in self.bursts.iter().enumerate() {
            // What is not in a fresh cache is read from the backing volume.
            let read_s = burst.read().as_mib() / backing.throughput_mib_s;
            absorb_s += read_s;
            if burst.written() == Bytes::ZERO {
                continue;
            }
            let size = Bytes::new(offer.size.get().saturating_mul(u64::from(stripe.volumes)));
            let one = pipes.delayed(burst.written(), size, Absorb::Split, &delays);
            // A drain that is not done when the next burst comes would find its cache full: no option.
            let next = self.bursts.get(index + 1).map(|next| next.start_s - burst.end_s + one.absorb_s + read_s);
            if next.is_some_and(|next_s| one.occupied_s > next_s) {
                return None;
            }
            absorb_s += one.absorb_s;
            cached_usd += billed_usd(&known.billing, offer.usd_month? * volumes, one.occupied_s)?;
            boosts += 1;
            requests = requests.saturating_add(burst.requests);
        }
        // As if every request of a burst reached the caching volume, and every one the backing volume at last.
        let cached_transactions_usd = self.transactions_usd(known, requests);
        let completion_s = self.quiet_s(backing.throughput_mib_s) + absorb_s;
        let billing = &self.catalog.find(&backing.provider, &backing.volume_type)?.billing;
        let unknown = latency.is_none_or(|latency| latency.create.is_none() || latency.attach.is_none());
        (boosts > 0).then_some(())?;
        Some(Choice {
            kind: "elastic",
            throughput_mib_s: backing.throughput_mib_s,
            caching: Some(Elastic {
                volume_type: known.name.clone(),
                volumes: stripe.volumes,
                size_gib: offer.size.as_gib(),
                throughput_mib_s: mib_s,
                boosts,
            }),
            completion_s,
            cost_usd: billed_usd(billing, backing_month, completion_s)?
                + cached_usd
                + backing.transactions_usd
                + cached_transactions_usd,
            transactions_usd: backing.transactions_usd + cached_transactions_usd,
            note: if unknown {
                "how long this provider takes to create or attach is not fully known".to_owned()
            } else {
                String::new()
            },
            ..backing.clone()
        })
    }
}

/// USD for a rental, billed as the provider bills.
fn billed_usd(billing: &Billing, usd_month: f64, seconds: f64) -> Option<f64> {
    let billed = billing.billed(Duration::try_from_secs_f64(seconds).ok()?);
    Some(usd_month / f64::from(billing.hours_per_month.max(1)) * billed.as_secs_f64() / 3600.0)
}

/// Compares every option of the catalog (or of one provider) for a fitted application.
#[must_use]
pub fn compare(
    catalog: &Catalog,
    app: &Application,
    bursts: &[FoundBurst],
    provider: Option<&str>,
    constraint: &Constraint,
) -> Answer {
    let job = Job { app, bursts, catalog };
    let capacity = Bytes::new(((app.capacity_gib * super::GIB).ceil() as u64).max(1));
    let mut considered: Vec<Choice> = Vec::new();
    for level in LEVELS {
        let bandwidth = (level > 0).then(|| Bandwidth::from_mib_s(level));
        let need = Need { capacity, limits: Limits { bandwidth, iops: None } };
        for option in options(catalog, &need, provider) {
            let Some(fixed) = job.fixed(&option) else { continue };
            if considered.iter().any(|known| same(known, &fixed)) {
                continue;
            }
            if option.sustained && option.volumes == 1 && level <= LEVELS[1] {
                considered.extend(elastic(&job, &fixed, option.usd_month.unwrap_or_default()));
            }
            considered.push(fixed);
        }
    }
    considered.sort_by(|one, other| {
        one.cost_usd.total_cmp(&other.cost_usd).then(one.completion_s.total_cmp(&other.completion_s))
    });
    mark_front(&mut considered);
    choose(considered, app, constraint)
}

fn same(one: &Choice, other: &Choice) -> bool {
    one.caching.is_none()
        && (&one.provider, &one.volume_type, one.volumes) == (&other.provider, &other.volume_type, other.volumes)
        && one.size_gib.to_bits() == other.size_gib.to_bits()
        && one.throughput_mib_s.to_bits() == other.throughput_mib_s.to_bits()
        && one.sustained == other.sustained
}

/// The elastic options over one backing volume: every caching type of its provider, for the largest and the median burst.
fn elastic(job: &Job<'_>, backing: &Choice, backing_month: f64) -> Vec<Choice> {
    let mut written: Vec<Bytes> =
        job.bursts.iter().map(FoundBurst::written).filter(|bytes| *bytes > Bytes::ZERO).collect();
    written.sort_unstable();
    let mut found: Vec<Choice> = Vec::new();
    let types = job.catalog.iter().filter(|known| known.provider == backing.provider && known.limits_are_known());
    for volume_type in types {
        let one = |level| stripe::Choice { volume_type, volumes: 1, each: Bandwidth::from_mib_s(level) };
        let levels = LEVELS.into_iter().filter(|level| *level as f64 > backing.throughput_mib_s);
        let most = Machine::default().volumes_max(job.catalog, Some(volume_type));
        let included = stripe::included(volume_type, volume_type.size.min);
        let counts = COUNTS.into_iter().filter(|volumes| *volumes <= most);
        let striped = included
            .into_iter()
            .flat_map(|each| counts.clone().map(move |volumes| stripe::Choice { volume_type, volumes, each }));
        for stripe in levels.map(one).chain(striped) {
            for dataset in [written.last(), written.get(written.len() / 2)].into_iter().flatten() {
                let caching = stripe::times(stripe.each, stripe.volumes);
                let slow = Bandwidth::new((backing.throughput_mib_s * 1_048_576.0) as u64);
                let cache = Pipes { backing: slow, caching }.cache_for(*dataset, Absorb::Split);
                let Some(choice) = job.elastic(backing, backing_month, &stripe, cache) else { continue };
                if !found.iter().any(|known| known.caching == choice.caching) {
                    found.push(choice);
                }
            }
        }
    }
    found
}

/// Marks what nothing beats in both time and cost. The options are by cost.
fn mark_front(considered: &mut [Choice]) {
    let mut fastest = f64::INFINITY;
    for choice in considered {
        choice.pareto = choice.completion_s < fastest - 1e-9;
        fastest = fastest.min(choice.completion_s);
    }
}

/// Under a deadline the cheapest, under a budget the fastest, under neither the cheapest that is no slower than what was
/// recorded (else the fastest).
fn choose(considered: Vec<Choice>, app: &Application, constraint: &Constraint) -> Answer {
    let keeps = |choice: &&Choice| {
        constraint.deadline_s.is_none_or(|deadline| choice.completion_s <= deadline)
            && constraint.budget_usd.is_none_or(|budget| choice.cost_usd <= budget)
    };
    let fastest = considered.iter().min_by(|one, other| one.completion_s.total_cmp(&other.completion_s));
    let choice = match constraint {
        Constraint { deadline_s: None, budget_usd: None } => {
            considered.iter().find(|choice| choice.completion_s <= app.recorded_s).or(fastest)
        }
        Constraint { deadline_s: None, .. } => {
            considered.iter().filter(keeps).min_by(|one, other| one.completion_s.total_cmp(&other.completion_s))
        }
        Constraint { deadline_s: Some(_), .. } => considered.iter().find(keeps),
    };
    let infeasible = choice.is_none().then(|| match (fastest, considered.first()) {
        (Some(fastest), Some(cheapest)) => format!(
            "no option keeps that: the fastest is {} with {:.1} s for ${:.6}, the cheapest {} with {:.1} s for ${:.6}",
            fastest.name(),
            fastest.completion_s,
            fastest.cost_usd,
            cheapest.name(),
            cheapest.completion_s,
            cheapest.cost_usd
        ),
        _ => format!(
            "nothing in the catalog holds {:.0} GiB: lay another catalog over it with --catalog",
            app.capacity_gib
        ),
    });
    let mut pareto: Vec<Choice> = considered.iter().filter(|choice| choice.pareto).cloned().collect();
    pareto.reverse();
    Answer { choice: choice.cloned(), pareto, considered, infeasible }
}

impl Choice {
    /// For people: what is rented.
    #[must_use]
    pub fn name(&self) -> String {
        let count = if self.volumes > 1 { format!("{} × ", self.volumes) } else { String::new() };
        let backing = format!("{count}{}/{} of {} GiB", self.provider, self.volume_type, self.size_gib);
        match &self.caching {
            None => backing,
            Some(Elastic { volumes: 1, size_gib, volume_type, .. }) => {
                format!("{backing} with caches of {size_gib} GiB {volume_type}")
            }
            Some(Elastic { volumes, size_gib, volume_type, .. }) => {
                format!("{backing} with caches of {volumes} × {size_gib} GiB {volume_type}")
            }
        }
    }
}
