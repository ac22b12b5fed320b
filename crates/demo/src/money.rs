//! The demo's cost in money, at the catalog's list prices of types that stand for the demo's volumes.
//!
//! The stand-ins are those of the catalog's local types: Google's Persistent Disks, which are sold by size, and bandwidth follows the
//! size. So a bandwidth has a price: that of the smallest disk which sustains it.

use std::time::Duration;

use surgetank_model::volume_type::{Offer, Supply};
use surgetank_model::{Bandwidth, Catalog, Limits, VolumeType};

use crate::host::{Record, Rented};
use crate::plan::Plan;

/// The type whose price the catalog gives a local one.
fn stand_in<'a>(catalog: &'a Catalog, local: &str) -> Option<&'a VolumeType> {
    let (provider, name) = catalog.find("local", local)?.price_of.as_deref()?.split_once('/')?;
    catalog.find(provider, name)
}

/// What stands for a volume of this bandwidth: the slow type up to the backing volume's, else the fast one.
fn disk<'a>(catalog: &'a Catalog, plan: &Plan, bandwidth: Bandwidth) -> Option<(&'a VolumeType, Offer)> {
    let known = stand_in(catalog, if bandwidth <= plan.backing_bandwidth { "slow" } else { "fast" })?;
    let need = Limits { bandwidth: Some(bandwidth), iops: None };
    Some((known, known.offer(known.size.min, &need, Supply::Sustained)?))
}

/// What everything rented until a moment costs, with the run's times scaled up to the papers'; `None`: a price is unknown.
pub fn usd<'a>(plan: &'a Plan, record: &'a Record) -> impl Fn(f64) -> Option<f64> + 'a {
    let catalog = Catalog::builtin();
    let price = |rental: &'a Rented| {
        let priced = disk(&catalog, plan, rental.bandwidth).and_then(|(known, offer)| {
            Some((known.price_per_hour_with(offer.size, &offer.bought)?, known.billing.clone()))
        });
        (rental, priced)
    };
    let prices: Vec<_> = record.rentals.iter().map(price).collect();
    move |until_s| {
        let begun = prices.iter().filter(|(rental, _)| rental.seconds_until(until_s) > 0.0);
        let cost = begun.map(|(rental, priced)| {
            let (usd_per_hour, billing) = priced.as_ref()?;
            let scaled_s = rental.seconds_until(until_s) * f64::from(plan.scale);
            let billed = billing.billed(Duration::try_from_secs_f64(scaled_s).ok()?);
            Some(usd_per_hour * billed.as_secs_f64() / 3600.0)
        });
        cost.sum()
    }
}

/// What the money column means.
#[must_use]
pub fn explanation(plan: &Plan) -> String {
    let catalog = Catalog::builtin();
    let sentence = |bandwidth: Bandwidth| {
        let Some((known, offer)) = disk(&catalog, plan, bandwidth) else { return "unknown".to_owned() };
        let date = known.price.as_ref().and_then(|price| price.as_of.as_deref()).unwrap_or("undated");
        let usd = offer.usd_month.map_or_else(|| "unknown".to_owned(), |usd| format!("${usd:.2}"));
        let (key, gib, mib_s) = (known.key(), offer.size.as_gib(), bandwidth.as_mib_s());
        format!("{key} of {gib:.0} GiB ({mib_s:.0} MiB/s, {usd} a month, price of {date})")
    };
    format!(
        "as large as the papers' run ({} times this one); slow: {}; fast and caching: {}",
        plan.scale,
        sentence(plan.backing_bandwidth),
        sentence(plan.caching_bandwidth),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_of_each_volume_costs_its_share_of_a_month() {
        let plan = Plan::standard(1);
        let hour_s = 3600.0 / f64::from(plan.scale);
        let of = |bandwidth| {
            let rental = Rented { agbs_per_s: 1.0, bandwidth, from_s: 0.0, until_s: hour_s };
            let record = Record { rentals: vec![rental], ..Record::default() };
            usd(&plan, &record)(hour_s).unwrap() * 730.0
        };
        // 33 / 0.12 = 275 GiB, of whole bytes per second and GiB one more, at $0.04; 128 / 0.48 = 266.7, so 267 GiB at $0.17.
        assert!((of(plan.backing_bandwidth) - 11.04).abs() < 1e-6);
        assert!((of(plan.caching_bandwidth) - 45.39).abs() < 1e-6);
        let said = explanation(&plan);
        assert!(said.contains("gcp/pd-standard of 276 GiB") && said.contains("gcp/pd-ssd of 267 GiB"), "{said}");
    }

    #[test]
    fn what_has_not_begun_costs_nothing() {
        let plan = Plan::standard(1);
        let rental = Rented { agbs_per_s: 1.0, bandwidth: plan.caching_bandwidth, from_s: 5.0, until_s: 9.0 };
        let record = Record { rentals: vec![rental], ..Record::default() };
        let usd = usd(&plan, &record);
        assert_eq!(usd(5.0), Some(0.0));
        assert!(usd(6.0) < usd(9.0));
    }
}
