//! Without an elastic device: volumes that take the bursts themselves.

use surgetank_model::volume_type::{Performance, Supply};
use surgetank_model::{Bandwidth, Bytes, Catalog, Limits, VolumeType};

use super::{Kind, Load, Way, cheaper, named};
use crate::price::{Need, PriceOption, options, share};
use crate::stripe::Machine;

/// The cheapest volume, or array of equal ones, that takes every burst of a month in time.
pub(super) fn cheapest(catalog: &Catalog, provider: &str, load: &Load) -> Option<Way> {
    let need = Need { capacity: load.capacity, limits: load.burst_limits() };
    let options = options(catalog, &need, Some(provider));
    let sustained =
        options.iter().filter(|option| option.sustained).filter_map(|option| sustained(catalog, load, option));
    let rented = catalog.iter().filter(|known| known.provider == provider && known.limits_are_known());
    sustained.chain(rented.filter_map(|known| on_credits(catalog, known, &need, load))).min_by(cheaper)
}

/// One that is as fast for ever.
fn sustained(catalog: &Catalog, load: &Load, option: &PriceOption) -> Option<Way> {
    let known = catalog.find(&option.provider, &option.volume_type)?;
    let size = Bytes::new((option.size_gib * surgetank_model::units::GIB as f64) as u64);
    let enough = load.sustains_between(known, size, option.volumes);
    enough.then(|| way(known, option.volumes, size, option.usd_month, load, ""))?
}

/// The cheapest of a type on burst credits that every pause earns back. Larger volumes have more of them, so the smallest that
/// are fast enough need not do.
fn on_credits(catalog: &Catalog, known: &VolumeType, need: &Need, load: &Load) -> Option<Way> {
    let of = |volumes: u32| {
        let each = share(need, volumes);
        let rate = Bandwidth::new(load.rate().get().div_ceil(u64::from(volumes)));
        let least = known.offer(each.capacity, &each.limits, Supply::OnCredits)?;
        let size = known.smallest(least.size, |size| {
            let lasts = load.lasts(known, size, volumes, rate, load.request);
            (lasts && load.sustains_between(known, size, volumes)).then_some(size)
        })?;
        let usd = known.price_per_month(size, &least.bought).map(|usd| usd * f64::from(volumes));
        way(known, volumes, size, usd, load, "on credits that every pause earns back")
    };
    if known.all_credits_at(known.size.fit(Bytes::ZERO)?).is_empty() {
        return None;
    }
    (1..=Machine::default().volumes_max(catalog, Some(known))).filter_map(of).min_by(cheaper)
}

fn way(known: &VolumeType, volumes: u32, size: Bytes, usd: Option<f64>, load: &Load, note: &str) -> Option<Way> {
    let transactions_usd = load.transactions_usd(known, load.request);
    Some(Way {
        kind: Kind::Static,
        volume_type: known.name.clone(),
        what: named(volumes, size, known),
        usd_month: usd? + transactions_usd,
        transactions_usd,
        bursts_usd: 0.0,
        burst_s: load.within.as_secs_f64(),
        caching: None,
        note: note.to_owned(),
    })
}

/// A single volume that does for the time between bursts, raised for each of them and lowered as soon as the provider allows.
pub(super) fn raised(catalog: &Catalog, known: &VolumeType, load: &Load) -> Option<Way> {
    if !matches!(known.performance, Performance::Provisioned { .. }) {
        return None;
    }
    let offer = known.offer(load.capacity, &load.between_limits(known), Supply::Sustained)?;
    let burst = load.burst_limits();
    let in_place = catalog.raised(known, offer.size, offer.gives.bandwidth?, burst.bandwidth?)?;
    // What is raised must have the operations as well.
    let gives = known.cheapest_with(offer.size, &Limits { bandwidth: Some(in_place.bandwidth), iops: None })?.gives;
    let enough = gives.iops.is_none_or(|has| burst.iops.is_none_or(|need| has >= need));
    if in_place.bandwidth < burst.bandwidth? || !enough {
        return None;
    }
    let held = in_place.least.max(load.within);
    // Where the next burst comes before it may be lowered, it stays raised for all of that time.
    let hours = held.min(load.every).as_secs_f64() / 3600.0 * f64::from(load.bursts_month);
    let bursts_usd = in_place.usd_per_hour * hours.min(super::MONTH_S / 3600.0);
    let transactions_usd = load.transactions_usd(known, load.request);
    Some(Way {
        kind: Kind::InPlace,
        volume_type: known.name.clone(),
        what: named(1, offer.size, known),
        usd_month: offer.usd_month? + bursts_usd + transactions_usd,
        transactions_usd,
        bursts_usd,
        burst_s: load.within.as_secs_f64(),
        caching: None,
        note: format!("raised to {:.0} MiB/s for {:.0} h a month", in_place.bandwidth.as_mib_s(), hours),
    })
}
