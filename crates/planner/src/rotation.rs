//! Rotation of one member of a burstable array, in closed form (PGA20, section 3.1).
//!
//! Before its credits run out a member is mirrored onto a new volume and deleted. With Q0 the bucket, b the baseline, λ
//! the demand, ω the share of writes in it, r the copy rate and ρ its operations per second:
//!
//! ```text
//! c = g/r                                                   seconds of copying
//! s = (Q0 − c·(2ρ + (1+ω)·λ − 2b))/(λ − b)                  seconds alone
//! L = s + c,  overhead = c/L                                two volumes are billed for c out of L
//! θ = c·(ρ + λ − b)                                         start when credits reach this
//! ```

use serde::Serialize;
use surgetank_model::volume_type::{CreditUnit, Supply};
use surgetank_model::{Bandwidth, Bytes, Catalog, Iops, Limits, VolumeType};

/// What one member does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Member {
    /// Its size, g.
    pub size: Bytes,
    /// r.
    pub copy_rate: Bandwidth,
    /// Bytes of one operation of the copy; ρ is the rate over this.
    pub copy_io_size: Bytes,
    /// λ, what the application asks of this member.
    pub demand: Iops,
    /// ω, from 0 to 1.
    pub write_share: f64,
}

/// Whether and how to rotate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rotation {
    /// c.
    pub copy_s: f64,
    /// L; `None`: the credits never run out, or do not suffice for a copy.
    pub cycle_s: Option<f64>,
    /// c/L.
    pub overhead_ratio: Option<f64>,
    /// θ.
    pub start_at_credits: f64,
    /// Whether it pays.
    pub worth_it: bool,
    /// Why, or why not.
    pub reason: String,
    /// USD a month of a rotated member; `None`: unknown.
    pub usd_month: Option<f64>,
}

/// The closed form for one member.
///
/// # Errors
/// One sentence: the type has no such volume, or none with operation credits.
pub fn rotation(catalog: &Catalog, volume_type: &VolumeType, member: &Member) -> Result<Rotation, String> {
    let key = volume_type.key();
    volume_type.check(member.size, &surgetank_model::volume_type::Provision::default())?;
    let credits = volume_type.all_credits_at(member.size);
    let credits = credits.iter().find(|credits| credits.unit == CreditUnit::Operations).ok_or_else(|| {
        format!("{key} of {} has no operation credits, so there is nothing to rotate: take a smaller volume or another type", member.size)
    })?;
    let (bucket, baseline) = (credits.bucket as f64, credits.baseline_per_s as f64);
    let demand = (member.demand.get() as f64).min(credits.burst_per_s as f64);
    let copy_s = member.size.as_mib() / member.copy_rate.as_mib_s();
    let copy_iops = member.copy_rate.get() as f64 / member.copy_io_size.get().max(1) as f64;
    let start_at_credits = (copy_s * (copy_iops + demand - baseline)).max(0.0);
    let both_s = copy_s * (2.0 * copy_iops + (1.0 + member.write_share) * demand - 2.0 * baseline);
    let alone_s = (bucket - both_s) / (demand - baseline);
    let month = volume_type.price_per_month(member.size, &surgetank_model::volume_type::Provision::default());
    let mut found = Rotation {
        copy_s,
        cycle_s: None,
        overhead_ratio: None,
        start_at_credits,
        worth_it: false,
        reason: String::new(),
        usd_month: month,
    };
    if demand <= baseline {
        found.reason =
            format!("{} is no more than the baseline of {baseline} IOPS: the credits never run out", member.demand);
        return Ok(found);
    }
    if alone_s <= 0.0 || start_at_credits > bucket {
        found.reason = format!(
            "copying {} for {copy_s:.0} s takes more credits than the {bucket:.0} of a full bucket",
            member.size
        );
        return Ok(found);
    }
    let cycle_s = alone_s + copy_s;
    let overhead = copy_s / cycle_s;
    (found.cycle_s, found.overhead_ratio) = (Some(cycle_s), Some(overhead));
    found.usd_month = month.map(|usd| usd * (1.0 + overhead));
    (found.worth_it, found.reason) = judge(catalog, volume_type, member, found.usd_month);
    Ok(found)
}

/// Against every volume of the same provider that sustains the demand at this size.
fn judge(catalog: &Catalog, rotated: &VolumeType, member: &Member, usd_month: Option<f64>) -> (bool, String) {
    let Some(usd) = usd_month else {
        return (false, format!("the price of {} is unknown: give it with --catalog FILE", rotated.key()));
    };
    let need = Limits { bandwidth: None, iops: Some(member.demand) };
    let same = catalog.iter().filter(|known| known.provider == rotated.provider);
    let priced = same.filter_map(|known| {
        let offer = known.offer(member.size, &need, Supply::Sustained)?;
        Some((offer.usd_month?, known.name.as_str(), offer.size))
    });
    match priced.min_by(|one, other| one.0.total_cmp(&other.0)) {
        None => (
            true,
            format!(
                "nothing of this provider sustains {} at this size; rotated it costs ${usd:.2} a month",
                member.demand
            ),
        ),
        Some((other_usd, name, size)) if other_usd <= usd => (
            false,
            format!(
                "{name} of {size} sustains {} for ${other_usd:.2} a month, rotation costs ${usd:.2}",
                member.demand
            ),
        ),
        Some((other_usd, name, size)) => (
            true,
            format!(
                "${usd:.2} a month; the cheapest that sustains {} is {name} of {size} for ${other_usd:.2}",
                member.demand
            ),
        ),
    }
}
