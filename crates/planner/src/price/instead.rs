//! What could be rented in place of an array that lives on burst credits.

use std::fmt;

use surgetank_model::volume_type::Provision;
use surgetank_model::{Bandwidth, Bytes, Catalog, Iops, Limits, VolumeType};

use super::{Need, PriceOption, options};

/// An array of equal volumes that live on burst credits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CreditArray<'a> {
    /// The members' type.
    pub volume_type: &'a VolumeType,
    /// How many there are.
    pub members: u32,
    /// Size of each.
    pub member_size: Bytes,
    /// Share of the time in which a member and its successor are rented both (see [`crate::rotation`]): 0 without rotation, 0.1 if
    /// rotation costs a tenth of the array.
    pub overhead_ratio: f64,
    /// What is asked of all members together; `None`: all that they give while their credits last.
    pub demand: Option<Limits>,
}

/// What an array on credits costs, and the cheapest that gives the same for ever.
#[derive(Clone, Debug, PartialEq)]
pub struct Instead {
    /// The array, in words: `10 × 50 GiB aws/gp2`.
    pub array: String,
    /// What it costs in USD a month with its rotation; `None`: unknown.
    pub array_usd_month: Option<f64>,
    /// What it gives while credits last, as far as that is asked for.
    pub gives: Limits,
    /// The cheapest option of the same provider that holds as much and sustains that, billed without transactions; `None`: it has
    /// none.
    pub sustained: Option<PriceOption>,
}

impl Instead {
    /// Whether rotation does not pay: what gives the same for ever costs no more.
    #[must_use]
    pub fn ends_the_game(&self) -> bool {
        let usd = self.sustained.as_ref().and_then(|option| option.usd_month);
        usd.zip(self.array_usd_month).is_some_and(|(usd, array)| usd <= array)
    }
}

/// What to rent in place of an array on credits: the cheapest option of its provider (for a type that takes its price from another
/// one, of that one's) with the array's capacity and what its members give while their credits last. `None`: the type has no
/// credits at this size, so that there is nothing to rotate. [`Instead`] prints the sentence for users.
#[must_use]
pub fn instead_of_credits(catalog: &Catalog, array: &CreditArray<'_>) -> Option<Instead> {
    let CreditArray { volume_type, members, member_size, .. } = *array;
    if members == 0 || volume_type.all_credits_at(member_size).is_empty() {
        return None;
    }
    let count = u64::from(members);
    let each = volume_type.limits_at(member_size);
    let all = Limits {
        bandwidth: each.bandwidth.map(|rate| Bandwidth::new(rate.get().saturating_mul(count))),
        iops: each.iops.map(|rate| Iops::new(rate.get().saturating_mul(count))),
    };
    // What an array does not give, nothing need give in its place.
    let gives = array.demand.map_or(all, |demand| Limits {
        bandwidth: demand.bandwidth.map(|asked| all.bandwidth.map_or(asked, |has| has.min(asked))),
        iops: demand.iops.map(|asked| all.iops.map_or(asked, |has| has.min(asked))),
    });
    let need = Need { capacity: Bytes::new(member_size.get().saturating_mul(count)), limits: gives };
    let provider = volume_type.price_of.as_ref().and_then(|key| key.split_once('/')).map(|(provider, _)| provider);
    let found = options(catalog, &need, Some(provider.unwrap_or(&volume_type.provider)));
    let fits =
        |option: &PriceOption| option.sustained && option.usd_month.is_some() && option.transactions_10k_usd.is_none();
    let month = volume_type.price_per_month(member_size, &Provision::default());
    Some(Instead {
        array: format!("{members} × {member_size} {}", volume_type.key()),
        array_usd_month: month.map(|usd| usd * f64::from(members) * (1.0 + array.overhead_ratio)),
        gives,
        sustained: found.into_iter().find(fits),
    })
}

impl fmt::Display for Instead {
    /// One sentence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rates: Vec<String> =
            [self.gives.iops.map(|iops| iops.to_string()), self.gives.bandwidth.map(|rate| rate.to_string())]
                .into_iter()
                .flatten()
                .collect();
        let rates = if rates.is_empty() { "as much".to_owned() } else { rates.join(" and ") };
        let Some(array_usd) = self.array_usd_month else {
            return write!(f, "the price of {} is unknown: give it in a catalog file", self.array);
        };
        match self.sustained.as_ref().and_then(|option| Some((option, option.usd_month?))) {
            None => write!(
                f,
                "{} cost ${array_usd:.2} a month with rotation, and nothing of the provider sustains {rates}",
                self.array
            ),
            Some((option, usd)) => {
                let verdict = match self.ends_the_game() {
                    true => "rotation does not pay: rent the latter",
                    false => "rotation pays as long as the demand outlasts the credits",
                };
                let date = option.price_as_of.as_deref().unwrap_or("undated");
                write!(
                    f,
                    "{} give {rates} while credits last and cost ${array_usd:.2} a month with rotation, {} × {} GiB {}/{} sustain \
                     it for ${usd:.2} (prices of {date}): {verdict}",
                    self.array, option.volumes, option.size_gib, option.provider, option.volume_type
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(catalog: &Catalog, key: &str, members: u32, gib: u64, demand: Option<Limits>) -> Option<Instead> {
        let (provider, name) = key.split_once('/')?;
        let volume_type = catalog.find(provider, name)?;
        let member_size = Bytes::from_gib(gib);
        instead_of_credits(catalog, &CreditArray { volume_type, members, member_size, overhead_ratio: 0.1, demand })
    }

    #[test]
    fn gp3_ends_the_game_on_aws_and_says_so() {
        let catalog = Catalog::builtin();
        let found = asked(&catalog, "aws/gp2", 10, 50, None).unwrap();
        assert!(found.ends_the_game(), "{found:?}");
        let sustained = found.sustained.as_ref().unwrap();
        assert_eq!((sustained.volume_type.as_str(), sustained.sustained), ("gp3", true));
        // More than ten, so that what is included gives the 10 × 128 MiB/s too.
        assert!((sustained.usd_month.unwrap() - 40.0).abs() < 1e-9 && sustained.volumes > 10, "{sustained:?}");
        assert!((found.array_usd_month.unwrap() - 55.0).abs() < 1e-9);
        let sentence = found.to_string();
        for part in ["10 × 50 GiB aws/gp2", "30000 IOPS", "gp3", "$55.00", "2026-09-30", "does not pay"] {
            assert!(sentence.contains(part), "{sentence}");
        }
    }

    #[test]
    fn without_a_sustained_type_of_the_provider_rotation_pays() {
        let mut only_gp2 = Catalog::parse("schema = 1").unwrap();
        let text = "schema = 1\n[[volume_type]]\nprovider = \"aws\"\nname = \"gp2\"\n\
            size = { min = \"1 GiB\", max = \"16 TiB\", step = \"1 GiB\" }\nprice = { gib_month_usd = 0.1 }\n\
            performance = { model = \"iops_credits\", baseline = { per_gib = 3.0, min = \"100 IOPS\" }, burst = \"3000 IOPS\", \
            bucket = 5400000, burst_refill = \"baseline_minus_used\", io_unit = \"256 KiB\", \
            bandwidth_steps = [{ up_to = \"16 TiB\", bandwidth = \"128 MiB/s\" }] }\n";
        only_gp2 = only_gp2
            .with_file(&surgetank_model::toml_error::Source { file: "only.toml".into(), text: text.to_owned() })
            .unwrap();
        let found = asked(&only_gp2, "aws/gp2", 10, 50, None).unwrap();
        assert!(!found.ends_the_game(), "{found}");
    }

    #[test]
    fn what_has_no_credits_has_no_game() {
        let catalog = Catalog::builtin();
        for (key, gib) in [("aws/gp3", 50), ("aws/gp2", 1000), ("gcp/pd-ssd", 50), ("openstack/cinder-qos", 50)] {
            assert_eq!(asked(&catalog, key, 4, gib, None), None, "{key}");
        }
        assert_eq!(asked(&catalog, "aws/gp2", 0, 50, None), None);
    }

    #[test]
    fn what_is_asked_for_is_what_must_be_sustained() {
        let catalog = Catalog::builtin();
        let iops = |iops| Some(Limits { bandwidth: None, iops: Some(Iops::new(iops)) });
        let all = asked(&catalog, "aws/gp2", 10, 50, None).unwrap();
        let some = asked(&catalog, "aws/gp2", 10, 50, iops(12_000)).unwrap();
        let more = asked(&catalog, "aws/gp2", 10, 50, iops(90_000)).unwrap();
        let usd = |found: &Instead| found.sustained.as_ref().and_then(|option| option.usd_month).unwrap();
        assert!(usd(&some) <= usd(&more) && usd(&more) <= usd(&all));
        assert_eq!(more.gives.iops, Some(Iops::new(30_000)), "no more than the array gives");
    }
}
