//! Every way to rent a capacity: single volumes, and arrays of equal ones, of every type whose limits allow it.
//!
//! AGBs can be gamed: q small volumes in a stripe have q times one's IOPS, and on credit volumes q full buckets. So
//! arrays are offered like anything else, with what they cost in money, and what lives on credits says so.

mod instead;

use serde::Serialize;
use surgetank_model::units::Span;
use surgetank_model::volume_type::{CreditUnit, Credits, Offer, Performance, Supply};
use surgetank_model::{Bandwidth, Bytes, Catalog, Duration, Iops, Limits, VolumeType};

pub use self::instead::{CreditArray, Instead, instead_of_credits};

/// Volumes in an array, where it is unknown how many a machine takes.
const ARRAY_MAX: u32 = 16;

/// What is to be rented.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Need {
    /// All volumes together.
    pub capacity: Bytes,
    /// All volumes together.
    pub limits: Limits,
}

/// One way to rent it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PriceOption {
    /// Who rents it out.
    pub provider: String,
    /// The provider's name of the type.
    pub volume_type: String,
    /// How many equal volumes.
    pub volumes: u32,
    /// Size of each.
    pub size_gib: f64,
    /// What all give together; `None`: not limited.
    pub iops: Option<u64>,
    /// What all give together; `None`: not limited.
    pub throughput_mib_s: Option<f64>,
    /// For all together, a month; `None`: unknown.
    pub usd_month: Option<f64>,
    /// USD for 10,000 transactions, which come on top, so that `usd_month` is the least; `None`: none are billed.
    pub transactions_10k_usd: Option<f64>,
    /// Whether what is needed is there for ever; else while burst credits last.
    pub sustained: bool,
    /// For people: how long credits last, tiers, charges beside, how often it can be modified in place.
    pub note: String,
    /// Date of the price; `None`: undated or unknown.
    pub price_as_of: Option<String>,
    /// How sure the price is.
    pub price_confidence: Option<String>,
}

/// All options of a catalog, cheapest first: the sustained ones, of these the ones whose transactions cost extra at last,
/// then those on credits, then those whose price is unknown. For each type the least number of volumes at its lowest price, and a single volume if that costs
/// more.
#[must_use]
pub fn options(catalog: &Catalog, need: &Need, provider: Option<&str>) -> Vec<PriceOption> {
    // Local volumes are files: they are priced as another type, which is listed itself.
    let wanted = |known: &&VolumeType| provider.map_or(known.provider != "local", |name| known.provider == name);
    let mut options: Vec<PriceOption> =
        catalog.iter().filter(wanted).flat_map(|known| of_type(catalog, known, need)).collect();
    options.sort_by(|one, other| {
        let depends = |option: &PriceOption| option.transactions_10k_usd.is_some();
        let key = |option: &PriceOption| (option.usd_month.is_none(), !option.sustained, depends(option));
        key(one).cmp(&key(other)).then(
            one.usd_month
                .unwrap_or_default()
                .total_cmp(&other.usd_month.unwrap_or_default())
                .then(one.volumes.cmp(&other.volumes)),
        )
    });
    end_games(&mut options);
    options
}

/// Where a sustained option costs no more than an array of the same provider that lives on credits, says so.
fn end_games(options: &mut [PriceOption]) {
    let games: Vec<PriceOption> =
        options.iter().filter(|option| !option.sustained && option.volumes > 1).cloned().collect();
    for game in games {
        let ends = |option: &&mut PriceOption| {
            option.sustained
                && option.transactions_10k_usd.is_none()
                && option.provider == game.provider
                && option.usd_month.zip(game.usd_month).is_some_and(|(usd, on_credits)| usd <= on_credits)
        };
        if let (Some(end), Some(usd)) = (options.iter_mut().find(ends), game.usd_month) {
            let (volumes, size, name) = (game.volumes, game.size_gib, &game.volume_type);
            let sentence = format!(
                "ends the game of {volumes} × {size} GiB {name} at ${usd:.2}: sustained for no more than what lasts while credits do"
            );
            add_note(&mut end.note, &sentence);
        }
    }
}

fn add_note(note: &mut String, sentence: &str) {
    if !note.is_empty() {
        note.push_str("; ");
    }
    note.push_str(sentence);
}

/// The options of one type.
fn of_type(catalog: &Catalog, known: &VolumeType, need: &Need) -> Vec<PriceOption> {
    let attachable = catalog.provider(&known.provider).and_then(|provider| provider.attachments.as_ref());
    // Together they give no more than one, so an array has no point.
    let most =
        if known.limits_per_machine { 1 } else { attachable.map_or(ARRAY_MAX, |attachable| attachable.most).max(1) };
    let mut found: Vec<(u32, Offer, Supply)> = Vec::new();
    let on_credits = matches!(
        known.performance,
        Performance::IopsCredits { .. } | Performance::BandwidthCredits { .. } | Performance::Tiers { .. }
    );
    for supply in [Supply::Sustained, Supply::OnCredits].into_iter().take(1 + usize::from(on_credits)) {
        let single = known.offer(need.capacity, &need.limits, supply).map(|offer| (1, offer, supply));
        let Some(best) = cheapest(known, need, supply, most) else { continue };
        // What credits give must beat what is sustained, or they are of no use.
        let sustained = found.iter().filter_map(|(volumes, offer, _)| total(*volumes, offer)).min_by(f64::total_cmp);
        if supply == Supply::OnCredits {
            let beats =
                total(best.0, &best.1).is_some_and(|usd| sustained.is_none_or(|sustained| usd < sustained - 1e-9));
            if !beats || known.all_credits_at(best.1.size).is_empty() {
                continue;
            }
        }
        let alone = single.filter(|_| best.0 > 1);
        let useful = |(_, offer, _): &(u32, Offer, Supply)| match supply {
            Supply::Sustained => true,
            Supply::OnCredits => {
                total(1, offer).is_some_and(|usd| sustained.is_none_or(|sustained| usd < sustained - 1e-9))
            }
        };
        found.push(best);
        found.extend(alone.filter(useful));
    }
    found.into_iter().map(|(volumes, offer, supply)| option(catalog, known, need, volumes, &offer, supply)).collect()
}

fn total(volumes: u32, offer: &Offer) -> Option<f64> {
    offer.usd_month.map(|usd| usd * f64::from(volumes))
}

/// The least number of volumes at the lowest price. If the price is unknown, the least number that does.
fn cheapest(known: &VolumeType, need: &Need, supply: Supply, most: u32) -> Option<(u32, Offer, Supply)> {
    let mut best: Option<(u32, Offer, Supply)> = None;
    for volumes in 1..=most {
        let each = share(need, volumes);
        let Some(offer) = known.offer(each.capacity, &each.limits, supply) else { continue };
        let better = best.as_ref().is_none_or(|(count, known, _)| {
            total(volumes, &offer).zip(total(*count, known)).is_some_and(|(usd, known)| usd < known - 1e-9)
        });
        if better {
            best = Some((volumes, offer, supply));
        }
    }
    best
}

/// What each of so many volumes must do, rounded up.
pub(crate) fn share(need: &Need, volumes: u32) -> Need {
    let count = u64::from(volumes);
    Need {
        capacity: Bytes::new(need.capacity.get().div_ceil(count)),
        limits: Limits {
            bandwidth: need.limits.bandwidth.map(|rate| Bandwidth::new(rate.get().div_ceil(count))),
            iops: need.limits.iops.map(|rate| Iops::new(rate.get().div_ceil(count))),
        },
    }
}

fn option(
    catalog: &Catalog,
    known: &VolumeType,
    need: &Need,
    volumes: u32,
    offer: &Offer,
    supply: Supply,
) -> PriceOption {
    let count = u64::from(volumes);
    let mut note = String::new();
    if let Some(tier) = known.tier_name(offer.size) {
        add_note(&mut note, &format!("billed as {tier}"));
    }
    if supply == Supply::OnCredits {
        add_note(&mut note, &lasting(known, offer.size, &share(need, volumes).limits));
    }
    let price = known.price.as_ref();
    if let Some(usd) = price.and_then(|price| price.transactions_10k_usd) {
        add_note(&mut note, &format!("and ${usd} for 10,000 transactions"));
    }
    if offer.usd_month.is_none() {
        add_note(&mut note, "its price is unknown");
    }
    if matches!(known.performance, Performance::Provisioned { .. })
        && let Some(modification) =
            catalog.provider(&known.provider).and_then(|provider| provider.modification.as_ref())
    {
        add_note(&mut note, &format!("can be modified in place: {}", modification.says.replace("; ", ", ")));
    }
    PriceOption {
        provider: known.provider.clone(),
        volume_type: known.name.clone(),
        volumes,
        size_gib: offer.size.as_gib(),
        iops: offer.gives.iops.map(|iops| iops.get().saturating_mul(count)),
        throughput_mib_s: offer.gives.bandwidth.map(|bandwidth| bandwidth.as_mib_s() * f64::from(volumes)),
        usd_month: total(volumes, offer),
        transactions_10k_usd: price.and_then(|price| price.transactions_10k_usd).filter(|usd| *usd > 0.0),
        sustained: supply == Supply::Sustained,
        note,
        price_as_of: price.and_then(|price| price.as_of.clone()),
        price_confidence: price.map(|price| price.confidence.clone()),
    }
}

/// How long full buckets carry a need, and what is there afterwards.
fn lasting(known: &VolumeType, size: Bytes, need: &Limits) -> String {
    let lasts = known.all_credits_at(size).into_iter().filter_map(|credits| carries(known, &credits, need)).min();
    let sustained = known.sustained_with(size, &surgetank_model::volume_type::Provision::default());
    let iops = sustained.iops.map(|iops| iops.to_string());
    let bandwidth = sustained.bandwidth.map(|bandwidth| format!("{:.0} MiB/s", bandwidth.as_mib_s()));
    let after: Vec<String> = iops.into_iter().chain(bandwidth).collect();
    match lasts {
        Some(time) => format!(
            "full credits last {}, then {} a volume",
            Span(Duration::from_secs(time.as_secs())),
            after.join(" and ")
        ),
        None => "lives on burst credits".to_owned(),
    }
}

/// How long one bucket carries what is needed of it; `None`: for ever.
fn carries(known: &VolumeType, credits: &Credits, need: &Limits) -> Option<Duration> {
    let rate = match (credits.unit, &known.performance) {
        (CreditUnit::Operations, Performance::IopsCredits { io_unit, .. }) => {
            // Bandwidth takes at least an operation for each unit of it.
            let carried = need.bandwidth.map(|bandwidth| bandwidth.get().div_ceil(io_unit.get().max(1)));
            need.iops.map(Iops::get).max(carried)?
        }
        (CreditUnit::Operations, _) => need.iops?.get(),
        (CreditUnit::Bytes, _) => need.bandwidth?.get(),
    };
    let above = rate.checked_sub(credits.baseline_per_s).filter(|above| *above > 0)?;
    Duration::try_from_secs_f64(credits.bucket as f64 / above as f64).ok()
}
