//! The demo's cost in money, at list prices of one provider whose slow and fast disks stand for the demo's volumes.
//!
//! Google's Persistent Disks are sold by size, and bandwidth follows the size, so a bandwidth has a price: that of the
//! smallest disk which sustains it (and is large enough). Prices: Cloud Billing Catalog of 2026-09-21, us-central1;
//! throughput by size: cloud.google.com/compute/docs/disks/performance.

use surgetank_model::Bandwidth;

use crate::host::Record;
use crate::plan::Plan;

/// Hours in a month, as price lists count it.
const HOURS_PER_MONTH: f64 = 730.0;

/// A type of disk.
struct Disk {
    name: &'static str,
    usd_per_gib_month: f64,
    mib_s_per_gib: f64,
}

/// Stands for the slow volume.
const SLOW: Disk = Disk { name: "pd-standard", usd_per_gib_month: 0.04, mib_s_per_gib: 0.12 };
/// Stands for the fast volume and for caching volumes.
const FAST: Disk = Disk { name: "pd-ssd", usd_per_gib_month: 0.17, mib_s_per_gib: 0.48 };

impl Disk {
    fn gib_for(&self, bandwidth: Bandwidth) -> f64 {
        (bandwidth.as_mib_s() / self.mib_s_per_gib).ceil()
    }

    fn usd_month(&self, bandwidth: Bandwidth) -> f64 {
        self.gib_for(bandwidth) * self.usd_per_gib_month
    }

    fn sentence(&self, bandwidth: Bandwidth) -> String {
        let (gib, usd) = (self.gib_for(bandwidth), self.usd_month(bandwidth));
        format!("{} of {gib:.0} GiB ({:.0} MiB/s, ${usd:.2} a month)", self.name, bandwidth.as_mib_s())
    }
}

fn disk_for(plan: &Plan, bandwidth: Bandwidth) -> &'static Disk {
    if bandwidth <= plan.backing_bandwidth { &SLOW } else { &FAST }
}

/// What everything rented until `wall_s` costs, with the run's times scaled up to the papers'.
#[must_use]
pub fn usd(plan: &Plan, record: &Record, wall_s: f64) -> f64 {
    let rentals = record.rentals.iter().map(|rental| {
        let hours = rental.seconds_until(wall_s) * f64::from(plan.scale) / 3600.0;
        disk_for(plan, rental.bandwidth).usd_month(rental.bandwidth) / HOURS_PER_MONTH * hours
    });
    rentals.sum()
}

/// What the money column means.
#[must_use]
pub fn explanation(plan: &Plan) -> String {
    format!(
        "as large as the papers' run ({} times this one); slow: Google {}; fast and caching: {}; list prices of September 2026",
        plan.scale,
        SLOW.sentence(plan.backing_bandwidth),
        FAST.sentence(plan.caching_bandwidth),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Rented;

    #[test]
    fn an_hour_of_each_volume_costs_its_share_of_a_month() {
        let plan = Plan::standard(1);
        let hour_s = 3600.0 / f64::from(plan.scale);
        let of = |bandwidth| {
            let rental = Rented { agbs_per_s: 1.0, bandwidth, from_s: 0.0, until_s: hour_s };
            usd(&plan, &Record { rentals: vec![rental], ..Record::default() }, hour_s) * HOURS_PER_MONTH
        };
        // 33 / 0.12 = 275 GiB at $0.04; 128 / 0.48 = 266.7, so 267 GiB at $0.17.
        assert!((of(plan.backing_bandwidth) - 11.0).abs() < 1e-6);
        assert!((of(plan.caching_bandwidth) - 45.39).abs() < 1e-6);
    }
}
