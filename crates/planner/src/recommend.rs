//! The cache size to take for the checkpoints (NRK15, III-D): of those that keep the deadline, the cheapest.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;
use surgetank_model::Bytes;
use surgetank_model::units::Span;

use crate::predict::{ModePrediction, Predictor};
use crate::scenario::Caching;
use crate::stripe::{self, Auto};

/// Most cache sizes that are tried without calibration points.
const CANDIDATES_MAX: u64 = 64;

/// What must be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Constraints {
    /// On the completion time.
    pub deadline: Option<Duration>,
    /// On the cost of all VMs together.
    pub budget: Option<Budget>,
}

impl Constraints {
    /// Whether the fastest is wanted: under a budget alone.
    pub(crate) fn for_time(&self) -> bool {
        self.budget.is_some() && self.deadline.is_none()
    }
}

/// The most that a run may cost, all VMs together: `"80000000 AGBs"` or `"12.50 USD"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// GB × MB/s × seconds.
    Agbs(f64),
    /// USD.
    Usd(f64),
}

impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let remedy = "write it as \"80000000 AGBs\" or \"12.50 USD\"";
        let (number, unit) = match text.strip_prefix('$') {
            Some(number) => (number, "USD"),
            None => {
                let end = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-'))).unwrap_or(text.len());
                (&text[..end], text[end..].trim())
            }
        };
        let amount: f64 = number.trim().parse().map_err(|_| format!("\"{text}\" is no budget: {remedy}"))?;
        if !(amount.is_finite() && amount > 0.0) {
            return Err(format!("\"{text}\" is not above zero: {remedy}"));
        }
        match unit {
            "" => Err(format!("\"{text}\" has no unit: {remedy}")),
            "AGBs" | "agbs" => Ok(Self::Agbs(amount)),
            "USD" | "usd" => Ok(Self::Usd(amount)),
            other => Err(format!("\"{text}\" has the unknown unit \"{other}\": {remedy}")),
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agbs(agbs) => write!(f, "{agbs} AGBs"),
            Self::Usd(usd) => write!(f, "{usd} USD"),
        }
    }
}

/// A cache size that was looked at.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// M(Sc), of all volumes of a stripe together.
    pub checkpoint_cache_gib: f64,
    /// Over how many equal volumes it is striped; 1: no stripe.
    pub volumes: u32,
    /// Their type, if the file names one or the planner chose.
    pub volume_type: Option<String>,
    /// Rate of all of them beside the backing volume, MiB/s.
    pub caching_mib_s: f64,
    /// T.
    pub completion_s: f64,
    /// C, of one VM.
    pub cost_agbs: f64,
    /// Ca, of all VMs.
    pub cost_total_agbs: f64,
    /// Of all VMs; `None`: a price is unknown.
    pub cost_total_usd: Option<f64>,
    /// Whether it keeps deadline and budget.
    pub feasible: bool,
}

/// What is recommended, and what was considered. The figures are `None` if nothing is feasible.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recommendation {
    /// "calibrated" or "fluid".
    pub model: &'static str,
    /// M(Sc), of all volumes of a stripe together.
    pub checkpoint_cache_gib: Option<f64>,
    /// Over how many equal volumes it is striped; 1: no stripe.
    pub volumes: Option<u32>,
    /// Their type, if the file names one or the planner chose.
    pub volume_type: Option<String>,
    /// Rate of all of them beside the backing volume, MiB/s.
    pub caching_mib_s: Option<f64>,
    /// T.
    pub completion_s: Option<f64>,
    /// C, of one VM.
    pub cost_agbs: Option<f64>,
    /// Ca, of all VMs.
    pub cost_total_agbs: Option<f64>,
    /// Of all VMs; `None`: a price is unknown too.
    pub cost_total_usd: Option<f64>,
    /// All candidates, by size; under `volumes = "auto"` the best of each type and number of volumes, the best first.
    pub considered: Vec<Candidate>,
    /// If nothing is feasible: one sentence on why, and the nearest that is.
    pub infeasible: Option<String>,
    /// What to know about these figures.
    pub notes: Vec<String>,
}

/// Recommends a cache size.
///
/// # Errors
/// One sentence: the application writes no checkpoints, or a budget in USD needs prices that are unknown.
pub fn recommend(predictor: &Predictor<'_>, constraints: &Constraints) -> Result<Recommendation, String> {
    if predictor.app().checkpoints == 0 {
        return Err(
            "the application writes no checkpoints: there is no cache to size, raise checkpoints in [app]".to_owned()
        );
    }
    let caching = &predictor.scenario().caching;
    if let Some(auto) = &caching.striping.auto {
        return recommend_stripe(predictor, auto, constraints);
    }
    let (sizes, calibrated, mut notes) = candidates(predictor);
    let considered: Vec<Candidate> =
        sizes.iter().map(|size| candidate(caching, *size, &predictor.elastic(*size).prediction, constraints)).collect();
    if matches!(constraints.budget, Some(Budget::Usd(_))) && considered.iter().any(|one| one.cost_total_usd.is_none()) {
        return Err(
            "a budget in USD needs prices: add volume_type or usd_per_gib_month to [backing] and [caching]".to_owned()
        );
    }
    let fluid_notes = sizes.first().map(|size| predictor.predict(*size).notes).unwrap_or_default();
    notes.extend(fluid_notes.into_iter().filter(|note| !note.contains("checkpoints:")));
    // Under a budget alone the fastest that it pays for; else the cheapest that is fast enough.
    let key = |one: &Candidate| {
        if constraints.for_time() { (one.completion_s, one.cost_agbs) } else { (one.cost_agbs, one.completion_s) }
    };
    let feasible = considered.iter().filter(|one| one.feasible);
    let best =
        feasible.min_by(|one, other| key(one).partial_cmp(&key(other)).unwrap_or(std::cmp::Ordering::Equal)).cloned();
    let infeasible = best.is_none().then(|| nearest(predictor, &considered, constraints));
    notes.extend(best.as_ref().and_then(|best| static_is_enough(predictor, best)));
    Ok(Recommendation::of(if calibrated { "calibrated" } else { "fluid" }, best, considered, infeasible, notes))
}

/// The stripe that costs the least money and keeps the deadline, or under a budget alone the fastest.
fn recommend_stripe(
    predictor: &Predictor<'_>,
    auto: &Auto,
    constraints: &Constraints,
) -> Result<Recommendation, String> {
    let scenario = predictor.scenario();
    let found = stripe::consider(scenario, auto, constraints)?;
    let mut notes = Vec::new();
    if !scenario.calibration.is_empty() {
        notes.push(
            "calibration points are of one stripe, and volumes = \"auto\" compares several: the fluid model answers; write the \
             number of volumes that was measured"
                .to_owned(),
        );
    }
    if let Some(first) = found.first() {
        let striped = scenario.with_stripe(&first.choice);
        let striped = Predictor::new(&striped)?;
        notes.extend(striped.predict(first.size()).notes.into_iter().filter(|note| !note.contains("checkpoints:")));
        notes.extend(Some(&first.candidate).filter(|one| one.feasible).and_then(|one| static_is_enough(&striped, one)));
    }
    let considered: Vec<Candidate> = found.into_iter().map(|one| one.candidate).collect();
    let best = considered.first().filter(|one| one.feasible).cloned();
    let infeasible = best.is_none().then(|| nearest(predictor, &considered, constraints));
    Ok(Recommendation::of("fluid", best, considered, infeasible, notes))
}

/// Where a static volume, or as many of the caching type as a stripe has, takes no longer and costs no more money.
fn static_is_enough(predictor: &Predictor<'_>, best: &Candidate) -> Option<String> {
    let usd = best.cost_total_usd?;
    let enough = |found: &ModePrediction| {
        found.completion_s <= best.completion_s && found.cost_total_usd.is_some_and(|its| its <= usd)
    };
    let name = |volume_type: Option<&surgetank_model::VolumeType>| {
        volume_type.map_or(String::new(), |known| format!(" {}", known.key()))
    };
    let scenario = predictor.scenario();
    let (slow, fast) = (predictor.static_slow(), predictor.static_fast());
    let (what, found) = if enough(&slow) {
        (format!("the backing volume{} alone", name(scenario.backing.volume_type.as_ref())), slow)
    } else if enough(&fast) {
        let volumes = scenario.caching.striping.volumes;
        let each = scenario.caching.tariff().rented(scenario.backing.size).as_gib() / f64::from(volumes);
        (format!("static-fast, {volumes} × {each} GiB{}", name(scenario.caching.volume_type.as_ref())), fast)
    } else {
        return None;
    };
    Some(format!(
        "in money an elastic device does not pay here: {what}, takes {:.1} s and costs ${:.4} in place of ${usd:.4}",
        found.completion_s, found.cost_total_usd?
    ))
}

impl Recommendation {
    fn of(
        model: &'static str,
        best: Option<Candidate>,
        considered: Vec<Candidate>,
        infeasible: Option<String>,
        notes: Vec<String>,
    ) -> Self {
        let best = best.as_ref();
        Self {
            model,
            checkpoint_cache_gib: best.map(|best| best.checkpoint_cache_gib),
            volumes: best.map(|best| best.volumes),
            volume_type: best.and_then(|best| best.volume_type.clone()),
            caching_mib_s: best.map(|best| best.caching_mib_s),
            completion_s: best.map(|best| best.completion_s),
            cost_agbs: best.map(|best| best.cost_agbs),
            cost_total_agbs: best.map(|best| best.cost_total_agbs),
            cost_total_usd: best.and_then(|best| best.cost_total_usd),
            considered,
            infeasible,
            notes,
        }
    }
}

/// The sizes to try with a predictor's volumes.
pub(crate) fn sizes(predictor: &Predictor<'_>) -> Vec<Bytes> {
    candidates(predictor).0
}

/// The sizes to try: those of the points that answer for the checkpoint, else whole GiB up to what the fluid model can
/// use, and that.
fn candidates(predictor: &Predictor<'_>) -> (Vec<Bytes>, bool, Vec<String>) {
    let dataset = predictor.app().checkpoint_size;
    let calibration = predictor.calibration();
    let (inside, outside): (Vec<Bytes>, Vec<Bytes>) =
        calibration.caches().into_iter().partition(|cache| calibration.at(dataset, *cache).is_ok());
    if !inside.is_empty() {
        let left_out = |cache: Bytes| format!("{cache} was measured, but not with datasets around {dataset}: left out");
        return (inside, true, outside.into_iter().map(left_out).collect());
    }
    let notes = match calibration.is_empty() {
        true => Vec::new(),
        false => vec![format!("no calibration point has datasets around {dataset}: the fluid model answers")],
    };
    let enough = predictor.fluid_cache();
    let step = (enough.get().div_ceil(CANDIDATES_MAX)).next_multiple_of(1 << 30);
    let whole = (1..=enough.get().div_ceil(step)).map(|count| Bytes::new(count * step));
    let most = predictor.backing_size();
    let mut sizes: Vec<Bytes> = whole.filter(|size| *size <= most).chain([enough]).collect();
    sizes.sort_unstable();
    sizes.dedup();
    (sizes, false, notes)
}

pub(crate) fn candidate(
    caching: &Caching,
    size: Bytes,
    found: &ModePrediction,
    constraints: &Constraints,
) -> Candidate {
    let in_time = constraints.deadline.is_none_or(|deadline| found.completion_s <= deadline.as_secs_f64());
    let paid = constraints.budget.is_none_or(|budget| match budget {
        Budget::Agbs(most) => found.cost_total_agbs <= most,
        Budget::Usd(most) => found.cost_total_usd.is_some_and(|usd| usd <= most),
    });
    Candidate {
        checkpoint_cache_gib: caching.tariff().rented(size).as_gib(),
        volumes: caching.striping.volumes,
        volume_type: caching.volume_type.as_ref().map(surgetank_model::VolumeType::key),
        caching_mib_s: caching.bandwidth.as_mib_s(),
        completion_s: found.completion_s,
        cost_agbs: found.cost_agbs,
        cost_total_agbs: found.cost_total_agbs,
        cost_total_usd: found.cost_total_usd,
        feasible: in_time && paid,
    }
}

/// Why nothing is feasible, and what nearly is.
fn nearest(predictor: &Predictor<'_>, considered: &[Candidate], constraints: &Constraints) -> String {
    let by = |key: fn(&Candidate) -> f64| considered.iter().min_by(|one, other| key(one).total_cmp(&key(other)));
    let (Some(fastest), Some(cheapest)) = (by(|one| one.completion_s), by(|one| one.cost_total_agbs)) else {
        return "there is no cache size to choose from: add calibration points".to_owned();
    };
    let compute_s = predictor.app().compute.as_secs_f64();
    match (constraints.deadline, constraints.budget) {
        (Some(deadline), _) if deadline.as_secs_f64() < compute_s => format!(
            "the deadline of {} is below the compute time of {compute_s} s, so no storage keeps it: the fastest is a cache \
             of {} GiB with {:.1} s",
            Span(deadline),
            fastest.checkpoint_cache_gib,
            fastest.completion_s
        ),
        (Some(deadline), _) if fastest.completion_s > deadline.as_secs_f64() => {
            let fast = predictor.static_fast();
            let also = if fast.completion_s <= deadline.as_secs_f64() {
                format!("; static-fast keeps it with {:.1} s for {:.0} AGBs", fast.completion_s, fast.cost_total_agbs)
            } else {
                String::new()
            };
            format!(
                "no cache size keeps the deadline of {}: the nearest is {} GiB with {:.1} s{also}",
                Span(deadline),
                fastest.checkpoint_cache_gib,
                fastest.completion_s
            )
        }
        (deadline, Some(budget)) => {
            let cost = match (budget, cheapest.cost_total_usd) {
                (Budget::Usd(_), Some(usd)) => format!("{usd:.4} USD"),
                _ => format!("{:.0} AGBs", cheapest.cost_total_agbs),
            };
            let both = deadline.map_or(String::new(), |deadline| format!(" within {}", Span(deadline)));
            format!(
                "no cache size keeps the budget of {budget}{both}: the cheapest is {} GiB with {cost} and {:.1} s",
                cheapest.checkpoint_cache_gib, cheapest.completion_s
            )
        }
        _ => format!("nothing is feasible: the nearest is {} GiB", fastest.checkpoint_cache_gib),
    }
}
