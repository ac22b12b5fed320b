//! Without an elastic device: volumes that take the bursts themselves.

use surgetank_model::volume_type::{Performance, Supply};
use surgetank_model::{Bandwidth, Bytes, Catalog, Limits, VolumeType};

use super::{Kind, Load, Way, cheaper, named};
use crate::price::{Need, PriceOption, options};

/// The cheapest volume, or array of equal ones, that takes every burst of a month in time.
pub(super) fn cheapest(catalog: &Catalog, provider: &str, load: &Load) -> Option<Way> {
    let need = Need { capacity: load.capacity, limits: load.burst_limits() };
    options(catalog, &need, Some(provider)).iter().filter_map(|option| fixed(catalog, load, option)).min_by(cheaper)
}

fn fixed(catalog: &Catalog, load: &Load, option: &PriceOption) -> Option<Way> {
    let known = catalog.find(&option.provider, &option.volume_type)?;
    let size = Bytes::new((option.size_gib * surgetank_model::units::GIB as f64) as u64);
    let usd_month = option.usd_month?;
    let each = Bandwidth::new(load.rate().get().div_ceil(u64::from(option.volumes)));
    let lasts = option.sustained || load.lasts(known, size, option.volumes, each, load.request);
    if !lasts || !load.sustains_between(known, size, option.volumes) {
        return None;
    }
    let transactions_usd = load.transactions_usd(known, load.request);
    Some(Way {
        kind: Kind::Static,
        volume_type: known.name.clone(),
        what: named(option.volumes, size, known),
        usd_month: usd_month + transactions_usd,
        transactions_usd,
        bursts_usd: 0.0,
        burst_s: load.within.as_secs_f64(),
        caching: None,
        note: if option.sustained { "" } else { "on credits that every pause earns back" }.to_owned(),
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
