//! What a long run comes to: boosts and bursts in a few figures, series as fine as a screen shows.

use serde::Serialize;

use super::{Activity, Boost, ModeOutcome};

/// Samples and points that a page keeps of a series: as many as its pictures have pixels.
pub const POINTS_MAX: usize = 900;
/// Phases and boosts that a report keeps one by one.
pub const LISTED_MAX: usize = 500;

/// Least, median and most of something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The least.
    pub least: f64,
    /// The median.
    pub median: f64,
    /// The most.
    pub most: f64,
}

impl Spread {
    /// Of these values; all zero without any.
    #[must_use]
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or_default();
        Self { least: at(0), median: at(values.len() / 2), most: at(values.len().saturating_sub(1)) }
    }
}

/// Many boosts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BoostSummary {
    /// How many.
    pub count: usize,
    /// Those in whose caching volume nothing was ever written.
    pub in_vain: usize,
    /// From the decision until the caching volume absorbed.
    pub attach_s: Spread,
    /// From the first absorbed write until the drain had priority.
    pub absorb_s: Spread,
    /// From then until the caching volume was released.
    pub drain_s: Spread,
    /// Size of the caching volume.
    pub cache_gib: Spread,
    /// Most of it in use.
    pub high_water_gib: Spread,
}

impl BoostSummary {
    /// `None` without boosts.
    #[must_use]
    pub fn of(boosts: &[Boost]) -> Option<Self> {
        let spread = |of: fn(&Boost) -> f64| Spread::of(boosts.iter().map(of));
        (!boosts.is_empty()).then(|| Self {
            count: boosts.len(),
            in_vain: boosts.iter().filter(|boost| boost.high_water_gib <= 0.0).count(),
            attach_s: spread(|boost| boost.attach_s),
            absorb_s: spread(|boost| boost.absorb_s),
            drain_s: spread(|boost| boost.drain_s),
            cache_gib: spread(|boost| boost.cache_gib),
            high_water_gib: spread(|boost| boost.high_water_gib),
        })
    }
}

/// What a replayed load's bursts had to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BurstSummary {
    /// Bursts of the load: stretches of requests with a pause before and behind. The same in all modes.
    pub count: usize,
    /// From a burst's first request until its last byte was served, on average.
    pub length_mean_s: f64,
    /// The longest.
    pub length_max_s: f64,
    /// From a burst's last request until its last byte was served, on average: what the device made it wait.
    pub waited_mean_s: f64,
    /// The longest.
    pub waited_max_s: f64,
    /// Of all bursts together.
    pub waited_total_s: f64,
}

impl BurstSummary {
    /// Of bursts' lengths and waits; `None` without bursts.
    #[must_use]
    pub fn of(bursts: &[(f64, f64)]) -> Option<Self> {
        let count = bursts.len();
        let sum = |of: fn(&(f64, f64)) -> f64| bursts.iter().map(of).sum::<f64>();
        let most = |of: fn(&(f64, f64)) -> f64| bursts.iter().map(of).fold(0.0, f64::max);
        (count > 0).then(|| Self {
            count,
            length_mean_s: sum(|burst| burst.0) / count as f64,
            length_max_s: most(|burst| burst.0),
            waited_mean_s: sum(|burst| burst.1) / count as f64,
            waited_max_s: most(|burst| burst.1),
            waited_total_s: sum(|burst| burst.1),
        })
    }
}

impl ModeOutcome {
    /// The same with series as fine as a screen shows, and the first of very many boosts and phases.
    #[must_use]
    pub fn thinned(&self) -> Self {
        let each = |count: usize| count.div_ceil(POINTS_MAX).max(1);
        Self {
            activity: self.activity.chunks(each(self.activity.len())).filter_map(merged).collect(),
            cost: self.cost.chunks(each(self.cost.len())).filter_map(|points| points.last().copied()).collect(),
            phases: self.phases.iter().take(LISTED_MAX).cloned().collect(),
            boosts: self.boosts.iter().take(LISTED_MAX).cloned().collect(),
            boost_summary: BoostSummary::of(&self.boosts),
            ..self.clone_without_series()
        }
    }
}

/// One sample of several: their averages, and the highest that the application wrote in one of them.
fn merged(samples: &[Activity]) -> Option<Activity> {
    let last = samples.last().copied()?;
    if samples.len() == 1 {
        return Some(last);
    }
    let mean = |of: fn(&Activity) -> f64| samples.iter().map(of).sum::<f64>() / samples.len() as f64;
    Some(Activity {
        at_s: last.at_s,
        application_mib_s: mean(|sample| sample.application_mib_s),
        cache_mib_s: mean(|sample| sample.cache_mib_s),
        backing_mib_s: mean(|sample| sample.backing_mib_s),
        drain_mib_s: mean(|sample| sample.drain_mib_s),
        application_peak_mib_s: Some(samples.iter().map(|sample| sample.application_mib_s).fold(0.0, f64::max)),
    })
}

#[cfg(test)]
mod tests {
    use super::super::CostPoint;
    use super::*;

    #[test]
    fn a_long_run_is_as_small_as_a_screen() {
        let samples: Vec<Activity> = (0..500_000)
            .map(|index| Activity {
                at_s: f64::from(index) * 5.0,
                application_mib_s: if index % 1000 == 0 { 100.0 } else { 0.0 },
                ..Activity::default()
            })
            .collect();
        let moved: f64 = samples.iter().map(|sample| sample.application_mib_s).sum();
        let boosts = (0..47_000).map(|index| Boost { attach_s: f64::from(index % 3), ..Boost::default() }).collect();
        let cost =
            (0..94_000).map(|index| CostPoint { at_s: f64::from(index), agbs: f64::from(index), usd: None }).collect();
        let long = ModeOutcome { activity: samples, boosts, cost, ..ModeOutcome::default() };
        let short = long.thinned();
        assert!(short.activity.len() <= POINTS_MAX && short.cost.len() <= POINTS_MAX);
        assert_eq!((short.boosts.len(), short.boost_summary.map(|summary| summary.count)), (LISTED_MAX, Some(47_000)));
        assert_eq!(short.boost_summary.map(|summary| (summary.in_vain, summary.attach_s.most)), Some((47_000, 2.0)));
        // Averages and ends stay what they are; peaks are kept beside them.
        let each = long.activity.len().div_ceil(POINTS_MAX) as f64;
        let kept: f64 = short.activity.iter().map(|sample| sample.application_mib_s * each).sum();
        assert!((kept / moved - 1.0).abs() < 0.01, "{kept} {moved}");
        assert_eq!(short.activity[0].application_peak_mib_s, Some(100.0));
        assert_eq!(short.cost.last(), long.cost.last());
        assert_eq!(short.activity.last().map(|sample| sample.at_s), long.activity.last().map(|sample| sample.at_s));
    }

    #[test]
    fn a_short_run_stays_as_it_is() {
        let outcome = super::super::sample::outcome();
        for mode in outcome.modes.values() {
            let thinned = mode.thinned();
            assert_eq!((&thinned.activity, &thinned.cost, &thinned.phases), (&mode.activity, &mode.cost, &mode.phases));
            assert_eq!(thinned.boosts, mode.boosts);
        }
    }
}
